"""The processes of a simulated cluster: each on a machine of its own, with its own clock, ended and started by seed.

The parts are the product's own, put together as `phalanx apiserver`, `scheduler`, `controllers` and `nodes` do it, over
the simulated network in place of TCP and without TLS.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from uvicorn.server import ServerState

from phalanx.base.errors import ConfigProblem
from phalanx.engine.decisions import Decision
from phalanx.engine.engine import Engine
from phalanx.engine.framework.settings import EngineSettings
from phalanx.engine.plugins.config import default_config
from phalanx.kube.client import HttpClient
from phalanx.kube.config import Connection
from phalanx.kube.lease import Elector, LeaderLost, LeaseSettings
from phalanx.local.api.app import App
from phalanx.local.api.auth import Anonymous
from phalanx.local.api.context import Context
from phalanx.local.api.handler import Api
from phalanx.local.api.index import index_of
from phalanx.local.api.limits import Limits
from phalanx.local.api.server import connections
from phalanx.local.api.write import Writer
from phalanx.local.client import LocalClient
from phalanx.local.nodes import Fleet, SimulatedNodes, parse_topology
from phalanx.local.nodes.devices import parse_devices
from phalanx.local.store import Store
from phalanx.local.store.window import WindowBounds
from phalanx.local.system_controllers import SystemControllers
from phalanx.model import builtin
from phalanx.model.gates import Gates
from phalanx.serve.controllers import ControllersService
from phalanx.serve.scheduler import SchedulerOptions, SchedulerService
from support.simulation.disk import Disk
from support.simulation.network import Host, Network
from support.simulation.workloads import DEVICES
from support.virtual_time import VirtualClock, VirtualLoop

ADDRESS = "127.0.0.1:8001"
LEASE = LeaseSettings("phalanx-scheduler")
SLICES = (EngineSettings().search_slice, 20, 2)
LAST_BREATH = 60.0  # seconds a process may take to end once it is asked to
EXPECTED = (ConfigProblem,)  # a process may end of this, and is started again as by its supervisor


class Process(ABC):
    """Start, crash, stop. `deaths` are unrequested ends that no supervisor would expect."""

    def __init__(self, name: str, network: Network, loop: VirtualLoop, rng: random.Random) -> None:
        self.name, self.network, self.loop, self.rng = name, network, loop, rng
        self.host = Host(name)
        self.clock = VirtualClock(loop)
        self.deaths: list[BaseException] = []
        self.stuck = False
        self.restarts = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def up(self) -> bool:
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        self.host = Host(self.name)
        self.restarts += 1
        self._task = asyncio.create_task(self._life(), name=self.name)

    async def crash(self) -> None:
        """Crash as by kill -9 or a power cut: nothing it does from now on has any effect outside."""
        self.network.crash(self.host)
        await self._end()

    async def _end(self) -> None:
        task, self._task = self._task, None
        if task is None:
            return
        for _ in range(2):  # asked again, as `base.tasks.end` does: a library may lose a cancellation (aiohttp #10506)
            task.cancel()
            _, late = await asyncio.wait({task}, timeout=LAST_BREATH / 2)
            if not late:
                return
        self.stuck = True

    async def _life(self) -> None:
        try:
            await self.run()
        except asyncio.CancelledError:
            raise
        except BaseException as problem:
            cause = problem
            while isinstance(cause, BaseExceptionGroup):
                cause = cause.exceptions[0]
            if not isinstance(cause, EXPECTED) and self.host.alive:
                self.deaths.append(cause)
        finally:
            self.network.crash(self.host)

    @abstractmethod
    async def run(self) -> None: ...

    def client(self) -> HttpClient:
        connection = Connection(f"http://{ADDRESS}", None, clock=self.clock)
        return HttpClient(connection, user_agent=f"phalanx-{self.name}", connect=self.network.connecting(self.host))


class ApiServer(Process):
    """Store on the simulated disk, handlers, HTTP, system controllers. `wrap` may wrap the application."""

    def __init__(
        self,
        network: Network,
        loop: VirtualLoop,
        rng: random.Random,
        disk: Disk,
        opened: Callable[[Store], None],
        wrap: Callable[[Any], Any],
    ) -> None:
        super().__init__("apiserver", network, loop, rng)
        self.disk = disk
        self.store: Store | None = None
        self.refused: list[str] = []  # why it did not start
        self._opened, self._wrap = opened, wrap

    async def run(self) -> None:
        try:
            store = Store.open(
                self.disk.path,
                indexer=index_of,
                window=WindowBounds(changes=self.rng.choice((200, 2000))),  # a short memory: watchers meet 410
                clock=self.clock,
                commits=self.disk.commits,
                space=self.disk.space(self.clock.monotonic),
            )
        except ConfigProblem as problem:
            self.refused.append(str(problem))
            raise
        self.store = store
        self._opened(store)
        gates = Gates()
        context = Context(store, builtin.registry(gates), gates, self.clock, random.Random(self.rng.getrandbits(64)))
        api = Api(context, Writer(context))
        app = App(api, Anonymous())
        app.address, app.ready = ADDRESS, True
        state = ServerState()
        try:
            duties = SystemControllers(LocalClient(api, user_agent="duties"), context.registry, self.clock)
            beside = asyncio.create_task(duties.run(), name="duties")
            try:
                ready = asyncio.create_task(duties.ready.wait())
                await asyncio.wait({ready, beside}, return_when=asyncio.FIRST_COMPLETED)
                ready.cancel()
                speaking = connections(self._wrap(app), Limits(), state, self.loop)
                self.network.listen(ADDRESS, self.host, speaking)
                await beside
            finally:
                beside.cancel()
                await asyncio.gather(beside, return_exceptions=True)
        finally:
            for task in tuple(state.tasks):
                task.cancel()
            if store._commits is not None:
                store._commits.kill()  # type: ignore[attr-defined]
            store._closed = True
            store._hub.close()
            self.store = None


class Scheduler(Process):
    """One of two schedulers that compete for the lease."""

    service: SchedulerService | None = None

    def __init__(
        self,
        name: str,
        network: Network,
        loop: VirtualLoop,
        rng: random.Random,
        decided: Callable[[str, list[Decision]], None],
    ) -> None:
        super().__init__(name, network, loop, rng)
        self._decided = decided
        self._lives = 0
        self.elector: Elector | None = None

    async def run(self) -> None:
        self.elector = None
        while True:
            try:
                await self._stand_by()
                return
            except LeaderLost:
                continue  # as `serve.process` does: a new life that remembers the lease

    async def _stand_by(self) -> None:
        gates = Gates()
        async with self.client() as client:
            rng = random.Random(self.rng.getrandbits(64))
            # Small slices: what only the largest gangs meet elsewhere, searches and Binds over several steps,
            # happens to every group here.
            engine = Engine(replace(default_config().engine(), search_slice=rng.choice(SLICES)), gates)
            self._lives += 1
            identity, before = f"{self.name}_{self._lives}", self.elector
            made = (
                Elector(client, LEASE, identity, self.clock) if before is None else before.successor(client, identity)
            )
            self.elector = made
            options = SchedulerOptions(may_act=lambda: made.holds)
            service = SchedulerService(client, engine, gates, self.clock, rng, options)
            service.on_decisions.append(lambda decisions: self._decided(self.name, decisions))
            self.service = service
            try:
                await made.lead(service.run, lambda: service.settled)
            finally:
                self.service = None


class Controllers(Process):
    async def run(self) -> None:
        async with self.client() as client:
            await ControllersService(client, self.clock).run()


class Nodes(Process):
    def __init__(
        self, network: Network, loop: VirtualLoop, rng: random.Random, count: int, topology: str, *, devices: bool
    ) -> None:
        super().__init__("nodes", network, loop, rng)
        self._count, self._topology = count, topology
        self._devices = parse_devices(DEVICES) if devices else []

    async def run(self) -> None:
        async with self.client() as client:
            await SimulatedNodes(
                client,
                Fleet(self._count, parse_topology(self._topology), drivers=self._devices),
                clock=self.clock,
            ).run()
