"""Limit how many calls a component makes per second (clientConnection.qps and burst)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from phalanx.base.client import Call, Client, Resource, WatchEvent


class PacedClient(Client):
    """Pass calls on in the order in which they were made: `burst` at once, then `qps` per second. Watches are free."""

    def __init__(self, client: Client, qps: float, burst: int, monotonic: Callable[[], float]) -> None:
        self._client = client
        self._qps, self._burst = qps, max(1, burst)
        self._monotonic = monotonic
        self._tokens, self._filled = float(self._burst), monotonic()
        self._order = asyncio.Lock()  # serves waiters in the order in which they came

    async def call(self, call: Call) -> bytes:
        async with self._order:
            self._fill()
            if self._tokens < 1:
                await asyncio.sleep((1 - self._tokens) / self._qps)
                self._fill()
            self._tokens -= 1
        return await self._client.call(call)

    def _fill(self) -> None:
        now = self._monotonic()
        self._tokens = min(float(self._burst), self._tokens + (now - self._filled) * self._qps)
        self._filled = now

    def events(self, call: Call) -> AsyncIterator[WatchEvent]:
        return self._client.events(call)

    async def served(self, resource: Resource) -> bool:
        return await self._client.served(resource)
