"""The real kube-controller-manager, all its controllers, on our API server, with our scheduler and simulated nodes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.local_cluster import LocalCluster
from support.manifests import deployment
from support.programs import Running, program, running


@pytest.fixture(scope="module", params=["AlwaysAllow", "RBAC"])
def authorization(request: pytest.FixtureRequest) -> str:
    program("kube-controller-manager")
    return str(request.param)


@pytest.fixture(scope="module")
def cluster(start_cluster: Callable[..., LocalCluster], authorization: str) -> LocalCluster:
    """Scheduler and nodes, and no controllers of ours."""
    return start_cluster(nodes=3, run_controllers=False, authorization=authorization)


@pytest.fixture(scope="module", autouse=True)
def controllers(
    cluster: LocalCluster, authorization: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """With RBAC every controller has a service account of its own, and the rights that the bootstrap roles give it."""
    place = tmp_path_factory.mktemp("kube-controller-manager")
    key = place / "service-accounts.key"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    with running(
        place / "log",
        "kube-controller-manager",
        f"--kubeconfig={cluster.kubeconfig}",
        f"--service-account-private-key-file={key}",
        "--leader-elect=true",
        "--secure-port=0",
        "--controllers=*",
        f"--use-service-account-credentials={'true' if authorization == 'RBAC' else 'false'}",
        "--concurrent-gc-syncs=5",
        "--kube-api-qps=500",
        "--kube-api-burst=500",
    ) as started:
        yield started


def test_a_deployment_rolls_out_and_back(cluster: LocalCluster, controllers: Running, place: str) -> None:
    path = f"/apis/apps/v1/namespaces/{place}/deployments"
    cluster.create(path, deployment("web", 4))
    cluster.wait(f"{path}/web", lambda found: found["status"].get("availableReplicas") == 4, timeout=180)
    changed = {"spec": {"template": {"metadata": {"labels": {"version": "2"}}}}}
    cluster.patch(f"{path}/web", changed)
    cluster.wait(f"{path}/web", lambda found: rolled_out(found, 4), timeout=120)
    sets = cluster.list(f"/apis/apps/v1/namespaces/{place}/replicasets")
    assert sorted(found["spec"]["replicas"] for found in sets) == [0, 4]
    cluster.delete(f"{path}/web", propagationPolicy="Foreground")
    cluster.wait(f"/api/v1/namespaces/{place}/pods", lambda found: not found["items"], timeout=60)
    assert controllers.alive


def test_sets_jobs_and_budgets(cluster: LocalCluster, controllers: Running, place: str) -> None:
    template = deployment("db", 1)["spec"]["template"]
    selector = {"matchLabels": {"app": "db"}}
    apps = f"/apis/apps/v1/namespaces/{place}"
    stateful = {"selector": selector, "replicas": 2, "serviceName": "db", "template": template}
    cluster.create(f"{apps}/statefulsets", {"metadata": {"name": "db"}, "spec": stateful})
    budget = {"selector": selector, "minAvailable": 2}
    budgets = f"/apis/policy/v1/namespaces/{place}/poddisruptionbudgets"
    cluster.create(budgets, {"metadata": {"name": "db"}, "spec": budget})
    agent = deployment("agent", 1)["spec"]["template"]
    daemons = {"selector": {"matchLabels": {"app": "agent"}}, "template": agent}
    cluster.create(f"{apps}/daemonsets", {"metadata": {"name": "agent"}, "spec": daemons})
    job = {"parallelism": 2, "completions": 2, "template": one_second()}
    jobs = f"/apis/batch/v1/namespaces/{place}/jobs"
    cluster.create(jobs, {"metadata": {"name": "work"}, "spec": job})
    cluster.wait(f"{apps}/statefulsets/db", lambda found: found["status"].get("readyReplicas") == 2, timeout=180)
    cluster.wait(f"{apps}/daemonsets/agent", lambda found: found["status"].get("numberReady") == 3, timeout=60)
    cluster.wait(f"{jobs}/work", lambda found: found["status"].get("succeeded") == 2, timeout=60)
    cluster.wait(f"{budgets}/db", lambda found: found["status"].get("currentHealthy") == 2, timeout=60)
    assert controllers.alive


def test_services_have_slices_and_namespaces_their_account(
    cluster: LocalCluster, controllers: Running, place: str
) -> None:
    cluster.create(f"/apis/apps/v1/namespaces/{place}/deployments", deployment("web", 2))
    service = {"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}}
    cluster.create(f"/api/v1/namespaces/{place}/services", service)
    slices = f"/apis/discovery.k8s.io/v1/namespaces/{place}/endpointslices"
    cluster.wait(slices, lambda found: ready_endpoints(found) == 2, timeout=180)
    cluster.wait(f"/api/v1/namespaces/{place}/serviceaccounts", lambda found: found["items"])
    cluster.delete(f"/api/v1/namespaces/{place}")
    cluster.wait("/api/v1/namespaces", lambda found: place not in names(found), timeout=60)
    assert controllers.alive


def test_nothing_it_follows_is_missing(controllers: Running) -> None:
    assert controllers.alive
    assert not controllers.complaints()
    assert not [line for line in controllers.log.splitlines() if "forbidden" in line.lower()]


def one_second() -> dict[str, Any]:
    return {
        "metadata": {"annotations": {"simulation.phalanx.dev/run-seconds": "1"}},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]},
    }


def rolled_out(found: Any, replicas: int) -> bool:
    status = found["status"]
    current = status.get("observedGeneration") == found["metadata"]["generation"]
    return bool(current and status.get("updatedReplicas") == status.get("replicas") == replicas)


def ready_endpoints(slices: Any) -> int:
    return max((len(found.get("endpoints") or []) for found in slices["items"]), default=0)


def names(found: Any) -> set[str]:
    return {item["metadata"]["name"] for item in found["items"]}
