"""Cache every object of one resource, with lookups by index and label selector, and limit writes per object.

Objects are kept as received bytes (which the API server of the same process holds anyway) and decoded on first read, so
that fifty thousand unread pods cost next to nothing. Returned objects are shared: a controller copies what it edits.
They have no managedFields, which no controller reads and which the server keeps on updates without them.

Two controllers that disagree, or a field dropped by the API server, cause endless writes of one object. Writes beyond
the limit are refused like a 429 of the server, so that the work queue backs off.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from phalanx.base.client import Call, Client, Propagation, Resource, WatchEvent
from phalanx.base.errors import Conflict, NotFound, TooManyRequests
from phalanx.base.informer import Informer, ObjectChange
from phalanx.base.tasks import run_all
from phalanx.controllers.runtime.ownership import controller_of
from phalanx.model.kinds import Json as Json
from phalanx.model.memo import Memo
from phalanx.model.selectors import LabelMatcher

BURST = 30.0  # writes of one object at once
PER_SECOND = 2.0  # writes per second in the long run
REMEMBERED = 10_000  # recently written objects
UNLIMITED = ("events", "leases")
Refused = Callable[[Resource, str, str, str], None]  # resource, namespace, name, message


class _Budget(msgspec.Struct):
    left: float
    at: float


class WriteGuard(Client):
    """A client that limits creations, updates, patches and deletions per object name.

    Status writes are not limited: they follow events of pods, and a loop of them ends when nothing changes.
    """

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
        while self._budgets and now - next(iter(self._budgets.values())).at > BURST / PER_SECOND:
            self._budgets.popitem(last=False)  # it has the whole burst again
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


log = logging.getLogger(__name__)

GRAVE_SECONDS = 120.0  # during which a late answer may still name a removed object
RECENT = {"pods": 4096}  # decoded objects kept at hand, where there may be very many; all of them elsewhere
WORTH_SHARING = 40  # bytes of JSON
ANY, MARKED = (
    "",
    "*",
)  # filters of handlers: all objects; those with labels or owners; else those controlled by a kind

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Key(NamedTuple):
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


Indexer = Callable[[Json], Iterable[str]]
Handler = Callable[[Key, Json | None, Json | None], None]  # (key, new, old)


Parts = dict[str, msgspec.Raw]


class _CommonFields(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The common fields of an object, decoded in one pass."""

    metadata: Parts
    apiVersion: str = ""  # with the API's spelling
    kind: str = ""
    spec: Parts | None = None
    status: Parts | None = None


_NOTHING: list[str] = []
_usual = msgspec.json.Decoder(_CommonFields).decode
_parts = msgspec.json.Decoder(Parts).decode
_BRACE = ord("{")
# Containers, volumes and tolerations of pods, conditions and capacity of nodes: thousands are equal.
_shared: Memo[Any] = Memo(_decode, most=1024)


def by_labels(obj: Json) -> list[str]:
    """Return an index that `Cache.matching` can use: the namespace, and every label in it."""
    meta = obj["metadata"]
    namespace = meta.get("namespace", "")
    return [namespace, *(_pair(namespace, key, value) for key, value in (meta.get("labels") or {}).items())]


def _pair(namespace: str, key: str, value: str) -> str:
    return f"{namespace}/{key}={value}"


