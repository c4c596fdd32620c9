"""What a LeaderWorkerSet says in events while it is made, rolled and scaled. Reasons are those of upstream."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from phalanx.base.errors import Forbidden, Invalid
from phalanx.controllers.runtime.events import Events
from phalanx.controllers.runtime.pods import condition
from phalanx.controllers.workloads.leaderworkerset.rollout import Leaders

Json = dict[str, Any]
NAME = "leaderworkerset"


class ProgressEvents:
    def __init__(self, events: Events) -> None:
        self._events = events

    def revision(self, lws: Json, revision: str) -> None:
        self._events.normal(lws, NAME, "CreatingRevision", f"Creating revision {revision}")

    def leaders(self, lws: Json, before: Leaders | None, revision: str, partition: int, replicas: int) -> None:
        """Record Events about the leaders' StatefulSet."""
        if before is None:
            text = f"Created StatefulSet {lws['metadata']['name']} of the leaders"
            self._events.normal(lws, NAME, "GroupsProgressing", text)
            return
        if before.revision == revision and partition < before.partition:
            last = before.partition - 1
            which = f"replica {partition}" if last == partition else f"replicas {partition} to {last}"
            self._events.normal(lws, NAME, "GroupsUpdating", f"Updating {which} to revision {revision}")
        if replicas < before.replicas and before.announced == int(lws["spec"].get("replicas", 1)):
            text = f"Deleting surge replicas {replicas} to {before.replicas - 1} of revision {revision}"
            self._events.normal(lws, NAME, "GroupsProgressing", text)

    def workers(self, lws: Json, leader: Json) -> None:
        which = f"{leader['metadata']['name']}, uid {leader['metadata']['uid'][:8]}"
        self._events.normal(lws, NAME, "GroupsProgressing", f"Created StatefulSet of the workers of leader {which}")

    def status(self, lws: Json, status: Json) -> None:
        """Report the condition that has become true."""
        for type_ in ("UpdateInProgress", "Available", "Progressing"):
            entry = condition({"status": status}, type_) or {}
            if entry.get("status") != "True":
                continue
            if (condition(lws, type_) or {}).get("status") != "True":
                wanted, generation = int(lws["spec"].get("replicas", 1)), lws["metadata"].get("generation", 0)
                counted = f"{status['readyReplicas']} of {wanted} groups are ready, generation {generation}"
                self._events.normal(lws, NAME, entry["reason"], f"{entry['message']}: {counted}")
            return

    @asynccontextmanager
    async def creating(self, lws: Json, what: str) -> AsyncIterator[None]:
        """Report an object that the API server refuses; the reconciler tries again."""
        try:
            yield
        except (Invalid, Forbidden) as problem:
            self._events.warning(lws, NAME, "FailedCreate", f"{what} cannot be created: {problem}")
            raise
