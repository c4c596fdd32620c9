"""Signs of life for whatever takes longer than two seconds: on a terminal's standard error, and only there."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

AFTER = 2.0  # seconds in which nothing is said: most things are done by then
_EVERY = 0.25
_SIGNS = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class Progress:
    """`done` of `total` may be told; without them the time that has passed is shown."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._started = time.monotonic()
        self._part: float | None = None
        self._over = threading.Event()
        self._drew = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if sys.stderr.isatty():
            self._thread = threading.Thread(target=self._run, daemon=True, name="progress")
            self._thread.start()

    def stop(self) -> None:
        """The line is gone afterwards; may be called again."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def tell(self, done: int, total: int) -> None:
        self._part = min(1.0, done / total) if total else None

    def line(self, seconds: float, width: int = 24) -> str:
        sign = _SIGNS[int(seconds / _EVERY) % len(_SIGNS)]
        if self._part is None:
            return f"{sign} {self._what}, {seconds:.0f} s"
        full = int(self._part * width)
        return f"{sign} {self._what} {'█' * full}{'░' * (width - full)} {self._part:.0%}, {seconds:.0f} s"

    def _run(self) -> None:
        if self._over.wait(AFTER):
            return
        while not self._over.is_set():
            sys.stderr.write(f"\r\x1b[K{self.line(time.monotonic() - self._started)}")
            sys.stderr.flush()
            self._over.wait(_EVERY)
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Yields the function that is told (done, total), as often as one likes."""
    shown = Progress(what)
    shown.start()
    try:
        yield shown.tell
    finally:
        shown.stop()
