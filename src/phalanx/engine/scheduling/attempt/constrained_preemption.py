"""Choose victims for a group whose pods have cross-node constraints (affinity, spreading, volumes).

Only the filters can decide whether a set of victims is sufficient. Sets are tested in this order: first the sets that
the search without constraints found (no other set is cheaper, so a feasible one is optimal); then the victims that
remain after removing all candidates and reprieving as many as possible; then every set between the two in ascending
cost. If a budget ends, the plan reports how far its cost is proven.
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
from phalanx.engine.preemption.cost import (
    ORDER,
    PROVABLE,
    Cost,
    Key,
    cost_before_counts,
    cost_from,
    cost_of,
    proved_parts,
)
from phalanx.engine.preemption.feasibility import Feasibility
from phalanx.engine.preemption.filtered_row import BestFirstSets, Chosen
from phalanx.engine.preemption.problem import PreemptionProblem
from phalanx.engine.preemption.result import Plan, Planned, Victim
from phalanx.engine.preemption.row_filters import RowFilters
from phalanx.engine.preemption.victim_index import EvictionUnit, VictimIndex
from phalanx.engine.slices import worked

INFINITE = float("inf")
WHY = "while it stays the pods' rules about each other are not kept"
SETS_PER_EXPANSION = 4  # sets whose cost is computed, per expansion of the planner's budget
EXPANSIONS_PER_CHECK = 8  # expansions of that budget for one feasibility check of a set
MAX_REMOVED_PODS = 1_500  # candidate victims per trial, plus as many pods matched by constraints, if they suffice
REMOVAL_WORK = 4  # units of work to remove eight pods from their nodes and restore them
CHECK_WORK, ROWS_PER_STEP = 100, 4  # units of work for one check of a set; one more per ROWS_PER_STEP nodes
PODS_PER_WORK_UNIT = 4  # pods matched against the constraints with one unit of work
MEMBER_WORK = 20  # units of work to check one member
FEW_DOMAINS = 8  # domains of a topology key up to which each is tried separately
BUDGET_DIVISOR = 8  # divisor of a search's budget where many sets are checked


class ConstrainedPlan(msgspec.Struct, frozen=True, eq=False):
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
        """`still`: raises Disturbed if one of these units is gone."""
        self._cluster = state
        self._victim_index = victim_index
        self._still = still

    def run(self, stage: Stage, relaxed: PreemptionProblem, least: Planned, counted: Planned) -> ConstrainedPlan | None:
        """Return the cheapest plan that satisfies the cross-node constraints; None if no set of victims was found.

        `relaxed`: the problem without constraints; `least`: its plan; `counted`: the plan with the present constraints.
        """
        self._stage = stage
        self._units = stage.problem.units
        self._fitting = Feasibility(relaxed)
        self._checks = 0
        self._budget = stage.problem.budget
        self._relevant_pods: frozenset[int] = frozenset()  # see `_units_matched_by_rules`
        self._no_further_plan = False
        self._cheapest_undecided: Key | None = (
            None  # cheapest set for which the search of the filters ended without a result
        )
        bound = least.lower_bound if isinstance(least, Plan) else Cost()
        floor = bound.key()[:PROVABLE]
        best = self._cheapest_valid_plan(least, counted) or self._remove_and_reprieve()
        if not self._no_further_plan and (best is None or best.key[:PROVABLE] > floor):
            best, floor = self._cheapest(best and self._drop_unneeded_victims(best), floor)
        return None if best is None else self._plan_from(best, floor)

    def _plan_from(self, best: _Found, floor: Key) -> ConstrainedPlan:
        units = self._units
        cost = cost_of(units, best.evicted)
        lower, proved = cost_from(floor), proved_parts(best.key, floor)
        victims = tuple(
            Victim(u, units.names[u], int(units.pods[u]), int(units.priority[u]), WHY) for u in sorted(best.evicted)
        )
        plan = Plan(self._stage.problem, victims, None, cost, lower, proved, self._checks)
        return ConstrainedPlan(plan, tuple(self._stage.units[u] for u in sorted(best.evicted)), tuple(best.assignment))

    # ---- one set

    def _cost(self, chosen: Chosen) -> Key:
        return cost_of(self._units, chosen).key()

    @contextmanager
    def _without(self, units: Sequence[EvictionUnit]) -> Iterator[dict[str, int]]:
        """Remove units in a trial and return their nodes. Work is counted before, so that the trial is not paused."""
        worked(REMOVAL_WORK * sum(len(unit.pods) for unit in units) // 8)
        self._still(units)
        with self._victim_index.without(units) as nodes:
            yield nodes

    def _place_without(self, evicted: frozenset[int], part: int = BUDGET_DIVISOR) -> _Found | None:
        """Return the placement that the filters allow without these units."""
        self._checks += 1
        worked(CHECK_WORK + self._cluster.columns.n // ROWS_PER_STEP)
        with self._without([self._stage.units[u] for u in sorted(evicted)]):
            trial = SequentialTrial(self._cluster, self._stage.tree(self._stage.built.problem.budget // part))
            assignment = trial.run()
        key = self._cost(tuple(sorted(evicted)))
        if assignment:
            return _Found(key, evicted, assignment)
        if trial.exhausted:
            self._cheapest_undecided = (
                key[:PROVABLE] if self._cheapest_undecided is None else min(self._cheapest_undecided, key[:PROVABLE])
            )
        return None

    # ---- find a sufficient set

    def _cheapest_valid_plan(self, *plans: Planned) -> _Found | None:
        """Return the cheapest of these plans whose victims are sufficient, perhaps with another assignment."""
        best: _Found | None = None
        for plan in plans:
            if not isinstance(plan, Plan):
                continue
            evicted = frozenset(victim.unit for victim in plan.victims)
            key = self._cost(tuple(sorted(evicted)))
            if best is None or key < best.key:
                best = self._as_planned(plan, evicted, key) or self._place_without(evicted) or best
        return best

    def _as_planned(self, plan: Plan, evicted: frozenset[int], key: Key) -> _Found | None:
        """Return the plan with its own assignment if the filters accept it."""
        assert plan.placement is not None
        assignment = assignment_of(self._stage.built, plan.placement, origin=self._stage.origin)
        with self._without([self._stage.units[u] for u in sorted(evicted)]):
            return _Found(key, evicted, assignment) if holds(self._cluster, assignment) else None

    def _remove_and_reprieve(self) -> _Found | None:
        """Place the members with as few victims as possible, then reprieve victims in descending cost.

        If that uses several domains, or a costly one, each domain is also tried separately.
        """
        self._relevant_pods = self._units_matched_by_rules()
        for some in self._candidate_sets():
            found = self._place_without(some, 1)
            if found is not None:
                best = self._reprieve(self._reprieve_costly(found))
                for domain in self._domains(some):
                    inside = self._place_without(domain)
                    if inside is not None:
                        best = min(best, self._reprieve(self._reprieve_costly(inside)), key=lambda each: each.key)
                return best
        return None

    def _reprieve_costly(self, found: _Found) -> _Found:
        """Reprieve the units that cost most in the first component if evicting the others is sufficient."""
        rungs = {u: cost_before_counts(self._victim_index.unit_cost(self._stage.units[u])) for u in found.evicted}
        ladder = sorted(set(rungs.values()))
        below, enough = -1, len(ladder) - 1
        while enough - below > 1:
            middle = (below + enough) // 2
            better = self._place_without(frozenset(u for u in rungs if rungs[u] <= ladder[middle]))
            if better is not None:
                enough, found = middle, better
            else:
                below = middle
        return found

    def _domains(self, some: frozenset[int]) -> Iterator[frozenset[int]]:
        """Yield, for each domain of the members' anti-affinity keys, the candidates outside other domains.

        Yield nothing if there are many domains.
        """
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

    def _candidate_sets(self) -> Iterator[frozenset[int]]:
        """Yield candidate sets: first the least costly units, at most MOST_OFF pods plus as many pods matched by
        constraints; then all units, which is slow in a large cluster."""
        units = self._stage.units
        few: list[int] = []
        off = {True: 0, False: 0}  # pods counted, by whether a constraint matches them
        for number, unit in enumerate(units):
            relevant_pods = number in self._relevant_pods
            if off[relevant_pods] < MAX_REMOVED_PODS:
                few.append(number)
                off[relevant_pods] += len(unit.pods)
        if few:
            yield frozenset(few)
        if len(few) < len(units):
            self._no_further_plan = off[True] < MAX_REMOVED_PODS and self._proven_infeasible()
            if not self._no_further_plan:
                yield frozenset(range(len(units)))

    def _proven_infeasible(self) -> bool:
        """Return True if no victim set can make the group feasible: even without all matched pods, and with members
        that do not affect each other, monotone rules leave too little room."""
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
        """Return the units that a cross-node constraint matches. Other units matter only on their own nodes."""
        rules = [
            affects_other_nodes_of(tracker)
            for evaluation in self._stage.built.evaluations
            for _, tracker in evaluation.filters
            if not isinstance(tracker, RowFilter)
        ]
        found: list[int] = []
        for number, unit in enumerate(self._stage.units):
            worked(number % PODS_PER_WORK_UNIT == 0)
            if any(affects(pod) for pod in unit.pods.values() for affects in rules):
                found.append(number)
        return frozenset(found)

    def _reprieve(self, found: _Found) -> _Found:
        """Reprieve victims in descending cost while the placement holds.

        Most are on nodes without members and matched by no rule: they are reprieved without calling the filters.
        """
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
        with self._without(units) as nodes:
            most_costly_first = sorted(units, key=self._victim_index.unit_cost, reverse=True)
            victims = self._not_reprievable(most_costly_first, nodes, found.assignment)
        numbers = {unit.key: number for number, unit in enumerate(self._stage.units)}
        evicted = frozenset(numbers[unit.key] for unit in victims)
        return _Found(self._cost(tuple(sorted(evicted))), evicted, found.assignment)

    def _not_reprievable(
        self, units: Sequence[EvictionUnit], nodes: dict[str, int], assignment: Assignment
    ) -> list[EvictionUnit]:
        """Return the units that cannot be reprieved together with those before them, found by bisection: most can."""
        if not units or self._can_reprieve(units, nodes, assignment):
            return []
        if len(units) == 1:
            return list(units)
        half = len(units) // 2
        return [part for two in (units[:half], units[half:]) for part in self._not_reprievable(two, nodes, assignment)]

    def _can_reprieve(self, units: Sequence[EvictionUnit], nodes: dict[str, int], assignment: Assignment) -> bool:
        columns = self._cluster.columns
        worked(MEMBER_WORK * len(assignment) + len(units) // 2)
        inner = columns.journal.mark()
        columns.place_all([(pod, nodes[pod.key]) for unit in units for pod in unit.pods.values()])
        if holds(self._cluster, assignment):
            columns.journal.release(inner)
            return True
        columns.journal.rewind(inner)
        return False

    def _drop_unneeded_victims(self, found: _Found) -> _Found:
        """Drop victims that become unnecessary under another placement, in descending cost."""
        unit_cost = self._victim_index.unit_cost
        for unit in sorted(found.evicted, key=lambda u: unit_cost(self._stage.units[u]), reverse=True):
            if self._checks * EXPANSIONS_PER_CHECK >= self._budget:
                break
            without = self._place_without(found.evicted - {unit})
            if without is not None:
                found = without
        return found

    # ---- prove that no set is cheaper

    def _cheapest(self, best: _Found | None, floor: Key) -> tuple[_Found | None, Key]:
        """Search for the cheapest set within the budget; return it with a lower bound on the cost of every set.

        Runs also without a known set, because pods that the members need near them may be among the victims.
        """
        ceiling = best.key if best is not None else (INFINITE,) * len(ORDER)
        sets = BestFirstSets(len(self._units), self._cost, ceiling, self._budget * SETS_PER_EXPANSION)
        self._cheapest_undecided = None
        for key, chosen in sets:
            if key[:PROVABLE] < floor:
                continue  # proven before
            if self._checks * EXPANSIONS_PER_CHECK >= self._budget:
                return best, max(floor, min(key[:PROVABLE], self._cheapest_undecided or key[:PROVABLE]))
            evicted = frozenset(chosen)
            if self._fitting.outcome(evicted).verdict is SearchVerdict.IMPOSSIBLE:
                continue
            found = self._place_without(evicted)
            if found is not None:
                best, ceiling = found, found.key
                break
        reached = sets.floor if sets.cut else ceiling[:PROVABLE]
        return best, max(floor, min(reached, self._cheapest_undecided or reached))
