"""Arithmetic of a LeaderWorkerSet's rollout: partition and size of the leaders' StatefulSet. Pure functions.

Groups are updated from the highest index down by lowering the partition. Surge groups have the highest indexes and are
deleted when enough other groups are updated and ready.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from phalanx.model.kinds import Json
from phalanx.model.rules.assembly import scaled


class Leaders(msgspec.Struct, frozen=True):
    """The current state of the leaders' StatefulSet."""

    replicas: int
    partition: int
    revision: str  # of its template
    announced: int  # replicas of the LeaderWorkerSet at its last write


class ReplicaState(msgspec.Struct, frozen=True):
    ready: bool = False
    updated: bool = False  # runs the current template


class Allowed(msgspec.Struct, frozen=True):
    replicas: int
    unavailable: int
    surge: int
    partition: int


def allowed_of(lws: Json, limit: int | None = None) -> Allowed:
    """Return the limits of a rollout. `limit`: unavailable replicas allowed by a WorkloadPolicy; None: no limit."""
    replicas = int(lws["spec"].get("replicas", 1))
    rolling = (lws["spec"].get("rolloutStrategy") or {}).get("rollingUpdateConfiguration") or {}
    surge = min(scaled(rolling.get("maxSurge", 0), replicas, up=True), replicas)
    unavailable = scaled(rolling.get("maxUnavailable", 1), replicas, up=False)
    if not surge and not unavailable:
        unavailable = 1  # a percentage of few replicas may round to 0, which would block every rollout
    if limit is not None:
        unavailable = min(unavailable, limit)
    return Allowed(replicas, unavailable, surge, int(rolling.get("partition") or 0))


def next_step(
    allowed: Allowed, leaders: Leaders | None, revision: str, states: Sequence[ReplicaState]
) -> tuple[int, int]:
    """Return the (partition, replicas) of the leaders' StatefulSet; `states`: by group index."""
    partition, replicas = _step_of(allowed, leaders, revision, states)
    return max(partition, allowed.partition), replicas


def _step_of(
    allowed: Allowed, leaders: Leaders | None, revision: str, states: Sequence[ReplicaState]
) -> tuple[int, int]:
    """Return the partition and the replicas of the next step of a rollout."""
    replicas = allowed.replicas
    if leaders is None:
        return 0, replicas
    if leaders.revision != revision:  # a new template: no update yet, but surge groups are created
        if leaders.replicas < replicas:
            return min(replicas, leaders.replicas), replicas
        return min(replicas, leaders.replicas), _wanted(allowed, replicas)
    if leaders.partition == 0 and leaders.replicas == replicas:
        return 0, replicas
    # Groups below the partition count although they are not updated: surge groups stay until then, as upstream.
    unready = sum(not (_state(states, index).ready and _state(states, index).updated) for index in range(replicas))
    if leaders.replicas < replicas:
        return leaders.partition, replicas
    if leaders.announced != replicas:  # scaled during a rollout
        return min(leaders.partition, replicas + allowed.surge), _wanted(allowed, unready)
    return min(_partition(allowed, leaders, states), leaders.partition), _wanted(allowed, unready)


def _partition(allowed: Allowed, leaders: Leaders, states: Sequence[ReplicaState]) -> int:
    """Return the lowest partition that keeps at most the allowed number of groups unavailable."""
    tail = 0  # updated groups at the end
    for index in range(leaders.replicas - 1, -1, -1):
        if not (_state(states, index).ready and _state(states, index).updated):
            break
        tail += 1
    step = allowed.unavailable + allowed.surge - (allowed.replicas + allowed.surge - leaders.replicas)
    lowest = max(0, leaders.replicas - tail - step)
    # Unavailable groups below the partition already use the allowance.
    raised = lowest + sum(not _state(states, index).ready for index in range(lowest))
    for index in range(min(raised, leaders.replicas - 1), lowest - 1, -1):
        if not _state(states, index).ready or _state(states, index).updated:
            raised = index  # unavailable or updated: free to delete
        else:
            break
    return raised


def _wanted(allowed: Allowed, unready: int) -> int:
    """Return the size of the StatefulSet: surge groups are released as others become ready."""
    if unready <= allowed.surge:
        return allowed.replicas + max(0, unready - allowed.unavailable)
    return allowed.replicas + allowed.surge


def _state(states: Sequence[ReplicaState], index: int) -> ReplicaState:
    return states[index] if index < len(states) else ReplicaState()
