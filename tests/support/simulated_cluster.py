"""Run a whole cluster in one process on virtual time: store, API server, kubelets, controllers, schedulers.

The parts are the product's own, joined by the in-process client. The same seed and the same actions give the same
history, byte for byte (`history`). Parts may be killed at any write and started again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Protocol

import msgspec

from phalanx.base.client import Call, Resource, WatchEvent
from phalanx.engine.engine import Engine
from phalanx.engine.plugins.config import default_config, read_config
from phalanx.local.api.context import Context
from phalanx.local.api.handler import Api
from phalanx.local.api.index import index_of
from phalanx.local.api.write import Writer
from phalanx.local.client import LocalClient
from phalanx.local.nodes import Fleet, KubeletOptions, SimulatedNodes, parse_topology
from phalanx.local.store import Store
from phalanx.local.store.contract import Entry
from phalanx.local.system_controllers import SystemControllers
from phalanx.model import builtin
from phalanx.model.gates import Gates
from phalanx.model.kinds import Json, Kind, Registry
from phalanx.serve.controllers import ControllersService
from phalanx.serve.scheduler import SchedulerOptions, SchedulerService
from support.virtual_time import VirtualClock, VirtualLoop

MOST_DECODED = 5000  # objects
# Written by the clock, not because something happened.
ALWAYS_CHANGING = frozenset({"leases.coordination.k8s.io", "events", "events.events.k8s.io"})


class _Part(Protocol):
    ready: asyncio.Event

    async def run(self) -> None: ...


class PatientClient(LocalClient):
    """A client whose watches never end by themselves: watch renewal is random, and nothing here may be.

    Of bookmarks it gets only the one that ends the initial events: the others would be most of the traffic of an
    idle cluster.
    """

    async def events(self, call: Call) -> AsyncIterator[WatchEvent]:
        query = {k: v for k, v in call.query.items() if k not in ("timeoutSeconds", "allowWatchBookmarks")}
        if query.pop("sendInitialEvents", ""):
            del query["resourceVersionMatch"]
            objects, revision = await self._api.present(self._request(msgspec.structs.replace(call, verb="list")))
            for body in objects:
                yield WatchEvent("ADDED", body)
            meta = {"resourceVersion": str(revision), "annotations": {"k8s.io/initial-events-end": "true"}}
            yield WatchEvent("BOOKMARK", msgspec.json.encode({"kind": call.resource.kind, "metadata": meta}))
            query["resourceVersion"] = str(revision)
        async for event in super().events(msgspec.structs.replace(call, query=query)):
            yield event


class SimulatedCluster:
    """Made inside a running VirtualLoop; `start` what is wanted, `stop` at the end (or use `simulated_cluster`)."""

    def __init__(self, seed: int = 0, gates: Gates | None = None) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop), "a simulated cluster lives on virtual time: see support.virtual_time.run"
        self.loop = loop
        self.clock = VirtualClock(loop)
        self.rng = random.Random(seed)
        self.gates = gates or Gates()
        self.store = Store.open(":memory:", indexer=index_of)
        self.registry = builtin.registry(self.gates)
        self._context = Context(self.store, self.registry, self.gates, self.clock, random.Random(self.rng.random()))
        self._api = Api(self._context, Writer(self._context))
        self.client = self.client_of("test")
        self._running: dict[str, asyncio.Task[None]] = {}
        self.schedulers: dict[str, SchedulerService] = {}
        self.nodes: SimulatedNodes | None = None
        self._named: tuple[Registry, int, dict[str, Kind]] = (self.registry, -1, {})
        self._decoded: dict[tuple[str, str, str], tuple[int, Json]] = {}
        self._rested = (-1, (0, 0))  # a revision of the store, and what there was then
        self.between: Callable[[LocalClient], Any] = lambda client: client  # controllers and the API server

    def client_of(self, user_agent: str) -> LocalClient:
        return PatientClient(self._api, user_agent=user_agent)

    # ---- parts

    async def start_duties(self) -> None:
        await self._start("duties", SystemControllers(self.client_of("duties"), self.registry, self.clock))

    async def start_nodes(self, count: int, topology: str = "", options: KubeletOptions | None = None) -> None:
        self.nodes = SimulatedNodes(
            self.client_of("kubelet"), Fleet(count, parse_topology(topology)), clock=self.clock, options=options
        )
        await self._start("nodes", self.nodes)

    async def start_controllers(self, client: Any = None) -> None:
        """Start the controllers. client: a wrapper between them and the API server (see `gates` for the gates)."""
        service = ControllersService(
            client or self.between(self.client_of("phalanx-controllers")), self.clock, self.gates
        )
        await self._start("controllers", service)

    async def start_scheduler(
        self, name: str = "scheduler", client: Any = None, *, scheduler_name: str = "", placement_lease: str = ""
    ) -> SchedulerService:
        """Start a scheduler. scheduler_name: of the pods it places. placement_lease: shared with other schedulers."""
        document = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "profiles": [{"schedulerName": scheduler_name}],
        }
        config = read_config(document) if scheduler_name else default_config()
        engine = Engine(config.engine(), self.gates)
        rng = random.Random(self.rng.random())
        options = SchedulerOptions(placement_lease=placement_lease)
        service = SchedulerService(client or self.client_of(name), engine, self.gates, self.clock, rng, options)
        self.schedulers[name] = service
        await self._launch(name, service.run(), service.wait_synced())
        return service

    async def switch_gates(self, gates: Gates) -> None:
        """Restart the whole cluster with other feature gates on the same data: every part that ran is started again."""
        again = [name for name in ("duties", "controllers", *self.schedulers) if name in self._running]
        for name in again:
            await self.kill(name)
        self.gates = self._context.gates = gates
        custom = {entry.key[2] for entry in self.store.list("customresourcedefinitions.apiextensions.k8s.io")}
        added = [kind for kind in self.registry.all() if kind.storage_key in custom]
        self._context.registry = self.registry = builtin.registry(gates)
        for kind in added:
            self.registry.add(kind)
        for name in again:
            if name == "duties":
                await self.start_duties()
            elif name == "controllers":
                await self.start_controllers()
            else:
                await self.start_scheduler(name)

    async def kill(self, name: str) -> None:
        """Kill a part at once; a write it has sent may still arrive."""
        task = self._running.pop(name)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def stop(self) -> None:
        for name in list(self._running):
            await self.kill(name)
        await self.store.close()

    async def _start(self, name: str, part: _Part) -> None:
        await self._launch(name, part.run(), part.ready.wait())

    async def _launch(self, name: str, life: Coroutine[Any, Any, None], ready: Coroutine[Any, Any, Any]) -> None:
        task = self._running[name] = asyncio.create_task(life, name=name)
        waiting = asyncio.create_task(ready, name=f"{name} is ready")
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            waiting.cancel()
            task.result()
            raise AssertionError(f"{name} ended before it was ready")

    def check_alive(self) -> None:
        """Raise the exception that a part died of."""
        for name, task in self._running.items():
            if task.done():
                task.result()
                raise AssertionError(f"{name} ended")

    # ---- time

    async def settle(self, quiet: float = 5.0, most: float = 3600.0) -> bool:
        """Run until nothing was written for `quiet` seconds (except heartbeats, Events); False: not within `most`."""
        end = self.loop.time() + most
        while self.loop.time() < end:
            before = self._settled_revision()
            await asyncio.sleep(quiet)
            self.check_alive()
            if self._settled_revision() == before:
                return True
        return False

    def _settled_revision(self) -> tuple[int, int]:
        """Return the newest revision and the number of objects: a deletion shows in the second."""
        if self.store.revision == self._rested[0]:
            return self._rested[1]
        newest = count = 0
        for kind in self._stored():
            if kind.storage_key in ALWAYS_CHANGING:
                continue
            for entry in self.store.list(kind.storage_key):
                newest = max(newest, entry.revision)
                count += 1
        self._rested = (self.store.revision, (newest, count))
        return newest, count

    # ---- objects

    def _stored(self) -> list[Kind]:
        return [kind for kind in self.registry.all() if kind.stored and not kind.stored_as]

    def _kind(self, kind: str) -> Kind:
        return self._by_name()[kind]

    def _by_name(self) -> dict[str, Kind]:
        """Return stored kinds by name."""
        registry, generation, found = self._named
        if registry is not self.registry or generation != self.registry.generation:
            found = {entry.kind: entry for entry in reversed(self.registry.all()) if not entry.stored_as}
            self._named = (self.registry, self.registry.generation, found)
        return found

    def served(self, kind: str) -> bool:
        return kind in self._by_name()

    def api_version_of(self, kind: str) -> str:
        entry = self._kind(kind)
        return f"{entry.group}/{entry.versions[0].name}" if entry.group else entry.versions[0].name

    def get(self, kind: str, name: str, namespace: str = "default") -> Json | None:
        entry = self._kind(kind)
        found = self.store.get((entry.storage_key, namespace if entry.namespaced else "", name))
        return msgspec.json.decode(found.value) if found is not None else None

    def all(self, kind: str, namespace: str = "default") -> list[Json]:
        """Return all objects by name. Each version is decoded once and shared: callers must not change it."""
        entry = self._kind(kind)
        found = self.store.list(entry.storage_key, namespace if entry.namespaced else "")
        return [self._read(one) for one in found]

    def _read(self, entry: Entry) -> Json:
        revision, known = self._decoded.get(entry.key, (0, {}))
        if revision != entry.revision:
            known = msgspec.json.decode(entry.value)
            if len(self._decoded) >= MOST_DECODED:
                self._decoded.clear()
            self._decoded[entry.key] = (entry.revision, known)
        return known

    async def apply(self, body: Json, namespace: str = "default") -> Json:
        """Create an object in the version its body names."""
        resource = self._resource(body)
        created: Json = json.loads(await self.client.create(resource, body, namespace if resource.namespaced else ""))
        return created

    def _resource(self, body: Json) -> Resource:
        group, _, version = body["apiVersion"].rpartition("/")
        for kind in self.registry.all():
            resource = kind.resource()
            if kind.kind == body["kind"] and resource.group == group:
                return Resource(group, version, resource.plural, kind.kind, namespaced=resource.namespaced)
        raise LookupError(f"{body['apiVersion']} {body['kind']} is not served")

    async def patch(self, kind: str, name: str, body: Json, namespace: str = "default", subresource: str = "") -> None:
        entry = self._kind(kind)
        namespace = namespace if entry.namespaced else ""
        await self.client.patch(entry.resource(), name, body, namespace, subresource=subresource)

    async def delete(self, kind: str, name: str, namespace: str = "default", **options: Any) -> None:
        entry = self._kind(kind)
        await self.client.delete(entry.resource(), name, namespace if entry.namespaced else "", **options)

    def follow(self, kind: str, seen: Callable[[Json, bool], None]) -> None:
        """Call `seen(object, gone)` with every change from now on, as long as the loop runs."""
        watcher = self.store.watch(self._kind(kind).storage_key)

        async def follow() -> None:
            async for batch in watcher:
                for change in batch:
                    seen(json.loads(change.entry.value), change.deleted)

        self._running[f"follow {kind}"] = asyncio.create_task(follow(), name=f"follow {kind}")

    @property
    def history(self) -> str:
        """Return a digest of everything stored now, revisions and times included."""
        digest = hashlib.sha256()
        for kind in self._stored():
            for entry in self.store.list(kind.storage_key):
                digest.update(f"{entry.key} {entry.revision} ".encode() + entry.value)
        return digest.hexdigest()


@asynccontextmanager
async def simulated_cluster(
    nodes: int = 4,
    *,
    seed: int = 0,
    topology: str = "",
    options: KubeletOptions | None = None,
    gates: Gates | None = None,
) -> AsyncIterator[SimulatedCluster]:
    """Start every part of a simulated cluster."""
    cluster = SimulatedCluster(seed, gates)
    try:
        await cluster.start_duties()
        await cluster.start_nodes(nodes, topology, options)
        await cluster.start_controllers()
        await cluster.start_scheduler()
        yield cluster
    finally:
        await cluster.stop()
