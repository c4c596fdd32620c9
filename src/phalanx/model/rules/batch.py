"""Job and CronJob, including `spec.scheduling`: how the pods of a Job are scheduled together."""

from __future__ import annotations

import json
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from phalanx.base.well_known import JOB_NAME
from phalanx.model import cron, names
from phalanx.model.fieldpath import all_invalid, forbidden, invalid, not_supported, required, too_long
from phalanx.model.gates import Gates
from phalanx.model.kinds import FieldError, Json
from phalanx.model.rules import placement, podspec, podspec_defaults
from phalanx.model.rules.apps import template_of
from phalanx.model.rules.assembly import OwnRules, frozen, not_negative, status_counts
from phalanx.model.rules.declared import declared_errors, same
from phalanx.model.selectors import from_selector

_UID, _NAME = "batch.kubernetes.io/controller-uid", JOB_NAME
_LEGACY_UID, _LEGACY_NAME = "controller-uid", "job-name"
_MAX_INDEXED_PARALLELISM = 100_000
_VARIANT = (
    "the basic/gang policy variant is immutable after creation; only schedulingPolicy.gang.minCount may be updated"
)


# -- defaults --------------------------------------------------------------------------------------------------------


def job_spec_default(spec: Json) -> None:
    podspec_defaults.template(spec)
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = spec["parallelism"] = 1
    if spec.get("parallelism") is None:
        spec["parallelism"] = 1
    if spec.get("backoffLimit") is None:
        spec["backoffLimit"] = 6 if spec.get("backoffLimitPerIndex") is None else podspec.MAX_INT32
    if spec.get("completionMode") is None:
        spec["completionMode"] = "NonIndexed"
    if spec.get("suspend") is None:
        spec["suspend"] = False
    for rule in (spec.get("podFailurePolicy") or {}).get("rules") or ():
        for condition in rule.get("onPodConditions") or ():
            if not condition.get("status"):
                condition["status"] = "True"
    if spec.get("podReplacementPolicy") is None:
        spec["podReplacementPolicy"] = "TerminatingOrFailed" if spec.get("podFailurePolicy") is None else "Failed"
    if spec.get("manualSelector") is None:
        spec["manualSelector"] = False


def _job_default(obj: Json) -> None:
    job_spec_default(obj.setdefault("spec", {}))
    meta: Json = obj.setdefault("metadata", {})
    template_labels = (obj["spec"]["template"].get("metadata") or {}).get("labels")
    if not meta.get("labels") and template_labels:
        meta["labels"] = template_labels  # the very same map, as in Go: see _own_selector


def _cron_job_default(obj: Json) -> None:
    spec: Json = obj.setdefault("spec", {})
    job: Json = spec.setdefault("jobTemplate", {})
    if job.get("metadata") is None:
        job["metadata"] = {}
    # The Job itself is completed when it is made; only its pod template is shown complete here.
    podspec_defaults.template(job.setdefault("spec", {}))
    if not spec.get("concurrencyPolicy"):
        spec["concurrencyPolicy"] = "Allow"
    for field, value in (("suspend", False), ("successfulJobsHistoryLimit", 3), ("failedJobsHistoryLimit", 1)):
        if spec.get(field) is None:
            spec[field] = value


def _own_labels(meta: Json) -> tuple[tuple[str, str], ...]:
    uid, name = meta.get("uid") or "", meta.get("name") or ""
    return (_LEGACY_UID, uid), (_LEGACY_NAME, name), (_UID, uid), (_NAME, name)


def _own_selector(obj: Json) -> None:
    """Make a Job select its pods by its own uid, unless it has a manual selector."""
    spec, meta = obj["spec"], obj.get("metadata") or {}
    uid = meta.get("uid")
    if spec.get("manualSelector") or not uid:
        return
    template_meta: Json = spec["template"].setdefault("metadata", {})
    given = template_meta.get("labels") or {}
    labels = given | {key: value for key, value in _own_labels(meta) if key not in given}
    if meta.get("labels") is given:  # taken from the template: the Job has the new labels, too
        meta["labels"] = dict(labels)
    template_meta["labels"] = labels
    spec.setdefault("selector", {}).setdefault("matchLabels", {}).setdefault(_UID, uid)


