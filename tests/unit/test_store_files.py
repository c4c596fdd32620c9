"""Damaged, foreign, newer and busy files are refused with words that help; a failing disk loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from phalanx.base.errors import ConfigProblem, ServiceUnavailable
from phalanx.local.store import Store, backup
from phalanx.local.store.contract import Key, RevisionMismatch
from phalanx.local.store.inspection import explained
from phalanx.local.store.log import Log
from phalanx.local.store.rows import APPLICATION_ID, FORMAT, StoredRow, checksum


def key(index: int) -> Key:
    return ("pods", "default", f"p{index}")


async def fill(path: Path, count: int = 40) -> None:
    store = Store.open(path)
    for index in range(count):
        await store.put(key(index), lambda revision: b"v%d-" % revision + b"x" * 3000)
    await store.close()


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    path = tmp_path / "store.db"
    asyncio.run(fill(path))
    return path


def refused(path: Path) -> str:
    with pytest.raises(ConfigProblem) as caught:
        Store.open(path)
    text = str(caught.value)
    assert str(path) in text and "--data" in text
    return text


def scribble(path: Path, offset: int, data: bytes = b"\xff" * 64) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def edit(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: scribble(path, 0),
        lambda path: scribble(path, 60_000),
        lambda path: path.write_bytes(path.read_bytes()[:50_000]),
        lambda path: path.write_bytes(path.read_bytes()[:100]),
        lambda path: path.write_bytes(b"not a database, but long enough to look like one" * 100),
        lambda path: edit(path, "UPDATE log SET value = zeroblob(3000) WHERE rev = 7"),
        lambda path: edit(path, "UPDATE log SET name = 'other' WHERE rev = 7"),
        lambda path: edit(path, "DELETE FROM log WHERE rev = 7"),
        lambda path: edit(path, "DELETE FROM log WHERE rev = 40"),
        lambda path: edit(path, "DELETE FROM state"),
        lambda path: path.write_bytes(b""),
        lambda path: path.unlink(),
    ],
    ids=["header", "page", "half", "stump", "garbage", "value", "key", "hole", "tail", "state", "empty", "missing"],
)
def test_damage_is_reported_every_time_and_nothing_is_dropped(filled: Path, damage: Callable[[Path], object]) -> None:
    damage(filled)
    before = filled.read_bytes() if filled.exists() else None
    for _ in range(2):
        text = refused(filled)
        assert "damaged" in text and "backup" in text
    assert (filled.read_bytes() if filled.exists() else None) == before


def test_every_single_damaged_block_is_noticed_or_harmless(filled: Path) -> None:
    good = filled.read_bytes()

    async def state() -> list[bytes]:
        store = Store.open(filled)
        values = [entry.value for entry in store.list("pods")]
        await store.close()
        return values

    expected = asyncio.run(state())
    good = filled.read_bytes()
    for offset in range(0, len(good), 4096 + 512):
        scribble(filled, offset + 100)
        with contextlib.suppress(ConfigProblem):
            assert asyncio.run(state()) == expected
        filled.write_bytes(good)


async def copy_in_flight(path: Path, copy: Path) -> None:
    """The files of a store that did not get to close: everything is still in the WAL."""
    store = Store.open(path)
    for index in range(20):
        await store.put(key(index), lambda revision: b"x" * 3000)
    copy.parent.mkdir()
    for suffix in ("", "-wal", ".mark"):
        shutil.copyfile(f"{path}{suffix}", f"{copy}{suffix}")
    await store.close()


@pytest.mark.parametrize("damage", ["truncated", "scribbled", "missing"])
def test_a_wal_that_lost_acknowledged_writes_is_reported(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "copy" / "store.db"
    asyncio.run(copy_in_flight(tmp_path / "store.db", path))
    wal = Path(f"{path}-wal")
    size = wal.stat().st_size
    if damage == "truncated":
        wal.write_bytes(wal.read_bytes()[: size // 2])
    elif damage == "scribbled":
        scribble(wal, size // 2)
    else:
        wal.unlink()
    evidence = wal.read_bytes() if wal.exists() else None
    for _ in range(2):
        text = refused(path)
        assert "revision 20 was acknowledged" in text and "store.db-wal" in text and "store.db.mark" in text
    assert evidence is None or wal.read_bytes() == evidence
    assert "phalanx restore --as-is" in text
    backup.accept(path)  # what the message offers to a user who put back an old copy

    async def accepted() -> int:
        store = Store.open(path)
        count = store.count
        await store.close()
        return count

    assert asyncio.run(accepted()) < 20


@pytest.mark.parametrize("mark", ["missing", "empty", "garbage", "half", "flipped"])
@pytest.mark.parametrize("wal", ["whole", "truncated", "missing"])
def test_without_a_mark_that_can_be_read_nothing_starts_and_nothing_is_touched(
    tmp_path: Path, mark: str, wal: str
) -> None:
    """Two kinds of damage at once: what the mark would have said about the WAL must not be taken for granted."""
    path = tmp_path / "copy" / "store.db"
    asyncio.run(copy_in_flight(tmp_path / "store.db", path))
    marked, log = Path(f"{path}.mark"), Path(f"{path}-wal")
    good = marked.read_bytes()
    if mark == "missing":
        marked.unlink()
    else:
        wrong = {"empty": b"", "garbage": b"\xff" * 64, "half": good[:20], "flipped": good.replace(b"20", b"02", 1)}
        marked.write_bytes(wrong[mark])
    if wal == "missing":
        edit(path, "PRAGMA wal_checkpoint(TRUNCATE)")
    elif wal == "truncated":
        log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    for _ in range(2):
        text = refused(path)
        assert "store.db.mark" in text and "phalanx restore --as-is" in text
        assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before
    count, revision = backup.accept(path)
    assert count == revision and (count == 20 or wal == "truncated")
    asyncio.run(fill(path, 1))


def test_the_mark_of_another_store_is_noticed(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        asyncio.run(fill(tmp_path / name / "store.db", 3 if name == "a" else 9))
    shutil.copyfile(tmp_path / "a" / "store.db.mark", tmp_path / "b" / "store.db.mark")
    assert "belongs to another store" in refused(tmp_path / "b" / "store.db")


def test_a_refused_start_alters_no_file(tmp_path: Path) -> None:
    path = tmp_path / "copy" / "store.db"
    asyncio.run(copy_in_flight(tmp_path / "store.db", path))
    wal = Path(f"{path}-wal")
    whole = wal.read_bytes()
    for damage in (whole[: len(whole) // 2], whole[:-5000] + b"\xff" * 5000, b""):
        wal.write_bytes(damage)
        before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
        refused(path)
        assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before
    wal.write_bytes(whole)
    store = Store.open(path)
    assert store.count == 20
    asyncio.run(store.close())


FORMAT_1 = """
CREATE TABLE log (rev INTEGER PRIMARY KEY, resource TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
  created INTEGER NOT NULL, previous INTEGER NOT NULL, deleted INTEGER NOT NULL, checksum INTEGER NOT NULL,
  value BLOB NOT NULL);
