"""Deployments: rolling, recreating, pausing, going back, and what is said about it meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from phalanx.base.clock import Clock, SystemClock
from phalanx.controllers.runtime.rollout import Allowance, ReplicaSetShare, allowance, grown, scaled_down, shared_out
from support.controller_world import DyingClient, Json, World, condition, image_of, world
from support.manifests import deployment, template
from support.states import new_image, rolled_out

REVISION = "deployment.kubernetes.io/revision"


async def done(cluster: World, name: str) -> Json:
    return await cluster.until("Deployment", name, when=rolled_out)


def test_an_update_is_rolled_without_ever_having_too_few_or_too_many_pods() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            strategy = {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}}
            await cluster.apply(deployment("web", 4, strategy=strategy))
            found = await done(cluster, "web")
            assert found["metadata"]["annotations"][REVISION] == "1"
            assert condition(found, "Progressing")["reason"] == "NewReplicaSetAvailable"
            assert condition(found, "Available")["status"] == "True"
            counts: set[int] = set()
            available: set[int] = set()

            def watch(sets: list[Json]) -> bool:
                counts.add(sum(s["spec"]["replicas"] for s in sets))
                available.add(sum(s.get("status", {}).get("availableReplicas", 0) for s in sets))
                return rolled_out(cluster.look("Deployment", "web") or {})

            await cluster.patch("Deployment", "web", new_image("v2"))
            await cluster.eventually("ReplicaSet", watch)
            assert max(counts) <= 5 and min(available) >= 3
            found = await done(cluster, "web")
            assert found["metadata"]["annotations"][REVISION] == "2"
            pods = await cluster.eventually("Pod", lambda pods: len(pods) == 4)
            assert {image_of(pod) for pod in pods} == {"v2"}
            sets = cluster.all("ReplicaSet")
            assert sorted(s["spec"]["replicas"] for s in sets) == [0, 4]
            for each in sets:
                digest = each["metadata"]["labels"]["pod-template-hash"]
                assert each["metadata"]["name"] == f"web-{digest}"
                assert each["spec"]["selector"]["matchLabels"]["pod-template-hash"] == digest

    asyncio.run(scenario())


def test_going_back_uses_the_old_replica_set_with_a_new_number() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            await cluster.apply(deployment("web", 2))
            await done(cluster, "web")
            first = cluster.names("ReplicaSet")
            await cluster.patch("Deployment", "web", new_image("v2"))
            await done(cluster, "web")
            await cluster.patch("Deployment", "web", new_image("v1"))
            found = await done(cluster, "web")
            assert found["metadata"]["annotations"][REVISION] == "3"
            back = cluster.look("ReplicaSet", first[0])
            assert back is not None and back["spec"]["replicas"] == 2
            assert back["metadata"]["annotations"][REVISION] == "3"
            assert back["metadata"]["annotations"]["deployment.kubernetes.io/revision-history"] == "1"

    asyncio.run(scenario())


def test_recreate_starts_the_new_only_after_the_last_old_pod_is_gone() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            await cluster.apply(deployment("db", 2, strategy={"type": "Recreate"}))
            await done(cluster, "db")
            mixed: list[set[str]] = []

            def watch(pods: list[Json]) -> bool:
                mixed.append({image_of(pod) for pod in pods})
                return len(pods) == 2 and mixed[-1] == {"v2"}

            await cluster.patch("Deployment", "db", new_image("v2"))
            await cluster.eventually("Pod", watch)
            assert {"v1", "v2"} not in mixed
            await done(cluster, "db")

    asyncio.run(scenario())


def test_a_paused_deployment_scales_but_does_not_roll() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            await cluster.apply(deployment("web", 2))
            await done(cluster, "web")
            await cluster.patch("Deployment", "web", {"spec": {"paused": True}})
            await cluster.patch("Deployment", "web", new_image("v2"))
            await cluster.patch("Deployment", "web", {"spec": {"replicas": 4}}, subresource="scale")
            pods = await cluster.eventually("Pod", lambda pods: len(pods) == 4)
            assert {image_of(pod) for pod in pods} == {"v1"}
            found = await cluster.until(
                "Deployment", "web", when=lambda d: condition(d, "Progressing")["status"] == "Unknown"
            )
            assert condition(found, "Progressing")["reason"] == "DeploymentPaused"
            await cluster.patch("Deployment", "web", {"spec": {"paused": None}})
            await done(cluster, "web")
            pods = await cluster.eventually("Pod", lambda pods: len(pods) == 4)
            assert {image_of(pod) for pod in pods} == {"v2"}

    asyncio.run(scenario())


class HurriedClock(SystemClock):
    """The wall clock, with jumps."""

    ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead


def test_a_rollout_that_hangs_says_so_after_its_deadline() -> None:
    async def scenario(clock: Clock) -> None:
        async with world(clock=clock) as cluster:
            await cluster.apply(deployment("web", 2, progressDeadlineSeconds=1))
            await done(cluster, "web")
            change = new_image("v2")
            change["spec"]["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1000"}}
            await cluster.patch("Deployment", "web", change)

            def timed_out(obj: Json) -> bool:
                return condition(obj, "Progressing").get("reason") == "ProgressDeadlineExceeded"

            found = await cluster.until("Deployment", "web", when=timed_out)
            assert condition(found, "Progressing")["status"] == "False"
            assert condition(found, "Available")["status"] == "True", "the old pods still serve"
            await cluster.patch(
                "Deployment",
                "web",
                {"spec": {"template": template("100m", app="web", image="v1")}},
            )
            await done(cluster, "web")

    asyncio.run(scenario(HurriedClock()))


def test_old_replica_sets_beyond_the_limit_are_forgotten() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            await cluster.apply(deployment("web", 1, revisionHistoryLimit=1))
            await done(cluster, "web")
            for image in ("v2", "v3", "v4"):
                await cluster.patch("Deployment", "web", new_image(image))
                await done(cluster, "web")
            sets = await cluster.eventually("ReplicaSet", lambda sets: len(sets) == 2)
            kept = sorted(s["spec"]["template"]["spec"]["containers"][0]["image"] for s in sets)
            assert kept == ["v3", "v4"]

    asyncio.run(scenario())


def test_replica_sets_left_behind_are_adopted_by_the_next_deployment() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            await cluster.apply(deployment("web", 2))
            await done(cluster, "web")
            pods = cluster.names("Pod")
            await cluster.delete("Deployment", "web", propagation="Orphan")
            await cluster.gone("Deployment", "web")
            owner = await cluster.apply(deployment("web", 2))
            await done(cluster, "web")
            (adopted,) = cluster.all("ReplicaSet")
            assert adopted["metadata"]["ownerReferences"][0]["uid"] == owner["metadata"]["uid"]
            assert cluster.names("Pod") == pods

    asyncio.run(scenario())


@pytest.mark.parametrize("writes", [2, 5, 8, 11])
def test_killed_in_the_middle_of_a_rollout_it_finishes_it(writes: int) -> None:
    async def scenario() -> None:
        async with world() as cluster:
            await cluster.apply(deployment("web", 3))
            await done(cluster, "web")
            await cluster.kill_controllers()
            dying = DyingClient(cluster.client, writes)
            await cluster.start_controllers(dying)
            await cluster.patch("Deployment", "web", new_image("v2"))
            await asyncio.wait_for(dying.died.wait(), 90)
            await cluster.kill_controllers()
            await cluster.start_controllers()
            await done(cluster, "web")
            pods = await cluster.eventually("Pod", lambda pods: len(pods) == 3)
            assert {image_of(pod) for pod in pods} == {"v2"}
            assert sorted(s["spec"]["replicas"] for s in cluster.all("ReplicaSet")) == [0, 3]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("surge", "unavailable", "replicas", "expected"),
    [("25%", "25%", 4, (1, 1)), ("25%", "25%", 3, (1, 0)), (0, "10%", 5, (0, 1)), (2, 0, 5, (2, 0)), (0, 9, 3, (0, 3))],
)
def test_surge_rounds_up_and_unavailable_down(surge: Any, unavailable: Any, replicas: int, expected: Any) -> None:
    spec = {"replicas": replicas, "strategy": {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}}
    assert allowance(spec) == Allowance(*expected)


def test_a_scale_up_in_the_middle_of_a_rollout_is_shared_in_proportion() -> None:
    """The example of the Kubernetes documentation: 10 replicas, surge 3, 8 old and 5 new, scaled to 15."""
    old, new = ReplicaSetShare("old", "1", 8, 8, 13), ReplicaSetShare("new", "2", 5, 0, 13)
    assert shared_out([old, new], 15, Allowance(3, 2)) == {"old": 11, "new": 7}
    assert shared_out([old, new], 0, Allowance(0, 0)) == {"old": 0, "new": 0}


def test_steps_never_leave_the_bounds() -> None:
    new, old, allowed = ReplicaSetShare("new", "2", 0, 0), [ReplicaSetShare("old", "1", 10, 10)], Allowance(3, 2)
    assert grown(new, old, 10, allowed) == 3
    assert scaled_down(ReplicaSetShare("new", "2", 3, 0), old, 10, allowed) == {"old": 8}
    assert scaled_down(ReplicaSetShare("new", "2", 5, 0), [ReplicaSetShare("old", "1", 8, 8)], 10, allowed) == {}
    ill = [ReplicaSetShare("a", "1", 4, 0), ReplicaSetShare("b", "0", 6, 6)]
    assert scaled_down(ReplicaSetShare("new", "2", 3, 3), ill, 10, allowed) == {"a": 0, "b": 5}


def test_it_tells_how_it_scales_its_replica_sets() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            await cluster.apply(deployment("web", 2, strategy={"type": "Recreate"}))
            await done(cluster, "web")
            await cluster.patch("Deployment", "web", new_image("v2"))
            await done(cluster, "web")
            announced = [event for event in cluster.all("Event") if event.get("reason") == "ScalingReplicaSet"]
            first, second = sorted(
                cluster.all("ReplicaSet"), key=lambda found: found["metadata"]["annotations"][REVISION]
            )
            names = [found["metadata"]["name"] for found in (first, second)]
            assert sorted(event.get("note") or event["message"] for event in announced) == sorted([
                f"Scaled up replica set {names[0]} from 0 to 2",
                f"Scaled down replica set {names[0]} from 2 to 0",
                f"Scaled up replica set {names[1]} from 0 to 2",
            ])  # fmt: skip

    asyncio.run(scenario())
