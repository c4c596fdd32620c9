"""The deadlock of kubernetes-sigs/lws issue 167: leaders take all the room, and no group is ever complete."""

from __future__ import annotations

import asyncio

from support.controller_world import Json, World, condition, world
from support.lws_objects import P, lws
from support.manifests import template
from support.states import placed, serves

ROOM = "racks=1,cpu=2,pods=10"  # two nodes of two cores each: four pods of one core, that is two groups of two


async def quiet(cluster: World, count: int) -> list[Json]:
    """All pods exist and each is either placed or says why not."""

    def settled(pods: list[Json]) -> bool:
        return len(pods) == count and all(
            pod["spec"].get("nodeName") or condition(pod, "PodScheduled").get("reason") == "Unschedulable"
            for pod in pods
        )

    return await cluster.eventually("Pod", settled)


def test_without_groups_the_leaders_take_everything() -> None:
    async def scenario() -> None:
        async with world(nodes=2, topology=ROOM) as cluster:
            await cluster.apply(lws("vllm", 4, 2, cpu="1"))
            pods = await quiet(cluster, 8)
            assert placed(pods) == ["vllm-0", "vllm-1", "vllm-2", "vllm-3"]
            found = cluster.look("LeaderWorkerSet", "vllm")
            assert found is not None and not found["status"].get("readyReplicas"), "all room is used and nothing serves"

    asyncio.run(scenario())


def test_with_groups_as_many_replicas_serve_as_there_is_room_for() -> None:
    async def scenario() -> None:
        async with world(nodes=2, topology=ROOM) as cluster:
            await cluster.apply(lws("vllm", 4, 2, cpu="1", scheduling={}))
            found = await cluster.until(
                "LeaderWorkerSet", "vllm", when=lambda o: o.get("status", {}).get("readyReplicas") == 2
            )
            assert condition(found, "Available").get("status") != "True"
            pods = await quiet(cluster, 8)
            whole = [pod["metadata"]["labels"][f"{P}group-index"] for pod in pods if pod["spec"].get("nodeName")]
            assert len(whole) == 4 and sorted(set(whole)) == sorted(whole)[::2], "two groups, each complete"
            # Room that comes free goes to the next whole group.
            await cluster.patch("LeaderWorkerSet", "vllm", {"spec": {"replicas": 2}})
            await cluster.until(
                "LeaderWorkerSet", "vllm", when=lambda o: condition(o, "Available").get("status") == "True"
            )

    asyncio.run(scenario())


def test_leaders_that_come_first_are_not_started_without_their_workers() -> None:
    async def scenario() -> None:
        async with world(nodes=2, topology=ROOM) as cluster:
            await cluster.apply(lws("vllm", 4, 2, cpu="1", scheduling={}, startupPolicy="LeaderReady"))
            await cluster.until("LeaderWorkerSet", "vllm", when=lambda o: o.get("status", {}).get("readyReplicas") == 2)
            pods = cluster.all("Pod")
            assert len(placed(pods)) == 4, "two leaders with their workers"
            waiting = [pod["metadata"]["name"] for pod in pods if not pod["spec"].get("nodeName")]
            assert len(waiting) == 2 and all(name.count("-") == 1 for name in waiting), "leaders, without any workers"
            for name in waiting:
                announced = await cluster.until("Pod", name, when=lambda p: condition(p, "PodScheduled").get("message"))
                assert "no room for all 2 pods that it will have" in condition(announced, "PodScheduled")["message"]
            # Room that comes free goes to the next whole group.
            await cluster.patch("LeaderWorkerSet", "vllm", {"spec": {"replicas": 2}})
            await cluster.until(
                "LeaderWorkerSet", "vllm", when=lambda o: condition(o, "Available").get("status") == "True"
            )

    asyncio.run(scenario())


def test_the_same_without_groups_starts_leaders_that_never_serve() -> None:
    async def scenario() -> None:
        async with world(nodes=2, topology=ROOM) as cluster:
            await cluster.apply(lws("vllm", 4, 2, cpu="1", startupPolicy="LeaderReady"))
            await quiet(cluster, 8)
            found = cluster.look("LeaderWorkerSet", "vllm")
            assert found is not None and not found["status"].get("readyReplicas")

    asyncio.run(scenario())


def test_a_leader_whose_group_fits_no_rack_is_not_started() -> None:
    async def scenario() -> None:
        async with world(nodes=2, topology="racks=2,cpu=2,pods=10") as cluster:
            rack = {"topology": [{"key": "topology.phalanx.dev/rack"}]}
            scheduling = {"schedulingConstraints": rack}
            await cluster.apply(lws("vllm", 1, 3, cpu="1", scheduling=scheduling, startupPolicy="LeaderReady"))
            leader = await cluster.until("Pod", "vllm-0", when=lambda p: condition(p, "PodScheduled").get("message"))
            assert "in one domain of topology.phalanx.dev/rack" in condition(leader, "PodScheduled")["message"]
            assert not placed(cluster.all("Pod")), "four cores are free, but not three in one rack"
            await cluster.patch("LeaderWorkerSet", "vllm", {"spec": {"leaderWorkerTemplate": {"size": 2}}})
            await cluster.until(
                "LeaderWorkerSet", "vllm", when=lambda o: condition(o, "Available").get("status") == "True"
            )

    asyncio.run(scenario())


def test_the_second_leader_starts_where_its_workers_will_fit() -> None:
    """Blocks of two nodes of 8 cores; a replica needs 10: two of them never fit into one block."""

    async def scenario() -> None:
        async with world(nodes=8, topology="blocks=4,cpu=8") as cluster:
            small = template("2", app="vllm")
            block = {"scheduling.phalanx.dev/topology": "topology.phalanx.dev/block"}
            spec = {"startupPolicy": "LeaderReady", "template": {"leaderTemplate": small}, "annotations": block}
            await cluster.apply(lws("vllm", 2, 3, cpu="4", scheduling={}, **spec))
            await cluster.until("LeaderWorkerSet", "vllm", when=serves)
            labels = {node["metadata"]["name"]: node["metadata"]["labels"] for node in cluster.all("Node", "")}
            homes: dict[str, set[str]] = {}
            for pod in cluster.all("Pod"):
                home = labels[pod["spec"]["nodeName"]]["topology.phalanx.dev/block"]
                homes.setdefault(pod["metadata"]["labels"][f"{P}group-index"], set()).add(home)
            assert [len(found) for found in homes.values()] == [1, 1] and homes["0"] != homes["1"]

    asyncio.run(scenario())
