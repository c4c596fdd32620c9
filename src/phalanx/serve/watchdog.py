"""Detect a process that is alive but makes no progress: /livez reports what is stuck, and the log shows its stack.

An unreachable API server does not count: retries are progress. Checked are a blocked event loop, an informer without
requests and events, and a leader with an expired lease.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from typing import Protocol

from phalanx.base.informer import WATCH_SECONDS
from phalanx.kube.client import WATCH_GRACE

log = logging.getLogger(__name__)

BEAT = 0.5  # seconds between two heartbeats of the event loop
LOOP_STILL = 10.0
INFORMER_STILL = 1.5 * WATCH_SECONDS + WATCH_GRACE + 60.0  # the longest watch, and time to detect its end
LEASE_STILL = 5.0  # seconds after the renew deadline, at which the leader should have stopped


class Monitored(Protocol):
    @property
    def last_activity(self) -> float: ...  # the loop's time; 0: has not begun

    @property
    def what(self) -> str: ...


class Watchdog:
    """Runs next to the work; `checks` belong to /livez. `informers` and `overdue` are read each time."""

    def __init__(
        self,
        informers: Callable[[], Iterable[Monitored]] = tuple,
        overdue: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._informers, self._overdue = informers, overdue
        self._loop = asyncio.get_running_loop()
        self._beat = self._loop.time()
        self._main = threading.get_ident()
        self._end = threading.Event()
        self.checks: dict[str, Callable[[], str]] = {
            "event-loop": self._loop_check,
            "informers": self._informer_check,
            "lease": self._lease_check,
        }

    async def run(self) -> None:
        """Run until cancelled."""
        threading.Thread(target=self._watch_loop, name="watchdog", daemon=True).start()
        try:
            while True:
                self._beat = self._loop.time()
                await asyncio.sleep(BEAT)
        finally:
            self._end.set()

    def _watch_loop(self) -> None:
        """Check the event loop from a separate thread: a blocked loop cannot report itself."""
        announced = 0.0
        while not self._end.wait(BEAT):
            still = self._loop.time() - self._beat
            if still > LOOP_STILL and self._beat != announced:
                announced = self._beat
                frame = sys._current_frames().get(self._main)
                where = "".join(traceback.format_stack(frame)[-6:]) if frame is not None else "unknown\n"
                log.error("the event loop has been blocked for %.0f s, here:\n%s", still, where)

    def _loop_check(self) -> str:
        still = self._loop.time() - self._beat
        return f"has been blocked for {still:.0f} s" if still > LOOP_STILL else ""

    def _informer_check(self) -> str:
        now = self._loop.time()
        still = [(each.what, now - each.last_activity) for each in self._informers() if each.last_activity]
        return ", ".join(
            f"{what} has sent and received nothing for {s:.0f} s" for what, s in still if s > INFORMER_STILL
        )

    def _lease_check(self) -> str:
        over = self._overdue()
        return f"leads {over:.0f} s beyond the renew deadline" if over > LEASE_STILL else ""
