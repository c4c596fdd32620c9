"""A whole cluster in the test's own event loop: API server, duties, simulated nodes, controllers and scheduler.

Controllers may be killed and started again at any moment; waiting is by watching.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from phalanx.base.client import Call, Client, WatchEvent
from phalanx.base.clock import Clock, SystemClock
from phalanx.base.errors import NotFound
from phalanx.engine.engine import Engine
from phalanx.engine.plugins.config import default_config
from phalanx.local.api.context import Context
from phalanx.local.api.handler import Api
from phalanx.local.api.write import Writer
from phalanx.local.client import LocalClient
from phalanx.local.nodes import KubeletOptions
from phalanx.model import builtin
from phalanx.model.gates import Gates
from phalanx.serve.controllers import ControllersService
from phalanx.serve.scheduler import SchedulerService
from support.in_process import Inside

Json = dict[str, Any]


class World(Inside):
    clock: Clock = SystemClock()

    gates = Gates()
    nodes: tuple[int, str, float] = (0, "", 50)

    async def start(self) -> None:
        """Everything, over whatever the store has."""
        await self.start_duties()
        count, topology, speed = self.nodes
        if count:
            await self.start_nodes(count, topology, KubeletOptions(speed=speed))
        await self.start_controllers()
        await self.start_scheduler()

    async def restart(self, gates: Gates) -> None:
        """The same data under another set of gates, as `phalanx up` would start again."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        self.gates, self.registry = gates, builtin.registry(gates)
        context = Context(self.store, self.registry, gates)
        self.client = LocalClient(Api(context, Writer(context)), user_agent="test")
        await self.start()

    async def start_controllers(self, client: Any = None) -> ControllersService:
        ours = LocalClient(self.client._api, user_agent="phalanx-controllers")
        service = ControllersService(client or ours, self.clock, self.gates)
        self._controllers = await self.run(service.run(), service.ready)
        return service

    async def kill_controllers(self) -> None:
        """At whatever write they are."""
        self._controllers.cancel()
        await asyncio.gather(self._controllers, return_exceptions=True)
        self._tasks.remove(self._controllers)

    async def start_scheduler(self) -> None:
        gates = self.gates
        engine = Engine(default_config().engine(), gates)
        service = SchedulerService(self.client, engine, gates, self.clock, random.Random(1))
        ready = asyncio.Event()

        async def notify() -> None:
            await service.wait_synced()
            ready.set()

        telling = asyncio.create_task(notify())
        await self.run(service.run(), ready)
        await telling


@asynccontextmanager
async def world(
    nodes: int = 4,
    *,
    topology: str = "",
    speed: float = 50,
    scheduler: bool = True,
    controllers: bool = True,
    clock: Clock | None = None,
) -> AsyncIterator[World]:
    cluster = World()
    if clock is not None:
        cluster.clock = clock
    cluster.nodes = (nodes, topology, speed)
    try:
        await cluster.start_duties()
        if nodes:
            await cluster.start_nodes(nodes, topology, KubeletOptions(speed=speed))
        if controllers:
            await cluster.start_controllers()
        if scheduler:
            await cluster.start_scheduler()
        yield cluster
    finally:
        await cluster.stop()


def play(scenario: Callable[[World], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def run() -> None:
        async with world(**options) as cluster:
            await scenario(cluster)

    asyncio.run(run())


async def let_groups_go(cluster: World) -> None:
    """Who is made under a group that was deleted waits until that is gone: end the pods that still hold it."""
    going = {obj["metadata"]["name"] for obj in cluster.all("PodGroup") if "deletionTimestamp" in obj["metadata"]}
    for pod in cluster.all("Pod"):
        if (pod["spec"].get("schedulingGroup") or {}).get("podGroupName") in going:
            with suppress(NotFound):
                await cluster.delete("Pod", pod["metadata"]["name"])


class Crash(BaseException):
    """The process is gone: nothing after this write happens."""


class DyingClient(Client):
    """A client whose owner dies after so many writes; the last write still reaches the server."""

    def __init__(self, client: LocalClient, writes: int) -> None:
        self._client, self.left = client, writes
        self.died = asyncio.Event()
        self.snapshot = client.snapshot

    def events(self, call: Call) -> AsyncIterator[WatchEvent]:
        return self._client.events(call)

    async def call(self, call: Call) -> bytes:
        if call.verb in ("create", "update", "patch", "delete"):
            if self.left <= 0:
                self.died.set()
                await asyncio.Event().wait()  # for ever: the owner is about to be cancelled
            self.left -= 1
        return await self._client.call(call)


def image_of(pod: Json) -> str:
    return str(pod["spec"]["containers"][0]["image"])


def condition(obj: Json, type_: str) -> Json:
    found = [c for c in (obj.get("status") or {}).get("conditions") or () if c["type"] == type_]
    return found[0] if found else {}


class MovedClock(SystemClock):
    """The wall clock, moved by hand on top."""

    def __init__(self, start: float) -> None:
        self._ahead = start - SystemClock().now()

    def now(self) -> float:
        return super().now() + self._ahead

    def advance(self, seconds: float) -> None:
        self._ahead += seconds
