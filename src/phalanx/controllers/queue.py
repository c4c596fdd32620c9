"""A level-triggered work queue: a key is worked on by one worker at a time, and never forgotten.

Adding a key that waits already changes nothing; adding one that is being worked on makes it come up again afterwards.
Failures come back after an exponential delay per key.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

FIRST_DELAY, LONGEST_DELAY = 0.02, 30.0


class WorkQueue(Generic[K]):
    def __init__(self) -> None:
        self._ready: deque[K] = deque()
        self._dirty: set[K] = set()
        self._working: set[K] = set()
        self._failures: dict[K, int] = {}
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._dirty) + len(self._working) + len(self._timers)

    def add(self, key: K) -> None:
        if key in self._dirty:
            return
        self._dirty.add(key)
        if key not in self._working:
            self._ready.append(key)
            self._wake.set()

    def add_after(self, key: K, seconds: float) -> None:
        """The earlier of two times wins."""
        if seconds <= 0:
            self.add(key)
            return
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= loop.time() + seconds:
                return
            timer.cancel()
        self._timers[key] = loop.call_later(seconds, self._due, key)

    def _due(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)

    async def run(self, work: Callable[[K], Awaitable[None]], failed: Callable[[K, Exception], None]) -> None:
        """One worker; start as many as wanted. `failed` is told of every failure before the retry is planned."""
        while True:
            while not self._ready:
                self._wake.clear()
                await self._wake.wait()
            key = self._ready.popleft()
            self._dirty.discard(key)
            self._working.add(key)
            try:
                await work(key)
                self._failures.pop(key, None)
            except Exception as error:
                failed(key, error)
                count = self._failures[key] = self._failures.get(key, 0) + 1
                self.add_after(key, min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** (count - 1)))
            finally:
                self._working.discard(key)
                if key in self._dirty:
                    self._ready.append(key)
                    self._wake.set()

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
