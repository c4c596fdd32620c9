"""The append-only log on disk: one SQLite file in WAL mode, with one connection as the only access path.

Every change is a row; a row is deleted only when no reader can request it any more (`discard`). This module does not
know asyncio or the state in memory. It never repairs or drops data: problems are reported, and the file is opened for
writing only after everything was read and verified (`inspection`), so a refused start changes no byte.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
from collections.abc import Generator, Sequence
from pathlib import Path

from phalanx.base.errors import ConfigProblem
from phalanx.local.store import mark
from phalanx.local.store.inspection import Inspection, explained
from phalanx.local.store.mark import Mark
from phalanx.local.store.rows import (
    ABOUT,
    APPLICATION_ID,
    FORMAT,
    SCHEMA,
    UPGRADES,
    StoredRow,
    checksum,
    damaged,
    read_rows,
)

CHECKPOINT_BYTES = 16 << 20  # size of the WAL from which a checkpoint is made


class Log:
    """Verify, load once, begin, then append. All methods must be called by one thread at a time."""

    def __init__(self, path: Path, *, accept: bool = False) -> None:
        """accept: open the files even if their mark does not match; only for backup and restore."""
        self.path = path
        self._wal = Path(f"{path}-wal")
        self._mark: Mark | None = None
        self._connection: sqlite3.Connection | None = None
        self._found = found = Inspection(path, accept=accept)
        self.revision = found.revision  # of the last durable change
        self.floor = found.floor  # all changes after it are in the log, with the rows that they superseded
        self.rows = found.rows
        self.identity = found.identity
        self.format = found.format  # 0: there is no store yet

    def load(self) -> Generator[StoredRow, None, None]:
        """Yield every row in revision order, verified. Must be read to the end once, before the first append."""
        return self._found.load()

    def begin(self) -> None:
        """Open the file for writing, after everything was read and verified."""
        if self._connection is not None:
            return
        seen = (self.revision, self.floor, self.rows)
        self._found.close_reader()
        try:
            if not self.path.exists():
                # Mode 600 because of Secrets; the WAL gets the mode of the main file. Never open an existing file:
                # closing any descriptor of it would drop the locks that another store in this process holds.
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._connection = sqlite3.connect(
                self.path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=32
            )
            self._prepare(self._connection)
            now = self._connection.execute("SELECT revision, floor, rows FROM state").fetchone()
            if tuple(now) != seen:  # another process wrote between the inspection and the opening
                raise sqlite3.OperationalError("database is locked")
            self._mark = Mark(mark.path_of(self.path), self.identity)
        except sqlite3.DatabaseError as error:
            self.abandon()
            raise explained(self.path, error, None) from error
        except OSError as error:
            self.abandon()
            raise ConfigProblem("--data", f"cannot open the store {self.path}: {error.strerror or error}") from error
        except BaseException:
            self.abandon()
            raise
        self._mark.write(self.revision)
        self._mark.sync()
        self._sync_directory()

    def _prepare(self, connection: sqlite3.Connection) -> None:
        # Exclusive: SQLite itself refuses a second process, and the WAL index stays in memory.
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")
        if self.format == 0:
            self.identity = secrets.token_hex(8)
            for pragma in ("page_size=8192", "auto_vacuum=INCREMENTAL"):
                connection.execute(f"PRAGMA {pragma}")
            connection.executescript(
                f"BEGIN;{SCHEMA}{ABOUT % self.identity}"
                f"PRAGMA application_id={APPLICATION_ID};PRAGMA user_version={FORMAT};COMMIT;"
            )
            self._sync_directory()  # the directory entry must survive a power loss too
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA wal_autocheckpoint=0")
        connection.execute("PRAGMA cache_size=-8192")
        if 0 < self.format < FORMAT:
            self.identity = self.identity or secrets.token_hex(8)
            steps = "".join(UPGRADES[version] for version in range(self.format + 1, FORMAT + 1)) % self.identity
            connection.executescript(f"BEGIN IMMEDIATE;{steps}PRAGMA user_version={FORMAT};COMMIT;")
        self.format = FORMAT

    def _sync_directory(self) -> None:
        directory = os.open(self.path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    # -- writing ------------------------------------------------------------------------------------------------

    def commit(self, rows: Sequence[StoredRow], discard: Sequence[int] = (), floor: int = 0) -> None:
        """Append rows and delete discarded ones in one durable transaction; if it raises, nothing changed."""
        self.begin()
        connection = self._open
        execute = connection.execute
        revision = rows[-1].revision if rows else self.revision
        floor = max(self.floor, floor)
        try:
            execute("BEGIN IMMEDIATE")
            if rows:
                connection.executemany(
                    "INSERT INTO log VALUES (?,?,?,?,?,?,?,?,?)",
                    [(*row[:6], int(row.deleted), checksum(row), row.value) for row in rows],
                )
            gone = 0
            if discard:
                gone = connection.executemany("DELETE FROM log WHERE rev=?", [(r,) for r in discard]).rowcount
            count = self.rows + len(rows) - gone
            execute("UPDATE state SET revision=?, floor=?, rows=?", (revision, floor, count))
            execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                execute("ROLLBACK")
            raise
        self.revision, self.floor, self.rows = revision, floor, count
        assert self._mark is not None
        self._mark.write(revision)

    @property
    def _open(self) -> sqlite3.Connection:
        assert self._connection is not None, "not open for writing"
        return self._connection

    def start_at(self, revision: int) -> None:
        """Set the current revision and forget the history before it."""
        self.begin()
        self._open.execute("UPDATE state SET revision=?, floor=?", (revision, revision))
        self.revision = self.floor = revision

    def checkpoint_if_large(self) -> bool:
        """Checkpoint a large WAL and free some unused pages; return True if done. Failures are retried later."""
        try:
            if self._wal.stat().st_size < CHECKPOINT_BYTES:
                return False
            free = self._open.execute("PRAGMA freelist_count").fetchone()[0]
            pages = self._open.execute("PRAGMA page_count").fetchone()[0]
            if free > 256 and free * 2 > pages:
                self._vacuum(min(free // 4, 256))
            self.checkpoint()
        except (sqlite3.Error, OSError):
            return False
        return True

    def shrink(self) -> None:
        """Return unused pages to a disk that is nearly full, at most 8 MiB. Failures are retried later."""
        try:
            for _ in range(8):  # steps of 1 MiB, because each needs as much in the WAL
                if self._open.execute("PRAGMA freelist_count").fetchone()[0] <= 256:
                    return
                self._vacuum(128)
                self.checkpoint()
        except (sqlite3.Error, OSError):
            return

    def _vacuum(self, pages: int) -> None:
        """Return unused pages of the file. `execute` would end after the first of them, as if it were a result."""
        self._open.executescript(f"PRAGMA incremental_vacuum({pages})")

    def checkpoint(self) -> None:
        self._open.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def limit_pages(self, pages: int) -> int:
        """Limit the size of the file, as a full disk would (0: only read the limit); return the current limit."""
        limit: int = self._open.execute(f"PRAGMA max_page_count{f'={pages}' if pages else ''}").fetchone()[0]
        return limit

    def page_count(self) -> int:
        pages: int = self._open.execute("PRAGMA page_count").fetchone()[0]
        return pages

    def verify(self, after: int, count: int) -> int | None:
        """Verify the checksums of up to `count` rows after a revision; few, because commits wait.

        Return the last verified revision, or None when all rows are verified and none is missing.
        """
        last = None
        for row, known in read_rows(self._open.cursor(), f"WHERE rev > {after} ORDER BY rev LIMIT {count}"):
            if checksum(row) != known:
                raise damaged(self.path, f"the record of revision {row.revision} fails its checksum")
            last = row.revision
        if last is not None:
            return last
        found = self._open.execute("SELECT count(*) FROM log").fetchone()[0]
        if found != self.rows:
            raise damaged(self.path, f"it holds {found} records, but should hold {self.rows}")
        return None

    def close(self) -> None:
        self._found.close_reader()
        if self._connection is not None:
            # If the checkpoint fails, the WAL keeps the data.
            with contextlib.suppress(sqlite3.Error):
                self.checkpoint()
            self._connection.close()
            self._connection = None
        if self._mark is not None:
            self._mark.write(self.revision, pid=0)
            self._mark.close()
            self._mark = None

    def abandon(self) -> None:
        """Close after an error, leaving the files as they are."""
        self._found.close_reader()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._mark is not None:
            self._mark.close()
            self._mark = None
