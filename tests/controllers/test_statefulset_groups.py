"""Groups of StatefulSets, Deployments and ReplicaSets: only for those who ask, and only where they make sense."""

from __future__ import annotations

import asyncio

from support.controller_world import Json, condition, image_of, world
from support.manifests import deployment, stateful_set
from support.states import new_image, rolled_out, set_done

GANG = "scheduling.phalanx.dev/gang"
TOPOLOGY = "scheduling.phalanx.dev/topology"


def asking(obj: Json, **workload_annotations: str) -> Json:
    obj["metadata"]["annotations"] = {
        f"scheduling.phalanx.dev/{requested.replace('_', '-')}": v for requested, v in workload_annotations.items()
    }
    return obj


def group_of(pod: Json) -> str:
    return str((pod["spec"].get("schedulingGroup") or {}).get("podGroupName", ""))


def test_a_set_that_did_not_ask_is_not_grouped() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            await cluster.apply(stateful_set("db", 2, podManagementPolicy="Parallel"))
            await cluster.apply(deployment("web", 2))
            await set_done(cluster, "db")
            await cluster.until("Deployment", "web", when=rolled_out)
            assert not cluster.all("Workload") and not cluster.all("PodGroup")
            assert not any(map(group_of, cluster.all("Pod")))

    asyncio.run(scenario())


def test_a_parallel_set_is_a_gang_of_all_replicas_and_follows_its_scale() -> None:
    async def scenario() -> None:
        async with world(nodes=1, topology="cpu=2") as cluster:
            spec = stateful_set("sim", 3, podManagementPolicy="Parallel")
            spec["spec"]["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
            await cluster.apply(asking(spec, gang="true"))

            def announced(pods: list[Json]) -> bool:
                return len(pods) == 3 and all(condition(p, "PodScheduled").get("status") == "False" for p in pods)

            pods = await cluster.eventually("Pod", announced)
            assert not any(pod["spec"].get("nodeName") for pod in pods), "two of three would be no use"
            (group,) = cluster.all("PodGroup")
            assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 3}}
            assert {group_of(pod) for pod in pods} == {group["metadata"]["name"]}
            (workload,) = cluster.all("Workload")
            assert workload["spec"]["controllerRef"] == {"apiGroup": "apps", "kind": "StatefulSet", "name": "sim"}
            await cluster.patch("StatefulSet", "sim", {"spec": {"replicas": 2}}, subresource="scale")
            await set_done(cluster, "sim")
            (group,) = cluster.all("PodGroup")
            assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 2}}
            await cluster.delete("StatefulSet", "sim", propagation="Background")
            for kind in ("Pod", "PodGroup", "Workload"):
                await cluster.eventually(kind, lambda found: not found)

    asyncio.run(scenario())


def test_a_gang_that_starts_in_order_is_refused_with_the_way_out() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            await cluster.apply(asking(stateful_set("db", 2), gang="true"))

            def warned(events: list[Json]) -> bool:
                return any("podManagementPolicy Parallel" in event["message"] for event in events)

            await cluster.eventually("Event", warned)
            assert not cluster.all("Pod"), "nothing is started that cannot complete its gang"
            await cluster.patch("StatefulSet", "db", {"metadata": {"annotations": {GANG: "false"}}})
            await set_done(cluster, "db")
            (group,) = cluster.all("PodGroup")
            assert group["spec"]["schedulingPolicy"] == {"basic": {}}
            assert all(group_of(pod) == group["metadata"]["name"] for pod in cluster.all("Pod"))

    asyncio.run(scenario())


def test_a_deployment_keeps_to_one_rack_over_its_rollouts() -> None:
    async def scenario() -> None:
        async with world(nodes=4, topology="racks=2") as cluster:
            rack = "topology.phalanx.dev/rack"
            await cluster.apply(asking(deployment("web", 3), topology=rack))
            await cluster.until("Deployment", "web", when=rolled_out)
            (group,) = cluster.all("PodGroup")
            assert group["spec"]["schedulingConstraints"] == {"topology": [{"key": rack}]}
            assert group["spec"]["schedulingPolicy"] == {"basic": {}}
            await cluster.patch("Deployment", "web", new_image("v2"))
            await cluster.until("Deployment", "web", when=rolled_out)
            pods = await cluster.eventually(
                "Pod", lambda pods: len(pods) == 3 and {image_of(pod) for pod in pods} == {"v2"}
            )
            assert {group_of(pod) for pod in pods} == {group["metadata"]["name"]}
            racks = {node["metadata"]["name"]: node["metadata"]["labels"][rack] for node in cluster.all("Node", "")}
            assert len({racks[pod["spec"]["nodeName"]] for pod in pods}) == 1

    asyncio.run(scenario())


