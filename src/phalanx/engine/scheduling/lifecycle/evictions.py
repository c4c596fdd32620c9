"""Evictions under way: who has been sent away, and what their going means for the roots that wait for it.

While a plan stands its root is not given a second one. When the last victim is gone the root is tried at once. A plan
is void when its preemptor is gone, when one of its nodes is, or when an eviction was refused for good. A pod in the way
of several roots is sent away once; if that is refused, none of their plans can come true.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from phalanx.engine import decisions as d
from phalanx.engine.framework import ClusterChange, Emit, Wake
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.scheduling.lifecycle.unit_lifecycle import UnitLifecycle
from phalanx.engine.scheduling.queue.queue import Queue
from phalanx.engine.scheduling.queue.units import PreemptionInProgress, SchedulingUnit
from phalanx.engine.state.records import PodRecord
from phalanx.engine.state.shapes import Shape

GONE_LONG = 600.0  # seconds; a victim that refuses to die must not block its preemptor for ever


class Sent(NamedTuple):
    """A pod that was sent away."""

    uid: str
    decision: int
    at: float  # seconds


class Evictions:
    def __init__(self, state: ClusterState, queue: Queue, unit_lifecycle: UnitLifecycle, emit: Emit) -> None:
        self._cluster = state
        self._queue = queue
        self._unit_lifecycle = unit_lifecycle
        self._emit = emit
        self._sent: dict[str, Sent] = {}  # pod key -> the eviction it got, while it is there
        self._by_decision: dict[int, str] = {}  # Evict not answered yet -> pod key

    def plan_of(self, key: str) -> PreemptionInProgress | None:
        """Whom a root, by its key, waits for to go."""
        return self._unit_lifecycle.plan_of(key)

    def stands(self, plan: PreemptionInProgress | None) -> bool:
        """Whether a plan makes it pointless to look for another one."""
        if plan is None or self._cluster.now - plan.since > GONE_LONG:
            return False
        return all(node in self._cluster.columns.row_of for node in plan.nodes)

    def look_again(self, unit: SchedulingUnit) -> None:
        """Before an attempt: a plan that came to nothing is no reason to wait."""
        if unit.plan is not None and not self.stands(unit.plan):
            self._unit_lifecycle.give_up(unit)

    def begin(
        self,
        unit: SchedulingUnit,
        nodes: Iterable[str],
        victims: Sequence[PodRecord],
        leaving: Iterable[PodRecord] = (),
        *,
        text: str = "",
        kind: str = "pod",
        uid: str = "",
        node: str = "",
    ) -> set[str]:
        """Send the victims away and remember for whom; answers who had not been sent away before. `leaving` are
        terminating already and only waited for."""
        everybody = {record.key: record.uid for record in (*victims, *leaving)}
        if not everybody:
            self._unit_lifecycle.give_up(unit)
            return set()  # nobody to wait for
        now = self._cluster.now
        self._unit_lifecycle.evict(unit, PreemptionInProgress(frozenset(nodes), everybody, now, len(victims), text))
        fresh = [record for record in victims if not self._is_sent(record, now)]
        for record in fresh:
            number = self._emit(
                d.Evict,
                namespace=record.namespace,
                name=record.name,
                uid=record.uid,
                message=f"{record.scheduler_name}: preempting to accommodate a higher priority {kind}",
                event_message=f"Preempted by {kind} {uid} on node {node}",
                preemptor=unit.key,
            )
            before = self._sent.get(record.key)
            if before is not None:
                self._by_decision.pop(before.decision, None)  # nobody ever answered
            self._sent[record.key] = Sent(record.uid, number, now)
            self._by_decision[number] = record.key
        return {record.key for record in fresh}

    def _is_sent(self, record: PodRecord, now: float) -> bool:
        """For somebody else, a while ago at most."""
        sent = self._sent.get(record.key)
        return sent is not None and sent.uid == record.uid and now - sent.at <= GONE_LONG

    def leaving(self, pod: str) -> bool:
        """Whether a pod has been sent away for somebody."""
        return self._unit_lifecycle.is_victim(pod)

    # ---- what happens meanwhile

    def gone(self, record: PodRecord) -> None:
        """A pod object is gone or finished."""
        sent = self._sent.pop(record.key, None)
        if sent is not None:
            self._by_decision.pop(sent.decision, None)
        self._unit_lifecycle.victim_gone(record.key)

    def answered(self, decision: int, problem: str) -> None:
        """The outcome of an Evict. Refused for good: plans that wait for the pod cannot come true as they are."""
        pod = self._by_decision.pop(decision, None)
        if pod is None or not problem:
            return
        del self._sent[pod]
        self._unit_lifecycle.victim_stays(pod)

    def validate(self) -> None:
        for number, pod in self._by_decision.items():
            assert self._sent[pod].decision == number, f"eviction {number} of {pod}"
        for pod, sent in self._sent.items():
            record = self._cluster.records.get(pod)
            assert record is not None and record.uid == sent.uid, f"{pod} was sent away and is gone"

    # ---- sleeping

    def sleep(self, unit: SchedulingUnit, message: str) -> None:
        """A single pod whose victims are leaving: until they are gone, or until there is room that nobody was
        promised. Pods of one shape share a bucket: one question per change, however many of them wait."""
        record = unit.record
        shape = record.shape
        self._queue.wait(
            unit,
            ("ongoing", shape.id, record.priority),
            Wake.NODE,
            lambda equivalence_class, change: self._room(shape, record.priority, change),
            self._cluster.now,
            message=message,
            needs=shape.requests,
        )

    def _room(self, shape: Shape, priority: int, change: ClusterChange) -> bool:
        """Whether the changed row has room beside what is promised to others."""
        columns = self._cluster.columns
        if change.row < 0:
            return True  # a node is gone: perhaps the one they were promised
        row = change.row
        left = {rid: columns.alloc_cell[rid][row] - columns.used_cell[rid][row] for rid, _ in shape.requests}
        for other in self._cluster.nominations.on(columns.names[change.row]):
            if other.row < 0 and other.priority >= priority:
                for rid, amount in other.shape.requests:
                    if rid in left:
                        left[rid] -= amount
        return all(left[rid] >= amount for rid, amount in shape.requests)

    def expected(self, unit: str, change: ClusterChange) -> bool:
        """Whether a change is only a step of the root's own plan: not worth an attempt before the last step."""
        plan = self.plan_of(unit)
        if plan is None or change.row < 0 or change.kind & Wake.NODE:
            return False
        return self._cluster.columns.names[change.row] in plan.nodes
