"""Record Events on the user's object in the background, without blocking the caller: repeated ones become a series."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from contextlib import suppress

from phalanx.base.client import Client, Resource
from phalanx.base.clock import Clock, rfc3339_micro
from phalanx.base.errors import AlreadyExists, ApiProblem, NotFound
from phalanx.base.ids import fnv1a_32
from phalanx.base.resources import EVENTS_V1
from phalanx.model.kinds import Json

log = logging.getLogger(__name__)

MAX_NOTE = 1024
WAITING = 20_000  # the oldest events are dropped when the writer falls behind
REMEMBERED = 10_000
SERIES_INTERVAL = 360.0  # seconds between two writes of a repeated Warning, as of client-go


class Events:
    def __init__(self, client: Client, clock: Clock, instance: str = "phalanx") -> None:
        self._client, self._clock, self._instance = client, clock, instance
        # Hashes of (uid, reason, note), for there are many: how often, and when that was last written.
        self._announced: OrderedDict[int, tuple[int, float]] = OrderedDict()
        self._queue: asyncio.Queue[Json] = asyncio.Queue(WAITING)
        self.dropped = 0

    def normal(self, about: Json, controller: str, reason: str, note: str, distinct: str = "") -> None:
        """Record a Normal Event. distinct: distinguishes it from earlier ones with the same text, such as a pod's
        uid."""
        self._record(about, controller, "Normal", reason, note, distinct)

    def warning(self, about: Json, controller: str, reason: str, note: str, distinct: str = "") -> None:
        self._record(about, controller, "Warning", reason, note, distinct)

    def written_too_often(self, resource: Resource, namespace: str, name: str, message: str) -> None:
        """Report that a controller writes an object repeatedly (`WriteGuard`)."""
        meta = {"uid": "", "name": name, "namespace": namespace or "default"}
        about = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta}
        self._record(about, "controllers", "Warning", "WrittenTooOften", message, f"{resource.kind}/{namespace}/{name}")

    def _record(self, about: Json, controller: str, type_: str, reason: str, note: str, distinct: str) -> None:
        meta = about["metadata"]
        note = note[:MAX_NOTE]
        key = hash((meta["uid"], reason, note, distinct))
        count = self._count_to_write(key, type_)
        if not count:
            return
        digest = fnv1a_32(f"{meta['uid']}/{reason}/{note}{distinct}".encode())
        event = {
            "apiVersion": EVENTS_V1.api_version,
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
        if count > 1:
            event["series"] = {"count": count, "lastObservedTime": event["eventTime"]}
        if self._queue.full():
            self._queue.get_nowait()
            if self.dropped % WAITING == 0:  # log the first one, and then one in WAITING
                log.warning("events dropped: %d were waiting to be written; nothing else is lost", WAITING)
            self.dropped += 1
        self._queue.put_nowait(event)

    def _count_to_write(self, key: int, type_: str) -> int:
        """Return how often this Event was recorded if that is written now, else 0.

        A reconciler records the same Event every time it runs: of Warnings, the count is written now and then.
        """
        count, written = self._announced.get(key, (0, -SERIES_INTERVAL))
        now = self._clock.monotonic()
        due = count == 0 or (type_ == "Warning" and now - written >= SERIES_INTERVAL)
        self._announced[key] = (count + 1, now if due and count else written)
        if len(self._announced) > REMEMBERED:
            self._announced.popitem(last=False)
        return count + 1 if due else 0

    async def run(self) -> None:
        """Write queued Events until cancelled."""
        while True:
            event = await self._queue.get()
            try:
                await self._write(event)
            except AlreadyExists:
                continue
            except ApiProblem as problem:
                log.debug("event %s: %s", event["reason"], problem)
            except Exception:  # an event must not end a controller
                log.exception("event %s", event["reason"])

    async def _write(self, event: Json) -> None:
        """Create an Event, or write how often it was repeated; one that has expired is created again."""
        meta = event["metadata"]
        if "series" in event:
            with suppress(NotFound):
                await self._client.patch(EVENTS_V1, meta["name"], {"series": event["series"]}, meta["namespace"])
                return
        await self._client.create(EVENTS_V1, event, meta["namespace"])
