"""Pods as they come and go: from events to records, columns and queue. Events may be late, doubled or out of order.

Rules: a pod with a node name counts on that node whoever put it there. A pod we assumed stays assumed until the
informer shows it bound, it is gone, or its Bind failed. An unbound version of a bound pod is old news.
"""

from __future__ import annotations

from collections.abc import Iterable

from phalanx.base.clock import parse_rfc3339
from phalanx.engine.framework import ClusterChange, Code, Wake
from phalanx.engine.scheduling.cycle import Cycle
from phalanx.engine.scheduling.pod_status import SCHEDULER_ERROR
from phalanx.engine.scheduling.reservations import gate_of
from phalanx.engine.scheduling.roots import Root
from phalanx.engine.state.records import PodRecord
from phalanx.model.objects import Pod

GATED_MESSAGE = "Scheduling is blocked due to non-empty scheduling gates"
FINISHED = ("Succeeded", "Failed")


class Pods:
    def __init__(self, cycle: Cycle) -> None:
        self.cycle = cycle
        self.columns = cycle.columns
        self.queue = cycle.queue
        self.shapes = cycle.cluster.shapes
        self.records: dict[str, PodRecord] = {}
        self.homeless = cycle.homeless
        self.crowded: set[int] = set()  # rows that others filled or that shrank: over-commit there is not our doing
        self.nominating: dict[str, int] = {}  # pod key -> Nominate decision under way
        self._orders = 0
        self._stamp: tuple[str, float] = ("", 0.0)

    # ---- events

    def changed(self, pod: Pod) -> None:
        key = f"{pod.metadata.namespace}/{pod.metadata.name}"
        old = self.records.get(key)
        if old is not None and old.uid != pod.metadata.uid:
            self._remove(old, finished=False)
            old = None
        if pod.status.phase in FINISHED:
            self._finished(old, pod)
        elif pod.spec.node_name:
            self._bound(old, pod)
        else:
            self._pending(old, pod)

    def gone(self, namespace: str, name: str, uid: str) -> None:
        old = self.records.get(f"{namespace}/{name}")
        if old is not None and (not uid or old.uid == uid):
            self._remove(old, finished=False)

    def node_appeared(self, name: str, row: int) -> None:
        """Count the pods that were bound to a node before we knew it."""
        for record in self.homeless.pop(name, {}).values():
            self.columns.place(record, row)
            self.crowded.add(row)
            self.cycle.waiting.placed(record.priority)

    def node_vanished(self, name: str, stranded: list[PodRecord]) -> None:
        if stranded:
            self.homeless[name] = {record.key: record for record in stranded}

    # ---- cases

    def _finished(self, old: PodRecord | None, pod: Pod) -> None:
        if old is not None:
            self._remove(old, finished=True)
            return
        record = self._record(pod)
        if self.cycle.groups.claims(record):
            self.cycle.groups.gone(record, finished=True)

    def _bound(self, old: PodRecord | None, pod: Pod) -> None:
        node = pod.spec.node_name
        if old is not None and old.node_name == node:
            if old.assumed:
                old.assumed = False
                self.cycle.holding.pop(old.key, None)
                self.cycle.root_of.pop(old.key, None)
            if self._same(old, pod):
                old.pod = None
                if old.start_time != pod.status.start_time:
                    old.start_time = pod.status.start_time
                    self.cycle.preemption.catalogue.started(old)
                return
            self._replace(old, pod)
            return
        if old is not None:
            # Pending with us, or assumed on another node: somebody else was quicker.
            self._take_back(old)
        record = self._record(pod, old)
        record.node_name = node
        record.pod = None
        self._keep(record, old)
        self._settle(record)
        if self.cycle.groups.claims(record):
            self.cycle.groups.placed(record)

    def _pending(self, old: PodRecord | None, pod: Pod) -> None:
        if old is not None and old.node_name:
            return
        if pod.spec.scheduler_name not in self.cycle.profiles:
            return
        if pod.metadata.deletion_timestamp is not None:
            if old is not None:
                self._remove(old, finished=False)
            return
        if old is None:
            record = self._record(pod)
            self._keep(record, None)
            if record.nominated:
                self.cycle.nominations.set(record, record.nominated)
            self.enqueue(record)
            return
        seen = old.pod.status.nominated_node_name if old.pod is not None else ""
        nominated = pod.status.nominated_node_name
        if self._same(old, pod) and old.pod is not None and old.pod.spec.scheduling_gates == pod.spec.scheduling_gates:
            old.pod = pod
            record = old
        else:
            self._unqueue(old)
            promised = self.cycle.nominations.clear(old)
            record = self._record(pod, old)
            record.said = old.said
            self._keep(record, old)
            if promised:
                self.cycle.nominations.set(record, promised)
            self.enqueue(record)
        if nominated != seen and nominated != record.nominated and record.key not in self.nominating:
            # Written by somebody else (an autoscaler, the user): respected like our own.
            self.cycle.nominations.set(record, nominated)

    # ---- parts

    def enqueue(self, record: PodRecord) -> None:
        """Put a pending pod where it belongs: its group's root, or a root of its own, active or gated."""
        if self.cycle.groups.claims(record):
            self.cycle.groups.pending(record)
            return
        key = f"pod/{record.key}"
        root = self.queue.roots.get(key)
        if root is None:
            root = Root("Pod", key, record.priority, record.created, record.order)
        root.priority = record.priority
        root.records = {record.key: record}
        self.admit(root)

    def admit(self, root: Root, newcomers: Iterable[PodRecord] | None = None) -> None:
        """Ask PreEnqueue plugins about every pending pod of a root; active if nobody objects, else gated. `newcomers`:
        the root is active already, only these are new."""
        held = gate_of(self.cycle.cluster, root.records.values() if newcomers is None else newcomers)
        if held is not None:
            record, status, plugin = held
            if status.code is Code.ERROR:
                self.cycle.say(record, SCHEDULER_ERROR, status.message)
                self.queue.back_off(root, self.cycle.now)
                root.gate = (plugin, status.message)
                return
            if record.pod is not None and record.pod.spec.scheduling_gates:
                # kube-apiserver writes this itself; where it is there already nothing is sent.
                self.cycle.say(record, "SchedulingGated", GATED_MESSAGE, event=False)
            self.queue.gate(root, plugin, status.message)
            return
        if newcomers is None:
            self.queue.activate(root)

    def requeue(self, record: PodRecord, *, message: str = "") -> None:
        """After a failed Bind: forget the assumption and try again after a while."""
        root = self.cycle.root_of.pop(record.key, None)
        self.cycle.forget(record)
        if message:
            self.cycle.say(record, SCHEDULER_ERROR, message)
        if self.cycle.groups.claims(record):
            self.cycle.groups.pending(record)
            return
        if root is None:
            root = Root("Pod", f"pod/{record.key}", record.priority, record.created, record.order)
        root.records = {record.key: record}
        self.queue.back_off(root, self.cycle.now)

    def _same(self, old: PodRecord, pod: Pod) -> bool:
        """Whether everything placement looks at is as it was. Status and annotations change all the time."""
        meta, spec = pod.metadata, pod.spec
        if (
            old.labels != meta.labels
            or old.terminating != (meta.deletion_timestamp is not None)
            or old.priority != (spec.priority or 0)
            or old.preemption_policy != (spec.preemption_policy or "PreemptLowerPriority")
        ):
            return False
        shape = self.shapes.of(pod)
        if shape is old.shape:
            return True
        # A label became interesting since: the shape is new although the pod is not. Re-derived when it is next tried.
        return old.shape_epoch != self.shapes.interest.epoch and shape.key[3:] == old.shape.key[3:]  # type: ignore[index]

    def _record(self, pod: Pod, old: PodRecord | None = None) -> PodRecord:
        shape = self.shapes.of(pod)
        if old is not None:
            order, created = old.order, old.created
        else:
            self._orders += 1
            order, created = self._orders, self._asked(pod)
        record = PodRecord(pod, shape, order, created)
        record.shape_epoch = self.shapes.interest.epoch
        for condition in pod.status.conditions or ():
            if condition.type == "PodScheduled" and condition.status == "False":
                record.said = f"{condition.reason}: {condition.message}"
        return record

    def _asked(self, pod: Pod) -> float:
        """When it first asked: its creation, which survives a restart of the scheduler."""
        stamp = pod.metadata.creation_timestamp
        if stamp is None:
            return self.cycle.now
        if stamp != self._stamp[0]:
            try:
                self._stamp = (stamp, parse_rfc3339(stamp))
            except ValueError:
                return self.cycle.now
        return self._stamp[1]

    def _keep(self, record: PodRecord, old: PodRecord | None) -> None:
        self.shapes.keep(record.shape)
        if old is not None:
            self.shapes.drop(old.shape)
        self.records[record.key] = record

    def _settle(self, record: PodRecord) -> None:
        """Count a bound pod on its node, now or when the node appears."""
        row = self.columns.row_of.get(record.node_name, -1)
        if row < 0:
            self.homeless.setdefault(record.node_name, {})[record.key] = record
            return
        self.columns.place(record, row)
        self.crowded.add(row)
        self.cycle.waiting.placed(record.priority)
        self.queue.wake(ClusterChange(Wake.POD_PLACED, row, record))

    def _replace(self, old: PodRecord, pod: Pod) -> None:
        """A bound pod changed in a way others can see: labels, requests, terminating."""
        record = self._record(pod, old)
        record.node_name = old.node_name
        record.bind = old.bind
        record.pod = None
        row = old.row
        if row >= 0:
            self.columns.unplace(old)
        self.cycle.unhouse(old)
        self._keep(record, old)
        if row < 0:
            self._settle(record)
            return
        self.columns.place(record, row)
        self.crowded.add(row)
        self.queue.wake(ClusterChange(Wake.POD_LABELS, row, record))
        self.queue.wake(ClusterChange(Wake.POD_GONE, row, old))

    def _take_back(self, old: PodRecord) -> None:
        """Undo whatever we did for a pod that turned out to be elsewhere."""
        if old.assumed:
            self.cycle.root_of.pop(old.key, None)
            self.cycle.forget(old)
        elif old.node_name:
            self.cycle.unhouse(old)
            if old.row >= 0:
                row = old.row
                self.columns.unplace(old)
                self.queue.wake(ClusterChange(Wake.POD_GONE, row, old))
        else:
            self._unqueue(old)
        node = self.cycle.nominations.clear(old)
        if node:
            self.queue.wake(ClusterChange(Wake.NOMINATION, self.columns.row_of.get(node, -1), old))

    def _unqueue(self, record: PodRecord) -> None:
        root = self.queue.roots.get(f"pod/{record.key}")
        if root is not None:
            self.queue.remove(root)

    def _remove(self, record: PodRecord, *, finished: bool) -> None:
        self._take_back(record)
        self.nominating.pop(record.key, None)
        del self.records[record.key]
        self.shapes.drop(record.shape)
        for tell in self.cycle.departed:
            tell(record)
        if self.cycle.groups.claims(record):
            self.cycle.groups.gone(record, finished=finished)
