"""JobSet: defaults and rules of its webhook, and KEP-1068's gangConfig."""

from __future__ import annotations

from phalanx.model import names
from phalanx.model.fieldpath import (
    all_invalid,
    duplicate,
    forbidden,
    immutable,
    invalid,
    not_supported,
    required,
    too_many,
)
from phalanx.model.gates import Gates
from phalanx.model.kinds import FieldError, Json
from phalanx.model.rules import podspec
from phalanx.model.rules.apps import template_of
from phalanx.model.rules.assembly import assemble, not_negative
from phalanx.model.rules.batch import job_spec_errors
from phalanx.model.rules.contract import Rules
from phalanx.model.rules.groupparts import Parts, same, union

_STRATEGIES = ("BlockingRecreate", "InPlaceRestart", "Recreate")
_ACTIONS = (
    "FailJobSet",
    "RestartJob",
    "RestartJobAndIgnoreMaxRestarts",
    "RestartJobSet",
    "RestartJobSetAndIgnoreMaxRestarts",
)
_REASONS = (
    "BackoffLimitExceeded",
    "DeadlineExceeded",
    "FailedIndexes",
    "MaxFailedIndexesExceeded",
    "PodFailurePolicy",
)
_STEERED = ("nodeSelector", "tolerations", "schedulingGates")


def _default(obj: Json) -> None:
    spec: Json = obj.setdefault("spec", {})
    if spec.get("successPolicy") is None:
        spec["successPolicy"] = {"operator": "All"}
    if spec.get("startupPolicy") is None:
        spec["startupPolicy"] = {"startupPolicyOrder": "AnyOrder"}
    network: Json = spec.setdefault("network", {})
    for field in ("enableDNSHostnames", "publishNotReadyAddresses"):
        if network.get(field) is None:
            network[field] = True
    if spec.get("failurePolicy") is not None:
        _default_failure_policy(spec["failurePolicy"])
    for item in spec.get("replicatedJobs") or ():
        _default_replicated_job(item)
    for policy in spec.get("volumeClaimPolicies") or ():
        policy.setdefault("retentionPolicy", {}).setdefault("whenDeleted", "Delete")


def _default_failure_policy(policy: Json) -> None:
    if policy.get("maxRestarts") is None:
        policy["maxRestarts"] = 0
    if not policy.get("restartStrategy"):
        policy["restartStrategy"] = "Recreate"
    for index, rule in enumerate(policy.get("rules") or ()):
        if not rule.get("name"):
            rule["name"] = f"failurePolicyRule{index}"


def _default_replicated_job(item: Json) -> None:
    if item.get("replicas") is None:
        item["replicas"] = 1
    if not item.get("groupName"):
        item["groupName"] = "default"
    job: Json = item.setdefault("template", {}).setdefault("spec", {})
    if job.get("completionMode") is None:
        job["completionMode"] = "Indexed"
    pod: Json = job.setdefault("template", {}).setdefault("spec", {})
    if not pod.get("restartPolicy"):
        pod["restartPolicy"] = "OnFailure"


# -- create ----------------------------------------------------------------------------------------------------------


def _generated_names(name: str, item: Json, path: str) -> list[FieldError]:
    """Job and pod names are built from ours; too long a name here is no pod there."""
    replicas = item.get("replicas", 1)
    if replicas < 1:
        return []
    job = f"{name}-{item.get('name')}-{replicas - 1}"
    spec: Json = (item.get("template") or {}).get("spec") or {}
    problems = names.dns_1035_label(job)
    if problems:
        return [invalid(f"{path}.name", item.get("name") or "", f"job name {job!r} is not valid: {problems[0]}")]
    if spec.get("completionMode") == "Indexed" and spec.get("completions"):
        pod = f"{job}-{spec['completions'] - 1}-abcde"
        if problems := names.dns_1035_label(pod):
            return [invalid(f"{path}.name", item.get("name") or "", f"pod name {pod!r} is not valid: {problems[0]}")]
    return []


