"""PodGroup and CompositePodGroup: defaults, gated fields, what may be written and what may change."""

from __future__ import annotations

from collections.abc import Callable

from phalanx.model import names
from phalanx.model.fieldpath import all_invalid, forbidden, immutable, invalid, required, too_many
from phalanx.model.gates import Gates
from phalanx.model.kinds import FieldError, Json
from phalanx.model.rules import meta
from phalanx.model.rules.contract import Rules
from phalanx.model.rules.groupparts import MAX_CLAIMS, Parts, same


def _default(gates: Gates) -> Callable[[Json], None]:
    def default(obj: Json) -> None:
        spec: Json = obj.setdefault("spec", {})
        if spec.get("disruptionMode") is None:
            spec["disruptionMode"] = {"single": {}}
        if gates("PodGroupPreemptionPolicy") and spec.get("preemptionPolicy") is None:
            spec["preemptionPolicy"] = "PreemptLowerPriority"

    return default


def _drop(gates: Gates, spec: Json, old: Json, fields: tuple[tuple[str, str], ...]) -> None:
    """Gated fields leave silently unless the stored object already uses them."""
    for field, gate in fields:
        if not gates(gate) and old.get(field) in (None, []):
            spec.pop(field, None)


_POD_GROUP_GATES = (
    ("schedulingConstraints", "TopologyAwareWorkloadScheduling"),
    ("resourceClaims", "DRAWorkloadResourceClaims"),
    ("preemptionPolicy", "PodGroupPreemptionPolicy"),
    ("parentCompositePodGroupName", "CompositePodGroup"),
)
_COMPOSITE_GATES = (("preemptionPolicy", "PodGroupPreemptionPolicy"),)


def _parent(parts: Parts, new: Json, old: Json, gate: str = "") -> None:
    path = "spec.parentCompositePodGroupName"
    value, before = new.get("parentCompositePodGroupName"), old.get("parentCompositePodGroupName")
    if parts.update and value == before:
        return
    off = bool(gate) and not parts.gates(gate)
    if off and value is not None:
        parts.errors.append(forbidden(path))
    if parts.update:
        parts.errors.append(immutable(path))
    elif not off and value is not None:
        parts.errors += all_invalid(path, value, names.long_name(value))


def _pod_group_spec(parts: Parts, new: Json, old: Json) -> None:
    _parent(parts, new, old, "CompositePodGroup")
    parts.reference("spec.workloadRef", new.get("workloadRef"), old.get("workloadRef"))
    parts.policy("spec.schedulingPolicy", new.get("schedulingPolicy"), old.get("schedulingPolicy"), "minCount")
    parts.constraints(
        "spec.schedulingConstraints",
        new.get("schedulingConstraints"),
        old.get("schedulingConstraints"),
        gate="TopologyAwareWorkloadScheduling",
        soft=True,
    )
    parts.claims("spec.resourceClaims", new.get("resourceClaims"), old.get("resourceClaims"))
    parts.disruption("spec.disruptionMode", new.get("disruptionMode"), old.get("disruptionMode"), needed=True)
    parts.priority("spec", new, old)


def _composite_spec(parts: Parts, new: Json, old: Json) -> None:
    _parent(parts, new, old)
    parts.reference("spec.workloadRef", new.get("workloadRef"), old.get("workloadRef"), needed=True)
    policy, before = new.get("schedulingPolicy"), old.get("schedulingPolicy")
    if parts.update and not parts.gates("MutableMinGroupCount"):
        if not same(policy, before):
            parts.errors.append(immutable("spec.schedulingPolicy"))
    else:
        parts.policy("spec.schedulingPolicy", policy, before, "minGroupCount")
    parts.constraints("spec.schedulingConstraints", new.get("schedulingConstraints"), old.get("schedulingConstraints"))
    parts.disruption("spec.disruptionMode", new.get("disruptionMode"), old.get("disruptionMode"), needed=True)
    parts.priority("spec", new, old)