# -- spec.scheduling -------------------------------------------------------------------------------------------------


_SCHEDULING = "batch/v1.JobSchedulingConfiguration"


def scheduling_create(spec: Json, path: str, gates: Gates) -> list[FieldError]:
    found: Json | None = spec.get("scheduling")
    if found is None:
        return []
    errors = _min_count(spec, found, path)
    policy: Json = found.get("schedulingPolicy") or {}
    mode: Json = found.get("disruptionMode") or {}
    if mode.get("all") is not None and policy.get("gang") is None:
        text = "the disruptionMode `all` is not supported with the Basic scheduling policy"
        errors.append(invalid(f"{path}.disruptionMode", "", text))
    return errors + declared_errors(_SCHEDULING, found, None, path, gates)


def _min_count(spec: Json, scheduling: Json, path: str) -> list[FieldError]:
    count = ((scheduling.get("schedulingPolicy") or {}).get("gang") or {}).get("minCount")
    parallelism = 1 if spec.get("parallelism") is None else spec["parallelism"]
    if count is None or 1 <= count <= parallelism:
        return []
    text = (
        "must be greater than or equal to 1" if count < 1 else f"must not be greater than parallelism ({parallelism})"
    )
    return [invalid(f"{path}.schedulingPolicy.gang.minCount", count, text)]


def _scheduling_update(spec: Json, before: Json, gates: Gates) -> list[FieldError]:
    path = "spec.scheduling"
    new, old = spec.get("scheduling"), before.get("scheduling")
    if new is None and old is None:
        return []
    if old is None:
        return [invalid(path, None, "field cannot be set once created")]
    if new is None:
        return [invalid(path, None, "field cannot be cleared once set")]
    errors = _min_count(spec, new, path)
    policy, earlier = new.get("schedulingPolicy"), old.get("schedulingPolicy")
    if policy is not None and earlier is not None and (policy.get("basic") is None) != (earlier.get("basic") is None):
        errors.append(invalid(f"{path}.schedulingPolicy", None, _VARIANT))
    return errors + declared_errors(_SCHEDULING, new, old, path, gates)


# -- Job -------------------------------------------------------------------------------------------------------------


def job_spec_errors(spec: Json, path: str) -> list[FieldError]:
    """Check a Job spec, of a Job or of a template of Jobs."""
    errors = not_negative(
        spec,
        path,
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    )
    if spec.get("maxFailedIndexes") is not None and spec.get("backoffLimitPerIndex") is None:
        errors.append(required(f"{path}.backoffLimitPerIndex", "when maxFailedIndexes is specified"))
    manager = spec.get("managedBy")
    if manager is not None:
        if "/" not in manager.strip("/"):
            text = 'must be a domain-prefixed path (such as "acme.io/foo")'
            errors.append(invalid(f"{path}.managedBy", manager, text))
        if len(manager) > 63:
            errors.append(too_long(f"{path}.managedBy", 63))
    errors += _completion_mode(spec, path)
    return errors + _policies(spec, path)


_ACTIONS = ("Count", "FailIndex", "FailJob", "Ignore")


def _policies(spec: Json, path: str) -> list[FieldError]:
    """Check podFailurePolicy, successPolicy and podReplacementPolicy."""
    errors: list[FieldError] = []
    failure, success = spec.get("podFailurePolicy"), spec.get("successPolicy")
    for index, rule in enumerate((failure or {}).get("rules") or ()):
        errors += _failure_rule(rule, spec, f"{path}.podFailurePolicy.rules[{index}]")
    if success is not None and spec.get("completionMode") == "Indexed" and not success.get("rules"):
        text = "at least one rules must be specified when the successPolicy is specified"
        errors.append(required(f"{path}.successPolicy.rules", text))
    again = spec.get("podReplacementPolicy")
    allowed = ("Failed", "TerminatingOrFailed") if failure is None else ("Failed",)
    if again is not None and again not in allowed:
        errors.append(not_supported(f"{path}.podReplacementPolicy", again, allowed))
    return errors


