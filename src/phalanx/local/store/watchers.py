"""Watchers and the hub that wakes them.

A watcher is a place in a run of changes (see `window`): a commit costs each of them one wake-up, and a watcher that
does not read costs nothing at all until the window has passed it and it is cut off.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from phalanx.local.store.contract import Change, SlowWatcher
from phalanx.local.store.window import ChangeRun, Scope, Window, scopes_of

# Handed out at a time. Who looks on at the same pace gets the same pieces, and so shares what is made of them; who
# does not read has no more than one of them on its way.
PIECE_CHANGES = 256
PIECE_BYTES = 256 << 10


class StoreWatcher:
    """One reader of changes. Iterate it from one task only."""

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
        self._handed = since
        self._durable = durable
        self._on_close = on_close
        self._closed = False
        self._waker: asyncio.Future[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None

    def __aiter__(self) -> AsyncIterator[Sequence[Change]]:
        return self

    async def __anext__(self) -> Sequence[Change]:
        while not (batch := self._next_changes()):
            self._waker = asyncio.get_running_loop().create_future()
            try:  # as in _woken: a coroutine less for every change and watcher
                await self._waker
            finally:
                self._waker = None
        return batch

    async def within(self, seconds: float) -> Sequence[Change]:
        """Wait up to `seconds` for the next batch; return an empty one if there is no change until then."""
        loop = asyncio.get_running_loop()
        until: float | None = None
        while not (batch := self._next_changes()):
            if until is None:
                until = loop.time() + seconds
            elif loop.time() >= until:
                break
            # One alarm for many waits, most of which end before it: it may ring early, and is set again then.
            if self._alarm is None or self._alarm.when() > until:
                self._cancel_alarm()
                self._alarm = loop.call_at(until, self._ring)
            await self._wait_for_change()
        return batch

    def _next_changes(self) -> Sequence[Change]:
        if self.run.fallen > self._handed:
            self.close()
            raise SlowWatcher(f"a watcher of {self.scope[0]} fell behind and was cut off")
        batch = self.run.some_after(self._handed, PIECE_CHANGES, PIECE_BYTES)
        if batch:
            self._handed = batch[-1].revision
        elif self._closed:
            raise StopAsyncIteration
        return batch

    async def _wait_for_change(self) -> None:
        self._waker = asyncio.get_running_loop().create_future()
        try:
            await self._waker
        finally:
            self._waker = None

    def _ring(self) -> None:
        self._alarm = None
        self.wake()

    def _cancel_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    @property
    def progress(self) -> int:
        if self.run.fallen > self._handed or self.run.has_after(self._handed):
            return self._handed
        return max(self._handed, self._durable())

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._cancel_alarm()
            self._on_close(self)
            self.wake()

    def wake(self) -> None:
        if self._waker is not None and not self._waker.done():
            self._waker.set_result(None)


class Hub:
    """Who watches which scope."""

    def __init__(self, window: Window) -> None:
        self._window = window
        # dicts as ordered sets: watchers are served in order of arrival
        self._scopes: dict[Scope, dict[StoreWatcher, None]] = {}

    def watch(self, scope: Scope, since: int, durable: Callable[[], int]) -> StoreWatcher:
        """Watch the changes after `since`; raises Compacted."""
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
        """Wake the watchers that these changes may concern; the changes are in the window already."""
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
