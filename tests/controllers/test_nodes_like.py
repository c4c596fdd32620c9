"""`phalanx nodes --like`: simulated copies of the nodes of another cluster, without what says whose they are."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from phalanx.local.nodes.fleet import copy_of
from support.local_cluster import LocalCluster

REAL = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {
        "name": "ip-10-1-2-3.internal",
        "labels": {
            "kubernetes.io/hostname": "ip-10-1-2-3.internal",
            "topology.kubernetes.io/zone": "eu-1a",
            "example.com/rack": "r7",
            "example.com/serial": "i-0abc123",
            "node.kubernetes.io/instance-type": "p5.48xlarge",
        },
        "annotations": {"example.com/owner": "somebody"},
    },
    "spec": {
        "providerID": "cloud:///eu-1a/i-0abc123",
        "podCIDR": "10.9.0.0/24",
        "taints": [
            {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},
            {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"},
        ],
    },
    "status": {
        "capacity": {"cpu": "192", "memory": "2Ti", "nvidia.com/gpu": "8", "pods": "250"},
        "allocatable": {"cpu": "190500m", "memory": "2000Gi", "nvidia.com/gpu": "7", "pods": "250"},
        "addresses": [{"type": "InternalIP", "address": "10.1.2.3"}],
        "nodeInfo": {"architecture": "arm64", "machineID": "deadbeef", "operatingSystem": "linux"},
    },
}


def test_a_copy_has_the_room_labels_and_taints_of_its_node_and_nothing_that_names_it() -> None:
    made = copy_of(REAL, 3, 0.0)
    assert made["metadata"]["name"] == "twin-00003"
    assert made["status"]["allocatable"] == REAL["status"]["allocatable"]
    assert made["metadata"]["labels"] == {
        "topology.kubernetes.io/zone": "eu-1a",
        "example.com/rack": "r7",
        "node.kubernetes.io/instance-type": "p5.48xlarge",
        "kubernetes.io/hostname": "twin-00003",
        "simulation.phalanx.dev/simulated": "true",
    }
    assert made["spec"]["taints"] == [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]
    text = json.dumps(made)
    for secret in ("10-1-2-3", "10.1.2.3", "i-0abc123", "somebody", "deadbeef", "10.9.0.0"):
        assert secret not in text


def test_nodes_of_another_cluster_become_simulated_ones_that_pods_can_use(
    start_cluster: Callable[..., LocalCluster],
) -> None:
    real = start_cluster(run_nodes=False, run_controllers=False, run_scheduler=False)
    local = start_cluster(nodes=0, run_nodes=False)
    real.create("/api/v1/nodes", REAL)
    command = [sys.executable, "-m", "phalanx", "nodes", "--kubeconfig", str(local.kubeconfig), "--like"]
    process = subprocess.Popen([*command, str(real.kubeconfig)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready nodes")
        (node,) = local.get("/api/v1/nodes")["items"]
        assert node["metadata"]["name"] == "twin-00000"
        assert node["status"]["allocatable"]["nvidia.com/gpu"] == "7"
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "trial", "namespace": "default"},
            "spec": {
                "nodeSelector": {"example.com/rack": "r7"},
                "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
                "containers": [{"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "7"}}}],
            },
        }
        local.create("/api/v1/namespaces/default/pods", pod)
        seen = local.wait(
            "/api/v1/namespaces/default/pods/trial", lambda found: found.get("status", {}).get("phase") == "Running"
        )
        assert seen["spec"]["nodeName"] == "twin-00000"
    finally:
        process.terminate()
        process.communicate(timeout=90)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--nodes", "3"], "--nodes"),
        ([], "the same cluster"),
    ],
)
def test_what_makes_no_sense_is_refused(server: LocalCluster, tmp_path: Path, options: list[str], says: str) -> None:
    command = [sys.executable, "-m", "phalanx", "nodes", "--kubeconfig", str(server.kubeconfig)]
    command += ["--like", str(server.kubeconfig), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert says in done.stderr
    assert "Traceback" not in done.stderr
