"""Time in which we could have heard somebody.

A process that was stopped, starved of the processor or busy for seconds hears nobody meanwhile, and in a local cluster
those who should speak are in the same process: such time says nothing about them. It is noticed by a tick that comes
late, and does not count.
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
        """Seconds that never go back, slower than the clock while we could not listen."""
        return self._counted + min(self._clock.monotonic() - self._ticked, MOST)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            self._counted = self.now()
            self._ticked = self._clock.monotonic()
