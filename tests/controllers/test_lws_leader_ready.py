"""LeaderReady, as its user sees it: a leader starts where its workers can follow, whatever else is there."""

from __future__ import annotations

import asyncio

from support.controller_world import Json, World, condition, world
from support.lws_objects import P, available, done, lws
from support.manifests import deployment, template
from support.states import placed, serves

GO = "example.com/go"
HIGH = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000}


def leader(cpu: str) -> Json:
    """Its pod is ready when the test says so."""
    made = template(cpu, app="serve")
    made["spec"]["readinessGates"] = [{"conditionType": GO}]
    return made


async def ready(cluster: World, name: str) -> None:
    pod = cluster.look("Pod", name)
    assert pod is not None
    conditions = [*pod["status"]["conditions"], {"type": GO, "status": "True"}]
    await cluster.patch("Pod", name, {"status": {"conditions": conditions}}, subresource="status")


def test_pods_beside_it_do_not_take_the_room_that_workers_will_need() -> None:
    async def scenario() -> None:
        async with world(nodes=2, topology="cpu=5") as cluster:
            spec = {"startupPolicy": "LeaderReady", "template": {"leaderTemplate": leader("2")}}
            await cluster.apply(lws("serve", 1, 3, cpu="3", scheduling={}, **spec))
            await cluster.until("Pod", "serve-0", when=lambda pod: pod["spec"].get("nodeName"))
            await cluster.apply(deployment("web", 3, cpu="2"))
            await cluster.eventually(
                "Pod", lambda pods: sum(bool(condition(pod, "PodScheduled").get("message")) for pod in pods) == 2
            )
            assert len(placed(cluster.all("Pod"))) == 2, "the leader, and what fits beside the workers to come"
            await ready(cluster, "serve-0")
            await cluster.until("LeaderWorkerSet", "serve", when=serves)

    asyncio.run(scenario())


def test_two_replicas_that_fill_a_zone_each_start_on_an_empty_cluster() -> None:
    async def scenario() -> None:
        async with world(nodes=4, topology="zones=2,cpu=4") as cluster:
            zone = {"scheduling.phalanx.dev/topology": "topology.kubernetes.io/zone"}
            await cluster.apply(
                lws("serve", 2, 2, cpu="4", scheduling={}, startupPolicy="LeaderReady", annotations=zone)
            )
            await cluster.until("LeaderWorkerSet", "serve", when=serves)

    asyncio.run(scenario())


def test_workers_with_a_selector_of_their_own_decide_where_the_leader_starts() -> None:
    async def scenario() -> None:
        async with world(nodes=4, topology="blocks=2,cpu=8") as cluster:
            labels = {node["metadata"]["name"]: node["metadata"]["labels"] for node in cluster.all("Node", "")}
            only = max(labels)
            await cluster.patch("Node", only, {"metadata": {"labels": {"gpu": "yes"}}}, namespace="")
            block = {"scheduling.phalanx.dev/topology": "topology.phalanx.dev/block"}
            workers = template("4", app="serve")
            workers["spec"]["nodeSelector"] = {"gpu": "yes"}
            parts = {"leaderTemplate": template("2", app="serve"), "workerTemplate": workers}
            spec = {"startupPolicy": "LeaderReady", "template": parts, "annotations": block}
            await cluster.apply(lws("serve", 1, 3, scheduling={}, **spec))
            await cluster.until("LeaderWorkerSet", "serve", when=serves)
            homes = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in cluster.all("Pod")}
            assert homes["serve-0-1"] == homes["serve-0-2"] == only != homes["serve-0"]

    asyncio.run(scenario())


def test_an_important_one_preempts_for_all_of_it() -> None:
    async def scenario() -> None:
        async with world(nodes=3, topology="cpu=4") as cluster:
            await cluster.apply(HIGH)
            await cluster.apply(deployment("low", 3, cpu="4"))
            await cluster.eventually("Pod", lambda pods: len(placed(pods)) == 3)
            parts = {"workerTemplate": template("4", app="vip")}
            parts["workerTemplate"]["spec"]["priorityClassName"] = "high"
            await cluster.apply(lws("vip", 1, 3, scheduling={}, startupPolicy="LeaderReady", template=parts))
            await cluster.until("LeaderWorkerSet", "vip", when=serves)
            assert placed(cluster.all("Pod")) == ["vip-0", "vip-0-1", "vip-0-2"], "the others came back and wait"
            said = [event["message"] for event in cluster.all("Event") if event["reason"] == "FailedScheduling"]
            assert any("preempting 3 victims" in message for message in said)
            assert not any("its first pod fits" in message for message in said)

    asyncio.run(scenario())


def test_a_condition_that_is_no_longer_true_says_what_is() -> None:
    async def scenario() -> None:
        async with world(nodes=2, topology="cpu=4") as cluster:
            await cluster.apply(lws("serve", 1, 2, cpu="2", scheduling={}))
            found = await done(cluster, "serve")
            assert condition(found, "Progressing") == {} or condition(found, "Progressing")["status"] == "False"
            await cluster.patch("LeaderWorkerSet", "serve", {"spec": {"replicas": 3}})
            found = await cluster.until(
                "LeaderWorkerSet",
                "serve",
                when=lambda o: "2 of 3" in condition(o, "Available").get("message", ""),
            )
            announced = condition(found, "Available")
            assert (announced["status"], announced["reason"]) == ("False", "GroupsProgressing")
            assert announced["message"] == "2 of 3 replicas are ready"
            await cluster.patch("LeaderWorkerSet", "serve", {"spec": {"replicas": 2}})
            found = await cluster.until("LeaderWorkerSet", "serve", when=available)
            announced = condition(found, "Progressing")
            assert (announced["status"], announced["reason"], announced["message"]) == (
                "False",
                "AllGroupsReady",
                "All replicas are ready",
            )
            assert {pod["metadata"]["labels"][f"{P}group-index"] for pod in cluster.all("Pod")} == {"0", "1"}

    asyncio.run(scenario())