def _replicated_jobs(obj: Json, spec: Json) -> list[FieldError]:
    errors: list[FieldError] = []
    name = (obj.get("metadata") or {}).get("name") or ""
    seen: list[str] = []
    in_order = (spec.get("startupPolicy") or {}).get("startupPolicyOrder") == "BestFirstSets"
    for index, item in enumerate(spec.get("replicatedJobs") or ()):
        path = f"spec.replicatedJobs[{index}]"
        own = item.get("name") or ""
        if not own:
            errors.append(required(f"{path}.name"))
        elif own in seen:
            errors.append(duplicate(path, own))
        group = item.get("groupName") or "default"
        errors += all_invalid(f"{path}.groupName", group, names.dns_1035_label(group))
        errors += not_negative(item, path, "replicas")
        job: Json = (item.get("template") or {}).get("spec") or {}
        count = (item.get("replicas") or 0) * (job.get("parallelism") or 1)
        if count > podspec.MAX_INT32:
            text = f"the product of replicas and parallelism must not exceed {podspec.MAX_INT32}"
            errors.append(invalid(path, own, text))
        errors += _depends_on(item, seen, in_order, path)
        seen.append(own)
        if own and name:
            errors += _generated_names(name, item, path)
        errors += job_spec_errors(job, f"{path}.template.spec")
        if not template_of(job).get("containers"):
            errors.append(required(f"{path}.template.spec.template.spec.containers"))
        else:
            pods = _with_claims(job.get("template") or {}, spec)
            errors += podspec.template_errors(pods, f"{path}.template.spec.template")
    return errors


def _with_claims(template: Json, spec: Json) -> Json:
    """A pod template with the volumes of the set's shared claims, which its Jobs will get."""
    pod: Json = template.get("spec") or {}
    known = {volume.get("name") for volume in pod.get("volumes") or ()}
    shared = [
        (claim.get("metadata") or {}).get("name") or ""
        for policy in spec.get("volumeClaimPolicies") or ()
        for claim in policy.get("templates") or ()
    ]
    extra = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in shared if name not in known]
    if not extra:
        return template
    return {**template, "spec": {**pod, "volumes": [*(pod.get("volumes") or ()), *extra]}}


def _depends_on(item: Json, earlier: list[str], in_order: bool, path: str) -> list[FieldError]:
    found = item.get("dependsOn") or []
    if not found:
        return []
    at = f"{path}.dependsOn"
    errors: list[FieldError] = []
    if in_order:
        errors.append(forbidden(at, "may not be set when startupPolicyOrder is BestFirstSets"))
    if len(found) > 5:
        errors.append(too_many(at, len(found), 5))
    for index, dependency in enumerate(found):
        if dependency.get("name") not in earlier:
            text = "must be the name of an earlier replicatedJob"
            errors.append(invalid(f"{at}[{index}].name", dependency.get("name") or "", text))
        if dependency.get("status") not in ("Ready", "Complete"):
            errors.append(not_supported(f"{at}[{index}].status", dependency.get("status") or "", ("Complete", "Ready")))
    return errors


def _gang(spec: Json) -> list[FieldError]:
    """KEP-1068: the whole set or its parts, never both; only parts can be gangs per replica."""
    errors: list[FieldError] = []
    mode = (spec.get("gangConfig") or {}).get("gangMode")
    if spec.get("gangConfig") is not None and mode not in ("Off", "Gang"):
        errors.append(not_supported("spec.gangConfig.gangMode", mode or "", ("Gang", "Off")))
    for index, item in enumerate(spec.get("replicatedJobs") or ()):
        config = item.get("gangConfig")
        if config is None:
            continue
        path, own = f"spec.replicatedJobs[{index}].gangConfig", config.get("gangMode")
        if own not in ("Off", "Gang", "ReplicatedGang"):
            errors.append(not_supported(f"{path}.gangMode", own or "", ("Gang", "Off", "ReplicatedGang")))
        elif own != "Off" and mode not in (None, "Off"):
            errors.append(forbidden(path, "may not be set when spec.gangConfig is set"))
    if spec.get("scheduling") is not None:
        ganged = mode not in (None, "Off")
        ganged = ganged or any(
            (item.get("gangConfig") or {}).get("gangMode") not in (None, "Off")
            for item in spec.get("replicatedJobs") or ()
        )
        if ganged:
            errors.append(forbidden("spec.scheduling", "may not be set together with gangConfig"))
    return errors


