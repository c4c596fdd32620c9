"""Restart the pods of a JobSet in place: the controller's half of the protocol of JobSet's KEP-467.

An agent in each pod writes the attempt of its containers as a pod annotation and delays the worker. The controller
publishes two numbers in the JobSet's status: when all pods have the same attempt, that becomes the current one, and the
agents start their workers; while attempts differ, the agents of attempts up to the previous one restart their pods.
"""

from __future__ import annotations

from phalanx.base.well_known import IN_PLACE_RESTART_ATTEMPT
from phalanx.controllers.runtime.controller import Json
from phalanx.controllers.runtime.pods import phase
from phalanx.controllers.workloads.jobset.observed_state import ObservedJobSet
from phalanx.model.annotation_values import MAX_INT32, BadValue, shortened, whole_number

STRATEGY = "InPlaceRestart"


def restarts_in_place(jobset: Json) -> bool:
    return (jobset["spec"].get("failurePolicy") or {}).get("restartStrategy") == STRATEGY


def reported(pod: Json) -> tuple[str | None, bool, int]:
    """Return the pod fields that this strategy reads: an update without changes of them is ignored."""
    return _annotation(pod), phase(pod) == "Failed", _container_restarts(pod)


def restart_in_place(look: ObservedJobSet, pods: list[Json], expected: int) -> None:
    """Publish the attempts in the status. pods: of the current Jobs; expected: their final number."""
    limit = int((look.jobset["spec"].get("failurePolicy") or {}).get("maxRestarts") or 0)
    attempts = _attempts(look, pods)
    latest = max(attempts, default=0)
    uncounted = look.attempt - int(look.status.get("restartsCountTowardsMax") or 0)
    # Count container restarts too: containers that fail at once never reach the next attempt.
    if max(map(_container_restarts, pods), default=0) > limit or latest - uncounted > limit:
        look.finish("Failed", "ReachedMaxRestarts", "jobset failed due to reaching max number of restarts")
    elif attempts and len(attempts) == expected and min(attempts) == latest:
        look.status["currentInPlaceRestartAttempt"] = latest
    elif latest > int(look.status.get("previousInPlaceRestartAttempt", -1)) + 1:
        look.status["previousInPlaceRestartAttempt"] = latest - 1


def _attempts(look: ObservedJobSet, pods: list[Json]) -> list[int]:
    """Return the attempts written by agents; a failed pod may coexist with its replacement and is skipped."""
    found = []
    for pod in pods:
        value = _annotation(pod)
        if value is None or phase(pod) == "Failed":
            continue
        try:
            found.append(whole_number(value, 0, MAX_INT32))
        except BadValue:
            text = f"annotation {IN_PLACE_RESTART_ATTEMPT}={shortened(value)}, which is no attempt"
            text = f"Pod {pod['metadata']['name']} has the {text}"
            look.updates.append(("Warning", "InvalidInPlaceRestartAttempt", text))
    return found


def _annotation(pod: Json) -> str | None:
    return (pod["metadata"].get("annotations") or {}).get(IN_PLACE_RESTART_ATTEMPT)


def _container_restarts(pod: Json) -> int:
    status = pod.get("status") or {}
    every = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    return max((int(container.get("restartCount") or 0) for container in every), default=0)
