"""ReplicaSets: as many pods as asked for, whatever interferes."""

from __future__ import annotations

import asyncio

import pytest

from support.controller_world import DyingClient, Json, World, condition, world
from support.manifests import replica_set, template


async def ready(cluster: World, name: str, count: int) -> Json:
    def says(obj: Json) -> bool:
        status = obj.get("status") or {}
        return (status.get("readyReplicas") or 0) == status.get("replicas") == count

    return await cluster.until("ReplicaSet", name, when=says)


def test_pods_are_made_replaced_and_removed() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            await cluster.apply(replica_set("web", 3))
            found = await ready(cluster, "web", 3)
            assert found["status"]["fullyLabeledReplicas"] == 3
            assert found["status"]["observedGeneration"] == found["metadata"]["generation"]
            first = cluster.names("Pod")
            assert all(name.startswith("web-") for name in first) and len(set(first)) == 3
            await cluster.delete("Pod", first[0])
            await cluster.gone("Pod", first[0])
            await ready(cluster, "web", 3)
            await cluster.patch("ReplicaSet", "web", {"spec": {"replicas": 1}}, subresource="scale")
            await cluster.eventually("Pod", lambda pods: len(pods) == 1)
            await cluster.delete("ReplicaSet", "web", propagation="Background")
            await cluster.eventually("Pod", lambda pods: not pods)

    asyncio.run(scenario())


def test_scaling_down_spares_costly_pods_and_starts_on_full_nodes() -> None:
    async def scenario() -> None:
        async with world(nodes=2) as cluster:
            await cluster.apply(replica_set("web", 4))
            await ready(cluster, "web", 4)
            keep = cluster.names("Pod")[1]
            cost = {"metadata": {"annotations": {"controller.kubernetes.io/pod-deletion-cost": "100"}}}
            await cluster.patch("Pod", keep, cost)
            await cluster.patch("ReplicaSet", "web", {"spec": {"replicas": 1}})
            left = await cluster.eventually("Pod", lambda pods: len(pods) == 1)
            assert left[0]["metadata"]["name"] == keep

    asyncio.run(scenario())


def test_orphans_that_match_are_adopted_and_pods_that_do_not_match_are_released() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            orphan = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "old", "labels": {"app": "web"}},
                "spec": template("100m", app="web")["spec"],
            }
            await cluster.apply(orphan)
            owner = await cluster.apply(replica_set("web", 2))
            await ready(cluster, "web", 2)
            adopted = cluster.look("Pod", "old")
            assert adopted is not None and len(cluster.names("Pod")) == 2
            assert adopted["metadata"]["ownerReferences"][0]["uid"] == owner["metadata"]["uid"]
            await cluster.patch("Pod", "old", {"metadata": {"labels": {"app": "quarantine"}}})
            free = await cluster.until("Pod", "old", when=lambda pod: not pod["metadata"].get("ownerReferences"))
            assert free["metadata"]["labels"] == {"app": "quarantine"}
            await cluster.eventually("Pod", lambda pods: len(pods) == 3)

    asyncio.run(scenario())


def test_a_pod_that_cannot_be_made_is_reported_in_a_condition() -> None:
    async def scenario() -> None:
        async with world(nodes=1) as cluster:
            broken = replica_set("web", 3)
            broken["spec"]["template"]["spec"]["priorityClassName"] = "no-such-class"
            await cluster.apply(broken)
            found = await cluster.until("ReplicaSet", "web", when=lambda obj: condition(obj, "ReplicaFailure"))
            assert "no-such-class" in condition(found, "ReplicaFailure")["message"]
            await cluster.create("PriorityClass", "no-such-class", value=5)
            found = await ready(cluster, "web", 3)
            assert not condition(found, "ReplicaFailure")

    asyncio.run(scenario())


@pytest.mark.parametrize("writes", [1, 3, 4, 6])
def test_killed_between_two_writes_it_goes_on_where_it_stopped(writes: int) -> None:
    async def scenario() -> None:
        async with world(nodes=2, controllers=False) as cluster:
            dying = DyingClient(cluster.client, writes)
            await cluster.start_controllers(dying)
            await cluster.apply(replica_set("web", 4))
            await asyncio.wait_for(dying.died.wait(), 90)
            await cluster.kill_controllers()
            await cluster.start_controllers()
            await ready(cluster, "web", 4)
            assert len(cluster.names("Pod")) == 4

    asyncio.run(scenario())


def test_a_replication_controller_keeps_its_pods_and_takes_its_selector_from_the_template() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            body = {
                "apiVersion": "v1",
                "kind": "ReplicationController",
                "metadata": {"name": "old"},
                "spec": {"replicas": 2, "template": template("100m", app="old")},
            }
            await cluster.apply(body)
            found = await cluster.until(
                "ReplicationController", "old", when=lambda o: o["status"].get("readyReplicas") == 2
            )
            assert found["spec"]["selector"] == found["metadata"]["labels"]
            first = cluster.names("Pod")
            await cluster.patch("Pod", first[0], {"metadata": {"labels": {"app": "freed"}}})
            await cluster.eventually("Pod", lambda pods: len(pods) == 3)
            freed = next(pod for pod in cluster.all("Pod") if pod["metadata"]["name"] == first[0])
            assert "ownerReferences" not in freed["metadata"]
            await cluster.patch("ReplicationController", "old", {"spec": {"replicas": 0}}, subresource="scale")
            await cluster.eventually("Pod", lambda pods: len(pods) == 1)

    asyncio.run(scenario())
