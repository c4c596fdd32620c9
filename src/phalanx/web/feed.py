"""The live feed: one snapshot, then numbered changes that every open page reads at its own pace.

Nothing is kept per page. Changes live in one bounded ring; a page that fell behind it, or that knew an earlier process,
is asked to fetch a new snapshot. Reading the engine takes at most a twentieth of the loop's time.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable

import msgspec

from phalanx.base.clock import Clock
from phalanx.model.kinds import Json
from phalanx.serve.queries.engine_view import EngineReader, Layout, NodeRow
from phalanx.web.history import EVERY, UsageHistory

log = logging.getLogger(__name__)

INTERVAL = 0.2  # least seconds between two changes
SHARE = 20  # the feed uses at most 1/20 of the time of the event loop
SLICE = 400  # nodes read between two turns of the event loop
KEPT_CHANGES = 600
KEPT_BYTES = 8 << 20
KEEPALIVE_SECONDS = 15.0  # between comments in a stream, which show whether its connection is alive


class Feed:
    def __init__(
        self,
        reader: EngineReader,
        history: UsageHistory,
        clock: Clock,
        leader: Callable[[], str | None] = lambda: None,
        *,
        name: str = "",
    ) -> None:
        """`leader`: returns the name of the leader, None while this process leads. A standby has read no state.

        `name`: of the cluster, for the header of the page.
        """
        self._name = name
        self._leader, self._standby = leader, leader()
        self._reader, self._history, self._clock = reader, history, clock
        self.epoch = secrets.token_hex(4)  # of this process; numbers of changes count within it
        self.number = 0
        self._ring: deque[tuple[int, bytes]] = deque()
        self._bytes = 0
        self._layout = Layout((), ())
        self._nodes: dict[str, NodeRow] = {}
        self._groups: dict[str, Json] = {}
        self._queue: Json = {}
        self._dirty = asyncio.Event()
        self._updates = asyncio.Condition()
        self._looking = asyncio.Lock()
        self._closed = False
        self.pages = 0

    # ---- for the loop of the scheduler

    def touch(self, *_: object) -> None:
        """Note that something happened in the engine."""
        self._dirty.set()

    def start_over(self) -> None:
        """Make every page fetch a snapshot, because the engine was replaced."""
        self._layout = Layout(("",), ())
        self._dirty.set()

    async def run(self) -> None:
        """Publish changes to open pages and take samples until cancelled.

        The engine is read only while a page is open; samples are always taken.
        """
        sampled = self._clock.monotonic()
        self._history.sample()
        while True:
            due = sampled + EVERY - self._clock.monotonic()
            if due <= 0:
                sampled = self._clock.monotonic()
                sample = self._history.sample()
                if self._standby != self._leader():
                    self._dirty.set()
                if self.pages:
                    await self._publish({"sample": sample, "evicted": self._history.evicted()})
                continue
            try:
                async with asyncio.timeout(due):
                    await self._dirty.wait()
            except TimeoutError:
                continue
            self._dirty.clear()
            began = self._clock.monotonic()
            if self.pages:
                await self._publish_changes()
            spent = self._clock.monotonic() - began
            await asyncio.sleep(max(INTERVAL, SHARE * spent))

    async def close(self) -> None:
        """End every open stream."""
        self._closed = True
        async with self._updates:
            self._updates.notify_all()

    # ---- changes

    async def _publish_changes(self) -> None:
        async with self._looking:
            change = await self._differences()
            if change:
                await self._publish(change)

    async def _read(self, layout: Layout) -> dict[str, NodeRow]:
        """Read all nodes, in slices.

        What changes meanwhile is in the engine's log and is read again the next time.
        """
        names, found = self._reader.names(), {}
        for at in range(0, len(names), SLICE):
            found.update(self._reader.nodes(layout, names[at : at + SLICE]))
            await asyncio.sleep(0)
        return found

    async def _differences(self) -> Json:
        reader = self._reader
        names = reader.changed()
        change: Json = {}
        if names is None:
            layout = reader.layout()
            nodes = await self._read(layout)
            if layout != self._layout:
                await self._replace(layout, nodes)
                return {}
            gone = self._nodes.keys() - nodes.keys()
        else:
            nodes = reader.nodes(self._layout, names)
            gone = {name for name in names if name in self._nodes and name not in nodes}
        moved: dict[str, NodeRow | None] = {n: row for n, row in nodes.items() if self._nodes.get(n) != row}
        self._nodes.update(nodes)
        for name in gone:
            moved[name] = None
            del self._nodes[name]
        if moved:
            change["nodes"] = moved
        groups = reader.groups()
        other: dict[str, Json | None] = {k: v for k, v in groups.items() if self._groups.get(k) != v}
        other.update(dict.fromkeys(self._groups.keys() - groups.keys()))
        self._groups = groups
        if other:
            change["groups"] = other
        queue = reader.queue()
        if {**queue, "oldest": 0} != {**self._queue, "oldest": 0}:  # a longer wait alone is no change
            change["queue"] = queue
        self._queue = queue
        if self._standby != self._leader():
            change["standby"] = self._standby = self._leader()
        return change

    async def _replace(self, layout: Layout, nodes: dict[str, NodeRow]) -> None:
        """Replace the whole state and make every page fetch a snapshot, because the columns have changed."""
        self._layout, self._nodes = layout, nodes
        self._groups = self._reader.groups()
        self._queue = self._reader.queue()
        self._ring.clear()
        self._bytes = 0
        self.number += 1
        async with self._updates:
            self._updates.notify_all()

    async def _publish(self, change: Json) -> None:
        self.number += 1
        text = msgspec.json.encode({"now": round(self._clock.now(), 1), **change})
        self._ring.append((self.number, text))
        self._bytes += len(text)
        while len(self._ring) > KEPT_CHANGES or self._bytes > KEPT_BYTES:
            self._bytes -= len(self._ring.popleft()[1])
        async with self._updates:
            self._updates.notify_all()

    # ---- for pages

    async def snapshot(self) -> bytes:
        """Return the whole present state, and the number of the last change in it."""
        await self._publish_changes()
        return msgspec.json.encode(
            {
                "id": f"{self.epoch}-{self.number}",
                "now": round(self._clock.now(), 1),
                "keys": self._layout.keys,
                "resources": self._layout.resources,
                "nodes": list(self._nodes.values()),
                "groups": self._groups,
                "queue": self._queue,
                "samples": list(self._history.samples),
                "evicted": self._history.evicted(),
                "cluster": self._name,
                "standby": self._leader(),
            }
        )

    async def follow(self, after: str) -> AsyncIterator[bytes]:
        """Yield server-sent events after the change named `after`, until the feed closes."""
        epoch, _, number = after.partition("-")
        seen = int(number) if epoch == self.epoch and number.isdigit() else -1
        self.pages += 1
        self.touch()
        try:
            while not self._closed:
                found = self._after(seen)
                if found is None:
                    yield b"event: reset\ndata: {}\n\n"
                    return
                for number_, text in found:
                    seen = number_
                    yield b"id: %s-%d\ndata: %s\n\n" % (self.epoch.encode(), number_, text)
                if found:
                    continue
                try:
                    async with asyncio.timeout(KEEPALIVE_SECONDS), self._updates:
                        await self._updates.wait_for(lambda: self._closed or self.number > seen)  # noqa: B023 - awaited here
                except TimeoutError:
                    yield b": here\n\n"
        finally:
            self.pages -= 1

    def _after(self, seen: int) -> list[tuple[int, bytes]] | None:
        """Return the updates after number `seen`; None if the ring does not reach back that far."""
        if seen == self.number:
            return []
        if not self._ring or seen < self._ring[0][0] - 1 or seen > self.number:
            return None
        return [entry for entry in self._ring if entry[0] > seen]
