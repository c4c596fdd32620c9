"""What a gate that is off takes away is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from local_cluster import LocalCluster

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
def test_a_parent_that_is_dropped_is_told_with_a_warning(
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


def test_nothing_is_told_where_nothing_is_dropped(server: LocalCluster, namespace: str) -> None:
    reply = server.ask("POST", WHERE.replace("default", namespace), GROUP)
    assert reply.json["spec"]["parentCompositePodGroupName"] == "root"
    assert "warning" not in reply.headers