def _group_parts(found: Json, path: str, gates: Gates) -> list[FieldError]:
    parts = Parts(gates, update=False)
    if found.get("schedulingPolicy") is not None:
        policy = found["schedulingPolicy"]
        union(parts.errors, f"{path}.schedulingPolicy", ("basic", "gang"), policy, None)
        count = (policy.get("gang") or {}).get("minCount")
        if count is not None and count < 0:
            text = "must be greater than or equal to 0"
            parts.errors.append(invalid(f"{path}.schedulingPolicy.gang.minCount", count, text))
    parts.constraints(f"{path}.schedulingConstraints", found.get("schedulingConstraints"), None)
    parts.disruption(f"{path}.disruptionMode", found.get("disruptionMode"), None)
    parts.claims(f"{path}.resourceClaims", found.get("resourceClaims"), None)
    policy = found.get("schedulingPolicy") or {}
    if (found.get("disruptionMode") or {}).get("all") is not None and policy.get("basic") is not None:
        text = "the disruptionMode `all` is not supported with the Basic scheduling policy"
        parts.errors.append(invalid(f"{path}.disruptionMode", "", text))
    return parts.errors


def _parallelism(item: Json) -> int:
    job: Json = (item.get("template") or {}).get("spec") or {}
    count = job.get("parallelism")
    return 1 if count is None else int(count)


def _pods(item: Json) -> int:
    replicas = item.get("replicas")
    return _parallelism(item) * (1 if replicas is None else int(replicas))


def _count(level: Json, path: str, pods: int) -> list[FieldError]:
    count = ((level.get("schedulingPolicy") or {}).get("gang") or {}).get("minCount") or 0
    if count <= pods:
        return []
    return [invalid(f"{path}.schedulingPolicy.gang.minCount", count, f"must not be greater than its pods ({pods})")]


def _one_priority(items: list[Json], path: str) -> list[FieldError]:
    pods = [template_of((item.get("template") or {}).get("spec")) for item in items]
    classes = sorted({pod.get("priorityClassName") or "" for pod in pods})
    if len(classes) < 2:
        return []
    return [invalid(path, ", ".join(classes), "all pods of one group need the same priorityClassName")]


_LEVEL_ONE = ("schedulingPolicy", "schedulingConstraints", "disruptionMode")


def _target_errors(entry: Json, at: str, known: list[str], used: set[str]) -> list[FieldError]:
    """Names of replicatedJobs, each at most once in all entries; `used` learns them."""
    errors: list[FieldError] = []
    targets = entry.get("targetReplicatedJobs") or []
    if not targets:
        errors.append(required(f"{at}.targetReplicatedJobs"))
    for number, target in enumerate(targets):
        where = f"{at}.targetReplicatedJobs[{number}]"
        if target not in known:
            errors.append(invalid(where, target, "must be the name of a replicatedJob"))
        elif target in used:
            errors.append(duplicate(where, target))
        used.add(target)
    return errors


def _entry(spec: Json, entry: Json, at: str, gates: Gates) -> list[FieldError]:
    """What an entry says about its targets as one group, or about the Jobs of one target."""
    errors = _group_parts(entry, at, gates)
    targets = entry.get("targetReplicatedJobs") or []
    members = [item for item in spec.get("replicatedJobs") or () if item.get("name") in targets]
    job = entry.get("job")
    if job is None:
        errors += _count(entry, at, sum(map(_pods, members)))
        errors += _one_priority(members, at)
        return errors
    if len(targets) != 1:
        errors.append(forbidden(f"{at}.job", "needs exactly one target"))
    if any(entry.get(field) is not None for field in (*_LEVEL_ONE, "resourceClaims")):
        errors.append(forbidden(f"{at}.job", "may not be set together with fields of the whole entry"))
    errors += _group_parts(job, f"{at}.job", gates)
    errors += _count(job, f"{at}.job", max(map(_parallelism, members), default=0))
    return errors


