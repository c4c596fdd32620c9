"""Write the status of pending pods: the PodScheduled condition and the nominated node."""

from __future__ import annotations

from sys import intern

from phalanx.engine import decisions as d
from phalanx.engine.events import PERMANENT
from phalanx.engine.framework import Emit
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.scheduling.lifecycle.history import History
from phalanx.engine.state.records import PodRecord

AFTER = 5.0  # seconds until a failed write is repeated

Condition = d.SetPodCondition | d.SetGroupCondition


class PendingWrites:
    def __init__(self, state: ClusterState) -> None:
        self._cluster = state
        # (kind, namespace, name, condition) -> (when, last failed write), earliest first
        self._unwritten: dict[tuple[str, str, str, str], tuple[float, Condition]] = {}

    def add(self, decision: Condition) -> None:
        kind = decision.kind if isinstance(decision, d.SetGroupCondition) else "Pod"
        key = (kind, decision.namespace, decision.name, decision.type)
        self._unwritten.pop(key, None)
        self._unwritten[key] = (self._cluster.now + AFTER, decision)

    def take(self) -> list[Condition]:
        """Return the writes that are due, once."""
        due: list[Condition] = []
        for when, decision in self._unwritten.values():
            if when > self._cluster.now:
                break
            due.append(decision)
        for key in list(self._unwritten)[: len(due)]:
            del self._unwritten[key]
        return due

    def next_time(self) -> float | None:
        """Return the time in seconds of the next due write."""
        return next((when for when, _ in self._unwritten.values()), None)


GATED = "SchedulingGated"
PROMISED = "StartPromised"  # a start is promised: no node is missing, so it is not Unschedulable
GATED_MESSAGE = "Scheduling is blocked due to non-empty scheduling gates"


class PodStatusWriter:
    def __init__(self, state: ClusterState, history: History, status_writes: PendingWrites, emit: Emit) -> None:
        self._cluster = state
        self._history = history
        self._status_writes = status_writes
        self._emit = emit

    def write_failed(self, record: PodRecord, decision: d.SetPodCondition, problem: str) -> None:
        """Write a failed condition again later, even without another event of the pod."""
        if record.last_condition != _condition_text(decision.reason, decision.message):
            return  # another condition was sent since
        record.last_condition = ""
        if problem != PERMANENT:  # retry after a 404 too: it may be wrong, and a deleted pod has no record
            self._status_writes.add(decision)

    def rewrite(self, decision: d.SetPodCondition) -> None:
        """Write the condition again, unless another one was sent since or the pod is no longer pending."""
        record = self._cluster.records.get(f"{decision.namespace}/{decision.name}")
        if record is not None and record.uid == decision.uid and not record.node_name and not record.last_condition:
            self.report(record, decision.reason, decision.message, event=False)

    def report(self, record: PodRecord, reason: str, message: str, *, headline: str = "", event: bool = True) -> None:
        """Write PodScheduled=False, with an event, unless it is unchanged. `headline`: a plain sentence for the
        event."""
        text = _condition_text(reason, message)
        if record.last_condition == text:
            return
        record.last_condition = intern(text)  # one text for all pods of a group
        self._history.note(record.key, reason, message)
        self._emit(
            d.SetPodCondition,
            namespace=record.namespace,
            name=record.name,
            uid=record.uid,
            reason=reason,
            message=message,
            observed_generation=record.generation,
        )
        if not event:
            return
        self._emit(
            d.RecordEvent,
            namespace=record.namespace,
            name=record.name,
            uid=record.uid,
            type="Warning",
            reason="FailedScheduling",
            action="Scheduling",
            message=(headline or message)[: d.MAX_EVENT_MESSAGE],
        )


def _condition_text(reason: str, message: str) -> str:
    return f"{reason}: {message}"
