"""The start planner of the live scheduler: what runs is observed node by node, and a start is only proposed.

The scheduler places a unit with all its rules, perhaps elsewhere or later than proposed. A unit keeps its reservation
until then, and a start that is a few seconds late moves no other one.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from phalanx.engine.reservations.capacity import CapacityProfile
from phalanx.engine.reservations.reservation import FOREVER, Assignment, PodDemand, Reason
from phalanx.engine.reservations.start_plan import Place, by_promise
from phalanx.engine.reservations.start_planner import StartPlanner
from phalanx.engine.reservations.units import Decisions, PlanSettings, Start, StartPromise, Unit, WaitingUnit

MOST_PIECES = 160  # of the profile with reservations; beyond it ends of reservations are rounded up
MOST_ENDS = 96  # pieces of the profile of what runs; beyond it ends are rounded up
PIECES_PER_WAIT = 32  # these ends are late by at most 1/32 of the wait
INSERTS = 64  # new units that one call of `decide` plans

Floats = npt.NDArray[np.float64]
Change = tuple[float, Floats]  # (time, additional free amount of every resource from then on)
Read = tuple[Floats, Sequence[Change]]  # what is free on a node now, (resource,), and how that changes


class LiveStartPlanner(StartPlanner):
    def __init__(self, observed: CapacityProfile, settings: PlanSettings) -> None:
        """`observed`: free capacity after what runs and what is reserved outside this planner."""
        super().__init__(observed.start, observed.rows[0], observed.topology, settings)
        observed.coarse, observed.exact_below, observed.per_wait = True, MOST_PIECES, PIECES_PER_WAIT
        self.base = self.plan = observed
        self.changed: dict[str, None] = {}  # units with another reservation than at the end of the last `decide`
        self.proposed: dict[str, float] = {}  # units that may start -> since when
        self.unplaced: dict[str, None] = {}  # units for which the last `decide` found no place
        self._displaced: dict[str, Reason] = {}  # units that lost their nodes
        self._hopeless: set[tuple[PodDemand, int, float]] = set()  # what found no place in this `decide`

    @property
    def unfinished(self) -> bool:
        """Return True if new units are left for the next `decide`."""
        return bool(self._new)

    # ---- in

    def restore(self, unit: Unit, promise: float | None, place: Place | None, lost: Reason) -> None:
        """Add a unit that an earlier planner planned. `lost`: why it has to move if its place is not free any more."""
        self.submit(unit)
        entry = self._new.pop(unit.name)
        entry.promise = promise
        if promise is not None:
            del self._unpromised[unit.name]
            self._set_promise(entry, promise)
            entry.start = promise
        if place is not None:
            entry.start, entry.until, entry.where = place
            if self._is_kept(self._own_plan(), entry):
                self._hold(entry)
                return
        entry.where = None
        self._displaced[unit.name] = lost

    def replace(self, unit: Unit) -> None:
        """Change the eligible nodes or the expected duration of a waiting unit. It keeps its nodes if it may."""
        entry = self.waiting[unit.name]
        self._table.remove(entry)
        longer = unit.expected > entry.unit.expected
        entry.unit, entry.span = unit, unit.expected
        self._table.add(entry)
        eligible = unit.demand.eligible
        if entry.where is None:
            return
        if longer or (eligible is not None and not eligible[entry.where.rows].all()):
            self.plan.change(entry.start, entry.until, unit.demand, entry.where, +1)
            entry.where = None
            self._displaced[unit.name] = Reason.OVERRAN if longer else Reason.NODE_LOST

    def remove(self, name: str) -> None:
        """Forget a unit that started or is gone. Others may use the room if it did not start as proposed."""
        freed = self._freed
        self.withdraw(name)
        if self.proposed.pop(name, None) is not None:
            self._freed = freed
        self._displaced.pop(name, None)

    def set_rows(self, reads: Mapping[int, Read], reason: Callable[[int], Reason]) -> None:
        """Set what is free on nodes now and how that changes, by row. `reason`: returns why it may be less on a row."""
        base = self.base
        times = self._begin_pieces([changes for _, changes in reads.values()])
        rows = np.array(list(reads), dtype=np.intp)
        exact = np.empty((base.n, len(base.rows[0]), len(rows)))
        for number, (free, changes) in enumerate(reads.values()):
            exact[:, :, number] = free
            for at, (_, amounts) in zip(times[number], changes, strict=True):
                exact[int(base.times.searchsorted(at)) :, :, number] += amounts
        delta = np.floor(exact).astype(base.rows.dtype) - base.rows[:, :, rows]
        differs = np.flatnonzero(delta.any(axis=(0, 1)))
        if not len(differs):
            return
        rows, delta = rows[differs], delta[:, :, differs]
        base.set_nodes(rows, base.rows[:, :, rows] + delta)
        if self.plan is not base:
            pieces = base.times.searchsorted(self.plan.times, side="right") - 1
            self.plan.set_nodes(rows, self.plan.rows[:, :, rows] + delta[pieces])
        for row in rows[(delta < 0).any(axis=(0, 1))].tolist():
            self._lost[row] = reason(row)
        self._freed = self._freed or bool((delta > 0).any())

    def _begin_pieces(self, of_nodes: Sequence[Sequence[Change]]) -> list[list[float]]:
        """Make pieces begin when nodes change, and return these times for each node. Ends are rounded up to a time at
        which a piece begins or may begin: to the next such time, so that reading a node again makes no end later."""
        base, begins = self.base, self.base.times.tolist()
        found: list[list[float]] = []
        for changes in of_nodes:
            times = []
            for at, amounts in changes:
                if (amounts < 0).any():
                    times.append(at)
                elif len(begins) < MOST_ENDS:
                    times.append(max(at, base.start))
                else:
                    rounded = base.rounded_up(at, (at - base.start) / PIECES_PER_WAIT)
                    times.append(min([rounded, *begins[bisect.bisect_left(begins, at) :][:1]]))
            for at in times:
                i = bisect.bisect_left(begins, at)
                if at > base.start and (i == len(begins) or begins[i] != at):
                    begins.insert(i, at)
            found.append(times)
        for profile in self._profiles():
            profile.begin_pieces(itertools.chain.from_iterable(found))
        return found

    # ---- out

    def decide(self, now: float) -> Decisions:
        self.advance(now)
        self.free = np.maximum(self.base.rows[0], 0).astype(np.int64)
        new = sorted(self._new.values(), key=lambda entry: entry.unit.order)
        self._new = {entry.unit.name: entry for entry in new[:INSERTS]}
        self.unplaced, self._hopeless = {}, set()
        out = super().decide(now)
        self._new = {entry.unit.name: entry for entry in new[INSERTS:] if entry.where is None}
        return out

    def _own_plan(self) -> CapacityProfile:
        """Return the profile with reservations, apart from that of what runs."""
        if self.plan is self.base:
            self.plan = self.base.copy()
        return self.plan

    def _hold(self, entry: WaitingUnit) -> None:
        assert entry.where is not None
        self._own_plan().change(entry.start, entry.until, entry.unit.demand, entry.where, -1)
        self.changed[entry.unit.name] = None

    def _place(self, entry: WaitingUnit, place: Place | None) -> None:
        """Note also that the planned start of a unit changed."""
        old = entry.where
        if place is not None and old is not None and place[0] == entry.start and _same(old, place[2]):
            entry.until = place[1]
            return
        super()._place(entry, place)
        self.changed[entry.unit.name] = None
        if place is None:
            self.unplaced[entry.unit.name] = None
        else:
            self.unplaced.pop(entry.unit.name, None)

    def _start(self, entry: WaitingUnit, out: Decisions, *, reserved: bool = True) -> None:
        """Propose the start of a unit, which keeps its reservation."""
        assert entry.where is not None
        name = entry.unit.name
        if not reserved:
            entry.until = self._own_plan().until(self.now, entry.span)
            self._hold(entry)
        self._take(entry.where, entry.unit, +1)
        self._unpromised.pop(name, None)
        self.proposed.setdefault(name, self.now)

    def _promise(self, out: Decisions) -> None:
        for name in list(self.proposed):
            entry = self.waiting.get(name)
            if entry is not None and entry.where is not None and entry.start <= self.now:
                out.starts.append(Start(name, entry.where))
                continue
            del self.proposed[name]
            if entry is not None and entry.promise is None:
                self._unpromised[name] = entry
        for name in self.changed:
            entry = self.waiting.get(name)
            if entry is not None and entry.where is not None and entry.promise is not None:
                self._move(entry, entry.promise, out)
        super()._promise(out)

    def _move(self, entry: WaitingUnit, promise: float, out: Decisions) -> None:
        """Move a promise that cannot be kept, as soon as that is known."""
        if entry.start <= promise + self.settings.drift:
            return
        self._set_promise(entry, entry.start)
        entry.moves += 1
        reason = entry.why_moved or Reason.OVERRAN
        out.promises.append(StartPromise(entry.unit.name, entry.start, entry.where, reason, promise))

    # ---- lost room

    def _displace(self) -> None:
        """Give other places to units whose room was lost: of those in conflict, the last by priority and promise."""
        rows = np.array(list(self._lost), dtype=np.intp)
        short = set(rows[(self.plan.rows[:, :, rows] < 0).any(axis=(0, 1))].tolist())
        holders = [
            entry
            for entry in self.waiting.values()
            if short and entry.where is not None and not short.isdisjoint(entry.where.rows.tolist())
        ]
        for entry in sorted(holders, key=by_promise, reverse=True):
            assert entry.where is not None
            if self._is_over_committed(entry, entry.where):
                self.plan.change(entry.start, entry.until, entry.unit.demand, entry.where, +1)
                lost = (self._lost[row] for row in entry.where.rows.tolist() if row in self._lost)
                self._displaced[entry.unit.name] = next(lost)
                entry.where = None
        self._find_again()

    def _find_again(self) -> None:
        displaced, self._displaced = self._displaced, {}
        for entry in sorted((self.waiting[name] for name in displaced if name in self.waiting), key=by_promise):
            before = entry.start
            self._reserve(entry)
            if entry.start > before:
                entry.why_moved = displaced[entry.unit.name]

    def _insert_new(self, out: Decisions) -> None:
        self._find_again()
        if not self._new:
            return
        new = list(self._new.values())
        planned = [entry for entry in self.waiting.values() if entry.where is not None]
        if new[0].unit.priority > min((entry.unit.priority for entry in planned), default=FOREVER):
            self._new = {}
            self._plan_these([*planned, *new])
        else:
            super()._insert_new(out)
        for entry in new:
            if entry.where is None:
                self.withdraw(entry.unit.name)

    def _reserve(self, entry: WaitingUnit) -> None:
        key = (entry.unit.demand.pod, entry.unit.demand.pods, entry.span)
        if key in self._hopeless:
            self._place(entry, None)
            return
        super()._reserve(entry)
        if entry.where is None:
            self._hopeless.add(key)

    def _plan_these(self, units: Sequence[WaitingUnit]) -> None:
        """Plan for units of higher priority: by priority and promise, each keeps its reservation or gets another."""
        self.plan = self.base.copy()
        for entry in sorted(units, key=by_promise):
            if self._is_kept(self.plan, entry):
                self._hold(entry)
                continue
            before = entry.start
            self._reserve(entry)
            if entry.start > before:
                entry.why_moved = Reason.HIGHER_PRIORITY

    def _begin_of(self, entry: WaitingUnit) -> float:
        """Return from when on the room of a unit must be free: it may start a little late."""
        return max(self.now, min(entry.start + self.settings.drift, entry.until))

    def _is_kept(self, profile: CapacityProfile, entry: WaitingUnit) -> bool:
        if entry.where is None or entry.until <= self.now:
            return False
        return profile.holds(entry.unit.demand, entry.where, self._begin_of(entry), entry.until)

    def _is_over_committed(self, entry: WaitingUnit, where: Assignment) -> bool:
        return entry.until <= self.now or self.plan.over_committed(where, self._begin_of(entry), entry.until)

    def first_start(self, unit: Unit) -> tuple[float, Assignment] | None:
        """Return when and where a unit that does not wait would start; FOREVER: reserved room would have to end."""
        found = self.plan.earliest(unit.demand, unit.expected, self.now)
        if found is None and (without := self.base.earliest(unit.demand, unit.expected, self.now)) is not None:
            return FOREVER, without[1]
        return found

    def next_time(self) -> float:
        """Return when `decide` has to be called again if nothing happens before."""
        return self.now if self._new else self.next_wake()


def _same(first: Assignment, second: Assignment) -> bool:
    return np.array_equal(first.rows, second.rows) and np.array_equal(first.counts, second.counts)
