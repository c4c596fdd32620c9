"""When a group has to be recreated because of one of its pods. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phalanx.controllers.runtime.ownership import deleting
from phalanx.controllers.runtime.pods import phase
from phalanx.controllers.workloads.leaderworkerset.names import RECREATE_AFTER_START, size_of

Json = dict[str, Any]


def must_recreate(lws: Json, leader: Json, workers: Sequence[Json], lost: Sequence[Json] = ()) -> Json | None:
    """Return the pod because of which the group is recreated; None when the group stays.

    `workers` are the pods of this leader's own StatefulSet, `lost` those deleted since the last reconcile.
    """
    policy = lws["spec"]["leaderWorkerTemplate"].get("restartPolicy", "RecreateGroupOnPodRestart")
    if policy not in ("RecreateGroupOnPodRestart", "RecreateGroupAfterStart"):
        return None
    # Upstream's experimental annotation has its effect whatever its value is.
    annotated = RECREATE_AFTER_START in (lws["metadata"].get("annotations") or {})
    after_start = annotated or policy == "RecreateGroupAfterStart"
    if deleting(leader):
        return None
    gone = {pod["metadata"].get("name") for pod in lost}
    pods = [leader, *(pod for pod in workers if pod["metadata"].get("name") not in gone), *lost]
    if after_start and (len(pods) < size_of(lws) or any(phase(pod) == "Pending" for pod in pods)):
        return None  # still starting: restarts while images and peers come up are no failures
    if lost:
        return lost[0]
    for pod in pods:
        if _restarted(pod) or (pod is not leader and deleting(pod)):
            return pod
    return None


def _restarted(pod: Json) -> bool:
    status = pod.get("status") or {}
    if phase(pod) not in ("Running", "Pending"):
        return phase(pod) == "Failed"
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return any(int(container.get("restartCount") or 0) > 0 for container in containers)
