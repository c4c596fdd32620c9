"""The disk of a simulated API server: real files in memory, commits on the event loop, and trouble by seed.

A crash keeps exactly what was committed, perhaps with a torn piece of what came next behind it. A disk that lied about
a sync gives back files of an earlier moment: the store must refuse to start on them.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from phalanx.local.store.commits import COMPACT_IDLE, CommitThread, Outcome
from phalanx.local.store.log import Log
from phalanx.local.store.rows import Row
from phalanx.local.store.space import Space

FILES = ("store.db", "store.db-wal", "store.db.mark")
TORN = 4096  # bytes at most of a write that a crash cut off


class Disk:
    def __init__(self, rng: random.Random) -> None:
        memory = "/dev/shm"
        self._root = Path(tempfile.mkdtemp(prefix="phalanx-simulation-", dir=memory if os.path.isdir(memory) else None))
        self._rng = rng
        self._number = 0
        self._earlier: Path | None = None
        self.full = False
        self.failing = 0.0  # how likely a commit fails with an input/output error
        self.delay = 0.001  # seconds of a commit, on average
        self.folder = self._new()

    @property
    def path(self) -> Path:
        return self.folder / "store.db"

    def commits(self, log: Log, report: Callable[[Outcome], None]) -> CommitThread:
        return _Commits(log, report, disk=self)

    def space(self, monotonic: Callable[[], float]) -> Space:
        return Space(self.path, reserve_bytes=0, free=lambda: 0 if self.full else 1 << 40, monotonic=monotonic)

    def before_commit(self, rows: Sequence[Row]) -> None:
        """Raises what SQLite raises."""
        if self.full and rows:
            raise sqlite3.OperationalError("database or disk is full")
        if self.failing and self._rng.random() < self.failing:
            raise sqlite3.OperationalError("disk I/O error")

    def latency(self) -> float:
        return self._rng.expovariate(1 / self.delay)

    def remember(self) -> None:
        """What a disk that lies about syncs may later give back."""
        self._earlier = self._copy(self.folder)

    def crash(self) -> None:
        """Power is back: the files as they were committed, with a torn write behind them now and then."""
        self.folder = self._copy(self.folder)
        wal = self.folder / "store.db-wal"
        if wal.exists() and self._rng.random() < 0.5:
            with wal.open("ab") as file:
                file.write(self._rng.randbytes(self._rng.randrange(1, TORN)))

    def lie(self) -> Path | None:
        """Files of an earlier moment beside the mark of now, or None where nothing was remembered."""
        if self._earlier is None:
            return None
        old = self._copy(self._earlier)
        shutil.copyfile(self.folder / "store.db.mark", old / "store.db.mark")
        return old

    def remove(self) -> None:
        shutil.rmtree(self._root, ignore_errors=True)

    def _copy(self, source: Path) -> Path:
        folder = self._new()
        for name in FILES:
            if (source / name).exists():
                shutil.copyfile(source / name, folder / name)
        return folder

    def _new(self) -> Path:
        self._number += 1
        folder = self._root / str(self._number)
        folder.mkdir()
        return folder


class _Commits(CommitThread):
    """The commit thread's duties without the thread: a batch is what came while the last one was being written."""

    def __init__(self, log: Log, report: Callable[[Outcome], None], disk: Disk) -> None:
        super().__init__(log, report)
        self.disk = disk
        self._due: asyncio.TimerHandle | None = None
        self.started = self.dead = False
        commit = log.commit

        def checked(rows: Sequence[Row], discard: Sequence[int] = (), floor: int = 0) -> None:
            disk.before_commit(rows)
            commit(rows, discard, floor)

        log.commit = checked  # type: ignore[method-assign]

    def start(self) -> None:
        self.started = True

    def submit(self, epoch: int, row: Row) -> None:
        self._queue.append((epoch, row))
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(self.disk.latency(), self._turn)

    def discard(self, floor: int, revisions: tuple[int, ...]) -> None:
        super().discard(floor, revisions)
        if self.started and not self.dead and len(self._discards) > 2 * COMPACT_IDLE:
            self._compact()

    def _turn(self) -> None:
        self._due = None
        if self.dead:
            return
        batch, self._queue = self._queue, []
        if batch:
            self._commit(batch)

    def kill(self) -> None:
        """The process died: what is queued was never written."""
        self.dead = True
        self.log.abandon()

    def stop(self) -> None:
        if not self.dead:
            self._turn()
            self.log.close()
