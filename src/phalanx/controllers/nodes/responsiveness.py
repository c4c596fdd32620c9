"""Measure how long this process was responsive; heartbeat timeouts ignore stalls.

A process that was stopped, starved of CPU or busy for seconds receives no heartbeats meanwhile, and in a local cluster
the senders are in the same process: a stall says nothing about the health of nodes. A late tick reveals a stall, and
that time does not count.
"""

from __future__ import annotations

import asyncio

from phalanx.base.clock import Clock

TICK = 2.0  # seconds
MOST = 3 * TICK  # what may count between two ticks: more than a clock that is moved in tests jumps at once


class Responsiveness:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ticked = clock.monotonic()
        self._counted = 0.0  # up to the last tick

    def now(self) -> float:
        """Return monotonic seconds that exclude the time in which this process was not responsive."""
        return self._counted + min(self._clock.monotonic() - self._ticked, MOST)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            self._counted = self.now()
            self._ticked = self._clock.monotonic()
