"""kubectl against a whole cluster: nodes, controllers and scheduler at work."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from support.local_cluster import LocalCluster
from support.manifests import deployment

pytestmark = pytest.mark.kubectl


@pytest.fixture(scope="module")
def up(start_cluster: Callable[..., LocalCluster]) -> LocalCluster:
    return start_cluster(nodes=6, topology="zones=2,racks=4")


def test_nodes_are_ready_and_stand_where_the_topology_says(up: LocalCluster, kubectl_for) -> None:
    kubectl = kubectl_for(up)
    rows = kubectl("get", "nodes", "--no-headers", "-L", "topology.kubernetes.io/zone").splitlines()
    assert len(rows) == 6 and all(row.split()[1] == "Ready" for row in rows)
    assert {row.split()[-1] for row in rows} == {"zone-0", "zone-1"}
    assert "Ready" in kubectl("describe", "node", rows[0].split()[0])


def test_a_deployment_rolls_out_scales_and_goes(up: LocalCluster, kubectl_for) -> None:
    kubectl = kubectl_for(up)
    kubectl.apply(deployment("web", 3))
    assert "successfully rolled out" in kubectl("rollout", "status", "deployment", "web", "--timeout=90s")
    pods = kubectl("get", "pods", "-l", "app=web", "-o", "wide", "--no-headers").splitlines()
    assert len(pods) == 3 and all("Running" in pod and "node-" in pod for pod in pods)
    kubectl("wait", "--for=condition=Available", "deployment/web", "--timeout=90s")
    kubectl("scale", "deployment", "web", "--replicas=1")
    kubectl("rollout", "status", "deployment", "web", "--timeout=90s")
    kubectl("delete", "deployment", "web", "--cascade=foreground", "--timeout=90s")
    assert kubectl("get", "replicasets", "-l", "app=web", "-o", "name") == ""


def test_drain_waits_for_the_disruption_budget_of_running_pods(up: LocalCluster, kubectl_for) -> None:
    kubectl = kubectl_for(up)
    kubectl.apply(deployment("guarded", 1))
    kubectl("rollout", "status", "deployment", "guarded", "--timeout=90s")
    kubectl("create", "pdb", "guard", "--selector=app=guarded", "--min-available=1")
    kubectl("wait", "--for=jsonpath={.status.currentHealthy}=1", "pdb/guard", "--timeout=90s")
    node = kubectl("get", "pods", "-l", "app=guarded", "-o", "jsonpath={.items[0].spec.nodeName}")
    assert "disruption budget" in kubectl.fails("drain", node, "--timeout=2s")
    kubectl("scale", "deployment", "guarded", "--replicas=2")
    kubectl("wait", "--for=jsonpath={.status.disruptionsAllowed}=1", "pdb/guard", "--timeout=90s")
    assert "drained" in kubectl("drain", node, "--timeout=40s")
    kubectl("uncordon", node)


def test_a_pod_that_fits_nowhere_says_why(up: LocalCluster, kubectl_for) -> None:
    kubectl = kubectl_for(up)
    huge = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "huge"},
        "spec": {"containers": [{"name": "c", "image": "x", "resources": {"requests": {"cpu": "9999"}}}]},
    }
    kubectl("create", "-f", "-", input=json.dumps(huge))
    kubectl("wait", "--for=condition=PodScheduled=False", "pod/huge", "--timeout=90s")
    assert "Insufficient cpu" in kubectl.value("pod", "huge", ".status.conditions[0].message")
    kubectl("delete", "pod", "huge")
