"""A clock for tests of parts that wait."""

from __future__ import annotations


class ManualClock:
    """Moves only when it is set."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds
