"""The whole product on virtual time: workloads live through hours in moments, and every run of a seed is the same."""

from __future__ import annotations

from typing import Any

from support.manifests import job
from support.simulated_cluster import SimulatedCluster, simulated_cluster
from support.virtual_time import VirtualLoop, run

Json = dict[str, Any]


async def phases(cluster: SimulatedCluster) -> list[str]:
    await cluster.settle()
    return [pod["status"]["phase"] for pod in cluster.all("Pod")]


def test_a_gang_of_an_hour_runs_and_ends() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(2) as cluster:
            await cluster.apply(job("long", 3, 1, gang=True, run=3600))
            assert await phases(cluster) == ["Running"] * 3
            assert loop.time() < 60
            await cluster.settle(quiet=3700)
            assert [pod["status"]["phase"] for pod in cluster.all("Pod")] == ["Succeeded"] * 3
            found = cluster.get("Job", "long")
            assert found is not None
            assert found["status"]["succeeded"] == 3

    run(main)


def test_the_same_seed_is_the_same_history_to_the_byte() -> None:
    async def main(loop: VirtualLoop) -> str:
        async with simulated_cluster(2, seed=7) as cluster:
            await cluster.apply(job("a", 2, 1, gang=True, run=5))
            await cluster.settle()
            await cluster.kill("controllers")
            await cluster.apply(job("b", 3, 1, gang=True, run=50))
            await cluster.start_controllers()
            await cluster.settle(quiet=100)
            return cluster.history

    assert run(main) == run(main)


def test_a_scheduler_that_was_killed_is_replaced_by_another() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(2) as cluster:
            await cluster.kill("scheduler")
            await cluster.apply(job("waits", 2, 1, gang=True, run=100))
            assert await phases(cluster) == ["Pending"] * 2
            await cluster.start_scheduler("another")
            assert await phases(cluster) == ["Running"] * 2

    run(main)


def test_a_pod_that_is_placed_at_once_costs_a_bind_and_an_event() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(4) as cluster:
            for number in range(5):
                await cluster.apply(job(f"j{number}", 8, 1, gang=True, run=3600))
            await cluster.settle()
            written = cluster.schedulers["scheduler"].observed.writes
            assert written["create", "pods/binding"] == 40
            assert written["create", "events"] <= 40 + 5  # and one per group
            assert not written["patch", "pods/status"]
            assert written["patch", "podgroups/status"] <= 2 * 5

    run(main)


def test_a_gang_that_waits_for_members_says_so_after_a_moment() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(4) as cluster:
            group = {"schedulingPolicy": {"gang": {"minCount": 2}}}
            about = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": {"name": "g"}}
            await cluster.apply({**about, "spec": group})
            spec = {"schedulingGroup": {"podGroupName": "g"}, "containers": [{"name": "c", "image": "busybox"}]}
            await cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "alone"}, "spec": spec})
            await cluster.settle()
            (pod,) = cluster.all("Pod")
            reasons = {each["type"]: each.get("reason") for each in pod["status"]["conditions"]}
            assert reasons["PodScheduled"] == "WaitingForMembers"

    run(main)
