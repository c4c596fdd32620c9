"""Resolve the priority value that a PriorityClass gives to pods and groups created now."""

from __future__ import annotations

from collections.abc import Iterable

from phalanx.controllers.grouping.core import Json


def value_of(name: str, classes: Iterable[Json]) -> int | None:
    """Return the value of a class, or the default for pods without one; None if the class does not exist."""
    found = _class_of(name, classes)
    if found is None:
        return None if name else 0
    return int(found.get("value") or 0)


def policy_of(name: str, classes: Iterable[Json]) -> str:
    """Return the preemptionPolicy of pods of that class."""
    found = _class_of(name, classes)
    return str((found or {}).get("preemptionPolicy") or "PreemptLowerPriority")


def keep_priority(pod_spec: Json, group: Json | None, classes: Iterable[Json]) -> None:
    """Set the priority of a gang's pods to the gang's. group: None if there is none, or it is terminating.

    A priority requested later takes effect when no pod is in the group; otherwise the first replaced pod would wait for
    ever.
    """
    if group is None:
        return
    theirs = str(group["spec"].get("priorityClassName") or "")
    if str(pod_spec.get("priorityClassName") or "") == theirs:
        return
    if value_of(theirs, classes) == int(group["spec"].get("priority") or 0):
        pod_spec["priorityClassName"] = theirs
        if not theirs:
            del pod_spec["priorityClassName"]


def default_class(classes: Iterable[Json]) -> str:
    """Return the default class, which admission uses for pods that name no class."""
    found = _class_of("", classes)
    return str(found["metadata"]["name"]) if found is not None else ""


def _class_of(name: str, classes: Iterable[Json]) -> Json | None:
    if name:
        return next((found for found in classes if found["metadata"]["name"] == name), None)
    defaults = [found for found in classes if found.get("globalDefault")]
    return min(defaults, key=lambda found: int(found.get("value") or 0), default=None)
