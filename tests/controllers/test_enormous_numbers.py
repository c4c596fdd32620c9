"""A number in a spec costs nothing: what asks for too much says so, and everything else goes on after a restart."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from phalanx.controllers.grouping.core import MOST_PARTS, TOO_MANY, GroupingRefused
from phalanx.controllers.workloads.registry import group
from support.controller_world import Json, World, world
from support.manifests import apps_set, template

HUGE = 2**31 - 1


def body(version: str, kind: str, spec: Json, **annotations: str) -> Json:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "huge", "annotations": annotations}, "spec": spec}


def a_set(kind: str, **spec: Any) -> Json:
    return apps_set(kind, "huge", template("100m", app="huge"), replicas=HUGE, **spec)


def a_job_set(replicas: int, size: int, **annotations: str) -> Json:
    job = {"parallelism": size, "completions": size, "template": {"spec": template("100m", app="x")["spec"]}}
    job["template"]["spec"]["restartPolicy"] = "Never"  # type: ignore[index]
    replicated = [{"name": "a", "replicas": replicas, "template": {"spec": job}}]
    return body("jobset.x-k8s.io/v1alpha2", "JobSet", {"replicatedJobs": replicated}, **annotations)


def a_leader_worker_set(replicas: int, size: int) -> Json:
    spec = {
        "replicas": replicas,
        "leaderWorkerTemplate": {"size": size, "workerTemplate": {"spec": template("100m", app="x")["spec"]}},
        "scheduling": {"schedulingPolicy": {"gang": {}}},
    }
    return body("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", spec)


def a_job() -> Json:
    spec = {"parallelism": HUGE, "template": {"spec": {**template("100m", app="x")["spec"], "restartPolicy": "Never"}}}
    return body("batch/v1", "Job", spec)


GANG = {"scheduling.phalanx.dev/gang": "true"}
OBJECTS = {
    "StatefulSet": a_set("StatefulSet", podManagementPolicy="Parallel", serviceName="s"),
    "ReplicaSet": a_set("ReplicaSet"),
    "Deployment": a_set("Deployment"),
    "Job": a_job(),
    "JobSet": a_job_set(HUGE, 1, **GANG),
    "JobSet with large Jobs": a_job_set(100, 100_000, **GANG),
    "LeaderWorkerSet": a_leader_worker_set(1_000_000, 1),
    "LeaderWorkerSet of one large replica": a_leader_worker_set(1, HUGE),
}


def says_too_many(obj: Json) -> bool:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return any(each["reason"] == TOO_MANY or f"asks for {HUGE} pods" in each.get("message", "") for each in conditions)


@pytest.mark.parametrize("what", OBJECTS)
def test_a_workload_of_two_billion_is_reported_and_others_run(what: str) -> None:
    async def scenario(cluster: World) -> None:
        huge = OBJECTS[what]
        await cluster.apply(huge)
        await cluster.until(huge["kind"], "huge", when=says_too_many)
        small = a_set("ReplicaSet")
        small["metadata"]["name"] = "small"
        small["spec"]["replicas"] = 2
        small["spec"]["selector"] = {"matchLabels": {"app": "small"}}
        small["spec"]["template"] = template("100m", app="small")
        await cluster.apply(small)
        await cluster.until("ReplicaSet", "small", when=lambda obj: obj["status"].get("readyReplicas") == 2)
        await cluster.kill_controllers()
        await cluster.start_controllers()
        await cluster.patch("ReplicaSet", "small", {"spec": {"replicas": 3}})
        await cluster.until("ReplicaSet", "small", when=lambda obj: obj["status"].get("readyReplicas") == 3)

    async def run() -> None:
        async with world() as cluster:
            await asyncio.wait_for(scenario(cluster), 60)

    asyncio.run(run())


@pytest.mark.parametrize("what", ["JobSet", "JobSet with large Jobs", "LeaderWorkerSet"])
def test_its_groups_are_refused_before_they_are_listed(what: str) -> None:
    """What `controllers --mode cluster` computes for it."""
    with pytest.raises(GroupingRefused) as refused:
        group({**OBJECTS[what], "metadata": {**OBJECTS[what]["metadata"], "namespace": "default", "uid": "u"}})
    assert refused.value.reason == TOO_MANY


def test_as_many_as_are_allowed_are_grouped() -> None:
    found = group({**a_job_set(MOST_PARTS, 1), "metadata": {"name": "huge", "namespace": "default", "uid": "u"}})
    assert found is not None
