"""Scheduling units: a single pod, or a root PodGroup or CompositePodGroup with all its pods."""

from __future__ import annotations

import enum
import heapq
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from phalanx.engine.framework import ClusterChange, Wake
from phalanx.engine.placement import SearchOutcome
from phalanx.engine.state.capacity_index import Requests
from phalanx.engine.state.records import PodRecord
from phalanx.engine.state.shapes import Shape
from phalanx.model.groups import Group, GroupForest, GroupKey

FEW_STALE = 64  # heap entries of units that left: no clean-up below this number

MayHelp = Callable[["EquivalenceClass", ClusterChange], bool]


class UnitState(enum.StrEnum):
    """State of a scheduling unit. `lifecycle.unit_lifecycle` has the table of transitions and is the only writer."""

    NONE = "nothing"  # unknown
    HELD = "held"  # objects or members are missing, or gates are closed
    QUEUED = "queued"  # may be tried; `QueueName` says in which queue it is
    EVICTING = "evicting"  # its victims are being evicted
    COMMITTING = "committing"  # of groups: all its pods have nodes by our decision, not all binds have an outcome
    SCHEDULED = "scheduled"  # of groups: the binds that make its minimum are confirmed


class QueueName(enum.StrEnum):  # hashed for every unit: Enum has a slow hash
    """The queue that holds a unit. Every unit with pending pods is in exactly one."""

    NOWHERE = "nowhere"
    ACTIVE = "active"
    BACKOFF = "backoff"
    WAITING = "waiting"  # for an event that can matter
    GATED = "gated"  # a PreEnqueue plugin rejected it, or objects or members of a group are missing
    SEARCH = "search"  # its attempt takes longer than a slice and is resumed after other units
    ATTEMPT = "attempt"  # being tried now


# Module globals: access to a member of an enum takes ten times as long, and the queue does it often.
NOWHERE, ACTIVE, BACKOFF, WAITING, GATED, SEARCH, ATTEMPT = QueueName
NONE = UnitState.NONE

Gate = tuple[str, str]  # plugin that holds a unit, its message
NO_GATE: Gate = ("", "")


class PreemptionInProgress(msgspec.Struct):
    """The victims that a unit waits for and the nodes they free, in the state EVICTING."""

    nodes: frozenset[str]
    victims: dict[str, str]  # pod key -> uid, of victims that still exist
    since: float  # seconds
    size: int  # victims at the start
    text: str = ""  # for users


class Refusal(msgspec.Struct, frozen=True):
    """A stored summary of a failed attempt; without arrays, since there may be many."""

    message: str
    outcome: SearchOutcome | None
    texts: dict[Shape, str]  # message for the pods of each shape
    reason: str = "Unschedulable"  # of the pods' condition
    at: float = 0.0  # time of the attempt in seconds
    reserved: int = 0  # number of other units for which room is reserved
    rules: bool = False  # there is room by resources, but no placement follows the pods' rules


class SchedulingUnit:
    __slots__ = (
        "attempts",
        "entry",
        "equivalence_class",
        "errors",
        "expiry",
        "flushed",
        "gate",
        "group",
        "key",
        "kind",
        "order",
        "plan",
        "priority",
        "queue_name",
        "queued_at",
        "records",
        "refusal",
        "state",
    )

    def __init__(
        self, kind: str, key: str, priority: int, queued_at: float, order: int, state: UnitState = NONE
    ) -> None:
        self.kind = kind  # Pod, PodGroup, CompositePodGroup
        self.key = key  # "pod/ns/name", "podgroup/ns/name", "compositepodgroup/ns/name"
        self.priority = priority
        self.queued_at = queued_at  # seconds, when it was first queued; failed attempts do not change it
        self.order = order  # arrival number
        self.records: dict[str, PodRecord] = {}  # pending pods by key
        self.group: GroupKey | None = None  # of group units; the leaf itself while its root is unknown ("waiting/…")
        self.state = state  # changed only by `UnitLifecycle`, like `gate` and `plan`
        self.plan: PreemptionInProgress | None = None  # while evicting
        self.refusal: Refusal | None = None  # of group units: why the last attempt failed
        self.queue_name = NOWHERE
        self.entry: Any = None  # the valid heap entry, if in a heap
        self.equivalence_class: EquivalenceClass | None = None  # where it waits, or where it was woken from
        self.attempts = 0
        self.errors = 0
        self.expiry = 0.0
        self.flushed = False  # the present attempt was caused by no event, only by the time it waited
        self.gate = NO_GATE

    @property
    def record(self) -> PodRecord:
        """Return the pod of a unit of one pod."""
        return next(iter(self.records.values()))

    def __repr__(self) -> str:
        return f"<unit {self.key} {self.queue_name.value}>"


