"""The disk of a simulated API server: real files in memory, commits on the event loop, and faults by seed.

A crash keeps exactly what was committed as the files were at that moment, the write-ahead log included. The commit in
progress may be there in part, garbage may follow the last commit, or a page that was being checkpointed from the log
into the file may be torn. A disk that lied about a sync gives back files of an earlier moment: the store must refuse to
start on them.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from phalanx.local.store.commits import COMPACT_IDLE, CommitOutcome, CommitThread
from phalanx.local.store.log import Log
from phalanx.local.store.rows import StoredRow
from phalanx.local.store.space import Space

FILES = ("store.db", "store.db-wal", "store.db.mark")
PARTIAL = 4096  # bytes at most of a write that a crash cut off
WAL_HEAD, FRAME_HEAD = 32, 24  # bytes, as SQLite writes them


class Disk:
    def __init__(self, rng: random.Random) -> None:
        memory = "/dev/shm"
        self._root = Path(tempfile.mkdtemp(prefix="phalanx-simulation-", dir=memory if os.path.isdir(memory) else None))
        self._rng = rng
        self._number = 0
        self._earlier: Path | None = None
        self._cut: Path | None = None  # the files at the moment of a crash
        self._under_way: list[StoredRow] = []  # what the commit that was cut off had in it
        self.torn: Counter[str] = Counter()  # what crashes left behind
        self.full = False
        self.failing = 0.0  # how likely a commit fails with an input/output error
        self.delay = 0.001  # seconds of a commit, on average
        self.folder = self._new()

    @property
    def path(self) -> Path:
        return self.folder / "store.db"

    def commits(self, log: Log, report: Callable[[CommitOutcome], None]) -> CommitThread:
        self._cut = None
        return _Commits(log, report, disk=self)

    def space(self, monotonic: Callable[[], float]) -> Space:
        return Space(self.path, reserve_bytes=0, free=lambda: 0 if self.full else 1 << 40, monotonic=monotonic)

    def before_commit(self, rows: Sequence[StoredRow]) -> None:
        """Raise the errors that SQLite raises."""
        if self.full and rows:
            raise sqlite3.OperationalError("database or disk is full")
        if self.failing and self._rng.random() < self.failing:
            raise sqlite3.OperationalError("disk I/O error")

    def latency(self) -> float:
        return self._rng.expovariate(1 / self.delay)

    def remember(self) -> None:
        """Copy the files that a disk which lies about syncs may later give back."""
        self._earlier = self._copy(self.folder)

    def cut_off(self, under_way: list[StoredRow]) -> None:
        """Cut the power: later writes are lost."""
        self._cut, self._under_way = self._copy(self.folder), under_way

    def crash(self) -> None:
        """Restore the files as committed, sometimes with the partial writes that a crash leaves."""
        self.folder, self._cut = self._copy(self._cut or self.folder), None
        wal = self.folder / "store.db-wal"
        if not wal.exists() or wal.stat().st_size < WAL_HEAD:
            return
        if self._under_way and self._rng.random() < 0.5 and self._write_short(wal):
            self.torn["short write"] += 1
        elif self._rng.random() < 0.5:
            self.torn["torn tail"] += 1
            with wal.open("ab") as file:
                file.write(self._rng.randbytes(self._rng.randrange(1, PARTIAL)))
        if self._rng.random() < 0.5 and self._tear_page(wal):
            self.torn["torn page"] += 1

    def _write_short(self, wal: Path) -> bool:
        """Write the commit in progress as SQLite does, truncated somewhere, or whole but unacknowledged."""
        there, scratch = wal.read_bytes(), self._copy(self.folder)
        log = Log(scratch / "store.db")
        try:
            log.commit(self._under_way)
            after = (scratch / "store.db-wal").read_bytes()
        finally:
            log.abandon()
        if not after.startswith(there) or len(after) == len(there):
            return False
        wal.write_bytes(
            after if self._rng.random() < 0.25 else after[: self._rng.randrange(len(there) + 1, len(after))]
        )
        return True

    def _tear_page(self, wal: Path) -> bool:
        """Tear a page that a checkpoint was copying from the log into the file."""
        data = wal.read_bytes()
        size = int.from_bytes(data[8:12], "big")
        salt = data[16:24]
        pages: dict[int, bytes] = {}  # of commits that are whole
        pending: dict[int, bytes] = {}
        for start in range(WAL_HEAD, len(data) - FRAME_HEAD - size + 1, FRAME_HEAD + size):
            head = data[start : start + FRAME_HEAD]
            if head[8:16] != salt:
                break
            pending[int.from_bytes(head[:4], "big")] = data[start + FRAME_HEAD : start + FRAME_HEAD + size]
            if int.from_bytes(head[4:8], "big"):
                pages |= pending
                pending = {}
        if not pages:
            return False
        number = self._rng.choice(sorted(pages))
        with self.path.open("r+b") as file:
            file.seek((number - 1) * size)
            file.write(pages[number][: self._rng.randrange(1, size)])
        return True

    def lie(self) -> Path | None:
        """Return files of an earlier moment with the current mark, or None where nothing was remembered."""
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
    """Does the work of the commit thread without a thread: a batch is what arrived during the last commit."""

    def __init__(self, log: Log, report: Callable[[CommitOutcome], None], disk: Disk) -> None:
        super().__init__(log, report)
        self.disk = disk
        self._due: asyncio.TimerHandle | None = None
        self.started = self.dead = False
        commit = log.commit

        def checked(rows: Sequence[StoredRow], discard: Sequence[int] = (), floor: int = 0) -> None:
            disk.before_commit(rows)
            commit(rows, discard, floor)

        log.commit = checked  # type: ignore[method-assign]

    def start(self) -> None:
        self.started = True

    def submit(self, epoch: int, row: StoredRow) -> None:
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
        """Kill the process: queued writes were never acknowledged, and SQLite's cleanup at close is discarded."""
        self.dead = True
        self.disk.cut_off([row for _, row in self._queue])
        self.log.abandon()

    def stop(self) -> None:
        if not self.dead:
            self._turn()
            self.log.close()