class Cache:
    def __init__(
        self, client: Client, resource: Resource, *, optional: bool = False, writes: Client | None = None
    ) -> None:
        """writes: the client for everything except the informer."""
        self.client = writes or client
        self.resource = resource
        self._bodies: dict[Key, bytes] = {}
        self._decoded: OrderedDict[Key, Json] = OrderedDict()  # decoded objects, most recently used last
        self._most_decoded = RECENT.get(resource.plural)
        self._indexers: dict[str, Indexer] = {}
        self._indexes: dict[str, dict[str, dict[Key, None]]] = {}
        self._of_marks: set[str] = set()  # names of indexes that read only labels and owners
        self._handlers: list[tuple[str, Handler]] = []
        self.failed = 0  # times a handler raised
        self._removed_uids: OrderedDict[str, float] = OrderedDict()  # uids of what went last -> when, in seconds
        self._informer: Informer[bytes] = Informer(client, resource, bytes, self._apply, optional=optional)

    def index(self, name: str, indexer: Indexer, *, of_marks: bool = False) -> None:
        """Declare an index before `run`. of_marks: it reads only labels and owner references, which seldom change."""
        self._indexers[name] = indexer
        self._indexes[name] = {}
        if of_marks:
            self._of_marks.add(name)

    def on_change(self, handler: Handler, *, of: str = ANY) -> None:
        """Register a handler. of: MARKED, or a controller kind, to skip other objects.

        The filter also applies to the previous version of an object.
        """
        self._handlers.append((of, handler))

    def get(self, namespace: str, name: str) -> Json | None:
        return self._get(Key(namespace, name))

    def by_index(self, name: str, value: str, most: int | None = None) -> list[Json]:
        """Return objects, at most so many, in the order in which they were first seen."""
        return [self._known(key) for key in islice(self._indexes[name].get(value, ()), most)]

    def count(self, name: str, value: str) -> int:
        """Return how many objects `by_index` would read."""
        return len(self._indexes[name].get(value, ()))

    def any_in_index(self, name: str, value: str) -> bool:
        return value in self._indexes[name]

    def matching(self, name: str, namespace: str, matcher: LabelMatcher) -> list[Json]:
        """Return objects of a namespace whose labels match. `name`: an index made of `by_labels`.

        Only objects that have the rarest of the selector's labels are examined.
        """
        if matcher.nothing:
            return []
        index = self._indexes[name]
        candidates = index.get(namespace, {})
        for requirement in matcher.requirements:
            if requirement.operator in ("In", "=", "==") and len(requirement.values) == 1:
                found = index.get(_pair(namespace, requirement.key, requirement.values[0]), {})
                if len(found) < len(candidates):
                    candidates = found
        objects = map(self._known, candidates)
        return [obj for obj in objects if matcher.matches(obj["metadata"].get("labels"))]

    def __iter__(self) -> Iterator[Json]:
        return iter([self._known(key) for key in self._bodies])

    def __len__(self) -> int:
        return len(self._bodies)

    async def run(self) -> None:
        await self._informer.run()

    @property
    def served(self) -> bool:
        """Return False while the server does not serve the resource."""
        return self._informer.served

    async def check_served(self) -> bool:
        """Return True if the resource is served; if it was not, the server is asked again now."""
        return await self._informer.check_served()

    @property
    def informer(self) -> Informer[bytes]:
        return self._informer

    async def synced(self) -> None:
        await self._informer.synced.wait()

    def remember(self, obj: Json) -> None:
        """Store the response of a write at once, so that the next reconcile does not act on an older version."""
        meta = obj["metadata"]
        if meta["uid"] in self._removed_uids:
            return  # the answer is older than the object's deletion
        key = Key(meta.get("namespace", ""), meta["name"])
        old = self._get(key)
        if old is None or _newer(obj, old):
            body = self._bodies[key] = _encode(obj)
            new = self._read(body)
            self._keep(key, new)
            self._index(key, new, old)

    async def create(self, body: Json) -> Json:
        return self._answered(await self.client.create(self.resource, body, body["metadata"].get("namespace", "")))

    async def update(self, body: Json, subresource: str = "") -> Json:
        name, namespace = body["metadata"]["name"], body["metadata"].get("namespace", "")
        return self._answered(await self.client.update(self.resource, name, body, namespace, subresource=subresource))

    async def patch(self, obj: Json, patch: Json) -> Json:
        meta = obj["metadata"]
        return self._answered(await self.client.patch(self.resource, meta["name"], patch, meta.get("namespace", "")))

    def _answered(self, body: bytes) -> Json:
        found: Json = msgspec.json.decode(body)
        self.remember(found)
        return found

    async def delete(self, obj: Json, propagation: Propagation | None = None) -> bool:
        """Delete this very object; False: it is gone, or there is another one of that name by now."""
        meta = obj["metadata"]
        try:
            await self.client.delete(
                self.resource, meta["name"], meta.get("namespace", ""), uid=meta["uid"], propagation=propagation
            )
        except (NotFound, Conflict):
            return False
        return True

    def _apply(self, change: ObjectChange[bytes]) -> None:
        """Store a change from the watch and call the handlers that it concerns."""
        key = Key(change.namespace, change.name)
        new: Json | None = None
        if change.object is None:
            old = self._drop(key)
        else:
            old, new = self._get(key), self._read(change.object)
            if old is not None and old["metadata"]["uid"] == new["metadata"]["uid"] and _newer(old, new):
                return  # our own later write is known already
            self._bodies[key] = change.object
            self._keep(key, new)
            self._index(key, new, old)
        announced = _concerned(new, old)
        for of, handler in self._handlers:
            if of not in announced:
                continue
            try:
                handler(key, new, old)
            except Exception:
                # A defect of one controller must not affect others or end the watch.
                self.failed += 1
                log.exception("a handler of %s %s failed", self.resource.kind, key)

    # -- decoding -----------------------------------------------------------------------------------------------

    def _get(self, key: Key) -> Json | None:
        return self._known(key) if key in self._bodies else None

    def _known(self, key: Key) -> Json:
        obj = self._decoded.get(key)
        if obj is None:
            obj = self._read(self._bodies[key])
            self._keep(key, obj)
        elif self._most_decoded is not None:
            self._decoded.move_to_end(key)
        return obj

    def _keep(self, key: Key, obj: Json) -> None:
        """Remember a decoded object; the least recently used one goes if there are too many."""
        self._decoded[key] = obj
        if self._most_decoded is not None:
            self._decoded.move_to_end(key)
            if len(self._decoded) > self._most_decoded:
                self._decoded.popitem(last=False)

    def _read(self, body: bytes) -> Json:
        """Decode a body into an object."""
        # Lists of built-in kinds do not repeat what their items are.
        obj: Json = {"apiVersion": self.resource.api_version, "kind": self.resource.kind}
        try:
            usual = _usual(body)
        except msgspec.ValidationError:
            return obj | _read_any(body)
        if usual.apiVersion and usual.kind:
            obj["apiVersion"], obj["kind"] = usual.apiVersion, usual.kind
        obj["metadata"] = _metadata(usual.metadata)
        if usual.spec is not None:
            obj["spec"] = _with_shared(usual.spec)
        if usual.status is not None:
            obj["status"] = _with_shared(usual.status)
        return obj

    # -- indexes ------------------------------------------------------------------------------------------------

    def _index(self, key: Key, obj: Json, old: Json | None) -> None:
        marks_stay = old is not None and _marks(old) == _marks(obj)
        for name, indexer in self._indexers.items():
            if marks_stay and name in self._of_marks:
                continue
            was, values = indexer(old) if old is not None else _NOTHING, indexer(obj)
            if was == values:
                continue
            index, before = self._indexes[name], set(was)
            for value in values:
                if value in before:
                    before.discard(value)
                else:
                    index.setdefault(value, {})[key] = None
            for value in before:
                _unindex(index, value, key)

    def _drop(self, key: Key) -> Json | None:
        """Forget an object and remember its UID as removed for a while."""
        old = self._get(key)
        if old is None:
            return None
        del self._bodies[key]
        self._decoded.pop(key, None)
        now = asyncio.get_running_loop().time()
        while self._removed_uids and now - next(iter(self._removed_uids.values())) > GRAVE_SECONDS:
            self._removed_uids.popitem(last=False)
        self._removed_uids[old["metadata"]["uid"]] = now
        for name, indexer in self._indexers.items():
            for value in indexer(old):
                _unindex(self._indexes[name], value, key)
        return old


