"""The window of recent changes: what watches read and what `list_at` undoes. Bounded by count, bytes and age.

Watchers have no buffers of their own: each has a place in the run of its scope. So the window is all that slow readers
can hold on to, however many they are, and who is overtaken by its floor is cut off.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence

import msgspec

from phalanx.local.store.contract import Change, Compacted, Entry, Key

NEAR_END = 16  # changes: where those who follow closely find their place
Scope = tuple[str, str]  # (resource, namespace); namespace "" = all of them


class WindowBounds(msgspec.Struct, frozen=True):
    changes: int = 50_000
    bytes: int = 64 << 20  # of states that are kept only for the window
    seconds: float = 300.0  # kube-apiserver has etcd compacted every five minutes


def kept_bytes(change: Change) -> int:
    """Return the bytes that only the window keeps for a change: superseded and deleted states."""
    size = 256
    if change.previous is not None:
        size += len(change.previous.value)
    if change.deleted:
        size += len(change.entry.value)
    return size


def _revision(change: Change) -> int:
    return change.revision


_GONE = Change(0, False, Entry(("", "", ""), b"", 0, 0, None), None)  # keeps the place of what fell out


class ChangeRun:
    """The changes of one scope, oldest first. Shared by all who follow it."""

    __slots__ = ("_changes", "_head", "_piece", "_piece_of", "fallen", "followers")

    def __init__(self) -> None:
        self._changes: list[Change] = []
        self._head = 0  # what is before it fell out; removed now and then, not each time
        # The last piece handed out, and to what question: those who follow at the same pace ask the same.
        self._piece: Sequence[Change] = ()
        self._piece_of: tuple[int, int, int, int] | None = None
        self.fallen = 0  # the last revision of this scope that is gone
        self.followers = 0

    def __len__(self) -> int:
        return len(self._changes) - self._head

    def append(self, change: Change) -> None:
        self._changes.append(change)

    def drop(self, change: Change) -> None:
        """Drop the oldest change, which is `change`."""
        self._head += 1
        self.fallen = change.revision
        if self._head > 64 and self._head * 2 > len(self._changes):
            del self._changes[: self._head]
            self._head = 0
        else:
            self._changes[self._head - 1] = _GONE

    def after(self, revision: int) -> list[Change]:
        return self._changes[self._first_after(revision) :]

    def _first_after(self, revision: int) -> int:
        """Return the index of the first change after a revision.

        Most callers know all but the last few changes, so these are searched first.
        """
        known = self._changes
        lowest = max(self._head, len(known) - NEAR_END)
        if lowest > self._head and known[lowest].revision > revision:
            return bisect_right(known, revision, lo=self._head, hi=lowest, key=_revision)
        return bisect_right(known, revision, lo=lowest, key=_revision)

    def has_after(self, revision: int) -> bool:
        return bool(self._changes) and self._changes[-1].revision > revision  # what fell out has revision 0

    def some_after(self, revision: int, changes: int, size: int) -> Sequence[Change]:
        """Return the next changes: up to `changes` of them, or as many as fill `size` bytes.

        At least one is returned if there is one.
        """
        known = self._changes
        if not known or known[-1].revision <= revision:
            return ()
        asked = (revision, known[-1].revision, changes, size)
        if asked == self._piece_of:
            return self._piece
        start = self._first_after(revision)
        found: list[Change] = []
        for change in self._changes[start : start + changes]:
            found.append(change)
            size -= len(change.entry.value)
            if size <= 0:
                break
        self._piece, self._piece_of = found, asked
        return found


class Window(msgspec.Struct):
    bounds: WindowBounds = msgspec.field(default_factory=WindowBounds)
    floor: int = 0  # changes after this revision are all here
    _changes: deque[Change] = msgspec.field(default_factory=deque)
    _runs: dict[Scope, ChangeRun] = msgspec.field(default_factory=dict)
    _times: deque[tuple[float, int]] = msgspec.field(default_factory=deque)  # (when, the last revision then), rising
    bytes: int = 0

    def __len__(self) -> int:
        return len(self._changes)

    def add(self, change: Change, now: float = 0.0) -> list[Change]:
        """Add a change; return those that were dropped."""
        self._changes.append(change)
        for scope in scopes_of(change):
            self.run(scope).append(change)
        self.bytes += kept_bytes(change)
        if not self._times or now - self._times[-1][0] >= 1.0:
            self._times.append((now, change.revision))
        else:
            self._times[-1] = (self._times[-1][0], change.revision)
        fallen: list[Change] = []
        while len(self._changes) > self.bounds.changes or (self.bytes > self.bounds.bytes and len(self._changes) > 1):
            fallen.append(self._drop())
        if now - self._times[0][0] > self.bounds.seconds:
            fallen += self.expire(now)
        return fallen

    def expire(self, now: float) -> list[Change]:
        """Drop and return the changes that are older than allowed.

        Must also be called when nothing is written.
        """
        fallen: list[Change] = []
        while self._times and now - self._times[0][0] > self.bounds.seconds:
            _, revision = self._times.popleft()
            while self._changes and self._changes[0].revision <= revision:
                fallen.append(self._drop())
        return fallen

    def _drop(self) -> Change:
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
        """Start to follow the changes of a scope; `unfollow` must follow."""
        run = self.run(scope)
        run.followers += 1
        return run

    def unfollow(self, scope: Scope, run: ChangeRun) -> None:
        run.followers -= 1
        if not run and not run.followers and self._runs.get(scope) is run:
            del self._runs[scope]

    def after(self, resource: str, namespace: str, revision: int) -> list[Change]:
        """Return the changes of a resource after a revision, oldest first; raises Compacted."""
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
