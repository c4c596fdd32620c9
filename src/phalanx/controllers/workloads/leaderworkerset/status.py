"""Compute the status of a LeaderWorkerSet: counters, Available, Progressing, UpdateInProgress."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager

from phalanx.base.clock import Clock
from phalanx.base.errors import Forbidden, Invalid
from phalanx.base.well_known import WORKLOAD_SCHEDULING_READY
from phalanx.controllers.grouping.core import TOO_MANY
from phalanx.controllers.runtime.events import Events
from phalanx.controllers.runtime.pods import condition
from phalanx.controllers.runtime.status import conditions_of, follow_refusal, set_condition
from phalanx.controllers.workloads.leaderworkerset.rollout import Allowed, Leaders, ReplicaState
from phalanx.controllers.workloads.leaderworkerset.rules import Replica, replica_of
from phalanx.model.kinds import Json
from phalanx.model.leaderworkerset.names import NAME, WORKER_INDEX
from phalanx.model.leaderworkerset.pods import is_grouped

_REASONS_BY_STATE = {
    "Available": ("AllGroupsReady", "All replicas are ready"),
    "Progressing": ("GroupsProgressing", "Replicas are progressing"),
    "UpdateInProgress": ("GroupsUpdating", "Rolling Upgrade is in progress"),
}

# Without a policy at least one replica may be unavailable.
BLOCKED = "Rolling Upgrade waits: a WorkloadPolicy has disruption.maxUnavailableReplicas 0, and maxSurge is 0"


def status_of(
    lws: Json,
    allowed: Allowed,
    states: Sequence[ReplicaState],
    leaders: tuple[int, int],
    scheduling: tuple[str, str, str] | None,
    clock: Clock,
) -> Json:
    """Compute the status. `states`: every existing group, surge included; `scheduling`: (status, reason, message).

    `leaders`: how many there are, and how many the status of their StatefulSet counts, which is what upstream reports.
    """
    existing, created = leaders
    generation = lws["metadata"].get("generation", 0)
    wanted = [states[i] if i < len(states) else ReplicaState() for i in range(allowed.replicas)]
    rolled = wanted[allowed.partition :]
    present = min(existing, allowed.replicas)
    if sum(state.updated for state in rolled) < max(0, present - allowed.partition):
        reasons_by_state = ["UpdateInProgress", "Progressing"]
    elif all(state.ready for state in wanted) and all(state.updated for state in rolled):
        reasons_by_state = ["Available"]
    else:
        reasons_by_state = ["Progressing"]
    conditions = conditions_of(lws)
    follow_refusal(conditions, TOO_MANY, None, clock)
    # Upstream keeps the old message of a condition that became False; here the message is the current state.
    instead = {
        "Available": f"{sum(state.ready for state in wanted)} of {allowed.replicas} replicas are ready",
        "Progressing": "All replicas are ready",
        "UpdateInProgress": "No rolling upgrade is in progress",
    }
    for type_, (reason, message) in _REASONS_BY_STATE.items():
        known = any(entry["type"] == type_ for entry in conditions)
        if type_ in reasons_by_state:
            if type_ == "UpdateInProgress" and not allowed.unavailable and not allowed.surge:
                message = BLOCKED
            set_condition(conditions, type_, "True", reason, message, clock, observedGeneration=generation)
        elif known:
            reason = _REASONS_BY_STATE[reasons_by_state[0]][0]
            set_condition(conditions, type_, "False", reason, instead[type_], clock, observedGeneration=generation)
    if scheduling is not None:
        set_condition(conditions, WORKLOAD_SCHEDULING_READY, *scheduling, clock, observedGeneration=generation)
    name = lws["metadata"]["name"]
    return {
        "conditions": conditions,
        "replicas": created,
        "readyReplicas": sum(state.ready for state in states),
        "updatedReplicas": sum(state.updated for state in states),
        "hpaPodSelector": f"{NAME}={name},{WORKER_INDEX}=0",
        "observedGeneration": generation,
    }


def rolled_out(allowed: Allowed, states: Sequence[ReplicaState]) -> bool:
    """Return True if all groups run the current template, so that older revisions may be deleted."""
    wanted = [states[i] if i < len(states) else ReplicaState() for i in range(allowed.replicas)]
    return not allowed.partition and all(state.ready and state.updated for state in wanted)


def of_groups(leaders: Mapping[int, Json], outdated: Collection[Replica]) -> tuple[str, str, str]:
    """Return (status, reason, message) of the groups, when all that can be created exist."""
    alone = [leader["metadata"]["name"] for _, leader in sorted(leaders.items()) if not is_grouped(leader)]
    if alone:
        text = f"{_few(alone)} began without a group and run on so; delete a leader pod to have its replica grouped"
        return ("False", "SomeReplicasNotGrouped", text)
    old = [leader["metadata"]["name"] for _, leader in sorted(leaders.items()) if replica_of(leader) in outdated]
    if old:
        text = f"{_few(old)} run under the rules they began with; delete a leader pod to have its replica under the new"
        return ("False", "SomeReplicasOutdated", text)
    return ("True", "GroupsReady", "Every replica has its group")


def _few(names: list[str]) -> str:
    return f"Replicas {', '.join(names[:5])}" + (f" and {len(names) - 5} more" if len(names) > 5 else "")


CONTROLLER = "leaderworkerset"


class ProgressEvents:
    def __init__(self, events: Events) -> None:
        self._events = events

    def revision(self, lws: Json, revision: str) -> None:
        self._events.normal(lws, CONTROLLER, "CreatingRevision", f"Creating revision {revision}")

    def leaders(self, lws: Json, before: Leaders | None, revision: str, partition: int, replicas: int) -> None:
        """Record Events about the leaders' StatefulSet."""
        if before is None:
            text = f"Created StatefulSet {lws['metadata']['name']} of the leaders"
            self._events.normal(lws, CONTROLLER, "GroupsProgressing", text)
            return
        if before.revision == revision and partition < before.partition:
            last = before.partition - 1
            which = f"replica {partition}" if last == partition else f"replicas {partition} to {last}"
            self._events.normal(lws, CONTROLLER, "GroupsUpdating", f"Updating {which} to revision {revision}")
        if replicas < before.replicas and before.announced == int(lws["spec"].get("replicas", 1)):
            text = f"Deleting surge replicas {replicas} to {before.replicas - 1} of revision {revision}"
            self._events.normal(lws, CONTROLLER, "GroupsProgressing", text)

    def workers(self, lws: Json, leader: Json) -> None:
        which = f"{leader['metadata']['name']}, uid {leader['metadata']['uid'][:8]}"
        self._events.normal(
            lws, CONTROLLER, "GroupsProgressing", f"Created StatefulSet of the workers of leader {which}"
        )

    def status(self, lws: Json, status: Json) -> None:
        """Record an Event for a condition that became True."""
        for type_ in ("UpdateInProgress", "Available", "Progressing"):
            entry = condition({"status": status}, type_) or {}
            if entry.get("status") != "True":
                continue
            if (condition(lws, type_) or {}).get("status") != "True":
                wanted, generation = int(lws["spec"].get("replicas", 1)), lws["metadata"].get("generation", 0)
                counted = f"{status['readyReplicas']} of {wanted} groups are ready, generation {generation}"
                self._events.normal(lws, CONTROLLER, entry["reason"], f"{entry['message']}: {counted}")
            return

    @asynccontextmanager
    async def creating(self, lws: Json, what: str) -> AsyncIterator[None]:
        """Report an object that the API server rejects; the reconciler retries."""
        try:
            yield
        except (Invalid, Forbidden) as problem:
            self._events.warning(lws, CONTROLLER, "FailedCreate", f"{what} cannot be created: {problem}")
            problem.reported = True
            raise