def _claim_statuses(new: Json, old: Json) -> list[FieldError]:
    statuses: list[Json] = (new.get("status") or {}).get("resourceClaimStatuses") or []
    if not statuses:
        return []
    known = {claim.get("name") for claim in (old.get("spec") or {}).get("resourceClaims") or ()}
    path = "status.resourceClaimStatuses"
    errors: list[FieldError] = []
    for index, status in enumerate(statuses):
        if status.get("name") not in known:
            text = "must match the name of an entry in `spec.resourceClaims`"
            errors.append(invalid(f"{path}[{index}].name", status.get("name") or "", text))
    if same(statuses, (old.get("status") or {}).get("resourceClaimStatuses")):
        return errors
    if len(statuses) > MAX_CLAIMS:
        return [*errors, too_many(path, len(statuses), MAX_CLAIMS)]
    parts = Parts(Gates(), update=False)
    parts.unique(path, statuses)
    for index, status in enumerate(statuses):
        value = status.get("resourceClaimName")
        if value is not None:
            parts.errors += all_invalid(f"{path}[{index}].resourceClaimName", value, names.long_name(value))
    return errors + parts.errors


def _status_errors(new: Json, old: Json) -> list[FieldError]:
    found = (new.get("status") or {}).get("conditions")
    return meta.on_update(new, old) + meta.conditions(found, "status.conditions")


def pod_group(gates: Gates) -> Rules:
    """Everything about PodGroup."""

    def prepare_create(obj: Json) -> None:
        meta.clear_status(obj)
        _drop(gates, obj.setdefault("spec", {}), {}, _POD_GROUP_GATES)

    def prepare_update(new: Json, old: Json) -> None:
        meta.keep_status(new, old)
        _drop(gates, new.setdefault("spec", {}), old.get("spec") or {}, _POD_GROUP_GATES)

    def prepare_status(new: Json, old: Json) -> None:
        meta.keep_all_but_status(new, old)
        if not gates("DRAWorkloadResourceClaims") and not (old.get("spec") or {}).get("resourceClaims"):
            (new.get("status") or {}).pop("resourceClaimStatuses", None)

    def validate_create(obj: Json) -> list[FieldError]:
        spec: Json = obj.get("spec") or {}
        errors = meta.on_create(obj)
        if spec.get("parentCompositePodGroupName") is not None and spec.get("workloadRef") is None:
            errors.append(required("spec.workloadRef", "must be set when parentCompositePodGroupName is set"))
        parts = Parts(gates, update=False)
        _pod_group_spec(parts, spec, {})
        return errors + parts.errors

    def validate_update(new: Json, old: Json) -> list[FieldError]:
        parts = Parts(gates, update=True)
        _pod_group_spec(parts, new.get("spec") or {}, old.get("spec") or {})
        return meta.on_update(new, old) + parts.errors

    def validate_status(new: Json, old: Json) -> list[FieldError]:
        return _status_errors(new, old) + _claim_statuses(new, old)

    return Rules(
        default=_default(gates),
        prepare_create=prepare_create,
        prepare_update=prepare_update,
        prepare_status=prepare_status,
        validate_create=validate_create,
        validate_update=validate_update,
        validate_status=validate_status,
    )


def composite_pod_group(gates: Gates) -> Rules:
    """Everything about CompositePodGroup."""

    def prepare_create(obj: Json) -> None:
        meta.clear_status(obj)
        _drop(gates, obj.setdefault("spec", {}), {}, _COMPOSITE_GATES)

    def prepare_update(new: Json, old: Json) -> None:
        meta.keep_status(new, old)
        _drop(gates, new.setdefault("spec", {}), old.get("spec") or {}, _COMPOSITE_GATES)

    def validate_create(obj: Json) -> list[FieldError]:
        parts = Parts(gates, update=False)
        _composite_spec(parts, obj.get("spec") or {}, {})
        return meta.on_create(obj) + parts.errors

    def validate_update(new: Json, old: Json) -> list[FieldError]:
        parts = Parts(gates, update=True)
        _composite_spec(parts, new.get("spec") or {}, old.get("spec") or {})
        return meta.on_update(new, old) + parts.errors

    return Rules(
        default=_default(gates),
        prepare_create=prepare_create,
        prepare_update=prepare_update,
        prepare_status=meta.keep_all_but_status,
        validate_create=validate_create,
        validate_update=validate_update,
        validate_status=_status_errors,
    )
