"""What the API server may expect of the store. Types only; `store.py` fulfils them.

Contract:
- Keys are (resource, namespace, name); `resource` is `Kind.storage_key`, namespace "" for cluster-scoped kinds.
- Values are encoded JSON that already carries its own resourceVersion: the revision is handed to `build`.
- A write is visible to readers and watchers only when it is durable, and only then acknowledged.
- `latest` also sees writes that are still on their way to the disk: what a read-modify-write must start from.
- An Entry and its value are immutable.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NamedTuple, Protocol

Key = tuple[str, str, str]
Build = Callable[[int], bytes]  # revision -> encoded object
Indexer = Callable[[str, bytes], Any]  # (resource, value) -> whatever selectors need without decoding again


class Entry(NamedTuple):
    key: Key
    value: bytes
    revision: int  # of the last change
    created: int  # revision of the creation
    index: Any  # what the Indexer made of the value


class Change(NamedTuple):
    """One event. For a deletion `entry` is the last state, with the revision of the deletion."""

    revision: int
    deleted: bool
    entry: Entry
    previous: Entry | None  # None: the object was created by this change


class RevisionMismatch(Exception):
    """The write expected another state; `current` is what stands there (None: nothing)."""

    def __init__(self, key: Key, current: Entry | None) -> None:
        super().__init__(f"{key} is at {current.revision if current else 'no'} revision")
        self.key = key
        self.current = current


class Compacted(Exception):
    """The revision asked for is older than the window; `oldest` is the first one that is kept."""

    def __init__(self, revision: int, oldest: int) -> None:
        super().__init__(f"revision {revision} is older than {oldest}")
        self.revision = revision
        self.oldest = oldest


class SlowWatcher(Exception):
    """The watcher did not read fast enough and was cut off so that memory stays bounded."""


class Watcher(Protocol):
    def __aiter__(self) -> AsyncIterator[Sequence[Change]]:
        """Yield batches of changes in revision order; raises SlowWatcher when cut off."""
        ...

    async def within(self, seconds: float) -> Sequence[Change]:
        """Wait up to `seconds` for the next batch; return an empty one if there is no change until then."""
        ...

    @property
    def progress(self) -> int:
        """Return the revision up to which every change has been handed out: what a bookmark may say."""
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
        """List the objects as they were at a revision; raises Compacted."""
        ...

    async def put(self, key: Key, build: Build, expect: int | None = None, index: Any = None) -> Entry:
        """Store the value that `build` makes; RevisionMismatch is raised before any wait.

        expect: None = any state, 0 = must not exist, n = at that revision. index: what the Indexer would make of the
        value, for callers that know it before it is encoded.
        """
        ...

    async def delete(self, key: Key, build: Build, expect: int | None = None) -> Entry: ...

    def alarm(self) -> str:
        """Return why nothing may grow, or an empty string."""
        ...

    async def settled(self) -> bool:
        """Wait until every write submitted so far is durable or has failed; return True if none failed."""
        ...

    def watch(self, resource: str, namespace: str = "", since: int | None = None) -> Watcher:
        """Watch the changes after `since` (None: from now); raises Compacted."""
        ...
