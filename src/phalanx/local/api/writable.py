"""What a write may change: the whole object, or what its subresource is for; and when a changed object goes."""

from __future__ import annotations

from typing import Any

from phalanx.local.api.metadata import finalizers_of
from phalanx.local.api.request import Request
from phalanx.model.kinds import Json, Kind
from phalanx.model.rules.meta import keep_status


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
