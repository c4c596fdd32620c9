"""The store: one writer, many readers in memory, every acknowledged write on disk.

A write gets its revision and its value at once and is visible to `latest` from then on. When it is durable, it becomes
visible to all readers, is sent to watchers and is acknowledged. All methods must be called in the event loop's thread
and none of them blocks it, except `open`. If the disk refuses a write, all later writes that may depend on it fail too,
and the state stays as it was.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from phalanx.base.clock import Clock, SystemClock
from phalanx.base.errors import ServiceUnavailable
from phalanx.local.store.commits import TRIM_BYTES, CommitOutcome, CommitThread, trim_heap
from phalanx.local.store.contract import Build, Change, Entry, Indexer, Key, RevisionMismatch
from phalanx.local.store.log import Log
from phalanx.local.store.rows import StoredRow
from phalanx.local.store.space import Space
from phalanx.local.store.watchers import Hub, StoreWatcher
from phalanx.local.store.window import Window, WindowBounds


class _Names:
    """The objects of one resource in one namespace."""

    __slots__ = ("_order", "_sorted_entries", "_stale", "entries")

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self._order: list[str] = []  # sorted names; invalid while _stale
        self._stale = False
        self._sorted_entries: tuple[Entry, ...] | None = ()

    def set(self, name: str, entry: Entry) -> None:
        if name not in self.entries:
            self._stale = True
        self.entries[name] = entry
        self._sorted_entries = None

    def remove(self, name: str) -> None:
        del self.entries[name]
        self._stale = True
        self._sorted_entries = None

    def sorted_entries(self) -> tuple[Entry, ...]:
        if self._sorted_entries is None:
            if self._stale:
                self._order = sorted(self.entries)
                self._stale = False
            self._sorted_entries = tuple(map(self.entries.__getitem__, self._order))
        return self._sorted_entries


class Tables:
    def __init__(self) -> None:
        self._resources: dict[str, dict[str, _Names]] = {}
        self._sorted_entries: dict[str, tuple[Entry, ...]] = {}  # all namespaces of a resource
        self.count = 0

    def get(self, key: Key) -> Entry | None:
        names = self._resources.get(key[0], {}).get(key[1])
        return names.entries.get(key[2]) if names else None

    def set(self, entry: Entry) -> None:
        resource, namespace, name = entry.key
        namespaces = self._resources.get(resource)
        if namespaces is None:
            namespaces = self._resources[resource] = {}
        names = namespaces.get(namespace)
        if names is None:
            names = namespaces[namespace] = _Names()
        before = len(names.entries)
        names.set(name, entry)
        self.count += len(names.entries) - before
        self._sorted_entries.pop(resource, None)

    def remove(self, key: Key) -> None:
        resource, namespace, name = key
        names = self._resources[resource][namespace]
        names.remove(name)
        self.count -= 1
        if not names.entries:
            del self._resources[resource][namespace]
        self._sorted_entries.pop(resource, None)

    def all(self) -> Sequence[Entry]:
        return [
            entry
            for namespaces in self._resources.values()
            for names in namespaces.values()
            for entry in names.entries.values()
        ]

    def list(self, resource: str, namespace: str) -> Sequence[Entry]:
        namespaces = self._resources.get(resource)
        if not namespaces:
            return ()
        if namespace or len(namespaces) == 1:
            names = namespaces.get(namespace) if namespace else next(iter(namespaces.values()))
            return names.sorted_entries() if names else ()
        sorted_entries = self._sorted_entries.get(resource)
        if sorted_entries is None:
            entries: list[Entry] = []
            for key in sorted(namespaces):
                entries.extend(namespaces[key].sorted_entries())
            sorted_entries = self._sorted_entries[resource] = tuple(entries)
        return sorted_entries


MEMORY = ":memory:"
UNDER_ALARM = 30.0  # seconds of history that are kept while the disk is nearly full
BYTES_UNDER_ALARM = 8 << 20  # of states that only the history keeps then: deletions must not fill the disk
Commits = Callable[[Log, Callable[[CommitOutcome], None]], CommitThread]  # creates the commit thread


def _no_index(resource: str, value: bytes) -> Any:
    return None


class _Pending(NamedTuple):
    epoch: int
    change: Change
    done: asyncio.Future[Entry]


class Store:
    """Created by `Store.open`; see `contract.StoreProtocol` for its guarantees."""

    def __init__(
        self, indexer: Indexer | None = None, window: WindowBounds | None = None, clock: Clock | None = None
    ) -> None:
        self._index = indexer or _no_index
        self._tables = Tables()
        self._window = Window(window or WindowBounds())
        self._hub = Hub(self._window)
        self._clock = clock or SystemClock()
        self._expiry: asyncio.TimerHandle | None = None
        self._revision = 0
        self._next = 1
        self._epoch = 0
        self._pending: deque[_Pending] = deque()
        self._overlay: dict[Key, Change] = {}  # newest pending change per key
        self._outcomes: deque[CommitOutcome] = deque()  # from the commit thread
        self._commits: CommitThread | None = None
        self._space: Space | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._flush_due = False
        self._closed = False

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        indexer: Indexer | None = None,
        window: WindowBounds | None = None,
        clock: Clock | None = None,
        commits: Commits = CommitThread,
        space: Space | None = None,
    ) -> Store:
        """Open or create the file at `path`, or keep everything in memory for ":memory:". Blocks while it reads.

        Raises ConfigProblem if the file is in use, damaged, or not a Phalanx store.
        """
        store = cls(indexer, window, clock)
        if str(path) != MEMORY:
            log = Log(Path(path))
            try:
                store._load(log, commits)
                log.begin()
            except BaseException:
                log.abandon()
                raise
            assert store._commits is not None
            store._space = store._commits.space = space or Space(Path(path), monotonic=store._clock.monotonic)
            store._space.prepare()
            store._commits.start()
        return store

    def _load(self, log: Log, commits: Commits) -> None:
        self._commits = commits(log, self._report)
        self._window.floor = log.floor
        with closing(log.load()) as rows:
            for row in rows:
                key = (sys.intern(row.resource), sys.intern(row.namespace), row.name)
                entry = Entry(key, row.value, row.revision, row.created, self._index(row.resource, row.value))
                change = Change(row.revision, row.deleted, entry, self._tables.get(key))
                self._apply(change, replay=row.revision > log.floor)
        self._revision = log.revision
        self._next = log.revision + 1

    # -- reading ------------------------------------------------------------------------------------------------

    @property
    def revision(self) -> int:
        return self._revision

    @property
    def oldest(self) -> int:
        """Return the oldest revision from which a watch or `list_at` can start."""
        return self._window.floor

    @property
    def count(self) -> int:
        return self._tables.count

    def alarm(self) -> str:
        """Return why writes that need more space are refused, or an empty string: the disk is nearly full."""
        return self._space.alarm() if self._space is not None else ""

    @property
    def free_bytes(self) -> int:
        """Return the free bytes on the disk of the file, at the last check."""
        return self._space.free if self._space is not None else 0

    @property
    def window(self) -> tuple[int, int]:
        """Return the number of changes, and their bytes, that are kept for watches only."""
        return len(self._window), self._window.bytes

    def integrity(self) -> str:
        """Return the damage that verification of the file found, or an empty string."""
        return self._commits.integrity if self._commits is not None else ""

    @property
    def verified(self) -> float:
        """Return when the whole file was last verified without damage (time of day); 0: not yet."""
        return self._commits.verified if self._commits is not None else 0.0

    def snapshot(self) -> tuple[Sequence[Entry], int]:
        """Return all objects and their revision, for a backup."""
        return self._tables.all(), self._revision

    @property
    def watchers(self) -> int:
        return self._hub.count

    def get(self, key: Key) -> Entry | None:
        return self._tables.get(key)

    def latest(self, key: Key) -> Entry | None:
        change = self._overlay.get(key)
        if change is None:
            return self._tables.get(key)
        return None if change.deleted else change.entry

    def list(self, resource: str, namespace: str = "") -> Sequence[Entry]:
        return self._tables.list(resource, namespace)

    def list_at(self, resource: str, namespace: str, revision: int) -> Sequence[Entry]:
        before = self._window.before(resource, namespace, revision)
        now = self._tables.list(resource, namespace)
        if not before:
            return now
        then = [entry for entry in now if entry.key not in before]
        then += [entry for entry in before.values() if entry is not None]
        then.sort(key=_by_key)  # fast: two sorted runs
        return then

    def watch(self, resource: str, namespace: str = "", since: int | None = None) -> StoreWatcher:
        start = self._revision if since is None else since
        watcher = self._hub.watch((resource, namespace), start, self._durable)
        if self._closed:
            watcher.close()
        return watcher

    def _durable(self) -> int:
        return self._revision

    # -- writing ------------------------------------------------------------------------------------------------

    async def put(self, key: Key, build: Build, expect: int | None = None, index: Any = None) -> Entry:
        current = self._expected(key, expect)
        revision = self._next
        value = build(revision)
        created = revision if current is None else current.created
        if current is not None:
            key = current.key  # share the strings
        if index is None:
            index = self._index(key[0], value)
        entry = Entry(key, value, revision, created, index)
        return await self._submit(Change(revision, False, entry, current))

    async def delete(self, key: Key, build: Build, expect: int | None = None) -> Entry:
        current = self._expected(key, expect)
        if current is None:
            raise RevisionMismatch(key, None)
        revision = self._next
        value = build(revision)
        entry = Entry(current.key, value, revision, current.created, self._index(key[0], value))
        return await self._submit(Change(revision, True, entry, current))

    async def settled(self) -> bool:
        """Wait until every write submitted so far is durable or has failed; return True if none failed.

        Called before a request is refused because of a state that is not durable yet: the reason of a refusal must be
        true of the state that readers see.
        """
        pending = [each.done for each in self._pending]
        if not pending:
            return True
        await asyncio.wait(pending)
        return all(done.cancelled() or done.exception() is None for done in pending)

    def _expected(self, key: Key, expect: int | None) -> Entry | None:
        if self._closed:
            raise ServiceUnavailable("the store is closed: the server is shutting down")
        current = self.latest(key)
        if expect is not None and expect != (current.revision if current else 0):
            raise RevisionMismatch(key, current)
        return current

    def _submit(self, change: Change) -> asyncio.Future[Entry]:
        """Queue a change for the commit and return the future of its Entry.

        There is no await between the caller's check and this point, so no other write can come between them.
        """
        self._loop = asyncio.get_running_loop()
        done: asyncio.Future[Entry] = self._loop.create_future()
        self._next = change.revision + 1
        self._pending.append(_Pending(self._epoch, change, done))
        self._overlay[change.entry.key] = change
        if self._commits is not None:
            previous = change.previous.revision if change.previous else 0
            entry = change.entry
            row = StoredRow(entry.revision, *entry.key, entry.created, previous, change.deleted, entry.value)
            self._commits.submit(self._epoch, row)
        elif not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)
        return done

    def _flush(self) -> None:
        """Commit the writes of one turn of the event loop as one batch; for a store without a file."""
        self._flush_due = False
        self._outcomes.append(CommitOutcome(len(self._pending)))
        self._process_outcomes()

    def _report(self, outcome: CommitOutcome) -> None:
        """Queue the outcome of a commit for the event loop. Runs in the commit thread."""
        self._outcomes.append(outcome)
        loop = self._loop
        try:
            if loop is not None:
                loop.call_soon_threadsafe(self._process_outcomes)
        except RuntimeError:
            pass  # the loop is closed; `close` settles the rest

    def _process_outcomes(self) -> None:
        while self._outcomes:
            outcome = self._outcomes.popleft()
            batch = [self._pending.popleft() for _ in range(outcome.count)]
            if outcome.error is None:
                self._commit(batch)
            else:
                self._fail(batch, outcome.error)

    def _commit(self, batch: Sequence[_Pending]) -> None:
        for _, change, _ in batch:
            self._apply(change)
            if self._overlay.get(change.entry.key) is change:
                del self._overlay[change.entry.key]
        self._revision = batch[-1].change.revision
        self._hub.publish([pending.change for pending in batch])
        self._schedule_expiry()
        for _, change, done in batch:
            if not done.done():
                done.set_result(change.entry)

    def _apply(self, change: Change, replay: bool = True) -> None:
        """Put a change into the tables and, unless it is `replay` False, into the window for watches."""
        if change.deleted:
            if change.previous is not None:
                self._tables.remove(change.entry.key)
        else:
            self._tables.set(change.entry)
        if not replay:
            return
        now = self._clock.monotonic()
        self._discard(
            self._window.add(change, now, BYTES_UNDER_ALARM) if self.alarm() else self._window.add(change, now)
        )

    def _discard(self, dropped: Sequence[Change]) -> None:
        """Let the commit thread remove the rows of changes that can no longer be requested."""
        if self._commits is None:
            return
        for change in dropped:
            superseded = (change.previous.revision,) if change.previous else ()
            tombstone = (change.revision,) if change.deleted else ()
            self._commits.discard(change.revision, superseded + tombstone)

    def _expire(self) -> None:
        """Drop old changes, also while there are no writes."""
        self._expiry = None
        # History is dropped early while the disk is nearly full.
        ahead = max(0.0, self._window.bounds.seconds - UNDER_ALARM) if self.alarm() else 0.0
        before = self._window.bytes
        self._discard(self._window.expire(self._clock.monotonic() + ahead))
        if self._commits is not None:
            self._commits.compact()
        if before - self._window.bytes > TRIM_BYTES and self._loop is not None:
            self._loop.run_in_executor(None, trim_heap)
        self._schedule_expiry()

    def _schedule_expiry(self) -> None:
        if self._expiry is None and self._window and not self._closed and self._loop is not None:
            self._expiry = self._loop.call_later(self._window.bounds.seconds / 4, self._expire)

    def _fail(self, batch: Sequence[_Pending], error: Exception) -> None:
        """Drop all writes that are not durable yet. The commit thread fails the rest of this epoch, in order."""
        if batch[-1].epoch == self._epoch:
            self._overlay.clear()
            self._epoch += 1
        for _, change, done in batch:
            if not done.done():
                resource, namespace, name = change.entry.key
                what = f"{resource} {namespace}/{name}" if namespace else f"{resource} {name}"
                done.set_exception(
                    ServiceUnavailable(
                        f"{what} was not stored: {error}. Check the space and health of the disk that holds --data, "
                        "then try again",
                        retry_after=1,
                    )
                )

    async def close(self) -> None:
        """Finish the submitted writes, then close the file."""
        if self._closed:
            return
        self._closed = True
        if self._expiry is not None:
            self._expiry.cancel()
        if self._commits is not None:
            await asyncio.to_thread(self._commits.stop)
        elif self._pending:
            self._flush()
        self._process_outcomes()
        self._hub.close()


def _by_key(entry: Entry) -> Key:
    return entry.key
