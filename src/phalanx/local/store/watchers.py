"""Watchers, and the hub that wakes them.

A watcher is a position in a run of changes (see `window`). A commit wakes each watcher once. A watcher that does not
read costs nothing, until the window has moved past its position; then it is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from phalanx.local.store.contract import Change, SlowWatcher
from phalanx.local.store.window import ChangeRun, Scope, Window, scopes_of

# Limits of one batch. Watchers at the same position get the same batch object, so its encoding is shared; a watcher
# that does not read holds at most one batch.
BATCH_CHANGES = 256
BATCH_BYTES = 256 << 10


class StoreWatcher:
    """One reader of changes. Only one task may iterate it."""

    def __init__(
        self,
        scope: Scope,
        run: ChangeRun,
        since: int,
        durable: Callable[[], int],
        on_close: Callable[[StoreWatcher], None],
    ) -> None:
        self.scope = scope
        self.run = run
        self._returned = since
        self._durable = durable
        self._on_close = on_close
        self._closed = False
        self._waker: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __aiter__(self) -> AsyncIterator[Sequence[Change]]:
        return self

    async def __anext__(self) -> Sequence[Change]:
        while not (batch := self._next_changes()):
            self._waker = asyncio.get_running_loop().create_future()
            try:  # `_wait_for_change` inlined: saves a coroutine per change and watcher
                await self._waker
            finally:
                self._waker = None
        return batch

    async def within(self, seconds: float) -> Sequence[Change]:
        """Wait up to `seconds` for the next batch; return an empty one if no change came."""
        loop = asyncio.get_running_loop()
        until: float | None = None
        while not (batch := self._next_changes()):
            if until is None:
                until = loop.time() + seconds
            elif loop.time() >= until:
                break
            # One timer serves many waits, because most end before it; if it fires too early, it is set again.
            if self._timer is None or self._timer.when() > until:
                self._cancel_timer()
                self._timer = loop.call_at(until, self._on_timer)
            await self._wait_for_change()
        return batch

    def _next_changes(self) -> Sequence[Change]:
        if self.run.dropped > self._returned:
            self.close()
            raise SlowWatcher(f"a watcher of {self.scope[0]} fell behind and was cut off")
        batch = self.run.next_after(self._returned, BATCH_CHANGES, BATCH_BYTES)
        if batch:
            self._returned = batch[-1].revision
        elif self._closed:
            raise StopAsyncIteration
        return batch

    async def _wait_for_change(self) -> None:
        self._waker = asyncio.get_running_loop().create_future()
        try:
            await self._waker
        finally:
            self._waker = None

    def _on_timer(self) -> None:
        self._timer = None
        self.wake()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def progress(self) -> int:
        if self.run.dropped > self._returned or self.run.has_after(self._returned):
            return self._returned
        return max(self._returned, self._durable())

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._cancel_timer()
            self._on_close(self)
            self.wake()

    def wake(self) -> None:
        if self._waker is not None and not self._waker.done():
            self._waker.set_result(None)


class Hub:
    """All watchers, by scope."""

    def __init__(self, window: Window) -> None:
        self._window = window
        # dicts as ordered sets: watchers are served in the order in which they came
        self._scopes: dict[Scope, dict[StoreWatcher, None]] = {}

    def watch(self, scope: Scope, since: int, durable: Callable[[], int]) -> StoreWatcher:
        """Watch the changes after `since`. Raises Compacted."""
        self._window.check(since)
        watcher = StoreWatcher(scope, self._window.follow(scope), since, durable, self._remove)
        self._scopes.setdefault(scope, {})[watcher] = None
        return watcher

    def _remove(self, watcher: StoreWatcher) -> None:
        members = self._scopes.get(watcher.scope)
        if members is not None and watcher in members:
            del members[watcher]
            if not members:
                del self._scopes[watcher.scope]
            self._window.unfollow(watcher.scope, watcher.run)

    def publish(self, changes: Sequence[Change]) -> None:
        """Wake the watchers of the scopes of these changes; the changes are in the window already."""
        if not self._scopes:
            return
        touched = dict.fromkeys(scope for change in changes for scope in scopes_of(change))
        for scope in touched:
            for watcher in tuple(self._scopes.get(scope, ())):
                watcher.wake()

    def close(self) -> None:
        for members in tuple(self._scopes.values()):
            for watcher in tuple(members):
                watcher.close()

    @property
    def count(self) -> int:
        return sum(map(len, self._scopes.values()))
