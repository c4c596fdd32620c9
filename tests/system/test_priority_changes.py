"""Another priority for a set that runs: its roll-out goes on, and no pod waits in a group of another priority."""

from __future__ import annotations

from typing import Any

import pytest

from support.lifecycle.events import CLASS, priority_class
from support.lifecycle.looks import pods_of, priorities
from support.lifecycle.manifests import deployment, stateful_set
from support.simulated_cluster import simulated_cluster
from support.virtual_time import VirtualLoop, run

Json = dict[str, Any]


@pytest.mark.parametrize("back", [False, True])
def test_new_pods_of_a_deployment_are_in_a_group_of_their_priority(back: bool) -> None:
    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(4) as cluster:
            await cluster.apply(priority_class(100))
            await cluster.apply(deployment("w", 2))
            await cluster.settle()
            await cluster.patch("Deployment", "w", pods_of(CLASS))
            await cluster.settle(60)
            if back:
                await cluster.patch("Deployment", "w", pods_of(""))
                await cluster.settle(60)
            expected = 0 if back else 100
            assert priorities(cluster) == [("Running", expected)] * 2
            (group,) = cluster.all("PodGroup")
            assert group["spec"]["priority"] == expected

    run(main)


def test_pods_of_a_gang_keep_its_priority_until_it_starts_over() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(4) as cluster:
            await cluster.apply(priority_class(100))
            await cluster.apply(stateful_set("w", 3))
            await cluster.settle()
            old = {pod["metadata"]["uid"] for pod in cluster.all("Pod")}
            await cluster.patch("StatefulSet", "w", pods_of(CLASS))
            await cluster.settle(60)
            assert priorities(cluster) == [("Running", 0)] * 3
            assert not old & {pod["metadata"]["uid"] for pod in cluster.all("Pod")}, "the roll-out is complete"
            announced = [event["message"] for event in cluster.all("Event") if event["reason"] == "GroupsUnchanged"]
            assert announced
            assert "when StatefulSet w has no pods" in announced[0]
            for replicas in (0, 3):
                await cluster.patch("StatefulSet", "w", {"spec": {"replicas": replicas}})
                await cluster.settle(60)
            assert priorities(cluster) == [("Running", 100)] * 3

    run(main)


def test_a_workload_that_its_author_wrote_without_a_priority_takes_that_of_the_pods() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(4) as cluster:
            await cluster.apply(priority_class(100))
            about = {"apiGroup": "apps", "kind": "StatefulSet", "name": "w"}
            gang = {"name": "all", "schedulingPolicy": {"gang": {"minCount": 2}}}
            await cluster.apply(
                {
                    "apiVersion": "scheduling.k8s.io/v1beta1",
                    "kind": "Workload",
                    "metadata": {"name": "mine"},
                    "spec": {"controllerRef": about, "podGroupTemplates": [gang]},
                }
            )
            body = stateful_set("w", 2)
            body["spec"]["template"]["spec"]["priorityClassName"] = CLASS
            await cluster.apply(body)
            await cluster.settle()
            assert priorities(cluster) == [("Running", 100)] * 2

    run(main)
