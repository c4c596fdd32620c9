"""Sets that cannot or need not act make no requests: while they are deleted, and while their pods are rejected."""

from __future__ import annotations

from typing import Any

import pytest

from support.manifests import apps_set, template
from support.simulated_cluster import simulated_cluster
from support.virtual_time import VirtualLoop, run

Json = dict[str, Any]


def a_set(kind: str, **spec: Any) -> Json:
    return apps_set(kind, "w", template(app="x", terminationGracePeriodSeconds=20), **spec)


@pytest.mark.parametrize("made", [a_set("StatefulSet", replicas=3, serviceName="w"), a_set("DaemonSet")])
def test_a_set_that_is_going_makes_no_revisions_of_its_template(made: Json) -> None:
    async def main(loop: VirtualLoop) -> list[str]:
        async with simulated_cluster(3) as cluster:
            await cluster.apply(made)
            await cluster.settle()
            assert len(cluster.all("ControllerRevision")) == 1
            announced: list[str] = []
            cluster.follow("ControllerRevision", lambda obj, gone: announced.append("gone" if gone else "made"))
            await cluster.delete(made["kind"], "w", propagation="Foreground")
            await cluster.settle()
            assert cluster.get(made["kind"], "w") is None and not cluster.all("Pod")
            return announced

    assert run(main) == ["gone"]


def test_a_replica_set_whose_pods_are_refused_says_so_once() -> None:
    refused = a_set("ReplicaSet", replicas=1)
    refused["metadata"]["annotations"] = {"scheduling.phalanx.dev/gang": "true"}

    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(1) as cluster:
            await cluster.apply(refused)
            await cluster.settle()
            announced = cluster.get("ReplicaSet", "w")
            assert announced is not None and "cannot be a gang" in announced["status"]["conditions"][0]["message"]
            assert await cluster.settle(60, 300)  # and is quiet
            assert cluster.get("ReplicaSet", "w") == announced

    run(main)
