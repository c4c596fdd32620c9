"""`phalanx` as started by a person or a script: the ready line, exit codes, clear errors."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from pathlib import Path

import pytest
import yaml

from phalanx.serve.settings import ServerSettings

PHALANX = [sys.executable, "-m", "phalanx"]


def phalanx(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PHALANX, *arguments], text=True, capture_output=True, timeout=60, check=False)


@contextmanager
def running(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        [*PHALANX, *arguments], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        assert line.startswith("ready"), line + process.stderr.read()
        yield process, line
    finally:
        process.kill()
        process.communicate()


def ask(kubeconfig: Path, path: str, body: object = None) -> HTTPResponse:
    config = yaml.safe_load(kubeconfig.read_text())
    cluster = config["clusters"][0]["cluster"]
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(cluster["server"] + path, data, {"Content-Type": "application/json"})
    request.add_header("Authorization", f"Bearer {config['users'][0]['user']['token']}")
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    context = ssl.create_default_context(cadata=authority)
    return urllib.request.urlopen(request, context=context, timeout=25)  # type: ignore[no-any-return]


def get(kubeconfig: Path, path: str) -> bytes:
    with ask(kubeconfig, path) as reply:
        return reply.read()


def post(kubeconfig: Path, path: str, body: object) -> None:
    with ask(kubeconfig, path, body) as reply:
        assert reply.status == 201


def test_up_is_ready_serves_its_nodes_and_stops_on_a_signal(tmp_path: Path) -> None:
    data = tmp_path / "data"
    arguments = ("up", "--data", str(data), "--listen", "127.0.0.1:0", "--nodes", "3", "--topology", "zones=3")
    with running(*arguments) as (process, line):
        kubeconfig = data / "kubeconfig"
        assert str(kubeconfig) in line
        assert stat.S_IMODE(kubeconfig.stat().st_mode) == 0o600
        nodes = yaml.safe_load(get(kubeconfig, "/api/v1/nodes"))["items"]
        assert len({node["metadata"]["labels"]["topology.kubernetes.io/zone"] for node in nodes}) == 3
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    with running(*arguments):  # the second start finds what the first left
        assert len(yaml.safe_load(get(data / "kubeconfig", "/api/v1/nodes"))["items"]) == 3


PROFILES = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles: [{schedulerName: default-scheduler}, {schedulerName: second}]
"""


def test_up_has_the_metrics_of_its_scheduler_by_profile(tmp_path: Path) -> None:
    config, kubeconfig = tmp_path / "scheduler.yaml", tmp_path / "kubeconfig"
    config.write_text(PROFILES)
    options = ("--data", ":memory:", "--listen", "127.0.0.1:0", "--kubeconfig", str(kubeconfig), "--no-controllers")
    with running("up", *options, "--nodes", "2", "--config", str(config)):
        spec = {"schedulerName": "second", "containers": [{"name": "main", "image": "x"}]}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec}
        post(kubeconfig, "/api/v1/namespaces/default/pods", body)
        watch = "/api/v1/namespaces/default/pods?watch=1&timeoutSeconds=20&fieldSelector=spec.nodeName!="
        with ask(kubeconfig, watch) as events:
            assert b'"nodeName"' in events.readline()
        text = get(kubeconfig, "/metrics").decode()
    assert 'scheduler_schedule_attempts_total{profile="second",result="scheduled"} 1.0' in text
    assert 'scheduler_schedule_attempts_total{profile="default-scheduler",result="scheduled"} 0.0' in text
    assert 'scheduler_cache_size{type="nodes"} 2.0' in text
    assert "apiserver_request_total" in text


@pytest.mark.parametrize("flags", [("--nodes", "0"), ("--no-nodes",)])
def test_up_without_nodes_has_none(tmp_path: Path, flags: tuple[str, ...]) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    options = ("--data", ":memory:", "--listen", "127.0.0.1:0", "--kubeconfig", str(kubeconfig), "--no-controllers")
    with running("up", *options, *flags):
        assert yaml.safe_load(get(kubeconfig, "/api/v1/nodes"))["items"] == []


