"""Attempts of single pods: what is done with the answer. Bound, nominated and waiting for victims, or asleep."""

from __future__ import annotations

from phalanx.engine.framework import Emit
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.preemption.single import MoreRows
from phalanx.engine.scheduling.answers import Placed, PlacedAfter, Refused, carry_out
from phalanx.engine.scheduling.attempt import Attempts
from phalanx.engine.scheduling.binding import Binding
from phalanx.engine.scheduling.evictions import Evictions
from phalanx.engine.scheduling.pod_preemption import PodPreemption
from phalanx.engine.scheduling.pod_status import SCHEDULER_ERROR, UNSCHEDULABLE, PodStatus
from phalanx.engine.scheduling.queue import Queue
from phalanx.engine.scheduling.root_lives import RootLives
from phalanx.engine.scheduling.roots import Root
from phalanx.engine.scheduling.waiting import Waiting, twins_of
from phalanx.engine.state.records import PodRecord

LOOK = 8  # steps of work that a look costs at whom to evict on a row
PATIENCE = 4  # times the slices that it takes where nothing changes


class PodCycle:
    def __init__(
        self,
        state: ClusterState,
        queue: Queue,
        lives: RootLives,
        attempts: Attempts,
        binding: Binding,
        preemption: PodPreemption,
        evictions: Evictions,
        waiting: Waiting,
        status: PodStatus,
        emit: Emit,
    ) -> None:
        self._cluster = state
        self._queue = queue
        self._lives = lives
        self._attempts = attempts
        self._binding = binding
        self._preemption = preemption
        self._evictions = evictions
        self._waiting = waiting
        self._status = status
        self._emit = emit
        self._slices: dict[str, int] = {}  # root key -> how often it was put aside

    def attempt(self, root: Root) -> None:
        """Work on a popped root. Never raises for a plugin's fault."""
        came_from = root.bucket
        root.bucket = None
        try:
            self._attempt(root, root.record)
        except MoreRows:
            self._slices[root.key] = self._slices.get(root.key, 0) + 1
            self._queue.put_aside(root, came_from)
            return
        if self._slices:
            self._slices.pop(root.key, None)
        if came_from is not None:
            self._queue.attempted(root, came_from)

    def _attempt(self, root: Root, record: PodRecord) -> None:
        # Pods of a failed shape fail like their twin did, until something wakes the bucket.
        bucket = self._queue.sleeping(twins_of(record))
        if bucket is not None and not record.nominated:
            self._queue.join(root, bucket)
            self._status.say(record, UNSCHEDULABLE, bucket.message)
            return
        self._evictions.look_again(root)
        answer = self._attempts.pod(record, rows=self._rows(root))
        carry_out(answer, self._emit)
        if isinstance(answer, Placed):
            self._binding.commit(root, record, answer.seats[0][1])
        elif isinstance(answer, PlacedAfter):
            self._preemption.carry_out(root, answer)
            self._unschedulable(root, record, answer.refused, victims_go=True)
        elif answer.diagnosis is None:
            self._fail(root, record, answer.message)
        else:
            if answer.leaving:
                self._preemption.await_leaving(root, answer.leaving)
            self._unschedulable(root, record, answer, victims_go=answer.victims_go)

    def _rows(self, root: Root) -> int | None:
        """How many rows may be looked at for whom to evict before others are served; None: all of them. What is in the
        way changes all the time: whoever was put aside too often is not put aside again."""
        limit = self._cluster.settings.search_slice
        if not limit:
            return None
        few = max(1, limit // LOOK)
        often = self._slices.get(root.key, 0) > PATIENCE * (1 + self._cluster.columns.n // few)
        return None if often else few

    # ---- failure

    def _fail(self, root: Root, record: PodRecord, message: str) -> None:
        """An error, not a verdict: try again after a while."""
        self._status.say(record, SCHEDULER_ERROR, message)
        self._lives.back_off(root)

    def _unschedulable(self, root: Root, record: PodRecord, refused: Refused, *, victims_go: bool) -> None:
        """`victims_go`: room is being made for it."""
        diagnosis, profile = refused.diagnosis, self._cluster.profiles[record.scheduler_name]
        assert diagnosis is not None
        if refused.nominate is not None:
            self._status.nominate(record, refused.nominate)
        message = refused.message
        self._status.say(record, UNSCHEDULABLE, message)
        if victims_go and all(profile.plugins.get(name) in profile.row_filters for name in diagnosis.plugins):
            self._evictions.sleep(root, message)  # only the row itself decides about a row
            return
        shared = refused.alike and not record.nominated
        self._waiting.sleep(
            root, record, profile, diagnosis.plugins, message, self._cluster.now, shared=shared, asks=refused.asks
        )
