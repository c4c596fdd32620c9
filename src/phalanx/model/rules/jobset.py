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
from phalanx.model.rules import meta, podspec
from phalanx.model.rules.apps import template_of
from phalanx.model.rules.assembly import OwnRules, not_negative
from phalanx.model.rules.batch import MUTABLE_WHILE_SUSPENDED, job_spec_errors
from phalanx.model.rules.declared import declared_defaults, same
from phalanx.model.rules.jobset_policies import (
    claim_errors,
    coordinator_errors,
    manager_errors,
    policy_errors,
    restart_errors,
)
from phalanx.model.rules.jobset_scheduling import gang_config_errors, scheduling_errors

_SIZES = ("parallelism", "completions")


def _default(obj: Json) -> None:
    declared_defaults("jobset/v1alpha2.JobSet", obj, embedded=False)
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
    for index, rule in enumerate(policy.get("rules") or ()):
        if not rule.get("name"):
            rule["name"] = f"failurePolicyRule{index}"


def _default_replicated_job(item: Json) -> None:
    job: Json = item.setdefault("template", {}).setdefault("spec", {})
    if job.get("completionMode") is None:
        job["completionMode"] = "Indexed"
    pod: Json = job.setdefault("template", {}).setdefault("spec", {})
    if not pod.get("restartPolicy"):
        pod["restartPolicy"] = "OnFailure"


# -- create ----------------------------------------------------------------------------------------------------------


def _generated_names(name: str, item: Json, path: str) -> list[FieldError]:
    """Check that the names of Jobs and pods built from the set's name are valid.

    A pod whose name is too long could not be created later.
    """
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
    in_order = (spec.get("startupPolicy") or {}).get("startupPolicyOrder") == "InOrder"
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
        if not template_of(job).get("containers"):
            errors.append(required(f"{path}.template.spec.template.spec.containers"))
    return errors


def _job_errors(obj: Json) -> list[FieldError]:
    """Check the Jobs that will be made. Upstream accepts the set, and reports each Job that is refused in an event."""
    spec: Json = obj.get("spec") or {}
    errors: list[FieldError] = []
    for index, item in enumerate(spec.get("replicatedJobs") or ()):
        path = f"spec.replicatedJobs[{index}].template.spec"
        job: Json = (item.get("template") or {}).get("spec") or {}
        errors += job_spec_errors(_as_made(job), path)
        errors += podspec.template_errors(_with_claims(job.get("template") or {}, spec), f"{path}.template")
    return errors


def _as_made(job: Json) -> Json:
    """Return a Job's spec with the counts that the Job gets by default: one pod when it names neither."""
    if job.get("completions") is None and job.get("parallelism") is None:
        return {**job, "completions": 1, "parallelism": 1}
    return job


def _with_claims(template: Json, spec: Json) -> Json:
    """Return a pod template with the volumes of the set's shared claims, which its Jobs will get."""
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
        errors.append(forbidden(at, "may not be set when startupPolicyOrder is InOrder"))
    if len(found) > 5:
        errors.append(too_many(at, len(found), 5))
    seen: set[str] = set()
    for index, dependency in enumerate(found):
        if dependency.get("name") in seen:
            errors.append(duplicate(f"{at}[{index}].name", dependency.get("name")))
        seen.add(dependency.get("name") or "")
        if dependency.get("name") not in earlier:
            text = "must be the name of an earlier replicatedJob"
            errors.append(invalid(f"{at}[{index}].name", dependency.get("name") or "", text))
        if dependency.get("status") not in ("Ready", "Complete"):
            errors.append(not_supported(f"{at}[{index}].status", dependency.get("status") or "", ("Complete", "Ready")))
    return errors


# -- update ----------------------------------------------------------------------------------------------------------


def _is_allowed_update(item: Json, earlier: Json, suspended: bool) -> bool:
    """Return True if two replicated Jobs differ only in fields that may change.

    These are the size, and while the set is suspended where pods may go.
    """
    if _elastic(item) and _elastic(earlier):
        item, earlier = _without_size(item), _without_size(earlier)
    if suspended:
        item, earlier = _without_placement_fields(item), _without_placement_fields(earlier)
    return same(item, earlier)


def _elastic(item: Json) -> bool:
    job: Json = (item.get("template") or {}).get("spec") or {}
    size = job.get("parallelism")
    return bool(job.get("completionMode") == "Indexed" and size and size > 0 and size == job.get("completions"))


