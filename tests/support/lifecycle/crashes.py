"""A client whose user can be stopped at one of its writes, before or after the server got it, as by kill -9."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from phalanx.base.client import Call, Client, WatchEvent
from phalanx.base.errors import ApiProblem
from phalanx.local.client import LocalClient

WRITES = ("create", "update", "patch", "delete")


class Crash:
    """When the next crash comes: shared by all clients of a part, which freeze at their next request."""

    def __init__(self) -> None:
        self.crashed = asyncio.Event()
        self._left: int | None = None  # writes until then
        self.answered = False

    def arm(self, writes: int, *, answered: bool) -> None:
        """answered: the last write reaches the server, and no client hears of it."""
        self.crashed = asyncio.Event()
        self._left, self.answered = writes, answered

    def disarm(self) -> None:
        self._left = None

    def client(self, client: LocalClient) -> CrashingClient:
        return CrashingClient(client, self)

    def due(self) -> bool:
        """Whether this write is the last."""
        if self._left is None:
            return False
        self._left -= 1
        return self._left == 0


class CrashingClient(Client):
    def __init__(self, client: LocalClient, crash: Crash) -> None:
        self._client, self._crash = client, crash
        self._dead = False
        self.snapshot = client.snapshot

    def events(self, call: Call) -> AsyncIterator[WatchEvent]:
        return self._client.events(call)

    async def call(self, call: Call) -> bytes:
        if call.verb not in WRITES:
            return await self._client.call(call)
        if not self._dead and self._crash.due():
            self._dead = True
            self._crash.disarm()
            if self._crash.answered:
                with contextlib.suppress(ApiProblem):
                    await self._client.call(call)
            self._crash.crashed.set()
        if self._dead:
            await asyncio.Event().wait()
        return await self._client.call(call)