def _failure_rule(rule: Json, spec: Json, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    action = rule.get("action") or ""
    if not action:
        errors.append(required(f"{path}.action", f"valid values: [{' '.join(json.dumps(a) for a in _ACTIONS)}]"))
    elif action not in _ACTIONS:
        errors.append(not_supported(f"{path}.action", action, _ACTIONS))
    elif action == "FailIndex" and spec.get("backoffLimitPerIndex") is None:
        errors.append(invalid(f"{path}.action", action, "requires the backoffLimitPerIndex to be set"))
    codes: Json | None = rule.get("onExitCodes")
    for index, code in enumerate(codes.get("values") or () if codes else ()):
        if code == 0 and codes is not None and codes.get("operator") == "In":
            text = "must not be 0 for the In operator"
            errors.append(invalid(f"{path}.onExitCodes.values[{index}]", code, text))
    both, neither = codes is not None and rule.get("onPodConditions"), codes is None and not rule.get("onPodConditions")
    if both:
        text = "Invalid value: specifying both OnExitCodes and OnPodConditions is not supported"
        errors.append(FieldError(path, "FieldValueInvalid", text))
    elif neither:
        text = "Invalid value: specifying one of OnExitCodes and OnPodConditions is required"
        errors.append(FieldError(path, "FieldValueInvalid", text))
    return errors


def _completion_mode(spec: Json, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    mode = spec.get("completionMode")
    if mode is not None and mode not in ("NonIndexed", "Indexed"):
        errors.append(not_supported(f"{path}.completionMode", mode, ("NonIndexed", "Indexed")))
    if mode == "Indexed":
        if spec.get("completions") is None:
            errors.append(required(f"{path}.completions", "when completion mode is Indexed"))
        if (spec.get("parallelism") or 0) > _MAX_INDEXED_PARALLELISM:
            text = f"must be less than or equal to {_MAX_INDEXED_PARALLELISM} when completion mode is Indexed"
            errors.append(invalid(f"{path}.parallelism", spec["parallelism"], text))
        failures, completions = spec.get("maxFailedIndexes"), spec.get("completions")
        if failures is not None and completions is not None and failures > completions:
            text = "must be less than or equal to completions"
            errors.append(invalid(f"{path}.maxFailedIndexes", failures, text))
        return errors
    for field in ("backoffLimitPerIndex", "maxFailedIndexes", "successPolicy"):
        if spec.get(field) is not None:
            errors.append(invalid(f"{path}.{field}", spec[field], "requires indexed completion mode"))
    return errors


def job_template_errors(spec: Json, path: str) -> list[FieldError]:
    """Check the pod template of a Job, whose pods must end (restartPolicy OnFailure or Never)."""
    errors = podspec.template_errors(spec.get("template") or {}, f"{path}.template")
    restart = template_of(spec).get("restartPolicy")
    at = f"{path}.template.spec.restartPolicy"
    if restart in (None, "", "Always"):
        errors.append(required(at, 'valid values: "OnFailure", "Never"'))
    elif restart not in ("OnFailure", "Never"):
        errors.append(not_supported(at, restart, ("OnFailure", "Never")))
    elif spec.get("podFailurePolicy") is not None and restart == "OnFailure":
        errors.append(invalid(at, restart, 'only "Never" is supported when podFailurePolicy is specified'))
    return errors


def _selector(spec: Json) -> list[FieldError]:
    selector = spec.get("selector")
    if selector is None:
        return [required("spec.selector")]
    errors = placement.label_selector(selector, "spec.selector")
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels") or {}
    if not errors and not from_selector(selector).matches(labels):
        text = "`selector` does not match template `labels`"
        errors.append(invalid("spec.template.metadata.labels", labels, text))
    return errors


def _generated(obj: Json) -> list[FieldError]:
    """Check that labels and selector of a Job without manualSelector are the generated ones."""
    spec, meta = obj.get("spec") or {}, obj.get("metadata") or {}
    if spec.get("manualSelector") or spec.get("selector") is None or not meta.get("uid"):
        return []
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels") or {}
    errors = [
        invalid(f"spec.template.metadata.labels[{key}]", labels, f"must be '{value}'")
        for key, value in _own_labels(meta)
        if labels.get(key) != value
    ]
    selector = spec["selector"]
    if not placement.label_selector(selector, "") and not from_selector(selector).matches(dict(_own_labels(meta))):
        errors.append(invalid("spec.selector", selector, "`selector` not auto-generated"))
    return errors


def _job_name(obj: Json) -> list[FieldError]:
    """Check that the name of an indexed Job allows a valid host name for its last pod."""
    spec, name = obj.get("spec") or {}, (obj.get("metadata") or {}).get("name") or ""
    if spec.get("completionMode") != "Indexed" or not (spec.get("completions") or 0) > 0:
        return []
    host = f"{name}-{spec['completions'] - 1}"
    if not names.dns_label(host):
        return []
    return [invalid("metadata.name", name, f"will not able to create pod with invalid DNS label: {host}")]


MUTABLE_WHILE_SUSPENDED = ("nodeSelector", "tolerations", "schedulingGates")


def _template_open(old: Json) -> bool:
    """Return True if the pod template may still change.

    The Job is suspended, no pod is active, and its status shows this or it has never started.
    """
    status: Json = old.get("status") or {}
    suspended = any(c.get("type") == "Suspended" and c.get("status") == "True" for c in status.get("conditions") or ())
    asked = (old.get("spec") or {}).get("suspend")
    return bool(asked) and (status.get("startTime") is None or suspended) and not status.get("active")


def _template_update(spec: Json, before: Json, old: Json) -> list[FieldError]:
    """Check a changed pod template: it may only change while the Job is suspended.

    Then placement fields and resources of the pods may change.
    """
    template, earlier = spec.get("template") or {}, before.get("template") or {}
    if same(template, earlier):
        return []
    if not _template_open(old):
        return [invalid("spec.template", template, "field is immutable")]
    pod, was = {**(template.get("spec") or {})}, earlier.get("spec") or {}
    for field in MUTABLE_WHILE_SUSPENDED:
        _take(pod, was, field)
    affinity, affinity_was = {**(pod.get("affinity") or {})}, was.get("affinity") or {}
    _take(affinity, affinity_was, "nodeAffinity")
    pod["affinity"] = affinity
    if not affinity and not affinity_was:
        pod.pop("affinity")
        was = {name: value for name, value in was.items() if name != "affinity"}
    for field in ("containers", "initContainers"):
        now, then = pod.get(field) or [], was.get(field) or []
        if now and [c.get("name") for c in now] == [c.get("name") for c in then]:
            pod[field] = [_resources_of(container, old) for container, old in zip(now, then, strict=True)]
    if same(pod, was):
        return []
    return [invalid("spec.template.spec", template.get("spec"), "field is immutable")]


def _take(new: Json, old: Json, field: str) -> None:
    if old.get(field) is not None:
        new[field] = old[field]
    else:
        new.pop(field, None)


def _resources_of(container: Json, old: Json) -> Json:
    changed = dict(container)
    _take(changed, old, "resources")
    return changed


def _completions(spec: Json, before: Json) -> list[FieldError]:
    new, old = spec.get("completions"), before.get("completions")
    if new == old:
        return []
    if before.get("completionMode") != "Indexed" or new is None or old is None:
        return [invalid("spec.completions", new, "field is immutable")]
    if new != spec.get("parallelism") or old != before.get("parallelism"):
        return [invalid("spec.completions", new, "can only be modified in tandem with parallelism")]
    return []


def job(gates: Gates) -> OwnRules:
    """Return the rules of Job."""

    def prepare(new: Json, old: Json | None) -> None:
        before = (old or {}).get("spec") or {}
        spec: Json = new.setdefault("spec", {})
        podspec.drop_gated(gates, template_of(spec), template_of(before))
        if not gates("WorkloadWithJob") and before.get("scheduling") is None:
            spec.pop("scheduling", None)
        if old is None:
            _own_selector(new)

    def create(obj: Json) -> list[FieldError]:
        spec: Json = obj.get("spec") or {}
        errors = _generated(obj) + _job_name(obj) + _selector(spec) + job_spec_errors(spec, "spec")
        return errors + scheduling_create(spec, "spec.scheduling", gates) + job_template_errors(spec, "spec")

    def update(new: Json, old: Json) -> list[FieldError]:
        spec, before = new.get("spec") or {}, old.get("spec") or {}
        if spec == before:
            return []
        errors = job_spec_errors(spec, "spec") + _completions(spec, before)
        errors += frozen(spec, before, "spec", "selector") + _template_update(spec, before, old)
        errors += frozen(
            spec,
            before,
            "spec",
            "completionMode",
            "podFailurePolicy",
            "backoffLimitPerIndex",
            "managedBy",
            "successPolicy",
        )
        return errors + _scheduling_update(spec, before, gates)

    return OwnRules(
        default=_job_default,
        create=create,
        update=update,
        status=status_counts,
        prepare=prepare,
        table=False,
    )


# -- CronJob ---------------------------------------------------------------------------------------------------------

_TIME_ZONE = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"


def _is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (ValueError, OSError, ZoneInfoNotFoundError):
        return False
    return True


def _schedule(schedule: str) -> list[FieldError]:
    path = "spec.schedule"
    if not schedule:
        return [required(path)]
    if "TZ" in schedule:
        text = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
        return [invalid(path, schedule, text)]
    try:
        cron.parse(schedule)
    except cron.BadSchedule as problem:
        return [invalid(path, schedule, str(problem))]
    return []


def cron_job(gates: Gates) -> OwnRules:
    """Return the rules of CronJob."""

    def prepare(new: Json, old: Json | None) -> None:
        inner = ((new.get("spec") or {}).get("jobTemplate") or {}).get("spec") or {}
        before = (((old or {}).get("spec") or {}).get("jobTemplate") or {}).get("spec") or {}
        podspec.drop_gated(gates, template_of(inner), template_of(before))
        if not gates("WorkloadWithJob") and before.get("scheduling") is None:
            inner.pop("scheduling", None)

    def errors_of(obj: Json) -> list[FieldError]:
        spec: Json = obj.get("spec") or {}
        errors = _schedule(spec.get("schedule") or "")
        errors += not_negative(spec, "spec", "startingDeadlineSeconds")
        if spec.get("timeZone") is not None and spec["timeZone"] in ("", "Local"):
            errors.append(invalid("spec.timeZone", spec["timeZone"], _TIME_ZONE))
        elif spec.get("timeZone") is not None and not _is_zone(spec["timeZone"]):
            errors.append(invalid("spec.timeZone", spec["timeZone"], f"unknown time zone {spec['timeZone']}"))
        policies = ("Allow", "Forbid", "Replace")
        if spec.get("concurrencyPolicy") not in policies:
            errors.append(not_supported("spec.concurrencyPolicy", spec.get("concurrencyPolicy") or "", policies))
        inner: Json = (spec.get("jobTemplate") or {}).get("spec") or {}
        path = "spec.jobTemplate.spec"
        if inner.get("manualSelector"):
            errors.append(not_supported(f"{path}.manualSelector", True, ("nil", "false")))
        if inner.get("selector") is not None and not inner.get("manualSelector"):
            errors.append(forbidden(f"{path}.selector", "`selector` will be auto-generated"))
        errors += job_spec_errors(inner, path) + scheduling_create(inner, f"{path}.scheduling", gates)
        errors += job_template_errors(inner, path)
        return errors + not_negative(spec, "spec", "successfulJobsHistoryLimit", "failedJobsHistoryLimit")

    def create(obj: Json) -> list[FieldError]:
        name = (obj.get("metadata") or {}).get("name") or ""
        too_long_name = ["must be no more than 52 characters"] if len(name) > 52 else []
        return all_invalid("metadata.name", name, too_long_name)

    return OwnRules(
        default=_cron_job_default, errors=errors_of, if_changed=True, create=create, prepare=prepare, table=False
    )
