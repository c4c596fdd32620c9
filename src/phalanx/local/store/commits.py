"""The commit thread: makes all queued writes durable in one transaction and reports the outcome.

Writes that arrive during a commit form the next batch, so many clients share the cost of one sync. The thread never
touches the state in memory; it passes outcomes to `report`, in order.
"""

from __future__ import annotations

import ctypes
import logging
import sqlite3
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import msgspec

from phalanx.base.errors import ConfigProblem
from phalanx.local.store.log import Log
from phalanx.local.store.rows import StoredRow
from phalanx.local.store.space import Space

log = logging.getLogger("phalanx.store")

COMPACT_STEP = 512  # superseded rows per transaction: keeps each commit short
VERIFY_SECONDS = 600.0  # from the end of one verification of the whole file to the next
VERIFY_ROWS = 200  # per slice: a commit may have to wait for a slice, a few milliseconds
VERIFY_PAUSE = 0.05  # seconds between slices
COMPACT_IDLE = 256  # superseded rows that justify a transaction while there are no writes


class CommitOutcome(msgspec.Struct):
    """The outcome of the oldest `count` writes; error None: durable."""

    count: int
    error: Exception | None = None


class _Discard(msgspec.Struct):
    floor: int
    revisions: tuple[int, ...]


@dataclass(slots=True)
class CommitThread:
    log: Log
    report: Callable[[CommitOutcome], None]  # called in the thread
    space: Space | None = None
    verify_seconds: float = VERIFY_SECONDS
    integrity: str = ""  # damage that verification found; never cleared
    verified: float = 0.0  # time of day when the last complete verification found no damage
    _verify_at: float = 0.0  # monotonic time of the next slice; 0: not scheduled yet
    _verify_after: int = 0  # revision after which the next slice begins
    _queue: list[tuple[int, StoredRow]] = field(default_factory=list)
    _discards: deque[_Discard] = field(default_factory=deque)
    _wake: threading.Condition = field(default_factory=threading.Condition)
    _stopping: bool = False
    _compact_due: bool = False
    _failed_epoch: int = -1
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._write_batches, name="phalanx-store", daemon=True)
        self._thread.start()

    def submit(self, epoch: int, row: StoredRow) -> None:
        """Queue a write. If one write of an epoch fails, all later ones fail too, because they may depend on it."""
        with self._wake:
            self._queue.append((epoch, row))
            if len(self._queue) == 1:
                self._wake.notify()

    def discard(self, floor: int, revisions: tuple[int, ...]) -> None:
        """Queue unreachable rows for removal; changes up to `floor` can no longer be replayed."""
        self._discards.append(_Discard(floor, revisions))
        if len(self._discards) == COMPACT_IDLE:
            with self._wake:
                self._wake.notify()

    def compact(self) -> None:
        """Remove unreachable rows now instead of with the next writes."""
        with self._wake:
            self._compact_due = True
            self._wake.notify()

    def stop(self) -> None:
        """Commit what is queued, compact, close the log. Blocks."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()

    def _write_batches(self) -> None:
        while True:
            with self._wake:
                while not (self._queue or self._stopping or self._worth_compacting() or self._verify_due()):
                    self._wake.wait(max(0.0, self._verify_at - time.monotonic()) + 0.001)
                self._compact_due = False
                batch, self._queue = self._queue, []
                stopping = self._stopping and not batch
            if batch:
                self._commit(batch)
                if self.log.checkpoint_if_large() and self.space is not None:
                    self.space.prepare()
                if self.space is not None and self.space.alarm():
                    self.log.shrink()
                self._verify()
            elif self._verify_due() and not stopping:
                self._verify()
            elif not self._compact() and not stopping:
                # The disk is full: wait for the next write instead of retrying in a loop.
                with self._wake:
                    while not self._queue and not self._stopping:
                        self._wake.wait()
            if stopping:
                self.log.close()
                return

    def _verify_due(self) -> bool:
        if self._verify_at == 0.0:
            self._verify_at = time.monotonic() + self.verify_seconds
        return time.monotonic() >= self._verify_at

    def _verify(self) -> None:
        """Read the next rows of the file again, to detect damage before the data is needed."""
        if not self._verify_due():
            return
        try:
            after = self.log.verify(self._verify_after, VERIFY_ROWS)
        except (sqlite3.Error, OSError, ConfigProblem) as problem:
            if not self.integrity:
                log.error("%s", problem)
            self.integrity = "the file of the store is damaged: see the server's log, and make a backup now"
            after = None
        else:
            if after is None:
                self.verified = time.time()
        self._verify_after = after or 0
        self._verify_at = time.monotonic() + (self.verify_seconds if after is None else VERIFY_PAUSE)

    def _worth_compacting(self) -> bool:
        return len(self._discards) >= COMPACT_IDLE or (self._compact_due and bool(self._discards))

    def _commit(self, batch: list[tuple[int, StoredRow]]) -> None:
        good = [row for epoch, row in batch if epoch > self._failed_epoch]
        lost = len(batch) - len(good)  # always the oldest ones, because epochs only increase
        if lost:
            self.report(CommitOutcome(lost, OSError("an earlier write that this one depends on failed")))
        if not good:
            return
        taken, discard, floor = self._next_discards(2 * len(good) + 16)
        try:
            self._store(good, discard, floor)
        except (sqlite3.Error, OSError) as error:
            self._discards.extendleft(reversed(taken))
            self._failed_epoch = batch[-1][0]
            self.report(CommitOutcome(len(good), error))
        else:
            self.report(CommitOutcome(len(good)))

    def _store(self, rows: list[StoredRow], discard: list[int], floor: int) -> None:
        try:
            self.log.commit(rows, discard, floor)
        except (sqlite3.Error, OSError):
            if self.space is None or not self.space.failed():
                raise
            self.log.commit(rows, discard, floor)  # retry with the space of the deleted reserve file

    def _compact(self) -> bool:
        while self._discards and not self._queue:
            taken, discard, floor = self._next_discards(COMPACT_STEP)
            try:
                self.log.commit((), discard, floor)
            except (sqlite3.Error, OSError):
                self._discards.extendleft(reversed(taken))
                return False
        return True

    def _next_discards(self, limit: int) -> tuple[list[_Discard], list[int], int]:
        taken: list[_Discard] = []
        revisions: list[int] = []
        while self._discards and len(revisions) < limit:
            item = self._discards.popleft()
            taken.append(item)
            revisions.extend(item.revisions)
        return taken, revisions, taken[-1].floor if taken else 0


# The C library keeps freed memory for later use; after a long history is dropped, that is most of the process.

TRIM_BYTES = 8 << 20  # freed bytes above which the heap is trimmed


@cache
def _library() -> Any:
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "malloc_trim") else None  # glibc only


def trim_heap() -> None:
    """Return free memory of the heap to the operating system. Takes milliseconds: call it in a thread."""
    library = _library()
    if library is not None:
        library.malloc_trim(0)
