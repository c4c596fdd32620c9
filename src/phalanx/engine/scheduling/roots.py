"""Roots: what queues. A single pod is a tree of one leaf; a PodGroup or CompositePodGroup root holds many pods."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

from phalanx.engine.state.records import PodRecord

if TYPE_CHECKING:
    from phalanx.engine.scheduling.queue import Bucket


class Place(enum.Enum):
    """Where a root is. Every root with pending pods is in exactly one place."""

    NOWHERE = "nowhere"
    ACTIVE = "active"
    BACKOFF = "backoff"
    WAITING = "waiting"  # for an event that can matter
    GATED = "gated"  # a PreEnqueue plugin said no, or a group's objects or members are missing
    SEARCH = "search"  # its attempt takes longer than a slice and goes on when others were served
    ATTEMPT = "attempt"  # being worked on right now


class Root:
    __slots__ = (
        "asked",
        "attempts",
        "bucket",
        "entry",
        "errors",
        "expiry",
        "gate",
        "key",
        "kind",
        "order",
        "place",
        "priority",
        "records",
        "tree",
    )

    def __init__(self, kind: str, key: str, priority: int, asked: float, order: int) -> None:
        self.kind = kind  # Pod, PodGroup, CompositePodGroup
        self.key = key  # "pod/ns/name", "podgroup/ns/name", "compositepodgroup/ns/name"
        self.priority = priority
        self.asked = asked  # when it first asked; a failed attempt does not lose its place
        self.order = order  # arrival number
        self.records: dict[str, PodRecord] = {}  # pending pods by key
        self.tree: Any = None  # of group roots: whatever the group cycle keeps
        self.place = Place.NOWHERE
        self.entry: Any = None  # the valid heap entry, if in a heap
        self.bucket: Bucket | None = None  # where it waits, or from where it was woken
        self.attempts = 0
        self.errors = 0
        self.expiry = 0.0
        self.gate: tuple[str, str] = ("", "")  # (plugin, message) while gated

    @property
    def record(self) -> PodRecord:
        """The pod of a single-pod root."""
        return next(iter(self.records.values()))

    def __repr__(self) -> str:
        return f"<root {self.key} {self.place.value}>"
