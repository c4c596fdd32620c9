"""LeaderWorkerSets: what comes back when deleted, scaling by way of zero, rolls of sets that are not ready."""

from __future__ import annotations

import asyncio

import pytest

from support.controller_world import Json, World, condition, image_of, world
from support.lws_objects import P, done, lws, new_image

NEVER = "simulation.phalanx.dev/ready-seconds"


def images(cluster: World) -> dict[str, str]:
    return {pod["metadata"]["name"]: image_of(pod) for pod in cluster.all("Pod")}


@pytest.mark.parametrize("name", ["vllm", "vllm-0"])
def test_a_deleted_stateful_set_comes_back(name: str) -> None:
    async def scenario() -> None:
        async with world() as cluster:
            await cluster.apply(lws("vllm", 2, 2))
            await done(cluster, "vllm")
            first = cluster.look("StatefulSet", name)
            assert first is not None
            await cluster.delete("StatefulSet", name, propagation="Background")
            await cluster.until("StatefulSet", name, when=lambda s: s["metadata"]["uid"] != first["metadata"]["uid"])
            await done(cluster, "vllm")
            assert cluster.names("StatefulSet") == ["vllm", "vllm-0", "vllm-1"]

    asyncio.run(scenario())


def test_a_set_may_shrink_to_nothing_and_grow_again() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            await cluster.apply(lws("vllm", 2, 2))
            await done(cluster, "vllm")
            await cluster.patch("LeaderWorkerSet", "vllm", {"spec": {"replicas": 0}}, subresource="scale")
            await cluster.eventually("Pod", lambda pods: not pods)
            found = await cluster.until("LeaderWorkerSet", "vllm", when=lambda o: not o["status"].get("replicas"))
            assert found["metadata"]["generation"] == 2
            await cluster.patch("LeaderWorkerSet", "vllm", {"spec": {"replicas": 3}}, subresource="scale")
            await done(cluster, "vllm")
            assert len(cluster.names("Pod")) == 6

    asyncio.run(scenario())


def test_a_first_start_is_no_update_and_an_update_replaces_each_leader_once() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            await cluster.apply(lws("vllm", 3, 3))
            assert not condition(await done(cluster, "vllm"), "UpdateInProgress")
            made: dict[str, set[str]] = {}

            def note(pods: list[Json]) -> bool:
                for pod in pods:
                    made.setdefault(pod["metadata"]["name"], set()).add(pod["metadata"]["uid"])
                return len(pods) == 9 and {image_of(pod) for pod in pods} == {"v2"}

            note(cluster.all("Pod"))
            await cluster.patch("LeaderWorkerSet", "vllm", new_image("v2"))
            await cluster.eventually("Pod", note)
            found = await done(cluster, "vllm")
            note(cluster.all("Pod"))
            assert condition(found, "UpdateInProgress")["status"] == "False"
            assert {name: len(uids) for name, uids in made.items() if name.count("-") == 1} == {
                "vllm-0": 2,
                "vllm-1": 2,
                "vllm-2": 2,
            }

    asyncio.run(scenario())


def test_a_set_that_was_never_ready_is_updated() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            body = lws("vllm", 2, 2)
            worker = body["spec"]["leaderWorkerTemplate"]["workerTemplate"]
            worker["metadata"].setdefault("annotations", {})[NEVER] = "1e6"
            await cluster.apply(body)
            await cluster.eventually("Pod", lambda pods: len(pods) == 4)
            change = new_image("v2")
            change["spec"]["leaderWorkerTemplate"]["workerTemplate"]["metadata"] = {"annotations": {NEVER: None}}
            await cluster.patch("LeaderWorkerSet", "vllm", change)
            await done(cluster, "vllm")
            assert set(images(cluster).values()) == {"v2"}

    asyncio.run(scenario())


def test_a_broken_group_below_the_partition_leaves_the_rest_of_the_allowance() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            rolling = {"type": "RollingUpdate", "rollingUpdateConfiguration": {"partition": 2, "maxUnavailable": 2}}
            await cluster.apply(lws("vllm", 4, 2, rolloutStrategy=rolling))
            await done(cluster, "vllm")
            await cluster.patch("Pod", "vllm-0", {"metadata": {"annotations": {NEVER: "1e6"}}})
            await cluster.until("LeaderWorkerSet", "vllm", when=lambda o: o["status"]["readyReplicas"] == 3)
            await cluster.patch("LeaderWorkerSet", "vllm", new_image("v2"))
            leaders = {"vllm-0": "v1", "vllm-1": "v1", "vllm-2": "v2", "vllm-3": "v2"}
            await cluster.eventually(
                "Pod",
                lambda pods: leaders.items() <= {p["metadata"]["name"]: image_of(p) for p in pods}.items(),
            )
            revisions = {p["metadata"]["labels"][f"{P}template-revision-hash"] for p in cluster.all("Pod")}
            assert len(revisions) == 2

    asyncio.run(scenario())
