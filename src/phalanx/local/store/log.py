"""The append-only log on disk: one SQLite file in WAL mode, one connection, no other access path.

Every change is a row; a row is deleted only when no reader can ask for it any more (`discard`). This file knows nothing
of asyncio or of the state in memory. It must never repair or drop data by itself: what does not add up is reported.

Next to the file lies a mark (`FILE.mark`) with the last revision that was acknowledged. It is written after the commit
is on the disk, without a sync of its own, so it can lag behind but never run ahead: a log that knows less than its mark
has lost acknowledged writes (a missing, truncated or damaged WAL looks like a clean, older database to SQLite).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import zlib
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import NamedTuple

from phalanx.base.errors import ConfigProblem

APPLICATION_ID = 0x50484C58  # "PHLX" in the header of the file
FORMAT = 1
CHECKPOINT_BYTES = 16 << 20  # of WAL; below it a checkpoint is not worth its syncs
MARK_BYTES = 64

_SCHEMA = """
CREATE TABLE log (
  rev INTEGER PRIMARY KEY,
  resource TEXT NOT NULL,
  namespace TEXT NOT NULL,
  name TEXT NOT NULL,
  created INTEGER NOT NULL,
  previous INTEGER NOT NULL,
  deleted INTEGER NOT NULL,
  checksum INTEGER NOT NULL,
  value BLOB NOT NULL
);
CREATE TABLE state (id INTEGER PRIMARY KEY CHECK (id = 0), revision INTEGER NOT NULL, floor INTEGER NOT NULL,
                    rows INTEGER NOT NULL);
