"""A field without effect is reported: gangs of JobSets whose gate is off, Workloads of sets that request no group."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import yaml

from phalanx.model.gates import Gates
from support.controller_world import Json, condition, world
from support.lifecycle.manifests import mpi_job, train_job
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


CRDS = Path(__file__).parents[2] / "examples" / "crds"
GANG = {"scheduling.phalanx.dev/gang": "true"}
JOB_GANG = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "g"}, "spec": JOB["spec"]}


@pytest.mark.parametrize(
    ("objects", "gate"),
    [
        ([stateful_set("g", 2, podManagementPolicy="Parallel")], "GenericWorkload"),
        ([deployment("g", 2)], "GenericWorkload"),
        ([JOB_GANG], "WorkloadWithJob"),
        ([mpi_job("g")], "GenericWorkload"),
        (train_job("g"), "GenericWorkload"),
    ],
    ids=lambda value: value[-1]["kind"] if isinstance(value, list) else value,
)
def test_a_gang_of_a_kind_whose_gate_is_off_is_reported(objects: list[Json], gate: str) -> None:
    async def scenario() -> None:
        async with world(nodes=1, controllers=False, scheduler=False) as cluster:
            for crd in ("mpijob", "trainer"):
                for body in yaml.safe_load_all((CRDS / f"{crd}.yaml").read_text()):
                    await cluster.apply(body)
            await cluster.restart(Gates({gate: False}))
            for each in objects:
                asks = {"annotations": GANG} if each["metadata"]["name"] == "g" else {}
                await cluster.apply(each | {"metadata": each["metadata"] | asks})
            (event,) = await cluster.eventually(
                "Event",
                lambda all_: [
                    e for e in all_ if e["reason"] == "APINotAvailable" and e["involvedObject"]["name"] == "g"
                ],
            )
            assert gate in event["message"]

    asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.mark.parametrize(
    ("kind", "there", "text"),
    [
        ("DaemonSet", True, "gets no groups, like every DaemonSet"),
        ("DaemonSet", False, "does not exist"),
        ("Deployment", False, "does not exist"),
    ],
)
def test_a_workload_about_nothing_that_has_groups_is_reported(
    kind: str, there: bool, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phalanx.controllers.workloads.without_effect.PATIENCE", 0.3)
    reference = {"apiGroup": "apps", "kind": kind, "name": "s"}
    gang = {"gang": {"minCount": 2}}

    def workload(name: str) -> Json:
        spec = {"controllerRef": reference, "podGroupTemplates": [{"name": "t", "schedulingPolicy": gang}]}
        return {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "Workload", "metadata": {"name": name}, "spec": spec}

    async def scenario() -> None:
        async with world(nodes=1) as cluster:
            if there:
                daemons = {"selector": {"matchLabels": {"app": "x"}}, "template": template("100m", app="x")}
                await cluster.create(kind, "s", spec=daemons)
            await cluster.apply(workload("used"))
            ref = {"workloadRef": {"workloadName": "used", "templateName": "t"}, "schedulingPolicy": gang}
            await cluster.create("PodGroup", "by-hand", spec=ref)
            await cluster.apply(workload("idle"))
            events = await cluster.eventually(
                "Event", lambda all_: [e for e in all_ if e["reason"] == "WorkloadIgnored"]
            )
            (event,) = [each for each in events if each["reason"] == "WorkloadIgnored"]
            assert event["involvedObject"]["name"] == "idle"
            assert text in event["message"]

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