def _scheduling(spec: Json, gates: Gates) -> list[FieldError]:
    found: Json | None = spec.get("scheduling")
    if found is None:
        return []
    path = "spec.scheduling"
    errors = _group_parts(found, path, gates)
    entries = found.get("replicatedJobs") or []
    known = [item.get("name") or "" for item in spec.get("replicatedJobs") or ()]
    if entries and any(found.get(field) is not None for field in _LEVEL_ONE):
        errors.append(forbidden(f"{path}.replicatedJobs", "may not be set together with fields of the whole JobSet"))
    used: set[str] = set()
    for index, entry in enumerate(entries):
        at = f"{path}.replicatedJobs[{index}]"
        errors += _target_errors(entry, at, known, used)
        errors += _entry(spec, entry, at, gates)
    if not entries:
        items = spec.get("replicatedJobs") or []
        in_turn = (spec.get("startupPolicy") or {}).get("startupPolicyOrder") == "BestFirstSets"
        if in_turn or any(item.get("dependsOn") for item in items):
            if ((found.get("schedulingPolicy") or {}).get("gang") or {}).get("minCount"):
                text = "may not be set when replicatedJobs start one after another"
                errors.append(forbidden(f"{path}.schedulingPolicy.gang.minCount", text))
        else:
            errors += _count(found, path, sum(map(_pods, items)))
            errors += _one_priority(items, path)
    missing = [name for name in known if name not in used]
    if entries and missing:
        text = f"every replicatedJob must be a target, missing: {', '.join(missing)}"
        errors.append(invalid(f"{path}.replicatedJobs", missing, text))
    for index, item in enumerate(spec.get("replicatedJobs") or ()):
        pod = template_of((item.get("template") or {}).get("spec"))
        if pod.get("schedulingGroup") is not None:
            at = f"spec.replicatedJobs[{index}].template.spec.template.spec.schedulingGroup"
            errors.append(forbidden(at, "may not be set when spec.scheduling is set"))
    return errors


def _policies(spec: Json) -> list[FieldError]:
    errors: list[FieldError] = []
    known = {item.get("name") for item in spec.get("replicatedJobs") or ()}
    success: Json = spec.get("successPolicy") or {}
    if success.get("operator") not in ("All", "Any"):
        errors.append(not_supported("spec.successPolicy.operator", success.get("operator") or "", ("All", "Any")))
    errors += _targets(success, known, "spec.successPolicy")
    order = (spec.get("startupPolicy") or {}).get("startupPolicyOrder")
    if order not in ("AnyOrder", "BestFirstSets"):
        errors.append(
            not_supported("spec.startupPolicy.startupPolicyOrder", order or "", ("AnyOrder", "BestFirstSets"))
        )
    failure: Json = spec.get("failurePolicy") or {}
    errors += not_negative(failure, "spec.failurePolicy", "maxRestarts")
    strategy = failure.get("restartStrategy")
    if strategy is not None and strategy not in _STRATEGIES:
        errors.append(not_supported("spec.failurePolicy.restartStrategy", strategy, _STRATEGIES))
    seen: set[str] = set()
    for index, rule in enumerate(failure.get("rules") or ()):
        at = f"spec.failurePolicy.rules[{index}]"
        name = rule.get("name") or ""
        if len(name) > 128 or names.condition_reason(name):
            text = "must match ^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$ and have 1 to 128 characters"
            errors.append(invalid(f"{at}.name", name, text))
        if name in seen:
            errors.append(duplicate(f"{at}.name", name))
        seen.add(name)
        if rule.get("action") not in _ACTIONS:
            errors.append(not_supported(f"{at}.action", rule.get("action") or "", _ACTIONS))
        for number, reason in enumerate(rule.get("onJobFailureReasons") or ()):
            if reason not in _REASONS:
                errors.append(not_supported(f"{at}.onJobFailureReasons[{number}]", reason, _REASONS))
        errors += _targets(rule, known, at)
    return errors


def _targets(holder: Json, known: set[str | None], path: str) -> list[FieldError]:
    return [
        invalid(f"{path}.targetReplicatedJobs[{index}]", target, "must be the name of a replicatedJob")
        for index, target in enumerate(holder.get("targetReplicatedJobs") or ())
        if target not in known
    ]


# -- update ----------------------------------------------------------------------------------------------------------


