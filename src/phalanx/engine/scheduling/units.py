"""Roots: what queues. A single pod is a tree of one leaf; a PodGroup or CompositePodGroup root holds many pods."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import msgspec

from phalanx.engine.state.records import PodRecord

if TYPE_CHECKING:
    from phalanx.engine.scheduling.answers import Refusal
    from phalanx.engine.scheduling.queue import EquivalenceClass
    from phalanx.model.groups import GroupKey


class UnitState(enum.StrEnum):
    """Where a root is in its life. `scheduling.root_lives` has the table of transitions and makes them all."""

    NONE = "nothing"  # not known yet, or not any more
    HELD = "held"  # objects or members are missing, or gates are closed
    QUEUED = "queued"  # may be tried; where it is in the queue is the queue's business
    EVICTING = "evicting"  # tried, and room is being made
    COMMITTING = "committing"  # of groups: all its pods have nodes by our decision, not all binds are answered
    SCHEDULED = "scheduled"  # of groups: the binds that make its minimum are confirmed


class QueueName(enum.Enum):
    """Where the queue has a root. Every root with pending pods is in exactly one place."""

    NOWHERE = "nowhere"
    ACTIVE = "active"
    BACKOFF = "backoff"
    WAITING = "waiting"  # for an event that can matter
    GATED = "gated"  # a PreEnqueue plugin said no, or a group's objects or members are missing
    SEARCH = "search"  # its attempt takes longer than a slice and goes on when others were served
    ATTEMPT = "attempt"  # being worked on right now


# By name: looking up a member of an enum costs ten times what a global does, and a queue does little else.
NOWHERE, ACTIVE, BACKOFF, WAITING, GATED, SEARCH, ATTEMPT = QueueName
NONE = UnitState.NONE


class PreemptionInProgress(msgspec.Struct):
    """Whom a root has had evicted, and for what; it goes with the state EVICTING."""

    nodes: frozenset[str]
    victims: dict[str, str]  # pod key -> uid, of those still there
    since: float  # seconds
    size: int  # victims at the start
    text: str = ""  # for people


class SchedulingUnit:
    __slots__ = (
        "asked",
        "attempts",
        "entry",
        "equivalence_class",
        "errors",
        "expiry",
        "gate",
        "group",
        "key",
        "kind",
        "order",
        "place",
        "plan",
        "priority",
        "records",
        "refusal",
        "state",
    )

    def __init__(self, kind: str, key: str, priority: int, asked: float, order: int) -> None:
        self.kind = kind  # Pod, PodGroup, CompositePodGroup
        self.key = key  # "pod/ns/name", "podgroup/ns/name", "compositepodgroup/ns/name"
        self.priority = priority
        self.asked = asked  # when it first asked; a failed attempt does not lose its place
        self.order = order  # arrival number
        self.records: dict[str, PodRecord] = {}  # pending pods by key
        self.group: GroupKey | None = None  # of group roots; the leaf itself where no root is known yet ("waiting/…")
        self.state = NONE
        self.plan: PreemptionInProgress | None = None  # while evicting
        self.refusal: Refusal | None = None  # of group roots: why the last attempt failed
        self.place = NOWHERE
        self.entry: Any = None  # the valid heap entry, if in a heap
        self.equivalence_class: EquivalenceClass | None = None  # where it waits, or from where it was woken
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