INSERT INTO state VALUES (0, 0, 0, 0);
"""


class Row(NamedTuple):
    revision: int
    resource: str
    namespace: str
    name: str
    created: int
    previous: int  # revision that this one supersedes, 0 for a creation
    deleted: bool
    value: bytes


def checksum(row: Row) -> int:
    head = "\0".join(map(str, row[:6])) + ("-" if row.deleted else "+")
    return zlib.crc32(row.value, zlib.crc32(head.encode()))


def damaged(path: Path, what: str) -> ConfigProblem:
    return ConfigProblem(
        "--data",
        f"the store {path} is damaged: {what}. Nothing was dropped. Restore {path.name}, {path.name}-wal and "
        f"{path.name}.mark from a backup, or start with another --data directory, and keep the damaged files",
    )


class Log:
    """Open, verify, read once, then append. All methods belong to one thread at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.revision = 0  # of the last durable change
        self.floor = 0  # every change above it is in the log together with what it superseded
        self.rows = 0
        self._wal = Path(f"{path}-wal")
        self._mark_path = Path(f"{path}.mark")
        marked, holder = _read_mark(self._mark_path)
        self._connection = self._connect(marked)
        try:
            self._prepare(marked, holder)
            self._mark_fd = os.open(self._mark_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except BaseException:
            self._abandon()
            raise
        self._write_mark()

    # -- opening ------------------------------------------------------------------------------------------------

    def _connect(self, marked: int) -> sqlite3.Connection:
        path = self.path
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            size = path.stat().st_size if path.exists() else -1
            if size <= 0 and marked > 0:
                state = "missing" if size < 0 else "empty"
                raise damaged(path, f"it is {state}, but it held revision {marked} before")
            if size < 0:
                # Secrets live here: the WAL takes its mode from the main file. Never touch a file that exists:
                # closing any descriptor of it would drop the locks another store of this process holds.
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise ConfigProblem("--data", f"cannot open the store {path}: {error.strerror or error}") from error
        return sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=32)

    def _prepare(self, marked: int, holder: int) -> None:
        try:
            # Exclusive: a second process is refused by SQLite itself, and the WAL index stays on the heap.
            self._connection.execute("PRAGMA locking_mode=EXCLUSIVE")
            fresh = self._connection.execute("PRAGMA schema_version").fetchone()[0] == 0
            if fresh:
                self._create()
            else:
                self._check_header()
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=FULL")
            self._connection.execute("PRAGMA wal_autocheckpoint=0")
            self._connection.execute("PRAGMA cache_size=-8192")
            if not fresh:
                self._check_content(marked)
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                by = f" (pid {holder})" if holder else ""
                raise ConfigProblem(
                    "--data",
                    f"the store {self.path} is in use by another process{by}: stop that one first, "
                    "or start with another --data directory",
                ) from error
            if any(word in str(error) for word in ("unable to open", "readonly", "full")):
                raise ConfigProblem(
                    "--data", f"cannot use the store {self.path}: {error}. Check permissions and free space"
                ) from error
            raise damaged(self.path, str(error)) from error
        except sqlite3.DatabaseError as error:
            raise damaged(self.path, str(error)) from error

    def _create(self) -> None:
        for pragma in ("page_size=8192", "auto_vacuum=INCREMENTAL"):
            self._connection.execute(f"PRAGMA {pragma}")
        self._connection.executescript(
            f"BEGIN;{_SCHEMA}PRAGMA application_id={APPLICATION_ID};PRAGMA user_version={FORMAT};COMMIT;"
        )
        directory = os.open(self.path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(directory)  # the new name must survive a power cut as well as its content
        finally:
            os.close(directory)

    def _check_header(self) -> None:
        application = self._connection.execute("PRAGMA application_id").fetchone()[0]
        if application != APPLICATION_ID:
            raise ConfigProblem(
                "--data", f"{self.path} is not a Phalanx store: start with another --data directory or move the file"
            )
        version = self._connection.execute("PRAGMA user_version").fetchone()[0]
        if version > FORMAT:
            raise ConfigProblem(
                "--data",
                f"the store {self.path} has format {version}, written by a newer Phalanx; this one reads up to "
                f"{FORMAT}. Install the newer version, or start with another --data directory",
            )

    def _check_content(self, marked: int) -> None:
        verdict = self._connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise damaged(self.path, str(verdict))
        state = self._connection.execute("SELECT revision, floor, rows FROM state").fetchone()
        if state is None:
            raise damaged(self.path, "its state record is missing")
        self.revision, self.floor, self.rows = state
        if self.revision < marked:
            raise damaged(
                self.path,
                f"it ends at revision {self.revision}, but revision {marked} was acknowledged "
                f"({self._wal.name} missing, truncated or damaged?). If this is an older backup put back on purpose, "
                f"delete {self._mark_path.name} to accept it",
            )

    # -- reading ------------------------------------------------------------------------------------------------

    def load(self) -> Generator[Row, None, None]:
        """Every row in order of revision, each verified; to be read to the end once, before the first append."""
        count = last = 0
        cursor = self._connection.cursor()
        try:
            cursor.execute(
                "SELECT rev, resource, namespace, name, created, previous, deleted, value, checksum "
                "FROM log ORDER BY rev"
            )
            for record in cursor:
                row = Row._make((*record[:6], bool(record[6]), record[7]))
                if checksum(row) != record[8]:
                    where = f"{row.resource} {row.namespace}/{row.name}"
                    raise damaged(self.path, f"the record of revision {row.revision} ({where}) fails its checksum")
                count, last = count + 1, row.revision
                yield row
        except sqlite3.DatabaseError as error:
            raise damaged(self.path, str(error)) from error
        finally:
            cursor.close()  # an open statement would keep the file locked after `abandon`
        if count != self.rows or last > self.revision:
            raise damaged(
                self.path,
                f"it holds {count} records up to revision {last}, but should hold {self.rows} up to {self.revision}",
            )

    # -- writing ------------------------------------------------------------------------------------------------

    def commit(self, rows: Sequence[Row], discard: Sequence[int] = (), floor: int = 0) -> None:
        """Append rows and drop discarded ones in one durable transaction; if it raises, nothing happened."""
        execute = self._connection.execute
        revision = rows[-1].revision if rows else self.revision
        floor = max(self.floor, floor)
        try:
            execute("BEGIN IMMEDIATE")
            if rows:
                self._connection.executemany(
                    "INSERT INTO log VALUES (?,?,?,?,?,?,?,?,?)",
                    [(*row[:6], int(row.deleted), checksum(row), row.value) for row in rows],
                )
            gone = 0
            if discard:
                gone = self._connection.executemany("DELETE FROM log WHERE rev=?", [(r,) for r in discard]).rowcount
            count = self.rows + len(rows) - gone
            execute("UPDATE state SET revision=?, floor=?, rows=?", (revision, floor, count))
            execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                execute("ROLLBACK")
            raise
        self.revision, self.floor, self.rows = revision, floor, count
        self._write_mark()

    def tidy(self) -> bool:
        """Move a large WAL into the file and give free pages back, a few at a time; what fails is tried again.

        Whether something was done.
        """
        try:
            if self._wal.stat().st_size < CHECKPOINT_BYTES:
                return False
            free = self._connection.execute("PRAGMA freelist_count").fetchone()[0]
            pages = self._connection.execute("PRAGMA page_count").fetchone()[0]
            if free > 256 and free * 2 > pages:
                self._connection.execute(f"PRAGMA incremental_vacuum({min(free // 4, 1024)})").fetchall()
            self.checkpoint()
        except (sqlite3.Error, OSError):
            return False
        return True

    def checkpoint(self) -> None:
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def limit_pages(self, pages: int) -> int:
        """Cap the file like a full disk would (0: only ask); returns the cap in force."""
        limit: int = self._connection.execute(f"PRAGMA max_page_count{f'={pages}' if pages else ''}").fetchone()[0]
        return limit

    def page_count(self) -> int:
        pages: int = self._connection.execute("PRAGMA page_count").fetchone()[0]
        return pages

    def _write_mark(self, pid: int | None = None) -> None:
        text = f"revision {self.revision} pid {os.getpid() if pid is None else pid}"
        # A mark that lags only notices less; the write itself is durable and must not be reported as failed.
        with contextlib.suppress(OSError):
            os.pwrite(self._mark_fd, f"{text:<{MARK_BYTES - 1}}\n".encode(), 0)

    def close(self) -> None:
        # If the checkpoint fails, the WAL keeps what it could not move.
        with contextlib.suppress(sqlite3.Error):
            self.checkpoint()
        self._connection.close()
        self._write_mark(pid=0)
        os.close(self._mark_fd)

    def abandon(self) -> None:
        """Close after damage was found, leaving the files as they were."""
        self._abandon()
        os.close(self._mark_fd)

    def _abandon(self) -> None:
        # Closing makes SQLite delete the WAL, also one whose damaged tail it could not read: keep it as evidence.
        # Putting it back is safe, for replaying the same frames once more changes nothing.
        kept = Path(f"{self._wal}.kept")
        with contextlib.suppress(OSError):
            shutil.copyfile(self._wal, kept)
        self._connection.close()
        with contextlib.suppress(OSError):
            kept.replace(self._wal)


def _read_mark(path: Path) -> tuple[int, int]:
    """(revision, pid) of the mark; (0, 0) when there is none or a power cut left it unreadable."""
    try:
        words = path.read_text(errors="replace").split()
        return int(words[1]), int(words[3])
    except (OSError, ValueError, IndexError):
        return 0, 0
