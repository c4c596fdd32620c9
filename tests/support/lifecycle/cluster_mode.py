"""A cluster that others run, with Phalanx beside it, on virtual time.

Our own controllers, without groups, stand for kube-controller-manager and the operators; every pod that they make
passes the webhook's answer first. The scheduling kinds are served natively or, on an old cluster, as custom resources.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from phalanx.base.client import Call, Client, WatchEvent
from phalanx.base.tasks import run_all
from phalanx.controllers.cluster_mode.controllers import ClusterControllers
from phalanx.controllers.cluster_mode.linking import Abilities
from phalanx.controllers.workloads.member import PodView
from phalanx.engine.engine import Engine
from phalanx.engine.plugins.config import default_config
from phalanx.kube.group_api import GroupApi
from phalanx.local.api.patch_json import json_patch
from phalanx.local.client import LocalClient
from phalanx.model.crds import definitions
from phalanx.model.gates import KNOWN, Gates
from phalanx.serve.controllers import ControllersService
from phalanx.serve.scheduler import SchedulerOptions, SchedulerService
from phalanx.serve.webhook import PATIENCE
from support.in_process import unmarked
from support.lifecycle.crashes import Crash
from support.lifecycle.operators import Operators
from support.simulated_cluster import SimulatedCluster

Json = dict[str, Any]
OFF = Gates(dict.fromkeys(KNOWN, False))
NATIVE = Gates({"WorkloadWithJob": False})  # groups are served, the Job controller makes none


class BesideCluster(SimulatedCluster):
    def __init__(self, seed: int = 0, *, native: bool = True) -> None:
        super().__init__(seed, NATIVE if native else OFF)
        self.native = native
        self.gang_budgets = False
        self.webhook: ClusterControllers | None = None

    async def install(self) -> None:
        for definition in () if self.native else definitions():
            await self.apply(definition)

    async def start_upstream(self) -> None:
        client: Any = Admitted(self.client_of("upstream"), self)
        await self._start("upstream", ControllersService(client, self.clock, OFF))
        await self._start("operators", Operators(client, self.clock))

    async def start_controllers(self, client: Any = None) -> None:
        """Ours: groups and links."""
        part = _Beside(client or self.between(self.client_of("controllers")), self)
        self.webhook = None
        await self._start("controllers", part)
        self.webhook = part.controllers

    async def start_scheduler(
        self, name: str = "scheduler", client: Any = None, *, scheduler_name: str = "", placement_lease: str = ""
    ) -> SchedulerService:
        engine = Engine(default_config().engine(), Gates())
        rng = random.Random(self.rng.random())
        api = GroupApi(client or self.client_of(name))
        options = SchedulerOptions(placement_lease=placement_lease)
        service = SchedulerService(api, engine, Gates(), self.clock, rng, options)
        self.schedulers[name] = service
        await self._launch(name, service.run(), service.wait_synced())
        return service

    async def kill(self, name: str) -> None:
        if name == "controllers":
            self.webhook = None
        await super().kill(name)


@asynccontextmanager
async def beside_cluster(
    nodes: int,
    *,
    native: bool = True,
    crash: Crash | None = None,
    kinds: Iterable[Json] = (),
    gang_budgets: bool = False,
) -> AsyncIterator[BesideCluster]:
    """Everything running, on nodes of 4 cpu. `crash`: stands between our controllers and the server;
    `kinds`: definitions of what others' operators run."""
    cluster = BesideCluster(native=native)
    cluster.gang_budgets = gang_budgets
    if crash is not None:
        cluster.between = crash.client
    try:
        await cluster.start_duties()
        for definition in kinds:
            await cluster.apply(definition)
        await cluster.install()
        await cluster.start_upstream()
        await cluster.start_nodes(nodes, "cpu=4")
        await cluster.start_controllers()
        await cluster.start_scheduler()
        yield cluster
    finally:
        await cluster.stop()


class _Beside:
    def __init__(self, client: Any, cluster: BesideCluster) -> None:
        self._api = GroupApi(client)
        self.controllers = ClusterControllers(self._api, cluster.clock, gang_budgets=cluster.gang_budgets)
        self.controllers.directory.abilities = Abilities(cluster.native, False)
        self.controllers.writer.fill_priority = self.controllers.workloads_have_status = not cluster.native
        self.ready: asyncio.Event = self.controllers.ready

    async def run(self) -> None:
        await self._api.decide()
        await run_all((("follow", self.controllers.follow()), ("work", self.controllers.work())))


class Admitted(Client):
    """A client whose pods pass the webhook before they are created; without one they pass as they are."""

    def __init__(self, client: LocalClient, cluster: BesideCluster) -> None:
        self._client, self._cluster = client, cluster
        self.snapshot = client.snapshot

    def events(self, call: Call) -> AsyncIterator[WatchEvent]:
        return self._client.events(call)

    async def call(self, call: Call) -> bytes:
        if call.verb == "create" and call.resource.plural == "pods" and not call.subresource and self._cluster.webhook:
            pod = msgspec.json.decode(call.encoded())
            view = msgspec.convert(pod, PodView)
            links = self._cluster.webhook.directory
            if not view.linked and not view.spec.node_name and view.controller is not None:
                await links.wait_for_owner(view, call.namespace, PATIENCE)
                call = msgspec.structs.replace(call, body=json_patch(pod, links.patch(view, call.namespace)))
        return await self._client.call(unmarked(call))
