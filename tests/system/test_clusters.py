"""Clusters by name: several at once, in the background, found, stopped and forgotten by the commands of `phalanx`."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
import yaml

from phalanx.base.errors import ConfigProblem
from phalanx.serve.clusters import merge_kubeconfig, write_kubeconfig

OPTIONS = ("--no-controllers", "--nodes", "2")


class Commands:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.environment = {
            **os.environ,
            "XDG_STATE_HOME": str(home),
            "KUBECONFIG": str(home / "merged"),
            "HOME": str(home),
        }

    def __call__(self, *arguments: str, code: int = 0, without: Collection[str] = ()) -> str:
        """Run a command and return what it prints. `without`: environment variables that are not set."""
        done = subprocess.run(
            [sys.executable, "-m", "phalanx", *arguments],
            text=True,
            capture_output=True,
            timeout=90,
            check=False,
            env={name: value for name, value in self.environment.items() if name not in without},
            cwd=self.home,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def row(self, name: str) -> dict[str, object]:
        rows = json.loads(self("list", "-o", "json"))
        return next(row for row in rows if row["name"] == name)


@pytest.fixture
def phalanx(tmp_path: Path) -> Iterator[Commands]:
    commands = Commands(tmp_path)
    try:
        yield commands
    finally:
        for name in ("a", "b"):
            if (tmp_path / "phalanx" / "clusters" / name).exists():
                commands("down", name, "--delete")


def test_two_clusters_run_in_the_background_each_with_a_name(phalanx: Commands) -> None:
    assert phalanx("up", "--name", "a", "--detach", *OPTIONS).startswith("ready https://127.0.0.1:")
    phalanx("up", "--name", "b", "--detach", "--wait", "60", "--data", ":memory:", *OPTIONS)
    first, second = phalanx.row("a"), phalanx.row("b")
    assert first["state"] == second["state"] == "running" and first["url"] != second["url"]
    status = json.loads(phalanx("status", "a", "-o", "json"))
    assert (
        status["ready"] is True
        and str(status["dashboard"]).startswith("http://127.0.0.1:")
        and status["counts"]["nodes"] == 2
    )
    assert f"a runs already as process {first['pid']}" in phalanx("up", "--name", "a", code=2)

    phalanx("kubeconfig", "a", "--merge")
    phalanx("kubeconfig", "b", "--merge")
    merged = yaml.safe_load((phalanx.home / "merged").read_text())
    assert [context["name"] for context in merged["contexts"]] == ["phalanx-a", "phalanx-b"]
    assert merged["current-context"] == "phalanx-b"

    unnamed = phalanx("why", "job/train", code=2, without=("KUBECONFIG",))
    assert "running here: a, b; choose one with: --name a" in unnamed

    # Every command takes the name of a cluster, and answers programs as well.
    assert str(first["url"]) in phalanx("status", "--name", "a")
    assert str(first["url"]) in phalanx("status", "--context", "phalanx-a")
    assert str(second["url"]) in phalanx("kubeconfig", "--kubeconfig", str(second["kubeconfig"]))
    assert json.loads(phalanx("user", "list", "--context", "phalanx-a", "-o", "json")) == []
    assert json.loads(phalanx("top", "--name", "a", "-o", "json"))["queue"]["total"] == 0
    assert "there is no Job train" in phalanx("why", "job/train", "--name", "a", code=2)
    assert json.loads(phalanx("backup", "named.phalanx", "--name", "a", "-o", "json"))["objects"] > 2
    link = json.loads(phalanx("dashboard", "--name", "a", "-o", "json"))
    assert link["url"].startswith("http://127.0.0.1:")
    assert json.loads(phalanx("kubeconfig", "a", "-o", "json"))["kind"] == "Config"
    added = yaml.safe_load(phalanx("user", "add", "jane", "--name", "a", "-o", "yaml"))
    assert added["name"] == "jane" and Path(added["kubeconfig"]).exists()
    for target, why in (("none/jane", "there is no directory none"), (".", ". is a directory")):
        assert why in phalanx("user", "add", "joan", "--name", "a", "--out", target, code=2)
    known = json.loads(phalanx("user", "list", "--name", "a", "-o", "json"))
    assert [user["name"] for user in known] == ["jane"], "a user whose file cannot be written is not added"
    assert json.loads(phalanx("user", "remove", "jane", "--name", "a", "-o", "json"))["removed"] is True
    saved = json.loads(phalanx("backup", "a.phalanx", "--kubeconfig", str(first["kubeconfig"]), "-o", "json"))
    assert saved["objects"] > 2 and saved["bytes"] == (phalanx.home / "a.phalanx").stat().st_size
    made = yaml.safe_load(phalanx("restore", "a.phalanx", "--data", "again", "-o", "yaml"))
    assert made["objects"] == saved["objects"] and made["revision"] > saved["revision"]

    # The data directory of a cluster with a name is that cluster, as `status` prints it.
    here = ("--data", str(first["data"]))
    assert str(first["url"]) in phalanx("status", *here)
    assert "there is no Job train" in phalanx("why", "job/train", *here, code=2)
    assert json.loads(phalanx("user", "list", *here, "-o", "json")) == []
    assert json.loads(phalanx("backup", "by-data.phalanx", *here, "-o", "json"))["objects"] == saved["objects"]
    assert json.loads(phalanx("backup", "memory.phalanx", "--name", "b", "-o", "json"))["objects"] > 2

    assert phalanx("down", "a").startswith("a stopped")
    assert "phalanx up --name a" in phalanx("status", *here, code=1)
    assert phalanx.row("a")["state"] == "stopped"
    assert "phalanx up --name a" in phalanx("status", "a", code=1)
    assert phalanx.row("b")["state"] == "running"
    assert json.loads(phalanx("down", "--context", "phalanx-b", "-o", "json")) == {
        "name": "b",
        "ran": True,
        "deleted": False,
    }

    phalanx("up", "--name", "a", "--detach", "--no-controllers")
    status = json.loads(phalanx("status", "a", "-o", "json"))
    assert status["url"] == first["url"], "a cluster keeps its port, so that kubeconfigs stay true"
    assert status["counts"]["nodes"] == 2, "no nodes are added to a cluster that has some, unless asked for"


def test_a_start_that_fails_is_reported_with_its_log(phalanx: Commands) -> None:
    (phalanx.home / "bad.yaml").write_text("profiles: 7\n")
    said = phalanx("up", "--name", "a", "--detach", "--config", "bad.yaml", code=2)
    assert "bad.yaml" in said or "apiVersion" in said
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = phalanx("up", "--name", "a", "--detach", "--listen", f"127.0.0.1:{port}", code=2)
    assert f"127.0.0.1:{port}" in said and "its log is" in said


def test_what_cannot_be_a_cluster_is_refused(phalanx: Commands) -> None:
    assert "is no name" in phalanx("up", "--name", "../etc", code=2)
    assert "there is no cluster here" in phalanx("status", "b", code=2)
    assert "needs --name" in phalanx("up", "--detach", "--data", ":memory:", code=2)


def test_merging_keeps_what_others_wrote_and_never_touches_what_it_cannot_read(tmp_path: Path) -> None:
    own, into = tmp_path / "own", tmp_path / "into"
    write_kubeconfig(own, "https://127.0.0.1:1", None, "token", "phalanx-a")
    into.write_text(yaml.safe_dump({"kind": "Config", "contexts": [{"name": "work"}], "preferences": {"colors": True}}))
    assert merge_kubeconfig(own, into) == "phalanx-a"
    merged = yaml.safe_load(into.read_text())
    assert [context["name"] for context in merged["contexts"]] == ["work", "phalanx-a"]
    assert merged["preferences"] == {"colors": True}
    into.write_text("{")
    with pytest.raises(ConfigProblem, match="nothing was changed"):
        merge_kubeconfig(own, into)
    assert into.read_text() == "{"
