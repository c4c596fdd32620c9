"""All duties as one thing to run beside an API server."""

from __future__ import annotations

import asyncio

from phalanx.base.client import Client
from phalanx.base.clock import Clock, SystemClock
from phalanx.base.tasks import run_all
from phalanx.local.duties import garbage, protection
from phalanx.local.duties.aggregation import Aggregation
from phalanx.local.duties.api_services import ApiServices
from phalanx.local.duties.bootstrap import bootstrap
from phalanx.local.duties.bootstrap_roles import bootstrap_roles
from phalanx.local.duties.feed import Feed
from phalanx.local.duties.furnishing import Furnishing
from phalanx.local.duties.garbage import GarbageCollector
from phalanx.local.duties.namespaces import NamespaceDeleter
from phalanx.local.duties.own_service import OwnService, Place
from phalanx.local.duties.protection import GroupProtection
from phalanx.model.kinds import Registry


class Duties:
    """`run` until cancelled; `ready` once the cluster has its system objects and every kind is being watched."""

    def __init__(
        self,
        client: Client,
        registry: Registry,
        clock: Clock | None = None,
        *,
        ca: bytes | None = None,
        place: Place | None = None,
        roles: bool = False,
    ) -> None:
        """ca: the authority of the server's certificate; place: where it listens; roles: make the usual ones."""
        self.ready = asyncio.Event()
        self._client = client
        self._roles = roles
        self._feed = Feed(client, registry, {**garbage.VIEWS, **protection.VIEWS})
        self._furnishing = Furnishing(client, self._feed, ca)
        clock = clock or SystemClock()
        self._own_service = OwnService(client, self._feed, place or Place(), clock)
        self._api_services = ApiServices(client, registry, self._feed)
        self._parts = (
            self._furnishing,
            self._own_service,
            GarbageCollector(client, registry, self._feed),
            NamespaceDeleter(client, registry, self._feed, clock),
            GroupProtection(client, registry, self._feed),
            Aggregation(client, self._feed),
            self._api_services,
        )

    async def run(self) -> None:
        await bootstrap(self._client)
        if self._roles:
            await bootstrap_roles(self._client)
        await self._furnishing.furnish("default")  # who starts a cluster finds it complete
        await self._own_service.furnish()
        await self._api_services.settle()
        parts = [(type(part).__name__, part.run()) for part in self._parts]
        await run_all([("feed", self._feed.run()), *parts, ("readiness", self._tell_ready())])

    async def _tell_ready(self) -> None:
        await self._feed.synced.wait()
        self.ready.set()
        await asyncio.Event().wait()
