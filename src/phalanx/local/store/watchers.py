"""Watchers and the hub that feeds them.

A commit makes one list of changes per resource and per namespace, shared by all its watchers: what a write costs does
not depend on the number of objects, and per watcher it is one append. A watcher that does not read is cut off.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

from phalanx.local.store.contract import Change, SlowWatcher

Scope = tuple[str, str]  # (resource, namespace); namespace "" = all of them

MAX_CHANGES = 20_000
MAX_BYTES = 64 << 20


class StoreWatcher:
    """One reader of changes. Iterate it from one task only."""

    def __init__(
        self,
        scope: Scope,
        replay: list[Change],
        since: int,
        durable: Callable[[], int],
        on_close: Callable[[StoreWatcher], None],
        max_changes: int = MAX_CHANGES,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.scope = scope
        self.since = since
        self._batches: deque[Sequence[Change]] = deque()
        if replay:
            self._batches.append(replay)
        self._waiting = 0  # changes in the buffer, without the replay: that one is bounded by the window
        self._bytes = 0
        self._max_changes = max_changes
        self._max_bytes = max_bytes
        self._handed = since
        self._durable = durable
        self._on_close = on_close
        self._closed = False
        self._slow = False
        self._waker: asyncio.Future[None] | None = None

    def __aiter__(self) -> AsyncIterator[Sequence[Change]]:
        return self

    async def __anext__(self) -> Sequence[Change]:
        while True:
            if self._slow:
                raise SlowWatcher(f"a watcher of {self.scope[0]} fell behind and was cut off")
            if self._batches:
                return self._hand_out()
            if self._closed:
                raise StopAsyncIteration
            self._waker = asyncio.get_running_loop().create_future()
            try:
                await self._waker
            finally:
                self._waker = None

    def _hand_out(self) -> Sequence[Change]:
        if len(self._batches) == 1:
            batch = self._batches[0]
        else:
            batch = [change for part in self._batches for change in part]
        self._batches.clear()
        self._waiting = self._bytes = 0
        self._handed = batch[-1].revision
        return batch

    @property
    def progress(self) -> int:
        return self._handed if self._batches or self._slow else max(self._handed, self._durable())

    def push(self, batch: Sequence[Change], size: int) -> None:
        if batch[0].revision <= self.since:  # a watch from a revision that had not been reached yet
            batch = [change for change in batch if change.revision > self.since]
            if not batch:
                return
        if self._waiting and (self._waiting + len(batch) > self._max_changes or self._bytes + size > self._max_bytes):
            self._slow = True
            self._batches.clear()
            self.close()
            return
        self._batches.append(batch)
        self._waiting += len(batch)
        self._bytes += size
        self._wake()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._on_close(self)
            self._wake()

    def _wake(self) -> None:
        if self._waker is not None and not self._waker.done():
            self._waker.set_result(None)


class Hub:
    def __init__(self) -> None:
        # dicts as ordered sets: watchers are served in order of arrival
        self._scopes: dict[Scope, dict[StoreWatcher, None]] = {}

    def add(self, watcher: StoreWatcher) -> None:
        self._scopes.setdefault(watcher.scope, {})[watcher] = None

    def remove(self, watcher: StoreWatcher) -> None:
        members = self._scopes.get(watcher.scope)
        if members is not None:
            members.pop(watcher, None)
            if not members:
                del self._scopes[watcher.scope]

    def publish(self, changes: Sequence[Change]) -> None:
        if not self._scopes:
            return
        batches: dict[Scope, list[Change]] = {}
        for change in changes:
            resource, namespace, _ = change.entry.key
            for scope in ((resource, namespace), (resource, "")) if namespace else ((resource, ""),):
                if scope in self._scopes:
                    batches.setdefault(scope, []).append(change)
        for scope, batch in batches.items():
            size = sum(len(change.entry.value) for change in batch)
            for watcher in tuple(self._scopes.get(scope, ())):
                watcher.push(batch, size)

    def close(self) -> None:
        for members in tuple(self._scopes.values()):
            for watcher in tuple(members):
                watcher.close()

    @property
    def count(self) -> int:
        return sum(map(len, self._scopes.values()))
