"""A Workload that a user created for a workload object is used as it is."""

from __future__ import annotations

from typing import Any

import pytest

from support.controller_world import Json, World, condition, play
from support.lws_objects import done as lws_done
from support.lws_objects import group_of, lws
from support.manifests import job, jobset, part, stateful_set
from support.states import set_done

GANG = "scheduling.phalanx.dev/gang"


async def by_hand(cluster: World, kind: str, group: str, name: str, *templates: Json) -> Json:
    spec = {"controllerRef": {"apiGroup": group, "kind": kind, "name": name}, "podGroupTemplates": list(templates)}
    return await cluster.create("Workload", "mine", spec=spec)


def template(name: str, count: int, **rules: Any) -> Json:
    return {"name": name, "schedulingPolicy": {"gang": {"minCount": count}}, **rules}


def rules(cluster: World) -> list[tuple[str, str, int]]:
    return [
        (ref["workloadName"], ref["templateName"], group["spec"]["schedulingPolicy"]["gang"]["minCount"])
        for group in cluster.all("PodGroup")
        for ref in [group["spec"]["workloadRef"]]
    ]


def test_of_a_statefulset() -> None:
    async def scenario(cluster: World) -> None:
        await by_hand(cluster, "StatefulSet", "apps", "sim", template("all", 2))
        spec = stateful_set("sim", 3, podManagementPolicy="Parallel")
        spec["metadata"]["annotations"] = {GANG: "true"}
        await cluster.apply(spec)
        await set_done(cluster, "sim")
        assert cluster.names("Workload") == ["mine"] and rules(cluster) == [("mine", "all", 2)]
        assert {group_of(pod) for pod in cluster.all("Pod")} == set(cluster.names("PodGroup"))
        await cluster.delete("StatefulSet", "sim", propagation="Background")
        await cluster.eventually("PodGroup", lambda found: not found)
        assert cluster.names("Workload") == ["mine"], "its author deletes it"

    play(scenario)


def test_of_a_statefulset_where_it_does_not_fit() -> None:
    async def scenario(cluster: World) -> None:
        await by_hand(cluster, "StatefulSet", "apps", "sim", template("all", 9))
        spec = stateful_set("sim", 3, podManagementPolicy="Parallel")
        spec["metadata"]["annotations"] = {GANG: "true"}
        await cluster.apply(spec)
        await cluster.eventually("Event", lambda all_: any("wants 9 members" in e["message"] for e in all_))
        assert not cluster.all("Pod")

    play(scenario)


def test_of_a_job_with_a_time_to_live() -> None:
    async def scenario(cluster: World) -> None:
        await by_hand(cluster, "Job", "batch", "a", template("all", 2))
        await cluster.apply(job("a", 2, ttlSecondsAfterFinished=1, run=1))
        await cluster.eventually("PodGroup", bool)
        assert rules(cluster) == [("mine", "all", 2)] and cluster.names("Workload") == ["mine"]
        pods = await cluster.eventually("Pod", lambda pods: len(pods) == 2)
        assert {group_of(pod) for pod in pods} == set(cluster.names("PodGroup"))
        await cluster.delete("Job", "a", propagation="Background")
        await cluster.gone("Workload", "mine")

    play(scenario)


def test_of_a_leaderworkerset() -> None:
    async def scenario(cluster: World) -> None:
        await by_hand(cluster, "LeaderWorkerSet", "leaderworkerset.x-k8s.io", "vllm", template("replica", 2))
        await cluster.apply(lws("vllm", 2, 3, scheduling={}))
        await lws_done(cluster, "vllm")
        assert cluster.names("Workload") == ["mine"] and rules(cluster) == [("mine", "replica", 2)] * 2
        assert all(map(group_of, cluster.all("Pod")))

    play(scenario)


@pytest.mark.parametrize("requested", ["gangConfig", "scheduling", "annotation"])
def test_of_a_jobset(requested: str) -> None:
    async def scenario(cluster: World) -> None:
        await by_hand(cluster, "JobSet", "jobset.x-k8s.io", "js", template("all", 3))
        spec: Json = {"gangConfig": {"gangMode": "Gang"}} if requested == "gangConfig" else {}
        if requested == "scheduling":
            spec = {"scheduling": {"schedulingPolicy": {"gang": {}}}}
        body = jobset("js", part("w", 2, 2), **spec)
        if requested == "annotation":
            body["metadata"]["annotations"] = {GANG: "true"}
        await cluster.apply(body)
        pods = await cluster.eventually("Pod", lambda all_: len([p for p in all_ if p["spec"].get("nodeName")]) == 4)
        assert cluster.names("Workload") == ["mine"]
        if requested == "gangConfig":
            assert {pod["spec"]["workloadRef"]["name"] for pod in pods} == {"mine"}
        else:
            assert rules(cluster) == [("mine", "all", 3)] and all(map(group_of, pods))
        await cluster.delete("JobSet", "js", propagation="Background")
        await cluster.gone("Workload", "mine")

    play(scenario)


def test_a_leaderworkerset_below_a_tree() -> None:
    async def scenario(cluster: World) -> None:
        annotations = {
            "scheduling.k8s.io/group-template-name": "server",
            "scheduling.k8s.io/parent-compositepodgroup": "stack",
        }
        await cluster.apply(lws("vllm", 2, 2, scheduling={}, annotations=annotations))
        found = await cluster.until("LeaderWorkerSet", "vllm", when=lambda o: condition(o, "WorkloadSchedulingReady"))
        assert condition(found, "WorkloadSchedulingReady")["reason"] == "ParentWorkloadNotReady"
        assert not cluster.all("Pod") and not cluster.all("PodGroup")
        tree = {
            "name": "root",
            "schedulingPolicy": {"gang": {"minGroupCount": 2}},
            "podGroupTemplates": [template("server", 2, disruptionMode={"all": {}})],
        }
        await cluster.create("Workload", "stack-plan", spec={"compositePodGroupTemplates": [tree]})
        top = {"workloadRef": {"workloadName": "stack-plan", "templateName": "root"}}
        await cluster.create(
            "CompositePodGroup", "stack", spec={**top, "schedulingPolicy": {"gang": {"minGroupCount": 2}}}
        )
        await lws_done(cluster, "vllm")
        assert cluster.names("Workload") == ["stack-plan"]
        assert rules(cluster) == [("stack-plan", "server", 2)] * 2
        for group in cluster.all("PodGroup"):
            assert group["spec"]["parentCompositePodGroupName"] == "stack"
            assert group["spec"]["disruptionMode"] == {"all": {}}

    play(scenario)
