"""Restart the pods of a JobSet in place: the controller's half of the protocol of JobSet's KEP-467.

An agent in each pod writes the attempt that its containers are in as an annotation of the pod and keeps the worker
waiting. The controller publishes two numbers in the JobSet's status: once all pods have the same attempt it becomes
the current one, and the agents let their workers run; while attempts differ, the agents of all earlier attempts, up to
and including the previous one, restart their pods.
"""

from __future__ import annotations

from phalanx.controllers.runtime.controller import Json
from phalanx.controllers.runtime.pods import phase
from phalanx.controllers.workloads.jobset.observed_state import ObservedJobSet
from phalanx.model.annotation_values import MAX_INT32, BadValue, shortened, whole_number

ATTEMPT = "jobset.sigs.k8s.io/in-place-restart-attempt"  # annotation of a pod, written by its agent
STRATEGY = "InPlaceRestart"


def restarts_in_place(jobset: Json) -> bool:
    return (jobset["spec"].get("failurePolicy") or {}).get("restartStrategy") == STRATEGY


def reported(pod: Json) -> tuple[str | None, bool, int]:
    """Return what of a pod this strategy reads: a pod that keeps it need not be looked at again."""
    return _annotation(pod), phase(pod) == "Failed", _container_restarts(pod)


def restart_in_place(look: ObservedJobSet, pods: list[Json], expected: int) -> None:
    """Publish the attempts in the status. pods: of the current Jobs; expected: how many there are to be."""
    limit = int((look.jobset["spec"].get("failurePolicy") or {}).get("maxRestarts") or 0)
    attempts = _attempts(look, pods)
    latest = max(attempts, default=0)
    uncounted = look.attempt - int(look.status.get("restartsCountTowardsMax") or 0)
    # Containers are counted too: those that fail at once never reach the next attempt.
    if max(map(_container_restarts, pods), default=0) > limit or latest - uncounted > limit:
        look.finish("Failed", "ReachedMaxRestarts", "jobset failed due to reaching max number of restarts")
    elif attempts and len(attempts) == expected and min(attempts) == latest:
        look.status["currentInPlaceRestartAttempt"] = latest
    elif latest > int(look.status.get("previousInPlaceRestartAttempt", -1)) + 1:
        look.status["previousInPlaceRestartAttempt"] = latest - 1


def _attempts(look: ObservedJobSet, pods: list[Json]) -> list[int]:
    """Return the attempts that agents have written; a failed pod may stand next to its replacement and is skipped."""
    found = []
    for pod in pods:
        value = _annotation(pod)
        if value is None or phase(pod) == "Failed":
            continue
        try:
            found.append(whole_number(value, 0, MAX_INT32))
        except BadValue:
            text = f"Pod {pod['metadata']['name']} has the annotation {ATTEMPT}={shortened(value)}, which is no attempt"
            look.updates.append(("Warning", "InvalidInPlaceRestartAttempt", text))
    return found


def _annotation(pod: Json) -> str | None:
    return (pod["metadata"].get("annotations") or {}).get(ATTEMPT)


def _container_restarts(pod: Json) -> int:
    status = pod.get("status") or {}
    every = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    return max((int(container.get("restartCount") or 0) for container in every), default=0)
