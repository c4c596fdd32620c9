"""The rows of the log, on disk and in memory, and the messages about a damaged file."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple

from phalanx.base.errors import ConfigProblem

APPLICATION_ID = 0x50484C58  # "PHLX" in the header of the file
FORMAT = 2  # see UPGRADES

SCHEMA = """
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
ABOUT = "CREATE TABLE about (store TEXT NOT NULL); INSERT INTO about VALUES ('%s');"
# What each format added; applied in one transaction after the file was verified.
UPGRADES = {2: ABOUT}  # 2: the store has an identity, so that a mark or a backup of another store is recognised


class StoreInUse(ConfigProblem):
    """Another process has the store open."""


class StoredRow(NamedTuple):
    revision: int
    resource: str
    namespace: str
    name: str
    created: int
    previous: int  # revision that this one supersedes; 0: creation
    deleted: bool
    value: bytes


def checksum(row: StoredRow) -> int:
    head = "\0".join(map(str, row[:6])) + ("-" if row.deleted else "+")
    return zlib.crc32(row.value, zlib.crc32(head.encode()))


def damaged(path: Path, what: str) -> ConfigProblem:
    return ConfigProblem(
        "--data",
        f"the store {path} is damaged: {what}. Nothing was dropped. Restore a backup (`phalanx restore`), or put "
        f"{path.name}, {path.name}-wal and {path.name}.mark back together, or start with another --data directory; "
        "keep the damaged files",
    )


def read_rows(cursor: sqlite3.Cursor, which: str) -> Generator[tuple[StoredRow, int], None, None]:
    """Read rows with their checksums. `which` is SQL from this package, never user input."""
    fields = "rev, resource, namespace, name, created, previous, deleted, value, checksum"
    for record in cursor.execute(f"SELECT {fields} FROM log {which}"):
        yield StoredRow._make((*record[:6], bool(record[6]), record[7])), record[8]
