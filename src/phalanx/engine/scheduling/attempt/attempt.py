"""Attempt to place one unit: compute an answer from the cluster state.

The scheduler commits the answer; `why`, `whatif` and `plan` only read it. Trials are rewound, and decisions of
PostFilter plugins are part of the answer. After a Placed answer the pods stay counted on their rows and reserved: the
scheduler then assumes them, and a question rewinds them by its mark of the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import msgspec
import numpy as np

from phalanx.engine.framework import Code, PostFilterResult, Status
from phalanx.engine.framework.adapters import PluginFailure, guarded
from phalanx.engine.framework.choice import choose, devices_left
from phalanx.engine.framework.cluster_state import ClusterState, KeepsPromises
from phalanx.engine.framework.diagnosis import Diagnosis, reserved_text
from phalanx.engine.framework.evaluation import Evaluation
from phalanx.engine.framework.interface import Finding
from phalanx.engine.framework.options import DeallocatesClaims
from phalanx.engine.framework.traits import traits_of
from phalanx.engine.groups import completion, expected_pods, messages
from phalanx.engine.groups.admission import all_short, hold_of
from phalanx.engine.groups.build import FEW_SHAPES, Built, Unplaceable, build, surplus
from phalanx.engine.groups.find_placement import Found, NoPlacement, find
from phalanx.engine.groups.group_plugins import GroupPlugins
from phalanx.engine.groups.outcomes import counter, expected_placements, leftovers
from phalanx.engine.groups.trial import Assignment, fits_still
from phalanx.engine.reservations.holders import holders
from phalanx.engine.scheduling.attempt.answers import (
    Answer,
    Cause,
    GroupSearch,
    NominatedAfterPreemption,
    Placed,
    PreemptionResult,
    Refused,
    refused_by_plugin,
)
from phalanx.engine.scheduling.attempt.preemption import Preemption
from phalanx.engine.scheduling.lifecycle.gang_commits import GangCommits
from phalanx.engine.scheduling.lifecycle.reserve_permit import gate_of, permit, reserve, reserve_and_permit, unreserve
from phalanx.engine.scheduling.queue.units import AttemptUnit, GroupTree, SinglePod
from phalanx.engine.slices import in_slices, worked
from phalanx.engine.state.claims import ClaimKey, claims_renamed
from phalanx.engine.state.records import PodRecord
from phalanx.engine.state.shapes import Shape
from phalanx.model.groups import Group
from phalanx.model.groups.expected_pods import expected

RELEASING = "waiting for devices that claims of deleted pods still hold"
RELEASED = "; members bound in an attempt that could not be completed are released"

LACKS_ROOM = frozenset({Cause.ROOM, Cause.RULES, Cause.EXTRAS, Cause.WHOLE})
EVALUATION = 10  # units of work to evaluate a new shape, plus one for every ROWS_PER_STEP rows
ROWS_PER_STEP = 64


class AttemptOptions(msgspec.Struct, frozen=True):  # one per attempt: a dataclass takes five times as long
    """Options of an attempt. The defaults are the scheduler's."""

    gates: bool = False  # ask the gates first; the scheduler asked them when it admitted the unit
    evict: bool = True  # ask PostFilter plugins and preemption where nothing fits
    rows: int | None = None  # raise MoreRows where preemption for a single pod looks at more rows than this
    budget_divisor: int = 1  # divide the search budget by this
    search: Callable[[], Answer | None] | None = None  # search in slices (`SlicedAttempts`)


SCHEDULE = AttemptOptions()
CLAIMS_RECONSIDERED = 16  # claims of one gang that are considered for deallocation
PLACEMENTS_TRIED = 4  # placements per unit while each of them would delay promised starts


