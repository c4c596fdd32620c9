"""Preemption for group roots: plans the minimum first, extras in a step of their own, and carries plans out.

`look` and `plan` only look; `carry_out` does what an answer says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from phalanx.engine.framework import Bools, Status
from phalanx.engine.framework.adapters import PluginFailure
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.groups.build import Built, Unplaceable, build
from phalanx.engine.groups.group_plugins import GroupPlugins
from phalanx.engine.groups.outcomes import assignment_of, counter, satisfied_by
from phalanx.engine.groups.preemption_problem import PreemptionProblemBuilder, Stage, latecomers, leftovers, raised
from phalanx.engine.groups.trial import Assignment, holds
from phalanx.engine.placement import place
from phalanx.engine.placement.problem import Leaf, Subtree, done
from phalanx.engine.preemption.cost import Cost
from phalanx.engine.preemption.plan import NOBODY_LOWER, plan
from phalanx.engine.preemption.problem import DEFAULT_BUDGET
from phalanx.engine.preemption.result import GaveUp, Hopeless, Plan, Planned
from phalanx.engine.preemption.victim_index import EvictionUnit, VictimIndex
from phalanx.engine.scheduling.attempt.answers import NominatedAfterPreemption, group_placement_text
from phalanx.engine.scheduling.attempt.constrained_preemption import ConstrainedPreemption
from phalanx.engine.scheduling.attempt.pod_preemption import NEVER
from phalanx.engine.scheduling.lifecycle.unit_lifecycle import UnitLifecycle
from phalanx.engine.scheduling.queue.units import GroupTree
from phalanx.engine.slices import Disturbed, worked
from phalanx.engine.state.records import PodRecord

AFRESH = 4  # times that victims are counted because others took the room meanwhile that the plan before counts on
ROWS = 250  # whose pods are read without a stop
HURRY = 64  # part of the search budget where others wait
ONGOING = "ongoing preemption on nominated nodes"
GAVE_UP = "the search for victims gave up after {} expansions; nobody is evicted without a plan"
RULES = "no set of victims was found that also keeps the pods' affinity, spreading and volume rules"
NO_EXTRAS = "its minimum runs, and pods beyond it evict no other pods"  # counts of a policy: they extend into free room
MOST_FUTILE = 1024  # roots whose last search for victims is remembered


@dataclass(frozen=True, slots=True, eq=False)
class GroupPlan:
    """A plan with what is needed to carry it out."""

    answer: Planned
    units: tuple[EvictionUnit, ...] = ()
    assignment: tuple[tuple[PodRecord, int], ...] = ()
    note: str = ""  # for the group's message
    gives_up: bool = False  # what was promised to its pods before need not be kept

    @property
    def victims(self) -> list[PodRecord]:
        return [pod for unit in self.units for pod in unit.pods.values()]


class GroupPreemption:
    def __init__(self, state: ClusterState, victim_index: VictimIndex, unit_lifecycle: UnitLifecycle) -> None:
        self.cluster = state
        self.victim_index = victim_index
        self._unit_lifecycle = unit_lifecycle
        self.budget = DEFAULT_BUDGET
        self._futile: dict[str, tuple[tuple[Any, ...], Planned]] = {}

    # ---- asked by an attempt that found no room

    def look(self, tree: GroupTree, built: Built, points: GroupPlugins | None) -> GroupPlan:
        """The plan, or why there is none, in words."""
        if tree.forest.preemption_policy(tree.group.key) == "Never":
            return GroupPlan(Hopeless(NEVER), note=NEVER)
        if self._unit_lifecycle.stands(self._unit_lifecycle.plan_of(tree.key)):
            return GroupPlan(Hopeless(ONGOING), note=ONGOING)
        known = self._futile.get(tree.key)
        if known is not None and known[0] == self._state(tree):
            return GroupPlan(known[1], note=self._note(known[1]), gives_up=True)
        found = self.plan(tree, built, points)
        if found.units or found.assignment:
            return replace(found, note=group_placement_text(tree.kind, found.victims) if self._anybody(found) else "")
        if len(self._futile) > MOST_FUTILE:
            self._futile.clear()
        self._futile[tree.key] = (self._state(tree), found.answer)
        return replace(found, note=self._note(found.answer), gives_up=True)

    def _state(self, tree: GroupTree) -> tuple[Any, ...]:
        """An unchanged cluster is not searched twice for the same pods (their groups are objects of the cluster)."""
        pods = tuple(sorted((record.key, record.shape.id) for record in tree.records))
        return (*self.victim_index.circumstances, tree.priority, pods)

    def _anybody(self, found: GroupPlan) -> bool:
        """Somebody has to go, or is about to be gone."""
        return bool(found.units) or any(row in self.victim_index.leaving for _, row in found.assignment)

    @staticmethod
    def _note(answer: Planned) -> str:
        if isinstance(answer, GaveUp):
            return GAVE_UP.format(answer.expansions)
        return answer.reason if isinstance(answer, Hopeless) else RULES

    # ---- looking

    def plan(self, tree: GroupTree, built: Built, points: GroupPlugins | None) -> GroupPlan:
        """The cheapest plan for the root's minimum; when that runs already, for as many of the rest as possible. Where
        plugins name the places, in the first of those where there is one."""
        worked(len(self.victim_index.units) // 8)  # bringing them up to date: not in the slice of the search before
        self._up_to_date()
        for evaluation in built.evaluations:
            evaluation.refresh()  # the search before may have been interrupted
        areas: Sequence[Bools | None] = (None,)
        if points is not None and points.generates:
            named = points.candidates(tree.group, built)
            if isinstance(named, Status):
                return GroupPlan(Hopeless(named.message))
            areas = [placement.mask for placement in named]
        found = GroupPlan(Hopeless(NOBODY_LOWER))
        for area in areas:
            stager = PreemptionProblemBuilder(self.cluster, self.victim_index, built, tree.priority, area)
            worked(len(stager.units) // 8)
            found = self._plan(stager)
            if found.units or found.assignment:
                break
        assignment = list(found.assignment)
        refused = (
            points.refused(satisfied_by(built, assignment), counter(built, assignment))
            if points and assignment
            else None
        )
        return found if refused is None else GroupPlan(Hopeless(f"{refused.message} ({refused.plugin})"))

    def _plan(self, stager: PreemptionProblemBuilder) -> GroupPlan:
        whole = stager.built.problem.root
        if not stager.units and not self.victim_index.leaving:
            return GroupPlan(Hopeless(NOBODY_LOWER))
        if not done(whole):
            tree, origin = raised(whole, {})
            return self._try(stager, tree, origin)
        return self._extras(stager)

    def _budget(self, stager: PreemptionProblemBuilder) -> int:
        """Those in a hurry have less of it."""
        return self.budget * stager.built.problem.budget // self.cluster.settings.search_budget

    def _extras(self, stager: PreemptionProblemBuilder) -> GroupPlan:
        """All that waits beyond the minimum, else the first group below it that can be served, else pods of one.

        A group whose policy has counts is extended without preempting.
        """
        whole = stager.built.problem.root
        groups = stager.built.group_of
        waiting = [leaf for leaf in leftovers(whole) if not groups[id(leaf)].policy.has_counts]
        late = latecomers(whole)
        more = {id(leaf): leaf.total for leaf in waiting} | {id(group): 0 for group in late}
        if not more:
            return GroupPlan(Hopeless(NO_EXTRAS))
        found = self._with(stager, more)
        if found.units or found.assignment:
            return found
        for group in late if len(more) > 1 else ():
            one = self._with(stager, {id(group): 0})
            if one.units or one.assignment:
                return one
        for leaf in waiting:
            best = self._most(stager, leaf) if len(more) > 1 or leaf.total > 1 else None
            if best is not None:
                return best
        return found

    def _most(self, stager: PreemptionProblemBuilder, leaf: Leaf) -> GroupPlan | None:
        """As many of one leaf's pods as can be served at all."""
        low, high = 0, leaf.total
        best: GroupPlan | None = None
        while low < high:
            middle = (low + high + 1) // 2
            found = self._with(stager, {id(leaf): middle})
            if found.units or found.assignment:
                low, best = middle, found
            else:
                high = middle - 1
        return best

    def _with(self, stager: PreemptionProblemBuilder, more: dict[int, int]) -> GroupPlan:
        tree, origin = raised(stager.built.problem.root, more)
        return self._try(stager, tree, origin)

    def _try(self, stager: PreemptionProblemBuilder, tree: Subtree, origin: dict[int, int]) -> GroupPlan:
        for _ in range(AFRESH):
            stage = stager.stage(tree, origin, self._budget(stager))
            answer = plan(stage.problem)
            placement = answer.placement if isinstance(answer, Plan) and not stage.exact else None
            if placement is None or not stager.overtaken(assignment_of(stage.built, placement, origin=stage.origin)):
                break  # where counting is the last word other seats are found in the end (`stands`)
        if not stage.exact:
            return self._tied(stager, stage, answer)
        if not isinstance(answer, Plan):
            return GroupPlan(answer)
        units = tuple(stage.units[victim.unit] for victim in answer.victims)
        self._still(units)
        assert answer.placement is not None
        return GroupPlan(answer, units, tuple(assignment_of(stage.built, answer.placement, origin=stage.origin)))

    def _tied(self, stager: PreemptionProblemBuilder, stage: Stage, counted: Planned) -> GroupPlan:
        """Where rules reach beyond a node counting is not the last word, and what it proves is a bound."""
        relaxed = stager.relaxed(stage)
        least = counted if relaxed is stage else plan(relaxed.problem)
        if isinstance(least, Hopeless):
            return GroupPlan(least)
        if stage.restricted:  # asking the filters one by one knows nothing of the places that a plugin names
            return self._restricted(stage, counted)
        found = ConstrainedPreemption(self.cluster, self.victim_index, self._still).run(
            stage, relaxed.problem, least, counted
        )
        if found is None:
            return GroupPlan(Hopeless(RULES))
        return GroupPlan(found.plan, found.units, found.assignment)

    def _restricted(self, stage: Stage, counted: Planned) -> GroupPlan:
        if not isinstance(counted, Plan) or counted.placement is None:
            return GroupPlan(Hopeless(RULES))
        units = tuple(stage.units[victim.unit] for victim in counted.victims)
        self._still(units)
        assignment = assignment_of(stage.built, counted.placement, origin=stage.origin)
        if not self._holds(units, assignment):
            return GroupPlan(Hopeless(RULES))
        return GroupPlan(replace(counted, lower_bound=Cost(), proved=()), units, tuple(assignment))

    def _still(self, units: Sequence[EvictionUnit]) -> None:
        """The search may have been interrupted, and somebody may have gone."""
        self._up_to_date()
        if not all(self._there(unit) for unit in units):
            raise Disturbed

    def _up_to_date(self) -> None:
        while self.victim_index.prepare(ROWS) == ROWS:
            worked(4 * ROWS)

    def _there(self, unit: EvictionUnit) -> bool:
        """As it was, though perhaps another object."""
        now = self.victim_index.units.get(unit.key)
        return now is unit or (now is not None and now.priority == unit.priority and now.pods == unit.pods)

    def stands(
        self, tree: GroupTree, answer: NominatedAfterPreemption, fits: Callable[[], bool]
    ) -> NominatedAfterPreemption | None:
        """A plan that was made a while ago as it can be carried out now: with the same victims, if need be with other
        seats. `fits`: asked with the victims gone."""
        self.victim_index.refresh()
        if not all(self._there(unit) and unit.priority < tree.priority for unit in answer.units):
            return None
        planned = answer.plan
        if isinstance(planned, Plan) and self.victim_index.cost(answer.units).budgets > planned.cost.budgets:
            return None
        with self.victim_index.without(answer.units):
            return answer if fits() else self._elsewhere(tree, answer)

    def _elsewhere(self, tree: GroupTree, answer: NominatedAfterPreemption) -> NominatedAfterPreemption | None:
        """Somebody took a little of the room that the plan counts on: as many members, seated anew."""
        if answer.expected_placements:
            return None  # what is not there yet needs a place as well
        state = self.cluster
        try:
            built = build(state, tree.group, tree.pending, state.settings.search_budget // HURRY, tree.priority)
        except (PluginFailure, Unplaceable):
            return None
        outcome = place(built.problem, explained=False)
        assignment = assignment_of(built, outcome, row_of=state.columns.row_of) if outcome.placed else []
        if (
            len(assignment) < len(answer.assignment)
            or not assignment
            or (built.coupled and not holds(state, assignment))
        ):
            return None
        return replace(answer, assignment=assignment)

    # ---- rules that counting does not see

    def _holds(self, units: Sequence[EvictionUnit], assignment: Assignment) -> bool:
        with self.victim_index.without(units):
            return holds(self.cluster, assignment)
