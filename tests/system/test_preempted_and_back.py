"""A gang that was preempted and is made again is no longer about to go."""

from __future__ import annotations

from typing import Any

import pytest

from support.lifecycle.manifests import job
from support.simulated_cluster import SimulatedCluster, simulated_cluster
from support.virtual_time import VirtualLoop, run

Json = dict[str, Any]


def target(cluster: SimulatedCluster) -> str:
    (group,) = [obj for obj in cluster.all("PodGroup") if obj["metadata"]["name"].startswith("low")]
    found = [c for c in (group.get("status") or {}).get("conditions") or () if c["type"] == "DisruptionTarget"]
    return str(found[0]["status"]) if found else ""


def phases(cluster: SimulatedCluster) -> list[str]:
    return [pod["status"]["phase"] for pod in cluster.all("Pod") if pod["metadata"]["name"].startswith("low")]


@pytest.mark.parametrize("restart", [False, True])
def test_disruption_target_ends_when_the_members_run_again(restart: bool) -> None:
    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(3, topology="cpu=4") as cluster:
            await cluster.apply(
                {
                    "apiVersion": "scheduling.k8s.io/v1",
                    "kind": "PriorityClass",
                    "metadata": {"name": "high"},
                    "value": 1000,
                }
            )
            low = job("low", 3, "3")
            low["spec"]["scheduling"] = {"schedulingPolicy": {"gang": {}}, "disruptionMode": {"all": {}}}
            del low["metadata"]["annotations"]
            await cluster.apply(low)
            await cluster.settle()
            assert phases(cluster) == ["Running"] * 3
            high = job("high", 2, "3")
            high["spec"]["template"]["spec"]["priorityClassName"] = "high"
            await cluster.apply(high)
            await cluster.settle(quiet=60)
            assert phases(cluster) == ["Pending"] * 3
            assert target(cluster) == "True"
            if restart:
                await cluster.kill("scheduler")
                await cluster.start_scheduler()
                await cluster.settle()
                assert target(cluster) == "True"
            await cluster.delete("Job", "high", propagation="Background")
            await cluster.settle(quiet=60)
            assert phases(cluster) == ["Running"] * 3
            assert target(cluster) == "False"

    run(main)