def _resize_errors(items: list[Json], earlier: list[Json], old: Json) -> list[FieldError]:
    """Check new sizes of Indexed Jobs: both counts at least 1 and equal, and only while the JobSet runs."""
    before = {item.get("name"): (item.get("template") or {}).get("spec") or {} for item in earlier}
    errors: list[FieldError] = []
    for index, item in enumerate(items):
        job: Json = (item.get("template") or {}).get("spec") or {}
        known = before.get(item.get("name"))
        changed = [field for field in _SIZES if known is not None and job.get(field) != known.get(field)]
        if not changed or job.get("completionMode") != "Indexed":
            continue
        path = f"spec.replicatedJobs[{index}].template.spec"
        if _finished(old):
            errors.append(forbidden(path, "the size of a JobSet that has completed or failed cannot change"))
            continue
        for field in changed:
            if job.get(field) is not None and job[field] < 1:
                errors.append(invalid(f"{path}.{field}", job[field], f"{field} must be >= 1"))
        if len({job.get(field) for field in _SIZES} - {None}) > 1:
            text = "completions and parallelism must be equal in a Job that changes its size"
            errors.append(invalid(f"{path}.completions", job["completions"], text))
    return errors


def _finished(obj: Json) -> bool:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return any(c.get("type") in ("Completed", "Failed") and c.get("status") == "True" for c in conditions)


def _without_size(item: Json) -> Json:
    template: Json = item.get("template") or {}
    job = {k: v for k, v in (template.get("spec") or {}).items() if k not in _SIZES}
    return {**item, "template": {**template, "spec": job}}


def _without_placement_fields(item: Json) -> Json:
    template: Json = item.get("template") or {}
    job: Json = template.get("spec") or {}
    pod_template: Json = job.get("template") or {}
    kept = {
        name: value
        for name, value in (pod_template.get("metadata") or {}).items()
        if name not in ("labels", "annotations")
    }
    pod = {
        name: value for name, value in (pod_template.get("spec") or {}).items() if name not in MUTABLE_WHILE_SUSPENDED
    }
    return {
        **item,
        "template": {**template, "spec": {**job, "template": {**pod_template, "metadata": kept, "spec": pod}}},
    }


def _update_errors(new: Json, old: Json) -> list[FieldError]:
    spec, before = new.get("spec") or {}, old.get("spec") or {}
    errors: list[FieldError] = []
    suspended = bool(spec.get("suspend")) or bool(before.get("suspend"))
    items, earlier = spec.get("replicatedJobs") or [], before.get("replicatedJobs") or []
    if resized := _resize_errors(items, earlier, old):
        errors += resized
    elif not same(items, earlier) and not (
        len(items) == len(earlier)
        and all(_is_allowed_update(item, other, suspended) for item, other in zip(items, earlier, strict=True))
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


def rules(gates: Gates) -> OwnRules:
    """Return the rules of JobSet."""

    def prepare(new: Json, old: Json | None) -> None:
        before = ((old or {}).get("spec") or {}).get("replicatedJobs") or []
        for index, item in enumerate((new.get("spec") or {}).get("replicatedJobs") or ()):
            earlier: Json = before[index] if index < len(before) else {}
            pod = template_of((item.get("template") or {}).get("spec"))
            podspec.drop_gated(gates, pod, template_of((earlier.get("template") or {}).get("spec")))

    def create(obj: Json) -> list[FieldError]:
        spec: Json = obj.get("spec") or {}
        name = (obj.get("metadata") or {}).get("name") or ""
        errors = _replicated_jobs(obj, spec) + policy_errors(spec) + restart_errors(spec)
        errors += gang_config_errors(spec) + scheduling_errors(spec, gates)
        errors += coordinator_errors(name, spec) + claim_errors(name, spec)
        errors += manager_errors(spec.get("managedBy"), "spec.managedBy")
        errors += not_negative(spec, "spec", "ttlSecondsAfterFinished")
        subdomain = (spec.get("network") or {}).get("subdomain")
        if subdomain:  # also the name of a Service
            errors += all_invalid("spec.network.subdomain", subdomain, names.dns_1035_label(subdomain))
        return errors

    def update(new: Json, old: Json) -> list[FieldError]:
        if new.get("spec") == old.get("spec"):
            return []
        spec: Json = new.get("spec") or {}
        return _update_errors(new, old) + (scheduling_errors(spec, gates) if spec.get("scheduling") else [])

    return OwnRules(
        default=_default,
        create=create,
        update=update,
        status=meta.status_conditions,
        prepare=prepare,
        template=_job_errors,
        table=False,
    )
