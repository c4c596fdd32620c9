"""Room on the disk that holds the data directory: an alarm before it is full, and a reserve for when it is.

Under the alarm nothing may grow; deletions, and writes that need no more room than what they replace, go on. The
reserve is a file of our own size that is given up when the disk is full to the last byte, so that deletions still work.
Nothing here knows about objects or requests.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

ALARM_BYTES = 64 << 20  # free on the disk; below it the alarm is on
RESERVE_BYTES = 8 << 20
CHECK_SECONDS = 1.0
AFTER_FAILURE = 5.0  # seconds that a write refused by the disk keeps the alarm on, whatever the disk says of itself


class Space:
    """Free space of the file system of one file. `check` may be called from any thread."""

    def __init__(
        self,
        path: Path,
        *,
        alarm_bytes: int = ALARM_BYTES,
        reserve_bytes: int = RESERVE_BYTES,
        free: Callable[[], int] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = path.parent
        self._reserve = Path(f"{path}.reserve")
        self._alarm_bytes, self._reserve_bytes = alarm_bytes, reserve_bytes
        self._ask = free or self._free
        self._monotonic = monotonic
        self._checked = self._failed = float("-inf")
        self._on = False
        self.free = 0  # bytes, when last looked at

    def alarm(self) -> str:
        """Return why nothing may grow, or an empty string. Looks at the disk at most once a second."""
        now = self._monotonic()
        if now - self._checked >= CHECK_SECONDS:
            self._checked = now
            self.free = self._ask()
            # Half as much again before it ends: an alarm must not flicker.
            self._on = self.free < self._alarm_bytes * (1.5 if self._on else 1)
        if now - self._failed < AFTER_FAILURE:
            return "the disk of the data directory refused a write"
        if self._on:
            return (
                f"{self.free >> 20} MiB are free on the disk of the data directory, less than {self._alarm_bytes >> 20}"
            )
        return ""

    def failed(self) -> bool:
        """Record that the disk refused a write and delete the reserve file.

        Return True if that made room, so that a retry is worth it.
        """
        self._failed = self._monotonic()
        try:
            self._reserve.unlink()
        except OSError:
            return False
        return True

    def prepare(self) -> None:
        """Create the reserve file if there is room for it."""
        try:
            if self._reserve_bytes <= 0 or self._reserve.exists() or self._ask() < self._alarm_bytes * 2:
                return
            fd = os.open(self._reserve, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return
        try:
            os.posix_fallocate(fd, 0, self._reserve_bytes)
        except OSError:
            with contextlib.suppress(OSError):
                self._reserve.unlink()
        finally:
            os.close(fd)

    def _free(self) -> int:
        try:
            disk = os.statvfs(self._directory)
        except OSError:
            return 0
        return disk.f_bavail * disk.f_frsize
