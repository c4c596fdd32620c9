"""Keys to work on: each at most once in the queue and never twice at the same time; what fails comes back later."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from phalanx.base.errors import ApiProblem, Conflict

K = TypeVar("K", bound=Hashable)
log = logging.getLogger(__name__)

FIRST_DELAY, LONGEST_DELAY = 0.02, 30.0


class Work(Generic[K]):
    """`step` does what one key needs. A key added while its step runs is stepped again afterwards."""

    def __init__(self, name: str, step: Callable[[K], Awaitable[None]], workers: int = 8) -> None:
        self.name = name
        self._step = step
        self._workers = workers
        self._queue: deque[K] = deque()
        self._waiting: dict[K, None] = {}
        self._running: dict[K, bool] = {}  # True: again when done
        self._failures: dict[K, int] = {}
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._idle: list[asyncio.Future[None]] = []

    def add(self, key: K) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        if key in self._running:
            self._running[key] = True
        elif key not in self._waiting:
            self._waiting[key] = None
            self._queue.append(key)
            while self._idle:
                worker = self._idle.pop()
                if not worker.done():
                    worker.set_result(None)
                    break

    def add_after(self, key: K, seconds: float) -> None:
        """The earlier of two times wins: a step looks at everything that is due."""
        if key in self._waiting:
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

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._workers):
                    group.create_task(self._work())
        finally:
            for timer in self._timers.values():
                timer.cancel()
            self._timers.clear()

    async def _work(self) -> None:
        while True:
            while not self._queue:
                waker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._idle.append(waker)
                await waker
            key = self._queue.popleft()
            del self._waiting[key]
            self._running[key] = False
            try:
                await self._step(key)
            except ApiProblem as problem:
                self._again_later(key, problem)
            except Exception:
                log.exception("%s: %s failed and is tried again", self.name, key)
                self._again_later(key, None)
            else:
                self._failures.pop(key, None)
            if self._running.pop(key):
                self.add(key)

    def _again_later(self, key: K, problem: ApiProblem | None) -> None:
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        if problem is not None and not isinstance(problem, Conflict):
            log.warning("%s: %s: %s; trying again", self.name, key, problem.message)
        if key in self._timers:
            self._timers.pop(key).cancel()
        self._timers[key] = asyncio.get_running_loop().call_later(
            min(LONGEST_DELAY, FIRST_DELAY * 2.0**failures), self._due, key
        )
