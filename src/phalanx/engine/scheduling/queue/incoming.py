"""Count units and pods that enter each queue, by event, for metrics with kube-scheduler's names."""

from __future__ import annotations

from phalanx.engine.framework import Wake
from phalanx.engine.scheduling.queue.units import QueueName, SchedulingUnit

# Events of activation, by the queue that the unit leaves.
ACTIVATED_BY = {
    QueueName.ATTEMPT: "ScheduleAttemptFailure",
    QueueName.BACKOFF: "BackoffComplete",
    QueueName.GATED: "GateRemoved",
    QueueName.WAITING: "ForceActivate",
}
# Events of changes that wake unschedulable units.
EVENTS = {
    int(Wake.NODE_ADDED): "NodeAdd",
    int(Wake.NODE_CHANGED): "NodeUpdate",
    int(Wake.POD_GONE): "AssignedPodDelete",
    int(Wake.POD_PLACED): "AssignedPodAdd",
    int(Wake.POD_LABELS): "AssignedPodUpdate",
    int(Wake.NOMINATION): "NominationCleared",
    int(Wake.STORAGE): "StorageChange",
    int(Wake.NAMESPACE): "NamespaceUpdate",
    int(Wake.SERVICE): "ServiceChange",
    int(Wake.GROUP): "PodGroupUpdate",
    int(Wake.DEVICES): "ResourceClaimUpdate",
}


class Incoming:
    def __init__(self) -> None:
        self.counts: dict[tuple[str, str, str], list[int]] = {}  # (queue, event, kind of unit) -> [units, pods]

    def count(self, unit: SchedulingUnit, queue: str, event: str) -> None:
        key = (queue, event, unit.kind)
        counts = self.counts.get(key)
        if counts is None:
            counts = self.counts[key] = [0, 0]
        counts[0] += 1
        counts[1] += len(unit.records)
