"""The interface of the store, as the API server uses it; `store.py` implements it.

- Keys are (resource, namespace, name); `resource` is `Kind.storage_key`, namespace "" for cluster-scoped kinds.
- Values are encoded JSON that contains its own resourceVersion: `build` gets the revision.
- A write becomes visible to readers and watchers, and is acknowledged, only when it is durable.
- `latest` also returns writes that are not durable yet; a read-modify-write must start from it.
- An Entry and its value are immutable.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NamedTuple, Protocol

Key = tuple[str, str, str]
Build = Callable[[int], bytes]  # revision -> encoded object
Indexer = Callable[[str, bytes], Any]  # (resource, value) -> data for selectors, so that values are decoded once


class Entry(NamedTuple):
    key: Key
    value: bytes
    revision: int  # of the last change
    created: int  # revision of the creation
    index: Any  # result of the Indexer


class Change(NamedTuple):
    """One event. The entry of a deletion is the last state, with the revision of the deletion."""

    revision: int
    deleted: bool
    entry: Entry
    previous: Entry | None  # None: the object was created by this change


class RevisionMismatch(Exception):
    """The write expected another state; `current` is the stored one (None: no object)."""

    def __init__(self, key: Key, current: Entry | None) -> None:
        super().__init__(f"{key} is at {current.revision if current else 'no'} revision")
        self.key = key
        self.current = current


class Compacted(Exception):
    """The requested revision is older than the window; `oldest` is the first revision in it."""

    def __init__(self, revision: int, oldest: int) -> None:
        super().__init__(f"revision {revision} is older than {oldest}")
        self.revision = revision
        self.oldest = oldest


class SlowWatcher(Exception):
    """The watcher did not read fast enough and was closed, so that memory stays bounded."""


class Watcher(Protocol):
    def __aiter__(self) -> AsyncIterator[Sequence[Change]]:
        """Yield batches of changes in revision order. Raises SlowWatcher if the watcher was closed for being slow."""
        ...

    async def within(self, seconds: float) -> Sequence[Change]:
        """Wait up to `seconds` for the next batch; return an empty one if no change came."""
        ...

    @property
    def progress(self) -> int:
        """Return the revision up to which every change was returned: the revision of a bookmark."""
        ...

    def close(self) -> None: ...


class StoreProtocol(Protocol):
    @property
    def revision(self) -> int:
        """Return the last durable revision."""
        ...

    def get(self, key: Key) -> Entry | None: ...

    def latest(self, key: Key) -> Entry | None: ...

    def list(self, resource: str, namespace: str = "") -> Sequence[Entry]:
        """List objects sorted by (namespace, name), consistent at `revision`."""
        ...

    def list_at(self, resource: str, namespace: str, revision: int) -> Sequence[Entry]:
        """List the objects as they were at a revision. Raises Compacted."""
        ...

    async def put(self, key: Key, build: Build, expect: int | None = None, index: Any = None) -> Entry:
        """Store the value that `build` returns; RevisionMismatch is raised before any wait.

        expect: None = any state, 0 = must not exist, n = at that revision. index: result of the Indexer for the value,
        if the caller knows it already.
        """
        ...

    async def delete(self, key: Key, build: Build, expect: int | None = None) -> Entry: ...

    def alarm(self) -> str:
        """Return why writes that need more space are refused, or an empty string."""
        ...

    async def settled(self) -> bool:
        """Wait until every write submitted so far is durable or has failed; return True if none failed."""
        ...

    def watch(self, resource: str, namespace: str = "", since: int | None = None) -> Watcher:
        """Watch the changes after `since` (None: from now on). Raises Compacted."""
        ...