CREATE TABLE state (id INTEGER PRIMARY KEY CHECK (id = 0), revision INTEGER NOT NULL, floor INTEGER NOT NULL,
  rows INTEGER NOT NULL);
PRAGMA application_id=%d;
PRAGMA user_version=1;
"""


def test_a_directory_of_the_first_version_is_upgraded_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    old = sqlite3.connect(path)
    old.executescript(FORMAT_1 % APPLICATION_ID)
    rows = [StoredRow(i, "pods", "default", f"p{i}", i, 0, False, b"v%d" % i) for i in range(1, 8)]
    rows.append(StoredRow(8, "pods", "default", "p3", 3, 3, True, b"gone"))
    for row in rows:
        old.execute(
            "INSERT INTO log VALUES (?,?,?,?,?,?,?,?,?)", (*row[:6], int(row.deleted), checksum(row), row.value)
        )
    old.execute("INSERT INTO state VALUES (0, 8, 2, 8)")
    old.commit()
    old.execute("PRAGMA journal_mode=WAL")
    old.close()
    Path(f"{path}.mark").write_text(f"{'revision 8 pid 0':<63}\n")

    async def scenario() -> None:
        for life in range(2):
            store = Store.open(path)
            assert store.revision == 8 + life and store.oldest == 2
            assert {entry.key[2]: entry.value for entry in store.list("pods")} == {
                f"p{i}": b"v%d" % i for i in range(1, 8) if i != 3
            }
            changes = await anext(store.watch("pods", since=2))
            assert [change.revision for change in changes] == list(range(3, 9))
            await store.put(("nodes", "", "n"), lambda revision: b"{}")
            await store.close()

    asyncio.run(scenario())
    log = Log(path)
    assert log.format == FORMAT == 2 and len(log.identity) == 16
    log.close()
    assert f"store {log.identity}" in Path(f"{path}.mark").read_text()


def test_a_wal_with_an_unfinished_tail_opens_with_everything_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "copy" / "store.db"
    asyncio.run(copy_in_flight(tmp_path / "store.db", path))
    with Path(f"{path}-wal").open("ab") as wal:
        wal.write(b"\x01" * 5000)

    async def reopened() -> tuple[int, int]:
        store = Store.open(path)
        result = store.count, store.revision
        await store.close()
        return result

    assert asyncio.run(reopened()) == (20, 20)


def test_a_newer_format_is_left_alone(filled: Path) -> None:
    edit(filled, "PRAGMA user_version = 99")
    assert "newer" in refused(filled)


def test_the_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    edit(tmp_path / "other.db", "CREATE TABLE t (x)")
    assert "not a Phalanx store" in refused(tmp_path / "other.db")


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert "cannot open" in refused(tmp_path / "file" / "store.db")


@pytest.mark.parametrize("error", ["disk I/O error", "database or disk is full"])
def test_a_disk_that_cannot_be_used_is_not_called_damage(tmp_path: Path, error: str) -> None:
    text = str(explained(tmp_path / "store.db", sqlite3.OperationalError(error), None))
    assert f"{error}. Check permissions, free space" in text and "damaged" not in text


def test_files_are_private(filled: Path) -> None:
    assert filled.stat().st_mode & 0o077 == 0


HOLD = """
import sys
from phalanx.local.store import Store, backup
store = Store.open(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


def test_a_second_process_is_refused_and_the_first_goes_on(filled: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(filled)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        text = refused(filled)
        assert "in use by another process" in text and f"pid {holder.pid}" in text
        holder.communicate("")
    asyncio.run(fill(filled, 1))  # free again


def test_a_full_disk_fails_the_writes_it_hits_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "store.db"

    async def scenario() -> None:
        store = Store.open(path)
        log: Log = store._commits.log  # type: ignore[union-attr]
        before = await store.put(key(0), lambda revision: b"kept")
        watcher = store.watch("pods")
        log.limit_pages(log.page_count() + 1)
        outcomes = await asyncio.gather(
            *(store.put(key(i), lambda revision: b"x" * 5000) for i in range(50)), return_exceptions=True
        )
        failed = [outcome for outcome in outcomes if isinstance(outcome, ServiceUnavailable)]
        assert len(failed) == 50
        assert "was not stored" in failed[0].message and "full" in failed[0].message and "--data" in failed[0].message
        assert store.latest(key(0)) == store.get(key(0)) == before
        assert store.latest(key(1)) is None and len(store.list("pods")) == 1
        log.limit_pages(1 << 30)
        after = await store.put(key(1), lambda revision: b"again", expect=0)
        assert after.revision > 51, "revisions must not go backwards"
        assert [change.entry for change in await anext(watcher)] == [after]
        assert watcher.progress == store.revision == after.revision
        await store.close()
        store = Store.open(path)
        assert list(store.list("pods")) == [before, after]
        assert [change.revision for change in await anext(store.watch("pods", since=before.revision))] == [
            after.revision
        ]
        await store.close()

    asyncio.run(scenario())


def test_writes_that_built_upon_a_failed_one_fail_with_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = Store.open(tmp_path / "store.db")
        log: Log = store._commits.log  # type: ignore[union-attr]
        await store.put(key(0), lambda revision: b"kept")
        log.limit_pages(log.page_count())
        big = asyncio.create_task(store.put(key(0), lambda revision: b"x" * 50_000))
        await asyncio.sleep(0)
        outcomes = []
        while not big.done():  # small ones would fit; they follow on a state that never came to be
            current = store.latest(key(0))
            assert current is not None
            if current.revision == 1:
                break
            outcomes.append(asyncio.create_task(store.put(key(0), lambda revision: b"small", current.revision)))
            await asyncio.sleep(0)
        results = await asyncio.gather(big, *outcomes, return_exceptions=True)
        assert isinstance(results[0], ServiceUnavailable)
        assert all(isinstance(result, ServiceUnavailable | RevisionMismatch) for result in results)
        entry = store.get(key(0))
        assert entry is not None and entry.value == b"kept" and store.latest(key(0)) == entry
        await store.close()

    asyncio.run(scenario())


FAILING_DISK = """
import asyncio, resource, sys
from pathlib import Path
from phalanx.base.errors import ServiceUnavailable
from phalanx.local.store import Store, backup

def limit(size):
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))

async def main(path):
    store = Store.open(path)
    kept = {}
    for round in range(20):
        # Cut off at every kind of place: inside a page, inside a frame header, between frames.
        limit(Path(f"{path}-wal").stat().st_size + 1000 * round + 7)
        names = [f"p{round}-{i}" for i in range(8)]
        results = await asyncio.gather(
            *(store.put(("pods", "ns", name), lambda revision: b"x" * 3000) for name in names), return_exceptions=True)
        for name, result in zip(names, results):
            if isinstance(result, ServiceUnavailable):
                assert store.latest(("pods", "ns", name)) is None
            else:
                kept[name] = result.revision
        limit(resource.RLIM_INFINITY)
        entry = await store.put(("pods", "ns", f"ok{round}"), lambda revision: b"y" * 3000)
        kept[f"ok{round}"] = entry.revision
    assert len(kept) < 20 * 9, "the limit never hit"
    assert {e.key[2]: e.revision for e in store.list("pods")} == kept
    if sys.argv[2] == "close":
        await store.close()
    else:
        import os
        for name, revision in kept.items():
            print(name, revision, flush=True)
        os._exit(9)
    store = Store.open(path)
    assert {e.key[2]: e.revision for e in store.list("pods")} == kept
    await store.close()

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.parametrize("end", ["close", "crash"])
def test_a_disk_that_fails_in_the_middle_of_a_write_loses_nothing_acknowledged(tmp_path: Path, end: str) -> None:
    path = tmp_path / "store.db"
    outcome = subprocess.run(
        [sys.executable, "-c", FAILING_DISK, str(path), end], capture_output=True, text=True, timeout=60, check=False
    )
    assert outcome.returncode == (0 if end == "close" else 9), outcome.stderr
    if end == "crash":

        async def reopened() -> dict[str, int]:
            store = Store.open(path)
            found = {entry.key[2]: entry.revision for entry in store.list("pods")}
            await store.close()
            return found

        kept = {name: int(revision) for name, revision in (line.split() for line in outcome.stdout.splitlines())}
        assert asyncio.run(reopened()) == kept
