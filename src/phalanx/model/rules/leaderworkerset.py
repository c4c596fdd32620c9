"""LeaderWorkerSet: defaults and rules of its webhook."""

from __future__ import annotations

import msgspec

from phalanx.model import names
from phalanx.model.fieldpath import immutable, invalid, not_supported, required
from phalanx.model.gates import Gates
from phalanx.model.kinds import FieldError, Json
from phalanx.model.rules import meta, podspec
from phalanx.model.rules.assembly import OwnRules, number_or_percent, scaled
from phalanx.model.rules.declared import declared_defaults, declared_errors

SPEC = "leaderworkerset/v1.LeaderWorkerSetSpec"
MAX_REPLICAS = 1_000_000
_RESTART = ("Default", "None", "RecreateGroupAfterStart", "RecreateGroupOnPodRestart")
_SUBGROUP_EXCLUSIVE = "leaderworkerset.sigs.k8s.io/subgroup-exclusive-topology"
_TEMPLATE = "spec.leaderWorkerTemplate"


def _default(obj: Json) -> None:
    spec_default(obj.setdefault("spec", {}))


def spec_default(spec: Json) -> None:
    """Complete the spec of a LeaderWorkerSet: the defaults of its definition, then those of its webhook."""
    declared_defaults(SPEC, spec, embedded=False)
    template, strategy = spec["leaderWorkerTemplate"], spec["rolloutStrategy"]
    if template["restartPolicy"] == "Default":
        template["restartPolicy"] = "None"
    if strategy["type"] == "RollingUpdate" and strategy.get("rollingUpdateConfiguration") is None:
        strategy["rollingUpdateConfiguration"] = {"partition": 0, "maxUnavailable": 1, "maxSurge": 0}
    network: Json = spec.setdefault("networkConfig", {})
    if not network.get("subdomainPolicy"):
        network["subdomainPolicy"] = "Shared"


def _sub_groups(template: Json, size: int) -> list[FieldError]:
    sub = template.get("subGroupPolicy")
    if sub is None:
        return []
    path = f"{_TEMPLATE}.subGroupPolicy"
    kind, part = sub.get("subGroupPolicyType"), sub.get("subGroupSize")
    if kind not in ("LeaderWorker", "LeaderExcluded"):
        kinds = ("LeaderExcluded", "LeaderWorker")
        return [not_supported(f"{path}.subGroupPolicyType", kind or "", kinds)]
    if part is None:
        return []
    at = f"{path}.subGroupSize"
    if part < 1:
        return [invalid(at, part, "subGroupSize must be equal or greater than 1")]
    if size < part:
        return [invalid(at, part, "subGroupSize cannot be larger than size")]
    if kind == "LeaderExcluded":
        return [] if (size - 1) % part == 0 else [invalid(at, part, "size-1 must be divisible by subGroupSize")]
    if size % part and (size - 1) % part:
        return [invalid(at, part, "size or size - 1 must be divisible by subGroupSize")]
    return []


def _rollout(strategy: Json, replicas: int) -> list[FieldError]:
    if strategy.get("type") != "RollingUpdate":
        return [not_supported("spec.rolloutStrategy.type", strategy.get("type") or "", ("RollingUpdate",))]
    rolling: Json = strategy.get("rollingUpdateConfiguration") or {}
    path = "spec.rolloutStrategy.rollingUpdateConfiguration"
    errors = number_or_percent(rolling.get("maxUnavailable"), f"{path}.maxUnavailable", up_to_100=True)
    errors += number_or_percent(rolling.get("maxSurge"), f"{path}.maxSurge", up_to_100=True)
    partition = rolling.get("partition") or 0
    if partition < 0:
        errors.append(invalid(f"{path}.partition", partition, "must be greater than or equal to 0"))
    if (
        not errors
        and replicas
        and not (
            scaled(rolling.get("maxUnavailable") or 0, replicas, up=False)
            or scaled(rolling.get("maxSurge") or 0, replicas, up=True)
        )
    ):
        text = "must not be 0 when `maxSurge` is 0"
        errors.append(invalid(f"{path}.maxUnavailable", rolling.get("maxUnavailable"), text))
    return errors


def _scheduling(found: Json | None, size: int, gates: Gates) -> list[FieldError]:
    if found is None:
        return []
    path = "spec.scheduling"
    errors = declared_errors("leaderworkerset/v1.LeaderWorkerScheduling", found, None, path, gates)
    count = ((found.get("schedulingPolicy") or {}).get("gang") or {}).get("minCount")
    if count is not None and not 1 <= count <= size:
        text = f"must be between 1 and {size}, inclusive"
        errors.append(invalid(f"{path}.schedulingPolicy.gang.minCount", count, text))
    return errors