def test_apiserver_alone(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    options = ("--data", ":memory:", "--listen", "127.0.0.1:0", "--kubeconfig", str(kubeconfig))
    with running("apiserver", *options):
        assert get(kubeconfig, "/readyz") == b"ok"


def test_plain_http_only_when_asked_and_only_on_loopback(tmp_path: Path) -> None:
    with running("apiserver", "--data", ":memory:", "--listen", "127.0.0.1:0", "--plain-http") as (_, line):
        url = line.split()[1]
        assert url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(f"{url}/api/v1/namespaces/default", timeout=10) as reply:
            assert reply.status == 200
        for header in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}):
            page = urllib.request.Request(f"{url}/api/v1/namespaces/default", headers=header)
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(page, timeout=10)
    refused = phalanx("apiserver", "--data", str(tmp_path), "--listen", "0.0.0.0:0", "--plain-http")
    assert refused.returncode == 2 and "loopback" in refused.stderr


def test_a_server_that_no_client_or_any_client_can_reach_says_so() -> None:
    with running("apiserver", "--data", ":memory:", "--listen", "127.0.0.1:0") as (process, _):
        assert process.stderr is not None
        assert "--kubeconfig FILE" in process.stderr.readline()
    open_to_all = ServerSettings.of(":memory:", "0.0.0.0:7443", "kubeconfig").notes()
    assert len(open_to_all) == 1 and "0.0.0.0 can be reached from other machines" in open_to_all[0]
    assert ServerSettings.of(":memory:", "127.0.0.1:7443", "kubeconfig").notes() == []


def message_shown_once(done: subprocess.CompletedProcess[str]) -> str:
    """A user's mistake is one line and exit code 2."""
    assert done.returncode == 2, done.stdout + done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and "Traceback" not in done.stderr, done.stderr
    return lines[0]


def test_a_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        line = message_shown_once(phalanx("up", "--data", str(tmp_path), "--listen", where, "--nodes", "0"))
    assert where in line and "in use" in line


def test_two_servers_do_not_share_a_directory(tmp_path: Path) -> None:
    options = ("--data", str(tmp_path), "--listen", "127.0.0.1:0")
    with running("apiserver", *options):
        assert str(tmp_path) in message_shown_once(phalanx("apiserver", *options))


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--listen", "nonsense"), "HOST:PORT"),
        (("--listen", "127.0.0.1:99999"), "HOST:PORT"),
        (("--topology", "zones=two"), "--topology"),
        (("--feature-gates", "NoSuchGate=true"), "NoSuchGate"),
        (("--feature-gates", "GenericWorkload=false"), "GenericWorkload"),
        (("--data", "/dev/null/data"), "--data"),
        (("--data", ":memory:", "--kubeconfig", "/dev/null/kubeconfig", "--listen", "127.0.0.1:0"), "--kubeconfig"),
    ],
)
def test_a_wrong_setting_is_one_clear_line(tmp_path: Path, arguments: tuple[str, ...], word: str) -> None:
    data = () if "--data" in arguments else ("--data", str(tmp_path / "data"))
    listen = () if "--listen" in arguments else ("--listen", "127.0.0.1:0")
    assert word in message_shown_once(phalanx("up", *data, *listen, *arguments))


def test_help_has_examples_and_version_is_printed() -> None:
    for arguments in ((), ("up",), ("apiserver",)):
        done = phalanx(*arguments, "--help")
        assert done.returncode == 0 and "Examples:" in done.stdout
    assert phalanx("--version").stdout.startswith("phalanx")
    assert phalanx("no-such-command").returncode == 2


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_the_caller_closed_is_no_problem(closed: str) -> None:
    example = Path(__file__).parents[2] / "examples" / "job-gang.yaml"
    line = f"{sys.executable} -m phalanx group -f {example} {closed}"
    done = subprocess.run(["bash", "-c", line], text=True, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr


def test_a_full_disk_is_one_clear_line() -> None:
    example = Path(__file__).parents[2] / "examples" / "job-gang.yaml"
    for command in (f"group -f {example}", "--help"):
        line = f"{sys.executable} -m phalanx {command} > /dev/full"
        done = subprocess.run(["bash", "-c", line], text=True, capture_output=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (2, "error: cannot write: No space left on device\n")


def test_a_locale_without_utf_8_loses_characters_only() -> None:
    plain = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "phalanx", "why", "jöbb/…"]
    done = subprocess.run(command, env=plain, capture_output=True, timeout=60, check=False)
    assert done.returncode == 2 and b"kinds are pod" in done.stderr and b"Traceback" not in done.stderr, done.stderr
    code = "from phalanx.cli.main import _open_streams; _open_streams(); print('8 nodes \\u00b7 100 %')"
    done = subprocess.run([sys.executable, "-c", code], env=plain, capture_output=True, timeout=60, check=False)
    assert done.stdout == b"8 nodes ? 100 %\n"
