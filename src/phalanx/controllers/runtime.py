"""What every controller stands on: cached objects with indexes, and reconcilers fed by their changes.

Caches are shared between controllers of one process. Objects in a cache are never changed in place: a controller
copies what it edits. Reconcilers are idempotent and may be killed at any point.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, NamedTuple

from phalanx.base.client import Client, Resource
from phalanx.base.errors import ApiProblem, Conflict
from phalanx.base.informer import Change, Informer
from phalanx.controllers.queue import WorkQueue

Json = dict[str, Any]
log = logging.getLogger(__name__)
GRAVES = 20_000  # removed objects that late answers may still speak of


class Key(NamedTuple):
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


Indexer = Callable[[Json], Iterable[str]]
Handler = Callable[[Key, Json | None, Json | None], None]  # (key, new, old)


class Cache:
    """Everything the server has of one resource, with lookups by named index."""

    def __init__(self, client: Client, resource: Resource, *, optional: bool = False) -> None:
        self.client = client
        self.resource = resource
        self._objects: dict[Key, Json] = {}
        self._indexers: dict[str, Indexer] = {}
        self._indexes: dict[str, dict[str, dict[Key, None]]] = {}
        self._handlers: list[Handler] = []
        self._graves: OrderedDict[str, None] = OrderedDict()  # uids of what went last
        self._informer: Informer[Json] = Informer(client, resource, dict[str, Any], self._take, optional=optional)

    def index(self, name: str, indexer: Indexer) -> None:
        """Declare before `run`."""
        self._indexers[name] = indexer
        self._indexes[name] = {}

    def on_change(self, handler: Handler) -> None:
        self._handlers.append(handler)

    def get(self, namespace: str, name: str) -> Json | None:
        return self._objects.get(Key(namespace, name))

    def by_index(self, name: str, value: str) -> list[Json]:
        """In the order in which the objects were first seen."""
        return [self._objects[key] for key in self._indexes[name].get(value, ())]

    def __iter__(self) -> Iterator[Json]:
        return iter(list(self._objects.values()))

    def __len__(self) -> int:
        return len(self._objects)

    async def run(self) -> None:
        await self._informer.run()

    async def synced(self) -> None:
        await self._informer.synced.wait()

    def remember(self, obj: Json) -> None:
        """Take over the answer of a write at once, so that the next look does not act on older news."""
        meta = obj["metadata"]
        if meta["uid"] in self._graves:
            return  # the answer is older than the news that the object is gone
        key = Key(meta.get("namespace", ""), meta["name"])
        known = self._objects.get(key)
        if known is None or int(known["metadata"]["resourceVersion"]) < int(meta["resourceVersion"]):
            self._set(key, obj)

    def _take(self, change: Change[Json]) -> None:
        key = Key(change.namespace, change.name)
        old = self._objects.get(key)
        if change.object is None:
            self._drop(key)
        else:
            version = int(change.object["metadata"]["resourceVersion"])
            same = old is not None and old["metadata"]["uid"] == change.object["metadata"]["uid"]
            if same and old is not None and int(old["metadata"]["resourceVersion"]) > version:
                return  # our own later write is known already
            self._set(key, change.object)
        for handler in self._handlers:
            handler(key, change.object, old)

    def _set(self, key: Key, obj: Json) -> None:
        old = self._objects.get(key)
        self._objects[key] = obj
        for name, indexer in self._indexers.items():
            index = self._indexes[name]
            before = set(indexer(old)) if old is not None else set()
            after = list(indexer(obj))
            for value in after:
                if value in before:
                    before.discard(value)
                else:
                    index.setdefault(value, {})[key] = None
            for value in before:
                self._unindex(index, value, key)

    def _drop(self, key: Key) -> None:
        old = self._objects.pop(key, None)
        if old is None:
            return
        self._graves[old["metadata"]["uid"]] = None
        if len(self._graves) > GRAVES:
            self._graves.popitem(last=False)
        for name, indexer in self._indexers.items():
            for value in indexer(old):
                self._unindex(self._indexes[name], value, key)

    @staticmethod
    def _unindex(index: dict[str, dict[Key, None]], value: str, key: Key) -> None:
        keys = index.get(value)
        if keys is not None:
            keys.pop(key, None)
            if not keys:
                del index[value]


class Controller:
    """One kind of reconciliation. Subclasses watch caches and implement `reconcile`."""

    name = "controller"
    workers = 4

    def __init__(self) -> None:
        self.queue: WorkQueue[Key] = WorkQueue()

    async def reconcile(self, key: Key) -> None:
        raise NotImplementedError  # abstract

    def _failed(self, key: Key, error: Exception) -> None:
        if isinstance(error, Conflict):
            log.debug("%s: %s changed meanwhile, looking again", self.name, key)
        elif isinstance(error, ApiProblem):
            log.info("%s: %s: %s", self.name, key, error)
        else:
            log.error("%s: %s", self.name, key, exc_info=error)

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self.workers):
                    group.create_task(self.queue.run(self.reconcile, self._failed))
        finally:
            self.queue.close()


class Caches:
    """The caches of one process, each made once."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._caches: dict[Resource, Cache] = {}

    def of(self, resource: Resource, *, optional: bool = False) -> Cache:
        cache = self._caches.get(resource)
        if cache is None:
            cache = self._caches[resource] = Cache(self.client, resource, optional=optional)
        return cache

    async def run(self, then: Callable[[], Awaitable[None]]) -> None:
        """Fill all caches, then run `then` beside them for ever."""
        async with asyncio.TaskGroup() as group:
            for cache in self._caches.values():
                group.create_task(cache.run())
            for cache in self._caches.values():
                await cache.synced()
            group.create_task(_as_coroutine(then))


async def _as_coroutine(then: Callable[[], Awaitable[None]]) -> None:
    await then()
