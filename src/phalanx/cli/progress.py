"""Show the progress of operations that take longer than two seconds, on a terminal's standard error only."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

AFTER = 2.0  # seconds without output: most operations are done by then
_EVERY = 0.25
_SIGNS = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class Progress:
    """Show `done` of `total` in `unit`; without them the elapsed time."""

    def __init__(self, what: str, unit: str = "") -> None:
        self._what, self._unit = what, unit
        self._counted = ""
        self._started = time.monotonic()
        self._part: float | None = None
        self._over = threading.Event()
        self._drawing = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if sys.stderr.isatty():
            self._thread = threading.Thread(target=self._draw, daemon=True, name="progress")
            self._thread.start()

    def stop(self) -> None:
        """Stop and remove the line. It may be called again."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def say(self, line: str) -> None:
        """Print a line of the work itself on standard output; progress continues below it."""
        with self._drawing:
            if self._thread is not None:
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()
            sys.stdout.write(line)
            sys.stdout.flush()

    def notify(self, done: int, total: int) -> None:
        self._part = min(1.0, done / total) if total else None
        self._counted = f" {done:,} of {total:,} {self._unit}" if self._unit else ""

    def line(self, seconds: float, width: int = 24) -> str:
        sign = _SIGNS[int(seconds / _EVERY) % len(_SIGNS)]
        if self._part is None:
            return f"{sign} {self._what}, {_time(seconds)}"
        full = int(self._part * width)
        bar = f"{'█' * full}{'░' * (width - full)}"
        return f"{sign} {self._what}{self._counted} {bar} {self._part:.0%}, {_time(seconds)}"

    def _draw(self) -> None:
        if self._over.wait(AFTER):
            return
        while not self._over.is_set():
            with self._drawing:
                sys.stderr.write(f"\r\x1b[K{self.line(time.monotonic() - self._started)}")
                sys.stderr.flush()
            self._over.wait(_EVERY)
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{int(seconds // 60)} min {int(seconds % 60)} s"


@contextmanager
def progress(what: str, unit: str = "") -> Iterator[Callable[[int, int], None]]:
    """Yield a function to call with (done, total)."""
    shown = Progress(what, unit)
    shown.start()
    try:
        yield shown.notify
    finally:
        shown.stop()
