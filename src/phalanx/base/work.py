"""A level-triggered work queue: a key waits at most once, one worker handles it at a time, and no key is lost.

Adding a key that waits changes nothing; a key that is added while a worker handles it is queued again afterwards.
If the work raises any exception, the key is retried after a delay that doubles per key; workers never end on their own.
Adding a failing key shortens its delay, but a key that keeps failing is handled at most about once a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import msgspec

from phalanx.base.errors import ApiProblem, Conflict
from phalanx.base.tasks import begin, cause_of_end, end, is_own_cancellation

K = TypeVar("K", bound=Hashable)
log = logging.getLogger(__name__)

FIRST_DELAY, LONGEST_DELAY = 0.02, 30.0
LONGEST_UPDATE_DELAY = 1.0  # seconds before a failing key that was added is retried
FAILURES_BEFORE_WARNING = 4  # failures in a row after which a warning is logged


class _Failing(msgspec.Struct):
    count: int = 0  # failures in a row, without retries that `add` brought forward
    last: float = 0.0
    due: float = 0.0

    def delay(self, longest: float) -> float:
        return min(longest, FIRST_DELAY * 2.0 ** min(self.count - 1, 30))


class WorkQueue(Generic[K]):
    def __init__(self, name: str = "") -> None:
        self.name = name
        self._ready: deque[K] = deque()
        self._waiting: set[K] = set()  # keys in `_ready`, or to be added when the work under way ends
        self._working: set[K] = set()
        self._failing: dict[K, _Failing] = {}
        # The due time is stored next to the handle: for very short delays uvloop's handle does not have it.
        self._timers: dict[K, tuple[float, asyncio.Handle]] = {}
        self.failed = 0  # number of exceptions raised by the work
        self._idle: list[asyncio.Future[None]] = []  # one waker per idle worker
        self._start_worker: Callable[[], None] | None = None  # None: all workers run, or `run` is not active

    def __len__(self) -> int:
        return len(self._waiting) + len(self._working) + len(self._timers)

    def add(self, key: K) -> None:
        """Queue a key, later if its last attempts failed; a key that is in work is queued again when that ends."""
        if key in self._waiting:
            return
        if key in self._working:
            self._waiting.add(key)
            return
        if (failing := self._failing.get(key)) is not None:
            earliest = failing.last + failing.delay(LONGEST_UPDATE_DELAY)
            if (wait := earliest - asyncio.get_running_loop().time()) > 0:
                self.add_after(key, wait)
                return
        self._waiting.add(key)
        self._enqueue(key)

    def _enqueue(self, key: K) -> None:
        self._ready.append(key)
        while self._idle:
            worker = self._idle.pop()
            if not worker.done():
                worker.set_result(None)
                return
        if self._start_worker is not None:
            self._start_worker()

    def add_after(self, key: K, seconds: float) -> None:
        """Add a key after some seconds. If it waits already, the earlier time counts."""
        if seconds <= 0:
            self.add(key)
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        timer = self._timers.get(key)
        if timer is not None:
            if timer[0] <= due:
                return
            timer[1].cancel()
        self._timers[key] = (due, loop.call_later(seconds, self._due, key))

    def _due(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)

    async def run(self, work: Callable[[K], Awaitable[None]], workers: int) -> None:
        """Call `work` for each key that is due, until cancelled.

        Workers are started on demand, because most queues never need all of theirs.
        """
        tasks: list[asyncio.Task[None]] = []
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def ended(_: asyncio.Task[None]) -> None:
            if not over.done():
                over.set_result(None)

        def start_worker() -> None:
            task = begin(f"{self.name} worker {len(tasks)}", self._worker(work))
            task.add_done_callback(ended)
            tasks.append(task)
            if len(tasks) == workers:
                self._start_worker = None

        self._start_worker = start_worker
        for _ in range(min(workers, len(self._ready))):
            start_worker()
        try:
            await over
            raise cause_of_end(tasks)
        finally:
            self._start_worker = None
            await end(tasks)
            for _, timer in self._timers.values():
                timer.cancel()
            self._timers.clear()

    async def _worker(self, work: Callable[[K], Awaitable[None]]) -> None:
        while True:
            while not self._ready:
                waker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._idle.append(waker)
                await waker
            key = self._ready.popleft()
            self._waiting.discard(key)
            self._working.add(key)
            try:
                await work(key)
                self._failing.pop(key, None)
            except BaseException as error:
                if is_own_cancellation(error):
                    raise
                self._retry_later(key, error)
            finally:
                self._working.discard(key)
                if key in self._waiting:
                    self._waiting.discard(key)
                    self.add(key)

    def _retry_later(self, key: K, error: BaseException) -> None:
        self.failed += 1
        now = asyncio.get_running_loop().time()
        failing = self._failing.setdefault(key, _Failing())
        if now >= failing.due:  # a retry that `add` brought forward does not lengthen the delay
            failing.count += 1
            failing.due = now + failing.delay(LONGEST_DELAY)
            self._log_failure(key, error, failing.count)
        failing.last = now
        self.add_after(key, failing.due - now)

    def _log_failure(self, key: K, error: BaseException, failures: int) -> None:
        if isinstance(error, Conflict):
            log.debug("%s: %s has changed, retrying", self.name, key)
        elif isinstance(error, ApiProblem):
            expected = any(cause.get("reason") == "NamespaceTerminating" for cause in error.causes)
            level = logging.WARNING if failures == FAILURES_BEFORE_WARNING and not expected else logging.INFO
            log.log(level, "%s: %s: %s; retrying", self.name, key, error)
        else:
            log.error("%s: %s failed and will be retried", self.name, key, exc_info=error)
