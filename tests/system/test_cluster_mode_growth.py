"""In cluster mode: a gang that grows does not start in part, however late its group is."""

from __future__ import annotations

from typing import Any

import pytest

from support.lifecycle.cluster_mode import BesideCluster, beside_cluster
from support.lifecycle.crashes import Crash
from support.lifecycle.events import CLASS, priority_class
from support.lifecycle.manifests import stateful_set
from support.virtual_time import VirtualLoop, run

Json = dict[str, Any]
GATE = "scheduling.phalanx.dev/group-size"


@pytest.mark.parametrize("native", [True, False])
def test_pods_wait_until_the_minimum_of_their_gang_is_raised(native: bool) -> None:
    async def main(loop: VirtualLoop) -> None:
        crash = Crash()
        async with beside_cluster(5, native=native, crash=crash) as cluster:
            await cluster.apply(stateful_set("w", 3, "3"))
            await cluster.settle()
            assert running(cluster) == 3
            crash.arm(1, answered=False)  # the webhook answers, but no controller writes groups
            await cluster.patch("StatefulSet", "w", {"spec": {"replicas": 6}})
            await cluster.settle(60)
            assert running(cluster) == 3, "there is room for five, and the sixth would be missing"
            gated = [pod for pod in cluster.all("Pod") if pod["spec"].get("schedulingGates")]
            assert [pod["spec"]["schedulingGates"] for pod in gated] == [[{"name": GATE}]] * 3
            await cluster.kill("controllers")
            await cluster.start_controllers()
            await cluster.settle(60)
            assert running(cluster) == 3
            assert not [pod for pod in cluster.all("Pod") if pod["spec"].get("schedulingGates")]
            (group,) = cluster.all("PodGroup")
            assert group["spec"]["schedulingPolicy"]["gang"]["minCount"] == 6
            await cluster.patch("StatefulSet", "w", {"spec": {"replicas": 5}})
            await cluster.settle(60)
            assert running(cluster) == 5

    run(main)


@pytest.mark.parametrize("native", [True, False])
def test_the_minimum_follows_though_the_class_of_the_pods_has_another_value_by_now(native: bool) -> None:
    async def main(loop: VirtualLoop) -> None:
        async with beside_cluster(5, native=native) as cluster:
            await cluster.apply(priority_class(100))
            body = stateful_set("w", 3)
            body["spec"]["template"]["spec"]["priorityClassName"] = CLASS
            await cluster.apply(body)
            await cluster.settle()
            await cluster.delete("PriorityClass", CLASS)
            await cluster.apply(priority_class(300))
            for size in (2, 4):
                await cluster.patch("StatefulSet", "w", {"spec": {"replicas": size}})
                await cluster.settle(60)
                (group,) = cluster.all("PodGroup")
                assert group["spec"]["schedulingPolicy"]["gang"]["minCount"] == size
                assert group["spec"]["priority"] == 100, "what the class was worth when the group was made"

    run(main)


def running(cluster: BesideCluster) -> int:
    return sum(pod["status"].get("phase") == "Running" for pod in cluster.all("Pod"))
