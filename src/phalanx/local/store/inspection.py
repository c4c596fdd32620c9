"""Check a store before it is opened for writing: does it exist, is it a Phalanx store, is it undamaged and complete.

Reads only, without changing a byte: SQLite cannot even checkpoint the WAL. Every problem is raised as a ConfigProblem
that says what to do; nothing is repaired here.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Generator
from pathlib import Path

from phalanx.base.errors import ConfigProblem
from phalanx.local.store import mark
from phalanx.local.store.mark import Marked, UnreadableMark
from phalanx.local.store.rows import APPLICATION_ID, FORMAT, StoredRow, StoreInUse, checksum, damaged, read_rows


class Inspection:
    """The metadata of a store, and its rows, once. After `let_go` only the metadata remains."""

    def __init__(self, path: Path, *, accept: bool) -> None:
        self.path = path
        self.revision = 0
        self.floor = 0
        self.rows = 0
        self.identity = ""
        self.format = 0  # 0: there is no store yet
        self._accept = accept
        self._mark_path = mark.path_of(path)
        self._wal = Path(f"{path}-wal")
        self._reader: sqlite3.Connection | None = None
        self._created: list[Path] = []  # files that the inspection created
        marked = self._read_mark()
        if not self._exists(marked):
            return
        self._created = [file for file in (self._wal, Path(f"{path}-shm")) if not file.exists()]
        try:
            self._reader = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=0)
            self._verify(marked)
        except sqlite3.DatabaseError as error:
            self.close_reader()
            raise explained(path, error, marked) from error
        except BaseException:
            self.close_reader()
            raise

    def _read_mark(self) -> Marked | None:
        try:
            return mark.read(self._mark_path)
        except UnreadableMark:
            if self._accept:
                return None
            raise damaged(
                self.path,
                f"{self._mark_path.name} cannot be read, so it is unknown whether acknowledged writes are missing. "
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

    def _verify(self, marked: Marked | None) -> None:
        assert self._reader is not None
        ask = self._reader.execute
        if ask("PRAGMA schema_version").fetchone()[0] == 0:
            if marked is not None and marked.revision > 0:
                raise damaged(self.path, f"it is empty, but it held revision {marked.revision} before")
            self.close_reader()  # an earlier start was interrupted before it wrote anything
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
                return  # no write was ever acknowledged
            raise damaged(
                self.path,
                f"{name} is missing, so it is unknown whether acknowledged writes are missing too. If this is an "
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

    def load(self) -> Generator[StoredRow, None, None]:
        """Yield every row in revision order, verified. Must be read to the end once, before the first append."""
        if self._reader is None:
            return
        count = last = 0
        cursor = self._reader.cursor()
        try:
            for row, known in read_rows(cursor, "ORDER BY rev"):
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

    def close_reader(self) -> None:
        """Close the file after the inspection and remove the files that the inspection created."""
        if self._reader is None:
            return
        self._reader.close()
        self._reader = None
        for file in self._created:
            with contextlib.suppress(OSError):
                if file.name.endswith("-shm") or file.stat().st_size == 0:
                    file.unlink()


def explained(path: Path, error: sqlite3.DatabaseError, marked: Marked | None) -> ConfigProblem:
    text = str(error)
    if isinstance(error, sqlite3.OperationalError):
        if "locked" in text:
            by = f" (pid {marked.pid})" if marked is not None and marked.pid else ""
            return StoreInUse(
                "--data",
                f"the store {path} is in use by another process{by}: stop that one first, "
                "or start with another --data directory",
            )
        if any(word in text for word in ("unable to open", "readonly", "full", "I/O")):
            return ConfigProblem(
                "--data", f"cannot use the store {path}: {text}. Check permissions, free space and health of the disk"
            )
    return damaged(path, text)
