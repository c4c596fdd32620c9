"""PodGroup and CompositePodGroup: rules that their tables cannot express."""

from __future__ import annotations

from phalanx.model.fieldpath import invalid, required
from phalanx.model.gates import Gates
from phalanx.model.kinds import FieldError, Json
from phalanx.model.rules import meta
from phalanx.model.rules.assembly import OwnRules
from phalanx.model.rules.declared import declared_errors, drop_gated


def _rules(gates: Gates, group: str) -> OwnRules:
    """Return the rules of a kind of group.

    `group`: the name of its record, without Spec and Status.
    """

    def default(obj: Json) -> None:
        spec: Json = obj.setdefault("spec", {})
        if spec.get("disruptionMode") is None:
            spec["disruptionMode"] = {"single": {}}
        if gates("PodGroupPreemptionPolicy") and spec.get("preemptionPolicy") is None:
            spec["preemptionPolicy"] = "PreemptLowerPriority"

    def prepare(new: Json, old: Json | None) -> None:
        drop_gated(f"{group}Spec", new.setdefault("spec", {}), (old or {}).get("spec") or {}, gates)

    def prepare_status(new: Json, old: Json) -> None:
        meta.keep_all_but_status(new, old)
        if not gates("DRAWorkloadResourceClaims") and not (old.get("spec") or {}).get("resourceClaims"):
            (new.get("status") or {}).pop("resourceClaimStatuses", None)

    def create(obj: Json) -> list[FieldError]:
        spec: Json = obj.get("spec") or {}
        orphan = group.endswith(".PodGroup") and spec.get("workloadRef") is None  # a composite group always needs it
        errors = declared_errors(f"{group}Spec", spec, None, "spec", gates)
        if orphan and spec.get("parentCompositePodGroupName") is not None:
            errors.insert(0, required("spec.workloadRef", "must be set when parentCompositePodGroupName is set"))
        return errors

    def update(new: Json, old: Json) -> list[FieldError]:
        return declared_errors(f"{group}Spec", new.get("spec") or {}, old.get("spec") or {}, "spec", gates)

    def status(new: Json, old: Json) -> list[FieldError]:
        found: Json = new.get("status") or {}
        errors = meta.conditions(found.get("conditions"), "status.conditions") + _unknown_claims(found, old)
        return errors + declared_errors(f"{group}Status", found, old.get("status") or {}, "status", gates)

    return OwnRules(
        default=default,
        create=create,
        update=update,
        status=status,
        prepare=prepare,
        prepare_status=prepare_status,
        table=False,
    )


def _unknown_claims(status: Json, old: Json) -> list[FieldError]:
    known = {claim.get("name") for claim in (old.get("spec") or {}).get("resourceClaims") or ()}
    text = "must match the name of an entry in `spec.resourceClaims`"
    return [
        invalid(f"status.resourceClaimStatuses[{index}].name", claim.get("name") or "", text)
        for index, claim in enumerate(status.get("resourceClaimStatuses") or ())
        if claim.get("name") not in known
    ]


def pod_group(gates: Gates) -> OwnRules:
    return _rules(gates, "scheduling/v1beta1.PodGroup")


def composite_pod_group(gates: Gates) -> OwnRules:
    return _rules(gates, "scheduling/v1alpha3.CompositePodGroup")
