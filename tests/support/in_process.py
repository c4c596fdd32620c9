"""API server, duties and simulated nodes in the test's own event loop, without HTTP; waiting is by watching."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec

from phalanx.base.client import Call, Resource
from phalanx.local.api.context import Context
from phalanx.local.api.handler import Api
from phalanx.local.api.index import index_of
from phalanx.local.api.write import Writer
from phalanx.local.client import LocalClient
from phalanx.local.nodes import Fleet, KubeletOptions, SimulatedNodes, parse_topology
from phalanx.local.store import Store
from phalanx.local.system_controllers import SystemControllers, bootstrap
from phalanx.model import builtin
from phalanx.model.gates import Gates
from phalanx.model.groups.keys import COMPLETED_IN, RUN
from phalanx.model.kinds import Kind

Json = dict[str, Any]
T = TypeVar("T")
TIMEOUT = 90.0  # what is tried again comes within 30 s: WorkQueue


def unmarked(call: Call) -> Call:
    """As kube-controller-manager writes: only our own Job controller says on pods which run they are of."""
    body = call.body
    if call.resource.plural != "pods" or not isinstance(body, dict):
        return call
    meta = body.get("metadata") or {}
    annotations = {key: text for key, text in (meta.get("annotations") or {}).items() if key not in (RUN, COMPLETED_IN)}
    return msgspec.structs.replace(call, body={**body, "metadata": {**meta, "annotations": annotations}})


class Inside:
    def __init__(self) -> None:
        gates = Gates()
        self.store = Store.open(":memory:", indexer=index_of)
        self.registry = builtin.registry(gates)
        context = Context(self.store, self.registry, gates)
        self.client = LocalClient(Api(context, Writer(context)), user_agent="test")
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self, what: Coroutine[Any, Any, None], ready: asyncio.Event) -> asyncio.Task[None]:
        task = asyncio.create_task(what)
        self._tasks.append(task)
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait_for(asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED), TIMEOUT)
        waiting.cancel()
        if task.done():
            task.result()
        return task

    async def start_duties(self) -> None:
        duties = SystemControllers(self.client, self.registry)
        await self.run(duties.run(), duties.ready)

    async def start_nodes(self, count: int = 1, topology: str = "", options: KubeletOptions | None = None) -> Any:
        nodes = SimulatedNodes(
            self.client,
            Fleet(count, parse_topology(topology)),
            options=options or KubeletOptions(speed=50),
        )
        return await self.run(nodes.run(), nodes.ready)

    def _kind(self, name: str) -> Kind:
        return next(entry for entry in self.registry.all() if entry.kind == name and not entry.stored_as)

    def resource(self, kind: str) -> Resource:
        return self._kind(kind).resource()

    async def create(self, kind: str, name: str, namespace: str = "default", **rest: Any) -> Json:
        resource = self.resource(kind)
        metadata = {"name": name, **rest.pop("metadata", {})}
        body = {"apiVersion": resource.api_version, "kind": kind, "metadata": metadata, **rest}
        created: Json = json.loads(await self.client.create(resource, body, namespace if resource.namespaced else ""))
        return created

    async def delete(self, kind: str, name: str, namespace: str = "default", **options: Any) -> None:
        resource = self.resource(kind)
        await self.client.delete(resource, name, namespace if resource.namespaced else "", **options)

    async def patch(self, kind: str, name: str, body: Json, namespace: str = "default", subresource: str = "") -> None:
        resource = self.resource(kind)
        namespace = namespace if resource.namespaced else ""
        await self.client.patch(resource, name, body, namespace, subresource=subresource)

    async def apply(self, body: Json, namespace: str = "default") -> Json:
        resource = self.resource(body["kind"])
        created: Json = json.loads(await self.client.create(resource, body, namespace if resource.namespaced else ""))
        return created

    def look(self, kind: str, name: str, namespace: str = "default") -> Json | None:
        found = self._kind(kind)
        entry = self.store.get((found.storage_key, namespace if found.namespaced else "", name))
        return json.loads(entry.value) if entry is not None else None

    def all(self, kind: str, namespace: str = "default", **labels: str) -> list[Json]:
        """Every object of a kind, by name, without those of the API server itself."""
        found = [json.loads(entry.value) for entry in self.store.list(self._kind(kind).storage_key)]
        return sorted(
            (
                obj
                for obj in found
                if obj["metadata"].get("namespace", namespace) == namespace
                and obj["metadata"]["name"] != "kubernetes"
                and labels.items() <= (obj["metadata"].get("labels") or {}).items()
            ),
            key=lambda obj: obj["metadata"]["name"],
        )

    def names(self, kind: str, namespace: str = "default", **labels: str) -> list[str]:
        return [obj["metadata"]["name"] for obj in self.all(kind, namespace, **labels)]

    async def until(
        self, kind: str, name: str, namespace: str = "default", when: Callable[[Json], Any] | None = None
    ) -> Json:
        """The object as soon as `when` says yes; without `when`: its last state, once it is gone."""
        last: Json = {}

        def look() -> Json | None:
            nonlocal last
            found = self.look(kind, name, namespace)
            last = found or last
            wanted = found is None if when is None else found is not None and when(found)
            return last if wanted else None

        return await self._found(kind, look, lambda: f"{kind} {name} stays like this: {json.dumps(last, indent=1)}")

    async def eventually(self, kind: str, when: Callable[[list[Json]], Any], namespace: str = "default") -> list[Json]:
        """All objects of a kind as soon as `when` says yes to them."""
        last: list[Json] = []

        def look() -> list[Json] | None:
            nonlocal last
            last = self.all(kind, namespace)
            return last if when(last) else None

        return await self._found(kind, look, lambda: f"{kind} stay like this: {json.dumps(last, indent=1)}")

    async def _found(self, kind: str, look: Callable[[], T | None], stays: Callable[[], str]) -> T:
        """What `look` finds, now or after a change of the kind; `stays`: what is said when nothing changes any more."""
        watcher = self.store.watch(self._kind(kind).storage_key)
        try:
            while (found := look()) is None:
                try:
                    await asyncio.wait_for(anext(watcher), TIMEOUT)
                except TimeoutError:
                    raise AssertionError(stays()) from None
            return found
        finally:
            watcher.close()

    async def gone(self, kind: str, name: str, namespace: str = "default") -> None:
        await self.until(kind, name, namespace)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.store.close()


@asynccontextmanager
async def inside(*, duties: bool = True, nodes: int = 0, **simulation: Any) -> AsyncIterator[Inside]:
    cluster = Inside()
    try:
        if duties:
            await cluster.start_duties()
        else:
            await bootstrap(cluster.client, None, "2026-01-01")
        if nodes:
            await cluster.start_nodes(nodes, **simulation)
        yield cluster
    finally:
        await cluster.stop()


def owner(of: Json, *, block: bool = False, **changes: Any) -> Json:
    """An owner reference to an object."""
    reference = {
        "apiVersion": of["apiVersion"],
        "kind": of["kind"],
        "name": of["metadata"]["name"],
        "uid": of["metadata"]["uid"],
        "blockOwnerDeletion": block,
    }
    return reference | changes
