"""The install on a real kube-apiserver: every overlay is accepted, and check-cluster says what is so."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from phalanx.serve.cluster_check import ABSENT, FAILS, WORKS
from support.real_cluster import RealCluster
from support.rights import DEPLOY


def checks(cluster: RealCluster) -> dict[str, dict[str, str]]:
    command = [sys.executable, "-m", "phalanx", "check-cluster", "--kubeconfig", str(cluster.kubeconfig), "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, 1), done.stderr
    return {each["name"]: each for each in json.loads(done.stdout)["checks"]}


def test_check_cluster_shows_what_is_installed_and_the_leader(real: RealCluster) -> None:
    before = checks(real)
    for name in ("version", "clock", "groups", "rights", "gates", "schedulers"):
        assert before[name]["state"] == WORKS, before[name]
    assert ("scheduling.k8s.io" in before["groups"]["found"]) == real.groups
    assert before["leases"]["state"] == ABSENT
    assert before["webhook"]["state"] == FAILS and "no caBundle" in before["webhook"]["found"]
    real.start("scheduler")
    real.start("controllers")
    after = checks(real)
    assert after["leases"]["state"] == WORKS, after["leases"]


@pytest.mark.parametrize("overlay", ["native", "custom-resources", "high-availability", "dashboard"])
def test_the_api_server_accepts_the_overlay(native: RealCluster, overlay: str) -> None:
    native.kubectl("apply", "-k", str(DEPLOY / "overlays" / overlay), "--dry-run=server")
