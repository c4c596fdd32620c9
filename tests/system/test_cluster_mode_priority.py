"""Another priority for a gang that runs holds when it starts over, also in cluster mode."""

from __future__ import annotations

import pytest

from support.lifecycle.cluster_mode import beside_cluster
from support.lifecycle.events import CLASS, priority_class
from support.lifecycle.looks import pods_of, priorities
from support.lifecycle.manifests import stateful_set
from support.simulated_cluster import simulated_cluster
from support.virtual_time import VirtualLoop, run


@pytest.mark.parametrize("where", ["local", "native", "custom resources"])
@pytest.mark.parametrize(("before", "after"), [("", CLASS), (CLASS, "")])
def test_a_roll_out_goes_on_with_the_gangs_priority(where: str, before: str, after: str) -> None:
    async def main(loop: VirtualLoop) -> None:
        made = simulated_cluster(4) if where == "local" else beside_cluster(4, native=where == "native")
        async with made as cluster:
            await cluster.apply(priority_class(100))
            body = stateful_set("w", 3)
            if before:
                body["spec"]["template"]["spec"]["priorityClassName"] = before
            await cluster.apply(body)
            await cluster.settle()
            worth = {"": 0, CLASS: 100}
            old = {pod["metadata"]["uid"] for pod in cluster.all("Pod")}
            await cluster.patch("StatefulSet", "w", pods_of(after))
            await cluster.settle(60)
            assert priorities(cluster) == [("Running", worth[before])] * 3
            assert not old & {pod["metadata"]["uid"] for pod in cluster.all("Pod")}, "the roll-out is complete"
            announced = [event["message"] for event in cluster.all("Event") if event["reason"] == "GroupsUnchanged"]
            assert announced, "its author can read when the new priority will hold"
            for replicas in (0, 3):
                await cluster.patch("StatefulSet", "w", {"spec": {"replicas": replicas}})
                await cluster.settle(60)
            assert priorities(cluster) == [("Running", worth[after])] * 3

    run(main)
