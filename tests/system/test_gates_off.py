"""What a gate that is off takes away is reported."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from support.lifecycle.manifests import job, jobset, pod_specs, stateful_set

if TYPE_CHECKING:
    from support.local_cluster import LocalCluster

Json = dict[str, Any]

GROUP = {
    "apiVersion": "scheduling.k8s.io/v1beta1",
    "kind": "PodGroup",
    "metadata": {"name": "leaf"},
    "spec": {
        "schedulingPolicy": {"basic": {}},
        "workloadRef": {"workloadName": "w", "templateName": "t"},
        "parentCompositePodGroupName": "root",
    },
}
WHERE = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups"


@pytest.mark.parametrize("applied", [False, True])
def test_a_parent_that_is_dropped_is_reported_with_a_warning(
    start_cluster: Callable[..., LocalCluster], applied: bool
) -> None:
    cluster = start_cluster(
        gates="CompositePodGroup=false", run_nodes=False, run_controllers=False, run_scheduler=False
    )
    if applied:
        reply = cluster.ask(
            "PATCH", f"{WHERE}/leaf", GROUP, content_type="application/apply-patch+yaml", fieldManager="me"
        )
    else:
        reply = cluster.ask("POST", WHERE, GROUP)
    assert reply.code == 201
    assert "parentCompositePodGroupName" not in reply.json["spec"]
    assert "spec.parentCompositePodGroupName is not stored" in reply.headers["warning"]
    assert "CompositePodGroup, which is off" in reply.headers["warning"]
    (event,) = events_about(cluster, "PodGroup", "leaf")
    assert "spec.parentCompositePodGroupName is not stored" in event["message"]


LINK = {"schedulingGroup": {"podGroupName": "by-hand"}}


@pytest.mark.parametrize(
    ("body", "where", "field"),
    [
        (job("j"), "/apis/batch/v1/namespaces/default/jobs", "spec.template.spec.schedulingGroup"),
        (
            jobset("s"),
            "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets",
            "spec.replicatedJobs[0].template.spec.template.spec.schedulingGroup",
        ),
        (stateful_set("f"), "/apis/apps/v1/namespaces/default/statefulsets", "spec.template.spec.schedulingGroup"),
    ],
)
def test_a_link_that_is_dropped_from_a_template_is_reported(
    start_cluster: Callable[..., LocalCluster], body: Json, where: str, field: str
) -> None:
    cluster = start_cluster(
        gates="GenericWorkload=false,GangScheduling=false,TopologyAwareWorkloadScheduling=false,"
        "CompositePodGroup=false,WorkloadWithJob=false",
        run_nodes=False,
        run_controllers=False,
        run_scheduler=False,
    )
    body = copy.deepcopy(body)
    for spec in pod_specs(body):
        spec |= LINK
    reply = cluster.ask("POST", where, body)
    assert reply.code == 201, reply.json
    assert "schedulingGroup" not in json.dumps(reply.json["spec"])
    announced = f"{field} is not stored: it needs the feature gate GenericWorkload"
    assert announced in reply.headers["warning"]
    (event,) = events_about(cluster, body["kind"], body["metadata"]["name"])
    assert announced in event["message"]


def events_about(cluster: LocalCluster, kind: str, name: str) -> list[Json]:
    """As `kubectl describe` finds them."""
    found: list[Json] = cluster.get("/api/v1/namespaces/default/events")["items"]
    return [e for e in found if (e["involvedObject"]["kind"], e["involvedObject"]["name"]) == (kind, name)]


def test_nothing_is_reported_where_nothing_is_dropped(server: LocalCluster, namespace: str) -> None:
    reply = server.ask("POST", WHERE.replace("default", namespace), GROUP)
    assert reply.json["spec"]["parentCompositePodGroupName"] == "root"
    assert "warning" not in reply.headers
