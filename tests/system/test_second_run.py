"""What has succeeded does not stand in for what is still to run: a minimum is about pods at the same time."""

from __future__ import annotations

from typing import Any

from support.manifests import container, job
from support.simulated_cluster import SimulatedCluster, simulated_cluster
from support.virtual_time import VirtualLoop, run

Json = dict[str, Any]
NODE_CPU = 4


def filler(number: int) -> Json:
    """Takes a whole node until it is deleted."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"filler-{number}"},
        "spec": {"containers": [container(NODE_CPU)], "priority": 0},
    }


def phases(cluster: SimulatedCluster, job_name: str) -> list[str]:
    return sorted(
        pod["status"]["phase"]
        for pod in cluster.all("Pod")
        if (pod["metadata"].get("labels") or {}).get("batch.kubernetes.io/job-name") == job_name
    )


async def take_half(cluster: SimulatedCluster) -> None:
    for number in range(2):
        await cluster.apply(filler(number))
    await cluster.settle()


def nodes(cluster_nodes: int = 4) -> Any:
    return simulated_cluster(cluster_nodes, topology=f"cpu={NODE_CPU}")


async def runs_whole_or_not_at_all(cluster: SimulatedCluster, second: Json) -> None:
    """Half the nodes are taken when the second run comes; it waits, and runs whole when they are free again."""
    await take_half(cluster)
    await cluster.apply(second)
    await cluster.settle()
    assert phases(cluster, second["metadata"]["name"]) == ["Pending"] * 4
    for number in range(2):
        await cluster.delete("Pod", f"filler-{number}")
    await cluster.settle(quiet=3)
    assert phases(cluster, second["metadata"]["name"]) == ["Running"] * 4


def test_a_workload_used_by_a_second_job_asks_for_its_whole_minimum_again() -> None:
    link = {"workloadRef": {"name": "w", "podGroup": "pods"}}

    async def main(loop: VirtualLoop) -> None:
        async with nodes() as cluster:
            pods = {"name": "pods", "policy": {"gang": {"minCount": 4}}}
            about = {"apiGroup": "batch", "kind": "Job", "name": "run1"}
            await cluster.apply(
                {
                    "apiVersion": "scheduling.k8s.io/v1alpha1",
                    "kind": "Workload",
                    "metadata": {"name": "w"},
                    "spec": {"podGroups": [pods], "controllerRef": about},
                }
            )
            await cluster.apply(job("run1", 4, NODE_CPU, pod=link, run=10))
            await cluster.settle(quiet=30)
            assert phases(cluster, "run1") == ["Succeeded"] * 4
            await runs_whole_or_not_at_all(cluster, job("run2", 4, NODE_CPU, pod=link, run=1000))

    run(main)


def test_a_pod_group_used_twice_asks_for_its_whole_minimum_again() -> None:
    link = {"schedulingGroup": {"podGroupName": "g"}}

    async def main(loop: VirtualLoop) -> None:
        async with nodes() as cluster:
            await cluster.apply(
                {
                    "apiVersion": "scheduling.k8s.io/v1beta1",
                    "kind": "PodGroup",
                    "metadata": {"name": "g"},
                    "spec": {"schedulingPolicy": {"gang": {"minCount": 4}}},
                }
            )
            await cluster.apply(job("run1", 4, NODE_CPU, pod=link, run=10))
            await cluster.settle(quiet=30)
            assert phases(cluster, "run1") == ["Succeeded"] * 4
            await runs_whole_or_not_at_all(cluster, job("run2", 4, NODE_CPU, pod=link, run=1000))

    run(main)


def test_the_second_wave_of_a_gang_job_starts_whole() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with nodes() as cluster:
            await cluster.apply(job("waves", 4, NODE_CPU, completions=8, run=10, gang=True))
            await cluster.settle(quiet=2)
            assert phases(cluster, "waves") == ["Running"] * 4
            await take_half(cluster)  # they wait for room, and get it before the second wave: they asked first
            for number in range(2):
                found = cluster.get("Pod", f"filler-{number}")
                assert found is not None
                assert found["status"]["phase"] == "Running"
            await cluster.settle(quiet=30)
            assert phases(cluster, "waves") == ["Pending"] * 4 + ["Succeeded"] * 4
            for number in range(2):
                await cluster.delete("Pod", f"filler-{number}")
            await cluster.settle(quiet=30)
            assert phases(cluster, "waves") == ["Succeeded"] * 8

    run(main)


def test_the_last_wave_may_be_smaller_than_the_minimum() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with nodes() as cluster:
            await cluster.apply(job("waves", 4, NODE_CPU, completions=6, run=10, gang=True))
            await cluster.settle(quiet=40)
            assert phases(cluster, "waves") == ["Succeeded"] * 6

    run(main)


def test_a_failed_pod_is_replaced_when_the_others_have_finished() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with nodes() as cluster:
            indexed = job("mixed", 4, NODE_CPU, run=10, gang=True)
            indexed["spec"]["completionMode"] = "Indexed"
            await cluster.apply(indexed)
            await cluster.settle(quiet=2)
            (last,) = [pod for pod in cluster.all("Pod") if pod["metadata"]["name"].startswith("mixed-3-")]
            gone = {"status": {"phase": "Failed"}}
            await cluster.patch("Pod", last["metadata"]["name"], gone, subresource="status")
            await cluster.settle(quiet=60)
            assert phases(cluster, "mixed") == ["Failed", *["Succeeded"] * 4]

    run(main)


def test_a_suspended_job_of_which_some_pods_are_done_goes_on_with_the_rest() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with nodes() as cluster:
            half = job("half", 4, NODE_CPU, run=1000, gang=True)
            await cluster.apply(half)
            await cluster.settle(quiet=2)
            for pod in cluster.all("Pod")[:2]:
                ended = {"status": {"phase": "Succeeded"}}
                await cluster.patch("Pod", pod["metadata"]["name"], ended, subresource="status")
            await cluster.settle(quiet=2)
            await cluster.patch("Job", "half", {"spec": {"suspend": True}})
            await cluster.settle(quiet=2)
            assert phases(cluster, "half") == ["Succeeded"] * 2
            await cluster.patch("Job", "half", {"spec": {"suspend": False}})
            await cluster.settle(quiet=2)
            assert phases(cluster, "half") == ["Running"] * 2 + ["Succeeded"] * 2

    run(main)
