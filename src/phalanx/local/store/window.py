"""The window of recent changes: watches read it, and `list_at` undoes it. Bounded by count, bytes and age.

Watchers have no buffers: each is a position in the run of its scope. Therefore all slow readers together hold no more
memory than the window, and a watcher whose position falls below the window's floor is closed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence

import msgspec

from phalanx.local.store.contract import Change, Compacted, Entry, Key

NEAR_END = 16  # changes at the end that are searched first: most watchers are there
Scope = tuple[str, str]  # (resource, namespace); namespace "": all namespaces


class WindowBounds(msgspec.Struct, frozen=True):
    changes: int = 50_000
    bytes: int = 64 << 20  # of states that only the window keeps
    seconds: float = 300.0  # kube-apiserver compacts etcd every five minutes


def kept_bytes(change: Change) -> int:
    """Return the bytes of the states that only the window keeps for a change: superseded and deleted ones."""
    size = 256
    if change.previous is not None:
        size += len(change.previous.value)
    if change.deleted:
        size += len(change.entry.value)
    return size


def _revision(change: Change) -> int:
    return change.revision


_GONE = Change(0, False, Entry(("", "", ""), b"", 0, 0, None), None)  # placeholder for a dropped change


class ChangeRun:
    """The changes of one scope, oldest first. Shared by all its watchers."""

    __slots__ = ("_batch", "_batch_arguments", "_changes", "_head", "dropped", "followers")

    def __init__(self) -> None:
        self._changes: list[Change] = []
        self._head = 0  # index of the first change; placeholders before it are removed in bulk
        # The last batch and the arguments it was made for: watchers at the same position ask for the same.
        self._batch: Sequence[Change] = ()
        self._batch_arguments: tuple[int, int, int, int] | None = None
        self.dropped = 0  # revision of the last dropped change of this scope
        self.followers = 0

    def __len__(self) -> int:
        return len(self._changes) - self._head

    def append(self, change: Change) -> None:
        self._changes.append(change)

    def drop(self, change: Change) -> None:
        """Drop the oldest change, which must be `change`."""
        self._head += 1
        self.dropped = change.revision
        if self._head > 64 and self._head * 2 > len(self._changes):
            del self._changes[: self._head]
            self._head = 0
        else:
            self._changes[self._head - 1] = _GONE

    def after(self, revision: int) -> list[Change]:
        return self._changes[self._first_after(revision) :]

    def _first_after(self, revision: int) -> int:
        """Return the index of the first change after a revision; the last NEAR_END changes are searched first."""
        known = self._changes
        lowest = max(self._head, len(known) - NEAR_END)
        if lowest > self._head and known[lowest].revision > revision:
            return bisect_right(known, revision, lo=self._head, hi=lowest, key=_revision)
        return bisect_right(known, revision, lo=lowest, key=_revision)

    def has_after(self, revision: int) -> bool:
        return bool(self._changes) and self._changes[-1].revision > revision  # a placeholder has revision 0

    def next_after(self, revision: int, changes: int, size: int) -> Sequence[Change]:
        """Return the next changes: at least one if there is one, at most `changes`, and no more after `size` bytes."""
        known = self._changes
        if not known or known[-1].revision <= revision:
            return ()
        asked = (revision, known[-1].revision, changes, size)
        if asked == self._batch_arguments:
            return self._batch
        start = self._first_after(revision)
        found: list[Change] = []
        for change in self._changes[start : start + changes]:
            found.append(change)
            size -= len(change.entry.value)
            if size <= 0:
                break
        self._batch, self._batch_arguments = found, asked
        return found


class Window(msgspec.Struct):
    bounds: WindowBounds = msgspec.field(default_factory=WindowBounds)
    floor: int = 0  # all changes after this revision are in the window
    _changes: deque[Change] = msgspec.field(default_factory=deque)
    _runs: dict[Scope, ChangeRun] = msgspec.field(default_factory=dict)
    _times: deque[tuple[float, int]] = msgspec.field(default_factory=deque)  # (time, last revision then), ascending
    bytes: int = 0

    def __len__(self) -> int:
        return len(self._changes)

    def add(self, change: Change, now: float = 0.0, most_bytes: int = 1 << 62) -> list[Change]:
        """Add a change; return the changes that were dropped. most_bytes: a lower limit for now."""
        self._changes.append(change)
        for scope in scopes_of(change):
            self.run(scope).append(change)
        self.bytes += kept_bytes(change)
        if not self._times or now - self._times[-1][0] >= 1.0:
            self._times.append((now, change.revision))
        else:
            self._times[-1] = (self._times[-1][0], change.revision)
        dropped: list[Change] = []
        most_bytes = min(most_bytes, self.bounds.bytes)
        while len(self._changes) > self.bounds.changes or (self.bytes > most_bytes and len(self._changes) > 1):
            dropped.append(self._drop_oldest())
        if now - self._times[0][0] > self.bounds.seconds:
            dropped += self.expire(now)
        return dropped

    def expire(self, now: float) -> list[Change]:
        """Drop and return the changes that are too old. Must also be called while nothing is written."""
        dropped: list[Change] = []
        while self._times and now - self._times[0][0] > self.bounds.seconds:
            _, revision = self._times.popleft()
            while self._changes and self._changes[0].revision <= revision:
                dropped.append(self._drop_oldest())
        return dropped

    def _drop_oldest(self) -> Change:
        oldest = self._changes.popleft()
        for scope in scopes_of(oldest):
            run = self._runs[scope]
            run.drop(oldest)
            if not run and not run.followers:
                del self._runs[scope]
        self.bytes -= kept_bytes(oldest)
        self.floor = oldest.revision
        return oldest

    def run(self, scope: Scope) -> ChangeRun:
        run = self._runs.get(scope)
        if run is None:
            run = self._runs[scope] = ChangeRun()
        return run

    def follow(self, scope: Scope) -> ChangeRun:
        """Return the run of a scope for a new watcher, which must call `unfollow` at its end."""
        run = self.run(scope)
        run.followers += 1
        return run

    def unfollow(self, scope: Scope, run: ChangeRun) -> None:
        run.followers -= 1
        if not run and not run.followers and self._runs.get(scope) is run:
            del self._runs[scope]

    def after(self, resource: str, namespace: str, revision: int) -> list[Change]:
        """Return the changes of a resource after a revision, oldest first. Raises Compacted."""
        self.check(revision)
        run = self._runs.get((resource, namespace))
        return run.after(revision) if run is not None else []

    def before(self, resource: str, namespace: str, revision: int) -> dict[Key, Entry | None]:
        """Return the state at `revision` of every key that changed after it; None: it did not exist."""
        states: dict[Key, Entry | None] = {}
        for change in reversed(self.after(resource, namespace, revision)):
            states[change.entry.key] = change.previous
        return states

    def check(self, revision: int) -> None:
        if revision < self.floor:
            raise Compacted(revision, self.floor)


def scopes_of(change: Change) -> tuple[Scope, ...]:
    resource, namespace, _ = change.entry.key
    return ((resource, namespace), (resource, "")) if namespace else ((resource, ""),)
