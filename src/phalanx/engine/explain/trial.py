"""Build variants of a placement problem, and convert an answer to a verdict for reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from phalanx.engine.explain.values import Verdict, proof_of
from phalanx.engine.framework import Status
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.groups.build import Built
from phalanx.engine.groups.find_placement import Found, find
from phalanx.engine.groups.group_plugins import GroupPlugins
from phalanx.engine.groups.trial import Assignment
from phalanx.engine.placement import Composite, Leaf, PlacementProblem, Subtree
from phalanx.engine.scheduling.attempt.answers import Answer, Cause, NominatedAfterPreemption, Placed
from phalanx.engine.scheduling.attempt.attempt import AttemptOptions
from phalanx.engine.scheduling.lifecycle.reserve_permit import release
from phalanx.engine.scheduling.queue.units import AttemptUnit
from phalanx.engine.state.records import PodRecord
from phalanx.engine.state.shapes import Shape
from phalanx.model.groups import Group

if TYPE_CHECKING:
    from phalanx.engine.scheduling.scheduler import Scheduler


_RESULTS = {
    Cause.ROOM: "impossible",
    Cause.RULES: "rules",
    Cause.EXTRAS: "impossible",
    Cause.WHOLE: "refused",
    Cause.PLUGIN: "refused",
    Cause.PERMIT: "refused",
    Cause.HELD: "untried",
    Cause.PARTIAL: "error",
    Cause.ERROR: "error",
}


def verdict_of(answer: Answer) -> Verdict:
    if isinstance(answer, Placed):
        return Verdict("placed")
    if isinstance(answer, NominatedAfterPreemption):
        answer = answer.refused
    outcome = answer.outcome
    if outcome is None:
        return Verdict(_RESULTS[answer.cause], answer.message)
    proof = proof_of(outcome.certificate)
    return Verdict(outcome.verdict.value, answer.message, proof, outcome.expansions, reserved=answer.reserved)


def fits(state: ClusterState, group: Group, built: Built, group_plugins: GroupPlugins | None = None) -> bool | None:
    """Return whether a variant fits; None if it is unknown."""
    # Ranks are preferences: they never prevent a placement.
    found = find(state, group, built, group_plugins, ranks=False)
    if isinstance(found, Found):
        return True
    return False if isinstance(found, Status) or found.proved else None


def changed(problem: PlacementProblem, **changes: Any) -> PlacementProblem:
    """Return a separate problem with some fields changed, even if the original shares its arrays with the columns."""
    kept = {each.name: getattr(problem, each.name) for each in fields(PlacementProblem)}
    return PlacementProblem(**{**kept, **changes})


Edit = Callable[[Subtree], Subtree]


def edited(built: Built, edit: Edit, change: Callable[[PlacementProblem], PlacementProblem] | None = None) -> Built:
    """Return the same pods as another problem. `edit` is called for every group of the tree, children first."""
    pending: dict[int, list[PodRecord]] = {}
    group_of: dict[int, Group] = {}

    def walk(part: Subtree) -> Subtree:
        made = part
        if isinstance(part, Composite):
            made = replace(part, children=tuple(walk(child) for child in part.children))
        made = edit(made)
        if made is part:
            made = replace(part)  # a separate copy: problems do not share groups
        if isinstance(made, Leaf):
            pending[id(made)] = built.pending[id(part)]
        group_of[id(made)] = built.group_of[id(part)]
        keep.append(made)
        return made

    keep: list[Subtree] = []  # ids stay unique only while these objects exist
    problem = changed(built.problem, root=walk(built.problem.root))
    if change is not None:
        problem = change(problem)
    part_of = {group_of[id(part)].key: part for part in keep if id(part) in group_of}
    return replace(built, problem=problem, pending=pending, group_of=group_of, part_of=part_of)


class TrialAttempt:
    """Run attempts for a query. Placed units stay placed until the end, so that later units are tried next to them."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._cluster = scheduler.cluster
        self._attempts = scheduler.attempts
        self._starts = scheduler.starts
        self._ignored: list[tuple[PodRecord, str]] = []  # reservations that do not count against the unit that is tried
        self._assignment: Assignment = []  # pods that are reserved
        self._reshaped: list[tuple[PodRecord, Shape, int]] = []  # with their previous shape and epoch

    def __enter__(self) -> TrialAttempt:
        self._mark = self._cluster.columns.journal.mark()
        return self

    def __exit__(self, *_: object) -> None:
        self._put_back()
        release(self._cluster, self._assignment)
        self._cluster.columns.journal.rewind(self._mark)
        for record, shape, epoch in self._reshaped:
            self._cluster.shapes.drop(record.shape)
            record.shape, record.shape_epoch = shape, epoch

    def attempt(
        self,
        unit: AttemptUnit,
        *,
        evict: bool = False,
        gates: bool = True,
        before_evictions: Callable[[], None] | None = None,
    ) -> Answer:
        """Make the attempt that the scheduler would make.

        `gates`: False tries a unit even if its gates hold it. `before_evictions`: called with the cluster as it is, if
        the answer is a plan whose victims then leave.
        """
        self._as_tried(unit.records)
        self._put_back()
        if self._starts.held:
            self._ignored = self._starts.ignore_reservations(unit.records)
        answer = self._attempts.attempt(unit, AttemptOptions(gates=gates, evict=evict))
        assert answer is not None, "questions are not answered in slices"
        if before_evictions is not None and isinstance(answer, NominatedAfterPreemption):
            before_evictions()
        return self._keep(answer)

    def _put_back(self) -> None:
        ignored, self._ignored = self._ignored, []
        self._starts.put_back(ignored)

    def _as_tried(self, records: Iterable[PodRecord]) -> None:
        """Compute shapes again if the label interest changed, as the scheduler does before an attempt. Pods of a query
        (epoch -1) keep the shape they were given."""
        shapes = self._cluster.shapes
        for record in records:
            if record.shape_epoch in (shapes.interest.epoch, -1) or record.pod is None or record.row >= 0:
                continue
            self._reshaped.append((record, record.shape, record.shape_epoch))
            record.shape, record.shape_epoch = shapes.of(record.pod), shapes.interest.epoch
            shapes.keep(record.shape)

    def _keep(self, answer: Answer) -> Answer:
        """Place the pods of an answer, so that the next question finds them on their nodes."""
        if isinstance(answer, Placed):
            self._assignment += answer.assignment
        elif isinstance(answer, NominatedAfterPreemption):
            columns = self._cluster.columns
            for pod in answer.victims:
                columns.unplace(pod)
            for record, row in answer.assignment:
                columns.place(record, row)
        return answer
