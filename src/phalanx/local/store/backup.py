"""Backups: write a consistent snapshot of a store to one file, and create a store from such a file.

A snapshot contains the objects in memory at one revision, so taking it does not block commits. It is a store file
without history; every row is verified when it is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from phalanx.base.errors import ConfigProblem
from phalanx.local.store import mark
from phalanx.local.store.contract import Entry, Key
from phalanx.local.store.log import Log
from phalanx.local.store.mark import Mark
from phalanx.local.store.rows import StoredRow, StoreInUse

CHUNK = 2000  # rows per transaction
# Added to the revision of a restored store: no revision that clients know is used again (etcd's --bump-revision).
BUMP = 1_000_000_000


Notify = Callable[[int, int], None]


def _ignore_progress(done: int, total: int) -> None:
    """Ignore progress."""


def write_snapshot(path: Path, entries: Iterable[Entry], revision: int) -> None:
    """Write a file (mode 600) with these objects at this revision. Blocks; call it in a thread."""
    rows = (StoredRow(entry.revision, *entry.key, entry.created, 0, False, entry.value) for entry in entries)
    write_rows(path, sorted(rows), revision)


def read_snapshot(path: Path) -> tuple[list[StoredRow], int]:
    """Read and verify the objects of a snapshot; return them and their revision.

    The file may also be the store of a stopped server. Raises ConfigProblem if there is no file.
    """
    if not path.is_file():
        raise ConfigProblem("FILE", f"there is no backup {path}")
    log = Log(path, accept=True)
    try:
        live: dict[Key, StoredRow] = {}
        for row in log.load():
            key = (row.resource, row.namespace, row.name)
            if row.deleted:
                live.pop(key, None)
            else:
                live[key] = row._replace(previous=0)
        return sorted(live.values()), log.revision
    finally:
        log.close()


def restore(file: Path, store: Path, *, replace: bool = False, notify: Notify = _ignore_progress) -> tuple[int, int]:
    """Create `store` from a backup; return (objects, first revision). Existing files are renamed, not deleted."""
    rows, revision = read_snapshot(file)
    try:
        store.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as problem:
        why = problem.strerror or problem
        raise ConfigProblem("--data", f"cannot create {store.parent}: {why}; choose another with --data DIR") from None
    existing = [path for path in (store, Path(f"{store}-wal"), mark.path_of(store)) if path.exists()]
    if existing:
        if not replace:
            raise ConfigProblem(
                "--data", f"there is a store already ({store}): choose another directory, or say --replace"
            )
        try:
            Log(store, accept=True).close()
        except StoreInUse:
            raise
        except ConfigProblem:
            pass  # damaged: a good reason to restore
    revision += BUMP
    fresh = Path(f"{store}.restoring")
    write_rows(fresh, rows, revision, notify)
    identity = _identity(fresh)
    for path in existing:
        path.replace(f"{path}.before-restore")
    fresh.replace(store)
    _set_mark(store, identity, revision)
    return len(rows), revision


def accept(store: Path) -> tuple[int, int]:
    """Accept the files as they are: verify the rows, then write a new mark."""
    if not store.is_file():
        raise ConfigProblem("--data", f"there is no store {store}")
    rows, revision = read_snapshot(store)
    log = Log(store, accept=True)
    for _ in log.load():
        pass
    mark.path_of(store).unlink(missing_ok=True)
    log.begin()
    log.close()
    return len(rows), revision


def write_rows(path: Path, rows: list[StoredRow], revision: int, notify: Notify = _ignore_progress) -> None:
    """Replace the store at `path` by one with these rows at this revision.

    notify: called with the numbers of rows written and in total.
    """
    for leftover in (path, Path(f"{path}-wal"), mark.path_of(path)):
        leftover.unlink(missing_ok=True)
    log = Log(path)
    try:
        for start in range(0, len(rows), CHUNK):
            log.commit(rows[start : start + CHUNK])
            notify(min(start + CHUNK, len(rows)), len(rows))
        log.start_at(revision)
    finally:
        log.close()
        mark.path_of(path).unlink(missing_ok=True)


def _identity(path: Path) -> str:
    log = Log(path, accept=True)
    log.close()
    return log.identity


def _set_mark(store: Path, identity: str, revision: int) -> None:
    made = Mark(mark.path_of(store), identity)
    made.write(revision, pid=0)
    made.sync()
    made.close()
    directory = os.open(store.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
