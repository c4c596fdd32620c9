"""Gang settings of a JobSet: KEP-1068's gangConfig, and `spec.scheduling` of KEP-969."""

from __future__ import annotations

from phalanx.model.fieldpath import duplicate, forbidden, invalid, not_supported, required
from phalanx.model.gates import Gates
from phalanx.model.kinds import FieldError, Json
from phalanx.model.rules.apps import template_of
from phalanx.model.rules.declared import declared_errors


def gang_config_errors(spec: Json) -> list[FieldError]:
    """Check gangConfig (KEP-1068): it is set for the whole set or for its parts, never both.

    Only parts can have a gang per replica.
    """
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


def _policy(found: Json, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    policy = found.get("schedulingPolicy") or {}
    count = (policy.get("gang") or {}).get("minCount")
    if count is not None and count < 0:
        text = "must be greater than or equal to 0"
        errors.append(invalid(f"{path}.schedulingPolicy.gang.minCount", count, text))
    if (found.get("disruptionMode") or {}).get("all") is not None and policy.get("basic") is not None:
        text = "the disruptionMode `all` is not supported with the Basic scheduling policy"
        errors.append(invalid(f"{path}.disruptionMode", "", text))
    return errors


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
    """Check that targets are names of replicatedJobs, each at most once in all entries.

    The targets are added to `used`.
    """
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


def _entry(spec: Json, entry: Json, at: str) -> list[FieldError]:
    """Check what an entry says about its targets as one group, or about the Jobs of one target."""
    errors = _policy(entry, at)
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
    errors += _policy(job, f"{at}.job")
    errors += _count(job, f"{at}.job", max(map(_parallelism, members), default=0))
    return errors


def scheduling_errors(spec: Json, gates: Gates) -> list[FieldError]:
    found: Json | None = spec.get("scheduling")
    if found is None:
        return []
    path = "spec.scheduling"
    errors = declared_errors("jobset/v1alpha2.JobSetScheduling", found, None, path, gates) + _policy(found, path)
    entries = found.get("replicatedJobs") or []
    known = [item.get("name") or "" for item in spec.get("replicatedJobs") or ()]
    if entries and any(found.get(field) is not None for field in _LEVEL_ONE):
        errors.append(forbidden(f"{path}.replicatedJobs", "may not be set together with fields of the whole JobSet"))
    used: set[str] = set()
    for index, entry in enumerate(entries):
        at = f"{path}.replicatedJobs[{index}]"
        errors += _target_errors(entry, at, known, used)
        errors += _entry(spec, entry, at)
    if not entries:
        items = spec.get("replicatedJobs") or []
        in_turn = (spec.get("startupPolicy") or {}).get("startupPolicyOrder") == "InOrder"
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
