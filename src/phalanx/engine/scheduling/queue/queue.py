"""The queue of scheduling units: active, backoff, waiting for an event, gated.

Units that failed for the same reason with the same shape share an equivalence class. A class waits for a change that
can help; then only its first unit becomes active. If that one is placed, the next one follows; if it fails, all wait.
So each shape is evaluated once, however many pods wait. The queue never reads nodes.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Set
from functools import cache
from types import MappingProxyType
from typing import Any

from phalanx.engine.framework import ClusterChange, Wake
from phalanx.engine.scheduling.queue.units import (
    ACTIVATED_BY,
    ACTIVE,
    ATTEMPT,
    BACKOFF,
    EVENTS,
    FEW_STALE,
    GATED,
    NOWHERE,
    SEARCH,
    WAITING,
    EquivalenceClass,
    Incoming,
    MayHelp,
    QueueName,
    QueueTimes,
    SchedulingUnit,
)
from phalanx.engine.state.capacity_index import CapacityIndex, Requests

SortKey = Callable[[int, float, int], tuple[Any, ...]]
# Changes of one row; they wake a class only if the row has room for what its units need.
ROW_WAKES = Wake.NODE | Wake.POD_GONE | Wake.NOMINATION
_ROW_BITS = int(ROW_WAKES)  # plain ints: flag arithmetic is slow

MAX_UNCHECKED_CHANGES = 16  # per class; after more of them the class is woken without a check
MAX_CHECKS_PER_STEP = 1_000  # classes
RECOUNT_AFTER = 5.0  # seconds after a node is gone, so that a node group that shrinks is one change
RECOUNT_EVERY = 0.25  # seconds between the groups that are tried again: others come first


def by_priority(priority: int, queued_at: float, order: int) -> tuple[Any, ...]:
    return (-priority, queued_at, order)


class Queue:
    def __init__(
        self,
        capacity_index: CapacityIndex[EquivalenceClass],
        sort_key: SortKey = by_priority,
        *,
        readmit: Callable[[SchedulingUnit], None] | None = None,
        gatekeepers: Mapping[str, Wake] = MappingProxyType({}),
        times: QueueTimes = QueueTimes(),  # noqa: B008
    ) -> None:
        self._capacity_index = capacity_index
        self._sort_key = sort_key
        self._times = times
        self.units: dict[str, SchedulingUnit] = {}  # every unit that has pending pods
        self._active: list[tuple[tuple[Any, ...], int, SchedulingUnit]] = []
        self._backoff: list[tuple[float, int, SchedulingUnit]] = []
        self._suspended: dict[str, SchedulingUnit] = {}  # unfinished attempts, in the order of resumption
        self._gated: dict[str, SchedulingUnit] = {}  # held by a gate, by key
        self._equivalence_classes: dict[Hashable, EquivalenceClass] = {}
        self._classes_by_wake: dict[int, dict[Hashable, EquivalenceClass]] = {bit: {} for bit in _bits(Wake.ANY)}
        self._deadlines: list[tuple[float, int, EquivalenceClass]] = []
        # Heap of waiting classes with unchecked changes, in the order of their first units.
        self._unchecked: list[tuple[tuple[Any, ...], int, EquivalenceClass]] = []
        self._checked = 0  # classes checked since the last `flush`
        self._ticket = 0
        # PreEnqueue plugins that are called again after some kinds of change.
        self._gatekeepers = dict(gatekeepers)
        self._gate_bits = 0  # the same kinds as one number
        for wakes in gatekeepers.values():
            self._gate_bits |= int(wakes)
        self._readmit = readmit or self.activate
        self.incoming = Incoming()
        self._recount = math.inf, 0.0  # (when messages of groups are renewed, when the last node was deleted)
        self._event = ""  # the event that wakes units now
        self.shares_failures = True  # whether other units of the class of the unit being tried would fail alike
        # Called with every change while attempts are suspended.
        self.on_change: Callable[[ClusterChange], None] = lambda change: None
        # Called with units that are removed, woken, or no longer gated.
        self.on_leave: Callable[[SchedulingUnit], None] = lambda unit: None

    # ---- moving units

    def activate(self, unit: SchedulingUnit) -> None:
        """Move a unit to the active queue, from any other queue."""
        event = ACTIVATED_BY.get(unit.queue_name, "UnscheduledPodAdd")
        self._leave(unit)
        self._into_active(unit, event)

    def back_off(self, unit: SchedulingUnit, now: float) -> None:
        """Move a unit to the backoff queue after an error; the delay doubles with each error."""
        self._leave(unit)
        unit.errors, unit.flushed = unit.errors + 1, False
        delay = min(self._times.initial_backoff * 2.0 ** min(unit.errors - 1, 30), self._times.max_backoff)
        unit.expiry = now + delay
        unit.queue_name = BACKOFF
        self.incoming.count(unit, "backoff", "ScheduleAttemptFailure")
        self.units[unit.key] = unit
        unit.entry = (unit.expiry, self._next(), unit)
        heapq.heappush(self._backoff, unit.entry)

    def gate(self, unit: SchedulingUnit) -> None:
        self._leave(unit)
        unit.queue_name = GATED
        self.incoming.count(unit, "gated", "UnscheduledPodAdd")
        self.units[unit.key] = unit
        self._gated[unit.key] = unit

    def wait(
        self,
        unit: SchedulingUnit,
        key: Hashable,
        wakes: Wake,
        may_help: MayHelp | None,
        now: float,
        *,
        message: str = "",
        counts: Mapping[str, int] | None = None,
        waits_for: Any = None,
        needs: Requests | None = None,
    ) -> EquivalenceClass:
        """Let a rejected unit wait in the class `key` for a change for which `may_help` returns True.

        `may_help` is called for changes of the kinds in `wakes` and, if `needs` is given, for changes of rows with room
        for it.
        """
        self._leave(unit)
        equivalence_class = self._equivalence_classes.get(key)
        if equivalence_class is None:
            equivalence_class = self._equivalence_classes[key] = EquivalenceClass(key)
        else:
            self._unindex(equivalence_class)
        equivalence_class.wakes, equivalence_class.may_help = wakes, may_help
        equivalence_class.message, equivalence_class.counts = message, counts or {}
        equivalence_class.waits_for, equivalence_class.needs = waits_for, needs
        equivalence_class.tried = now
        self._index(equivalence_class)
        equivalence_class.is_waiting, equivalence_class.flushed = True, False
        equivalence_class.deadline = now + self._times.flush_after
        self._arm(equivalence_class)
        self._into_class(unit, equivalence_class)
        return equivalence_class

    @property
    def has_classes(self) -> bool:
        """Return True if units wait for a change, so that `waiting_class` may find one."""
        return bool(self._equivalence_classes)

    def waiting_class(self, key: Hashable) -> EquivalenceClass | None:
        """Return the class `key` if it is waiting; a unit that belongs to it need not be tried."""
        equivalence_class = self._equivalence_classes.get(key) if self.shares_failures else None
        return equivalence_class if equivalence_class is not None and equivalence_class.is_waiting else None

    def join(self, unit: SchedulingUnit, equivalence_class: EquivalenceClass) -> None:
        """Let a unit wait in a class without an attempt: units of a class fail alike."""
        self._leave(unit)
        self._into_class(unit, equivalence_class)

    def suspend(self, unit: SchedulingUnit, representative_of: EquivalenceClass | None) -> None:
        """Suspend an unfinished attempt, so that other units are served first.

        `representative_of`: the class whose units wait for the result of this attempt.
        """
        self._leave(unit)
        unit.queue_name = SEARCH
        unit.equivalence_class = representative_of
        self.units[unit.key] = unit
        self._suspended[unit.key] = unit

    def above(self, priority: int) -> bool:
        """Return True if a unit of higher priority can be tried."""
        return self._has_active() and self._active[0][2].priority > priority

    def first_suspended(self) -> SchedulingUnit | None:
        """Return the suspended unit that is resumed next."""
        return next(iter(self._suspended.values()), None)

    def resume(self, unit: SchedulingUnit) -> None:
        """Remove a suspended unit. The caller then moves it to another queue and calls `attempted`."""
        del self._suspended[unit.key]
        unit.queue_name = ATTEMPT

    def wait_for_representative(self, unit: SchedulingUnit, representative: SchedulingUnit, key: Hashable) -> None:
        """Let a unit wait for the result of a suspended unit of the same class."""
        self._leave(unit)
        equivalence_class = self._equivalence_classes.get(key)
        if equivalence_class is None:
            equivalence_class = self._equivalence_classes[key] = EquivalenceClass(key)
            equivalence_class.is_waiting = False
        representative.equivalence_class = equivalence_class
        equivalence_class.unreported.append(unit)
        self._into_class(unit, equivalence_class)

    def remove(self, unit: SchedulingUnit) -> None:
        """Remove a unit that is bound, assumed or gone."""
        self._leave(unit)
        unit.queue_name = NOWHERE
        if self.units.pop(unit.key, None) is not None:
            self.on_leave(unit)

    def pop(self) -> SchedulingUnit | None:
        """Return the next unit to attempt. The caller then moves it to another queue and calls `attempted`."""
        if self._unchecked and not self._check_classes():
            return None
        while self._active:
            entry = heapq.heappop(self._active)
            unit = entry[2]
            if unit.entry is entry and unit.queue_name is ACTIVE:
                unit.entry = None
                unit.queue_name = ATTEMPT
                unit.attempts += 1
                return unit
        return None

    def attempted(self, unit: SchedulingUnit, came_from: EquivalenceClass | None) -> None:
        """Activate the next unit of the class from which a unit was woken, unless the class waits again."""
        if came_from is not None and not came_from.is_waiting:
            self._activate_next(came_from)

    # ---- time and events

    def flush(self, now: float) -> None:
        """Activate units after their backoff, and classes that waited too long without an event."""
        self._checked = 0
        while self._backoff and self._backoff[0][0] <= now:
            entry = heapq.heappop(self._backoff)
            unit = entry[2]
            if unit.entry is entry and unit.queue_name is BACKOFF:
                if unit.gate[0]:
                    self._readmit(unit)  # it failed at a gate: call the gate again
                else:
                    self._into_active(unit, "BackoffComplete")
        if self._recount[0] <= now:
            self._recount_groups(now)
        self._event = "UnschedulableTimeout"
        while self._deadlines and self._deadlines[0][0] <= now:
            equivalence_class = heapq.heappop(self._deadlines)[2]
            equivalence_class.armed = False
            if not equivalence_class.is_waiting:
                continue
            if equivalence_class.deadline <= now:
                equivalence_class.flushed = True
                self.wake_class(equivalence_class)
            else:
                self._arm(equivalence_class)

    def next_time(self) -> float | None:
        """Return the time in seconds of the next `flush`; None: never."""
        while self._backoff and self._backoff[0][2].entry is not self._backoff[0]:
            heapq.heappop(self._backoff)
        while self._deadlines and not self._deadlines[0][2].is_waiting:
            heapq.heappop(self._deadlines)[2].armed = False
        first = min(self._recount[0], *(heap[0][0] for heap in (self._backoff, self._deadlines) if heap), math.inf)
        return first if first < math.inf else None

    def node_gone(self, change: ClusterChange, now: float) -> None:
        """Wake units that the node blocked, and soon retry groups: their messages count it."""
        self.wake(change)
        self._recount = min(self._recount[0], now + RECOUNT_AFTER), now

    def _recount_groups(self, now: float) -> None:
        gone, self._recount = self._recount[1], (math.inf, 0.0)
        at, waiting = now, [each for each in self._equivalence_classes.values() if each.is_waiting]
        for each in waiting:
            first = each.first()
            if first is not None and first.kind != "Pod" and each.tried <= gone and each.deadline > at:
                each.deadline = at
                at += RECOUNT_EVERY
            each.armed = True
        self._deadlines = [(each.deadline, self._next(), each) for each in waiting]
        heapq.heapify(self._deadlines)

    def listens(self, kind: Wake) -> bool:
        """Return True if a change of that kind, which is not a change of one row, can help any unit."""
        return bool(self._suspended or self._classes_by_wake[int(kind)] or self._gate_bits & int(kind))

    def wake(self, change: ClusterChange) -> None:
        """Wake every waiting class that a change may help."""
        if self._suspended:
            self.on_change(change)
        kind = int(change.kind)
        self._event = EVENTS.get(kind, "ClusterEvent")
        waiting = self._classes_by_wake[kind]
        if waiting:
            for equivalence_class in [each for each in waiting.values() if each.is_helped_by(change)]:
                self.wake_class(equivalence_class)
        if change.row >= 0 and kind & _ROW_BITS:
            passing = self._capacity_index.passing(change.row)
            if len(passing) > FEW_STALE:
                self._check_later(passing, change)
            else:
                for equivalence_class in passing:
                    if equivalence_class.is_waiting and equivalence_class.is_helped_by(change):
                        self.wake_class(equivalence_class)
        if self._gate_bits & kind:
            names = [name for name, wakes in self._gatekeepers.items() if wakes & change.kind]
            for unit in [unit for unit in self._gated.values() if unit.gate[0] in names]:
                self._readmit(unit)

    def wake_requesting(self, resources: Set[int]) -> None:
        """Wake every waiting class whose pods request one of these resources (by id)."""
        self._event = EVENTS[int(Wake.DEVICES)]
        for equivalence_class in list(self._equivalence_classes.values()):
            unit = equivalence_class.first() if equivalence_class.is_waiting else None
            if unit is not None and any(
                rid in resources for record in unit.records.values() for rid, _ in record.shape.requests
            ):
                self.wake_class(equivalence_class)

    def _check_later(self, equivalence_classes: Iterable[EquivalenceClass], change: ClusterChange) -> None:
        """Store a change for later: each class checks it when its first unit is next."""
        for equivalence_class in equivalence_classes:
            first = equivalence_class.first() if equivalence_class.is_waiting else None
            if first is None:
                continue
            if not equivalence_class.unchecked:
                heapq.heappush(self._unchecked, (self._entry(first)[0], self._ticket, equivalence_class))
            equivalence_class.unchecked[change.row, int(change.kind)] = change
            if len(equivalence_class.unchecked) > MAX_UNCHECKED_CHANGES:
                self.wake_class(equivalence_class)

    def _check_classes(self) -> bool:
        """Check classes that precede the first active unit; return False at the limit of one step."""
        while self._unchecked:
            key, _, equivalence_class = self._unchecked[0]
            if self._has_active() and self._active[0][0] < key:
                return True
            if self._checked >= MAX_CHECKS_PER_STEP:
                return False
            heapq.heappop(self._unchecked)
            unchecked, equivalence_class.unchecked = equivalence_class.unchecked, {}
            if unchecked and equivalence_class.is_waiting:
                self._checked += 1
                if any(map(equivalence_class.is_helped_by, unchecked.values())):
                    self.wake_class(equivalence_class)
        return True

    def check_missed(self, equivalence_class: EquivalenceClass, changes: Iterable[ClusterChange] | None) -> None:
        """Wake a class if a change during its unit's attempt could help; `changes` None: too many to check."""
        if changes is None:
            self.wake_class(equivalence_class)
            return
        for change in changes:
            checked = equivalence_class.wakes | (ROW_WAKES if equivalence_class.needs is not None else Wake.NOTHING)
            if change.kind & checked and equivalence_class.is_helped_by(change):
                self.wake_class(equivalence_class)
                return

    def requested(self) -> set[int]:
        """Return the ids of resources that waiting classes need."""
        return self._capacity_index.requested()

    def has_active(self) -> bool:
        """Return True if a unit can be tried or a class checked now."""
        return bool(self._suspended or self._unchecked) or self._has_active()

    def _has_active(self) -> bool:
        while self._active:
            entry = self._active[0]
            if entry[2].entry is entry and entry[2].queue_name is ACTIVE:
                return True
            heapq.heappop(self._active)
        return False

    def places(self) -> Iterator[tuple[SchedulingUnit, QueueName]]:
        """Yield every unit with the queue that contains it, for validation."""
        for entry in self._active:
            if entry[2].entry is entry:
                yield entry[2], ACTIVE
        for timed in self._backoff:
            if timed[2].entry is timed:
                yield timed[2], BACKOFF
        for unit in self._suspended.values():
            yield unit, SEARCH
        for equivalence_class in self._equivalence_classes.values():
            for entry in equivalence_class.heap:
                if entry[2].entry is entry:
                    yield entry[2], WAITING
        for unit in self._gated.values():
            yield unit, GATED

    def validate(self) -> None:
        """Check that every woken class with waiting units has one unit being tried."""
        representatives = {id(r.equivalence_class) for r in self.units.values() if r.queue_name in (ACTIVE, SEARCH)}
        for equivalence_class in self._equivalence_classes.values():
            assert (
                equivalence_class.is_waiting
                or equivalence_class.first() is None
                or id(equivalence_class) in representatives
            ), f"no unit of {equivalence_class.key} is tried"

    # ---- inside

    def _arm(self, equivalence_class: EquivalenceClass) -> None:
        if not equivalence_class.armed:
            equivalence_class.armed = True
            heapq.heappush(self._deadlines, (equivalence_class.deadline, self._next(), equivalence_class))

    def _next(self) -> int:
        self._ticket += 1
        return self._ticket

    def _entry(self, unit: SchedulingUnit) -> tuple[tuple[Any, ...], int, SchedulingUnit]:
        return (self._sort_key(unit.priority, unit.queued_at, unit.order), self._next(), unit)

    def _into_active(self, unit: SchedulingUnit, event: str) -> None:
        unit.queue_name = ACTIVE
        self.incoming.count(unit, "active", event)
        self.units[unit.key] = unit
        unit.entry = self._entry(unit)
        heapq.heappush(self._active, unit.entry)

    def _into_class(self, unit: SchedulingUnit, equivalence_class: EquivalenceClass) -> None:
        unit.queue_name, unit.flushed = WAITING, False
        self.incoming.count(unit, "unschedulable", "ScheduleAttemptFailure")
        unit.equivalence_class = equivalence_class
        self.units[unit.key] = unit
        unit.entry = self._entry(unit)
        heapq.heappush(equivalence_class.heap, unit.entry)

    def _leave(self, unit: SchedulingUnit) -> None:
        """Remove a unit from its queue. If it was the representative of a woken class, the next unit is activated."""
        representative_of = unit.equivalence_class if unit.queue_name in (ACTIVE, SEARCH) else None
        unit.entry = None
        if unit.queue_name is SEARCH:
            self._suspended.pop(unit.key, None)
        elif unit.queue_name is GATED:
            self._gated.pop(unit.key, None)
            self.on_leave(unit)
        if unit.queue_name is WAITING and unit.equivalence_class is not None:
            self.on_leave(unit)
            unit.equivalence_class.leave()
            if unit.equivalence_class.first() is None:
                self._drop_class(unit.equivalence_class)
        unit.equivalence_class = None
        unit.queue_name = NOWHERE
        if representative_of is not None and not representative_of.is_waiting:
            self._activate_next(representative_of)

    def wake_class(self, equivalence_class: EquivalenceClass) -> None:
        self._unindex(equivalence_class)
        equivalence_class.unchecked = {}
        equivalence_class.is_waiting = False
        self._activate_next(equivalence_class)

    def _activate_next(self, equivalence_class: EquivalenceClass) -> None:
        """Activate the first unit of a woken class; the unit remembers its class."""
        unit = equivalence_class.first()
        if unit is None:
            self._drop_class(equivalence_class)
            return
        heapq.heappop(equivalence_class.heap)
        self._into_active(unit, self._event)
        unit.equivalence_class, unit.flushed = equivalence_class, equivalence_class.flushed

    def _drop_class(self, equivalence_class: EquivalenceClass) -> None:
        """Forget a class without waiting units; remove outdated deadlines if they are many."""
        self._unindex(equivalence_class)
        equivalence_class.is_waiting = False
        if self._equivalence_classes.get(equivalence_class.key) is equivalence_class:
            del self._equivalence_classes[equivalence_class.key]
        if len(self._deadlines) > 2 * len(self._equivalence_classes) + FEW_STALE:
            for _, _, each in self._deadlines:
                each.armed = each.is_waiting
            self._deadlines = [entry for entry in self._deadlines if entry[2].is_waiting]
            heapq.heapify(self._deadlines)

    def _index(self, equivalence_class: EquivalenceClass) -> None:
        for bit in _bits(equivalence_class.wakes):
            self._classes_by_wake[bit][equivalence_class.key] = equivalence_class
        if equivalence_class.needs is not None:
            self._capacity_index.add(equivalence_class, equivalence_class.needs)

    def _unindex(self, equivalence_class: EquivalenceClass) -> None:
        for bit in _bits(equivalence_class.wakes):
            self._classes_by_wake[bit].pop(equivalence_class.key, None)
        self._capacity_index.remove(equivalence_class)


@cache
def _bits(wakes: Wake) -> tuple[int, ...]:
    return tuple(int(bit) for bit in Wake.__members__.values() if int(bit).bit_count() == 1 and bit & wakes)
