"""What a PriorityClass is worth to pods and groups that are made now."""

from __future__ import annotations

from collections.abc import Iterable

from phalanx.controllers.grouping.core import Json


def value_of(name: str, classes: Iterable[Json]) -> int | None:
    """Of a class, or what pods without one get; None: there is no such class."""
    if name:
        return next((int(found.get("value") or 0) for found in classes if found["metadata"]["name"] == name), None)
    defaults = [int(found.get("value") or 0) for found in classes if found.get("globalDefault")]
    return min(defaults, default=0)
