"""Roots: what queues. A single pod is a tree of one leaf; a PodGroup or CompositePodGroup root holds many pods."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Protocol

from phalanx.engine.records import PodRecord
from phalanx.model.groups.keys import BOUND_IN_GROUP as BOUND_IN_GROUP
from phalanx.model.objects import Pod

if TYPE_CHECKING:
    from phalanx.engine.cycle import Cycle
    from phalanx.engine.queue import Bucket


class Place(enum.Enum):
    """Where a root is. Every root with pending pods is in exactly one place."""

    NOWHERE = "nowhere"
    ACTIVE = "active"
    BACKOFF = "backoff"
    WAITING = "waiting"  # for an event that can matter
    GATED = "gated"  # a PreEnqueue plugin said no, or a group's objects or members are missing
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


class GroupRoots(Protocol):
    """Whoever turns pods with a group into roots, and attempts those roots. One per engine."""

    def claims(self, record: PodRecord) -> bool:
        """Whether this pod is scheduled as part of a group (then it never queues alone)."""
        ...

    def mark(self, record: PodRecord) -> str | None:
        """What a bind of this pod is marked with: the uid of its group's object; None for a pod on its own."""
        ...

    def pending(self, record: PodRecord) -> None:
        """A claimed pod is pending: new, changed, or come back after a failed bind. Queue its root when complete."""
        ...

    def placed(self, record: PodRecord) -> None:
        """A claimed pod is assumed or bound."""
        ...

    def bound(self, record: PodRecord) -> None:
        """The API server acknowledged a pod's Bind."""
        ...

    def saw(self, pod: Pod) -> None:
        """Every version of every pod, before a record is made of it."""
        ...

    def lost(self, namespace: str, name: str) -> None:
        """A pod object is gone, and its record too."""
        ...

    def outcome(self, decision: Any, event: Any) -> None:
        """A decision that somebody waits for was answered."""
        ...

    def admit(self, root: Root) -> None:
        """Judge a held root again: active, or held with its reason."""
        ...

    def settle(self) -> None:
        """Before roots are popped: act on what was noted since the last time."""
        ...

    @property
    def busy(self) -> bool:
        """`settle` has something to do."""
        ...

    def gone(self, record: PodRecord, *, finished: bool) -> None:
        """A claimed pod was deleted, or `finished` (Succeeded, Failed: it may still satisfy its gang)."""
        ...

    def observe(self, kind: str, old: Any | None, new: Any | None) -> None:
        """PodGroup, CompositePodGroup, Workload (and every other kind) as for plugins."""
        ...

    def attempt(self, root: Root, cycle: Cycle) -> None:
        """One attempt of a group root; must leave it in a place of the queue, or out of it."""
        ...

    def place_of(self, record: PodRecord) -> Place:
        """For validation: where a claimed pending pod is; NOWHERE means lost."""
        ...


class NoGroups:
    """Pods without groups only: pods that name a group are scheduled as if they named none."""

    def claims(self, record: PodRecord) -> bool:
        return False

    def mark(self, record: PodRecord) -> str | None:
        return None

    def pending(self, record: PodRecord) -> None: ...

    def placed(self, record: PodRecord) -> None: ...

    def bound(self, record: PodRecord) -> None: ...

    def saw(self, pod: Pod) -> None: ...

    def lost(self, namespace: str, name: str) -> None: ...

    def outcome(self, decision: Any, event: Any) -> None: ...

    def admit(self, root: Root) -> None: ...

    def settle(self) -> None: ...

    busy = False

    def gone(self, record: PodRecord, *, finished: bool) -> None: ...

    def observe(self, kind: str, old: Any | None, new: Any | None) -> None: ...

    def attempt(self, root: Root, cycle: Cycle) -> None: ...

    def place_of(self, record: PodRecord) -> Place:
        return Place.NOWHERE
