"""A field without effect is reported: gangs of JobSets whose gate is off, Workloads of sets that request no group."""

from __future__ import annotations

import asyncio

import pytest

from phalanx.model.gates import Gates
from support.controller_world import Json, condition, world
from support.manifests import jobset, template


def test_a_jobset_whose_gate_is_off_says_that_its_pods_start_one_by_one() -> None:
    job = {
        "spec": {
            "parallelism": 1,
            "completions": 1,
            "template": {"spec": {**template("100m", app="x")["spec"], "restartPolicy": "Never"}},
        }
    }
    made = jobset(
        "j", {"name": "a", "replicas": 1, "template": job}, annotations={"scheduling.phalanx.dev/gang": "true"}
    )

    async def scenario() -> None:
        async with world(nodes=1, controllers=False, scheduler=False) as cluster:
            await cluster.restart(Gates({"JobSetGang": False}))
            await cluster.apply(made)

            def announced(obj: Json) -> bool:
                return condition(obj, "WorkloadSchedulingReady").get("reason") == "APINotAvailable"

            await cluster.until("JobSet", "j", when=announced)
            await cluster.eventually("Job", lambda found: len(found) == 1)

    asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.mark.parametrize(
    ("kind", "extra", "possible"),
    [("StatefulSet", {"podManagementPolicy": "Parallel"}, "true"), ("Deployment", {}, "false")],
)
def test_a_workload_of_a_set_that_asks_for_no_group_is_reported(kind: str, extra: Json, possible: str) -> None:
    workload = {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "Workload",
        "metadata": {"name": "by-hand"},
        "spec": {
            "controllerRef": {"apiGroup": "apps", "kind": kind, "name": "s"},
            "podGroupTemplates": [{"name": "replicas", "schedulingPolicy": {"gang": {"minCount": 2}}}],
        },
    }

    async def scenario() -> None:
        async with world(nodes=1) as cluster:
            await cluster.apply(workload)
            spec = {"replicas": 1, "selector": {"matchLabels": {"app": "x"}}, "template": template("100m", app="x")}
            await cluster.create(kind, "s", spec=spec | extra)
            events = await cluster.eventually(
                "Event", lambda all_: [e for e in all_ if e["reason"] == "WorkloadIgnored"]
            )
            (announced,) = [each for each in events if each["reason"] == "WorkloadIgnored"]
            assert "by-hand" in announced["message"]
            assert f'annotation scheduling.phalanx.dev/gang: "{possible}"' in announced["message"]

    asyncio.run(asyncio.wait_for(scenario(), 60))
