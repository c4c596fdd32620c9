"""Victims for a group whose members are tied to each other, or hindered by rules that reach beyond a node.

Only the filters know whether a set of victims will do, and only asking them tells. So sets are asked in the one order:
first those that the search without such rules found (none can be cheaper, so what holds is proved at once), then what
is left when everything is taken away and put back as far as possible, then every set between the two, the cheapest
first. Where the budget ends, or the filters' own search does, the plan says how far the proof goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, takewhile
from typing import Any

import msgspec

from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.groups.outcomes import seats_of
from phalanx.engine.groups.staging import Stage
from phalanx.engine.groups.trial import Assignment, Careful, holds
from phalanx.engine.placement.outcome import SearchVerdict
from phalanx.engine.preemption.catalogue import Catalogue, Unit
from phalanx.engine.preemption.cost import ORDER, Cost, cost_of
from phalanx.engine.preemption.fitting import Fitting
from phalanx.engine.preemption.in_order import Chosen, InOrder
from phalanx.engine.preemption.problem import PreemptionProblem
from phalanx.engine.preemption.ranking import Key
from phalanx.engine.preemption.result import Plan, Planned, Victim
from phalanx.engine.slices import worked

INFINITE = float("inf")
WHY = "while it stays the pods' rules about each other are not kept"
SETS = 4  # that are priced, per expansion of the planner's budget
ASKED = 8  # expansions of that budget, to ask the filters about one set
MOST_OFF = 2_000  # pods that are taken off their nodes at a time, if that will do
BACK = 20  # of work, to ask the filters about one member
PATIENCE = 8  # part of the budget of a search by the filters, where many sets are asked


class Tied(msgspec.Struct, frozen=True, eq=False):
    plan: Plan
    units: tuple[Unit, ...]
    seats: tuple[Any, ...]


class _Found(msgspec.Struct, frozen=True, eq=False):
    key: Key
    evicted: frozenset[int]
    seats: Assignment


class TiedVictims:
    def __init__(self, state: ClusterState, catalogue: Catalogue, still: Callable[[Sequence[Unit]], None]) -> None:
        """`still`: raises Disturbed where one of these units is gone."""
        self._cluster = state
        self._catalogue = catalogue
        self._still = still

    def run(self, stage: Stage, relaxed: PreemptionProblem, least: Planned, counted: Planned) -> Tied | None:
        """`relaxed`: without the rules that reach beyond a node, and `least` its plan; `counted`: with them as things
        are now. None: no set of victims was found that will do."""
        self._stage = stage
        self._units = stage.problem.units
        self._order = stage.problem.order or ORDER
        self._fitting = Fitting(relaxed)
        self._asked = 0
        self._budget = stage.problem.budget
        self._doubts: Key | None = None  # the cheapest set of which the filters' search could not say
        bound = least.lower_bound if isinstance(least, Plan) else Cost()
        floor = bound.key(self._order)[:-1]
        best = self._reseated(least, counted) or self._put_back()
        if best is None or best.key[:-1] > floor:
            best, floor = self._cheapest(best and self._spared(best), floor)
        return None if best is None else self._tied(best, floor)

    def _tied(self, best: _Found, floor: Key) -> Tied:
        units = self._units
        cost = cost_of(units, best.evicted)
        lower = Cost(**dict(zip(self._order, (*floor, *([0] * 5)), strict=False)))  # type: ignore[arg-type]
        pairs = list(zip(self._order, best.key, floor, strict=False))
        proved = tuple(name for name, _, _ in takewhile(lambda each: each[1] == each[2], pairs))
        victims = tuple(
            Victim(u, units.names[u], int(units.pods[u]), int(units.priority[u]), WHY) for u in sorted(best.evicted)
        )
        plan = Plan(self._stage.problem, victims, None, cost, lower, proved, self._asked)
        return Tied(plan, tuple(self._stage.units[u] for u in sorted(best.evicted)), tuple(best.seats))

    # ---- one set

    def _price(self, chosen: Chosen) -> Key:
        return cost_of(self._units, chosen).key(self._order)

    def _ask(self, evicted: frozenset[int], part: int = PATIENCE) -> _Found | None:
        """Where members sit once these are gone, by the filters' own word."""
        units = [self._stage.units[u] for u in sorted(evicted)]
        self._still(units)
        self._asked += 1
        journal = self._cluster.columns.journal
        mark = journal.mark()
        try:
            clear(self._cluster, self._catalogue, units)
            careful = Careful(self._cluster, self._stage.tree(self._stage.built.problem.budget // part))
            seats = careful.run()
        finally:
            journal.rewind(mark)
        key = self._price(tuple(sorted(evicted)))
        if seats:
            return _Found(key, evicted, seats)
        if careful.exhausted:
            self._doubts = key[:-1] if self._doubts is None else min(self._doubts, key[:-1])
        return None

    # ---- something that will do

    def _reseated(self, *plans: Planned) -> _Found | None:
        """The cheapest of these plans whose victims suffice, though perhaps with other seats."""
        best: _Found | None = None
        for plan in plans:
            if not isinstance(plan, Plan):
                continue
            evicted = frozenset(victim.unit for victim in plan.victims)
            key = self._price(tuple(sorted(evicted)))
            if best is None or key < best.key:
                best = self._as_planned(plan, evicted, key) or self._ask(evicted) or best
        return best

    def _as_planned(self, plan: Plan, evicted: frozenset[int], key: Key) -> _Found | None:
        """With the seats that counting gave, if the filters agree."""
        assert plan.placement is not None
        seats = seats_of(self._stage.built, plan.placement, origin=self._stage.origin)
        units = [self._stage.units[u] for u in sorted(evicted)]
        self._still(units)
        journal = self._cluster.columns.journal
        mark = journal.mark()
        try:
            clear(self._cluster, self._catalogue, units)
            return _Found(key, evicted, seats) if holds(self._cluster, seats) else None
        finally:
            journal.rewind(mark)

    def _put_back(self) -> _Found | None:
        """The members in, on as little as it takes: what hurts more stays if the rest will do. Then back, dearest
        first, whoever the members leave room for."""
        pods = list(accumulate(len(unit.pods) for unit in self._stage.units))
        few = sum(count <= MOST_OFF for count in pods)
        found = None
        for count in dict.fromkeys((few, len(pods))):  # those that hurt least first; all of a large cluster take long
            found = self._ask(frozenset(range(count)), 1) if count else None
            if found is not None:
                break
        if found is None:
            return None
        hurt = {u: self._catalogue.hurt(self._stage.units[u]) for u in found.evicted}
        ladder = sorted({_rung(key) for key in hurt.values()})
        below, enough = -1, len(ladder) - 1
        while enough - below > 1:
            middle = (below + enough) // 2
            better = self._ask(frozenset(u for u in hurt if _rung(hurt[u]) <= ladder[middle]))
            if better is not None:
                enough, found = middle, better
            else:
                below = middle
        return self._without(self._without_those_far_away(found), found.seats)

    def _without_those_far_away(self, found: _Found) -> list[Unit]:
        """At first by the nodes that the members take: most units have nothing to do with them."""
        units = [self._stage.units[u] for u in sorted(found.evicted)]
        rows = {row for _, row in found.seats}
        near = [unit for unit in units if any(pod.row in rows for pod in unit.pods.values())]
        self._still(units)
        journal = self._cluster.columns.journal
        mark = journal.mark()
        try:
            clear(self._cluster, self._catalogue, near)
            return near if holds(self._cluster, found.seats) else units
        finally:
            journal.rewind(mark)

    def _without(self, units: list[Unit], seats: Assignment) -> _Found:
        """Back, the dearest first, whoever is in nobody's way."""
        self._still(units)
        journal = self._cluster.columns.journal
        mark = journal.mark()
        try:
            home = clear(self._cluster, self._catalogue, units)
            dearest_first = sorted(units, key=self._catalogue.hurt, reverse=True)
            victims = self._unsparable(dearest_first, home, seats)
        finally:
            journal.rewind(mark)
        numbers = {unit.key: number for number, unit in enumerate(self._stage.units)}
        evicted = frozenset(numbers[unit.key] for unit in victims)
        return _Found(self._price(tuple(sorted(evicted))), evicted, seats)

    def _unsparable(self, units: Sequence[Unit], home: dict[str, int], seats: Assignment) -> list[Unit]:
        """Those that cannot come back beside the ones before them; found by halves, since most of many can."""
        if not units or self._back(units, home, seats):
            return []
        if len(units) == 1:
            return list(units)
        half = len(units) // 2
        return [part for two in (units[:half], units[half:]) for part in self._unsparable(two, home, seats)]

    def _back(self, units: Sequence[Unit], home: dict[str, int], seats: Assignment) -> bool:
        columns = self._cluster.columns
        worked(BACK * len(seats) + len(units) // 2)
        inner = columns.journal.mark()
        for unit in units:
            for pod in unit.pods.values():
                columns.place(pod, home[pod.key])
        if holds(self._cluster, seats):
            columns.journal.release(inner)
            return True
        columns.journal.rewind(inner)
        return False

    def _spared(self, found: _Found) -> _Found:
        """Nobody goes in vain: whoever can stay if the members sit elsewhere does, the dearest first."""
        hurt = self._catalogue.hurt
        for unit in sorted(found.evicted, key=lambda u: hurt(self._stage.units[u]), reverse=True):
            if self._asked * ASKED >= self._budget:
                break
            without = self._ask(found.evicted - {unit})
            if without is not None:
                found = without
        return found

    # ---- nothing cheaper will do

    def _cheapest(self, best: _Found | None, floor: Key) -> tuple[_Found | None, Key]:
        """The cheapest set there is, as far as the budget goes, and what no set costs less than. Without a known one,
        too: the company that members want may be among those who could go."""
        ceiling = best.key if best is not None else (INFINITE,) * len(self._order)
        sets = InOrder(len(self._units), self._price, ceiling, self._budget * SETS)
        self._doubts = None
        for key, chosen in sets:
            if key[:-1] < floor:
                continue  # proved already
            if self._asked * ASKED >= self._budget:
                return best, max(floor, min(key[:-1], self._doubts or key[:-1]))
            evicted = frozenset(chosen)
            if self._fitting.outcome(evicted).verdict is SearchVerdict.IMPOSSIBLE:
                continue
            found = self._ask(evicted)
            if found is not None:
                best, ceiling = found, found.key
                break
        reached = sets.floor if sets.cut else ceiling[:-1]
        return best, max(floor, min(reached, self._doubts or reached))


def clear(state: ClusterState, catalogue: Catalogue, units: Sequence[Unit]) -> dict[str, int]:
    """Takes units, and pods that are leaving, off their nodes; where the former were."""
    columns = state.columns
    home: dict[str, int] = {}
    for unit in units:
        for pod in unit.pods.values():
            home[pod.key] = pod.row
            columns.unplace(pod)
    for leaving in catalogue.leaving.values():
        for pod in list(leaving.values()):
            columns.unplace(pod)
    return home


def _rung(hurt: tuple[Any, ...]) -> tuple[int, int]:
    """(violations of budgets, priority): what matters more than how many go."""
    return (hurt[0], hurt[2])
