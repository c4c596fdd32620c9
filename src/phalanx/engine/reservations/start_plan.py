"""Plan all waiting units: which starts now, which later, so that every promised start is kept.

A plan is built by list scheduling: units are taken in order, each gets the earliest room that delays none before it.
If that makes a unit later than promised, the unit keeps its present reservation and the plan is built again around it.
The present plan keeps all promises, so the process ends at the latest when every unit keeps its reservation.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.engine.reservations.capacity import CapacityProfile
from phalanx.engine.reservations.reservation import FOREVER, Assignment, PodDemand
from phalanx.engine.reservations.units import Backfill, PlanSettings, WaitingUnit

Place = tuple[float, float, Assignment]  # from, until, where
KEPT_PER_SEARCH = 3  # reservations that are taken over at the cost of one search
TRIES = 5  # plans that are built before the present one is kept


def by_promise(entry: WaitingUnit) -> tuple[float, ...]:
    """Return the place in the order in which promises are kept."""
    return (-entry.unit.priority, FOREVER if entry.promise is None else entry.promise, *entry.unit.order)


class StartPlan:
    """A trial plan: reservations for waiting units on top of what runs."""

    def __init__(self, base: CapacityProfile, now: float) -> None:
        self.profile = base.copy()
        self.now = now
        self.places: dict[str, Place | None] = {}
        self.searches = 0
        self.kept = 0  # reservations that were taken over or looked at: cheaper than a search
        self._failed: dict[PodDemand, list[tuple[int, float]]] = {}  # (pods, span) that cannot start

    def put(self, entry: WaitingUnit, place: Place | None) -> None:
        self.places[entry.unit.name] = place
        if place is not None:
            self.profile.change(place[0], place[1], entry.unit.demand, place[2], -1)

    def keep(self, entry: WaitingUnit) -> None:
        """Take over the present reservation."""
        self.kept += 1
        self.put(entry, None if entry.where is None else (entry.start, entry.until, entry.where))

    def earliest(self, entry: WaitingUnit) -> Place | None:
        self.searches += 1
        found = self.profile.earliest(entry.unit.demand, entry.span, self.now)
        return None if found is None else (found[0], self.profile.until(found[0], entry.span), found[1])

    def at_once(self, entry: WaitingUnit) -> Place | None:
        """Return a place from now on. What failed before fails again: room is only taken while a plan is built."""
        self.searches += 1
        demand, span = entry.unit.demand, entry.span
        failed = self._failed.setdefault(demand.pod, [])
        if any(pods <= demand.pods and seconds <= span for pods, seconds in failed):
            return None
        until = self.profile.until(self.now, span)
        where = self.profile.fits(demand, self.now, until)
        if where is not None:
            return (self.now, until, where)
        failed.append((demand.pods, span if self.profile.has_slots_now(demand) else 0.0))
        return None

    def still_free(self, entry: WaitingUnit) -> bool:
        """Return True if the present reservation fits into this plan."""
        return entry.where is not None and self.profile.holds(entry.unit.demand, entry.where, entry.start, entry.until)


def late(entry: WaitingUnit, place: Place | None) -> bool:
    """Return True if a place breaks the promise; a start that is late already must not become later."""
    if entry.promise is None or entry.where is None:
        return False
    return place is None or place[0] > max(entry.promise, entry.start)


def build(
    room: CapacityProfile, now: float, order: Sequence[WaitingUnit], settings: PlanSettings, whole: Sequence[int]
) -> tuple[StartPlan | None, int, int]:
    """Return a plan that keeps every promise (None: none was found within the tries), and the work it took:
    searches, and reservations that were kept as a number of searches of the smallest size.

    `room`: without what runs, and without what units that are not planned reserve. `order`: the units in order.
    `whole`: what the cluster has of every resource.
    """
    searches = kept_work = 0
    kept: set[str] = set()
    for _ in range(TRIES):
        plan = StartPlan(room, now)
        for entry in order:
            if entry.unit.name in kept:
                plan.keep(entry)
        rest = [e for e in order if e.unit.name not in kept]
        if settings.backfill is Backfill.EASY:
            missed = _plan_heads(plan, rest, settings, whole)
        else:
            missed = _plan_all(plan, rest)
        if not missed:
            _pull_forward(plan, [e for e in order if e.unit.name in kept])
        searches += plan.searches
        kept_work += plan.kept // KEPT_PER_SEARCH
        if not missed:
            return plan, searches, kept_work
        kept.update(missed)
    return None, searches, kept_work


def without(profile: CapacityProfile, units: Sequence[WaitingUnit]) -> CapacityProfile:
    """Return a copy of a profile without the reservations of some units."""
    room = profile.copy()
    for entry in units:
        if entry.where is not None:
            room.change(entry.start, entry.until, entry.unit.demand, entry.where, +1)
    return room


def _pull_forward(plan: StartPlan, kept: Sequence[WaitingUnit]) -> None:
    """Let every unit that kept its reservation start earlier if that delays no other."""
    for entry in kept:
        if entry.where is not None:
            plan.profile.change(entry.start, entry.until, entry.unit.demand, entry.where, +1)
        place = plan.earliest(entry)
        if entry.where is None or (place is not None and place[0] < entry.start):
            plan.put(entry, place)
        else:
            plan.keep(entry)


def _plan_all(plan: StartPlan, order: Sequence[WaitingUnit]) -> list[str]:
    for entry in order:
        place = plan.earliest(entry)
        if late(entry, place):
            return [entry.unit.name]
        plan.put(entry, place)
    return []


def _share(entry: WaitingUnit, whole: Sequence[int]) -> float:
    """Return the largest share of a resource of the cluster that a unit needs."""
    demand = entry.unit.demand
    return max((demand.pods * a / w for a, w in zip(demand.request, whole, strict=True) if a and w), default=0.0)


def _plan_heads(
    plan: StartPlan, order: Sequence[WaitingUnit], settings: PlanSettings, whole: Sequence[int]
) -> list[str]:
    """Plan the first units of each priority; the others start at once or stay protected by their promise.

    A unit confined to one topology domain blocks only that domain, so several of them are planned.
    """
    heads: dict[int, int] = {}
    held: dict[int, float] = {}  # priority -> share of the cluster that its heads hold
    missed: list[str] = []
    later: list[WaitingUnit] = []
    for entry in order:
        priority = entry.unit.priority
        confined = entry.unit.demand.level >= 0 and held.get(priority, 0.0) < settings.easy_fraction
        head = confined or heads.get(priority, 0) < settings.easy_depth
        place = plan.earliest(entry) if head else plan.at_once(entry)
        if place is None or (head and late(entry, place)):
            (missed.append(entry.unit.name) if head and entry.promise is not None else later.append(entry))
            continue
        if place[0] > plan.now:
            heads[priority] = heads.get(priority, 0) + 1
            held[priority] = held.get(priority, 0.0) + _share(entry, whole)
        plan.put(entry, place)
    if missed:
        return missed
    later.sort(key=lambda e: (-e.unit.priority, FOREVER if e.promise is None else e.promise, e.unit.index))
    for entry in later:
        if plan.still_free(entry):
            plan.keep(entry)
            continue
        place = plan.earliest(entry)
        if late(entry, place):
            missed.append(entry.unit.name)
        plan.put(entry, place)
    return missed