def spec_errors(spec: Json, gates: Gates, path: str = "spec") -> list[FieldError]:
    """Check the spec of a LeaderWorkerSet, also inside another kind."""
    template: Json = spec.get("leaderWorkerTemplate") or {}
    replicas, size = spec.get("replicas", 1), template.get("size", 1)
    errors = _how_many(replicas, size)
    if template.get("restartPolicy") not in _RESTART:
        errors.append(not_supported(f"{_TEMPLATE}.restartPolicy", template.get("restartPolicy") or "", _RESTART))
    policies = ("LeaderCreated", "LeaderReady")
    if spec.get("startupPolicy") not in policies:
        errors.append(not_supported("spec.startupPolicy", spec.get("startupPolicy") or "", policies))
    shared = (spec.get("networkConfig") or {}).get("subdomainPolicy")
    if shared not in ("Shared", "UniquePerReplica"):
        kinds = ("Shared", "UniquePerReplica")
        errors.append(not_supported("spec.networkConfig.subdomainPolicy", shared or "", kinds))
    errors += _rollout(spec.get("rolloutStrategy") or {}, replicas)
    errors += _sub_groups(template, size)
    errors += _templates(template)
    errors += _scheduling(spec.get("scheduling"), size, gates)
    return [msgspec.structs.replace(error, path=path + error.path.removeprefix("spec")) for error in errors]


def rules(gates: Gates) -> OwnRules:
    """Return the rules of LeaderWorkerSet."""

    def errors_of(obj: Json) -> list[FieldError]:
        spec: Json = obj.get("spec") or {}
        errors = spec_errors(spec, gates)
        notes = (obj.get("metadata") or {}).get("annotations") or {}
        if _SUBGROUP_EXCLUSIVE in notes and (spec.get("leaderWorkerTemplate") or {}).get("subGroupPolicy") is None:
            text = "needs subGroupPolicy"
            errors.append(invalid(f"metadata.annotations[{_SUBGROUP_EXCLUSIVE}]", notes[_SUBGROUP_EXCLUSIVE], text))
        return errors

    def update(new: Json, old: Json) -> list[FieldError]:
        if new.get("spec") == old.get("spec"):
            return []
        errors = errors_of(new)
        template: Json = (new.get("spec") or {}).get("leaderWorkerTemplate") or {}
        before: Json = (old.get("spec") or {}).get("leaderWorkerTemplate") or {}
        sub, earlier = template.get("subGroupPolicy"), before.get("subGroupPolicy")
        if (sub is None) != (earlier is None):
            text = "cannot enable or disable subGroupPolicy after the LeaderWorkerSet is created"
            errors.append(invalid(f"{_TEMPLATE}.subGroupPolicy", sub, text))
        elif sub is not None and earlier is not None and sub.get("subGroupSize") != earlier.get("subGroupSize"):
            errors.append(immutable(f"{_TEMPLATE}.subGroupPolicy.subGroupSize", sub.get("subGroupSize")))
        return errors

    def prepare(new: Json, old: Json | None) -> None:
        found: Json = (new.get("spec") or {}).get("leaderWorkerTemplate") or {}
        before: Json = ((old or {}).get("spec") or {}).get("leaderWorkerTemplate") or {}
        for field in ("leaderTemplate", "workerTemplate"):
            podspec.drop_gated(gates, (found.get(field) or {}).get("spec"), (before.get(field) or {}).get("spec"))

    return OwnRules(
        default=_default,
        create=errors_of,
        update=update,
        status=meta.status_conditions,
        prepare=prepare,
        name=names.dns_1035_label,
        table=False,
    )


def _how_many(replicas: int, size: int) -> list[FieldError]:
    errors: list[FieldError] = []
    if replicas < 0:
        errors.append(invalid("spec.replicas", replicas, "must be greater than or equal to 0"))
    elif replicas > MAX_REPLICAS:
        errors.append(invalid("spec.replicas", replicas, f"must be less than or equal to {MAX_REPLICAS}"))
    if size < 1:
        errors.append(invalid(f"{_TEMPLATE}.size", size, "must be equal or greater than 1"))
    elif replicas * size > podspec.MAX_INT32:
        text = f"the product of replicas and worker replicas must not exceed {podspec.MAX_INT32}"
        errors.append(invalid("spec.replicas", replicas, text))
    return errors


def _claimed(template: Json, pod: Json) -> list[Json]:
    """Return the volumes that the StatefulSets add for volumeClaimTemplates."""
    known = {volume.get("name") for volume in pod.get("volumes") or ()}
    found = [
        str((claim.get("metadata") or {}).get("name") or "") for claim in template.get("volumeClaimTemplates") or ()
    ]
    return [
        {"name": name, "persistentVolumeClaim": {"claimName": name}} for name in found if name and name not in known
    ]


def _templates(template: Json) -> list[FieldError]:
    errors: list[FieldError] = []
    for field in ("workerTemplate", "leaderTemplate"):
        found = template.get(field)
        if found is None:
            if field == "workerTemplate":
                errors.append(required(f"{_TEMPLATE}.workerTemplate"))
            continue
        # Templates of custom resources are not defaulted, so the defaulted fields may be missing.
        spec = {"restartPolicy": "Always", **(found.get("spec") or {})}
        spec["volumes"] = [*_claimed(template, spec), *(spec.get("volumes") or ())]
        errors += podspec.template_errors({**found, "spec": spec}, f"{_TEMPLATE}.{field}")
    return errors
