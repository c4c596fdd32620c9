"""The append-only log on disk: one SQLite file in WAL mode, one connection, no other access path.

Every change is a row; a row is deleted only when no reader can ask for it any more (`discard`). This file knows nothing
of asyncio or of the state in memory. It must never repair or drop data by itself: what does not add up is reported, and
nothing is opened for writing before everything has been read and found right (`inspection`), so a refused start alters
no byte.
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

CHECKPOINT_BYTES = 16 << 20  # of WAL; below it a checkpoint is not worth its syncs


class Log:
    """Verify, read once, begin, then append. All methods belong to one thread at a time."""

    def __init__(self, path: Path, *, accept: bool = False) -> None:
        """`accept`: take the files as they are, even if their mark says otherwise; only for backup and restore."""
        self.path = path
        self._wal = Path(f"{path}-wal")
        self._mark: Mark | None = None
        self._connection: sqlite3.Connection | None = None
        self._found = found = Inspection(path, accept=accept)
        self.revision = found.revision  # of the last durable change
        self.floor = found.floor  # every change above it is in the log together with what it superseded
        self.rows = found.rows
        self.identity = found.identity
        self.format = found.format  # 0: there is no store yet

    def load(self) -> Generator[StoredRow, None, None]:
        """Yield every row in order of revision, each verified.

        It must be read to the end once, before the first append.
        """
        return self._found.load()

    def begin(self) -> None:
        """Open the file for writing, after everything was read and found right."""
        if self._connection is not None:
            return
        seen = (self.revision, self.floor, self.rows)
        self._found.let_go()
        try:
            if not self.path.exists():
                # Secrets live here: the WAL takes its mode from the main file. Never touch a file that exists:
                # closing any descriptor of it would drop the locks another store of this process holds.
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._connection = sqlite3.connect(
                self.path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=32
            )
            self._prepare(self._connection)
            now = self._connection.execute("SELECT revision, floor, rows FROM state").fetchone()
            if tuple(now) != seen:
                raise sqlite3.OperationalError(
                    "database is locked"
                )  # another process wrote between the check and the opening
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
        # Exclusive: a second process is refused by SQLite itself, and the WAL index stays on the heap.
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")
        if self.format == 0:
            self.identity = secrets.token_hex(8)
            for pragma in ("page_size=8192", "auto_vacuum=INCREMENTAL"):
                connection.execute(f"PRAGMA {pragma}")
            connection.executescript(
                f"BEGIN;{SCHEMA}{ABOUT % self.identity}"
                f"PRAGMA application_id={APPLICATION_ID};PRAGMA user_version={FORMAT};COMMIT;"
            )
            self._sync_directory()  # the new name must survive a power cut as well as its content
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
        """Append rows and drop discarded ones in one durable transaction; if it raises, nothing happened."""
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

    def settle(self, revision: int) -> None:
        """Set the current revision; no revision before it can be asked for."""
        self.begin()
        self._open.execute("UPDATE state SET revision=?, floor=?", (revision, revision))
        self.revision = self.floor = revision

    def tidy(self) -> bool:
        """Move a large WAL into the file and give free pages back, a few at a time; what fails is tried again.

        Whether something was done.
        """
        try:
            if self._wal.stat().st_size < CHECKPOINT_BYTES:
                return False
            free = self._open.execute("PRAGMA freelist_count").fetchone()[0]
            pages = self._open.execute("PRAGMA page_count").fetchone()[0]
            if free > 256 and free * 2 > pages:
                self._open.execute(f"PRAGMA incremental_vacuum({min(free // 4, 1024)})").fetchall()
            self.checkpoint()
        except (sqlite3.Error, OSError):
            return False
        return True

    def checkpoint(self) -> None:
        self._open.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def limit_pages(self, pages: int) -> int:
        """Cap the file like a full disk would (0: only ask); returns the cap in force."""
        limit: int = self._open.execute(f"PRAGMA max_page_count{f'={pages}' if pages else ''}").fetchone()[0]
        return limit

    def page_count(self) -> int:
        pages: int = self._open.execute("PRAGMA page_count").fetchone()[0]
        return pages

    def verify(self, after: int, count: int) -> int | None:
        """Read some rows behind a revision again and hold them against their checksums, while others wait little.

        Returns where to go on; None: everything has been read, and as many rows are there as should be.
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
        self._found.let_go()
        if self._connection is not None:
            # If the checkpoint fails, the WAL keeps what it could not move.
            with contextlib.suppress(sqlite3.Error):
                self.checkpoint()
            self._connection.close()
            self._connection = None
        if self._mark is not None:
            self._mark.write(self.revision, pid=0)
            self._mark.close()
            self._mark = None

    def abandon(self) -> None:
        """Close after something was found wrong, leaving the files as they are."""
        self._found.let_go()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._mark is not None:
            self._mark.close()
            self._mark = None
