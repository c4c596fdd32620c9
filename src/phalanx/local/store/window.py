"""The window of recent changes: what watches replay and what `list_at` undoes. Bounded by count and by bytes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from phalanx.local.store.contract import Change, Compacted, Entry, Key


@dataclass(frozen=True, slots=True)
class Bounds:
    changes: int = 50_000
    bytes: int = 64 << 20  # of states that are kept only for the window


def kept_bytes(change: Change) -> int:
    """Memory that only the window holds on to: superseded and deleted states."""
    size = 256
    if change.previous is not None:
        size += len(change.previous.value)
    if change.deleted:
        size += len(change.entry.value)
    return size


@dataclass(slots=True)
class Window:
    bounds: Bounds = field(default_factory=Bounds)
    floor: int = 0  # changes after this revision are all here
    _changes: deque[Change] = field(default_factory=deque)
    _by_resource: dict[str, deque[Change]] = field(default_factory=dict)
    _bytes: int = 0

    def add(self, change: Change) -> list[Change]:
        """Take a change in; returns those that fell out."""
        self._changes.append(change)
        resource = change.entry.key[0]
        own = self._by_resource.get(resource)
        if own is None:
            own = self._by_resource[resource] = deque()
        own.append(change)
        self._bytes += kept_bytes(change)
        fallen: list[Change] = []
        while len(self._changes) > self.bounds.changes or (self._bytes > self.bounds.bytes and len(self._changes) > 1):
            oldest = self._changes.popleft()
            self._by_resource[oldest.entry.key[0]].popleft()
            self._bytes -= kept_bytes(oldest)
            self.floor = oldest.revision
            fallen.append(oldest)
        return fallen

    def after(self, resource: str, namespace: str, revision: int) -> list[Change]:
        """Changes of a resource after a revision, oldest first; raises Compacted."""
        self.check(revision)
        found: list[Change] = []
        for change in reversed(self._by_resource.get(resource, ())):
            if change.revision <= revision:
                break
            if not namespace or change.entry.key[1] == namespace:
                found.append(change)
        found.reverse()
        return found

    def before(self, resource: str, namespace: str, revision: int) -> dict[Key, Entry | None]:
        """What every key changed after `revision` was at that revision; None: it was not there."""
        states: dict[Key, Entry | None] = {}
        for change in reversed(self.after(resource, namespace, revision)):
            states[change.entry.key] = change.previous
        return states

    def check(self, revision: int) -> None:
        if revision < self.floor:
            raise Compacted(revision, self.floor)