class Attempts:
    def __init__(self, state: ClusterState, preemption: Preemption, commits: GangCommits) -> None:
        self._cluster = state
        self._preemption = preemption
        self._commits = commits
        self._group_plugins: dict[str, GroupPlugins | None] = {}  # by scheduler name

    def attempt(self, unit: AttemptUnit, how: AttemptOptions = SCHEDULE) -> Answer | None:
        """Try to place a single pod or a tree of groups; return None if the search continues in a later slice.

        Runs every stage before PreBind, for the scheduler and for questions.
        """
        # 1. Gates: PreEnqueue plugins; objects and members of the group exist.
        if how.gates and (held := self._check_gates(unit)) is not None:
            return held
        # 2. PreFilter, Filter and Score find a placement.  3. PostFilter: preemption if there is none.
        answer = self.search(unit, how) if how.search is None else how.search()
        promises = self._cluster.promises
        if promises is not None and promises.any_promised and isinstance(answer, Placed | NominatedAfterPreemption):
            answer = self._avoid_promised_room(unit, answer, how, promises)
        # 4. Reserve, then Permit, for every pod of the unit.
        return self._reserve(unit, answer) if isinstance(answer, Placed) else answer

    def _avoid_promised_room(
        self, unit: AttemptUnit, answer: Answer, how: AttemptOptions, promises: KeepsPromises
    ) -> Answer:
        """Look for another placement where this one would delay a promised start."""
        temporary_nominations: list[tuple[PodRecord, str]] = []
        try:
            for _ in range(PLACEMENTS_TRIED):
                if isinstance(answer, Refused) or not (
                    more := promises.nominate_delayed(unit.records, answer.assignment)
                ):
                    return answer
                temporary_nominations += more
                answer = self.search(unit, msgspec.structs.replace(how, search=None))
            if isinstance(answer, Refused) or not (more := promises.nominate_delayed(unit.records, answer.assignment)):
                return answer
            temporary_nominations += more
            return Refused(Cause.PERMIT, "the room is promised to other units")
        finally:
            promises.withdraw_planned_starts(temporary_nominations)

    def search(self, unit: AttemptUnit, how: AttemptOptions = SCHEDULE) -> Answer:
        """Run stages 2 and 3. A single pod has its own path, which is much faster than the search for a tree."""
        try:
            if isinstance(unit, SinglePod):
                return self._place_pod(unit.record, how)
            with devices_left(self._cluster, unit.records):
                return self._place_group(unit, how)
        except PluginFailure as failure:
            return Refused(Cause.ERROR, claims_renamed(str(failure), unit.records))
        except Unplaceable as problem:
            return Refused(Cause.PARTIAL, str(problem))

    # ---- 1. gates

    def _check_gates(self, unit: AttemptUnit) -> Refused | None:
        if isinstance(unit, GroupTree):
            hold = hold_of(unit.forest, unit.group.key)
            if hold is not None:
                return Refused(Cause.HELD, hold.message)
        held = gate_of(self._cluster, unit.records)
        return Refused(Cause.HELD, held[1].message) if held is not None else None

    # ---- 2. placement

    def _place_pod(self, record: PodRecord, how: AttemptOptions) -> Answer:
        state = self._cluster
        evaluation = state.evaluation(record)
        status = evaluation.pre_filter()
        if status is not None:
            diagnosis = Diagnosis(state.columns.count, pre_filter=status, plugins=frozenset({status.plugin}))
            diagnosis.resolvable = np.zeros(state.columns.capacity, dtype=np.bool_)
        else:
            blocked: list[tuple[str, Finding]] = []
            row = choose(state, record, evaluation, blocked)
            if row >= 0:
                return Placed([(record, row)])
            diagnosis = evaluation.diagnose()
            diagnosis.findings += blocked
            diagnosis.plugins |= {plugin for plugin, _ in blocked}
            if blocked:
                nodes = {state.columns.names[int(row)] for _, finding in blocked for row in finding.rows}
                diagnosis.reserved_for = holders(state.nominations, record.namespace, record.priority, nodes)
        refused = Refused(Cause.ROOM, "", diagnosis, same_for_class=True)
        if how.evict:
            return self._post_filter(record, refused, diagnosis, how.rows)
        refused.message = diagnosis.message
        return refused

    def _place_group(self, tree: GroupTree, how: AttemptOptions) -> Answer:
        state = self._cluster
        built = build(
            state,
            tree.group,
            tree.pending,
            state.settings.search_budget // how.budget_divisor,
            tree.priority,
            evaluated=self._evaluated(tree) if in_slices() else {},
        )
        group_plugins = self.group_plugins(tree)
        whole = self._build_with_expected(tree)
        answer = (
            self._place(tree, built, group_plugins)
            if whole is None
            else self._place_with_expected(tree, built, whole, group_plugins)
        )
        if isinstance(answer, Refused) and answer.cause in LACKS_ROOM and not answer.hopeless and state.nominations:
            own = {leaf.key.name for leaf in tree.forest.leaves(tree.group.key)}
            others = holders(state.nominations, tree.group.key.namespace, tree.priority, None, own)
            answer.notes += f"; {reserved_text(others)}" if others else ""
            answer.reserved = len(others)
        if how.evict and isinstance(answer, Refused) and (answer.cause is not Cause.WHOLE or whole is not None):
            searched = whole if answer.cause is Cause.WHOLE and whole else built
            return self._group_post_filter(tree, searched, answer, group_plugins)
        return answer

    def group_plugins(self, tree: GroupTree) -> GroupPlugins | None:
        """Return the group plugins of the pods' profile; None if there are none, as in the default profile."""
        name = tree.scheduler_name
        if name not in self._group_plugins:
            self._group_plugins[name] = GroupPlugins(self._cluster.profiles[name], self._cluster.columns) or None
        return self._group_plugins[name]

    def place_by_counting(self, tree: GroupTree) -> Placed | None:
        """Return the answer if counting is sufficient: one group of equal pods without rules about each other.

        Return None if a search is needed.
        """
        group, shape = tree.group, tree.records[0].shape
        spec = group.spec
        if group.composite or spec is None or spec.preferred_key is not None or self.group_plugins(tree) is not None:
            return None
        if any(record.shape is not shape for record in tree.records):
            return None
        state = self._cluster
        if expected(group.source) or state.columns.devices():
            return None
        try:
            with devices_left(state, tree.records):
                built = build(state, group, tree.pending, state.settings.search_budget, tree.priority, counted=True)
                if built.coupled:
                    return None
                found = find(state, group, built)
        except (PluginFailure, Unplaceable):
            return None
        if not isinstance(found, Found) or not found.assignment:
            return None
        return Placed(found.assignment, built, [group])

    def _evaluated(self, tree: GroupTree) -> dict[Shape, Evaluation]:
        """Evaluate filters and scores of every shape; if no two pods are alike that takes longer than the search."""
        shapes = {record.shape: record for record in tree.records}
        found: dict[Shape, Evaluation] = {}
        each = EVALUATION + self._cluster.columns.n // ROWS_PER_STEP
        if len(shapes) * each <= self._cluster.settings.search_slice // 2:
            return found  # few shapes: no need to evaluate in slices
        for shape, record in shapes.items():
            found[shape] = evaluation = self._cluster.evaluation(record)
            evaluation.slots()
            worked(each)
        return found

    def fits(self, assignment: Assignment, before: Built | None = None) -> bool:
        """Return True if an assignment found earlier is still feasible. Does not raise.

        `before`: the problem built at that time.
        """
        known = dict(zip(before.shapes, before.evaluations, strict=True)) if before is not None else {}
        try:
            with devices_left(self._cluster, [record for record, _ in assignment]):
                return not assignment or fits_still(self._cluster, assignment, known)
        except PluginFailure:
            return False

    def _place(self, tree: GroupTree, built: Built, group_plugins: GroupPlugins | None) -> Placed | Refused:
        """Search a placement for the whole group, with a refusal that names what is short."""
        group = tree.group
        if not group.composite and (text := self._never_completes(tree, built)) is not None:
            return Refused(Cause.WHOLE, text, GroupSearch(built))
        pending = sum(len(records) for records in built.pending.values())
        status = group_plugins.hopeless(group, pending) if group_plugins is not None else None
        found = find(self._cluster, group, built, group_plugins) if status is None else status
        if isinstance(found, Status):
            return refused_by_plugin(found, built, messages.UNSCHEDULABLE)
        if isinstance(found, NoPlacement):
            cause = Cause.RULES if found.rules else Cause.ROOM
            outcome = None if found.rules else found.outcome
            return Refused(cause, found.text(group, built), GroupSearch(built, outcome))
        if not found.assignment:
            # The minimum runs already; the remaining groups are incomplete or do not fit.
            shortages = all_short(tree.forest, built)
            if shortages:
                return Refused(Cause.EXTRAS, messages.lacking(shortages), GroupSearch(built), hopeless=True)
            text = surplus(self._cluster, group, tree.priority)
            if text:
                text = f"{messages.UNSCHEDULABLE}, {text}"
                return Refused(Cause.EXTRAS, text, GroupSearch(built), hopeless=True, reason=messages.LIMITED)
            text, outcome = leftovers(group, built)
            return Refused(Cause.EXTRAS, text, GroupSearch(built, outcome))
        return self._allowed(built, found, group_plugins)

    def _allowed(self, built: Built, found: Found, group_plugins: GroupPlugins | None) -> Placed | Refused:
        satisfied = [built.group_of[part] for part in built.group_of if part in found.satisfied]
        refused = (
            group_plugins.refused(satisfied, counter(built, found.assignment)) if group_plugins is not None else None
        )
        if refused is not None:
            return refused_by_plugin(refused, built, messages.UNSCHEDULABLE)
        if in_slices() and len(built.shapes) > FEW_SHAPES:
            for evaluation in built.evaluations:  # makes the check at commit cheap
                worked(8)
                evaluation.refresh()
        worked(len(found.assignment) // 2)  # committing many pods is slow: do it in a new slice
        return Placed(found.assignment, built, satisfied)

    # ---- groups that expect more pods

    def _build_with_expected(self, tree: GroupTree) -> Built | None:
        """Build the tree with its expected pods, together with those of groups that have started and are incomplete."""
        state, own_leaves = self._cluster, list(tree.forest.leaves(tree.group.key))
        if not any(expected_pods.announced_by(leaf) for leaf in own_leaves):
            return None
        own = {leaf.key for leaf in own_leaves}
        others = [leaf for leaf in self._incomplete_started_groups(tree) if leaf.key not in own]
        found = expected_pods.outstanding_pods(state, own_leaves, others, tree.priority)
        if found is None:
            return None
        budget = state.settings.search_budget
        if found.others and not self._others_fit(tree, found):
            found = expected_pods.ExpectedPods(found.wholes)  # no room for the others in any case: ignore them
        return build(state, tree.group, tree.pending, budget, tree.priority, found)

    def _others_fit(self, tree: GroupTree, found: expected_pods.ExpectedPods) -> bool:
        first, *rest = found.others
        budget = self._cluster.settings.search_budget
        remaining = expected_pods.ExpectedPods(found.wholes, tuple(rest))
        try:
            built = build(self._cluster, first, tree.pending, budget, tree.priority, remaining)
        except Unplaceable:
            return False
        return isinstance(find(self._cluster, first, built), Found)

    def _place_with_expected(
        self, tree: GroupTree, built: Built, whole: Built, group_plugins: GroupPlugins | None
    ) -> Placed | Refused:
        """Place the existing pods if all expected pods of the group fit as well."""
        found = find(self._cluster, tree.group, whole, group_plugins)
        if isinstance(found, Found):
            own_keys = {record.key for record in tree.records}
            assignment = [(record, row) for record, row in found.assignment if record.key in own_keys]
            satisfied = {id(built.part_of[g.key]) for part, g in whole.group_of.items() if part in found.satisfied
                         if g.key in built.part_of}  # fmt: skip
            answer = self._allowed(built, replace(found, assignment=assignment, satisfied=satisfied), group_plugins)
            if isinstance(answer, Placed):
                return replace(answer, expected_placements=expected_placements(whole, found.assignment, own_keys))
            return answer
        if tree.group.placed or tree.group.composite or isinstance(found, Status):
            return self._place(tree, built, group_plugins)  # it runs already: place the pods that fit
        text = messages.whole(tree.group, len(next(iter(whole.pending.values()))))
        return Refused(Cause.WHOLE, text, GroupSearch(built))

    def _incomplete_started_groups(self, tree: GroupTree) -> Iterator[Group]:
        """Return the groups that have started and expect more pods."""
        forests = {id(forest): forest for forest in (self._cluster.forest, tree.forest)}.values()
        return (leaf for forest in forests for leaf in forest.begun())

    def _never_completes(self, tree: GroupTree, built: Built) -> str | None:
        if not completion.wanted(tree.group) or expected_pods.announced_by(tree.group) is not None:
            return None
        return completion.cannot_complete(
            self._cluster.columns, tree.group, self._incomplete_started_groups(tree), built
        )

    # ---- 3. PostFilter

    def _post_filter(self, record: PodRecord, refused: Refused, diagnosis: Diagnosis, rows: int | None) -> Answer:
        """Call PostFilter plugins in order; preemption runs where a plugin of the profile asks for it."""
        notes: list[str] = []
        found: PreemptionResult | None = None
        for plugin in self._cluster.profiles[record.scheduler_name].post_filters:
            if traits_of(plugin).preempts:
                found = self._unless_devices_are_released(
                    SinglePod(record), self._preemption.for_pod(record, diagnosis, rows)
                )
                status = Status(Code.SUCCESS if found.found else Code.UNSCHEDULABLE)
                result = PostFilterResult(status, found.nominate, found.message, found.same_for_class)
            else:
                found = None
                result = guarded(plugin, plugin.post_filter, record, diagnosis)
                if not isinstance(result, PostFilterResult):
                    raise PluginFailure(plugin.name, f"post_filter() returned {type(result).__name__}")
            refused.nominate, refused.same_for_class = result.nominate, result.hopeless
            refused.decisions += result.decisions
            if result.message:
                notes.append(result.message)
            if result.status.code in (Code.SUCCESS, Code.UNRESOLVABLE):
                break
            if result.status.code is Code.ERROR:
                raise PluginFailure(plugin.name, result.status.message)
        diagnosis.post_filter = ", ".join(notes)
        refused.message, refused.preemption = diagnosis.message, found
        if found is None or not found.found:
            return refused
        assert found.plan is not None
        return NominatedAfterPreemption(refused, found.units, found.assignment, found.plan)

    def _group_post_filter(
        self, tree: GroupTree, built: Built, refused: Refused, group_plugins: GroupPlugins | None
    ) -> NominatedAfterPreemption | Refused:
        """Call PodGroupPostFilter plugins, then try preemption."""
        if tree.forest is self._cluster.forest and self._commits.incomplete(tree.group):
            refused.releases, refused.notes = True, RELEASED
            return refused
        if group_plugins is not None:
            helped, notes, decisions = group_plugins.after_failure(tree.group, list(tree.records), refused)
            refused.decisions += decisions
            refused.notes += "".join(f", {note}" for note in notes)
            if helped:
                return refused
        if any(record.shape.claims for record in tree.records) and self._deallocate(tree, refused, group_plugins):
            return refused
        if refused.hopeless or not self._cluster.profiles[tree.scheduler_name].preempts:
            return refused
        found = self._unless_devices_are_released(tree, self._preemption.for_group(tree, built, group_plugins))
        refused.preemption = found
        refused.nominate = found.nominate
        if found.message:
            refused.notes += f", pod group preemption: {found.message}"
        if not found.found:
            return refused
        assert found.plan is not None
        mine = {record.key for record in tree.records}
        assignment = [(record, row) for record, row in found.assignment if record.key in mine]
        expected = expected_placements(built, list(found.assignment), mine)
        return NominatedAfterPreemption(refused, found.units, assignment, found.plan, expected)

    def _deallocate(self, tree: GroupTree, refused: Refused, group_plugins: GroupPlugins | None) -> bool:
        """Deallocate claims of members without nodes if the unit fits only without these allocations.

        All of these claims are deallocated or none. A claim that the placement can use stays allocated.
        """
        for plugin in self._cluster.profiles[tree.scheduler_name].deallocators:
            keys = plugin.releasable(list(tree.records))
            if not keys or not self._fits_without(tree, plugin, keys, group_plugins):
                continue
            for key in keys[:CLAIMS_RECONSIDERED] if len(keys) > 1 else ():
                rest = [each for each in keys if each != key]
                if rest and self._fits_without(tree, plugin, rest, group_plugins):
                    keys = rest
            refused.decisions += plugin.deallocations(keys)
            refused.notes += f", waiting for the deallocation of {len(keys)} resource claims that no pod uses"
            return True
        return False

    def _fits_without(
        self, tree: GroupTree, plugin: DeallocatesClaims, keys: list[ClaimKey], group_plugins: GroupPlugins | None
    ) -> bool:
        """Return True if the unit fits, perhaps after evictions, while these claims are not allocated."""
        state, journal = self._cluster, self._cluster.columns.journal
        mark = journal.mark()
        try:
            plugin.disregard(keys)
            built = build(state, tree.group, tree.pending, state.settings.search_budget, tree.priority)
            answer = self._place(tree, built, group_plugins)
            if isinstance(answer, Placed) or answer.hopeless or not state.profiles[tree.scheduler_name].preempts:
                return isinstance(answer, Placed)
            return self._preemption.plan(tree, built, group_plugins).found
        except Unplaceable:
            return False
        finally:
            journal.rewind(mark)

    def _unless_devices_are_released(self, unit: AttemptUnit, found: PreemptionResult) -> PreemptionResult:
        """Replace a plan by waiting if the unit fits as soon as devices of deleted pods are released.

        Until then it evicts no further pods and keeps its nominations.
        """
        affected = any(record.shape.claims for record in unit.records)
        if not affected or not (found.found or any(record.nominated for record in unit.records)):
            return found
        journal = self._cluster.columns.journal
        for plugin in self._cluster.profiles[unit.scheduler_name].deallocators:
            if keys := plugin.leaving():
                mark = journal.mark()
                plugin.disregard(keys)
                answer = self.search(unit, AttemptOptions(evict=False))
                journal.rewind(mark)
                if isinstance(answer, Placed):
                    return PreemptionResult(f"preemption: {RELEASING}" if isinstance(unit, SinglePod) else RELEASING)
        return found

    # ---- 4. Reserve and Permit

    def _reserve(self, unit: AttemptUnit, placed: Placed) -> Placed | Refused:
        """Count the pods on their rows and call Reserve and Permit; a refusal undoes all of it.

        Permit may delay a single pod. For a group, a Permit plugin that waits is a refusal.
        """
        if isinstance(unit, SinglePod):
            return self._reserve_pod(unit.record, placed)
        refused = reserve_and_permit(self._cluster, placed.assignment, waiting_is_refusal=True)
        if refused is None:
            return placed
        record, status = refused
        assert placed.built is not None
        text = messages.refused_pod(record.key, status.message)
        return Refused(Cause.PERMIT if status.rejected else Cause.ERROR, text, GroupSearch(placed.built))

    def _reserve_pod(self, record: PodRecord, placed: Placed) -> Placed | Refused:
        state, row = self._cluster, placed.assignment[0][1]
        state.columns.place(record, row)
        plugins = state.profiles[record.scheduler_name].for_shape(record.shape)
        status = reserve(state, record, row) if plugins.reserve else None
        if status is None:
            status = permit(state, record, row) if plugins.permit else None
            if status is None:
                return placed
            if status.code is Code.WAIT:
                return replace(placed, wait=status)
        unreserve(state, record, row)
        state.columns.unplace(record)
        return Refused(Cause.PERMIT if status.rejected else Cause.ERROR, status.message)