class EquivalenceClass:
    """Units that wait for the same change because no attempt can tell them apart."""

    __slots__ = (
        "armed",
        "counts",
        "deadline",
        "flushed",
        "heap",
        "is_waiting",
        "key",
        "left",
        "may_help",
        "message",
        "needs",
        "plugins",
        "tried",
        "unchecked",
        "unreported",
        "waits_for",
        "wakes",
    )

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.wakes = Wake.NOTHING  # kinds of change that are checked
        self.may_help: MayHelp | None = None  # decides about one change; None: every change of those kinds helps
        self.message = ""  # as in the condition
        self.counts: Mapping[str, int] = {}  # of single pods: reason of a filter -> number of nodes it rejected
        self.tried = 0.0  # time in seconds of the attempt that gave this message
        self.waits_for: Any = None  # data for `may_help`
        self.plugins: frozenset[str] = frozenset()  # plugins that rejected its single pods
        self.needs: Requests | None = None  # also woken by changes of a row with room for this
        self.heap: list[tuple[tuple[Any, ...], int, SchedulingUnit]] = []
        self.left = 0  # upper bound of heap entries of units that left
        self.is_waiting = True  # False: woken, and one unit of it is being tried
        self.deadline = 0.0  # wake time without an event
        self.flushed = False  # woken at that time
        self.armed = False  # has an entry among the deadlines
        self.unchecked: dict[tuple[int, int], ClusterChange] = {}  # by (row, kind): changes not checked yet
        self.unreported: list[SchedulingUnit] = []  # joined while another unit of the class was tried

    def is_helped_by(self, change: ClusterChange) -> bool:
        """Return True if a change may make its units fit."""
        return self.may_help is None or self.may_help(self, change)

    def first(self) -> SchedulingUnit | None:
        while self.heap:
            entry = self.heap[0]
            unit = entry[2]
            if unit.entry is entry and unit.queue_name is WAITING:
                return unit
            heapq.heappop(self.heap)
            self.left -= 1
        return None

    def leave(self) -> None:
        """Count a unit that left; stale heap entries are removed when they are half of the heap."""
        self.left += 1
        if self.left > FEW_STALE and self.left * 2 > len(self.heap):
            self.heap = [entry for entry in self.heap if entry[2].entry is entry]
            heapq.heapify(self.heap)
            self.left = 0


class GroupTree(msgspec.Struct, frozen=True, eq=False):
    """A group unit for an attempt: its root group, the forest, and its pending pods."""

    key: str  # "podgroup/ns/name"
    group: Group
    forest: GroupForest
    pending: Mapping[GroupKey, dict[str, PodRecord]]  # leaf -> its pending pods
    priority: int
    records: Sequence[PodRecord]  # all of them

    @property
    def scheduler_name(self) -> str:
        return self.records[0].scheduler_name

    @property
    def priorities(self) -> list[int]:
        """Return the priorities with which it may preempt, highest first.

        The priorities of groups below a Basic group may differ: each group preempts with its own.
        """
        spec = self.group.spec
        if not self.group.composite or spec is None or spec.gang:
            return [self.priority]
        return sorted({record.priority for record in self.records}, reverse=True) or [self.priority]

    @property
    def kind(self) -> str:
        """Return the kind for events."""
        return self.group.key.kind.lower() if self.group.composite else "podgroup"


class SinglePod(msgspec.Struct, frozen=True, eq=False):
    """A pod without a group, for an attempt: a unit of one leaf."""

    record: PodRecord

    @property
    def key(self) -> str:
        return f"pod/{self.record.key}"

    @property
    def priority(self) -> int:
        return self.record.priority

    @property
    def records(self) -> Sequence[PodRecord]:
        return (self.record,)

    @property
    def scheduler_name(self) -> str:
        return self.record.scheduler_name


AttemptUnit = SinglePod | GroupTree


class QueueTimes(msgspec.Struct, frozen=True):
    """Seconds."""

    initial_backoff: float = 1.0
    max_backoff: float = 10.0
    flush_after: float = 300.0  # after this time a waiting unit is retried without an event


class UnitQueue(Protocol):
    """The methods of `Queue` that the lifecycles need."""

    units: dict[str, SchedulingUnit]  # every unit that has pending pods, by key

    def gate(self, unit: SchedulingUnit) -> None: ...
    def activate(self, unit: SchedulingUnit) -> None: ...
    def back_off(self, unit: SchedulingUnit, now: float) -> None: ...
    def remove(self, unit: SchedulingUnit) -> None: ...
    def wake(self, change: ClusterChange) -> None: ...
    def listens(self, kind: Wake) -> bool: ...


# Events of activation, by the queue that the unit leaves.
ACTIVATED_BY = {
    QueueName.ATTEMPT: "ScheduleAttemptFailure",
    QueueName.BACKOFF: "BackoffComplete",
    QueueName.GATED: "GateRemoved",
    QueueName.WAITING: "ForceActivate",
}
# Events of changes that wake unschedulable units.
EVENTS = {
    int(Wake.NODE_ADDED): "NodeAdd",
    int(Wake.NODE_CHANGED): "NodeUpdate",
    int(Wake.POD_GONE): "AssignedPodDelete",
    int(Wake.POD_PLACED): "AssignedPodAdd",
    int(Wake.POD_LABELS): "AssignedPodUpdate",
    int(Wake.NOMINATION): "NominationCleared",
    int(Wake.STORAGE): "StorageChange",
    int(Wake.NAMESPACE): "NamespaceUpdate",
    int(Wake.SERVICE): "ServiceChange",
    int(Wake.GROUP): "PodGroupUpdate",
    int(Wake.DEVICES): "ResourceClaimUpdate",
}


class Incoming:
    """Counts units and pods that enter each queue, by event, for metrics with kube-scheduler's names."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str, str], list[int]] = {}  # (queue, event, kind of unit) -> [units, pods]

    def count(self, unit: SchedulingUnit, queue: str, event: str) -> None:
        key = (queue, event, unit.kind)
        counts = self.counts.get(key)
        if counts is None:
            counts = self.counts[key] = [0, 0]
        counts[0] += 1
        counts[1] += len(unit.records)
