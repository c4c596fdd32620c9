"""Victims for a group whose members are tied to each other, or hindered by rules that reach beyond a node.

Only the filters can decide whether a set of victims is sufficient. So sets are tested in the one order:
first those that the search without such rules found (none can be cheaper, so what holds is proved at once), then what
is left when everything is taken away and put back as far as possible, then every set between the two, the cheapest
first. Where the budget ends, or the filters' own search does, the plan says how far the proof goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from phalanx.engine.framework.adapters import RowFilter
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.framework.options import affects_other_nodes_of
from phalanx.engine.groups.outcomes import assignment_of
from phalanx.engine.groups.preemption_problem import Stage
from phalanx.engine.groups.trial import Assignment, SequentialTrial, holds
from phalanx.engine.placement.outcome import SearchVerdict
from phalanx.engine.preemption.cost import ORDER, PROVABLE, Cost, Key, cost_from, cost_of, proved_parts, rung
from phalanx.engine.preemption.feasibility import Feasibility
from phalanx.engine.preemption.filtered_row import BestFirstSets, Chosen
from phalanx.engine.preemption.problem import PreemptionProblem
from phalanx.engine.preemption.result import Plan, Planned, Victim
from phalanx.engine.preemption.row_filters import RowFilters
from phalanx.engine.preemption.victim_index import EvictionUnit, VictimIndex
from phalanx.engine.slices import worked

INFINITE = float("inf")
WHY = "while it stays the pods' rules about each other are not kept"
SETS = 4  # that are priced, per expansion of the planner's budget
ASKED = 8  # expansions of that budget, to ask the filters about one set
MOST_OFF = 1_500  # pods that are taken off their nodes at a time, and as many that rules look at, if that will do
OFF = 4  # of work, to take eight pods off their nodes and put them back
ASK, ROWS_PER_STEP = 100, 4  # of work, to ask the filters about one set; and nodes that are one more
LOOKED = 4  # pods at which the rules are asked whether they look, in one step of work
BACK = 20  # of work, to ask the filters about one member
FEW_DOMAINS = 8  # of a topology key: each is looked at by itself
PATIENCE = 8  # part of the budget of a search by the filters, where many sets are asked


class Tied(msgspec.Struct, frozen=True, eq=False):
    plan: Plan
    units: tuple[EvictionUnit, ...]
    assignment: tuple[Any, ...]


class _Found(msgspec.Struct, frozen=True, eq=False):
    key: Key
    evicted: frozenset[int]
    assignment: Assignment


class ConstrainedPreemption:
    def __init__(
        self, state: ClusterState, victim_index: VictimIndex, still: Callable[[Sequence[EvictionUnit]], None]
    ) -> None:
        """`still`: raises Disturbed where one of these units is gone."""
        self._cluster = state
        self._victim_index = victim_index
        self._still = still

    def run(self, stage: Stage, relaxed: PreemptionProblem, least: Planned, counted: Planned) -> Tied | None:
        """Return the cheapest plan that the cross-node constraints allow; None if no set of victims was found.

        `relaxed`: the problem without these constraints, and `least` its plan; `counted`: the plan with the constraints
        as they are now.
        """
        self._stage = stage
        self._units = stage.problem.units
        self._fitting = Feasibility(relaxed)
        self._asked = 0
        self._budget = stage.problem.budget
        self._relevant_pods: frozenset[int] = frozenset()  # see `_units_matched_by_rules`
        self._no_further_plan = False
        self._doubts: Key | None = None  # the cheapest set of which the filters' search could not say
        bound = least.lower_bound if isinstance(least, Plan) else Cost()
        floor = bound.key()[:PROVABLE]
        best = self._cheapest_valid_plan(least, counted) or self._put_back()
        if not self._no_further_plan and (best is None or best.key[:PROVABLE] > floor):
            best, floor = self._cheapest(best and self._spared(best), floor)
        return None if best is None else self._tied(best, floor)

    def _tied(self, best: _Found, floor: Key) -> Tied:
        units = self._units
        cost = cost_of(units, best.evicted)
        lower, proved = cost_from(floor), proved_parts(best.key, floor)
        victims = tuple(
            Victim(u, units.names[u], int(units.pods[u]), int(units.priority[u]), WHY) for u in sorted(best.evicted)
        )
        plan = Plan(self._stage.problem, victims, None, cost, lower, proved, self._asked)
        return Tied(plan, tuple(self._stage.units[u] for u in sorted(best.evicted)), tuple(best.assignment))

    # ---- one set

    def _price(self, chosen: Chosen) -> Key:
        return cost_of(self._units, chosen).key()

    @contextmanager
    def _without(self, units: Sequence[EvictionUnit]) -> Iterator[dict[str, int]]:
        """Remove units in a trial and return where they were. An interrupted trial would cost as much again."""
        worked(OFF * sum(len(unit.pods) for unit in units) // 8)
        self._still(units)
        with self._victim_index.without(units) as home:
            yield home

    def _ask(self, evicted: frozenset[int], part: int = PATIENCE) -> _Found | None:
        """Return where the filters allow members once these units are gone."""
        self._asked += 1
        worked(ASK + self._cluster.columns.n // ROWS_PER_STEP)
        with self._without([self._stage.units[u] for u in sorted(evicted)]):
            careful = SequentialTrial(self._cluster, self._stage.tree(self._stage.built.problem.budget // part))
            assignment = careful.run()
        key = self._price(tuple(sorted(evicted)))
        if assignment:
            return _Found(key, evicted, assignment)
        if careful.exhausted:
            self._doubts = key[:PROVABLE] if self._doubts is None else min(self._doubts, key[:PROVABLE])
        return None

    # ---- something that will do

    def _cheapest_valid_plan(self, *plans: Planned) -> _Found | None:
        """Return the cheapest of these plans whose victims are enough, perhaps with another assignment."""
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
        """Return the plan with the assignment that counting gave, if the filters agree."""
        assert plan.placement is not None
        assignment = assignment_of(self._stage.built, plan.placement, origin=self._stage.origin)
        with self._without([self._stage.units[u] for u in sorted(evicted)]):
            return _Found(key, evicted, assignment) if holds(self._cluster, assignment) else None

    def _put_back(self) -> _Found | None:
        """Place the members with as few victims as possible, then reprieve victims in descending cost. If that opens
        several domains, or a costly one, another domain may need less: each is tried by itself."""
        self._relevant_pods = self._units_matched_by_rules()
        for some in self._enough():
            found = self._ask(some, 1)
            if found is not None:
                best = self._reprieve(self._lowered(found))
                for domain in self._domains(some):
                    inside = self._ask(domain)
                    if inside is not None:
                        best = min(best, self._reprieve(self._lowered(inside)), key=lambda each: each.key)
                return best
        return None

    def _lowered(self, found: _Found) -> _Found:
        """Keep the units that cost more in what matters most, if evicting the others suffices."""
        rungs = {u: rung(self._victim_index.unit_cost(self._stage.units[u])) for u in found.evicted}
        ladder = sorted(set(rungs.values()))
        below, enough = -1, len(ladder) - 1
        while enough - below > 1:
            middle = (below + enough) // 2
            better = self._ask(frozenset(u for u in rungs if rungs[u] <= ladder[middle]))
            if better is not None:
                enough, found = middle, better
            else:
                below = middle
        return found

    def _domains(self, some: frozenset[int]) -> Iterator[frozenset[int]]:
        """Yield, for each domain of the members' anti-affinity keys, the victims without the relevant pods of other
        domains; nothing where there are many domains."""
        columns, units = self._cluster.columns, self._stage.units
        away = [shape.anti_affinity.required or () for shape in self._stage.built.shapes if shape.anti_affinity]
        relevant_pods = some & self._relevant_pods
        for key in sorted({term.topology_key for terms in away for term in terms}):
            ids = columns.label(key).ids[: columns.n]
            domains = np.unique(ids[ids > 0])
            for domain in domains.tolist() if 1 < len(domains) <= FEW_DOMAINS else ():
                outside = {
                    u for u in relevant_pods if not any(ids[pod.row] == domain for pod in units[u].pods.values())
                }
                if outside:
                    yield some - outside

    def _enough(self) -> Iterator[frozenset[int]]:
        """Yield candidate sets: the least costly units, at most MOST_OFF pods plus as many pods matched by cross-node
        constraints; then all units, which takes long in a large cluster."""
        units = self._stage.units
        few: list[int] = []
        off = {True: 0, False: 0}  # pods, by whether they are minded
        for number, unit in enumerate(units):
            relevant_pods = number in self._relevant_pods
            if off[relevant_pods] < MOST_OFF:
                few.append(number)
                off[relevant_pods] += len(unit.pods)
        if few:
            yield frozenset(few)
        if len(few) < len(units):
            self._no_further_plan = off[True] < MOST_OFF and self._shut_out()
            if not self._no_further_plan:
                yield frozenset(range(len(units)))

    def _shut_out(self) -> bool:
        """Return True if no victim set can make the group feasible: monotone rules leave too little room even without
        all pods that they match, and with members that do not affect each other."""
        evaluations = self._stage.built.evaluations
        if not all(RowFilters(evaluation, evaluation.filters).monotone for evaluation in evaluations):
            return False
        relaxed = self._fitting.problem
        shapes = []
        with self._without([self._stage.units[u] for u in sorted(self._relevant_pods)]):
            for row, evaluation in zip(relaxed.placement.shapes, evaluations, strict=True):
                evaluation.refresh()
                mask = row.mask.copy()
                for _, tracker in evaluation.filters:
                    if not isinstance(tracker, RowFilter):
                        mask &= tracker.mask[: len(mask)]
                shapes.append(replace(row, mask=mask))
        fitting = Feasibility(replace(relaxed, placement=replace(relaxed.placement, shapes=shapes)))
        return fitting.outcome(range(len(self._units))).verdict is SearchVerdict.IMPOSSIBLE

    def _units_matched_by_rules(self) -> frozenset[int]:
        """Return the units that a cross-node constraint matches. The others only matter on their own nodes."""
        rules = [
            affects_other_nodes_of(tracker)
            for evaluation in self._stage.built.evaluations
            for _, tracker in evaluation.filters
            if not isinstance(tracker, RowFilter)
        ]
        found: list[int] = []
        for number, unit in enumerate(self._stage.units):
            worked(number % LOOKED == 0)
            if any(affects(pod) for pod in unit.pods.values() for affects in rules):
                found.append(number)
        return frozenset(found)

    def _reprieve(self, found: _Found) -> _Found:
        """Reprieve victims in descending cost while the placement holds. Most are on nodes that no member takes and no
        rule matches them: they are reprieved without asking the filters."""
        rows = {row for _, row in found.assignment}
        units, some = [], []
        for number in sorted(found.evicted):
            unit = self._stage.units[number]
            units.append(unit)
            if number in self._relevant_pods or any(pod.row in rows for pod in unit.pods.values()):
                some.append(unit)
        with self._without(some):
            if holds(self._cluster, found.assignment):
                units = some
        with self._without(units) as home:
            most_costly_first = sorted(units, key=self._victim_index.unit_cost, reverse=True)
            victims = self._not_reprievable(most_costly_first, home, found.assignment)
        numbers = {unit.key: number for number, unit in enumerate(self._stage.units)}
        evicted = frozenset(numbers[unit.key] for unit in victims)
        return _Found(self._price(tuple(sorted(evicted))), evicted, found.assignment)

    def _not_reprievable(
        self, units: Sequence[EvictionUnit], home: dict[str, int], assignment: Assignment
    ) -> list[EvictionUnit]:
        """Return the units that cannot be reprieved next to the ones before them; by bisection, since most can."""
        if not units or self._back(units, home, assignment):
            return []
        if len(units) == 1:
            return list(units)
        half = len(units) // 2
        return [part for two in (units[:half], units[half:]) for part in self._not_reprievable(two, home, assignment)]

    def _back(self, units: Sequence[EvictionUnit], home: dict[str, int], assignment: Assignment) -> bool:
        columns = self._cluster.columns
        worked(BACK * len(assignment) + len(units) // 2)
        inner = columns.journal.mark()
        columns.place_all([(pod, home[pod.key]) for unit in units for pod in unit.pods.values()])
        if holds(self._cluster, assignment):
            columns.journal.release(inner)
            return True
        columns.journal.rewind(inner)
        return False

    def _spared(self, found: _Found) -> _Found:
        """Drop victims that become unnecessary under another placement, in descending cost."""
        unit_cost = self._victim_index.unit_cost
        for unit in sorted(found.evicted, key=lambda u: unit_cost(self._stage.units[u]), reverse=True):
            if self._asked * ASKED >= self._budget:
                break
            without = self._ask(found.evicted - {unit})
            if without is not None:
                found = without
        return found

    # ---- nothing cheaper will do

    def _cheapest(self, best: _Found | None, floor: Key) -> tuple[_Found | None, Key]:
        """Search the cheapest set within the budget; return it with the lower bound of every set.

        Also without a known set: pods that the members need near them may be among the victims.
        """
        ceiling = best.key if best is not None else (INFINITE,) * len(ORDER)
        sets = BestFirstSets(len(self._units), self._price, ceiling, self._budget * SETS)
        self._doubts = None
        for key, chosen in sets:
            if key[:PROVABLE] < floor:
                continue  # proved already
            if self._asked * ASKED >= self._budget:
                return best, max(floor, min(key[:PROVABLE], self._doubts or key[:PROVABLE]))
            evicted = frozenset(chosen)
            if self._fitting.outcome(evicted).verdict is SearchVerdict.IMPOSSIBLE:
                continue
            found = self._ask(evicted)
            if found is not None:
                best, ceiling = found, found.key
                break
        reached = sets.floor if sets.cut else ceiling[:PROVABLE]
        return best, max(floor, min(reached, self._doubts or reached))
