"""Connecting: what a kubeconfig means, and what users read when it is wrong."""

from __future__ import annotations

import asyncio
import stat
import sys
from pathlib import Path

import pytest
import yaml

from phalanx.base.errors import ConfigProblem
from phalanx.kube.config import in_cluster, load
from support.manual_clock import ManualClock

HTTPS = "https://127.0.0.1:1"


def write(tmp_path: Path, user: dict | None = None, cluster: dict | None = None, **top: object) -> Path:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "one",
        "contexts": [
            {"name": "one", "context": {"cluster": "c", "user": "u", "namespace": "team"}},
            {"name": "two", "context": {"cluster": "other", "user": "u"}},
        ],
        "clusters": [
            {"name": "c", "cluster": cluster or {"server": "http://127.0.0.1:1/"}},
            {"name": "other", "cluster": {"server": "http://127.0.0.1:2"}},
        ],
        "users": [{"name": "u", "user": user or {"token": "t"}}],
        **top,
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


def test_current_context_decides(tmp_path: Path) -> None:
    connection = load(write(tmp_path))
    assert (connection.server, connection.namespace, connection.token) == ("http://127.0.0.1:1", "team", "t")


def test_a_context_can_be_named(tmp_path: Path) -> None:
    connection = load(write(tmp_path), "two")
    assert (connection.server, connection.cluster) == ("http://127.0.0.1:2", "other")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"current-context": "nope"}, "no entry named 'nope'"),
        ({"current-context": ""}, "name a context"),
        ({"clusters": []}, "no entry named 'c'"),
        ({"clusters": {"c": {}}}, "no entry named 'c'"),
        ({"clusters": [{"name": "c", "cluster": "http://127.0.0.1:1"}]}, "of 'c' is no mapping"),
        ({"cluster": {"server": HTTPS, "certificate-authority-data": "AAAA"}}, "of https://127.0.0.1:1 is no PEM"),
        ({"cluster": {"server": HTTPS, "certificate-authority-data": "/w=="}}, "of https://127.0.0.1:1 is no PEM"),
        ({"cluster": {"server": HTTPS, "certificate-authority-data": 5}}, "is not base64"),
        ({"cluster": {"server": HTTPS, "certificate-authority": "gone.crt"}}, "cannot read gone.crt"),
        (
            {"cluster": {"server": HTTPS}, "user": {"client-certificate-data": "AAAA", "client-key-data": "AAAA"}},
            "are no PEM certificate with its key",
        ),
    ],
)
def test_a_wrong_file_is_explained(tmp_path: Path, change: dict, text: str) -> None:
    with pytest.raises(ConfigProblem, match=text):
        load(write(tmp_path, **change))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigProblem, match="cannot read kubeconfig .*absent"):
        load(tmp_path / "absent")


def test_a_token_file_is_read_again_when_it_rotates(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first\n")
    connection = load(write(tmp_path, {"tokenFile": "token"}))
    clock = connection.clock = ManualClock()

    async def run() -> None:
        assert await connection.bearer() == "first"
        (tmp_path / "token").write_text("second\n")
        assert await connection.bearer() == "first"  # not asked yet
        clock.advance(61)
        assert await connection.bearer() == "second"

    asyncio.run(run())


def exec_script(tmp_path: Path, body: str) -> Path:
    script = tmp_path / "login"
    script.write_text(f"#!{sys.executable}\n{body}")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script


def test_an_exec_plugin_gives_the_token_and_hears_the_request(tmp_path: Path) -> None:
    script = exec_script(
        tmp_path,
        "import json, os, sys\n"
        "info = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
        "assert info['kind'] == 'ExecCredential'\n"
        "print(json.dumps({'status': {'token': sys.argv[1] + os.environ['EXTRA']}}))\n",
    )
    user = {"exec": {"command": str(script), "args": ["tok"], "env": [{"name": "EXTRA", "value": "en"}]}}
    connection = load(write(tmp_path, user))
    assert asyncio.run(connection.bearer()) == "token"


def test_a_failing_exec_plugin_is_explained_with_its_own_words(tmp_path: Path) -> None:
    script = exec_script(tmp_path, "import sys; sys.exit('please log in first')\n")
    connection = load(write(tmp_path, {"exec": {"command": str(script)}}))
    with pytest.raises(ConfigProblem, match="please log in first"):
        asyncio.run(connection.bearer())


def test_outside_a_cluster_the_way_out_is_named() -> None:
    with pytest.raises(ConfigProblem, match="--kubeconfig"):
        in_cluster(environ={})


def test_no_credential_in_the_text_of_a_problem(tmp_path: Path) -> None:
    path = write(tmp_path, {"token": "very-secret"}, {"server": ""})
    with pytest.raises(ConfigProblem) as caught:
        load(path)
    assert "very-secret" not in str(caught.value)
