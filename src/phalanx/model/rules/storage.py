"""PersistentVolume, PersistentVolumeClaim, StorageClass and the CSI kinds."""

from __future__ import annotations

from phalanx.model import names, quantity
from phalanx.model.fieldpath import all_invalid, forbidden, invalid, not_supported, required
from phalanx.model.gates import Gates
from phalanx.model.kinds import FieldError, Json
from phalanx.model.rules import placement, resources
from phalanx.model.rules.assembly import OwnRules
from phalanx.model.rules.declared import same

_MODES = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")


def _access_modes(spec: Json, path: str = "spec") -> list[FieldError]:
    at, modes = f"{path}.accessModes", spec.get("accessModes") or []
    if not modes:
        return [required(at, "at least 1 access mode is required")]
    errors = [not_supported(at, mode, _MODES) for mode in modes if mode not in _MODES]
    if "ReadWriteOncePod" in modes and any(mode in _MODES for mode in modes if mode != "ReadWriteOncePod"):
        errors.append(forbidden(at, "may not use ReadWriteOncePod with other access modes"))
    return errors


def volume_claim_errors(spec: Json, path: str) -> list[FieldError]:
    """Check the spec of a PersistentVolumeClaim or of a template of claims."""
    errors = _access_modes(spec, path)
    errors += placement.label_selector(spec.get("selector"), f"{path}.selector")
    size = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    if size is None:
        errors.append(required(f"{path}.resources[storage]"))
    elif quantity.is_valid(size) and quantity.nanos(size) <= 0:
        errors.append(invalid(f"{path}.resources[storage]", size, "must be greater than zero"))
    else:
        errors += resources.amount(size, f"{path}.resources[storage]")
    for field in ("storageClassName", "volumeAttributesClassName"):
        name = spec.get(field)
        if name:
            errors += all_invalid(f"{path}.{field}", name, names.dns_subdomain(name))
    mode = spec.get("volumeMode")
    if mode is not None and mode not in ("Block", "Filesystem"):
        errors.append(not_supported(f"{path}.volumeMode", mode, ("Block", "Filesystem")))
    return errors


def persistent_volume(gates: Gates) -> OwnRules:
    def create(obj: Json) -> list[FieldError]:
        spec: Json = obj.get("spec") or {}
        errors = _access_modes(spec)
        if not (spec.get("capacity") or {}).get("storage"):
            errors.append(required("spec.capacity"))
        errors += resources.resource_list(spec.get("capacity"), "spec.capacity")
        affinity: Json | None = (spec.get("nodeAffinity") or {}).get("required")
        if affinity is not None:
            errors += placement.node_selector(affinity, "spec.nodeAffinity.required")
        return errors

    def first_status(obj: Json) -> Json:
        status: Json = {"phase": "Pending"}  # until a controller has seen it
        born = (obj.get("metadata") or {}).get("creationTimestamp")
        return {**status, "lastPhaseTransitionTime": born} if born else status

    return OwnRules(errors=create, first_status=first_status)


def persistent_volume_claim(gates: Gates) -> OwnRules:
    def create(obj: Json) -> list[FieldError]:
        return volume_claim_errors(obj.get("spec") or {}, "spec")

    def update(new: Json, old: Json) -> list[FieldError]:
        spec, before = new.get("spec") or {}, old.get("spec") or {}
        free: set[str] = set()
        if (new.get("status") or {}).get("phase") == "Bound":  # a claim without a volume has nothing that could grow
            free = {"resources", "volumeAttributesClassName"}
        if not before.get("volumeName"):
            free.add("volumeName")  # binding sets it once
        if before.get("storageClassName") is None:
            free.add("storageClassName")
        fields = {*spec, *before} - free
        if any(not same(spec.get(field), before.get(field)) for field in fields):
            text = (
                "spec is immutable after creation except resources.requests and volumeAttributesClassName "
                "for bound claims"
            )
            return [forbidden("spec", text)]
        return []

    return OwnRules(create=create, update=update, first_status=lambda obj: {"phase": "Pending"})


def storage_class(gates: Gates) -> OwnRules:
    def create(obj: Json) -> list[FieldError]:
        driver = str(obj.get("provisioner") or "")
        return all_invalid("provisioner", driver, names.label_key(driver.lower())) if driver else []

    return OwnRules(create=create, shows_fixed=False)


def csi_storage_capacity(gates: Gates) -> OwnRules:
    def errors_of(obj: Json) -> list[FieldError]:
        fields = [field for field in ("capacity", "maximumVolumeSize") if obj.get(field) is not None]
        return [error for field in fields for error in resources.amount(obj[field], field)]

    return OwnRules(errors=errors_of)


def volume_attachment(gates: Gates) -> OwnRules:
    def create(obj: Json) -> list[FieldError]:
        source: Json = (obj.get("spec") or {}).get("source") or {}
        if source.get("persistentVolumeName") or source.get("inlineVolumeSpec") is not None:
            return []
        return [required("spec.source", "must specify exactly one of inlineVolumeSpec and persistentVolumeName")]

    return OwnRules(create=create)
