"""Run an attempt without committing it: from the gates to the last plugin before Bind, then undo everything."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from phalanx.engine.groups.trial import Assignment
from phalanx.engine.scheduling.attempt.answers import Answer, NominatedAfterPreemption, Placed
from phalanx.engine.scheduling.attempt.attempt import How
from phalanx.engine.scheduling.lifecycle.reserve_permit import release
from phalanx.engine.scheduling.queue.units import AttemptUnit
from phalanx.engine.state.records import PodRecord
from phalanx.engine.state.shapes import Shape

if TYPE_CHECKING:
    from phalanx.engine.scheduling.scheduler import Scheduler


class TrialAttempt:
    """Run attempts for a query. Placed units stay placed until the end, so that the next unit is tried next to them."""

    def __init__(self, engine: Scheduler) -> None:
        self._cluster = engine.cluster
        self._attempts = engine.attempts
        self._starts = engine.starts
        self._lifted: list[tuple[PodRecord, str]] = []  # reservations that do not count against the unit that is tried
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

    def attempt(self, unit: AttemptUnit, *, evict: bool = False, gates: bool = True) -> Answer:
        """Make the attempt that the scheduler would make. `gates`: False tries a unit even if its gates hold it."""
        self._as_tried(unit.records)
        self._put_back()
        if self._starts.held:
            self._lifted = self._starts.lift(unit.records)
        answer = self._attempts.attempt(unit, How(gates=gates, evict=evict))
        assert answer is not None, "questions are not answered in slices"
        return self._keep(answer)

    def _put_back(self) -> None:
        lifted, self._lifted = self._lifted, []
        self._starts.put_back(lifted)

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
        if isinstance(answer, Placed):
            self._assignment += answer.assignment
        elif isinstance(answer, NominatedAfterPreemption):
            columns = self._cluster.columns
            for pod in answer.victims:
                columns.unplace(pod)
            for record, row in answer.assignment:
                columns.place(record, row)
        return answer
