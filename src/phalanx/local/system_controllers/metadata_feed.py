"""The metadata of every stored object, from watches, for garbage collection, protection and namespace deletion.

One informer per stored kind, which reads only metadata and, for kinds with a view, a few more fields; so pods are
watched only once. Kinds are added and removed with CustomResourceDefinitions; the registry's generation number shows
it. Events are not included: there are many, and they are neither owners nor dependents.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Mapping

import msgspec
from msgspec.structs import force_setattr

from phalanx.base.client import Client
from phalanx.base.informer import Informer, ObjectChange
from phalanx.base.tasks import cause_of_end, end, run_contained
from phalanx.base.well_known import FOREGROUND_FINALIZER, POD_GROUP_FINALIZER
from phalanx.model.kinds import Kind, Registry

# A PodGroup in deletion waits for its pods, like an owner in foreground deletion.
LEFT_OUT = frozenset({"events"})


class OwnerMetadata(msgspec.Struct, rename="camel", frozen=True, gc=False):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    block_owner_deletion: bool | None = None


class ObjectMetadata(msgspec.Struct, rename="camel", frozen=True, gc=False):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    finalizers: list[str] | None = None
    owner_references: list[OwnerMetadata] | None = None

    @property
    def owners(self) -> list[OwnerMetadata]:
        return self.owner_references or []

    @property
    def deleting(self) -> bool:
        return self.deletion_timestamp is not None

    def has(self, finalizer: str) -> bool:
        return finalizer in (self.finalizers or ())

    @property
    def waits_for_dependents(self) -> bool:
        return self.deleting and (self.has(FOREGROUND_FINALIZER) or self.has(POD_GROUP_FINALIZER))


class MetadataBody(msgspec.Struct, frozen=True, gc=False):
    metadata: ObjectMetadata

    def compact(self, namespace: str, name: str) -> None:
        """Set namespace and name, intern the uid; called once, before the object is shared. Subclasses drop fields."""
        meta = self.metadata
        force_setattr(meta, "namespace", namespace)
        force_setattr(meta, "name", name)
        force_setattr(meta, "uid", sys.intern(meta.uid))


class MetadataItem(msgspec.Struct, frozen=True):
    kind: Kind
    body: MetadataBody

    @property
    def meta(self) -> ObjectMetadata:
        return self.body.metadata


Listener = Callable[[MetadataItem | None, MetadataItem | None], None]  # (before, after); None: does not exist


class MetadataFeed:
    def __init__(
        self, client: Client, registry: Registry, views: Mapping[str, type[MetadataBody]] | None = None
    ) -> None:
        """views: kind key -> type to decode objects of that kind, instead of metadata alone."""
        self.items: dict[str, MetadataItem] = {}  # by uid
        self.by_namespace: Counter[str] = Counter()
        self.synced = asyncio.Event()
        self._client = client
        self._registry = registry
        self._views = views or {}
        self._places: dict[str, dict[tuple[str, str], MetadataItem]] = {}  # kind key -> (namespace, name)
        self._listeners: list[Listener] = []
        self._on_kinds: list[Callable[[], None]] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._reporting: dict[asyncio.Task[None], None] = {}  # in order
        self._kinds_changed = asyncio.Event()
        registry.on_change.append(self._kinds_changed.set)

    def listen(self, listener: Listener, on_kinds: Callable[[], None] | None = None) -> None:
        self._listeners.append(listener)
        if on_kinds is not None:
            self._on_kinds.append(on_kinds)

    async def run(self) -> None:
        try:
            await self._follow_registry()
        finally:
            await end([*self._tasks.values(), *self._reporting])
            self._tasks.clear()

    async def _follow_registry(self) -> None:
        generation = -1
        while True:
            if generation != self._registry.generation:
                generation = self._registry.generation
                started = self._follow_kinds()
                if self.synced.is_set():
                    for informer in started:
                        telling = asyncio.create_task(self._report_when_synced(informer))
                        self._reporting[telling] = None
                        telling.add_done_callback(self._reporting.pop)
                else:
                    for informer in started:
                        while not informer.synced.is_set():
                            await self._wait(informer.synced)
                    self.synced.set()
                self._report_kinds()
            await self._wait(self._kinds_changed)
            self._kinds_changed.clear()

    async def _wait(self, event: asyncio.Event) -> None:
        """Wait for the event; raise if an informer ends first, because its kind would not be read any more."""
        waiting = asyncio.create_task(event.wait())
        try:
            await asyncio.wait([waiting, *self._tasks.values()], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if any(task.done() for task in self._tasks.values()):
            raise cause_of_end(self._tasks.values())

    async def _read(self, key: str, informer: Informer[MetadataBody]) -> None:
        await run_contained(f"feed {key}", informer.run())

    async def _report_when_synced(self, informer: Informer[MetadataBody]) -> None:
        await informer.synced.wait()
        self._report_kinds()

    def _report_kinds(self) -> None:
        for notify in self._on_kinds:
            notify()

    def _follow_kinds(self) -> list[Informer[MetadataBody]]:
        wanted = {
            kind.key: kind
            for kind in self._registry.all()
            if kind.stored and not kind.stored_as and "watch" in kind.verbs and kind.key not in LEFT_OUT
        }
        for key in [key for key in self._tasks if key not in wanted]:
            self._tasks.pop(key).cancel()
            for place in list(self._places.get(key, ())):
                self._set(key, place, None)
        started: list[Informer[MetadataBody]] = []
        for key, kind in wanted.items():
            if key in self._tasks:
                continue
            view = self._views.get(key, MetadataBody)
            informer = Informer(self._client, kind.resource(), view, self._sink(kind), optional=True)
            self._tasks[key] = asyncio.create_task(self._read(key, informer), name=f"feed {key}")
            started.append(informer)
        return started

    def _sink(self, kind: Kind) -> Callable[[ObjectChange[MetadataBody]], None]:
        def sink(change: ObjectChange[MetadataBody]) -> None:
            item = None
            if change.object is not None:
                change.object.compact(change.namespace, change.name)
                item = MetadataItem(kind, change.object)
            self._set(kind.key, (change.namespace, change.name), item)

        return sink

    def _set(self, key: str, place: tuple[str, str], after: MetadataItem | None) -> None:
        """Replace what is known of one object; None: it is gone."""
        places = self._places.setdefault(key, {})
        before = places.get(place)
        if before is not None:
            self.items.pop(before.meta.uid, None)
            self.by_namespace[place[0]] -= 1
            if not self.by_namespace[place[0]]:
                del self.by_namespace[place[0]]
        if after is None:
            places.pop(place, None)
        else:
            places[place] = after
            self.items[after.meta.uid] = after
            self.by_namespace[place[0]] += 1
        for listener in self._listeners:
            listener(before, after)
