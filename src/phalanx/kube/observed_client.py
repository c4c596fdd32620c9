"""Clients around a client: one counts writes and notes their revisions, one limits the rate of calls."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable

import msgspec

from phalanx.base.client import Call, Client, Resource, WatchEvent

READS = ("get", "list", "watch")


class _Meta(msgspec.Struct, rename="camel", frozen=True, gc=False):
    resource_version: str = ""


class _Answer(msgspec.Struct, gc=False):
    metadata: _Meta = _Meta()


_answer = msgspec.json.Decoder(_Answer).decode


class ObservedClient(Client):
    """Pass every call on; count the acknowledged writes."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.writes: Counter[tuple[str, str]] = Counter()  # (verb, "pods" or "pods/binding")
        self.written: dict[str, int] = {}  # plural -> highest revision that an answer named

    async def call(self, call: Call) -> bytes:
        answer = await self._client.call(call)
        if call.verb not in READS:
            plural = call.resource.plural
            self.writes[call.verb, f"{plural}/{call.subresource}" if call.subresource else plural] += 1
            if call.subresource != "binding" and plural != "events":
                self._note(plural, answer)
        return answer

    def _note(self, plural: str, answer: bytes) -> None:
        """Remember the newest version of a resource that this client wrote."""
        try:
            text = _answer(answer).metadata.resource_version
        except msgspec.DecodeError:
            return
        if text.isdigit():
            self.written[plural] = max(int(text), self.written.get(plural, 0))

    def events(self, call: Call) -> AsyncIterator[WatchEvent]:
        return self._client.events(call)

    async def served(self, resource: Resource) -> bool:
        return await self._client.served(resource)


class PacedClient(Client):
    """Pass calls on in their order: `burst` at once, then `qps` per second. Watches are not limited."""

    def __init__(self, client: Client, qps: float, burst: int, monotonic: Callable[[], float]) -> None:
        self._client = client
        self._qps, self._burst = qps, max(1, burst)
        self._monotonic = monotonic
        self._tokens, self._filled = float(self._burst), monotonic()
        self._order = asyncio.Lock()  # first come, first served

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