def test_a_gang_of_a_deployment_is_refused() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            await cluster.apply(asking(deployment("web", 2), gang="true"))
            found = await cluster.until("Deployment", "web", when=lambda d: condition(d, "ReplicaFailure"))
            assert "cannot be a gang" in condition(found, "ReplicaFailure")["message"]
            assert not cluster.all("Pod")

    asyncio.run(scenario())


def test_a_workload_written_by_hand_is_left_to_its_author() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            reference = {"apiGroup": "apps", "kind": "StatefulSet", "name": "sim"}
            plan = {"name": "all", "schedulingPolicy": {"gang": {"minCount": 2}}}
            await cluster.create("Workload", "mine", spec={"controllerRef": reference, "podGroupTemplates": [plan]})
            await cluster.create(
                "PodGroup",
                "mine-all",
                spec={
                    "workloadRef": {"workloadName": "mine", "templateName": "all"},
                    "schedulingPolicy": plan["schedulingPolicy"],
                },
            )
            spec = asking(stateful_set("sim", 2, podManagementPolicy="Parallel"), gang="true")
            spec["spec"]["template"]["spec"]["schedulingGroup"] = {"podGroupName": "mine-all"}
            await cluster.apply(spec)
            await set_done(cluster, "sim")
            assert cluster.names("Workload") == ["mine"] and cluster.names("PodGroup") == ["mine-all"]
            assert {group_of(pod) for pod in cluster.all("Pod")} == {"mine-all"}
            await cluster.delete("StatefulSet", "sim", propagation="Foreground")
            await cluster.gone("StatefulSet", "sim")
            assert cluster.names("Workload") == ["mine"], "its author deletes it"

    asyncio.run(scenario())


def test_the_first_workload_version_on_request() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            spec = asking(stateful_set("sim", 2, podManagementPolicy="Parallel"), gang="true", api="v1alpha1")
            await cluster.apply(spec)
            await set_done(cluster, "sim")
            assert cluster.names("Workload") == ["w-sim"] and not cluster.all("PodGroup")
            for pod in cluster.all("Pod"):
                assert pod["spec"]["workloadRef"] == {"name": "w-sim", "podGroup": "gg"}

    asyncio.run(scenario())


def test_a_gang_that_grows_asks_for_all_before_any_new_pod_starts() -> None:
    async def scenario() -> None:
        async with world(nodes=8, topology="cpu=8") as cluster:
            spec = stateful_set("sim", 4, podManagementPolicy="Parallel")
            spec["spec"]["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "6"}}
            await cluster.apply(asking(spec, gang="true"))
            await set_done(cluster, "sim")
            await cluster.patch("StatefulSet", "sim", {"spec": {"replicas": 12}}, subresource="scale")

            def announced(pods: list[Json]) -> bool:
                return len(pods) == 12 and sum(condition(p, "PodScheduled").get("status") == "False" for p in pods) == 8

            pods = await cluster.eventually("Pod", announced)
            assert sum(bool(pod["spec"].get("nodeName")) for pod in pods) == 4
            (group,) = cluster.all("PodGroup")
            assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 12}}
            await cluster.patch("StatefulSet", "sim", {"spec": {"replicas": 8}}, subresource="scale")
            await set_done(cluster, "sim")

    asyncio.run(scenario())


def test_a_running_set_keeps_its_group_when_other_rules_are_asked_for() -> None:
    async def scenario() -> None:
        async with world(topology="blocks=2") as cluster:
            await cluster.apply(asking(stateful_set("sim", 2, podManagementPolicy="Parallel"), gang="true"))
            await set_done(cluster, "sim")
            (before,) = cluster.all("PodGroup")
            requested = {TOPOLOGY: "topology.phalanx.dev/block"}
            await cluster.patch("StatefulSet", "sim", {"metadata": {"annotations": requested}})
            await cluster.eventually("Event", lambda found: any(e["reason"] == "GroupsUnchanged" for e in found))
            await cluster.delete("Pod", "sim-0")
            await set_done(cluster, "sim")
            (group,) = cluster.all("PodGroup")
            assert group["metadata"]["uid"] == before["metadata"]["uid"]
            assert "deletionTimestamp" not in group["metadata"]
            await cluster.patch("StatefulSet", "sim", {"spec": {"replicas": 0}}, subresource="scale")
            await cluster.eventually("Pod", lambda pods: not pods)
            await cluster.eventually("PodGroup", lambda all_: [g for g in all_ if "schedulingConstraints" in g["spec"]])

    asyncio.run(scenario())