def _may_become(item: Json, earlier: Json, suspended: bool) -> bool:
    """Whether two replicated Jobs differ only in what may change: their size, and while suspended where pods may go."""
    if _elastic(item) and _elastic(earlier):
        item, earlier = _without_size(item), _without_size(earlier)
    if suspended:
        item, earlier = _without_steering(item), _without_steering(earlier)
    return same(item, earlier)


def _elastic(item: Json) -> bool:
    job: Json = (item.get("template") or {}).get("spec") or {}
    size = job.get("parallelism")
    return bool(job.get("completionMode") == "Indexed" and size and size > 0 and size == job.get("completions"))


def _without_size(item: Json) -> Json:
    template: Json = item.get("template") or {}
    job = {k: v for k, v in (template.get("spec") or {}).items() if k not in ("parallelism", "completions")}
    return {**item, "template": {**template, "spec": job}}


def _without_steering(item: Json) -> Json:
    template: Json = item.get("template") or {}
    job: Json = template.get("spec") or {}
    pod_template: Json = job.get("template") or {}
    meta = {
        name: value
        for name, value in (pod_template.get("metadata") or {}).items()
        if name not in ("labels", "annotations")
    }
    pod = {name: value for name, value in (pod_template.get("spec") or {}).items() if name not in _STEERED}
    return {
        **item,
        "template": {**template, "spec": {**job, "template": {**pod_template, "metadata": meta, "spec": pod}}},
    }


def _update_errors(new: Json, old: Json) -> list[FieldError]:
    spec, before = new.get("spec") or {}, old.get("spec") or {}
    errors: list[FieldError] = []
    suspended = bool(spec.get("suspend")) or bool(before.get("suspend"))
    items, earlier = spec.get("replicatedJobs") or [], before.get("replicatedJobs") or []
    if not same(items, earlier) and not (
        len(items) == len(earlier)
        and all(_may_become(item, other, suspended) for item, other in zip(items, earlier, strict=True))
    ):
        gangs = [
            immutable(f"spec.replicatedJobs[{index}].gangConfig", item.get("gangConfig"))
            for index, (item, other) in enumerate(zip(items, earlier, strict=False))
            if not same(item.get("gangConfig"), other.get("gangConfig"))
        ]
        errors += gangs or [immutable("spec.replicatedJobs", items)]
    for field in (
        "network",
        "successPolicy",
        "failurePolicy",
        "startupPolicy",
        "managedBy",
        "volumeClaimPolicies",
        "gangConfig",
    ):
        if not same(spec.get(field), before.get(field)):
            errors.append(immutable(f"spec.{field}", spec.get(field)))
    regrouped = not same(spec.get("scheduling"), before.get("scheduling"))
    if regrouped and not (spec.get("suspend") and before.get("suspend")):
        errors.append(forbidden("spec.scheduling", "may be changed only while the JobSet is suspended"))
    return errors + not_negative(spec, "spec", "ttlSecondsAfterFinished")


def rules(gates: Gates) -> Rules:
    """Everything about JobSet."""

    def prepare(new: Json, old: Json | None) -> None:
        before = ((old or {}).get("spec") or {}).get("replicatedJobs") or []
        for index, item in enumerate((new.get("spec") or {}).get("replicatedJobs") or ()):
            earlier: Json = before[index] if index < len(before) else {}
            pod = template_of((item.get("template") or {}).get("spec"))
            podspec.drop_gated(gates, pod, template_of((earlier.get("template") or {}).get("spec")))

    def create(obj: Json) -> list[FieldError]:
        spec: Json = obj.get("spec") or {}
        errors = _replicated_jobs(obj, spec) + _policies(spec) + _gang(spec) + _scheduling(spec, gates)
        errors += not_negative(spec, "spec", "ttlSecondsAfterFinished")
        subdomain = (spec.get("network") or {}).get("subdomain")
        if subdomain:
            errors += all_invalid("spec.network.subdomain", subdomain, names.dns_subdomain(subdomain))
        return errors

    def update(new: Json, old: Json) -> list[FieldError]:
        if new.get("spec") == old.get("spec"):
            return []
        spec: Json = new.get("spec") or {}
        return _update_errors(new, old) + (_scheduling(spec, gates) if spec.get("scheduling") else [])

    return assemble(default=_default, create=create, update=update, prepare=prepare)