def _read_any(body: bytes) -> Json:
    obj: Json = {}
    for name, raw in _parts(body).items():
        if name == "metadata":
            obj[name] = _metadata(_parts(raw))
        elif name in ("spec", "status") and memoryview(raw)[0] == _BRACE:
            obj[name] = _with_shared(_parts(raw))
        else:
            obj[name] = _decode(raw)
    return obj


def _metadata(parts: Parts) -> Json:
    parts.pop("managedFields", None)  # half of a typical pod: it is not decoded
    return {name: _decode(value) for name, value in parts.items()}


def _with_shared(parts: Parts) -> Json:
    return {
        name: _shared(bytes(value)) if len(value) >= WORTH_SHARING else _decode(value) for name, value in parts.items()
    }


def _marks(obj: Json) -> tuple[Json | None, list[Json] | None]:
    meta = obj["metadata"]
    return meta.get("labels"), meta.get("ownerReferences")


def _concerned(new: Json | None, old: Json | None) -> set[str]:
    """Return the filters (ANY, MARKED or a kind) whose handlers must be called for this change."""
    found = {ANY}
    for obj in (new, old):
        if obj is None:
            continue
        labels, owners = _marks(obj)
        if labels or owners:
            found.add(MARKED)
        if owners and (controller := controller_of(obj)) is not None:
            found.add(str(controller.get("kind")))
    return found


def _newer(one: Json, other: Json) -> bool:
    return int(one["metadata"]["resourceVersion"]) > int(other["metadata"]["resourceVersion"])


def _unindex(index: dict[str, dict[Key, None]], value: str, key: Key) -> None:
    keys = index.get(value)
    if keys is not None:
        keys.pop(key, None)
        if not keys:
            del index[value]


class Caches:
    """The caches of one process, each created once."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.client = WriteGuard(client)  # for writes and single reads
        self._caches: dict[Resource, Cache] = {}

    def of(self, resource: Resource, *, optional: bool = False) -> Cache:
        cache = self._caches.get(resource)
        if cache is None:
            cache = self._caches[resource] = Cache(self._client, resource, optional=optional, writes=self.client)
        return cache

    @property
    def informers(self) -> list[Informer[bytes]]:
        return [cache.informer for cache in self._caches.values()]

    async def run(self, then: Callable[[], Awaitable[None]]) -> None:
        """Fill all caches, then keep them up to date while `then` runs."""
        works = [(f"{cache.resource.plural} cache", cache.run()) for cache in self._caches.values()]
        await run_all([*works, ("work", self._when_filled(then))])

    async def _when_filled(self, then: Callable[[], Awaitable[None]]) -> None:
        for cache in self._caches.values():
            await cache.synced()
        await then()
