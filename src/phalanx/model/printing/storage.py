"""The columns of volumes, their classes, and devices."""

from __future__ import annotations

from phalanx.model.kinds import Column, Json
from phalanx.model.printing.cells import AGE, NAME, UNKNOWN, column, meta, name, spec, status, text

_SHORT = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"


def _modes(modes: list[str] | None) -> str:
    found = set(modes or ())
    return ",".join(short for mode, short in _SHORT.items() if mode in found)


def _phase(obj: Json, now: float) -> str:
    return "Terminating" if meta(obj).get("deletionTimestamp") else str(status(obj).get("phase") or "")


def _claim(obj: Json, now: float) -> str:
    reference: Json | None = spec(obj).get("claimRef")
    return f"{reference.get('namespace')}/{reference.get('name')}" if reference else ""


_CLASS = column("StorageClass", text("spec.storageClassName", ""))
_ATTRIBUTES = column("VolumeAttributesClass", text("spec.volumeAttributesClassName", "<unset>"))
_MODE = column("VolumeMode", text("spec.volumeMode", "<unset>"), wide=True)

VOLUME: tuple[Column, ...] = (
    NAME,
    column("Capacity", text("spec.capacity.storage", "")),
    column("Access Modes", lambda obj, now: _modes(spec(obj).get("accessModes"))),
    column("Reclaim Policy", text("spec.persistentVolumeReclaimPolicy", "")),
    column("Status", _phase),
    column("Claim", _claim),
    _CLASS,
    _ATTRIBUTES,
    column("Reason", text("status.reason", "")),
    AGE,
    _MODE,
)


def _bound(show: str) -> Column:
    """Return the column for the capacity or the modes of a claim, which are empty until it has a volume."""

    def cell(obj: Json, now: float) -> str:
        if not spec(obj).get("volumeName"):
            return ""
        if show == "Capacity":
            return str((status(obj).get("capacity") or {}).get("storage") or "")
        return _modes(status(obj).get("accessModes"))

    return column(show, cell)


CLAIM: tuple[Column, ...] = (
    NAME,
    column("Status", _phase),
    column("Volume", text("spec.volumeName", "")),
    _bound("Capacity"),
    _bound("Access Modes"),
    _CLASS,
    _ATTRIBUTES,
    AGE,
    _MODE,
)


def _class_name(obj: Json, now: float) -> str:
    default = (meta(obj).get("annotations") or {}).get(_DEFAULT_CLASS) == "true"
    return f"{name(obj, now)} (default)" if default else str(name(obj, now))


STORAGE_CLASS: tuple[Column, ...] = (
    Column("Name", "string", _class_name, format="name"),
    column("Provisioner", text("provisioner", "")),
    column("ReclaimPolicy", text("reclaimPolicy", "Delete")),
    column("VolumeBindingMode", text("volumeBindingMode", "Immediate")),
    column("AllowVolumeExpansion", text("allowVolumeExpansion", False), type="boolean"),
    AGE,
)
CSI_NODE: tuple[Column, ...] = (
    NAME,
    column("Drivers", lambda obj, now: len(spec(obj).get("drivers") or ()), type="integer"),
    AGE,
)
CSI_DRIVER: tuple[Column, ...] = (
    NAME,
    column("AttachRequired", text("spec.attachRequired", True), type="boolean"),
    column("PodInfoOnMount", text("spec.podInfoOnMount", False), type="boolean"),
    column("StorageCapacity", text("spec.storageCapacity", False), type="boolean"),
    AGE,
)
CSI_CAPACITY: tuple[Column, ...] = (
    NAME,
    column("StorageClassName", text("storageClassName", "")),
    column("Capacity", text("capacity", "<unset>")),
    AGE,
)


def _claim_state(obj: Json, now: float) -> str:
    words = ["deleted"] if meta(obj).get("deletionTimestamp") else []
    if status(obj).get("allocation") is None:
        if not words:
            words.append("pending")
    else:
        words.append("allocated")
        if status(obj).get("reservedFor"):
            words.append("reserved")
    return ",".join(words)


RESOURCE_CLAIM: tuple[Column, ...] = (NAME, column("State", _claim_state), AGE)
RESOURCE_SLICE: tuple[Column, ...] = (
    NAME,
    column("Node", text("spec.nodeName", "<unset>")),
    column("Driver", text("spec.driver", "")),
    column("Pool", text("spec.pool.name", UNKNOWN)),
    AGE,
)
