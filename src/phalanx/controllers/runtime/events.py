"""Record Events on the user's object in the background: repeated ones once, without blocking the caller."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict

from phalanx.base.client import Client, Resource
from phalanx.base.clock import Clock, rfc3339_micro
from phalanx.base.errors import AlreadyExists, ApiProblem
from phalanx.base.ids import fnv1a_32
from phalanx.model.kinds import Json

log = logging.getLogger(__name__)

EVENTS = Resource("events.k8s.io", "v1", "events", "Event")
MAX_NOTE = 1024
WAITING = 10_000  # the oldest events are dropped when the writer falls behind
REMEMBERED = 10_000


class Events:
    def __init__(self, client: Client, clock: Clock, instance: str = "phalanx") -> None:
        self._client, self._clock, self._instance = client, clock, instance
        self._announced: OrderedDict[int, None] = OrderedDict()  # hashes of (uid, reason, note): there are many
        self._queue: asyncio.Queue[Json] = asyncio.Queue(WAITING)
        self.dropped = 0

    def normal(self, about: Json, controller: str, reason: str, note: str, distinct: str = "") -> None:
        """Record a Normal Event. distinct: tells it from earlier ones with the same text, such as a pod's uid."""
        self._record(about, controller, "Normal", reason, note, distinct)

    def warning(self, about: Json, controller: str, reason: str, note: str, distinct: str = "") -> None:
        self._record(about, controller, "Warning", reason, note, distinct)

    def written_too_often(self, resource: Resource, namespace: str, name: str, message: str) -> None:
        """A controller writes an object again and again (`WriteGuard`)."""
        meta = {"uid": "", "name": name, "namespace": namespace or "default"}
        about = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta}
        self._record(about, "controllers", "Warning", "WrittenTooOften", message, f"{resource.kind}/{namespace}/{name}")

    def _record(self, about: Json, controller: str, type_: str, reason: str, note: str, distinct: str) -> None:
        meta = about["metadata"]
        note = note[:MAX_NOTE]
        key = hash((meta["uid"], reason, note, distinct))
        if key in self._announced:
            return  # a reconciler records the same Event every time it runs
        self._announced[key] = None
        if len(self._announced) > REMEMBERED:
            self._announced.popitem(last=False)
        digest = fnv1a_32(f"{meta['uid']}/{reason}/{note}{distinct}".encode())
        event = {
            "apiVersion": EVENTS.api_version,
            "kind": "Event",
            # The name is a hash of the content: a restarted controller does not record the Event again.
            "metadata": {"name": f"{meta['name'][:230]}.{digest:08x}", "namespace": meta["namespace"]},
            "eventTime": rfc3339_micro(self._clock.now()),
            "reportingController": f"phalanx/{controller}",
            "reportingInstance": self._instance,
            "action": reason,
            "reason": reason,
            "type": type_,
            "note": note,
            "regarding": {
                "apiVersion": about["apiVersion"],
                "kind": about["kind"],
                "namespace": meta["namespace"],
                "name": meta["name"],
                "uid": meta["uid"],
            },
        }
        if self._queue.full():
            self._queue.get_nowait()
            if self.dropped % WAITING == 0:  # the first, and then now and then
                log.warning("events dropped: %d were waiting to be written; nothing else is lost", WAITING)
            self.dropped += 1
        self._queue.put_nowait(event)

    async def run(self) -> None:
        """Write queued Events until cancelled."""
        while True:
            event = await self._queue.get()
            try:
                await self._client.create(EVENTS, event, event["metadata"]["namespace"])
            except AlreadyExists:
                continue
            except ApiProblem as problem:
                log.debug("event %s: %s", event["reason"], problem)
            except Exception:  # news is never worth the end of a controller
                log.exception("event %s", event["reason"])
