"""The promise book: what runs until when, which unit waits, and which start each waiting unit was promised.

The book never sees how long a unit will really run: an end is reported when it happens. Same calls, same answers.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable

import numpy as np

from phalanx.engine.reservations.capacity import CapacityProfile, Ints, TopologyLevels
from phalanx.engine.reservations.planner import build, rank
from phalanx.engine.reservations.reservation import FOREVER, Assignment, Reason, Reservation
from phalanx.engine.reservations.units import (
    Backfill,
    Decisions,
    PlanSettings,
    Running,
    Start,
    StartPromise,
    Unit,
    WaitingUnit,
)

LEAST_EXTENSION_SECONDS = 60.0  # how much longer a unit over its expected duration is expected to run, at least
EXTENSION = 0.25  # of what it has run so far
CELLS_PER_SEARCH = 20_000  # of the profile (pieces times nodes) that a search counts as one unit of work
LARGE = 4.0  # a unit of this part of the largest one is promised exactly its planned start
LEAST_BESIDE = 10  # units that are tried beside the present plan at least
FINISHED_KEPT = 400  # finished units from which the stretch of expected durations is learned
FINISHED_NEEDED = 10  # before the stretch is anything but 1
OVERRUNS_IGNORED = 0.01  # share of finished units that may overrun before expected durations are stretched


class PromiseBook:
    """Free capacity over time, with everything that runs and waits."""

    def __init__(self, now: float, free: Ints, topology: TopologyLevels, settings: PlanSettings | None = None) -> None:
        """`free`: (resource, node) amounts of an empty cluster."""
        self.settings = settings or PlanSettings()
        self.now = now
        self.topology = topology
        self.free = free.astype(np.int64)  # (resource, node) now
        self.capacity = self.free.copy()
        self.base = CapacityProfile(now, free, topology)  # without what runs, until it is expected to end
        self.plan = self.base  # also without what is reserved; the same profile while no unit waits
        self.waiting: dict[str, WaitingUnit] = {}
        self.running: dict[str, Running] = {}
        self.stretch = 1.0  # expected durations are multiplied by it
        self.searches = 0
        self._new: list[WaitingUnit] = []
        self._credit = 0
        self._largest = 1.0  # size of the largest unit so far
        self._freed = False
        self._conflict: Reason | None = None
        self._ratios: deque[float] = deque(maxlen=FINISHED_KEPT)  # real over expected duration of finished units
        self._endings = 0
        self._due: list[tuple[float, str]] = []  # heap of when running units are expected to end; may be out of date

    # ---- in

    def submit(self, unit: Unit) -> None:
        """Add a waiting unit. It is planned by the next `decide`."""
        entry = WaitingUnit(unit, unit.expected * self.stretch)
        self.waiting[unit.name] = entry
        self._new.append(entry)
        self._largest = max(self._largest, unit.size)

    def withdraw(self, name: str) -> None:
        """Forget a waiting unit: its reservation ends with it."""
        entry = self.waiting.pop(name)
        if any(new is entry for new in self._new):
            self._new = [new for new in self._new if new is not entry]
        elif entry.where is not None:
            self.plan.change(entry.start, entry.start + entry.span, entry.unit.demand, entry.where, +1)
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
            self._learn((now - run.started) / run.unit.expected)

    def run(self, unit: Unit, where: Assignment, now: float) -> None:
        """Report that a unit runs which this book did not start."""
        self.advance(now)
        self.waiting.pop(unit.name, None)
        self._begin(WaitingUnit(unit, unit.expected * self.stretch, now, where), now, reserved=False)
        self._conflict = self._conflict or Reason.HIGHER_PRIORITY

    def change_capacity(self, row: int, amounts: Ints, now: float) -> None:
        """Set what a node offers when empty: zero for a node that is lost or cordoned."""
        self.advance(now)
        delta = amounts.astype(np.int64) - self.capacity[:, row]
        self.capacity[:, row] += delta
        self.free[:, row] += delta
        for profile in self._profiles():
            profile.change_node(row, delta)
        if (delta < 0).any():
            self._conflict = Reason.NODE_LOST
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
        if self._conflict is not None:
            self._resolve(self._conflict)
            self._conflict = None
        changed = self._freed or bool(self._new)
        if self.settings.backfill in (Backfill.NONE, Backfill.STRICT):
            self._start_in_order(out)
            return out
        self._insert_new(out)
        self._credit = min(self._credit + self.settings.work_per_event, 50 * self.settings.work_per_event)
        self._start_due(out)
        if changed and self.waiting and self.free.any():
            self._improve(out)
        self._freed = False
        if not self.waiting:
            self.plan = self.base
        self._promise(out)
        return out

    def next_wake(self) -> float:
        """Return when `decide` has to be called again if nothing happens before."""
        times = [self._due[0][0]] if self._due else []
        times += [entry.start for entry in self.waiting.values() if entry.where is not None]
        times += [entry.promise for entry in self.waiting.values() if entry.promise is not None]
        return min((t for t in times if t > self.now), default=FOREVER)

    def reservations(self) -> Iterable[Reservation]:
        """Return what every waiting unit holds, in order."""
        for entry in sorted(self.waiting.values(), key=lambda e: e.unit.order):
            if entry.where is not None:
                yield Reservation(
                    entry.unit.name,
                    entry.unit.demand,
                    entry.where,
                    entry.start,
                    entry.start + entry.span,
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
        unit, where = entry.unit, entry.where
        self.base.change(now, now + entry.span, unit.demand, where, -1)
        if self.plan is self.base:
            pass
        elif not reserved:
            self.plan.change(now, now + entry.span, unit.demand, where, -1)
        elif entry.start < now:  # its reservation ends earlier than the unit is now expected to
            self.plan.change(entry.start + entry.span, now + entry.span, unit.demand, where, -1)
        self._take(where, unit, +1)
        self.running[unit.name] = Running(unit, where, now, now + entry.span)
        if entry.span != FOREVER:
            heapq.heappush(self._due, (now + entry.span, unit.name))

    def _start_due(self, out: Decisions) -> None:
        due = [entry for entry in self.waiting.values() if entry.where is not None and entry.start <= self.now]
        for entry in sorted(due, key=lambda e: e.unit.order):
            if self._fits_now(entry):
                self._start(entry, out)

    def _start_in_order(self, out: Decisions) -> None:
        """Start what fits in order, without reservations; with STRICT the first that does not fit stops the rest."""
        self._new, self._freed = [], False
        for entry in sorted(self.waiting.values(), key=lambda e: e.unit.order):
            where = self.base.fits(entry.unit.demand, self.now, self.now) if self._could_fit(entry) else None
            if where is not None:
                entry.start, entry.where = self.now, where
                self._start(entry, out, reserved=False)
            elif self.settings.backfill is Backfill.STRICT:
                return

    def _start(self, entry: WaitingUnit, out: Decisions, *, reserved: bool = True) -> None:
        assert entry.where is not None
        del self.waiting[entry.unit.name]
        self._begin(entry, self.now, reserved=reserved)
        out.starts.append(Start(entry.unit.name, entry.where, entry.overtaken))
        for other in self.waiting.values():
            other.overtaken += other.unit.order < entry.unit.order

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
        new, self._new = sorted(self._new, key=lambda e: e.unit.order), []
        if not new:
            return
        old = len(self.waiting) - len(new)
        if old and new[0].unit.priority > min(e.unit.priority for e in self.waiting.values()):
            self._resolve(Reason.HIGHER_PRIORITY)
            return
        for entry in new:
            where = self.plan.fits(entry.unit.demand, self.now, self.now + entry.span)
            if where is not None:
                entry.start, entry.where = self.now, where
                self._start(entry, out, reserved=False)
            else:
                self._reserve(entry)

    def _reserve(self, entry: WaitingUnit) -> None:
        self.searches += 1
        place = self.plan.earliest(entry.unit.demand, entry.span, self.now)
        if place is None:
            entry.start, entry.where = FOREVER, None
            return
        entry.start, entry.where = place
        if self.plan is self.base:
            self.plan = self.base.copy()
        self.plan.change(entry.start, entry.start + entry.span, entry.unit.demand, entry.where, -1)

    def _resolve(self, reason: Reason) -> None:
        """Repair the plan after room was lost: by priority and promise, each keeps its reservation or gets another."""
        self.plan = self.base.copy()
        order = sorted(
            self.waiting.values(),
            key=lambda e: (-e.unit.priority, FOREVER if e.promise is None else e.promise, *e.unit.order),
        )
        for entry in order:
            until = entry.start + entry.span
            if entry.where is not None and self.plan.holds(entry.unit.demand, entry.where, entry.start, until):
                self.plan.change(entry.start, until, entry.unit.demand, entry.where, -1)
                continue
            before = entry.start
            self._reserve(entry)
            if entry.start > before:
                entry.why_moved = reason

    def _improve(self, out: Decisions) -> None:
        """Build a better plan if the work is paid for; otherwise start only what fits beside the present one."""
        settings = self.settings
        cost = 1 + self.base.n * self.free.shape[1] // CELLS_PER_SEARCH
        if self._credit < cost * min(len(self.waiting), settings.depth):
            self._start_beside(out, cost)
            return
        order = sorted(self.waiting.values(), key=lambda e: rank(e, self.now, settings))
        plan, searches = build(self.base, self.now, order, settings)
        self._credit -= searches * cost
        self.searches += searches
        if plan is None:
            self._start_beside(out, cost)
            return
        self.plan = plan.profile
        for entry in order:
            place = plan.places[entry.unit.name]
            entry.start, entry.where = place if place is not None else (FOREVER, None)
        self._start_due(out)

    def _start_beside(self, out: Decisions, cost: int) -> None:
        """Start units that fit now without delaying any reservation."""
        possible = [entry for entry in self.waiting.values() if self._could_fit(entry)]
        possible.sort(key=lambda e: rank(e, self.now, self.settings))
        failed: dict[tuple[tuple[int, ...], int], list[tuple[int, float]]] = {}  # shapes that do not fit now
        tries = max(LEAST_BESIDE, self._credit // cost)
        for entry in possible:
            if tries <= 0:
                break
            demand = entry.unit.demand
            known = failed.setdefault((demand.request, demand.level), [])
            if any(pods <= demand.pods and span <= entry.span for pods, span in known) or not self._could_fit(entry):
                continue
            if not self.plan.has_slots_now(demand):
                known.append((demand.pods, 0.0))
                continue
            if entry.where is not None:
                self.plan.change(entry.start, entry.start + entry.span, demand, entry.where, +1)
            where = self.plan.fits(demand, self.now, self.now + entry.span)
            self.searches += 1
            tries -= 1
            self._credit -= cost
            if where is not None:
                entry.start, entry.where = self.now, where
                self._start(entry, out, reserved=False)
            else:
                known.append((demand.pods, entry.span))
                if entry.where is not None:
                    self.plan.change(entry.start, entry.start + entry.span, demand, entry.where, -1)

    def _could_fit(self, entry: WaitingUnit) -> bool:
        demand = entry.unit.demand
        return all(int(self.free[r].sum()) >= demand.pods * amount for r, amount in enumerate(demand.request) if amount)

    # ---- promises

    def _promise(self, out: Decisions) -> None:
        """Promise a start to units that have none; move a promise only when it is about to be broken."""
        for entry in self.waiting.values():
            if entry.where is None:
                if entry.promise is not None:
                    reason = entry.why_moved or Reason.NODE_LOST
                    out.promises.append(StartPromise(entry.unit.name, FOREVER, None, reason, entry.promise))
                    entry.promise = None
                continue
            if entry.promise is None:
                entry.promise = entry.start + self._slack(entry)
                out.promises.append(StartPromise(entry.unit.name, entry.promise, entry.where))
            elif entry.promise <= self.now and entry.start > entry.promise:
                moved, entry.promise = entry.promise, self._later(entry)
                entry.moves += 1
                reason = entry.why_moved or Reason.OVERRAN
                out.promises.append(StartPromise(entry.unit.name, entry.promise, entry.where, reason, moved))

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
            run.overran = True
            for profile in self._profiles():
                profile.change(self.now, self.now + more, run.unit.demand, run.where, -1)
            run.until = self.now + more
            heapq.heappush(self._due, (run.until, name))
            self._conflict = self._conflict or Reason.OVERRAN

    def _learn(self, ratio: float) -> None:
        """Stretch expected durations when finished units show that they are too short."""
        self._ratios.append(ratio)
        self._endings += 1
        if self._endings % FINISHED_NEEDED:
            return
        ratios = np.fromiter(self._ratios, dtype=np.float64)
        if float((ratios > 1.0 + 1e-9).mean()) <= OVERRUNS_IGNORED:
            self.stretch = 1.0
        else:
            self.stretch = max(1.0, float(np.quantile(ratios, self.settings.overrun_quantile)))

    # ---- checks

    def validate(self) -> None:
        """Raise AssertionError if the tables contradict each other."""
        self.base.check()
        again = self.base.copy()
        for entry in self.waiting.values():
            if entry.where is not None:
                again.change(entry.start, entry.start + entry.span, entry.unit.demand, entry.where, -1)
        again.check()
        assert (self.free >= 0).all(), "a node is over-committed now"
        assert not set(self.waiting) & set(self.running), "a unit waits and runs"
        for at in self.plan.times.tolist():
            assert (again.least(at, at) == self.plan.least(at, at)).all(), f"the plan differs at {at}"
