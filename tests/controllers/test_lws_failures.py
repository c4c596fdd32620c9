"""LeaderWorkerSets under failures: invalid specs, deleted groups, controllers that stop."""

from __future__ import annotations

import asyncio

import pytest

from support.controller_world import DyingClient, condition, image_of, world
from support.lws_objects import done, group_of, lws, new_image
from support.manifests import template


def test_what_cannot_work_is_reported_and_starts_nothing() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            await cluster.create("PriorityClass", "high", value=5)
            leader = template("100m", app="vllm")
            leader["spec"]["priorityClassName"] = "high"
            await cluster.apply(lws("vllm", 1, 2, scheduling={}, template={"leaderTemplate": leader}))
            found = await cluster.until(
                "LeaderWorkerSet", "vllm", when=lambda o: condition(o, "WorkloadSchedulingReady")
            )
            assert condition(found, "WorkloadSchedulingReady")["status"] == "False"
            assert "same priorityClassName" in condition(found, "WorkloadSchedulingReady")["message"]
            await cluster.eventually("Event", lambda events: any("priorityClassName" in e["message"] for e in events))
            assert not cluster.all("Pod") and not cluster.all("StatefulSet")
            fix = {"spec": {"leaderWorkerTemplate": {"leaderTemplate": template("100m", app="vllm")}}}
            fix["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["spec"]["priorityClassName"] = None
            await cluster.patch("LeaderWorkerSet", "vllm", fix)
            found = await done(cluster, "vllm")
            assert condition(found, "WorkloadSchedulingReady")["status"] == "True"

    asyncio.run(scenario())


def test_a_clash_with_an_object_of_the_user_is_reported_and_starts_nothing() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            plan = {"name": "replica", "schedulingPolicy": {"gang": {"minCount": 7}}}
            await cluster.create("Workload", "vllm", spec={"podGroupTemplates": [plan]})
            await cluster.apply(lws("vllm", 1, 2, scheduling={}))
            found = await cluster.until(
                "LeaderWorkerSet", "vllm", when=lambda o: condition(o, "WorkloadSchedulingReady")
            )
            assert condition(found, "WorkloadSchedulingReady")["reason"] == "NameConflict"
            assert not cluster.all("Pod")
            await cluster.delete("Workload", "vllm")
            await done(cluster, "vllm")

    asyncio.run(scenario())


def test_a_group_deleted_under_a_running_replica_comes_back_with_it() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            await cluster.apply(lws("vllm", 1, 2, scheduling={}))
            await done(cluster, "vllm")
            (name,) = cluster.names("PodGroup")
            await cluster.delete("PodGroup", name)
            leader = cluster.look("Pod", "vllm-0")
            assert leader is not None and "deletionTimestamp" not in leader["metadata"], "running pods are left alone"
            await cluster.delete("Pod", "vllm-0-1")
            await cluster.until("PodGroup", name, when=lambda g: "deletionTimestamp" not in g["metadata"])
            await done(cluster, "vllm")

    asyncio.run(scenario())


@pytest.mark.parametrize("writes", [1, 2, 3, 4, 5, 7, 9, 12])
def test_killed_at_any_write_it_ends_up_the_same(writes: int) -> None:
    async def scenario() -> None:
        async with world(controllers=False) as cluster:
            dying = DyingClient(cluster.client, writes)
            await cluster.start_controllers(dying)
            await cluster.apply(lws("vllm", 2, 2, scheduling={}))
            await asyncio.wait_for(dying.died.wait(), 90)
            await cluster.kill_controllers()
            await cluster.start_controllers()
            await done(cluster, "vllm")
            assert cluster.names("Pod") == ["vllm-0", "vllm-0-1", "vllm-1", "vllm-1-1"]
            assert len(cluster.names("PodGroup")) == 2 and cluster.names("Workload") == ["vllm"]

    asyncio.run(scenario())


@pytest.mark.parametrize("writes", [1, 3, 5, 8, 12, 20])
def test_killed_in_the_middle_of_a_roll_it_finishes_it(writes: int) -> None:
    async def scenario() -> None:
        async with world() as cluster:
            await cluster.apply(lws("vllm", 2, 2, scheduling={}))
            await done(cluster, "vllm")
            await cluster.kill_controllers()
            dying = DyingClient(cluster.client, writes)
            await cluster.start_controllers(dying)
            await cluster.patch("LeaderWorkerSet", "vllm", new_image("v2"))
            await asyncio.wait_for(dying.died.wait(), 90)
            await cluster.kill_controllers()
            await cluster.start_controllers()
            await done(cluster, "vllm")
            pods = await cluster.eventually("Pod", lambda pods: len(pods) == 4)
            assert {image_of(pod) for pod in pods} == {"v2"}
            groups = await cluster.eventually("PodGroup", lambda groups: len(groups) == 2)
            assert {group_of(pod) for pod in pods} == {group["metadata"]["name"] for group in groups}

    asyncio.run(scenario())


@pytest.mark.parametrize("writes", [2, 4, 6, 8, 10])
def test_deleted_half_way_nothing_is_left(writes: int) -> None:
    async def scenario() -> None:
        async with world(controllers=False) as cluster:
            dying = DyingClient(cluster.client, writes)
            await cluster.start_controllers(dying)
            await cluster.apply(lws("vllm", 2, 2, scheduling={}))
            await asyncio.wait_for(dying.died.wait(), 90)
            await cluster.delete("LeaderWorkerSet", "vllm", propagation="Background")
            await cluster.kill_controllers()
            await cluster.start_controllers()
            await cluster.gone("LeaderWorkerSet", "vllm")
            for kind in ("Pod", "StatefulSet", "PodGroup", "Workload", "ControllerRevision", "Service"):
                await cluster.eventually(kind, lambda found: not found)

    asyncio.run(scenario())
