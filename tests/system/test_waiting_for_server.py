"""Parts that are started before their API server say what they wait for, and begin when it comes."""

from __future__ import annotations

import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml

from support.processes import Server

PARTS = {
    "nodes": ["nodes", "--nodes", "1"],
    "controllers": ["controllers"],
    "scheduler": ["scheduler", "--health", "127.0.0.1:0", "--no-leader-elect"],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    server = Server(tmp_path_factory.mktemp("away"))
    server.live()
    yield server
    server.close()


def test_parts_wait_for_a_server_that_is_away_and_say_so(server: Server, tmp_path: Path) -> None:
    server.kill()
    started = {
        name: subprocess.Popen(
            [sys.executable, "-m", "phalanx", *arguments, "--kubeconfig", str(server.kubeconfig)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name, arguments in PARTS.items()
    }
    try:
        for name, process in started.items():
            assert process.stderr is not None
            line = process.stderr.readline()
            assert f"waiting for the API server at https://127.0.0.1:{server.port}" in line, (name, line)
        server.live()
        for name, process in started.items():
            assert process.stdout is not None
            assert process.stdout.readline().startswith(f"ready {name}")
        for process in started.values():
            process.terminate()
        assert {name: process.wait(30) for name, process in started.items()} == dict.fromkeys(PARTS, 0)
    finally:
        for process in started.values():
            process.kill()
            process.communicate()


def test_a_token_that_is_not_accepted_is_named_and_no_process_says_ready(server: Server, tmp_path: Path) -> None:
    text = server.kubeconfig.read_text()
    token = yaml.safe_load(text)["users"][0]["user"]["token"]
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(text.replace(token, "of-another-cluster"))
    command = [sys.executable, "-m", "phalanx", *PARTS["scheduler"], "--kubeconfig", str(kubeconfig)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "does not accept the token of the kubeconfig" in line and "of-another-cluster" not in line
        process.terminate()
        out, _ = process.communicate(timeout=30)
        assert "ready" not in out
    finally:
        process.kill()
        process.communicate()


def _status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as problem:
        return problem.code
    except OSError:
        return 0


@pytest.mark.parametrize("part", ["controllers", "scheduler"])
def test_probes_answer_before_the_server_does(part: str, server: Server) -> None:
    server.kill()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "phalanx", part, "--kubeconfig", str(server.kubeconfig)]
    command += ["--health", f"127.0.0.1:{port}", *(("--mode", "cluster") if part == "controllers" else ())]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert "waiting for the API server" in process.stderr.readline()
        found = {path: _status(f"http://127.0.0.1:{port}/{path}") for path in ("livez", "healthz", "readyz")}
        assert found == {"livez": 200, "healthz": 200, "readyz": 500}
    finally:
        process.kill()
        process.communicate()
        server.live()
