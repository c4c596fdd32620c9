"""A group that is deleted goes: nothing new joins it, nothing that can never be used holds it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.lifecycle.manifests import EVERY_KIND, deployment, job, jobset, template
from support.simulated_cluster import SimulatedCluster, simulated_cluster
from support.virtual_time import VirtualLoop, run

Json = dict[str, Any]


def pods(cluster: SimulatedCluster) -> list[tuple[str, str]]:
    return [(pod["status"]["phase"], pod["spec"].get("nodeName", "")) for pod in cluster.all("Pod")]


def uids(cluster: SimulatedCluster, kind: str) -> set[str]:
    return {obj["metadata"]["uid"] for obj in cluster.all(kind)}


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_deleting_groups_and_pods_together_ends_and_the_workload_comes_back(kind: str) -> None:
    """kubectl delete podgroup,pod --all"""

    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(4) as cluster:
            await cluster.apply(EVERY_KIND[kind]("w"))
            await cluster.settle()
            groups, members = uids(cluster, "PodGroup"), uids(cluster, "Pod")
            assert groups
            assert all(phase == "Running" for phase, _ in pods(cluster))
            for group in cluster.all("PodGroup"):
                await cluster.delete("PodGroup", group["metadata"]["name"])
            for pod in cluster.all("Pod"):
                await cluster.delete("Pod", pod["metadata"]["name"])
            await cluster.settle(quiet=60)
            assert not groups & uids(cluster, "PodGroup"), "the old groups are gone"
            assert not members & uids(cluster, "Pod"), "the old pods are gone"
            assert len(uids(cluster, "Pod")) == len(members)
            assert all(phase == "Running" for phase, _ in pods(cluster))
            assert len(uids(cluster, "PodGroup")) == len(groups)

    run(main)


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_set_suspended_while_its_group_is_going_waits_and_writes_nothing_meanwhile(jobs: int) -> None:
    """Seen: its Workload was deleted and made again without end."""

    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(4) as cluster:
            made = jobset("w", jobs, 1)
            made["metadata"]["annotations"] = {"scheduling.phalanx.dev/group-tree": "Job"}
            await cluster.apply(made)
            await cluster.settle()
            groups = uids(cluster, "PodGroup")
            assert len(groups) == jobs
            await cluster.delete("PodGroup", cluster.all("PodGroup")[0]["metadata"]["name"])
            workloads = uids(cluster, "Workload")
            await cluster.patch("JobSet", "w", {"spec": {"suspend": True}})
            await asyncio.sleep(5)
            before = cluster.store.revision
            await asyncio.sleep(15)  # its pods have 30 s to end
            assert cluster.store.revision < before + 10, "nothing but heartbeats"
            await cluster.settle(60)
            assert not groups & uids(cluster, "PodGroup")
            assert len(uids(cluster, "PodGroup")) == jobs
            assert workloads == uids(cluster, "Workload")
            await cluster.patch("JobSet", "w", {"spec": {"suspend": False}})
            await cluster.settle(60)
            assert all(phase == "Running" for phase, _ in pods(cluster))

    run(main)


@pytest.mark.parametrize("restart", [False, True])
def test_a_replacement_waits_until_the_group_that_is_going_is_gone(restart: bool) -> None:
    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(4) as cluster:
            await cluster.apply(job("w", 3))
            await cluster.settle()
            (group,) = cluster.all("PodGroup")
            name, uid = group["metadata"]["name"], group["metadata"]["uid"]
            await cluster.delete("PodGroup", name)
            first, *others = (pod["metadata"]["name"] for pod in cluster.all("Pod"))
            await cluster.delete("Pod", first)
            await cluster.settle(quiet=60)
            assert uids(cluster, "PodGroup") == {uid}, "two of its pods run"
            (waiting,) = [pod for pod in cluster.all("Pod") if pod["metadata"]["name"] not in others]
            (announced,) = [c for c in waiting["status"]["conditions"] if c["type"] == "PodScheduled"]
            assert announced["status"] == "False"
            assert f"PodGroup {name} (made again)" in announced["message"]
            if restart:
                await cluster.kill("scheduler")
                await cluster.start_scheduler()
                await cluster.settle(quiet=60)
                found = cluster.get("Pod", waiting["metadata"]["name"])
                assert found is not None
                assert "nodeName" not in found["spec"]
            for other in others:
                await cluster.delete("Pod", other)
            await cluster.settle(quiet=60)
            assert len(cluster.all("PodGroup")) == 1
            assert uids(cluster, "PodGroup") != {uid}
            assert [phase for phase, _ in pods(cluster)] == ["Running"] * 3
            assert waiting["metadata"]["uid"] in uids(cluster, "Pod"), (
                "the one that waited did not have to be made again"
            )

    run(main)


def test_a_roll_out_goes_on_when_the_group_of_its_pods_was_deleted() -> None:
    """Old pods keep the group that is going; new ones have the next at once, and so the old ones can go."""

    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(4) as cluster:
            await cluster.apply(deployment("w", 2))
            await cluster.settle()
            (group,) = cluster.all("PodGroup")
            old = uids(cluster, "Pod")
            await cluster.delete("PodGroup", group["metadata"]["name"])
            await cluster.settle()
            assert {pod["spec"]["schedulingGroup"]["podGroupName"] for pod in cluster.all("Pod")} == {
                group["metadata"]["name"]
            }
            began = loop.time()
            pods_ = template("1")
            pods_["spec"]["containers"][0]["image"] = "v2"
            await cluster.patch("Deployment", "w", {"spec": {"template": pods_}})
            while old & uids(cluster, "Pod"):
                assert loop.time() - began < 20, "no pod has to wait for a retry"
                await cluster.settle(0.5, 0.5)
            await cluster.settle()
            assert [phase for phase, _ in pods(cluster)] == ["Running"] * 2
            (left,) = cluster.all("PodGroup")
            assert left["metadata"]["uid"] != group["metadata"]["uid"]
            assert {pod["spec"]["schedulingGroup"]["podGroupName"] for pod in cluster.all("Pod")} == {
                left["metadata"]["name"]
            }
            await cluster.delete("Deployment", "w")
            await cluster.settle()
            assert not cluster.all("PodGroup")

    run(main)


def composite(name: str, parent: str) -> Json:
    return {
        "apiVersion": "scheduling.k8s.io/v1alpha3",
        "kind": "CompositePodGroup",
        "metadata": {"name": name},
        "spec": {
            "schedulingPolicy": {"basic": {}},
            "workloadRef": {"workloadName": "w", "templateName": "t"},
            "parentCompositePodGroupName": parent,
        },
    }


@pytest.mark.parametrize("parents", [{"c1": "c2", "c2": "c1"}, {"c1": "c1"}, {"c1": "c2", "c2": "c3", "c3": "c1"}])
@pytest.mark.parametrize("how", ["all", "one", "namespace"])
def test_composites_that_are_their_own_ancestors_can_be_deleted(parents: dict[str, str], how: str) -> None:
    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(1) as cluster:
            space = "ring"
            await cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}})
            for name, parent in parents.items():
                await cluster.apply(composite(name, parent), space)
            await cluster.apply(composite("below", "c1"), space)
            await cluster.settle()
            if how == "namespace":
                await cluster.delete("Namespace", space)
                await cluster.settle(quiet=30)
                assert cluster.get("Namespace", space) is None
                return
            gone = list(parents) if how == "all" else ["c1"]
            for name in gone:
                await cluster.delete("CompositePodGroup", name, space)
            await cluster.settle(quiet=30)
            left = {obj["metadata"]["name"] for obj in cluster.all("CompositePodGroup", space)}
            assert left == {"below", *parents} - set(gone)

    run(main)
