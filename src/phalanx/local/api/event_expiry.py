"""Events are kept for a while and then go by themselves, an hour after their last change, as kube-apiserver has it.

How old a change is, is known from the revision there was at a time: no event is decoded to find out. Events from before
this process started are judged by the times they carry.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

from phalanx.base.clock import parse_rfc3339
from phalanx.local.api.context import Context
from phalanx.local.api.view import decode, encode
from phalanx.local.store.contract import Entry, RevisionMismatch
from phalanx.model.kinds import Json

RESOURCE = "events"
TTL = 3600.0  # seconds; kube-apiserver --event-ttl
BATCH = 128  # deletions at a time: they share a commit, and others come in between


class EventExpiry:
    """`run` until cancelled. A TTL of 0 keeps events for ever."""

    def __init__(self, ctx: Context, ttl: float = TTL) -> None:
        self._ctx, self._ttl = ctx, ttl
        self._since = ctx.store.revision  # newer events were seen by this process
        self._seen: deque[tuple[float, int]] = deque()  # (when, revision then), rising

    async def run(self) -> None:
        if self._ttl <= 0:
            await asyncio.Event().wait()
        while True:
            await asyncio.sleep(min(60.0, self._ttl / 10))
            await self.sweep()

    async def sweep(self) -> int:
        """Remove what is too old; returns how many."""
        store, now = self._ctx.store, self._ctx.clock.monotonic()
        self._seen.append((now, store.revision))
        old = -1
        while self._seen and now - self._seen[0][0] >= self._ttl:
            old = self._seen.popleft()[1]
        if old >= 0:
            self._seen.appendleft((now - self._ttl, old))
        expired = [entry for entry in store.list(RESOURCE) if self._expired(entry, old)]
        for start in range(0, len(expired), BATCH):
            await asyncio.gather(*map(self._remove, expired[start : start + BATCH]))
        return len(expired)

    def _expired(self, entry: Entry, old: int) -> bool:
        if entry.revision <= old:
            return True
        if old >= 0 or entry.revision > self._since:
            return False
        return _last_time(decode(entry.value)) + self._ttl < self._ctx.clock.now()

    async def _remove(self, entry: Entry) -> None:
        obj: Json = decode(entry.value)

        def build(revision: int) -> bytes:
            obj["metadata"]["resourceVersion"] = str(revision)
            return encode(obj)

        with suppress(RevisionMismatch):  # it was changed meanwhile and is kept
            await self._ctx.store.delete(entry.key, build, entry.revision)


def _last_time(event: Json) -> float:
    """Return when the event last happened; 0 if it has no valid time."""
    series = event.get("series") or {}
    texts = (event["metadata"].get("creationTimestamp"), event.get("lastTimestamp"), event.get("eventTime"))
    found = 0.0
    for text in (*texts, series.get("lastObservedTime")):
        if isinstance(text, str):
            with suppress(ValueError, OverflowError):
                found = max(found, parse_rfc3339(text))
    return found
