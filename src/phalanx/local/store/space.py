"""Free space on the disk of the data directory: an alarm before it is full, and a reserve file for when it is.

During the alarm, writes that need more space are refused; deletions and writes that need no more space than they
replace are allowed. The reserve file is deleted when the disk is completely full, so that deletions still work.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

ALARM_BYTES = 64 << 20  # free space below which the alarm is on
RESERVE_BYTES = 8 << 20  # size of the reserve file
CHECK_SECONDS = 1.0  # between two checks of the disk
AFTER_FAILURE = 5.0  # seconds of alarm after a write that the disk refused


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
        self._free_bytes = free or self._free
        self._monotonic = monotonic
        self._checked = self._failed = float("-inf")
        self._alarm_on = False
        self.free = 0  # bytes, at the last check

    def alarm(self) -> str:
        """Return why writes that need more space are refused, or "". Checks the disk at most once a second."""
        now = self._monotonic()
        if now - self._checked >= CHECK_SECONDS:
            self._checked = now
            self.free = self._free_bytes()
            # Ends at 1.5 times the limit, so that the alarm does not flicker.
            self._alarm_on = self.free < self._alarm_bytes * (1.5 if self._alarm_on else 1)
        if now - self._failed < AFTER_FAILURE:
            return "the disk of the data directory refused a write"
        if self._alarm_on and not self._directory.is_dir():
            return f"the data directory {self._directory} is gone"
        if self._alarm_on:
            return (
                f"{self.free >> 20} MiB are free on the disk of the data directory, less than {self._alarm_bytes >> 20}"
            )
        return ""

    def failed(self) -> bool:
        """Record that the disk refused a write and delete the reserve file; return True if a retry may succeed."""
        self._failed = self._monotonic()
        try:
            self._reserve.unlink()
        except OSError:
            return False
        return True

    def prepare(self) -> None:
        """Create the reserve file if there is enough space."""
        try:
            if self._reserve_bytes <= 0 or self._reserve.exists() or self._free_bytes() < self._alarm_bytes * 2:
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
