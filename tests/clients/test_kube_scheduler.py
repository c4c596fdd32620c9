"""The real kube-scheduler on our API server and simulated nodes: it leads, places pods and gangs, and stays up."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.local_cluster import LocalCluster
from support.manifests import deployment, pod
from support.programs import Running, program, running

GROUP_GATES = "GenericWorkload=true"


@pytest.fixture(scope="module")
def cluster(start_cluster: Callable[..., LocalCluster]) -> LocalCluster:
    """Nodes and controllers, and no scheduler of ours."""
    program("kube-scheduler")
    return start_cluster(nodes=3, run_scheduler=False)


@pytest.fixture(scope="module")
def scheduler(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    place = tmp_path_factory.mktemp("kube-scheduler")
    configuration = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(cluster.kubeconfig), "qps": 500, "burst": 500},
        "leaderElection": {"leaderElect": True},
    }
    (place / "scheduler.yaml").write_text(json.dumps(configuration))
    with running(
        place / "log",
        "kube-scheduler",
        f"--config={place / 'scheduler.yaml'}",
        "--secure-port=0",
        f"--feature-gates={GROUP_GATES}",
    ) as started:
        yield started


def test_it_leads_and_places_a_pod(cluster: LocalCluster, scheduler: Running, place: str) -> None:
    pods = f"/api/v1/namespaces/{place}/pods"
    cluster.create(pods, pod("plain", "100m"))
    placed = cluster.wait(f"{pods}/plain", scheduler.meanwhile(is_running), timeout=120)
    assert placed["spec"]["nodeName"] in {node["metadata"]["name"] for node in cluster.list("/api/v1/nodes")}
    lease = cluster.get("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler")
    assert lease["spec"]["holderIdentity"]
    events = f"/apis/events.k8s.io/v1/namespaces/{place}/events"
    cluster.wait(events, lambda found: any(event["reason"] == "Scheduled" for event in found["items"]))
    assert scheduler.alive and not scheduler.complaints()


def test_it_says_why_a_pod_waits_and_places_it_later(cluster: LocalCluster, scheduler: Running, place: str) -> None:
    pods = f"/api/v1/namespaces/{place}/pods"
    cluster.create(pods, pod("picky", "100m", nodeSelector={"kind": "special"}))
    waits = scheduler.meanwhile(lambda found: found["status"].get("conditions"))
    announced = cluster.wait(f"{pods}/picky", waits, timeout=120)
    assert announced["status"]["conditions"][0]["reason"] == "Unschedulable"
    node = cluster.list("/api/v1/nodes")[0]["metadata"]["name"]
    cluster.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {"kind": "special"}}})
    assert cluster.wait(f"{pods}/picky", is_running, timeout=60)["spec"]["nodeName"] == node
    assert scheduler.alive


def test_it_places_the_pods_of_a_deployment(cluster: LocalCluster, scheduler: Running, place: str) -> None:
    deployments = f"/apis/apps/v1/namespaces/{place}/deployments"
    cluster.create(deployments, deployment("web", 6))
    cluster.wait(f"{deployments}/web", lambda found: found["status"].get("availableReplicas") == 6, timeout=120)
    assert scheduler.alive and not scheduler.complaints()


def test_it_places_a_gang_as_a_whole(cluster: LocalCluster, scheduler: Running, place: str) -> None:
    groups = f"/apis/scheduling.k8s.io/v1alpha3/namespaces/{place}/podgroups"
    cluster.create(groups, {"metadata": {"name": "gang"}, "spec": {"schedulingPolicy": {"gang": {"minCount": 3}}}})
    pods = f"/api/v1/namespaces/{place}/pods"
    for number in range(3):
        member = pod(f"member-{number}", "100m")
        member["spec"]["schedulingGroup"] = {"podGroupName": "gang"}
        cluster.create(pods, member)
    cluster.wait(pods, lambda found: all(is_running(member) for member in found["items"]), timeout=120)
    assert scheduler.alive


def is_running(found: Any) -> bool:
    return bool(found["status"]["phase"] == "Running")
