"""Preemption: choose pods of lower priority to evict so that a unit fits, at the lowest cost.

For a single pod all nodes are compared. For a group the minimum is planned first, and extras in a separate step. Costs
are ordered by `preemption.cost.ORDER`. Pods are evicted only if the whole unit then fits, and none while victims of an
earlier plan are terminating. Messages about single pods are kube-scheduler's. This module only plans:
`commit.evictions` carries a plan out.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from itertools import chain, product
from typing import Any

import numpy as np

from phalanx.engine.framework import Bools, Status, Wake
from phalanx.engine.framework.adapters import PluginFailure
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.framework.diagnosis import Diagnosis, histogram
from phalanx.engine.groups.build import Built, Unplaceable, build
from phalanx.engine.groups.co_placement import together
from phalanx.engine.groups.group_plugins import GroupPlugins
from phalanx.engine.groups.outcomes import assignment_of, counter, satisfied_by
from phalanx.engine.groups.preemption_problem import (
    PreemptionProblemBuilder,
    Stage,
    leftovers,
    optional_pending_groups,
    raised,
    with_priority,
)
from phalanx.engine.groups.rank_variants import spread
from phalanx.engine.groups.trial import Assignment, holds
from phalanx.engine.placement import place
from phalanx.engine.placement.problem import Leaf, Subtree, done
from phalanx.engine.preemption.cost import PROVABLE, Cost
from phalanx.engine.preemption.plan import NO_LOWER_PRIORITY, plan
from phalanx.engine.preemption.problem import DEFAULT_BUDGET
from phalanx.engine.preemption.result import Hopeless, Plan, Planned, SearchBudgetExhausted
from phalanx.engine.preemption.single_pod import Candidate, Chooser, MoreRows
from phalanx.engine.preemption.victim_index import EvictionUnit, VictimIndex
from phalanx.engine.scheduling.attempt.answers import (
    NominatedAfterPreemption,
    PreemptionResult,
    group_placement_text,
    placement_text,
)
from phalanx.engine.scheduling.attempt.constrained_preemption import ConstrainedPreemption
from phalanx.engine.scheduling.queue.units import GroupTree
from phalanx.engine.slices import TrialInvalidated, worked
from phalanx.engine.state.records import PodRecord
from phalanx.model.groups import WORKLOAD, Group, GroupKey
from phalanx.model.groups.forest import GroupForest
from phalanx.model.groups.group import GroupSpec

NEVER = "not eligible due to preemptionPolicy=Never."
WAITING = "not eligible due to a terminating pod on the nominated node."
NOT_HELPFUL = "Preemption is not helpful for scheduling"
NO_VICTIMS = "No preemption victims found for incoming pod"
_GROUPS = ("PodGroup", "CompositePodGroup", "Workload")
MAX_RECOUNTS = 4  # times that a plan is counted again because other pods took room that it uses
ROWS_PER_PAUSE = 250  # rows whose pods are read without a pause
HURRY = 64  # divisor of the search budget while other units wait
ONGOING = "ongoing preemption on nominated nodes"
GAVE_UP = "the search for victims gave up after {} expansions; no pod is evicted without a plan"
RULES = "no set of victims was found that also keeps the pods' affinity, spreading and volume rules"
NO_EXTRAS = "its minimum runs, and pods beyond it evict no other pods"  # counts of a policy: they extend into free room
MOST_FUTILE = 4096  # failed searches that are remembered


class FailedSearches:
    """Remember searches that found no victims: they are not repeated while nothing changes."""

    def __init__(self) -> None:
        self._found: dict[Hashable, tuple[tuple[Any, ...], Any]] = {}

    def get(self, key: Hashable, versions: tuple[Any, ...]) -> Any | None:
        """Return the result of the last search, if it was made under the same circumstances."""
        known = self._found.get(key)
        return known[1] if known is not None and known[0] == versions else None

    def put(self, key: Hashable, versions: tuple[Any, ...], result: Any) -> None:
        if len(self._found) > MOST_FUTILE:
            self._found.clear()
        self._found[key] = (versions, result)


class Preemption:
    def __init__(self, state: ClusterState, victim_index: VictimIndex, in_progress: Callable[[str], bool]) -> None:
        """`in_progress`: returns whether a unit, by its key, waits for victims of a valid plan."""
        self.cluster = state
        self.victim_index = victim_index
        self.chooser = Chooser(state, victim_index)  # for single pods
        self.budget = DEFAULT_BUDGET  # expansions, for groups
        self._in_progress = in_progress
        self._failed = FailedSearches()  # by (shape, priority) of single pods, by unit key of groups
        # For metrics: searches for victims of single pods, and of groups by whether a plan was found.
        self.pod_attempts = 0
        self.group_attempts = {True: 0, False: 0}

    def observe(self, kind: str, old: Any | None, new: Any | None) -> None:
        if kind == "PodDisruptionBudget":
            self.victim_index.budgets.changed(old, new)
        elif kind == "WorkloadPolicy":
            self.victim_index.regroup()  # the protected time of a group may have changed
        elif kind in _GROUPS and (old is None or new is None or old.spec != new.spec):
            forest = self.cluster.forest
            meta = (new if new is not None else old).metadata  # type: ignore[union-attr]
            key = GroupKey(kind, meta.namespace, meta.name)
            if old is None and kind != WORKLOAD and forest.named(key) is None:
                return  # it has no members yet
            self.victim_index.regroup()

    # ---- single pods

    def for_pod(self, record: PodRecord, diagnosis: Diagnosis, rows: int | None = None) -> PreemptionResult:
        """Choose the cheapest node. Raise MoreRows if more than `rows` rows have to be checked."""
        if record.preemption_policy == "Never":
            return PreemptionResult(f"preemption: {NEVER}", same_for_class=True, helpful_changes=Wake.NOTHING)
        if rows is not None and not self.chooser.ready(2 * rows):
            raise MoreRows
        leaving = self._leaving(record, diagnosis)
        if leaving or self._in_progress(f"pod/{record.key}"):
            return PreemptionResult(f"preemption: {WAITING}", waits=True, leaving=leaving)
        self.pod_attempts += 1
        if diagnosis.pre_filter is not None or not diagnosis.resolvable.any():
            return replace(
                _no_victims(record, _sentence(diagnosis.nodes, {NOT_HELPFUL: diagnosis.nodes})),
                helpful_changes=Wake.NODE,
            )
        self.victim_index.refresh()
        key = (record.shape.id, record.priority)
        known: str | None = self._failed.get(key, self.victim_index.state_versions)
        if known is not None:
            return _no_victims(record, known)
        found = self.chooser.choose(record, self.cluster.evaluation(record), diagnosis.resolvable, rows)
        shared = self._for_shared_devices(record)
        if isinstance(shared.plan, Plan) and (found is None or _provable(shared.plan) < found.key[:PROVABLE]):
            node = self.cluster.columns.names[shared.assignment[0][1]]
            text = f"preemption: {placement_text(node, shared.units)}"
            return replace(shared, message=text, nominate=node)
        if found is None:
            message = self._why_not(record, diagnosis)
            self._failed.put(key, self.victim_index.state_versions, message)
            return _no_victims(record, message)
        node = self.cluster.columns.names[found.row]
        text = f"preemption: {placement_text(node, found.units)}"
        return PreemptionResult(text, found, found.units, [(record, found.row)], nominate=node)

    def _for_shared_devices(self, record: PodRecord) -> PreemptionResult:
        """Choose victims on all nodes if the pod may get devices that several nodes can use: as for a gang of one."""
        profile = self.cluster.profiles[record.scheduler_name]
        if not record.shape.claims or not any(
            plugin.can_share_devices(record.shape) for plugin in profile.deallocators
        ):
            return PreemptionResult()
        group = Group(GroupKey("PodGroup", record.namespace, record.name))
        group.spec = GroupSpec(
            parent=None, gang=True, minimum=1, topology_key=None, preferred_key=None, disrupt_all=False, priority=None,
            preemption_policy=None, workload=None, template=None, created="",
        )  # fmt: skip
        pending = {group.key: {record.key: record}}
        tree = GroupTree(f"pod/{record.key}", group, GroupForest(), pending, record.priority, (record,))
        try:
            built = build(self.cluster, group, pending, self.cluster.settings.search_budget, record.priority)
        except Unplaceable:
            return PreemptionResult()
        return self.plan(tree, built, None)

    def _leaving(self, record: PodRecord, diagnosis: Diagnosis) -> Sequence[PodRecord]:
        """Return terminating pods of lower priority on the nominated node.

        An earlier scheduler process may have evicted them.
        """
        if self._in_progress(f"pod/{record.key}"):
            return ()
        row = self.cluster.columns.row_of.get(record.nominated, -1) if record.nominated else -1
        if row < 0 or not len(diagnosis.resolvable) or not diagnosis.resolvable[row]:
            return ()
        self.victim_index.refresh()
        leaving = self.victim_index.leaving.get(row, {})
        return list(leaving.values()) if any(pod.priority < record.priority for pod in leaving.values()) else ()

    def _why_not(self, record: PodRecord, diagnosis: Diagnosis) -> str:
        columns, victim_index = self.cluster.columns, self.victim_index
        counts: dict[str, int] = {}
        resolvable = diagnosis.resolvable
        hopeless = int((columns.alive & ~resolvable).sum())
        if hopeless:
            counts[NOT_HELPFUL] = hopeless
        without_victims = np.zeros(columns.capacity, dtype=np.bool_)
        for row in np.flatnonzero(columns.alive & resolvable).tolist():
            here = victim_index.on_row.get(row, {})
            without_victims[row] = not any(victim_index.units[key].priority < record.priority for key in here)
        if without_victims.any():
            counts[NO_VICTIMS] = int(without_victims.sum())
        for _, finding in diagnosis.findings:
            rows = finding.rows[resolvable[finding.rows] & ~without_victims[finding.rows]]
            if len(rows):
                counts[finding.reason] = counts.get(finding.reason, 0) + len(rows)
        return _sentence(diagnosis.nodes, counts)

    # ---- groups

    def for_group(self, tree: GroupTree, built: Built, group_plugins: GroupPlugins | None) -> PreemptionResult:
        """Return the plan, or the reason why there is none."""
        if tree.forest.preemption_policy(tree.group.key) == "Never":
            return PreemptionResult(NEVER, Hopeless(NEVER))
        if self._in_progress(tree.key):
            return PreemptionResult(ONGOING, Hopeless(ONGOING))
        known: Planned | None = self._failed.get(tree.key, self._state(tree))
        if known is not None:
            return PreemptionResult(_note(known), known, nominate="")
        found = self.plan(tree, built, group_plugins)
        assert found.plan is not None and not isinstance(found.plan, Candidate)
        self.group_attempts[found.found] += 1
        if found.found:
            victims = [pod for unit in found.units for pod in unit.pods.values()]
            leaving = any(row in self.victim_index.leaving for _, row in found.assignment)
            return replace(found, message=group_placement_text(tree.kind, victims) if victims or leaving else "")
        self._failed.put(tree.key, self._state(tree), found.plan)
        return replace(found, message=_note(found.plan), nominate="")

    def _state(self, tree: GroupTree) -> tuple[Any, ...]:
        """Return a value that changes with the cluster, so that a failed search is not repeated without a change."""
        pods = tuple(sorted((record.key, record.shape.id) for record in tree.records))
        return (*self.victim_index.state_versions, tree.priority, pods)

    def plan(self, tree: GroupTree, built: Built, group_plugins: GroupPlugins | None) -> PreemptionResult:
        """Return the cheapest plan for the unit's minimum, or for as many extra pods as possible if the minimum runs.

        If plugins name domains, use the first domain that has a plan.
        """
        priorities = tree.priorities
        if group_plugins is None and self.victim_index.nothing_below(priorities[0]):
            return _plan_of(Hopeless(NO_LOWER_PRIORITY))
        worked(len(self.victim_index.units) // 8)  # updating the units is slow: do it in a new slice
        self._up_to_date()
        for evaluation in built.evaluations:
            evaluation.refresh()  # the search before this one may have been interrupted
        areas: Sequence[Bools | None] = (None,)
        if group_plugins is not None and group_plugins.generates:
            named = group_plugins.candidates(tree.group, built)
            if isinstance(named, Status):
                return _plan_of(Hopeless(named.message))
            areas = [placement.mask for placement in named]
        found = _plan_of(Hopeless(NO_LOWER_PRIORITY))
        for priority, area in product(priorities, areas):
            least = built if len(priorities) == 1 else with_priority(built, priority)
            builder = PreemptionProblemBuilder(self.cluster, self.victim_index, least, priority, area)
            worked(len(builder.units) // 8)
            found = self._by_rank(builder, self._plan(builder))
            if found.units or found.assignment:
                break
        assignment = list(found.assignment)
        refused = (
            group_plugins.refused(satisfied_by(built, assignment), counter(built, assignment))
            if group_plugins and assignment
            else None
        )
        return found if refused is None else _plan_of(Hopeless(f"{refused.message} ({refused.plugin})"))

    def _plan(self, builder: PreemptionProblemBuilder) -> PreemptionResult:
        whole = builder.built.problem.root
        if not builder.units and not self.victim_index.leaving:
            return _plan_of(Hopeless(NO_LOWER_PRIORITY))
        if not done(whole):
            tree, origin = raised(whole, {})
            return self._try(builder, tree, origin)
        return self._extras(builder)

    def _by_rank(self, builder: PreemptionProblemBuilder, cheapest: PreemptionResult) -> PreemptionResult:
        """Return a plan that follows Stripe, Balance and coPlaceWith if it costs no more than the cheapest plan.

        A rank pattern is a preference: no more pods are evicted for it. It is not combined with cross-node constraints.
        """
        if not isinstance(cheapest.plan, Plan) or not builder.openings.exact:
            return cheapest
        after = builder.after_eviction(cheapest.plan.cost.priority)
        for _, variant in chain(together(self.cluster, after), spread(self.cluster.columns, after)):
            found = self._plan(builder.with_tree(variant))
            complete = len(found.assignment) >= len(cheapest.assignment)
            if complete and isinstance(found.plan, Plan) and _provable(found.plan) <= _provable(cheapest.plan):
                return found
        return cheapest

    def _budget(self, builder: PreemptionProblemBuilder) -> int:
        """Return the search budget, scaled like the budget of the placement problem."""
        return self.budget * builder.built.problem.budget // self.cluster.settings.search_budget

    def _extras(self, builder: PreemptionProblemBuilder) -> PreemptionResult:
        """Plan for all pods beyond the minimum, else for the first child group that fits, else for some of its pods.

        A group whose policy has counts is extended without preemption.
        """
        whole = builder.built.problem.root
        groups = builder.built.group_of
        waiting = [leaf for leaf in leftovers(whole) if not groups[id(leaf)].policy.has_counts]
        late = optional_pending_groups(whole)
        more = {id(leaf): leaf.total for leaf in waiting} | {id(group): 0 for group in late}
        if not more:
            return _plan_of(Hopeless(NO_EXTRAS))
        found = self._plan_extras(builder, more)
        if found.units or found.assignment:
            return found
        for group in late if len(more) > 1 else ():
            one = self._plan_extras(builder, {id(group): 0})
            if one.units or one.assignment:
                return one
        for leaf in waiting:
            best = self._plan_most_extras(builder, leaf) if len(more) > 1 or leaf.total > 1 else None
            if best is not None:
                return best
        return found

    def _plan_most_extras(self, builder: PreemptionProblemBuilder, leaf: Leaf) -> PreemptionResult | None:
        """Plan for as many pods of one leaf as possible."""
        low, high = 0, leaf.total
        best: PreemptionResult | None = None
        while low < high:
            middle = (low + high + 1) // 2
            found = self._plan_extras(builder, {id(leaf): middle})
            if found.units or found.assignment:
                low, best = middle, found
            else:
                high = middle - 1
        return best

    def _plan_extras(self, builder: PreemptionProblemBuilder, more: dict[int, int]) -> PreemptionResult:
        tree, origin = raised(builder.built.problem.root, more)
        return self._try(builder, tree, origin)

    def _try(self, builder: PreemptionProblemBuilder, tree: Subtree, origin: dict[int, int]) -> PreemptionResult:
        for _ in range(MAX_RECOUNTS):
            stage = builder.stage(tree, origin, self._budget(builder))
            answer = plan(stage.problem)
            placement = answer.placement if isinstance(answer, Plan) and not stage.exact else None
            if placement is None or not builder.overtaken(assignment_of(stage.built, placement, origin=stage.origin)):
                break  # a plan found by counting alone is checked again at commit (`revalidate`)
        if not stage.exact:
            return self._check_constraints(builder, stage, answer)
        if not isinstance(answer, Plan):
            return _plan_of(answer)
        units = tuple(stage.units[victim.unit] for victim in answer.victims)
        self._require_unchanged(units)
        assert answer.placement is not None
        return _plan_of(answer, units, tuple(assignment_of(stage.built, answer.placement, origin=stage.origin)))

    def _check_constraints(self, builder: PreemptionProblemBuilder, stage: Stage, counted: Planned) -> PreemptionResult:
        """Check a plan against cross-node constraints; the cost found by counting is then only a lower bound."""
        relaxed = builder.relaxed(stage)
        least = counted if relaxed is stage else plan(relaxed.problem)
        if isinstance(least, Hopeless):
            return _plan_of(least)
        if stage.restricted:  # the search by filters cannot restrict members to places that a plugin names
            return self._restricted(stage, counted)
        found = ConstrainedPreemption(self.cluster, self.victim_index, self._require_unchanged).run(
            stage, relaxed.problem, least, counted
        )
        if found is None:
            return _plan_of(Hopeless(RULES))
        return _plan_of(found.plan, found.units, found.assignment)

    def _restricted(self, stage: Stage, counted: Planned) -> PreemptionResult:
        if not isinstance(counted, Plan) or counted.placement is None:
            return _plan_of(Hopeless(RULES))
        units = tuple(stage.units[victim.unit] for victim in counted.victims)
        self._require_unchanged(units)
        assignment = assignment_of(stage.built, counted.placement, origin=stage.origin)
        if not self._holds(units, assignment):
            return _plan_of(Hopeless(RULES))
        return _plan_of(replace(counted, lower_bound=Cost(), proved=()), units, tuple(assignment))

    def _require_unchanged(self, units: Sequence[EvictionUnit]) -> None:
        """Raise Disturbed if a unit is gone: the search may have been interrupted."""
        self._up_to_date()
        if not all(self._is_unchanged(unit) for unit in units):
            raise TrialInvalidated

    def _up_to_date(self) -> None:
        while self.victim_index.prepare(ROWS_PER_PAUSE) == ROWS_PER_PAUSE:
            worked(4 * ROWS_PER_PAUSE)

    def _is_unchanged(self, unit: EvictionUnit) -> bool:
        """Return True if an eviction unit is unchanged, even if it is another object."""
        now = self.victim_index.units.get(unit.key)
        return now is unit or (now is not None and now.priority == unit.priority and now.pods == unit.pods)

    def revalidate(
        self, tree: GroupTree, answer: NominatedAfterPreemption, fits: Callable[[], bool]
    ) -> NominatedAfterPreemption | None:
        """Return an earlier plan if it can be carried out now: the same victims, perhaps another assignment.

        `fits`: called while the victims are removed.
        """
        self.victim_index.refresh()
        priority = min((record.priority for record, _ in answer.assignment), default=tree.priority)
        if not all(self._is_unchanged(unit) and unit.priority < priority for unit in answer.units):
            return None
        planned = answer.plan
        if isinstance(planned, Plan) and self.victim_index.cost(answer.units).budgets > planned.cost.budgets:
            return None
        with self.victim_index.without(answer.units):
            return answer if fits() else self._elsewhere(tree, answer)

    def _elsewhere(self, tree: GroupTree, answer: NominatedAfterPreemption) -> NominatedAfterPreemption | None:
        """Find another assignment for the same members: other pods took part of the planned room."""
        if answer.expected_placements:
            return None  # expected pods need a place as well
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

    # ---- rules that counting does not cover

    def _holds(self, units: Sequence[EvictionUnit], assignment: Assignment) -> bool:
        with self.victim_index.without(units):
            return holds(self.cluster, assignment)


def _plan_of(
    plan: Planned, units: Sequence[EvictionUnit] = (), assignment: Sequence[tuple[PodRecord, int]] = ()
) -> PreemptionResult:
    return PreemptionResult(plan=plan, units=units, assignment=list(assignment))


def _provable(found: Plan) -> tuple[float, ...]:
    return found.cost.key()[:PROVABLE]


def _note(answer: Planned) -> str:
    if isinstance(answer, SearchBudgetExhausted):
        return GAVE_UP.format(answer.expansions)
    return answer.reason if isinstance(answer, Hopeless) else RULES


def _sentence(nodes: int, counts: dict[str, int]) -> str:
    return f"0/{nodes} nodes are available: {', '.join(histogram(counts))}."


def _no_victims(record: PodRecord, text: str) -> PreemptionResult:
    return PreemptionResult(f"preemption: {text}", same_for_class=True, nominate="" if record.nominated else None)
