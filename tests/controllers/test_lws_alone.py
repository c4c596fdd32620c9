"""LeaderWorkerSets where our controller runs alone: the StatefulSet controller is that of another program."""

from __future__ import annotations

import asyncio

import pytest

from phalanx.base import resources as r
from phalanx.controllers.runtime.ownership import controller_reference
from phalanx.controllers.workloads.leaderworkerset.kind import LEADER_WORKER_SET
from phalanx.controllers.workloads.leaderworkerset.rules import must_recreate
from phalanx.serve import controllers
from support.controller_world import Json, World, condition, world
from support.lws_objects import P, lws


@pytest.fixture(autouse=True)
def only_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controllers, "KINDS", (LEADER_WORKER_SET,))


async def make_pod(cluster: World, name: str, owner: Json, resource: r.Resource, template: Json) -> Json:
    meta = {**template["metadata"], "name": name, "namespace": "default"}
    meta["ownerReferences"] = [controller_reference(owner, resource)]
    pod = await cluster.create("Pod", name, metadata=meta, spec=template["spec"])
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    await cluster.patch("Pod", name, {"status": ready}, subresource="status")
    return pod


async def start_group(cluster: World, size: int) -> tuple[Json, Json]:
    """Return the leader of a group, and the StatefulSet that our controller makes for its workers."""
    await cluster.apply(lws("vllm", 1, size))
    leaders = await cluster.until("StatefulSet", "vllm", when=bool)
    leader = await make_pod(cluster, "vllm-0", leaders, r.STATEFUL_SETS, leaders["spec"]["template"])
    return leader, await cluster.until("StatefulSet", "vllm-0", when=bool)


def test_a_set_is_available_when_the_status_of_its_workers_says_so() -> None:
    async def scenario() -> None:
        async with world(nodes=0, scheduler=False) as cluster:
            await start_group(cluster, 3)
            counts = {"replicas": 2, "readyReplicas": 2, "availableReplicas": 2}
            await cluster.patch("StatefulSet", "vllm-0", {"status": counts}, subresource="status")
            await cluster.until(
                "LeaderWorkerSet", "vllm", when=lambda found: condition(found, "Available").get("status") == "True"
            )

    asyncio.run(scenario())


def test_a_lost_worker_that_the_leader_owns_recreates_the_group() -> None:
    async def scenario() -> None:
        async with world(nodes=0, scheduler=False) as cluster:
            leader, workers = await start_group(cluster, 2)
            await make_pod(cluster, "vllm-0-1", leader, r.PODS, workers["spec"]["template"])
            await cluster.delete("Pod", "vllm-0-1", grace_seconds=0)
            await cluster.until("Pod", "vllm-0", when=lambda found: "deletionTimestamp" in found["metadata"])

    asyncio.run(scenario())


def test_a_lost_worker_of_an_earlier_revision_is_no_reason_to_recreate_the_group() -> None:
    labels = {f"{P}name": "vllm", f"{P}worker-index": "0", f"{P}template-revision-hash": "new"}
    leader = {"metadata": {"name": "vllm-0", "labels": labels}, "status": {"phase": "Running"}}
    set_ = lws("vllm", 1, 2)
    for revision, found in (("old", None), ("new", "vllm-0-1")):
        meta = {"name": "vllm-0-1", "labels": {**labels, f"{P}template-revision-hash": revision}}
        worker = {"metadata": meta, "status": {"phase": "Running"}}
        recreated = must_recreate(set_, leader, [], [worker])
        assert (recreated and recreated["metadata"]["name"]) == found
