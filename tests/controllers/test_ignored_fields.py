"""A field without effect is reported: gangs of JobSets whose gate is off, Workloads of sets that request no group."""

from __future__ import annotations

import asyncio

import pytest

from phalanx.model.gates import Gates
from support.controller_world import Json, condition, world
from support.lws_objects import lws
from support.manifests import deployment, jobset, stateful_set, template

JOB: Json = {
    "spec": {
        "parallelism": 1,
        "completions": 1,
        "template": {"spec": {**template("100m", app="x")["spec"], "restartPolicy": "Never"}},
    }
}
PART: Json = {"name": "a", "replicas": 1, "template": JOB}


def test_a_jobset_whose_gate_is_off_says_that_its_pods_start_one_by_one() -> None:
    made = jobset("j", PART, annotations={"scheduling.phalanx.dev/gang": "true"})

    async def scenario() -> None:
        async with world(nodes=1, controllers=False, scheduler=False) as cluster:
            await cluster.restart(Gates({"JobSetGang": False}))
            await cluster.apply(made)

            def announced(obj: Json) -> bool:
                return condition(obj, "WorkloadSchedulingReady").get("reason") == "APINotAvailable"

            await cluster.until("JobSet", "j", when=announced)
            await cluster.eventually("Job", lambda found: len(found) == 1)

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_leaderworkerset_whose_gate_is_off_says_that_its_pods_start_one_by_one() -> None:
    async def scenario() -> None:
        async with world(nodes=1, controllers=False, scheduler=False) as cluster:
            await cluster.restart(Gates({"PodGroupPerReplica": False}))
            await cluster.apply(lws("s", 1, 2, scheduling={}))
            events = await cluster.eventually(
                "Event", lambda all_: [e for e in all_ if e["reason"] == "APINotAvailable"]
            )
            assert any(each["message"].endswith("its pods start one by one") for each in events)
            await cluster.eventually("Pod", lambda found: len(found) == 2)

    asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.mark.parametrize(
    ("owner", "remedy"),
    [
        (stateful_set("s", 1, podManagementPolicy="Parallel"), 'annotation scheduling.phalanx.dev/gang: "true"'),
        (deployment("s", 1), 'annotation scheduling.phalanx.dev/gang: "false"'),
        (lws("s", 1, 2), "add spec.scheduling: {} to it"),
        (jobset("s", PART), "add spec.gangConfig or spec.scheduling to it"),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else "",
)
def test_a_workload_of_a_set_that_asks_for_no_group_is_reported(owner: Json, remedy: str) -> None:
    workload = {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "Workload",
        "metadata": {"name": "by-hand"},
        "spec": {
            "controllerRef": {"apiGroup": owner["apiVersion"].split("/")[0], "kind": owner["kind"], "name": "s"},
            "podGroupTemplates": [{"name": "replicas", "schedulingPolicy": {"gang": {"minCount": 2}}}],
        },
    }

    async def scenario() -> None:
        async with world(nodes=1) as cluster:
            await cluster.apply(workload)
            await cluster.apply(owner)
            events = await cluster.eventually(
                "Event", lambda all_: [e for e in all_ if e["reason"] == "WorkloadIgnored"]
            )
            (announced,) = [each for each in events if each["reason"] == "WorkloadIgnored"]
            assert "by-hand" in announced["message"]
            assert remedy in announced["message"]

    asyncio.run(asyncio.wait_for(scenario(), 60))
