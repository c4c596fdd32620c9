"""Limit what a write may change: the whole object, or the fields of its subresource; and when it is deleted.

Names, uids, timestamps and the generation are set by the server; clients cannot choose them.
"""

from __future__ import annotations

import random
from typing import Any

from phalanx.base.ids import generate_suffix, new_uid
from phalanx.local.api.request import Request
from phalanx.model.kinds import Json, Kind
from phalanx.model.rules.meta import keep_status

MAX_GENERATED = 63 - 5  # a generated name is at most a DNS label
# Set by the server on create and never changed by an update.
_KEPT = ("creationTimestamp", "uid", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "generateName")


def metadata_of(obj: Json) -> Json:
    """Return the metadata of an object; it is made if absent."""
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict):
        metadata = obj["metadata"] = {}
    return metadata


def generated_name(prefix: str, rng: random.Random) -> str:
    return prefix[:MAX_GENERATED] + generate_suffix(rng)


def stamp_new(kind: Kind, metadata: Json, namespace: str, now: str, rng: random.Random) -> None:
    """Set the metadata that every new object gets, and remove what only the server may set."""
    for key in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "resourceVersion", "generation"):
        metadata.pop(key, None)
    if namespace:
        metadata["namespace"] = namespace
    else:
        metadata.pop("namespace", None)
    metadata["uid"] = new_uid(rng)
    metadata["creationTimestamp"] = now
    if kind.generation:
        metadata["generation"] = 1


def keep_system_fields(metadata: Json, old: Json) -> None:
    for key in _KEPT:
        if key in old:
            metadata[key] = old[key]
        else:
            metadata.pop(key, None)
    metadata.pop("selfLink", None)
    metadata["name"] = old["name"]
    if "namespace" in old:
        metadata["namespace"] = old["namespace"]
    else:
        metadata.pop("namespace", None)


def date_taints(kind: Kind, new: Json, old: Json | None, now: str) -> None:
    """Set `timeAdded` of device taints without it; a rule whose effect changes counts as added again."""
    spec: Json = new.get("spec") or {}
    if kind.key == "resourceslices.resource.k8s.io":
        for device in spec.get("devices") or ():
            for taint in device.get("taints") or ():
                taint.setdefault("timeAdded", now)
    elif kind.key == "devicetaintrules.resource.k8s.io" and (taint := spec.get("taint")):
        before: Json = ((old or {}).get("spec") or {}).get("taint") or taint
        if taint.get("effect") != before.get("effect") and taint.get("timeAdded") == before.get("timeAdded"):
            taint["timeAdded"] = now
        taint.setdefault("timeAdded", now)


def bump_generation(kind: Kind, new: Json, old: Json) -> None:
    """Increase the generation if anything but metadata and status changed."""
    if not kind.generation or not _asked_differs(new, old, ignore_status="status" in kind.subresources):
        return
    metadata = new["metadata"]
    metadata["generation"] = int(old["metadata"].get("generation") or 0) + 1


def _asked_differs(new: Json, old: Json, *, ignore_status: bool) -> bool:
    for key in new.keys() | old.keys():
        if key in ("metadata", "apiVersion", "kind") or (ignore_status and key == "status"):
            continue
        if new.get(key) != old.get(key):
            return True
    return False


def finalizers_of(obj: Json) -> list[str]:
    found: Any = obj["metadata"].get("finalizers")
    return found if isinstance(found, list) else []


def within(request: Request, new: Json, old: Json) -> Json:
    """Apply to the old object only what the request may change, through its subresource or without one."""
    kind = request.kind
    if request.subresource in ("status", "approval"):
        return status_only(kind, decision_only(new, old) if request.subresource == "approval" else new, old)
    part = kind.parts.get(request.subresource)
    if part is not None:
        return part.only(new, old)
    if "status" in kind.subresources:
        keep_status(new, old)
    return new


def status_only(kind: Kind, new: Json, old: Json) -> Json:
    """Apply to the old object only what the status subresource may change.

    That is the status, managedFields, and the metadata that the kind allows.
    """
    result = dict(old)
    metadata: Json = dict(old["metadata"])
    asked = new["metadata"]
    for name in ("managedFields", *kind.status_writes):
        if name in asked:
            metadata[name] = asked[name]
        else:
            metadata.pop(name, None)
    result["metadata"] = metadata
    if new.get("status") is not None:
        result["status"] = new["status"]
    else:
        result.pop("status", None)
    return result


def decision_only(new: Json, old: Json) -> Json:
    """Apply to the old status only what an approval of a CertificateSigningRequest may change: conditions."""
    conditions = (new.get("status") or {}).get("conditions")
    status = {name: value for name, value in (old.get("status") or {}).items() if name != "conditions"}
    return {**new, "status": {**status, "conditions": conditions} if conditions else status}


def released(new: Json, old: Json) -> bool:
    """Return True if a terminating object can go: no finalizer and no grace period holds it."""
    metadata = new["metadata"]
    if not metadata.get("deletionTimestamp") or finalizers_of(new):
        return False
    if metadata.get("deletionGracePeriodSeconds"):
        return False
    spec: Any = new.get("spec")
    return not (new.get("kind") == "Namespace" and isinstance(spec, dict) and spec.get("finalizers"))
