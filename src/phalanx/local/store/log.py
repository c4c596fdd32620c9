"""The append-only log on disk: one SQLite file in WAL mode, one connection, no other access path.

Every change is a row; a row is deleted only when no reader can ask for it any more (`discard`). This file knows nothing
of asyncio or of the state in memory. It must never repair or drop data by itself: what does not add up is reported, and
nothing is opened for writing before everything has been read and found right, so a refused start alters no byte.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import zlib
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import NamedTuple

from phalanx.base.errors import ConfigProblem
from phalanx.local.store import mark
from phalanx.local.store.mark import Mark, Marked, UnreadableMark

APPLICATION_ID = 0x50484C58  # "PHLX" in the header of the file
FORMAT = 2  # see UPGRADES
CHECKPOINT_BYTES = 16 << 20  # of WAL; below it a checkpoint is not worth its syncs

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
_ABOUT = "CREATE TABLE about (store TEXT NOT NULL); INSERT INTO about VALUES ('%s');"
# What each format added to the one before; run in one transaction, after everything was verified.
UPGRADES = {2: _ABOUT}  # 2: the store has an identity, so that a mark or a backup of another one is told apart


class StoreInUse(ConfigProblem):
    """Another process has it."""


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
        f"the store {path} is damaged: {what}. Nothing was dropped. Restore a backup (`phalanx restore`), or put "
        f"{path.name}, {path.name}-wal and {path.name}.mark back together, or start with another --data directory; "
        "keep the damaged files",
    )


class Log:
    """Verify, read once, begin, then append. All methods belong to one thread at a time."""

    def __init__(self, path: Path, *, accept: bool = False) -> None:
        """`accept`: whoever calls answers for what is there; only `phalanx restore --as-is` does."""
        self.path = path
        self.revision = 0  # of the last durable change
        self.floor = 0  # every change above it is in the log together with what it superseded
        self.rows = 0
        self.identity = ""
        self.format = 0  # 0: there is no store yet
        self._accept = accept
        self._wal = Path(f"{path}-wal")
        self._mark_path = mark.path_of(path)
        self._mark: Mark | None = None
        self._connection: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._brought: list[Path] = []  # files that only looking made
        marked = self._marked()
        if self._exists(marked):
            self._brought = [file for file in (self._wal, Path(f"{path}-shm")) if not file.exists()]
            try:
                # Read only: SQLite can neither move the WAL into the file nor delete it.
                self._reader = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=0)
                self._verify(marked)
            except sqlite3.DatabaseError as error:
                self.abandon()
                raise self._explained(error, marked) from error
            except BaseException:
                self.abandon()
                raise

    # -- opening ------------------------------------------------------------------------------------------------

    def _marked(self) -> Marked | None:
        try:
            return mark.read(self._mark_path)
        except UnreadableMark:
            if self._accept:
                return None
            raise damaged(
                self.path,
                f"{self._mark_path.name} cannot be read, so nobody can tell whether acknowledged writes are missing. "
                "If you are sure that none are, accept the files with `phalanx restore --as-is`",
            ) from None

    def _exists(self, marked: Marked | None) -> bool:
        path = self.path
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            size = path.stat().st_size if path.exists() else -1
        except OSError as error:
            raise ConfigProblem("--data", f"cannot open the store {path}: {error.strerror or error}") from error
        if size <= 0 and marked is not None and marked.revision > 0:
            state = "missing" if size < 0 else "empty"
            raise damaged(path, f"it is {state}, but it held revision {marked.revision} before")
        return size > 0

    def _explained(self, error: sqlite3.DatabaseError, marked: Marked | None) -> ConfigProblem:
        text = str(error)
        if isinstance(error, sqlite3.OperationalError):
            if "locked" in text:
                by = f" (pid {marked.pid})" if marked is not None and marked.pid else ""
                return StoreInUse(
                    "--data",
                    f"the store {self.path} is in use by another process{by}: stop that one first, "
                    "or start with another --data directory",
                )
            if any(word in text for word in ("unable to open", "readonly", "full")):
                return ConfigProblem(
                    "--data", f"cannot use the store {self.path}: {text}. Check permissions and free space"
                )
        return damaged(self.path, text)

    def _verify(self, marked: Marked | None) -> None:
        assert self._reader is not None
        ask = self._reader.execute
        if ask("PRAGMA schema_version").fetchone()[0] == 0:
            if marked is not None and marked.revision > 0:
                raise damaged(self.path, f"it is empty, but it held revision {marked.revision} before")
            self._let_go()  # a start that was cut off before there was anything
            return
        if ask("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            raise ConfigProblem(
                "--data", f"{self.path} is not a Phalanx store: start with another --data directory or move the file"
            )
        self.format = ask("PRAGMA user_version").fetchone()[0]
        if self.format > FORMAT:
            raise ConfigProblem(
                "--data",
                f"the store {self.path} has format {self.format}, written by a newer Phalanx; this one reads up to "
                f"{FORMAT}. Install the newer version, or start with another --data directory",
            )
        verdict = ask("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise damaged(self.path, str(verdict))
        state = ask("SELECT revision, floor, rows FROM state").fetchone()
        if state is None:
            raise damaged(self.path, "its state record is missing")
        self.revision, self.floor, self.rows = state
        if self.format >= 2:
            about = ask("SELECT store FROM about").fetchone()
            if about is None:
                raise damaged(self.path, "its identity is missing")
            self.identity = about[0]
        if not self._accept:
            self._check_mark(marked)

    def _check_mark(self, marked: Marked | None) -> None:
        name = self._mark_path.name
        accept = "accept it with `phalanx restore --as-is`"
        if marked is None:
            if self.revision == 0:
                return  # nothing was ever acknowledged
            raise damaged(
                self.path,
                f"{name} is missing, so nobody can tell whether acknowledged writes are missing too. If this is an "
                f"older copy put back on purpose, {accept}",
            )
        if marked.store and self.identity and marked.store != self.identity:
            raise damaged(self.path, f"{name} belongs to another store. If this one was put here on purpose, {accept}")
        if self.revision < marked.revision:
            raise damaged(
                self.path,
                f"it ends at revision {self.revision}, but revision {marked.revision} was acknowledged "
                f"({self._wal.name} missing, truncated or damaged?). If this is an older copy put back on purpose, "
                f"{accept}",
            )

    def begin(self) -> None:
        """Open for writing: everything that was to be read has been, and it was right."""
        if self._connection is not None:
            return
        seen = (self.revision, self.floor, self.rows)
        self._let_go()
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
                raise sqlite3.OperationalError("database is locked")  # somebody wrote between looking and opening
            self._mark = Mark(self._mark_path, self.identity)
        except sqlite3.DatabaseError as error:
            self.abandon()
            raise self._explained(error, None) from error
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
                f"BEGIN;{_SCHEMA}{_ABOUT % self.identity}"
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

    def _let_go(self) -> None:
        """End of looking; what only looking made goes again."""
        if self._reader is None:
            return
        self._reader.close()
        self._reader = None
        for file in self._brought:
            with contextlib.suppress(OSError):
                if file.name.endswith("-shm") or file.stat().st_size == 0:
                    file.unlink()

    # -- reading ------------------------------------------------------------------------------------------------

    def load(self) -> Generator[Row, None, None]:
        """Every row in order of revision, each verified; to be read to the end once, before the first append."""
        if self._reader is None:
            return
        count = last = 0
        cursor = self._reader.cursor()
        try:
            for row, known in self._rows(cursor, "ORDER BY rev"):
                if checksum(row) != known:
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

    def _rows(self, cursor: sqlite3.Cursor, which: str) -> Generator[tuple[Row, int], None, None]:
        fields = "rev, resource, namespace, name, created, previous, deleted, value, checksum"
        for record in cursor.execute(f"SELECT {fields} FROM log {which}"):
            yield Row._make((*record[:6], bool(record[6]), record[7])), record[8]

    # -- writing ------------------------------------------------------------------------------------------------

    def commit(self, rows: Sequence[Row], discard: Sequence[int] = (), floor: int = 0) -> None:
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
        """This is the state at a revision, and nothing before it can be asked for."""
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
        for row, known in self._rows(self._open.cursor(), f"WHERE rev > {after} ORDER BY rev LIMIT {count}"):
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
        self._let_go()
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
        self._let_go()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._mark is not None:
            self._mark.close()
            self._mark = None
