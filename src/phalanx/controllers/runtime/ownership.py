"""Manage ownership: controller references, adoption and release by label selector."""

from __future__ import annotations

from phalanx.base.client import Resource
from phalanx.model.kinds import Json


def controller_of(obj: Json) -> Json | None:
    for reference in obj["metadata"].get("ownerReferences") or ():
        if reference.get("controller"):
            found: Json = reference
            return found
    return None


def controlled_by(obj: Json, uid: str) -> bool:
    reference = controller_of(obj)
    return reference is not None and reference.get("uid") == uid


def controller_reference(owner: Json, resource: Resource) -> Json:
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def index_by_controller(obj: Json) -> list[str]:
    """Cache index: uid of the controller."""
    reference = controller_of(obj)
    return [str(reference["uid"])] if reference is not None else []


def deleting(obj: Json) -> bool:
    return "deletionTimestamp" in obj["metadata"]
