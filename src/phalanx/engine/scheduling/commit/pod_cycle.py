"""Attempts of single pods: what is done with the answer. Bound, nominated and waiting for victims, or asleep."""

from __future__ import annotations

from phalanx.engine.framework import Emit
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.preemption.single_pod import MoreRows
from phalanx.engine.scheduling.attempt.answers import NominatedAfterPreemption, Placed, Refused, carry_out
from phalanx.engine.scheduling.attempt.attempt import Attempts
from phalanx.engine.scheduling.commit.binding import Binding
from phalanx.engine.scheduling.commit.evictions import Evictions
from phalanx.engine.scheduling.lifecycle.pod_lifecycle import PodLifecycle
from phalanx.engine.scheduling.lifecycle.pod_status import SCHEDULER_ERROR, UNSCHEDULABLE, PodStatus
from phalanx.engine.scheduling.lifecycle.unit_lifecycle import UnitLifecycle
from phalanx.engine.scheduling.queue.queue import Queue
from phalanx.engine.scheduling.queue.units import SchedulingUnit
from phalanx.engine.scheduling.queue.waiting import Waiting, equivalence_key
from phalanx.engine.state.records import PodRecord

LOOK = 8  # steps of work that a look costs at whom to evict on a row
PATIENCE = 4  # times the slices that it takes where nothing changes


class PodCycle:
    def __init__(
        self,
        state: ClusterState,
        queue: Queue,
        unit_lifecycle: UnitLifecycle,
        attempts: Attempts,
        binding: Binding,
        pod_lifecycle: PodLifecycle,
        evictions: Evictions,
        waiting: Waiting,
        status: PodStatus,
        emit: Emit,
    ) -> None:
        self._cluster = state
        self._queue = queue
        self._unit_lifecycle = unit_lifecycle
        self._attempts = attempts
        self._binding = binding
        self._pod_lifecycle = pod_lifecycle
        self._evictions = evictions
        self._waiting = waiting
        self._status = status
        self._emit = emit
        self._slices: dict[str, int] = {}  # root key -> how often it was put aside

    def attempt(self, unit: SchedulingUnit) -> None:
        """Work on a popped root. Never raises for a plugin's fault."""
        came_from = unit.equivalence_class
        unit.equivalence_class = None
        try:
            self._attempt(unit, unit.record)
        except MoreRows:
            self._slices[unit.key] = self._slices.get(unit.key, 0) + 1
            self._queue.put_aside(unit, came_from)
            return
        if self._slices:
            self._slices.pop(unit.key, None)
        if came_from is not None:
            self._queue.attempted(unit, came_from)

    def _attempt(self, unit: SchedulingUnit, record: PodRecord) -> None:
        # Pods of a failed shape fail like their twin did, until something wakes the bucket.
        equivalence_class = self._queue.sleeping(equivalence_key(record))
        if equivalence_class is not None and not record.nominated:
            self._queue.join(unit, equivalence_class)
            self._status.say(record, UNSCHEDULABLE, equivalence_class.message)
            return
        self._unit_lifecycle.drop_stale_plan(unit)
        answer = self._attempts.pod(record, rows=self._rows(unit))
        carry_out(answer, self._emit)
        if isinstance(answer, Placed):
            self._binding.commit(unit, record, answer.assignment[0][1])
        elif isinstance(answer, NominatedAfterPreemption):
            self._evictions.carry_out_for_pod(unit, answer)
            self._unschedulable(unit, record, answer.refused, victims_go=True)
        elif answer.diagnosis is None:
            self._fail(unit, record, answer.message)
        else:
            if answer.leaving:
                self._evictions.await_leaving(unit, answer.leaving)
            self._unschedulable(unit, record, answer, victims_go=answer.victims_go)

    def _rows(self, unit: SchedulingUnit) -> int | None:
        """How many rows may be looked at for whom to evict before others are served; None: all of them. What is in the
        way changes all the time: whoever was put aside too often is not put aside again."""
        limit = self._cluster.settings.search_slice
        if not limit:
            return None
        few = max(1, limit // LOOK)
        often = self._slices.get(unit.key, 0) > PATIENCE * (1 + self._cluster.columns.n // few)
        return None if often else few

    # ---- failure

    def _fail(self, unit: SchedulingUnit, record: PodRecord, message: str) -> None:
        """An error, not a verdict: try again after a while."""
        self._status.say(record, SCHEDULER_ERROR, message)
        self._unit_lifecycle.back_off(unit)

    def _unschedulable(self, unit: SchedulingUnit, record: PodRecord, refused: Refused, *, victims_go: bool) -> None:
        """`victims_go`: room is being made for it."""
        diagnosis, profile = refused.diagnosis, self._cluster.profiles[record.scheduler_name]
        assert diagnosis is not None
        if refused.nominate is not None:
            self._pod_lifecycle.nominate(record, refused.nominate)
        message = refused.message
        self._status.say(record, UNSCHEDULABLE, message)
        if victims_go and all(profile.plugins.get(name) in profile.row_filters for name in diagnosis.plugins):
            self._waiting.sleep_until_victims_are_gone(unit, message)  # only the row itself decides about a row
            return
        shared = refused.alike and not record.nominated
        self._waiting.sleep(
            unit, record, profile, diagnosis.plugins, message, self._cluster.now, shared=shared, asks=refused.asks
        )
