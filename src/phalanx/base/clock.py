"""Time as a value that is passed in. Nothing below `serve` may read the wall clock any other way."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from functools import lru_cache
from typing import Protocol

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
# Units of durations in Go notation, such as 1h30m.
NANOSECONDS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_UNIT_SECONDS = {unit: nanoseconds / 10**9 for unit, nanoseconds in NANOSECONDS.items()}


class Clock(Protocol):
    def now(self) -> float:
        """Return the seconds since the epoch, UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go back; only differences have a meaning."""
        ...


class SystemClock:
    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


LEAST_JUMP = 2.0  # seconds that a clock is set forward at once; less is an adjustment


class MonotonicTime:
    """Time of day that never goes back: if the clock is set back, it continues from the latest time.

    Otherwise a wait until a time of day would last an hour longer if the clock is set back by an hour.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._now, self._at = clock.now(), clock.monotonic()
        self._jumped = 0.0

    def now(self) -> float:
        at, day = self._clock.monotonic(), self._clock.now()
        steady = self._now + at - self._at
        if day > steady + LEAST_JUMP:
            self._jumped += day - steady
        self._now, self._at = max(steady, day), at
        return self._now

    def take_jump(self) -> float:
        """Return the seconds by which the clock was set forward since the last call."""
        jumped, self._jumped = self._jumped, 0.0
        return jumped


FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799  # of the years 1 and 9999: what RFC 3339 can write


def rfc3339(seconds: float) -> str:
    """Format a metav1.Time: whole seconds, UTC.

    A time after the year 9999 becomes its last second, one before the year 1 its first.
    """
    return _whole(int(min(max(seconds, FIRST_SECOND), LAST_SECOND)))


@lru_cache(maxsize=64)  # a busy server writes the same second thousands of times
def _whole(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(seconds: float) -> str:
    """Format a metav1.MicroTime, always with six digits of a second."""
    whole = int(seconds // 1)
    micro = round((seconds - whole) * 1e6)
    if micro == 1_000_000:
        whole, micro = whole + 1, 0
    return f"{_whole(whole)[:-1]}.{micro:06d}Z"


def parse_rfc3339(text: str) -> float:
    """Return the seconds since the epoch of an RFC 3339 text; raises ValueError on anything else."""
    return datetime.fromisoformat(text).timestamp()


def parse_duration(text: str) -> float:
    """Return the seconds of a Go duration such as "15s" or "-1m30s"; raises ValueError on anything else."""
    bare = text.removeprefix("-")
    parts = _DURATION.findall(bare)
    if bare == "0":
        return 0.0
    if not parts or "".join(number + unit for number, unit in parts) != bare:
        raise ValueError(f"{text!r} is not a duration such as 15s or 1h30m")
    total = sum(float(number) * _UNIT_SECONDS[unit] for number, unit in parts)
    return -total if text.startswith("-") else total
