"""Status of a Deployment: the counters and conditions that `kubectl rollout status` and `kubectl wait` read."""

from __future__ import annotations

import msgspec

from phalanx.base.clock import Clock, parse_rfc3339, rfc3339
from phalanx.controllers.runtime.rollout import allowance
from phalanx.controllers.runtime.status import conditions_of, set_condition
from phalanx.model.kinds import Json

CREATE_FAILED = "ReplicaSetCreateError"

_COUNTERS = ("replicas", "readyReplicas", "availableReplicas")
_HAS_MINIMUM = "Deployment has minimum availability."
_LACKS_MINIMUM = "Deployment does not have minimum availability."


class RolloutProgress(msgspec.Struct, frozen=True):
    deployment: Json
    current: Json | None  # the ReplicaSet of the current template
    sets: list[Json]
    created: bool = False  # `current` was created in this reconcile

    def total(self, counter: str) -> int:
        return sum(int((s.get("status") or {}).get(counter) or 0) for s in self.sets)

    @property
    def wanted(self) -> int:
        return int(self.deployment["spec"].get("replicas", 1))

    @property
    def updated(self) -> int:
        return int(((self.current or {}).get("status") or {}).get("replicas") or 0)

    @property
    def complete(self) -> bool:
        return self.current is not None and self.updated == self.wanted == self.total("replicas") == self.total(
            "availableReplicas"
        )


def status_of(progress: RolloutProgress, clock: Clock) -> tuple[Json, float | None]:
    """Return the status, and in how many seconds the progress deadline must be checked."""
    deployment = progress.deployment
    totals = {name: progress.total(name) for name in _COUNTERS}
    conditions = conditions_of(deployment)
    if totals["availableReplicas"] >= progress.wanted - allowance(deployment["spec"]).unavailable:
        _condition(conditions, "Available", "True", "MinimumReplicasAvailable", _HAS_MINIMUM, clock)
    else:
        _condition(conditions, "Available", "False", "MinimumReplicasUnavailable", _LACKS_MINIMUM, clock)
    recheck = _progressing(progress, conditions, clock)
    _failure(progress, conditions, clock)
    wanted = sum(int(s["spec"].get("replicas", 1)) for s in progress.sets)
    status = {
        "replicas": totals["replicas"] or None,
        "updatedReplicas": progress.updated or None,
        "readyReplicas": totals["readyReplicas"] or None,
        "availableReplicas": totals["availableReplicas"] or None,
        "unavailableReplicas": max(0, wanted - totals["availableReplicas"]) or None,
        "observedGeneration": deployment["metadata"].get("generation", 0),
        "collisionCount": (deployment.get("status") or {}).get("collisionCount"),
        "conditions": conditions,
    }
    return status, recheck


def _progressing(progress: RolloutProgress, conditions: list[Json], clock: Clock) -> float | None:
    spec, before = progress.deployment["spec"], progress.deployment.get("status") or {}
    deadline = spec.get("progressDeadlineSeconds", 600)
    known = next((c for c in conditions if c["type"] == "Progressing"), None)
    now = rfc3339(clock.now())

    def say(status: str, reason: str, message: str) -> None:
        _condition(conditions, "Progressing", status, reason, message, clock, touch=now)

    if spec.get("paused"):
        if known is None or known.get("reason") not in ("DeploymentPaused", "ProgressDeadlineExceeded"):
            say("Unknown", "DeploymentPaused", "Deployment is paused")
        return None
    if progress.current is None:
        return None
    name = progress.current["metadata"]["name"]
    if progress.complete:
        message = f'ReplicaSet "{name}" has successfully progressed.'
        if known is None or (known.get("reason"), known.get("message")) != ("NewReplicaSetAvailable", message):
            say("True", "NewReplicaSetAvailable", message)
        return None
    if known is not None and known.get("reason") == "DeploymentPaused":
        say("Unknown", "DeploymentResumed", "Deployment is resumed")  # the deadline restarts
    moved = (
        progress.updated > int(before.get("updatedReplicas") or 0)
        or progress.total("readyReplicas") > int(before.get("readyReplicas") or 0)
        or progress.total("availableReplicas") > int(before.get("availableReplicas") or 0)
        or progress.total("replicas") - progress.updated
        < int(before.get("replicas") or 0) - int(before.get("updatedReplicas") or 0)
    )
    if progress.created:
        say("True", "NewReplicaSetCreated", f'Created new replica set "{name}"')
    elif known is None or moved or known.get("reason") == "NewReplicaSetAvailable":
        say("True", "ReplicaSetUpdated", f'ReplicaSet "{name}" is progressing.')
    known = next(c for c in conditions if c["type"] == "Progressing")
    if deadline is None or known.get("reason") == "ProgressDeadlineExceeded":
        return None
    left = parse_rfc3339(known.get("lastUpdateTime") or now) + int(deadline) - clock.now()
    if left <= 0:
        say("False", "ProgressDeadlineExceeded", f'ReplicaSet "{name}" has timed out progressing.')
        return None
    return left + 0.1


def _failure(progress: RolloutProgress, conditions: list[Json], clock: Clock) -> None:
    """Copy the ReplicaFailure condition of a ReplicaSet that cannot create pods, or remove it."""
    found = None
    for replica_set in [progress.current or {}, *progress.sets]:
        for entry in (replica_set.get("status") or {}).get("conditions") or ():
            if entry["type"] == "ReplicaFailure" and entry["status"] == "True":
                found = found or entry
    if found is not None:
        _condition(conditions, "ReplicaFailure", "True", found.get("reason", ""), found.get("message", ""), clock)
    else:
        conditions[:] = [c for c in conditions if c["type"] != "ReplicaFailure"]


def status_without_set(deployment: Json, text: str, clock: Clock) -> Json:
    """Return the status of a Deployment whose ReplicaSet cannot be created."""
    conditions = conditions_of(deployment)
    _condition(conditions, "Progressing", "False", CREATE_FAILED, text, clock)
    return {**(deployment.get("status") or {}), "conditions": conditions}


def _condition(
    conditions: list[Json], type_: str, status: str, reason: str, message: str, clock: Clock, touch: str = ""
) -> None:
    known = next((c for c in conditions if c["type"] == type_), None)
    updated = touch or rfc3339(clock.now())
    if known is not None and not touch and (known["status"], known.get("reason")) == (status, reason):
        updated = known.get("lastUpdateTime", updated)
    set_condition(conditions, type_, status, reason, message, clock, lastUpdateTime=updated)
