"""All system controllers of the local API server as one component."""

from __future__ import annotations

import asyncio

from phalanx.base.client import Client
from phalanx.base.clock import Clock, SystemClock, rfc3339
from phalanx.base.tasks import run_all
from phalanx.local.system_controllers import garbage, protection
from phalanx.local.system_controllers.aggregation import Aggregation
from phalanx.local.system_controllers.api_services import ApiServices
from phalanx.local.system_controllers.bootstrap import bootstrap
from phalanx.local.system_controllers.bootstrap_roles import bootstrap_roles
from phalanx.local.system_controllers.garbage import GarbageCollector
from phalanx.local.system_controllers.metadata_feed import MetadataFeed
from phalanx.local.system_controllers.namespaces import NamespaceDefaults, NamespaceDeleter
from phalanx.local.system_controllers.own_service import OwnService, ServiceAddress
from phalanx.local.system_controllers.protection import GroupProtection
from phalanx.model.kinds import Registry


class SystemControllers:
    """`run` until cancelled; `ready` is set when the system objects exist and every kind is watched."""

    def __init__(
        self,
        client: Client,
        registry: Registry,
        clock: Clock | None = None,
        *,
        ca: bytes | None = None,
        place: ServiceAddress | None = None,
        roles: bool = False,
    ) -> None:
        """ca: authority of the server's certificate; place: where it listens; roles: create the default RBAC roles."""
        self.ready = asyncio.Event()
        self._client = client
        self._roles = roles
        self._feed = MetadataFeed(client, registry, {**garbage.VIEWS, **protection.VIEWS})
        self._namespace_defaults = NamespaceDefaults(client, self._feed, ca)
        clock = clock or SystemClock()
        self._ca, self._clock = ca, clock
        self._own_service = OwnService(client, self._feed, place or ServiceAddress(), clock)
        self._api_services = ApiServices(client, registry, self._feed)
        self._parts = (
            self._namespace_defaults,
            self._own_service,
            GarbageCollector(client, registry, self._feed),
            NamespaceDeleter(client, registry, self._feed, clock),
            GroupProtection(client, registry, self._feed),
            Aggregation(client, self._feed),
            self._api_services,
        )

    async def run(self) -> None:
        await bootstrap(self._client, self._ca, rfc3339(self._clock.now())[:10])
        if self._roles:
            await bootstrap_roles(self._client)
        await self._namespace_defaults.create_defaults("default")  # before `ready`, so that clients find them
        await self._own_service.create_defaults()
        await self._api_services.settle()
        parts = [(type(part).__name__, part.run()) for part in self._parts]
        await run_all([("feed", self._feed.run()), *parts, ("readiness", self._report_ready())])

    async def _report_ready(self) -> None:
        await self._feed.synced.wait()
        self.ready.set()
        await asyncio.Event().wait()
