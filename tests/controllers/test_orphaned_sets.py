"""A set that is deleted with --cascade=orphan and made again takes over what it left, and restarts nothing."""

from __future__ import annotations

import asyncio

import pytest

from support.controller_world import Json, world
from support.lws_objects import done, lws
from support.manifests import apps_set, stateful_set, template

SETS = {
    "StatefulSet": stateful_set("w", 2, podManagementPolicy="Parallel"),
    "DaemonSet": apps_set("DaemonSet", "w", template("100m", app="w")),
}


def settled(obj: Json) -> bool:
    status = obj.get("status") or {}
    ready = status.get("readyReplicas", status.get("numberReady", 0))
    updated = status.get("updatedReplicas", status.get("updatedNumberScheduled", 0))
    return bool(status.get("observedGeneration") and ready == updated == 2)


@pytest.mark.parametrize("kind", SETS)
def test_its_pods_run_on_and_its_revision_is_adopted(kind: str) -> None:
    async def scenario() -> None:
        async with world(nodes=2) as cluster:
            await cluster.apply(SETS[kind])
            await cluster.until(kind, "w", when=settled)
            before = {pod["metadata"]["uid"] for pod in cluster.all("Pod")}
            (revision,) = cluster.names("ControllerRevision")
            await cluster.delete(kind, "w", propagation="Orphan")
            await cluster.gone(kind, "w")
            made = await cluster.apply(SETS[kind])
            await cluster.until(kind, "w", when=settled)
            assert {pod["metadata"]["uid"] for pod in cluster.all("Pod")} == before
            (now,) = cluster.all("ControllerRevision")
            owner = now["metadata"]["ownerReferences"][0]["uid"]
            assert (now["metadata"]["name"], owner) == (revision, made["metadata"]["uid"])

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_gang_that_is_made_again_follows_its_size_and_leaves_nothing_behind() -> None:
    gang = {"scheduling.phalanx.dev/gang": "true"}
    body = stateful_set("w", 2, podManagementPolicy="Parallel", metadata={"annotations": gang})

    async def scenario() -> None:
        async with world(nodes=4) as cluster:
            await cluster.apply(body)
            await cluster.until("StatefulSet", "w", when=settled)
            before = set(cluster.names("Workload"))
            await cluster.delete("StatefulSet", "w", propagation="Orphan")
            await cluster.gone("StatefulSet", "w")
            await cluster.apply(body)
            await cluster.until("StatefulSet", "w", when=settled)
            await cluster.patch("StatefulSet", "w", {"spec": {"replicas": 4}})
            await cluster.until("StatefulSet", "w", when=lambda o: (o.get("status") or {}).get("readyReplicas") == 4)
            await cluster.eventually("Workload", lambda found: len(found) == 1)
            assert not before & set(cluster.names("Workload")), "the predecessor's Workload is gone"

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_leader_worker_set_of_gangs_that_is_made_again_recreates_a_lost_replica() -> None:
    body = lws("l", replicas=2, size=2, annotations={"scheduling.phalanx.dev/gang": "true"})

    async def scenario() -> None:
        async with world(nodes=4) as cluster:
            await cluster.apply(body)
            await done(cluster, "l")
            groups = set(cluster.names("PodGroup"))
            await cluster.delete("LeaderWorkerSet", "l", propagation="Orphan")
            await cluster.gone("LeaderWorkerSet", "l")
            await cluster.delete("Pod", "l-1")
            await cluster.until("Pod", "l-1", when=lambda pod: (pod.get("status") or {}).get("phase") == "Running")
            assert set(cluster.names("PodGroup")) == groups, "the StatefulSet of the leaders requests no group itself"
            await cluster.apply(body)
            await done(cluster, "l")
            lost = {name: cluster.look("Pod", name)["metadata"]["uid"] for name in ("l-0", "l-0-1")}
            await cluster.delete("Pod", "l-0")
            await cluster.eventually(
                "Pod",
                lambda found: (
                    len(found) == 4
                    and not {pod["metadata"]["uid"] for pod in found} & set(lost.values())
                    and all((pod.get("status") or {}).get("phase") == "Running" for pod in found)
                ),
            )
            await done(cluster, "l")

    asyncio.run(asyncio.wait_for(scenario(), 60))
