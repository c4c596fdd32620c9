"""`--provisioning-requests`: an autoscaler is asked for all nodes of a gang at once, and again when that failed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from phalanx.base.clock import rfc3339
from phalanx.base.errors import ConfigProblem
from phalanx.controllers.cluster_mode.provisioning_requests import (
    CONSUMES,
    LackingGroup,
    PodSet,
    ProvisioningRequests,
    class_name,
)
from phalanx.local.api.rights import Rights
from phalanx.local.nodes.fleet import node_object
from support.local_cluster import LocalCluster, advance_until, local_cluster
from support.manifests import pod, pod_group
from support.rights import Recording, grants

DEFINITION = Path(__file__).parents[2] / "examples" / "crds" / "provisioningrequest.yaml"
REQUESTS = "/apis/autoscaling.x-k8s.io/v1/namespaces/default/provisioningrequests"
TEMPLATES = "/api/v1/namespaces/default/podtemplates"
PODS = "/api/v1/namespaces/default/pods"
CHECK = "check-capacity.autoscaling.x-k8s.io"


@pytest.fixture
def up(tmp_path: Path) -> Iterator[LocalCluster]:
    cluster = local_cluster(tmp_path, nodes=0, provisioning=CHECK)
    cluster.start()
    cluster.apply(DEFINITION.read_text())
    yield cluster
    cluster.stop()


def submit(cluster: LocalCluster) -> None:
    """Create two workers and a driver that asks for less."""
    cluster.apply(pod_group("train", 3))
    for name, cpu in (("driver", "1"), ("worker-0", "4"), ("worker-1", "4")):
        cluster.apply(pod(name, cpu, group="train", labels={"app": "train"}, nodeSelector={"pool": "batch"}))


def requests(cluster: LocalCluster) -> list[Any]:
    return cluster.list(REQUESTS)


def report(cluster: LocalCluster, request: Any, type_: str) -> None:
    """Be the autoscaler: set a condition of a request."""
    now = cluster.cluster.server.context.clock.now()
    condition = {"type": type_, "status": "True", "reason": type_, "message": "", "lastTransitionTime": rfc3339(now)}
    cluster.patch(f"{REQUESTS}/{request['metadata']['name']}/status", {"status": {"conditions": [condition]}})


def test_a_gang_that_lacks_nodes_gets_one_request_until_it_is_placed(up: LocalCluster) -> None:
    submit(up)
    (request,) = advance_until(up, lambda: requests(up), 6.0)
    name = request["metadata"]["name"]
    assert request["spec"]["provisioningClassName"] == CHECK
    sets = {pods["podTemplateRef"]["name"]: pods["count"] for pods in request["spec"]["podSets"]}
    assert sorted(sets.values()) == [1, 2]
    for template, count in sets.items():
        spec = up.get(f"{TEMPLATES}/{template}")["template"]["spec"]
        assert spec["containers"][0]["resources"]["requests"]["cpu"] == {1: "1", 2: "4"}[count]
        assert spec["nodeSelector"] == {"pool": "batch"} and not spec.get("volumes")
    advance_until(up, lambda: all(p["metadata"]["annotations"].get(CONSUMES) == name for p in up.list(PODS)))
    report(up, request, "Provisioned")
    up.advance(60)
    assert [r["metadata"]["name"] for r in requests(up)] == [name]  # until its nodes are there
    labels = {"pool": "batch", "simulation.phalanx.dev/simulated": "true"}
    room = {"cpu": "16", "memory": "64Gi", "pods": "10"}
    body = node_object("new", 0, labels, {}, room, room, up.cluster.server.context.clock.now())
    up.create("/api/v1/nodes", body)
    advance_until(up, lambda: not requests(up) and not up.list(TEMPLATES), 6.0)
    assert all(pod["spec"].get("nodeName") == "new" for pod in up.list(PODS))


def test_a_failed_request_is_made_again_after_a_backoff(up: LocalCluster) -> None:
    submit(up)
    (request,) = advance_until(up, lambda: requests(up), 6.0)
    report(up, request, "Failed")
    up.advance(30)
    assert [r["metadata"]["uid"] for r in requests(up)] == [request["metadata"]["uid"]]
    another = advance_until(
        up, lambda: [r for r in requests(up) if r["metadata"]["uid"] != request["metadata"]["uid"]], 6.0
    )
    assert another[0]["metadata"]["name"].endswith("-2") and len(requests(up)) == 1


@pytest.mark.parametrize("condition", ["BookingExpired", "CapacityRevoked"])
def test_a_request_that_lost_its_nodes_is_renewed(up: LocalCluster, condition: str) -> None:
    submit(up)
    (request,) = advance_until(up, lambda: requests(up), 6.0)
    report(up, request, condition)
    advance_until(
        up, lambda: [r["metadata"]["uid"] for r in requests(up)] not in ([], [request["metadata"]["uid"]]), 6.0
    )


def test_a_request_follows_the_pods_of_its_gang_and_goes_with_them(up: LocalCluster) -> None:
    submit(up)
    advance_until(up, lambda: requests(up), 6.0)
    up.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "worker-2"}, "spec": {
        "containers": [{"name": "main", "image": "train", "resources": {"requests": {"cpu": "4"}}}],
        "nodeSelector": {"pool": "batch"}, "schedulingGroup": {"podGroupName": "train"}}})  # fmt: skip
    advance_until(
        up, lambda: [r for r in requests(up) if sum(pods["count"] for pods in r["spec"]["podSets"]) == 4], 6.0
    )
    assert len(requests(up)) == 1
    for name in ("driver", "worker-0", "worker-1", "worker-2"):
        up.delete(f"{PODS}/{name}", query={"gracePeriodSeconds": "0"})
    advance_until(up, lambda: not requests(up) and not up.list(TEMPLATES), 6.0)


def test_the_optional_role_allows_exactly_what_requests_take(up: LocalCluster) -> None:
    submit(up)
    advance_until(up, lambda: requests(up), 6.0)
    names = [pod["metadata"]["name"] for pod in up.list(PODS)]
    group = LackingGroup("podgroup", "default", "train", "other", [PodSet(3, names[0])], names)
    groups = [[group], []]

    async def lacking() -> list[LackingGroup]:
        return groups.pop(0)

    server = up.cluster.server
    client = Recording(server.client("test"), Rights(server.context.store), "phalanx-scheduler")
    made = ProvisioningRequests(client, CHECK, lacking, server.context.clock)  # type: ignore[arg-type]
    for _ in range(2):  # replaces the request of the running part, then deletes it
        up.call(made.reconcile())
    role = grants("phalanx-provisioning-requests", "components/provisioning-requests/role.yaml")
    assert {grant.use for grant in role} == set(client.uses)


def test_classes_have_short_names_and_wrong_ones_are_refused() -> None:
    assert class_name("check-capacity") == class_name(CHECK) == CHECK
    assert class_name("queued-provisioning.example.com") == "queued-provisioning.example.com"
    with pytest.raises(ConfigProblem, match="is not a class"):
        class_name("soon")
