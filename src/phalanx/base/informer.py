"""List and watch one resource, as a complete and ordered stream of typed changes.

Contract: after `synced`, the sink has received the state of the server at some revision, then every later change.
The first state is read through the watch if the server offers it (`sendInitialEvents`, WatchList), otherwise as a list
in pages. A watch that breaks is resumed at its last revision. If the server no longer has that revision (410), the
state is listed again and only the differences are passed on.

The informer never ends by itself: an unreadable answer or an unexpected 404 is retried, and no object counts as deleted
before a valid answer shows it. A server whose store was restored from a backup sends no events until it reaches the old
revision again; therefore its revision is compared after a break, and the state is listed again if it is lower. The sink
runs in the reading task: a slow sink slows down reading and does not fill memory.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Generic, NamedTuple, TypeVar, cast

import msgspec

from phalanx.base.client import Client, Resource, Snapshots, WatchEvent
from phalanx.base.errors import ApiProblem, BadRequest, Expired, Invalid, NotFound, ResourceExpired, Unreachable
from phalanx.base.retry import FIRST_DELAY, delay, log_level

T = TypeVar("T")
log = logging.getLogger(__name__)

PAGE = 2000
ABSENT_ANSWERS = 3  # 404 answers in a row after which a resource that was served counts as gone with all its objects
GARBLED_EVENTS = 3  # unreadable events in a row after which the state is listed again
ABSENT_SECONDS = 5.0  # between two requests for an optional resource that is not served
WATCH_SECONDS = 240.0  # shortest watch; up to half of it is added at random, so that not all watches end together
INITIAL_SILENCE = 60.0  # seconds without an initial event after which the state is listed in pages instead
INITIAL_END = "k8s.io/initial-events-end"  # annotation of the bookmark after the initial events
_OLD_ETCD = "RequestWatchProgress"  # in the answer of kube-apiserver with an etcd that cannot mark that end
YIELD_EVERY = 256  # changes handed to the sink before other tasks get a turn
PUT_BACK = "?"  # stands for the revision of an object after the server was restored from a backup
SHARED_BODIES = 512  # bodies whose metadata is cached for the other informers in the API server's process
SHARED_BYTES = 16 << 10  # largest body that is cached; larger ones are rare and would hold much memory


class ObjectChange(NamedTuple, Generic[T]):
    namespace: str
    name: str
    object: T | None  # None: deleted


class _Meta(msgspec.Struct, rename="camel", gc=False):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class _MarkMeta(msgspec.Struct, rename="camel", gc=False):
    resource_version: str = ""
    annotations: dict[str, str] | None = None


class _Bookmark(msgspec.Struct, gc=False):
    metadata: _MarkMeta


class _MetaOnly(msgspec.Struct, gc=False):
    metadata: _Meta


class _ListMeta(msgspec.Struct, rename={"resource_version": "resourceVersion", "next": "continue"}):
    resource_version: str = ""
    next: str = ""


class _List(msgspec.Struct):
    items: list[msgspec.Raw] | None = None
    metadata: _ListMeta = msgspec.field(default_factory=_ListMeta)


_decode_meta = msgspec.json.Decoder(_MetaOnly).decode
_bookmark = msgspec.json.Decoder(_Bookmark).decode
_LIST = msgspec.json.Decoder(_List)


class _Read(NamedTuple):
    body: bytes
    meta: _Meta
    state: str  # uid and resourceVersion in one string


class _MetaCache:
    """Cache of parsed metadata.

    In the API server's own process, several informers receive the same bytes object shortly after each other.
    """

    def __init__(self) -> None:
        self._found: dict[int, _Read] = {}  # by the body's id, while it is held

    def of(self, body: bytes) -> _Read:
        found = self._found.get(id(body))
        if found is not None and found.body is body:
            return found
        found = _read(body)
        if len(body) <= SHARED_BYTES:
            if len(self._found) >= SHARED_BODIES:
                self._found.clear()
            self._found[id(body)] = found
        return found


def _read(body: bytes) -> _Read:
    meta = _decode_meta(body).metadata
    # Interned, because several informers of this process know the same objects.
    meta.namespace, meta.name = sys.intern(meta.namespace), sys.intern(meta.name)
    return _Read(body, meta, sys.intern(f"{meta.uid} {meta.resource_version}"))


_cache = _MetaCache()


class Informer(Generic[T]):
    def __init__(
        self,
        client: Client,
        resource: Resource,
        type_: type[T],
        sink: Callable[[ObjectChange[T]], None],
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        optional: bool = False,
        rng: random.Random | None = None,
    ) -> None:
        """Create an informer; `run` starts it.

        `type_` bytes: objects are passed on encoded; in the API server's own process they then cost no memory.
        optional: a server without this resource (404) counts as an empty list and is asked again later.
        """
        self.resource = resource
        self.synced = asyncio.Event()
        self.served = True  # False while the server answers 404
        self.relists = 0
        self.last_activity = 0.0  # the loop's time when it last sent a request or received an event
        self.reached = 0  # revision up to which the sink has seen everything
        self.newest = 0  # highest revision of an object that the sink has seen; all informers of the resource reach it
        self._client = client
        # Checked once and by name: `isinstance` with a Protocol costs more than a small list.
        self._snapshots: Snapshots | None = cast(Snapshots, client) if hasattr(client, "snapshot") else None
        self._read = _cache.of if self._snapshots is not None else _read
        self._decode: Callable[[bytes], Any] = bytes if type_ is bytes else msgspec.json.Decoder(type_).decode
        self._sink = sink
        self._namespace, self._labels, self._fields = namespace, labels, fields
        self._optional = optional
        self._streams = self._snapshots is None  # read the state through the watch
        self._pages_next = False  # list the state in pages once: the last stream of initial events did not end
        self._failures = self._absent = 0  # failures and 404 answers in a row since the state was last complete
        self._rng = rng or random.Random()
        # Namespace -> name -> "uid resourceVersion": one string per object saves memory.
        self._known: dict[str, dict[str, str]] = {}
        self._since_yield = 0
        self._awaited: tuple[int, asyncio.Event] | None = None  # revision that `wait_for` waits for
        self._time: Callable[[], float] | None = None  # of the loop it runs on
        self._recheck: asyncio.Event | None = None  # ends the pause of a resource that is not served
        self._rechecked: asyncio.Future[None] | None = None  # done when the answer is known

    @property
    def what(self) -> str:
        return self.resource.plural

    @property
    def known(self) -> dict[tuple[str, str], str]:
        """Return (namespace, name) -> "uid resourceVersion" of the objects that the sink has received."""
        return {(space, name): state for space, names in self._known.items() for name, state in names.items()}

    async def wait_for(self, revision: int, seconds: float) -> None:
        """Return when the sink has received everything up to `revision`, or after `seconds`."""
        if self._awaited is None or self._awaited[0] < revision:
            self._awaited = (revision, asyncio.Event())
        try:
            async with asyncio.timeout(seconds):
                await self._awaited[1].wait()
        except TimeoutError:
            return

    def _reach(self, revision: str) -> int:
        self.reached = number = _number(revision)
        if self._awaited is not None and number >= self._awaited[0]:
            self._awaited[1].set()
            self._awaited = None
        return number

    async def run(self) -> None:
        while True:
            self._note_activity()
            try:
                streams, self._pages_next = self._streams and not self._pages_next, False
                await self._watch_from("" if streams else await self._relist())
            except (Expired, ResourceExpired):
                self.relists += 1
                continue
            except NotFound as problem:
                self._absent += 1
                if self._optional and (self._absent >= ABSENT_ANSWERS or not self._known):
                    if self.served or not self.synced.is_set():
                        log.info("%s is not served here (%s); retrying later", self.resource.plural, problem)
                    self.served = False
                    self._replace(())
                    self.synced.set()
                    self._answer_checks()
                    await self._until_served()
                    continue
                await self._retry_later(problem)
            except ApiProblem as problem:
                if self._streams or not streams:  # else it is not streamed here: list at once
                    await self._retry_later(problem)

    def _complete(self, revision: str) -> None:
        """Note that the sink has seen the whole state at `revision`."""
        self._reach(revision)
        self._failures, self._absent, self.served = 0, 0, True
        self.synced.set()
        self._answer_checks()

    async def _retry_later(self, problem: ApiProblem) -> None:
        failures = self._failures
        log.log(log_level(failures, problem), "listing %s: %s; retrying", self.resource.plural, problem)
        self._failures += 1
        await self._pause(delay(failures, problem, self._rng))

    def _note_activity(self) -> None:
        if self._time is None:
            self._time = asyncio.get_running_loop().time
        self.last_activity = self._time()

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._note_activity()

    async def _until_served(self) -> None:
        """Wait until discovery, one request for all absent resources, shows this one, or until `check_served`."""
        self._recheck = asyncio.Event()
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._recheck.wait(), ABSENT_SECONDS)
            self._note_activity()
            if self._recheck.is_set() or await self._client.served(self.resource):
                self._recheck = None
                return

    async def check_served(self) -> bool:
        """Ask again now for a resource that is not served; True: it is served, and the state is complete."""
        if not self.served:
            if self._rechecked is None:
                self._rechecked = asyncio.get_running_loop().create_future()
            if self._recheck is not None:
                self._recheck.set()
            await asyncio.shield(self._rechecked)
        return self.served

    def _answer_checks(self) -> None:
        if self._rechecked is not None and not self._rechecked.done():
            self._rechecked.set_result(None)
        self._rechecked = None

    async def _relist(self) -> str:
        """Read the state as a list and pass on the differences; return its revision."""
        try:
            bodies, revision = await self._list()
            found = [self._read(body) for body in bodies]
        except msgspec.DecodeError as error:
            raise Unreachable(f"the list cannot be read: {error}") from error
        if not all(read.meta.name for read in found):
            raise Unreachable("an item of the list has no name")
        if not revision:
            raise Unreachable("the list has no resourceVersion: the answer does not come from an API server")
        self._replace(found)
        self.newest = max((_number(read.meta.resource_version) for read in found), default=0)
        await asyncio.sleep(0)
        self._complete(revision)
        return revision

    async def _read_initial(self, events: AsyncIterator[WatchEvent]) -> str:
        """Read the state from the beginning of a watch; return its revision.

        The first state is passed on object by object, a later one when it is complete, as differences.
        """
        found: dict[tuple[str, str], _Read] | None = {} if self._known else None
        newest = 0
        try:
            async with asyncio.timeout(INITIAL_SILENCE) as silence:
                async for event in events:
                    if event.type == "BOOKMARK":
                        mark = _bookmark(event.object).metadata
                        if INITIAL_END in (mark.annotations or ()):
                            break
                        continue
                    read = self._validated(event)
                    newest = max(newest, _number(read.meta.resource_version))
                    if found is None:
                        self._apply(event.type, read)
                    elif event.type == "DELETED":
                        found.pop((read.meta.namespace, read.meta.name), None)
                    else:
                        found[read.meta.namespace, read.meta.name] = read
                    if await self._maybe_yield():
                        silence.reschedule(asyncio.get_running_loop().time() + INITIAL_SILENCE)
                else:
                    raise Unreachable("the watch ended before its initial events did")
        except (TimeoutError, msgspec.DecodeError) as error:
            raise Unreachable(str(error) or f"no initial event for {INITIAL_SILENCE:.0f} s") from error
        if not mark.resource_version:
            raise Unreachable("the initial events have no resourceVersion")
        if found is not None:
            self._replace(found.values())
        self.newest = newest
        self._complete(mark.resource_version)
        return mark.resource_version

    async def _maybe_yield(self) -> bool:
        """Let other tasks run after every YIELD_EVERY changes; return True if they ran."""
        self._since_yield += 1
        if self._since_yield < YIELD_EVERY:
            return False
        self._since_yield = 0
        self._note_activity()
        await asyncio.sleep(0)
        return True

    async def _list(self) -> tuple[Sequence[bytes], str]:
        if self._snapshots is not None:
            return await self._snapshots.snapshot(
                self.resource, self._namespace, labels=self._labels, fields=self._fields
            )
        bodies: list[bytes] = []
        continue_ = ""
        while True:
            page = _LIST.decode(
                await self._client.list(
                    self.resource,
                    self._namespace,
                    labels=self._labels,
                    fields=self._fields,
                    limit=PAGE,
                    continue_=continue_,
                )
            )
            bodies += map(bytes, page.items or ())
            continue_ = page.metadata.next
            if not continue_:
                return bodies, page.metadata.resource_version

    def _replace(self, found: Iterable[_Read]) -> None:
        """Pass on the differences between the known objects and those of the server."""
        objects = {(read.meta.namespace, read.meta.name): read for read in found}
        for key in self.known:
            if key not in objects:
                self._remove(*key)
        for read in objects.values():
            self._set(read)

    async def _watch_from(self, revision: str) -> None:
        """Watch until the server no longer has `revision` or the state must be listed again; both raise.

        Without a revision, read the initial state first.
        """
        failures = garbled = 0
        broke = False
        while True:
            try:
                if broke:
                    await self._must_have_reached(revision)
                    broke = False
                events = self._watch(revision)
                revision = revision or await self._read_initial(events)
                async for event in events:
                    failures = 0
                    self._note_activity()
                    if event.type == "BOOKMARK":
                        revision = _bookmark(event.object).metadata.resource_version
                        self._reach(revision)
                        continue
                    read = self._validated(event)
                    self._apply(event.type, read)
                    revision = read.meta.resource_version or revision
                    self.newest = self._reach(revision)
                    garbled = 0
                    await self._maybe_yield()
            except (Expired, ResourceExpired, NotFound) as problem:
                self._note_failed_stream(revision, problem)
                raise
            except msgspec.DecodeError as error:
                garbled += 1
                log.warning("watch of %s sent an unreadable event: %s", self.resource.plural, error)
                if garbled >= GARBLED_EVENTS:
                    raise Unreachable(f"the watch cannot be read: {error}") from error
                await self._pause(FIRST_DELAY * garbled)
            except ApiProblem as problem:
                self._note_failed_stream(revision, problem)
                if not revision:
                    raise
                log.info("watch of %s broke (%s); resuming at %s", self.resource.plural, problem, revision)
                broke = True
                await self._pause(delay(failures, problem, self._rng))
                failures += 1
            self._note_activity()

    def _watch(self, revision: str) -> AsyncIterator[WatchEvent]:
        return self._client.watch(
            self.resource,
            self._namespace,
            labels=self._labels,
            fields=self._fields,
            resource_version=revision,
            initial=not revision,
            timeout=WATCH_SECONDS * (1 + 0.5 * self._rng.random()),
        )

    def _note_failed_stream(self, revision: str, problem: ApiProblem) -> None:
        """List the state in pages at the next attempt; always if it is not streamed (WatchList, old etcd)."""
        if not revision and not isinstance(problem, NotFound):
            self._pages_next = True
            self._streams = not isinstance(problem, Invalid | BadRequest) and _OLD_ETCD not in problem.message

    async def _must_have_reached(self, revision: str) -> None:
        """Raise Expired if the server is at an earlier revision than before: it was restored from a backup."""
        if self._snapshots is not None:
            return
        page = _LIST.decode(await self._client.list(self.resource, self._namespace, limit=1))
        if _behind(page.metadata.resource_version, revision):
            log.warning(
                "%s: the server is at revision %s and was at %s; it was restored from a backup, listing again",
                *(self.resource.plural, page.metadata.resource_version, revision),
            )
            # After a restore the server uses the same revisions again for other changes.
            self._forget_revisions()
            raise Expired("the server was restored from a backup")

    def _forget_revisions(self) -> None:
        for names in self._known.values():
            for name, state in names.items():
                names[name] = f"{state.partition(' ')[0]} {PUT_BACK}"

    def _validated(self, event: WatchEvent) -> _Read:
        read = self._read(event.object)
        if not read.meta.name or event.type not in ("ADDED", "MODIFIED", "DELETED"):
            raise msgspec.ValidationError(f"{event.type} of an object called {read.meta.name!r}")
        return read

    def _apply(self, type_: str, read: _Read) -> None:
        if type_ == "DELETED":
            self._remove(read.meta.namespace, read.meta.name)
        else:
            self._set(read)

    def _set(self, read: _Read) -> None:
        """Record a version of an object and report the event that it means: added, modified, deleted, or none."""
        body, meta, state = read
        namespace, name = meta.namespace, meta.name
        names = self._known.get(namespace)
        known = names.get(name) if names is not None else None
        if known is not None:
            if known == state:
                return
            if not known.startswith(meta.uid) or known.endswith(PUT_BACK):
                # A new uid is a new object: report a deletion first. So too after a restore from a backup, because the
                # change may be impossible for the sink (a bound pod becomes unbound).
                self._remove(namespace, name)
        try:
            typed = self._decode(body)
        except (msgspec.ValidationError, RecursionError) as error:
            log.error("%s %s/%s cannot be read and is left out: %s", self.resource.kind, namespace, name, error)
            return
        self._known.setdefault(namespace, {})[name] = state
        self._sink(ObjectChange(namespace, name, typed))

    def _remove(self, namespace: str, name: str) -> None:
        names = self._known.get(namespace)
        if names is None or names.pop(name, None) is None:
            return
        if not names:
            del self._known[namespace]
        self._sink(ObjectChange(namespace, name, None))


def _behind(now: str, before: str) -> bool:
    """Return True if revision `now` is earlier than `before`; revisions that are not numbers are not compared."""
    return now.isdigit() and before.isdigit() and int(now) < int(before)


def _number(revision: str) -> int:
    """Return a revision as a number, or 0 if it is not a number (never sent by a Kubernetes API server)."""
    return int(revision) if revision.isdigit() else 0
