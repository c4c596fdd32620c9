"""Grouping: a workload object in, its Workload, CompositePodGroups, PodGroups and pod links out."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.controllers.grouping import registry
from phalanx.controllers.grouping.core import Grouping, Json, Link, Refused

__all__ = ["Grouping", "Link", "Refused", "group"]


def group(obj: Json, related: Sequence[Json] = ()) -> Grouping | None:
    """What would be generated for a workload; None for kinds that nobody groups. Raises Refused on bad input."""
    grouper = registry.grouper_of(obj)
    return grouper(obj, related) if grouper is not None else None
