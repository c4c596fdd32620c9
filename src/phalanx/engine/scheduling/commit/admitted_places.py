"""Reserve room for a workload before its pods exist: another controller admits it only if there is a place.

A request names the expected pods (`events.PlaceRequested`). If all of them fit now, placeholders hold their nodes; they
are nominated like preemptors, so pods of equal and lower priority do not use the room. An arriving pod of the workload
is tried without the placeholders of its workload and then replaces one of them. Nothing is evicted for a place. A place
ends with its last pod, on release, or after its time limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from phalanx.base.well_known import JOB_NAME, JOB_SET_NAME
from phalanx.engine.events import PlaceRequested
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.reservations.holders import ADMITTED_MARK
from phalanx.engine.scheduling.lifecycle.pod_lifecycle import PodLifecycle
from phalanx.engine.scheduling.queue.units import SchedulingUnit
from phalanx.engine.state.records import PodRecord
from phalanx.model.objects import Pod

WORKLOAD = "kueue.x-k8s.io/workload"  # annotation of pods
# Labels with which kinds that own pods through other objects mark their pods.
OWNER_LABELS = (
    JOB_NAME,
    JOB_SET_NAME,
    "leaderworkerset.sigs.k8s.io/name",
    "training.kubeflow.org/job-name",
    "ray.io/cluster",
)
Place = Sequence[tuple[Pod, str]]  # expected pods with their nodes


class HeldPlace(msgspec.Struct):
    request: PlaceRequested
    placeholders: list[PodRecord]


class AdmittedPlaces:
    def __init__(self, state: ClusterState, pod_lifecycle: PodLifecycle) -> None:
        self._cluster = state
        self._pod_lifecycle = pod_lifecycle
        self.requests: dict[str, PlaceRequested] = {}  # by "ns/name" of the workload, without an answer yet
        self.held: dict[str, HeldPlace] = {}
        self._number = 0

    # ---- requests

    def request(self, event: PlaceRequested) -> None:
        """Request a place; a workload has at most one."""
        self.release(event.namespace, event.name)
        self.requests[_key(event)] = event

    def release(self, namespace: str, name: str) -> None:
        """End a request and its reservations."""
        key = f"{namespace}/{name}"
        self.requests.pop(key, None)
        held = self.held.pop(key, None)
        for placeholder in held.placeholders if held is not None else ():
            self._pod_lifecycle.drop_placeholder(placeholder)

    def hold(self, event: PlaceRequested, place: Place) -> None:
        """Reserve the place found for a request."""
        placeholders = []
        for pod, node in place:
            self._number += 1
            shape = self._cluster.shapes.of(pod)
            self._cluster.shapes.keep(shape)
            record = PodRecord(pod, shape, -self._number, self._cluster.now)
            record.key, record.uid, record.nominated, record.group = record.key + ADMITTED_MARK, "", "", ""
            self._pod_lifecycle.nominate(record, node, write=False, wake=False)
            placeholders.append(record)
        self.held[_key(event)] = HeldPlace(event, placeholders)

    def sweep(self) -> Iterator[PlaceRequested]:
        """Free expired places; yield the requests whose place was lost with a node."""
        now, names = self._cluster.now, self._cluster.columns.row_of
        for held in list(self.held.values()):
            event = held.request
            if event.until <= now:
                self.release(event.namespace, event.name)
            elif any(placeholder.nominated not in names for placeholder in held.placeholders):
                self.release(event.namespace, event.name)
                yield event

    def next_time(self) -> float | None:
        if self.requests:
            return self._cluster.now
        return min((held.request.until for held in self.held.values()), default=None)

    # ---- pods that arrive

    def owner_of(self, record: PodRecord) -> str:
        """Return the workload with a place that a pending pod belongs to; "" if none."""
        if record.pod is None:
            return ""
        meta = record.pod.metadata
        named = f"{record.namespace}/{(meta.annotations or {}).get(WORKLOAD, '')}"
        if named in self.held:
            return named
        uids = {owner.uid for owner in meta.owner_references} | {meta.uid}
        labels = {meta.labels[label] for label in OWNER_LABELS if label in meta.labels}
        for key, held in self.held.items():
            event = held.request
            if event.namespace == record.namespace and (uids & set(event.owner_uids) or labels & set(event.owners)):
                return key
        return ""

    def ignore_reservations(self, unit: SchedulingUnit) -> list[tuple[PodRecord, str]]:
        """Remove the nominations of the unit's own workloads during an attempt."""
        owners = {owner for record in unit.records.values() if (owner := self.owner_of(record))}
        nodes = [(p, p.nominated) for owner in sorted(owners) for p in self.held[owner].placeholders]
        for placeholder, _ in nodes:
            self._pod_lifecycle.nominate(placeholder, "", write=False, wake=False)
        return nodes

    def placed(self, pods: Iterable[tuple[PodRecord, str]]) -> None:
        """Release one placeholder for every pod (given with its workload) that got a node."""
        for record, owner in pods:
            held = self.held.get(owner)
            if held is None or record.row < 0:
                continue
            node = self._cluster.columns.names[record.row]
            same = (p for p in held.placeholders if p.nominated == node)
            taken = next(same, held.placeholders[0])
            held.placeholders.remove(taken)
            self._pod_lifecycle.drop_placeholder(taken)
            if not held.placeholders:
                del self.held[owner]

    @property
    def placeholders(self) -> list[PodRecord]:
        return [placeholder for held in self.held.values() for placeholder in held.placeholders]


def _key(event: PlaceRequested) -> str:
    return f"{event.namespace}/{event.name}"
