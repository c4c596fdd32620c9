"""The start planner: what runs until when, which unit waits, and which start each waiting unit was promised.

The planner never sees how long a unit will really run: an end is reported when it happens. Same calls, same answers.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterable

import numpy as np

from phalanx.engine.reservations.capacity import CapacityProfile, Ints, TopologyLevels
from phalanx.engine.reservations.reservation import FOREVER, Assignment, Reason, Reservation
from phalanx.engine.reservations.room_now import RoomNow
from phalanx.engine.reservations.start_plan import Place, build, by_promise, without
from phalanx.engine.reservations.units import (
    Backfill,
    Decisions,
    PlanSettings,
    Running,
    Start,
    StartPromise,
    Stretch,
    Unit,
    WaitingUnit,
)
from phalanx.engine.reservations.waiting_units import WaitingUnits

LEAST_EXTENSION_SECONDS = 60.0  # a unit over its expected duration is expected to run at least so much longer
EXTENSION = 0.25  # of what it has run so far
CELLS_PER_SEARCH = 20_000  # pieces times nodes of a profile that count as one search
LARGE = 4.0  # a unit of at least 1/4 of the largest size is promised exactly its planned start
LEAST_TRIED = 10  # units that are tried at least, without a new plan


class StartPlanner:
    """Free capacity over time, with everything that runs and waits."""

    def __init__(
        self,
        now: float,
        free: Ints,
        topology: TopologyLevels,
        settings: PlanSettings | None = None,
        *,
        coarse: bool = False,
    ) -> None:
        """`free`: (resource, node) amounts of an empty cluster. `coarse`: round expected ends up, for a large load."""
        self.settings = settings or PlanSettings()
        self.now = now
        self.topology = topology
        self.free = free.astype(np.int64)  # (resource, node) now
        self.capacity = self.free.copy()
        self.base = CapacityProfile(now, free, topology, coarse=coarse)  # without what runs, to its expected end
        self.plan = self.base  # also without what is reserved; the same profile while no unit waits
        self.waiting: dict[str, WaitingUnit] = {}
        self._table = WaitingUnits(self.settings)  # the same units
        self.running: dict[str, Running] = {}
        self._stretch = Stretch(self.settings.overrun_quantile)
        self.searches = 0
        self._new: dict[str, WaitingUnit] = {}  # units since the last `decide`
        self._credit = 0
        self._events = 0  # calls of `decide`
        self._largest = 1.0  # size of the largest unit so far
        self._freed = False
        self._outranked = False  # room was taken that units of lower priority had reserved
        self._lost: dict[int, Reason] = {}  # row of a node on which room was lost since the last `decide` -> why
        self._due: list[tuple[float, str]] = []  # heap of when running units are expected to end; may be out of date
        self._reserved: list[tuple[float, str]] = []  # heap of starts of reservations; may be out of date
        self._promised: list[tuple[float, str]] = []  # heap of promised starts; may be out of date
        self._unpromised: dict[str, WaitingUnit] = {}  # waiting units without a promise
        self._unplaced: list[WaitingUnit] = []  # units that lost their place since the last `decide`
        self._blocked: list[tuple[float, str]] = []  # reservations that began while their nodes were not free
        self._lapsed: list[tuple[float, str]] = []  # promises that are due and whose reservation has begun
        self._started: list[tuple[int, float, int]] = []  # order of every unit that started, sorted

    # ---- in

    def submit(self, unit: Unit) -> None:
        """Add a waiting unit. It is planned by the next `decide`."""
        entry = WaitingUnit(unit, unit.expected * self._stretch.factor)
        entry.passed_before = self._passed(unit)
        self.waiting[unit.name] = self._unpromised[unit.name] = entry
        self._table.add(entry)
        self._new[unit.name] = entry
        self._largest = max(self._largest, unit.size)

    def withdraw(self, name: str) -> None:
        """Forget a waiting unit: its reservation ends with it."""
        entry = self.waiting.pop(name)
        self._table.remove(entry)
        self._unpromised.pop(name, None)
        if self._new.get(name) is entry:
            del self._new[name]
        elif entry.where is not None:
            self.plan.change(entry.start, entry.until, entry.unit.demand, entry.where, +1)
            self._freed = True

    def end(self, name: str, now: float, *, completed: bool = True) -> None:
        """Report that a running unit ended; `completed` False: it was evicted, so its duration teaches nothing."""
        self.advance(now)
        run = self.running.pop(name)
        self._take(run.where, run.unit, -1)
        if run.until > now:
            for profile in self._profiles():
                profile.change(now, run.until, run.unit.demand, run.where, +1)
        self._freed = True
        if completed and run.unit.expected != FOREVER:
            self._stretch.learn((now - run.started) / run.unit.expected)

    def run(self, unit: Unit, where: Assignment, now: float) -> None:
        """Report that a unit runs which this planner did not start."""
        self.advance(now)
        if unit.name in self.waiting:
            self._table.remove(self.waiting.pop(unit.name))
        self._unpromised.pop(unit.name, None)
        entry = WaitingUnit(unit, unit.expected * self._stretch.factor)
        entry.where = where
        self._begin(entry, now, reserved=False)
        self._outranked = True

    def change_capacity(self, row: int, amounts: Ints, now: float) -> None:
        """Set what a node offers when empty: zero for a node that is lost or cordoned."""
        self.advance(now)
        delta = amounts.astype(np.int64) - self.capacity[:, row]
        self.capacity[:, row] += delta
        self.free[:, row] += delta
        for profile in self._profiles():
            profile.change_node(row, delta)
        if (delta < 0).any():
            self._lost[row] = Reason.NODE_LOST
        self._freed = True

    def advance(self, now: float) -> None:
        """Move the clock; a clock that goes back is ignored."""
        if now > self.now:
            self.now = now
            for profile in self._profiles():
                profile.advance(now)

    def _profiles(self) -> tuple[CapacityProfile, ...]:
        return (self.base,) if self.plan is self.base else (self.base, self.plan)

    # ---- out

    def decide(self, now: float) -> Decisions:
        """Start what may start at `now` and promise a start to every other waiting unit that can have one."""
        self.advance(now)
        out = Decisions()
        self._extend_overruns()
        if self._outranked:
            self._plan_again()
        elif self._lost:
            self._displace()
        self._outranked, self._lost = False, {}
        changed = self._freed or bool(self._new)
        if self.settings.backfill in (Backfill.NONE, Backfill.STRICT):
            self._start_in_order(out)
            return out
        self._insert_new(out)
        self._events += 1
        work = self.settings.work_per_event if self._is_short() else self.settings.work_per_later_event
        self._credit = min(self._credit + work, 50 * work)
        self._start_due(out)
        if changed and self.waiting and self.free.any():
            self._improve(out)
        self._freed = False
        if not self.waiting:
            self.plan = self.base
        self._promise(out)
        return out

    def _is_short(self) -> bool:
        """Return True if few events happened so far: the work of a plan is not limited yet."""
        return self._events <= self.settings.early_events

    def next_wake(self) -> float:
        """Return when `decide` has to be called again if nothing happens before."""
        while self._reserved and not self._begins(*self._reserved[0]):
            heapq.heappop(self._reserved)
        while self._promised and not self._is_promised(*self._promised[0]):
            heapq.heappop(self._promised)
        heaps = (self._due, self._reserved, self._promised)
        return min((heap[0][0] for heap in heaps if heap and heap[0][0] > self.now), default=FOREVER)

    def _begins(self, at: float, name: str) -> bool:
        entry = self.waiting.get(name)
        return entry is not None and entry.where is not None and entry.start == at > self.now

    def _is_promised(self, at: float, name: str) -> bool:
        entry = self.waiting.get(name)
        return entry is not None and entry.promise == at > self.now

    def _place(self, entry: WaitingUnit, place: Place | None) -> None:
        """Record the reservation of a unit; None: it has no place at any time."""
        if place is None:
            if entry.promise is not None:
                self._unplaced.append(entry)
            entry.start, entry.where = FOREVER, None
            return
        if place[0] != entry.start:
            heapq.heappush(self._reserved, (place[0], entry.unit.name))
        entry.start, entry.until, entry.where = place

    def reservations(self) -> Iterable[Reservation]:
        """Return what every waiting unit holds, in order."""
        for entry in sorted(self.waiting.values(), key=lambda e: e.unit.order):
            if entry.where is not None:
                yield Reservation(
                    entry.unit.name,
                    entry.unit.demand,
                    entry.where,
                    entry.start,
                    entry.until,
                    entry.why_moved or Reason.PROMISED,
                    self.domain_of(entry.unit, entry.where),
                )

    def domain_of(self, unit: Unit, where: Assignment) -> str:
        level = unit.demand.level
        if level < 0:
            return ""
        return self.topology.names[level][int(self.topology.domain[level][where.rows[0]])]

    # ---- starting

    def _take(self, where: Assignment, unit: Unit, sign: int) -> None:
        for r, amount in enumerate(unit.demand.request):
            self.free[r, where.rows] -= sign * where.counts * amount

    def _begin(self, entry: WaitingUnit, now: float, *, reserved: bool = True) -> None:
        assert entry.where is not None
        unit, where, until = entry.unit, entry.where, self.base.until(now, entry.span)
        self.base.change(now, until, unit.demand, where, -1)
        if self.plan is self.base:
            pass
        elif not reserved:
            self.plan.change(now, until, unit.demand, where, -1)
        else:  # its reservation may end at another time than the unit is now expected to
            self.plan.change(entry.until, until, unit.demand, where, -1)
            self.plan.change(until, entry.until, unit.demand, where, +1)
        self._take(where, unit, +1)
        self.running[unit.name] = Running(unit, where, now, until)
        if until != FOREVER:
            heapq.heappush(self._due, (until, unit.name))

    def _start_due(self, out: Decisions) -> None:
        due: dict[str, WaitingUnit] = {}
        blocked, self._blocked = self._blocked, []
        for at_name in blocked:
            heapq.heappush(self._reserved, at_name)
        while self._reserved and self._reserved[0][0] <= self.now:
            at, name = heapq.heappop(self._reserved)
            entry = self.waiting.get(name)
            if entry is not None and entry.where is not None and entry.start == at:
                due[name] = entry
        for entry in sorted(due.values(), key=lambda e: e.unit.order):
            if self._fits_now(entry):
                self._start(entry, out)
            else:
                self._blocked.append((entry.start, entry.unit.name))

    def _start_in_order(self, out: Decisions) -> None:
        """Start what fits in order, without reservations; with STRICT the first that does not fit stops the rest."""
        self._new, self._freed = {}, False
        candidates = self._table.by_creation()
        for entry in candidates:
            where = self.base.fits(entry.unit.demand, self.now, self.now)
            if where is not None:
                entry.start, entry.where = self.now, where
                self._start(entry, out, reserved=False)
            elif self.settings.backfill is Backfill.STRICT:
                return
            else:
                candidates.exclude(0.0)

    def _start(self, entry: WaitingUnit, out: Decisions, *, reserved: bool = True) -> None:
        """Move a unit from the waiting to the started ones, at its planned place."""
        assert entry.where is not None
        del self.waiting[entry.unit.name]
        self._table.remove(entry)
        self._unpromised.pop(entry.unit.name, None)
        self._begin(entry, self.now, reserved=reserved)
        out.starts.append(Start(entry.unit.name, entry.where, self._passed(entry.unit) - entry.passed_before))
        bisect.insort(self._started, entry.unit.order)

    def _passed(self, unit: Unit) -> int:
        """Return how many units behind this one in the order have started."""
        return len(self._started) - bisect.bisect(self._started, unit.order)

    def _fits_now(self, entry: WaitingUnit) -> bool:
        where = entry.where
        assert where is not None
        return all(
            bool((self.free[r, where.rows] >= where.counts * amount).all())
            for r, amount in enumerate(entry.unit.demand.request)
        )

    # ---- planning

    def _insert_new(self, out: Decisions) -> None:
        """Give every new unit the earliest room that delays no unit of equal or higher priority."""
        new, self._new = sorted(self._new.values(), key=lambda e: e.unit.order), {}
        if not new:
            return
        old = len(self.waiting) - len(new)
        if old and new[0].unit.priority > self._table.lowest_priority:
            self._plan_again()
            return
        for entry in new:
            where = self.plan.fits(entry.unit.demand, self.now, self.plan.until(self.now, entry.span))
            if where is not None:
                entry.start, entry.where = self.now, where
                self._start(entry, out, reserved=False)
            else:
                self._reserve(entry)

    def _reserve(self, entry: WaitingUnit) -> None:
        self.searches += 1
        found = self.plan.earliest(entry.unit.demand, entry.span, self.now)
        if found is None:
            self._place(entry, None)
            return
        start, where = found
        self._place(entry, (start, self.plan.until(start, entry.span), where))
        if self.plan is self.base:
            self.plan = self.base.copy()
        self.plan.change(start, entry.until, entry.unit.demand, where, -1)

    def _displace(self) -> None:
        """Give other places to units whose room was lost: of those in conflict, the last by priority and promise."""
        rows = list(self._lost)
        if not (self.plan.rows[:, :, rows] < 0).any():
            return
        holders = [
            entry
            for entry in self.waiting.values()
            if entry.where is not None and not self._lost.keys().isdisjoint(entry.where.rows.tolist())
        ]
        displaced: list[WaitingUnit] = []
        for entry in sorted(holders, key=by_promise, reverse=True):
            assert entry.where is not None
            if self.plan.over_committed(entry.where, entry.start, entry.until):
                self.plan.change(entry.start, entry.until, entry.unit.demand, entry.where, +1)
                displaced.append(entry)
        for entry in reversed(displaced):
            assert entry.where is not None
            reason = next(self._lost[row] for row in entry.where.rows.tolist() if row in self._lost)
            before = entry.start
            self._reserve(entry)
            if entry.start > before:
                entry.why_moved = reason

    def _plan_again(self) -> None:
        """Plan for units of higher priority: by priority and promise, each keeps its reservation or gets another."""
        self.plan = self.base.copy()
        for entry in sorted(self.waiting.values(), key=by_promise):
            if entry.where is not None and self.plan.holds(entry.unit.demand, entry.where, entry.start, entry.until):
                self.plan.change(entry.start, entry.until, entry.unit.demand, entry.where, -1)
                continue
            before = entry.start
            self._reserve(entry)
            if entry.start > before:
                entry.why_moved = Reason.HIGHER_PRIORITY

    def _improve(self, out: Decisions) -> None:
        """Build a better plan if the work budget allows it; otherwise start only what fits next to the present one."""
        settings = self.settings
        cost = 1 + self.base.n * self.free.shape[1] // CELLS_PER_SEARCH
        if self._credit < cost * min(len(self.waiting), settings.depth):
            self._start_additional(out, cost)
            return
        order = self._table.by_rank(self.now).first(settings.depth)
        room = self.base if len(order) == len(self.waiting) else without(self.plan, order)
        plan, searches, kept = build(room, self.now, order, settings, self.base.most())
        self._credit -= searches * cost + (0 if self._is_short() else kept)
        self.searches += searches
        if plan is None:
            self._start_additional(out, cost)
            return
        self.plan = plan.profile
        for entry in order:
            self._place(entry, plan.places[entry.unit.name])
        self._start_due(out)

    def _start_additional(self, out: Decisions, cost: int) -> None:
        """Start units that fit now without delaying any reservation."""
        tries = max(LEAST_TRIED, self._credit // cost)
        room = RoomNow(self.plan)
        candidates = self._table.by_rank(self.now, room.slots)
        for entry in candidates:
            if tries <= 0:
                break
            demand = entry.unit.demand
            if room.slots(demand) < demand.pods:
                candidates.exclude(0.0)
                continue
            self.searches += 1
            tries -= 1
            self._credit -= cost
            until = self.plan.until(self.now, entry.span)
            if room.excludes(entry, until):
                candidates.exclude(entry.span)
                continue
            start, old = entry.start, entry.where
            if old is not None:
                self.plan.change(start, entry.until, demand, old, +1)
            where = self.plan.fits(demand, self.now, until)
            if where is not None:
                entry.start, entry.where = self.now, where
                self._start(entry, out, reserved=False)
                if start > self.now:
                    room.taken(where, old)
                else:
                    room.forget()
            else:
                candidates.exclude(entry.span)
                if entry.where is not None:
                    self.plan.change(entry.start, entry.until, demand, entry.where, -1)

    # ---- promises

    def _promise(self, out: Decisions) -> None:
        """Promise a start to units that have none; move a promise only when it is about to be broken."""
        lost, self._unplaced = self._unplaced, []
        for entry in lost:
            if entry.where is None and entry.promise is not None and entry.unit.name in self.waiting:
                reason = entry.why_moved or Reason.NODE_LOST
                out.promises.append(StartPromise(entry.unit.name, FOREVER, None, reason, entry.promise))
                entry.promise = None
                self._unpromised[entry.unit.name] = entry
        for entry in [entry for entry in self._unpromised.values() if entry.where is not None]:
            del self._unpromised[entry.unit.name]
            self._set_promise(entry, entry.start + self._slack(entry))
            out.promises.append(StartPromise(entry.unit.name, entry.promise or 0.0, entry.where))
        lapsed, self._lapsed = self._lapsed, []
        for at_name in lapsed:
            heapq.heappush(self._promised, at_name)
        lapsed = self._lapsed
        while self._promised and self._promised[0][0] <= self.now:
            moved, name = heapq.heappop(self._promised)
            late = self.waiting.get(name)
            if late is None or late.promise != moved:
                continue
            if late.start <= moved + self.settings.drift:  # its nodes are not free yet
                lapsed.append((moved, name))
                continue
            self._set_promise(late, self._later(late))
            late.moves += 1
            reason = late.why_moved or Reason.OVERRAN
            out.promises.append(StartPromise(name, late.promise or 0.0, late.where, reason, moved))

    def _set_promise(self, entry: WaitingUnit, start_by: float) -> None:
        entry.promise = start_by
        heapq.heappush(self._promised, (start_by, entry.unit.name))

    def _slack(self, entry: WaitingUnit) -> float:
        """Return how much later than planned a unit is promised to start: nothing for large units."""
        share = max(0.0, 1.0 - LARGE * entry.unit.size / self._largest)
        return share * self.settings.promise_slack * (entry.start - self.now)

    def _later(self, entry: WaitingUnit) -> float:
        """Return the new promise of a unit that cannot start in time: its planned start and a margin."""
        return entry.start + EXTENSION * (entry.start - self.now) * entry.moves + LEAST_EXTENSION_SECONDS

    # ---- expected durations

    def _extend_overruns(self) -> None:
        """Expect units over their expected duration to run on; what was planned on their nodes moves."""
        while self._due and self._due[0][0] <= self.now:
            at, name = heapq.heappop(self._due)
            run = self.running.get(name)
            if run is None or run.until != at:
                continue
            more = max(LEAST_EXTENSION_SECONDS, EXTENSION * (self.now - run.started))
            for profile in self._profiles():
                profile.change(self.now, self.now + more, run.unit.demand, run.where, -1)
            run.until = self.now + more
            heapq.heappush(self._due, (run.until, name))
            for row in run.where.rows.tolist():
                self._lost.setdefault(row, Reason.OVERRAN)

    # ---- checks

    def validate(self) -> None:
        """Raise AssertionError if the tables contradict each other."""
        self.base.check()
        again = self.base.copy()
        for entry in self.waiting.values():
            if entry.where is not None:
                again.change(entry.start, entry.until, entry.unit.demand, entry.where, -1)
        again.check()
        assert (self.free >= 0).all(), "a node is over-committed now"
        assert not set(self.waiting) & set(self.running), "a unit waits and runs"
        for at in self.plan.times.tolist():
            assert (again.least(at, at) == self.plan.least(at, at)).all(), f"the plan differs at {at}"
