"""A Workload says what became of its groups, so that people can wait for it."""

from __future__ import annotations

from typing import Any

import pytest

from support.lifecycle.cluster_mode import beside_cluster
from support.lifecycle.manifests import job, jobset, stateful_set
from support.simulated_cluster import SimulatedCluster, simulated_cluster
from support.virtual_time import VirtualLoop, run

Json = dict[str, Any]


def scheduled(cluster: SimulatedCluster, type_: str = "Scheduled") -> tuple[str, str]:
    (workload,) = cluster.all("Workload")
    found = [c for c in (workload.get("status") or {}).get("conditions") or () if c["type"] == type_]
    return (found[0]["status"], found[0]["message"]) if found else ("", "")


def counts(cluster: SimulatedCluster) -> tuple[int, ...]:
    (workload,) = cluster.all("Workload")
    return tuple(workload["status"].get(name, 0) for name in ("scheduledGroups", "groups", "scheduledPods", "pods"))


def first_version(minimum: int, *names: str) -> Json:
    groups = [{"name": name, "policy": {"gang": {"minCount": minimum}}} for name in names]
    return {
        "apiVersion": "scheduling.k8s.io/v1alpha1",
        "kind": "Workload",
        "metadata": {"name": "w"},
        "spec": {"podGroups": groups},
    }


def member(name: str, group: str, cpu: str = "3") -> Json:
    made = job("x", 1, cpu)["spec"]["template"]["spec"]
    spec = {**made, "workloadRef": {"name": "w", "podGroup": group}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def test_a_v1alpha1_workload_can_be_waited_for() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(3, topology="cpu=4") as cluster:
            await cluster.apply(first_version(2, "a", "b"))
            await cluster.settle()
            assert scheduled(cluster) == ("", ""), "no pod has used it yet"
            for number in range(2):
                await cluster.apply(member(f"a-{number}", "a"))
            await cluster.settle()
            assert scheduled(cluster, "a/Scheduled")[0] == "True"
            assert scheduled(cluster)[0] == "False"
            assert "no group of b yet" in scheduled(cluster)[1]
            for number in range(2):
                await cluster.apply(member(f"b-{number}", "b"))
            await cluster.settle()
            assert scheduled(cluster, "b/Scheduled")[0] == scheduled(cluster)[0] == "False", "one of them fits"
            assert counts(cluster) == (1, 2, 2, 4)
            await cluster.delete("Pod", "a-0")
            await cluster.settle()
            await cluster.delete("Pod", "a-1")
            await cluster.settle()
            assert scheduled(cluster, "b/Scheduled")[0] == "True"

    run(main)


@pytest.mark.parametrize("restart", [False, True])
def test_the_workload_of_a_job_follows_its_pods_and_is_written_once(restart: bool) -> None:
    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(3, topology="cpu=4") as cluster:
            await cluster.apply(job("j", 3, "3"))
            await cluster.settle()
            assert scheduled(cluster)[0] == "True"
            assert counts(cluster) == (1, 1, 3, 3)
            (before,) = cluster.all("Workload")
            if restart:
                await cluster.kill("scheduler")
                await cluster.start_scheduler()
                await cluster.settle(quiet=60)
            (after,) = cluster.all("Workload")
            assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
            await cluster.patch("Workload", after["metadata"]["name"], {"metadata": {"labels": {"a": "b"}}})
            await cluster.settle()
            assert scheduled(cluster)[0] == "True", "an edit does not lose the status"

    run(main)


def test_a_workload_counts_the_lost_member_of_a_gang_as_its_group_does() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(3, topology="cpu=4") as cluster:
            await cluster.apply(first_version(2, "a"))
            for number in range(2):
                await cluster.apply(member(f"a-{number}", "a"))
            await cluster.settle()
            assert counts(cluster) == (1, 1, 2, 2)
            await cluster.delete("Pod", "a-0")
            await cluster.settle()
            assert counts(cluster) == (0, 1, 1, 2), "one of the two pods that it needs has a node"
            assert "1 of 2 pods have a node" in scheduled(cluster)[1]

    run(main)


def test_the_workload_of_a_jobset_counts_all_its_groups() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(3, topology="cpu=4") as cluster:
            await cluster.apply(jobset("js", 2, 2, "1"))
            await cluster.settle()
            assert scheduled(cluster)[0] == "True"
            assert counts(cluster)[2:] == (4, 4)

    run(main)


def test_a_workload_that_is_a_custom_resource_has_a_status_too() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with beside_cluster(3, native=False) as cluster:
            await cluster.apply(stateful_set("w", 3, "3"))
            await cluster.settle()
            (workload,) = cluster.all("Workload")
            assert workload["apiVersion"] == "scheduling.phalanx.dev/v1beta1"
            assert scheduled(cluster)[0] == "True"
            assert counts(cluster) == (1, 1, 3, 3)
            await cluster.patch("StatefulSet", "w", {"spec": {"replicas": 4}})
            await cluster.settle(60)
            assert scheduled(cluster)[0] == "False"
            assert counts(cluster) == (0, 1, 3, 4)

    run(main)
