"""One attempt: from the state and a root to an answer. The only one there is.

The scheduler commits the answer; `why`, `whatif` and `plan` read it. Nothing is changed by asking: trials are rewound,
and what PostFilter plugins want done is part of the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from phalanx.engine.framework import Code, PostFilterResult, Status
from phalanx.engine.framework.adapters import PluginFailure, guarded
from phalanx.engine.framework.choice import choose
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.framework.diagnosis import Diagnosis, reserved_text
from phalanx.engine.framework.evaluation import Evaluation
from phalanx.engine.framework.interface import Finding
from phalanx.engine.framework.traits import traits_of
from phalanx.engine.groups import completion, expected_pods, messages
from phalanx.engine.groups.admission import all_short, hold_of
from phalanx.engine.groups.build import FEW_SHAPES, Built, Unplaceable, build
from phalanx.engine.groups.expected_pods import reserved_for
from phalanx.engine.groups.find_placement import Found, NotFound, find
from phalanx.engine.groups.group_plugins import GroupPlugins
from phalanx.engine.groups.outcomes import counter, expected_placements
from phalanx.engine.groups.trial import Assignment, fits_still
from phalanx.engine.scheduling.attempt.answers import (
    Answer,
    Cause,
    NominatedAfterPreemption,
    Placed,
    Refused,
    refused_by_plugin,
)
from phalanx.engine.scheduling.attempt.group_preemption import GroupPreemption
from phalanx.engine.scheduling.attempt.pod_preemption import Look, PodPreemption
from phalanx.engine.scheduling.lifecycle.gang_commits import Commits
from phalanx.engine.scheduling.lifecycle.reserve_permit import gate_of, rehearse
from phalanx.engine.scheduling.queue.units import GroupTree
from phalanx.engine.slices import in_slices, worked
from phalanx.engine.state.records import PodRecord
from phalanx.engine.state.shapes import Shape
from phalanx.model.groups import Group

RELEASED = "; members bound in an attempt that could not be completed are released"


_FOR_ROOM = frozenset({Cause.ROOM, Cause.RULES, Cause.EXTRAS, Cause.WHOLE})
EVALUATION = 10  # steps of work that a new shape costs, and one more for so many rows:
ROWS_PER_STEP = 64


class Attempts:
    def __init__(self, state: ClusterState, pods: PodPreemption, groups: GroupPreemption, commits: Commits) -> None:
        self._cluster = state
        self._pods = pods
        self._groups = groups
        self._commits = commits
        self._points: dict[str, GroupPlugins | None] = {}  # by scheduler name

    # ---- pods

    def pod(self, record: PodRecord, *, evict: bool = True, rows: int | None = None) -> Answer:
        """`evict`: also look whom to evict, and ask PostFilter plugins. `rows`: raises MoreRows where it takes more
        looks at rows than so many to know."""
        state = self._cluster
        try:
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
                    diagnosis.reserved_for = reserved_for(state.nominations, record.priority, nodes)
            refused = Refused(Cause.ROOM, "", evaluation=evaluation, diagnosis=diagnosis, alike=True)
            if evict:
                return self._after_filters(record, refused, diagnosis, rows)
            refused.message = diagnosis.message
            return refused
        except PluginFailure as failure:
            return Refused(Cause.ERROR, str(failure))

    def _after_filters(self, record: PodRecord, refused: Refused, diagnosis: Diagnosis, rows: int | None) -> Answer:
        """PostFilter plugins in order, with preemption at the place of the plugin that asks for it."""
        notes: list[str] = []
        found: Look | None = None
        for plugin in self._cluster.profiles[record.scheduler_name].post_filters:
            if traits_of(plugin).preempts:
                found = self._pods.look(record, diagnosis, rows)
                result = PostFilterResult(found.status, found.nominate, found.message, found.alike)
            else:
                found = None
                result = guarded(plugin, plugin.post_filter, record, diagnosis)
                if not isinstance(result, PostFilterResult):
                    raise PluginFailure(plugin.name, f"post_filter() returned {type(result).__name__}")
            refused.nominate, refused.alike = result.nominate, result.hopeless
            refused.decisions += result.decisions
            if result.message:
                notes.append(result.message)
            if result.status.code in (Code.SUCCESS, Code.UNRESOLVABLE):
                break
            if result.status.code is Code.ERROR:
                raise PluginFailure(plugin.name, result.status.message)
        diagnosis.post_filter = ", ".join(notes)
        refused.message = diagnosis.message
        if found is None:
            return refused
        refused.asks, refused.leaving, refused.victims_go = found.asks, found.leaving, found.waits
        if found.candidate is None:
            return refused
        return NominatedAfterPreemption(
            refused, found.candidate.units, [(record, found.candidate.row)], found.candidate
        )

    # ---- groups

    def points(self, tree: GroupTree) -> GroupPlugins | None:
        """The group plugins of the pods' profile; None: there are none, which is the rule."""
        name = tree.scheduler_name
        if name not in self._points:
            self._points[name] = GroupPlugins(self._cluster.profiles[name], self._cluster.columns) or None
        return self._points[name]

    def group(self, tree: GroupTree, *, evict: bool = True, hurry: int = 1) -> Answer:
        """`evict`: also look whom to evict, and ask PodGroupPostFilter plugins. `hurry`: search so many times less."""
        state = self._cluster
        try:
            built = build(
                state,
                tree.group,
                tree.pending,
                state.settings.search_budget // hurry,
                tree.priority,
                evaluated=self._evaluated(tree) if in_slices() else {},
            )
            points = self.points(tree)
            whole = self._whole(tree)
            answer = (
                self._place(tree, built, points) if whole is None else self._place_whole(tree, built, whole, points)
            )
            if isinstance(answer, Refused) and answer.cause in _FOR_ROOM and state.nominations:
                own = {leaf.key for leaf in tree.forest.leaves(tree.group.key)}
                others = reserved_for(state.nominations, tree.priority, None, own)
                answer.notes += f"; {reserved_text(others)}" if others else ""
            if evict and isinstance(answer, Refused) and (answer.cause is not Cause.WHOLE or whole is not None):
                return self._make_room(tree, whole if answer.cause is Cause.WHOLE and whole else built, answer, points)
            return answer
        except PluginFailure as failure:
            return Refused(Cause.ERROR, str(failure))
        except Unplaceable as problem:
            return Refused(Cause.TORN, str(problem))

    def at_once(self, tree: GroupTree) -> Placed | None:
        """The answer where counting alone gives it: one group of equal pods without rules about each other, and room
        for it. None: `group` has to look."""
        group, shape = tree.group, tree.records[0].shape
        spec = group.spec
        if group.composite or spec is None or spec.preferred_key is not None or self.points(tree) is not None:
            return None
        if any(record.shape is not shape for record in tree.records):
            return None
        state = self._cluster
        if expected_pods.said(group) is not None or completion.wanted(group) or state.columns.devices():
            return None
        try:
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
        """What filters and scores say of every shape: where no two pods are alike that takes longer than the search."""
        shapes = {record.shape: record for record in tree.records}
        found: dict[Shape, Evaluation] = {}
        each = EVALUATION + self._cluster.columns.n // ROWS_PER_STEP
        if len(shapes) * each <= self._cluster.settings.search_slice // 2:
            return found  # soon done
        for shape, record in shapes.items():
            found[shape] = evaluation = self._cluster.evaluation(record)
            evaluation.slots()
            worked(each)
        return found

    def fits(self, assignment: Assignment, before: Built | None = None) -> bool:
        """Whether seats that were found a while ago can be taken now. Raises nothing. `before`: what was built then."""
        known = dict(zip(before.shapes, before.evaluations, strict=True)) if before is not None else {}
        try:
            return not assignment or fits_still(self._cluster, assignment, known)
        except PluginFailure:
            return False

    def _place(self, tree: GroupTree, built: Built, points: GroupPlugins | None) -> Placed | Refused:
        group = tree.group
        if not group.composite and (text := self._in_vain(tree, built)) is not None:
            return Refused(Cause.WHOLE, text, built=built)
        pending = sum(len(records) for records in built.pending.values())
        status = points.hopeless(group, pending) if points is not None else None
        found = find(self._cluster, group, built, points) if status is None else status
        if isinstance(found, Status):
            return refused_by_plugin(found, built, messages.UNSCHEDULABLE)
        if isinstance(found, NotFound):
            cause = Cause.RULES if found.rules else Cause.ROOM
            outcome = None if found.rules else found.outcome
            return Refused(cause, found.text(group, built), built=built, outcome=outcome)
        if not found.assignment:
            # Enough runs already; what is left over is not complete, or does not fit.
            shortages = all_short(tree.forest, built)
            if shortages:
                return Refused(Cause.EXTRAS, messages.lacking(shortages), hopeless=True, built=built)
            return Refused(Cause.EXTRAS, messages.leftovers(group, built), built=built)
        return self._allowed(built, found, points)

    def _allowed(self, built: Built, found: Found, points: GroupPlugins | None) -> Placed | Refused:
        satisfied = [built.group_of[part] for part in built.group_of if part in found.satisfied]
        refused = points.refused(satisfied, counter(built, found.assignment)) if points is not None else None
        if refused is not None:
            return refused_by_plugin(refused, built, messages.UNSCHEDULABLE)
        if in_slices() and len(built.shapes) > FEW_SHAPES:
            for evaluation in built.evaluations:  # they are asked again in the end, and little will have happened since
                worked(8)
                evaluation.refresh()
        worked(len(found.assignment) // 2)  # committing many takes long: not in the slice of a long search
        return Placed(found.assignment, built, satisfied)

    # ---- groups of which more is to come

    def _whole(self, tree: GroupTree) -> Built | None:
        """The tree with the pods that are to come, beside what groups that have started still lack."""
        state, mine = self._cluster, list(tree.forest.leaves(tree.group.key))
        if not any(expected_pods.said(leaf) for leaf in mine):
            return None
        own = {leaf.key for leaf in mine}
        others = [leaf for leaf in self._begun(tree) if leaf.key not in own]
        found = expected_pods.outstanding_pods(state, mine, others, tree.priority)
        if found is None:
            return None
        budget = state.settings.search_budget
        if found.beside and not self._others_fit(tree, found):
            found = expected_pods.ExpectedPods(found.wholes)  # they cannot be completed, whatever becomes of this one
        return build(state, tree.group, tree.pending, budget, tree.priority, found)

    def _others_fit(self, tree: GroupTree, found: expected_pods.ExpectedPods) -> bool:
        first, *rest = found.beside
        budget = self._cluster.settings.search_budget
        beside = expected_pods.ExpectedPods(found.wholes, tuple(rest))
        try:
            built = build(self._cluster, first, tree.pending, budget, tree.priority, beside)
        except Unplaceable:
            return False
        return isinstance(find(self._cluster, first, built), Found)

    def _place_whole(
        self, tree: GroupTree, built: Built, whole: Built, points: GroupPlugins | None
    ) -> Placed | Refused:
        """All pods there will be have a place; those that exist get theirs."""
        found = find(self._cluster, tree.group, whole, points)
        if isinstance(found, Found):
            mine = {record.key for record in tree.records}
            assignment = [(record, row) for record, row in found.assignment if record.key in mine]
            satisfied = {id(built.part_of[g.key]) for part, g in whole.group_of.items() if part in found.satisfied
                         if g.key in built.part_of}  # fmt: skip
            answer = self._allowed(built, replace(found, assignment=assignment, satisfied=satisfied), points)
            if isinstance(answer, Placed):
                return replace(answer, expected_placements=expected_placements(whole, found.assignment, mine))
            return answer
        if tree.group.placed or tree.group.composite or isinstance(found, Status):
            return self._place(tree, built, points)  # it runs already: whoever can, follows
        return Refused(Cause.WHOLE, messages.whole(tree.group, len(next(iter(whole.pending.values())))), built=built)

    def _begun(self, tree: GroupTree) -> Iterator[Group]:
        """Groups that have started and say that more of them is to come."""
        forests = {id(forest): forest for forest in (self._cluster.forest, tree.forest)}.values()
        return (leaf for forest in forests for leaf in forest.begun())

    def _in_vain(self, tree: GroupTree, built: Built) -> str | None:
        if not completion.wanted(tree.group) or expected_pods.said(tree.group) is not None:
            return None
        return completion.cannot_complete(self._cluster.columns, tree.group, self._begun(tree), built)

    def _make_room(
        self, tree: GroupTree, built: Built, refused: Refused, points: GroupPlugins | None
    ) -> NominatedAfterPreemption | Refused:
        if tree.forest is self._cluster.forest and self._commits.incomplete(tree.group):
            refused.releases, refused.notes = True, RELEASED
            return refused
        if points is not None:
            helped, notes, decisions = points.after_failure(tree.group, list(tree.records), refused)
            refused.decisions += decisions
            refused.notes += "".join(f", {note}" for note in notes)
            if helped:
                return refused
        if refused.hopeless or not self._cluster.profiles[tree.scheduler_name].preempts:
            return refused
        found = self._groups.look(tree, built, points)
        if found.note:
            refused.notes += f", pod group preemption: {found.note}"
        refused.gives_up = found.gives_up
        if not found.units and not found.assignment:
            refused.no_plan = found.answer
            return refused
        mine = {record.key for record in tree.records}
        assignment = [(record, row) for record, row in found.assignment if record.key in mine]
        return NominatedAfterPreemption(
            refused, found.units, assignment, found.answer, expected_placements(built, list(found.assignment), mine)
        )

    # ---- with the gates before and the reservations after, for questions

    def whole_pod(self, record: PodRecord, *, evict: bool = False) -> Answer:
        """From the gate to the last plugin that is asked before binding. A Placed answer leaves the pod in the columns,
        and reserved: whoever asks has opened a mark and takes it back (`reservations.release`)."""
        held = gate_of(self._cluster, [record])
        if held is not None:
            return Refused(Cause.HELD, held[1].message)
        answer = self.pod(record, evict=evict)
        if isinstance(answer, Placed):
            refused = rehearse(self._cluster, answer.assignment, waiting_is_refusal=False)
            if refused is not None:
                return Refused(Cause.PLUGIN, refused[1].message)
        return answer

    def whole_group(self, tree: GroupTree, *, evict: bool = False, gated: bool = False) -> Answer:
        """Likewise. `gated`: ask although its pods are held by gates of their own."""
        if not gated:
            hold = hold_of(tree.forest, tree.group.key)
            if hold is not None:
                return Refused(Cause.HELD, hold.message)
            held = gate_of(self._cluster, tree.records)
            if held is not None:
                return Refused(Cause.HELD, held[1].message)
        answer = self.group(tree, evict=evict)
        if isinstance(answer, Placed):
            refused = rehearse(self._cluster, answer.assignment, waiting_is_refusal=True)
            if refused is not None:
                text = messages.refused_pod(refused[0].key, refused[1].message)
                return Refused(Cause.PLUGIN, text, built=answer.built)
        return answer
