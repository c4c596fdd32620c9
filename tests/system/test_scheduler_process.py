"""`phalanx scheduler` as users run it: another process, over TLS, with a lease, health and a recording."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.local_cluster import LocalCluster
from support.manifests import node, pod
from support.waiting import eventually

PHALANX = [sys.executable, "-m", "phalanx"]


class Scheduler:
    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*PHALANX, "scheduler", "--health", "127.0.0.1:0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.match(r"ready .* health=(\S+)", line)
        assert found, (line, self.process.stderr and self.process.stderr.read())
        self.health = found[1]

    def ask(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self.health + path, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as answer:
            return answer.code, answer.read().decode()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(30)
        finally:
            self.process.kill()


@pytest.fixture(scope="module")
def cluster(start_cluster: Callable[..., LocalCluster]) -> LocalCluster:
    cluster = start_cluster(run_nodes=False, run_controllers=False, run_scheduler=False)
    for name in ("n1", "n2"):
        cluster.create("/api/v1/nodes", node(name))
    return cluster


@pytest.fixture
def start() -> Iterator[Callable[..., Scheduler]]:
    running: list[Scheduler] = []

    def go(*arguments: str) -> Scheduler:
        running.append(Scheduler(*arguments))
        return running[-1]

    yield go
    for scheduler in running:
        scheduler.process.kill()
        scheduler.process.communicate()


def make_namespace(cluster: LocalCluster, name: str) -> str:
    cluster.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return f"/api/v1/namespaces/{name}/pods"


def clear(cluster: LocalCluster, pods: str) -> None:
    """Leave the shared nodes empty for the next test."""
    for item in cluster.get(pods)["items"]:
        cluster.delete(f"{pods}/{item['metadata']['name']}", gracePeriodSeconds="0")


def test_it_schedules_over_tls_and_says_how_it_is(cluster: LocalCluster, start: Callable[..., Scheduler]) -> None:
    pods = make_namespace(cluster, "over-tls")
    scheduler = start("--kubeconfig", str(cluster.kubeconfig), "--scheduler-name", "one", "--lease-name", "one")
    eventually(lambda: scheduler.ask("/readyz")[0] == 200, "ready")
    for number in range(4):
        cluster.create(pods, pod(f"p{number}", "1500m", schedulerName="one"))
    cluster.create(pods, pod("too-big", "64", schedulerName="one"))

    def placed() -> list[str]:
        return [p["metadata"]["name"] for p in cluster.get(pods)["items"] if p["spec"].get("nodeName")]

    eventually(lambda: len(placed()) == 4, "four pods bound")
    refused = eventually(lambda: cluster.get(f"{pods}/too-big")["status"].get("conditions"), "a condition")
    assert refused[0]["reason"] == "Unschedulable"
    assert refused[0]["message"].startswith("0/2 nodes are available: 2 Insufficient cpu.")
    code, text = scheduler.ask("/metrics")
    assert code == 200
    assert 'scheduler_schedule_attempts_total{profile="one",result="scheduled"} 4.0' in text
    assert 'scheduler_pending_pods{queue="unschedulable"} 1.0' in text
    assert 'scheduler_pod_scheduling_sli_duration_seconds_count{attempts="1"} 4.0' in text
    assert scheduler.ask("/livez")[0] == 200
    assert scheduler.stop() == 0
    lease = cluster.get("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/one")
    assert not lease["spec"].get("holderIdentity"), "the lease is released at a graceful stop"
    clear(cluster, pods)


def test_the_lease_is_the_one_the_configuration_names(
    cluster: LocalCluster, start: Callable[..., Scheduler], tmp_path: Path
) -> None:
    leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    config = tmp_path / "scheduler.yaml"
    config.write_text(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
        "leaderElection: {resourceName: from-the-file, resourceNamespace: default}\n"
    )
    scheduler = start("--kubeconfig", str(cluster.kubeconfig), "--config", str(config))
    eventually(lambda: scheduler.ask("/readyz")[0] == 200, "ready")
    assert [item["metadata"]["name"] for item in cluster.get(leases)["items"]] == ["from-the-file"]
    assert scheduler.stop() == 0


def test_of_two_with_one_lease_the_second_takes_over(cluster: LocalCluster, start: Callable[..., Scheduler]) -> None:
    pods = make_namespace(cluster, "two-of-them")
    arguments = ("--kubeconfig", str(cluster.kubeconfig), "--scheduler-name", "two", "--lease-name", "two")
    first, second = start(*arguments), start(*arguments)
    cluster.create(pods, pod("a", "1", schedulerName="two"))
    eventually(lambda: cluster.get(f"{pods}/a")["spec"].get("nodeName"), "a bound")
    assert first.stop() == 0
    cluster.create(pods, pod("b", "1", schedulerName="two"))
    eventually(lambda: cluster.get(f"{pods}/b")["spec"].get("nodeName"), "b bound by the second")
    assert second.stop() == 0
    clear(cluster, pods)


def test_a_recording_replays_to_the_same_decisions(
    cluster: LocalCluster, start: Callable[..., Scheduler], tmp_path: Path
) -> None:
    pods = make_namespace(cluster, "recorded")
    recording = tmp_path / "run.jsonl"
    where = ("--kubeconfig", str(cluster.kubeconfig), "--no-leader-elect")
    scheduler = start(*where, "--scheduler-name", "rec", "--record", str(recording))
    for number in range(12):
        cluster.create(pods, pod(f"p{number}", f"{500 + 100 * number}m", schedulerName="rec"))
    eventually(lambda: any(p["spec"].get("nodeName") for p in cluster.get(pods)["items"]), "something bound")
    eventually(
        lambda: all(p["spec"].get("nodeName") or p["status"].get("conditions") for p in cluster.get(pods)["items"]),
        "every pod decided",
    )
    assert scheduler.stop() == 0
    clear(cluster, pods)
    replayed = subprocess.run([*PHALANX, "replay", str(recording)], capture_output=True, text=True, timeout=60)
    assert replayed.returncode == 0, replayed.stderr
    assert replayed.stdout.startswith("same: ")

    lines = recording.read_bytes().splitlines()
    binds = [n for n, line in enumerate(lines) if b'"decision":"Bind"' in line]
    changed = json.loads(lines[binds[0]])
    changed["out"]["node"] = "elsewhere"
    lines[binds[0]] = json.dumps(changed, separators=(",", ":")).encode()
    recording.write_bytes(b"\n".join(lines) + b"\n")
    replayed = subprocess.run([*PHALANX, "replay", str(recording)], capture_output=True, text=True, timeout=60)
    assert replayed.returncode == 1
    assert f"{recording}:{binds[0] + 1}: decision" in replayed.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--kubeconfig", "/nowhere/at/all"], "cannot read kubeconfig /nowhere/at/all"),
        (["--feature-gates", "NoSuchGate=true"], "unknown feature gate 'NoSuchGate'"),
        (["--config", "/nowhere/at/all"], "--config: cannot read /nowhere/at/all"),
    ],
)
def test_bad_settings_are_one_clear_line(arguments: list[str], text: str) -> None:
    done = subprocess.run([*PHALANX, "scheduler", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert text in done.stderr
    assert "Traceback" not in done.stderr
