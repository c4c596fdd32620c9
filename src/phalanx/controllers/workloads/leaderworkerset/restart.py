"""When a group has to be made anew because of one of its pods. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phalanx.controllers.runtime.ownership import deleting
from phalanx.controllers.runtime.pods import phase
from phalanx.controllers.workloads.leaderworkerset.names import RECREATE_AFTER_START, annotation, size_of

Json = dict[str, Any]


def must_recreate(lws: Json, leader: Json, workers: Sequence[Json]) -> Json | None:
    """The pod because of which the group goes; None when it stays. `workers` are those of this very leader."""
    policy = lws["spec"]["leaderWorkerTemplate"].get("restartPolicy", "RecreateGroupOnPodRestart")
    after_start = policy == "RecreateGroupAfterStart" or annotation(lws, RECREATE_AFTER_START) == "true"
    if policy != "RecreateGroupOnPodRestart" and not after_start:
        return None
    if deleting(leader):
        return None
    pods = [leader, *workers]
    if after_start and (len(pods) < size_of(lws) or any(phase(pod) == "Pending" for pod in pods)):
        return None  # still starting: restarts while images and peers come up are no failures
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
