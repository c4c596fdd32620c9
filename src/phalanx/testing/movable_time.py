"""A real event loop whose time can be advanced: sockets and threads are real, only waiting is shortened."""

from __future__ import annotations

import asyncio
import time


class MovableLoop(asyncio.SelectorEventLoop):
    """`advance` from its own thread: all timers that are due by then fire, in order."""

    def __init__(self) -> None:
        self._ahead = 0.0
        super().__init__()

    def time(self) -> float:
        return super().time() + self._ahead

    def advance(self, seconds: float) -> None:
        self._ahead += seconds


class MovableClock:
    """`phalanx.base.clock.Clock` of a movable loop."""

    def __init__(self, loop: MovableLoop) -> None:
        self._loop = loop

    def now(self) -> float:
        return time.time() + self._loop._ahead

    def monotonic(self) -> float:
        return self._loop.time()
