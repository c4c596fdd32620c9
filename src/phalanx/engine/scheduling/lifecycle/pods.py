"""Apply pod events to records and their lifecycle. Events may be late, repeated or out of order.

Rules: a pod with a node name counts on that node, whichever scheduler bound it. An assumed pod stays assumed until
the informer shows it bound, it is gone, or its Bind failed. An unbound version of a bound pod is outdated.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from phalanx.base.clock import parse_rfc3339
from phalanx.base.well_known import POD_SCHEDULED, SCHEDULER_ERROR
from phalanx.engine.framework import Code
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.preemption.victim_index import VictimIndex
from phalanx.engine.scheduling.lifecycle.members import Members
from phalanx.engine.scheduling.lifecycle.pod_lifecycle import PodLifecycle
from phalanx.engine.scheduling.lifecycle.pod_status import GATED, GATED_MESSAGE, PodStatusWriter
from phalanx.engine.scheduling.lifecycle.rejections import Rejections
from phalanx.engine.scheduling.lifecycle.reserve_permit import gate_of
from phalanx.engine.scheduling.queue.units import BACKOFF, SchedulingUnit
from phalanx.engine.state.records import PodRecord, PodState
from phalanx.model.groups import group_of
from phalanx.model.objects import Pod
from phalanx.model.objects.pod import KUBELET_REJECTIONS

FINISHED = ("Succeeded", "Failed")


class Pods:
    def __init__(
        self,
        state: ClusterState,
        pod_lifecycle: PodLifecycle,
        members: Members,
        status: PodStatusWriter,
        victim_index: VictimIndex,
        rejections: Rejections,
    ) -> None:
        self._cluster = state
        self._queue = pod_lifecycle.queue
        self._pod_lifecycle = pod_lifecycle
        self._unit_lifecycle = pod_lifecycle.units
        self._members = members
        self._status = status
        self._victim_index = victim_index
        self._rejections = rejections
        self.records = state.records
        self.foreign: dict[str, PodRecord] = {}  # nominated pods of other schedulers: only their nodes matter
        self._orders = 0
        self._stamp: tuple[str, float] = ("", 0.0)

    # ---- events

    def changed(self, pod: Pod) -> None:
        key = f"{pod.metadata.namespace}/{pod.metadata.name}"
        old = self.records.get(key)
        if old is not None and old.uid != pod.metadata.uid:
            self._remove(old, finished=False)
            old = None
        if self.foreign and (pod.spec.node_name or pod.status.phase in FINISHED):
            self._forget_foreign(key)
        if pod.status.phase in FINISHED:
            self._finished(old, pod)
        elif pod.spec.node_name:
            self._bound(old, pod)
        else:
            self._pending(old, pod)
        if old is not None and old.row >= 0:
            self._victim_index.regroup_pod(old)

    def gone(self, namespace: str, name: str, uid: str) -> None:
        self._forget_foreign(f"{namespace}/{name}")
        old = self.records.get(f"{namespace}/{name}")
        if old is not None and (not uid or old.uid == uid):
            self._remove(old, finished=False)

    # ---- cases

    def _finished(self, old: PodRecord | None, pod: Pod) -> None:
        if old is not None:
            if old.state is PodState.BOUND or old.assumed:
                self._rejected(pod)
            self._remove(old, finished=True)
            return
        record = self._record(pod)
        if self._members.claims(record):
            self._members.gone(record, finished=True)
            self._rejected(pod)

    def _bound(self, old: PodRecord | None, pod: Pod) -> None:
        node = pod.spec.node_name
        if old is not None and old.node_name == node:
            if old.assumed:
                self._pod_lifecycle.shown(old)
            if self._same(old, pod):
                old.pod = None
                if old.start_time != pod.status.start_time:
                    old.starts(pod.status.start_time)
                    self._cluster.reported_starts += 1
                    self._victim_index.started(old)
                return
            self._pod_lifecycle.replace(old, self._record(pod, old))
            return
        if old is not None:
            # Pending here, or assumed on another node: another scheduler bound it first.
            self._pod_lifecycle.withdraw(old)
        self._pod_lifecycle.found_on(self._record(pod, old), node, old)

    def _pending(self, old: PodRecord | None, pod: Pod, *, failed: bool = False) -> None:
        if old is not None and old.node_name:
            if old.assumed:
                old.pod = pod  # used by `back` if the bind fails
                old.shape_epoch = -1  # its shape is outdated
            return
        if pod.spec.scheduler_name not in self._cluster.profiles:
            if self.foreign or pod.status.nominated_node_name:
                self._nominated_elsewhere(f"{pod.metadata.namespace}/{pod.metadata.name}", pod)
            return
        if pod.metadata.deletion_timestamp is not None:
            if old is not None:
                self._remove(old, finished=False)
            return
        if old is None:
            record = self._record(pod)
            self._pod_lifecycle.keep(record)
            self.enqueue(record)
            return
        before = old.pod
        seen = before.status.nominated_node_name if before is not None else ""
        nominated = pod.status.nominated_node_name
        if self._same(old, pod) and before is not None and _waits_alike(before, pod):
            old.pod = pod
            record = old
        else:
            if member := self._members.claims(old):
                self._pod_lifecycle.unqueue(old)
            record = self._record(pod, old)
            self._pod_lifecycle.update(old, record)
            self.enqueue(record, failed=failed or (not member and _same_request(before, pod)))
        if nominated != seen and nominated != record.nominated and record.key not in self._pod_lifecycle.nominating:
            # Written by an autoscaler or a user: reserve it like a nomination of ours.
            self._pod_lifecycle.nominate(record, nominated, write=False)

    # ---- single steps

    def _rejected(self, pod: Pod) -> None:
        status = pod.status
        if status.phase == "Failed" and status.reason.startswith(KUBELET_REJECTIONS) and not status.container_statuses:
            self._rejections.rejected(pod)

    def _nominated_elsewhere(self, key: str, pod: Pod) -> None:
        """Reserve the node that another scheduler nominated for its pod."""
        node = pod.status.nominated_node_name if pod.metadata.deletion_timestamp is None else ""
        known = self.foreign.get(key)
        if known is not None and known.nominated == node and self._same(known, pod):
            return
        self._forget_foreign(key)
        if node:
            record = self.foreign[key] = self._record(pod)
            self._cluster.shapes.keep(record.shape)
            self._pod_lifecycle.nominate(record, node, write=False)

    def _forget_foreign(self, key: str) -> None:
        record = self.foreign.pop(key, None)
        if record is not None:
            self._pod_lifecycle.nominate(record, "", write=False)
            self._cluster.shapes.drop(record.shape)

    def back(self, record: PodRecord) -> None:
        """Apply later changes (labels, termination) to a pod that is pending again after its bind failed."""
        if record.pod is not None:
            self._pending(record, record.pod, failed=True)

    def enqueue(self, record: PodRecord, *, failed: bool = False) -> None:
        """Queue a pending pod: in its group's root unit, or in its own unit, active or gated.

        `failed`: its bind failed, so it is retried after a backoff.
        """
        if self._members.claims(record):
            self._members.pending(record)
            return
        key = f"pod/{record.key}"
        unit = self._queue.units.get(key)
        if unit is None:
            unit = SchedulingUnit("Pod", key, record.priority, record.created, record.order)
        unit.priority = record.priority
        unit.records = {record.key: record}
        if failed and unit.queue_name is BACKOFF:
            return
        unit.attempts = unit.errors = 0
        self.admit(unit)

    def admit(self, unit: SchedulingUnit, newcomers: Iterable[PodRecord] | None = None) -> None:
        """Call PreEnqueue plugins for every pending pod of a unit; activate the unit if none rejects, else gate it.

        `newcomers`: the unit is active already and only these pods are new.
        """
        held = gate_of(self._cluster, unit.records.values() if newcomers is None else newcomers)
        if held is not None:
            record, status, plugin = held
            if status.code is Code.ERROR:
                self._status.report(record, SCHEDULER_ERROR, status.message)
                self._unit_lifecycle.back_off(unit, (plugin, status.message))
                return
            if record.pod is not None and record.pod.spec.scheduling_gates:
                # kube-apiserver writes this condition itself; it is not repeated.
                self._status.report(record, GATED, GATED_MESSAGE, event=False)
            self._unit_lifecycle.hold(unit, plugin, status.message)
            return
        if newcomers is None:
            self._unit_lifecycle.admit(unit)

    def _same(self, old: PodRecord, pod: Pod) -> bool:
        """Return True if every field that placement reads is unchanged. Status and annotations change often."""
        meta, spec = pod.metadata, pod.spec
        if (
            old.labels != meta.labels
            or old.terminating != (meta.deletion_timestamp is not None)
            or old.priority != (spec.priority or 0)
            or old.preemption_policy != (spec.preemption_policy or "PreemptLowerPriority")
        ):
            return False
        shapes = self._cluster.shapes
        before = old.pod if old.shape_epoch >= 0 and not pod.status.container_statuses else None
        if before is not None and not shapes.signers:
            bound = msgspec.structs.replace(before.spec, node_name=spec.node_name)
            same = bound == spec and before.metadata.owner_references == meta.owner_references
            if same and (not (spec.resource_claims or shapes.extended) or shapes.same_claims(pod, old.shape)):
                return True  # the most frequent change: it got its node
        shape = shapes.of(pod)
        if shape is old.shape:
            return True
        # A label became relevant since, so the shape is outdated. It is derived again when the pod is tried.
        return old.shape_epoch != shapes.interest.epoch and shape.key[3:] == old.shape.key[3:]  # type: ignore[index]

    def _record(self, pod: Pod, old: PodRecord | None = None) -> PodRecord:
        shape = self._cluster.shapes.of(pod)
        if old is not None:
            order, created = old.order, old.created
        else:
            self._orders += 1
            order, created = self._orders, self._queue_time(pod)
        record = PodRecord(pod, shape, order, created)
        record.shape_epoch = self._cluster.shapes.interest.epoch
        for condition in pod.status.conditions or ():
            if condition.type == POD_SCHEDULED and condition.status == "False":
                record.last_condition = f"{condition.reason}: {condition.message}"
        return record

    def _queue_time(self, pod: Pod) -> float:
        """Return the queue time of a pod: its creation, so that it survives a scheduler restart."""
        stamp = pod.metadata.creation_timestamp
        if stamp is None:
            return self._cluster.now
        if stamp != self._stamp[0]:
            try:
                self._stamp = (stamp, parse_rfc3339(stamp))
            except ValueError:
                return self._cluster.now
        return self._stamp[1]

    def _remove(self, record: PodRecord, *, finished: bool) -> None:
        self._pod_lifecycle.remove(record, finished=finished)


def _waits_alike(old: Pod, new: Pod) -> bool:
    """Return True if both versions wait in the same queue. The API server forbids changes of a pod's group."""
    return old.spec.scheduling_gates == new.spec.scheduling_gates and group_of(old) == group_of(new)


def _same_request(old: Pod | None, new: Pod) -> bool:
    """Return True if only the status changed: a pod whose claims lost their devices has another shape, and keeps its
    backoff."""
    return old is not None and old is not new and old.spec == new.spec and old.metadata.labels == new.metadata.labels
