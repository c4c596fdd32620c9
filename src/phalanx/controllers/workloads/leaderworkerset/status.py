"""Status of a LeaderWorkerSet: counters and the three conditions, of which at most one story is told at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phalanx.base.clock import Clock
from phalanx.controllers.runtime.status import conditions_of, set_condition
from phalanx.controllers.workloads.leaderworkerset.names import NAME, WORKER_INDEX
from phalanx.controllers.workloads.leaderworkerset.rollout import Allowed, GroupState

Json = dict[str, Any]

SCHEDULING_READY = "WorkloadSchedulingReady"
_STORIES = {
    "Available": ("AllGroupsReady", "All replicas are ready"),
    "Progressing": ("GroupsProgressing", "Replicas are progressing"),
    "UpdateInProgress": ("GroupsUpdating", "Rolling Upgrade is in progress"),
}


def status_of(
    lws: Json,
    allowed: Allowed,
    states: Sequence[GroupState],
    existing: int,
    scheduling: tuple[str, str, str] | None,
    clock: Clock,
) -> Json:
    """`states` of every group that exists, surge included; `scheduling`: (status, reason, message) of its groups."""
    generation = lws["metadata"].get("generation", 0)
    wanted = [states[i] if i < len(states) else GroupState() for i in range(allowed.replicas)]
    rolled = wanted[allowed.partition :]
    present = min(existing, allowed.replicas)
    if sum(state.updated for state in rolled) < max(0, present - allowed.partition):
        stories = ["UpdateInProgress", "Progressing"]
    elif all(state.ready for state in wanted) and all(state.updated for state in rolled):
        stories = ["Available"]
    else:
        stories = ["Progressing"]
    conditions = conditions_of(lws)
    for type_, (reason, message) in _STORIES.items():
        known = any(entry["type"] == type_ for entry in conditions)
        if type_ in stories:
            set_condition(conditions, type_, "True", reason, message, clock, observedGeneration=generation)
        elif known:
            set_condition(conditions, type_, "False", reason, message, clock, observedGeneration=generation)
    if scheduling is not None:
        set_condition(conditions, SCHEDULING_READY, *scheduling, clock, observedGeneration=generation)
    name = lws["metadata"]["name"]
    return {
        "conditions": conditions,
        "replicas": existing,
        "readyReplicas": sum(state.ready for state in states),
        "updatedReplicas": sum(state.updated for state in states),
        "hpaPodSelector": f"{NAME}={name},{WORKER_INDEX}=0",
        "observedGeneration": generation,
    }


def rolled_out(allowed: Allowed, states: Sequence[GroupState]) -> bool:
    """Everything runs the present template: older revisions may be forgotten."""
    wanted = [states[i] if i < len(states) else GroupState() for i in range(allowed.replicas)]
    return not allowed.partition and all(state.ready and state.updated for state in wanted)
