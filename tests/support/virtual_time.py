"""An asyncio event loop on virtual time: when nothing is ready to run, time jumps to the next timer.

A simulated hour costs only what happens in it, and the same program runs the same way every time: there is no input
from outside, so only timers and their order decide what comes next. Waiting for ever raises `NothingScheduled`; being
busy for ever at the same moment raises `EndlessTurns`. The loop never waits for a socket or a thread: work handed to an
executor is done at once.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

MOST_TURNS = 50_000  # of the loop at one moment; a cluster that starts takes some hundreds
START = 1_700_000_000.0  # the time of a fresh loop: seconds since the epoch


class NothingScheduled(RuntimeError):
    """Raised when no task is ready and no timer is set: every task would wait for ever."""


class EndlessTurns(RuntimeError):
    """Ready tasks make others ready without end, and no time passes."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """Use it as any loop, or through `run`. `time()` starts at 0."""

    def __init__(self) -> None:
        self._elapsed = 0.0
        super().__init__(_Jumps(self))

    def time(self) -> float:
        return self._elapsed

    def jump(self, seconds: float) -> None:
        """Advance time without running timers, as on a suspended machine: everything due meanwhile is late."""
        self._elapsed += seconds

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done


class VirtualClock:
    """`phalanx.base.clock.Clock` of a virtual loop. `skew` is how far this clock is wrong; it may be changed."""

    def __init__(self, loop: VirtualLoop, start: float = START, skew: float = 0.0) -> None:
        self._loop = loop
        self._start = start
        self.skew = skew

    def now(self) -> float:
        return self._start + self._loop.time() + self.skew

    def monotonic(self) -> float:
        return self._loop.time()


def run(main: Callable[[VirtualLoop], Coroutine[Any, Any, T]]) -> T:
    """Run `main` on a virtual loop, as asyncio.run does: tasks left running are cancelled at the end."""
    loop = VirtualLoop()
    return drive(loop, main(loop))


def drive(loop: VirtualLoop, main: Coroutine[Any, Any, T]) -> T:
    """Do the same as `run` on a loop that the caller made, and close it at the end."""
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main)
    finally:
        try:
            left = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()


class _Jumps(selectors.BaseSelector):
    """A selector that advances virtual time instead of sleeping. Files may be registered; they are never ready."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._files: dict[Any, selectors.SelectorKey] = {}
        self._turns = 0  # at this moment

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise NothingScheduled(
                f"nothing is ready and no timer is set after {self._loop.time():.3f} s; {_waiting(self._loop)}"
            )
        if timeout > 0:
            # A timer that is due a rounding error later would make the loop turn once more for nothing.
            self._loop.jump(timeout + 1e-9)
            self._turns = 0
            return []
        self._turns += 1
        if self._turns > MOST_TURNS:
            self._turns = 0  # what is left may still be ended
            raise EndlessTurns(f"no end of work at {self._loop.time():.3f} s; {_waiting(self._loop)}")
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = self._files[fileobj] = selectors.SelectorKey(fileobj, 0, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._files.pop(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._files


def _waiting(loop: VirtualLoop) -> str:
    names = sorted(task.get_name() for task in asyncio.all_tasks(loop))
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return f"waiting: {', '.join(names[:10]) or 'nothing'}{more}"
