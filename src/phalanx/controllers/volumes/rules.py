"""Decide whether a volume satisfies a claim. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable

from phalanx.base.well_known import STORAGE_CLASS_ANNOTATION
from phalanx.controllers.runtime.controller import Json
from phalanx.controllers.runtime.ownership import deleting
from phalanx.model.quantity import BadQuantity, nanos
from phalanx.model.selectors import from_selector

DEFAULT_CLASS = ("storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class")
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"


def annotations_of(obj: Json) -> Json:
    found: Json = obj["metadata"].get("annotations") or {}
    return found


def class_of(obj: Json) -> str:
    """Return the class of a volume or a claim; "" if none."""
    old = annotations_of(obj).get(STORAGE_CLASS_ANNOTATION)
    return str(obj["spec"].get("storageClassName") or "") if old is None else str(old)


def leaves_class_open(claim: Json) -> bool:
    """Return True if the class is unset, as opposed to "", which means no class."""
    return claim["spec"].get("storageClassName") is None and STORAGE_CLASS_ANNOTATION not in annotations_of(claim)


def default_class(classes: Iterable[Json]) -> Json | None:
    """Return the newest default class; among equally new ones the first by name."""
    found = [c for c in classes if any(annotations_of(c).get(key) == "true" for key in DEFAULT_CLASS)]
    found.sort(key=lambda c: str(c["metadata"]["name"]))
    return max(found, key=lambda c: str(c["metadata"].get("creationTimestamp") or ""), default=None)


def waits_for_consumer(storage_class: Json | None) -> bool:
    return storage_class is not None and storage_class.get("volumeBindingMode") == "WaitForFirstConsumer"


def size(amounts: Json | None) -> int:
    """Return nano-units, exact; an invalid or missing quantity is 0."""
    try:
        return nanos((amounts or {}).get("storage", 0))
    except (BadQuantity, ValueError):
        return 0


def requested(claim: Json) -> int:
    return size((claim["spec"].get("resources") or {}).get("requests"))


def is_named_by(volume: Json, claim: Json) -> bool:
    """Return True if the volume's claimRef means this claim; without a uid any claim of that name."""
    reference, meta = volume["spec"].get("claimRef"), claim["metadata"]
    return (
        reference is not None
        and (reference.get("namespace"), reference.get("name")) == (meta["namespace"], meta["name"])
        and reference.get("uid") in (None, "", meta["uid"])
    )


def unsuitable(volume: Json, claim: Json) -> str:
    """Return why a claim that names this volume cannot have it; "" if it can."""
    if size(volume["spec"].get("capacity")) < requested(claim):
        return "requested PV is too small"
    if class_of(volume) != class_of(claim):
        return "storageClassName does not match"
    if _mode(volume) != _mode(claim):
        return "incompatible volumeMode"
    if not _offers(volume, claim):
        return "incompatible accessMode"
    return ""


def best_match(volumes: Iterable[Json], claim: Json) -> Json | None:
    """Return the volume reserved for the claim, else the smallest free one that suits (equal sizes: by name)."""
    matcher = from_selector(claim["spec"]["selector"]) if claim["spec"].get("selector") is not None else None
    found: list[tuple[int, str, Json]] = []
    for volume in volumes:
        spec, meta = volume["spec"], volume["metadata"]
        if deleting(volume) or size(spec.get("capacity")) < requested(claim):
            continue
        if class_of(volume) != class_of(claim) or _mode(volume) != _mode(claim):
            continue
        if is_named_by(volume, claim):
            return volume
        if spec.get("claimRef") is not None or (volume.get("status") or {}).get("phase") != "Available":
            continue
        if (matcher is None or matcher.matches(meta.get("labels"))) and _offers(volume, claim):
            found.append((size(spec.get("capacity")), str(meta["name"]), volume))
    return min(found, key=lambda entry: entry[:2])[2] if found else None


def _mode(obj: Json) -> str:
    return str(obj["spec"].get("volumeMode") or "Filesystem")


def _offers(volume: Json, claim: Json) -> bool:
    return set(claim["spec"].get("accessModes") or ()) <= set(volume["spec"].get("accessModes") or ())
