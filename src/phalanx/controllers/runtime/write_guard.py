"""Keep a controller from writing the same object again and again.

Two controllers that disagree, or a field that the API server drops, make a loop that writes as fast as the server
answers. A write beyond the limit is refused like a 429 of the server, so that the work queue backs off.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable

import msgspec

from phalanx.base.client import Call, Client, Resource, WatchEvent
from phalanx.base.errors import TooManyRequests

log = logging.getLogger(__name__)

BURST = 30.0  # writes of one object at once
PER_SECOND = 2.0  # and in the long run
REMEMBERED = 10_000  # objects written last
UNLIMITED = ("events", "leases")
Refused = Callable[[Resource, str, str, str], None]  # resource, namespace, name, message


class _Budget(msgspec.Struct):
    left: float
    at: float


class WriteGuard(Client):
    """Pass calls on; limit creations, updates, patches and deletions per object name. Status is not limited: it follows
    what happens to pods, and a loop there ends when nothing changes."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._budgets: OrderedDict[tuple[str, str, str], _Budget] = OrderedDict()
        self.refused: Refused = lambda resource, namespace, name, message: None
        self.refusals = 0

    async def call(self, call: Call) -> bytes:
        if call.verb in ("create", "update", "patch", "delete") and not call.subresource:
            self._spend(call)
        return await self._client.call(call)

    def _spend(self, call: Call) -> None:
        name = call.name or _name(call)
        if not name or call.resource.plural in UNLIMITED:
            return
        now = asyncio.get_running_loop().time()
        key = (call.resource.plural, call.namespace, name)
        budget = self._budgets.setdefault(key, _Budget(BURST, now))
        self._budgets.move_to_end(key)
        if len(self._budgets) > REMEMBERED:
            self._budgets.popitem(last=False)
        budget.left, budget.at = min(BURST, budget.left + (now - budget.at) * PER_SECOND), now
        if budget.left < 1:
            self.refusals += 1
            message = f"{call.resource.kind} {name} is written more than {PER_SECOND:g} times a second; backing off"
            self.refused(call.resource, call.namespace, name, message)
            raise TooManyRequests(message)
        budget.left -= 1

    def events(self, call: Call) -> AsyncIterator[WatchEvent]:
        return self._client.events(call)

    async def served(self, resource: Resource) -> bool:
        return await self._client.served(resource)


def _name(call: Call) -> str:
    meta = call.body.get("metadata") if isinstance(call.body, dict) else None
    return str(meta.get("name") or "") if isinstance(meta, dict) else ""
