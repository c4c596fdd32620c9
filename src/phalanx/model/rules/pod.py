"""Pod: defaults, validation of new pods, and the fields that may change later."""

from __future__ import annotations

from typing import Any

from phalanx.base.well_known import REQUIRED_AFFINITY
from phalanx.model import names
from phalanx.model.fieldpath import all_invalid, forbidden, immutable, invalid
from phalanx.model.gates import Gates
from phalanx.model.kinds import FieldError, Json
from phalanx.model.rules import meta, placement, pod_parts, podspec, podspec_defaults, resources
from phalanx.model.rules.contract import Rules
from phalanx.model.rules.declared import same

_UPDATABLE = (
    "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,"
    "`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def default(obj: Json) -> None:
    podspec_defaults.pod_spec(obj.setdefault("spec", {}), pod=True)


def _create_errors(obj: Json) -> list[FieldError]:
    spec: Json = obj.get("spec") or {}
    errors = meta.on_create(obj) + podspec.errors_of(spec)
    for index, container in enumerate(spec.get("containers") or ()):
        image = container.get("image") or ""
        if image != image.strip():
            text = "must not have leading or trailing whitespace"
            errors.append(invalid(f"spec.containers[{index}].image", image, text))
    if spec.get("ephemeralContainers"):
        errors.append(forbidden("spec.ephemeralContainers", "cannot be set on create"))
    if spec.get("schedulingGates") and spec.get("nodeName"):
        text = "cannot be set until all schedulingGates have been cleared"
        errors.append(forbidden("spec.nodeName", text))
    return errors


def _tolerations(new: list[Json], old: list[Json]) -> list[FieldError]:
    """Check that tolerations were only added, or changed in tolerationSeconds."""

    def bare(toleration: Json) -> tuple[tuple[str, str], ...]:
        return tuple(sorted((name, value) for name, value in toleration.items() if name != "tolerationSeconds"))

    kept = set(map(bare, new))
    if any(bare(toleration) not in kept for toleration in old):
        text = "existing toleration can not be modified except its tolerationSeconds"
        return [forbidden("spec.tolerations", text)]
    return placement.tolerations(new, "spec.tolerations")


def _scheduling_gates(new: list[Json], old: list[Json]) -> list[FieldError]:
    known = {gate.get("name") for gate in old}
    return [
        forbidden(
            f"spec.schedulingGates[{index}].name",
            f"only deletion is allowed, but found new scheduling gate '{gate.get('name')}'",
        )
        for index, gate in enumerate(new)
        if gate.get("name") not in known
    ]


def _deadline(new: int | None, old: int | None) -> list[FieldError]:
    path = "spec.activeDeadlineSeconds"
    if new is None:
        if old is not None:
            return [invalid(path, None, "must not update from a positive integer to nil value")]
        return []
    if not 0 <= new <= podspec.MAX_INT32:
        return [invalid(path, new, f"must be between 0 and {podspec.MAX_INT32}, inclusive")]
    if old is not None and old < new:
        return [invalid(path, new, "must be less than or equal to previous value")]
    return []


def _affinity_terms(new: Json, old: Json) -> list[FieldError]:
    """Check that a gated pod's required node affinity becomes only stricter."""
    path = f"spec.affinity.nodeAffinity.{REQUIRED_AFFINITY}.nodeSelectorTerms"
    before: list[Json] = (old.get(REQUIRED_AFFINITY) or {}).get("nodeSelectorTerms") or []
    after: list[Json] = (new.get(REQUIRED_AFFINITY) or {}).get("nodeSelectorTerms") or []
    if before and len(before) != len(after):
        text = "no additions/deletions to non-empty NodeSelectorTerms list are allowed"
        return [invalid(path, after, text)]
    errors = []
    for index, (term, earlier) in enumerate(zip(after, before, strict=False)):
        if not _only_adds(term, earlier):
            text = "only additions are allowed (no mutations or deletions)"
            errors.append(invalid(f"{path}[{index}]", term, text))
    return errors


def _only_adds(new: Json, old: Json) -> bool:
    fields = ("matchExpressions", "matchFields")
    if not any(old.get(field) for field in fields):
        return not any(new.get(field) for field in fields)
    for field in fields:
        before = old.get(field) or []
        if (new.get(field) or [])[: len(before)] != before:
            return False
    return True


def _gated_changes(spec: Json, old: Json, errors: list[FieldError]) -> None:
    """Check the fields that may become stricter while the pod has scheduling gates.

    `spec` is a copy, made equal to `old` where it may differ.
    """
    if not same(spec.get("nodeSelector") or {}, old.get("nodeSelector") or {}):
        wanted = spec.get("nodeSelector") or {}
        if any(wanted.get(key) != value for key, value in (old.get("nodeSelector") or {}).items()):
            text = "only additions to spec.nodeSelector are allowed (no mutations or deletions)"
            errors.append(invalid("spec.nodeSelector", wanted, text))
        _take(spec, old, "nodeSelector")
    new_affinity, old_affinity = dict(spec.get("affinity") or {}), old.get("affinity") or {}
    if not same(new_affinity.get("nodeAffinity"), old_affinity.get("nodeAffinity")):
        errors += _affinity_terms(new_affinity.get("nodeAffinity") or {}, old_affinity.get("nodeAffinity") or {})
        _take(new_affinity, old_affinity, "nodeAffinity")
        if new_affinity or "affinity" in old:
            spec["affinity"] = new_affinity
        else:
            spec.pop("affinity", None)


def _take(new: Json, old: Json, field: str) -> None:
    if field in old:
        new[field] = old[field]
    else:
        new.pop(field, None)


def _images(new: list[Json], old: list[Json]) -> list[Json]:
    return [{**container, "image": earlier.get("image")} for container, earlier in zip(new, old, strict=True)]


def _spec_update(new: Json, old: Json) -> list[FieldError]:
    errors = podspec.errors_of(new)
    for field in ("containers", "initContainers"):
        if len(new.get(field) or ()) != len(old.get(field) or ()):
            return [*errors, forbidden(f"spec.{field}", "pod updates may not add or remove containers")]
    errors += _deadline(new.get("activeDeadlineSeconds"), old.get("activeDeadlineSeconds"))
    if not same(new.get("tolerations"), old.get("tolerations")):
        errors += _tolerations(new.get("tolerations") or [], old.get("tolerations") or [])
    errors += _scheduling_gates(new.get("schedulingGates") or [], old.get("schedulingGates") or [])
    rest: dict[str, Any] = dict(new)
    for field in ("containers", "initContainers"):
        if rest.get(field):
            rest[field] = _images(rest[field], old[field])
    for field in ("activeDeadlineSeconds", "schedulingGates", "tolerations"):
        _take(rest, old, field)
    if (old.get("terminationGracePeriodSeconds") or 0) < 0 and rest.get("terminationGracePeriodSeconds") == 1:
        _take(rest, old, "terminationGracePeriodSeconds")
    if old.get("schedulingGates"):
        _gated_changes(rest, old, errors)
    changed = [field for field in sorted({*rest, *old}) if not same(rest.get(field), old.get(field))]
    if changed:
        listed = "".join(f"\n  spec.{field}" for field in changed)
        errors.append(forbidden("spec", f"pod updates may not change fields other than {_UPDATABLE}{listed}"))
    return errors


def _update_errors(new: Json, old: Json) -> list[FieldError]:
    errors = meta.on_update(new, old)
    spec, before = new.get("spec") or {}, old.get("spec") or {}
    # An update that leaves the spec alone is the common one, and cannot have made it worse.
    return errors if spec == before else errors + _spec_update(spec, before)


def _status_errors(new: Json, old: Json) -> list[FieldError]:
    errors = meta.on_update(new, old)
    status, before = new.get("status") or {}, old.get("status") or {}
    nominated = status.get("nominatedNodeName")
    if nominated:
        errors += all_invalid("status.nominatedNodeName", nominated, names.dns_subdomain(nominated))
    if before.get("qosClass") and status.get("qosClass") != before["qosClass"]:
        errors.append(immutable("status.qosClass", status.get("qosClass")))
    return errors


def _shortest_grace(spec: Any) -> None:
    """Replace a negative grace period by the shortest one: a second."""
    if isinstance(spec, dict) and (spec.get("terminationGracePeriodSeconds") or 0) < 0:
        spec["terminationGracePeriodSeconds"] = 1


def rules(gates: Gates) -> Rules:
    """Return the rules of Pod."""

    def prepare_create(obj: Json) -> None:
        spec: Json = obj.setdefault("spec", {})
        podspec.drop_gated(gates, spec, None)
        _shortest_grace(spec)
        placement.merge_label_keys(spec, (obj.get("metadata") or {}).get("labels") or {})
        obj["status"] = {"phase": "Pending", "qosClass": resources.quality_of_service(spec)}

    def prepare_update(new: Json, old: Json) -> None:
        meta.keep_status(new, old)
        pod_parts.note_allocated(new, old)
        podspec.drop_gated(gates, new.get("spec"), old.get("spec"))
        _shortest_grace(new.get("spec"))

    def prepare_status(new: Json, old: Json) -> None:
        meta.keep_all_but_status(new, old)
        quality = (old.get("status") or {}).get("qosClass")
        if quality:
            new.setdefault("status", {}).setdefault("qosClass", quality)

    return Rules(
        default=default,
        prepare_create=prepare_create,
        prepare_update=prepare_update,
        prepare_status=prepare_status,
        validate_create=_create_errors,
        validate_update=_update_errors,
        validate_status=_status_errors,
        parts=pod_parts.PARTS,
    )
