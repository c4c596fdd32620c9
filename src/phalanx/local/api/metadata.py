"""The system's part of metadata: names, uids, timestamps, generation. Clients cannot choose any of these."""

from __future__ import annotations

import random
from typing import Any

from phalanx.base.ids import generate_suffix, new_uid
from phalanx.model.kinds import Json, Kind

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
