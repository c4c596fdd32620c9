"""Backups while serving, restores, and the file that is read again while the server runs."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from phalanx.base.errors import ConfigProblem
from phalanx.cli.backup import backup as backup_command
from phalanx.cli.backup import restore as restore_command
from phalanx.local.store import Store, backup
from phalanx.local.store.contract import Compacted
from phalanx.local.store.log import Log
from phalanx.local.store.rows import StoreInUse
from support.local_cluster import LocalCluster

ALONE = {"run_nodes": False, "run_controllers": False, "run_scheduler": False}
CONFIGS = "/api/v1/namespaces/default/configmaps"


def run(command: click.Command, *args: str) -> str:
    return CliRunner().invoke(command, args, catch_exceptions=False, standalone_mode=False).output


def test_a_backup_is_one_state_however_much_is_written_meanwhile(
    start_cluster: Callable[..., LocalCluster], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    server = start_cluster(data=data, **ALONE)
    shutil.copyfile(server.kubeconfig, data / "kubeconfig")
    for name in ("left", "right"):
        server.create(CONFIGS, {"metadata": {"name": name}, "data": {"n": "0"}})
    stop = threading.Event()
    acknowledged = [0]

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            for name in ("left", "right"):  # right never runs ahead
                server.patch(f"{CONFIGS}/{name}", {"data": {"n": str(number)}})
            acknowledged[0] = number

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for i in range(3):
            known = acknowledged[0]
            said = run(backup_command, "--kubeconfig", str(server.kubeconfig), str(tmp_path / f"b{i}"))
            assert "objects at revision" in said
            rows, revision = backup.read_snapshot(tmp_path / f"b{i}")
            state = {row.name: row.value for row in rows if row.resource == "configmaps"}
            left, right = (int(state[name].split(b'"n":"')[1].split(b'"')[0]) for name in ("left", "right"))
            assert left - right in (0, 1) and right >= known, "not one state, or without what was acknowledged before"
            assert revision >= max(row.revision for row in rows)
    finally:
        stop.set()
        writer.join()
    assert stat.S_IMODE((tmp_path / "b0").stat().st_mode) == 0o600
    with pytest.raises(ConfigProblem, match="exists already"):
        run(backup_command, "--kubeconfig", str(server.kubeconfig), str(tmp_path / "b0"))
    assert server.ask("GET", "/phalanx/v1/backup", token="wrong").code == 401
    assert "objects" in run(backup_command, "--data", str(data), str(tmp_path / "b9"))  # it runs: asked, not read
    with pytest.raises(StoreInUse):
        run(restore_command, str(tmp_path / "b9"), "--data", str(data), "--replace")


async def fill(path: Path, count: int) -> None:
    store = Store.open(path)
    for index in range(count):
        await store.put(("pods", "ns", f"p{index}"), lambda revision: b"v%d" % revision)
    await store.delete(("pods", "ns", "p0"), lambda revision: b"gone")
    await store.close()


def test_a_restored_store_has_every_object_and_only_new_revisions(tmp_path: Path) -> None:
    data, again = tmp_path / "data", tmp_path / "again"
    asyncio.run(fill(data / "store.db", 50))
    file = tmp_path / "monday"
    assert "49 objects at revision 51" in run(backup_command, "--data", str(data), str(file))
    assert "49 objects" in run(restore_command, str(file), "--data", str(again))

    async def scenario() -> None:
        store = Store.open(again / "store.db")
        assert {e.key[2]: e.value for e in store.list("pods")} == {f"p{i}": b"v%d" % (i + 1) for i in range(1, 50)}
        assert store.revision > 1_000_000 and store.oldest == store.revision
        with pytest.raises(Compacted):
            store.watch("pods", since=51)
        entry = await store.put(("pods", "ns", "new"), lambda revision: b"{}")
        assert entry.revision == store.oldest + 1
        await store.close()

    asyncio.run(scenario())
    with pytest.raises(ConfigProblem, match="--replace"):
        run(restore_command, str(file), "--data", str(again))
    run(restore_command, str(file), "--data", str(again), "--replace")
    assert (again / "store.db.before-restore").exists()
    store = Store.open(again / "store.db")
    assert store.count == 49
    asyncio.run(store.close())


def test_a_damaged_backup_is_refused_and_nothing_is_replaced(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "monday"
    asyncio.run(fill(data / "store.db", 50))
    run(backup_command, "--data", str(data), str(file))
    before = (data / "store.db").read_bytes()
    connection = sqlite3.connect(file)
    connection.execute("UPDATE log SET value = x'00' WHERE rev = 9")
    connection.commit()
    connection.close()
    with pytest.raises(ConfigProblem, match="fails its checksum"):
        run(restore_command, str(file), "--data", str(data), "--replace")
    assert (data / "store.db").read_bytes() == before
    for wrong in ((), (str(file), "--as-is"), (str(tmp_path / "none"),)):
        with pytest.raises(ConfigProblem):
            run(restore_command, *wrong, "--data", str(data))


def test_the_file_is_read_again_while_the_store_is_open(tmp_path: Path) -> None:
    path = tmp_path / "store.db"

    async def scenario() -> None:
        store = Store.open(path)
        commits = store._commits
        assert commits is not None
        for index in range(500):
            await store.put(("pods", "ns", f"p{index}"), lambda revision: b"x" * 300)
        done = threading.Event()
        verify = Log.verify

        def counted(self: Log, after: int, count: int) -> int | None:
            found = None
            try:
                if spoil.is_set():  # what a bad sector does behind the back of the store
                    self._open.execute("UPDATE log SET value = x'00' WHERE rev = 77")
                found = verify(self, after, count)
            finally:
                if found is None:
                    done.set()
            return found

        spoil = threading.Event()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Log, "verify", counted)
            commits.verify_seconds, commits._verify_at = 0.01, 1e-9
            await store.put(("pods", "ns", "p1"), lambda revision: b"now")
            assert await asyncio.to_thread(done.wait, 30)
            await store.put(("pods", "ns", "p1"), lambda revision: b"then")
            assert store.integrity() == "" and store.verified > 0
            spoil.set()
            for _ in range(3):  # the reading under way may be past it
                done.clear()
                assert await asyncio.to_thread(done.wait, 30)
        assert "damaged" in store.integrity()
        await store.close()

    asyncio.run(scenario())
    with pytest.raises(ConfigProblem, match="revision 77"):
        Store.open(path)
