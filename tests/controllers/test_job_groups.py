"""Groups of Jobs: made before the first pod, owned for bottom-up deletion, reported to the user when they cannot be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from phalanx.base.client import Call, Client, Resource, WatchEvent
from support.controller_world import World, play
from support.manifests import GANG_POLICY, job
from support.states import end, job_done, running

Json = dict[str, Any]
PARENT = "scheduling.k8s.io/group-template-name"


async def announced(cluster: World, reason: str) -> str:
    events = await cluster.eventually("Event", lambda events: any(e["reason"] == reason for e in events))
    return str(next(e.get("note") or e.get("message") for e in events if e["reason"] == reason))


def test_a_job_gets_its_objects_and_pods_are_wired_to_them() -> None:
    async def scenario(cluster: World) -> None:
        made = await cluster.apply(job("a", 4, scheduling={**GANG_POLICY, "disruptionMode": {"all": {}}}))
        pods = await running(cluster, 4)
        (workload,), (group,) = cluster.all("Workload"), cluster.all("PodGroup")
        uid = made["metadata"]["uid"]
        assert [(o["kind"], o.get("controller")) for o in workload["metadata"]["ownerReferences"]] == [("Job", True)]
        owners = [(o["kind"], o["uid"], o.get("controller")) for o in group["metadata"]["ownerReferences"]]
        assert owners == [("Job", uid, True), ("Workload", workload["metadata"]["uid"], None)]
        for pod in pods:
            assert pod["spec"]["schedulingGroup"] == {"podGroupName": group["metadata"]["name"]}
            owners = [(o["kind"], o["uid"], o.get("controller")) for o in pod["metadata"]["ownerReferences"]]
            assert owners == [("Job", uid, True), ("PodGroup", group["metadata"]["uid"], None)]
        assert group["spec"]["disruptionMode"] == {"all": {}}
        assert (
            await announced(cluster, "WorkloadCreated") == f"Created Workload {workload['metadata']['name']} for Job a"
        )
        assert await announced(cluster, "PodGroupCreated") == f"Created PodGroup {group['metadata']['name']} for Job a"
        await cluster.delete("Job", "a", propagation="Background")
        for kind in ("Pod", "PodGroup", "Workload"):
            await cluster.eventually(kind, lambda found: not found)

    play(scenario)


def test_pods_of_a_job_that_is_deleted_without_a_word_run_on_and_can_be_deleted() -> None:
    async def scenario(cluster: World) -> None:
        await cluster.apply(job("a", 2, scheduling=GANG_POLICY))
        pods = await running(cluster, 2)
        await cluster.delete("Job", "a")
        await cluster.eventually("Job", lambda found: not found)
        left = await cluster.eventually("Pod", lambda found: all(not p["metadata"].get("finalizers") for p in found))
        assert {pod["metadata"]["uid"] for pod in left} == {pod["metadata"]["uid"] for pod in pods}
        owners = [o["kind"] for pod in left for o in pod["metadata"].get("ownerReferences") or ()]
        assert owners == ["PodGroup", "PodGroup"]
        for pod in left:
            await cluster.delete("Pod", pod["metadata"]["name"])
        await cluster.eventually("Pod", lambda found: not found)

    play(scenario)


def on_disruption(action: str) -> Json:
    return {"podFailurePolicy": {"rules": [{"action": action, "onPodConditions": [{"type": "DisruptionTarget"}]}]}}


@pytest.mark.parametrize(
    ("more", "noted"),
    [({}, True), ({"backoffLimit": 8}, False), (on_disruption("Ignore"), False), (on_disruption("Count"), True)],
)
def test_a_gang_that_would_fail_when_it_is_preempted_is_noted_on_its_job(more: Json, noted: bool) -> None:
    async def scenario(cluster: World) -> None:
        body = job("a", 8, scheduling=GANG_POLICY)
        body["spec"] |= more
        await cluster.apply(body)
        await running(cluster, 8)
        reasons = {event["reason"] for event in cluster.all("Event")}
        assert ("BackoffLimitBelowGangSize" in reasons) is noted
        if noted:
            assert "podFailurePolicy" in await announced(cluster, "BackoffLimitBelowGangSize")

    play(scenario)


def test_any_job_gets_a_basic_group_and_a_suspended_one_before_its_pods() -> None:
    async def scenario(cluster: World) -> None:
        await cluster.apply(job("a", 2, completions=5, suspend=True))
        (group,) = await cluster.eventually("PodGroup", bool)
        assert group["spec"]["schedulingPolicy"] == {"basic": {}}
        assert cluster.names("Pod") == []

    play(scenario)


def test_pods_that_name_a_group_keep_it() -> None:
    async def scenario(cluster: World) -> None:
        spec = {"schedulingPolicy": {"basic": {}}}
        await cluster.create("PodGroup", "mine", spec=spec)
        await cluster.apply(job("a", 2, pod={"schedulingGroup": {"podGroupName": "mine"}}))
        pods = await running(cluster, 2)
        assert {p["spec"]["schedulingGroup"]["podGroupName"] for p in pods} == {"mine"}
        assert cluster.names("Workload") == [] and cluster.names("PodGroup") == ["mine"]

    play(scenario)


def test_a_job_that_ran_before_groups_existed_is_left_alone() -> None:
    async def scenario(cluster: World) -> None:
        made = job("a", 1, suspend=True)
        await cluster.apply(made)
        status = {"conditions": [{"type": "Suspended", "status": "True", "reason": "JobSuspended", "message": ""}]}
        await cluster.patch("Job", "a", {"status": status}, subresource="status")
        await cluster.start_controllers()
        await cluster.patch("Job", "a", {"spec": {"suspend": False}})
        (pod,) = await running(cluster, 1)
        assert "schedulingGroup" not in pod["spec"] and cluster.names("Workload") == []

    play(scenario, controllers=False)


def test_a_delegated_job_waits_for_its_parents_workload_and_follows_it() -> None:
    async def scenario(cluster: World) -> None:
        parent = await cluster.create("ConfigMap", "parent")
        owner = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": "parent",
            "uid": parent["metadata"]["uid"],
            "controller": True,
        }
        for name in ("a", "b"):
            meta = {"ownerReferences": [owner], "annotations": {PARENT: "workers"}}
            await cluster.apply(job(name, 2, metadata=meta))
        assert "waits for a Workload of ConfigMap parent" in await announced(cluster, "WaitingForWorkload")
        assert cluster.names("Pod") == []
        spec = {
            "controllerRef": {"kind": "ConfigMap", "name": "parent"},
            "podGroupTemplates": [{"name": "workers", "schedulingPolicy": {"gang": {"minCount": 2}}}],
        }
        await cluster.create("Workload", "theirs", spec=spec)
        await running(cluster, 4)
        groups = cluster.all("PodGroup")
        assert len(groups) == 2 and cluster.names("Workload") == ["theirs"]
        for group in groups:
            assert group["spec"]["workloadRef"] == {"workloadName": "theirs", "templateName": "workers"}
            assert [o["kind"] for o in group["metadata"]["ownerReferences"]] == ["Job"]
        changed = [{"name": "workers", "schedulingPolicy": {"gang": {"minCount": 1}}}]
        await cluster.patch("Workload", "theirs", {"spec": {"podGroupTemplates": changed}})
        await cluster.eventually(
            "PodGroup", lambda found: all(g["spec"]["schedulingPolicy"]["gang"]["minCount"] == 1 for g in found)
        )

    play(scenario)


def test_a_workload_made_by_hand_goes_with_the_job_its_pods_name_it_in() -> None:
    async def scenario(cluster: World) -> None:
        spec = {
            "controllerRef": {"apiGroup": "batch", "kind": "Job", "name": "a"},
            "podGroupTemplates": [{"name": "g", "schedulingPolicy": {"gang": {"minCount": 2}}}],
        }
        await cluster.create("Workload", "mine", spec=spec)
        await cluster.apply(job("a", 2, pod={"workloadRef": {"name": "mine", "podGroup": "g"}}))
        await running(cluster, 2)
        await cluster.until("Workload", "mine", when=lambda w: w["metadata"].get("ownerReferences"))
        await cluster.delete("Job", "a", propagation="Background")
        await cluster.gone("Workload", "mine")

    play(scenario)


def test_annotations_that_cannot_be_met_are_reported_and_nothing_starts_until_corrected() -> None:
    async def scenario(cluster: World) -> None:
        requested = "scheduling.phalanx.dev/min-count"
        meta = {"annotations": {"scheduling.phalanx.dev/gang": "true", requested: "3"}}
        await cluster.apply(job("a", 2, metadata=meta))
        assert "more than the 2 pods of the Job" in await announced(cluster, "FailedWorkloadCompilation")
        assert cluster.names("Pod") == [] and cluster.names("Workload") == []
        await cluster.patch("Job", "a", {"metadata": {"annotations": {requested: "2"}}})
        await running(cluster, 2)
        assert len(cluster.names("PodGroup")) == 1

    play(scenario)


def test_a_group_deleted_under_a_running_job_is_made_again() -> None:
    async def scenario(cluster: World) -> None:
        await cluster.apply(job("a", 2, scheduling=GANG_POLICY))
        await running(cluster, 2)
        (name,) = cluster.names("PodGroup")
        before = cluster.all("PodGroup")[0]["metadata"]["uid"]
        await cluster.delete("PodGroup", name)
        await cluster.delete("Workload", cluster.names("Workload")[0])
        await cluster.eventually("Workload", lambda found: len(found) == 1)
        await cluster.patch("Job", "a", {"spec": {"suspend": True}})  # its pods protect the group until they end
        await cluster.until("PodGroup", name, when=lambda g: g["metadata"]["uid"] != before)
        await cluster.patch("Job", "a", {"spec": {"suspend": False}})
        await running(cluster, 2)

    play(scenario)


def test_without_the_gate_jobs_run_ungrouped() -> None:
    from phalanx.model.gates import Gates
    from phalanx.serve.controllers import ControllersService

    async def scenario(cluster: World) -> None:
        gates = Gates({"WorkloadWithJob": False})
        service = ControllersService(cluster.client, cluster.clock, gates)
        await cluster.run(service.run(), service.ready)
        await cluster.apply(job("a", 2, run=0))
        await job_done(cluster, "a")
        assert cluster.names("PodGroup") == [] and cluster.names("Workload") == []
        await cluster.apply(job("b", 2, pod={"priorityClassName": "unknown"}))
        assert "unknown" in await announced(cluster, "FailedCreate")

    play(scenario, controllers=False)


def test_a_group_the_server_refuses_is_reported() -> None:
    async def scenario(cluster: World) -> None:
        await cluster.apply(job("a", 2, pod={"priorityClassName": "unknown"}))
        assert "unknown" in await announced(cluster, "FailedWorkloadCreate")
        assert cluster.names("Pod") == []

    play(scenario)


def test_the_last_pod_of_a_gang_is_replaced_though_the_completed_ones_were_deleted() -> None:
    """Its place was taken by another scheduler's pod, and the others succeeded while they were returned."""

    async def scenario(cluster: World) -> None:
        await cluster.apply(job("train", 4, completions=4, scheduling=GANG_POLICY))
        pods = await running(cluster, 4)
        await end(cluster, pods[1:])
        await cluster.until("Job", "train", when=lambda found: found["status"].get("succeeded") == 3)
        for pod in pods[1:]:
            await cluster.delete("Pod", pod["metadata"]["name"])
        await cluster.eventually("Pod", lambda left: len(left) == 1)
        await cluster.delete("Pod", pods[0]["metadata"]["name"])
        (left,) = await cluster.eventually(
            "Pod", lambda found: len(found) == 1 and found[0]["metadata"]["uid"] != pods[0]["metadata"]["uid"]
        )
        await running(cluster, 1)
        await end(cluster, [left])
        await job_done(cluster, "train")

    play(scenario)


def test_a_replaced_pod_does_not_wait_for_members_that_succeeded_while_they_were_returned() -> None:
    """They are gone when they are counted, and nothing but that count changes then."""

    async def scenario(cluster: World) -> None:
        await cluster.start_controllers(SlowAnswers(cluster.client))
        await cluster.apply(job("train", 4, completions=4, scheduling=GANG_POLICY))
        first, *others = await running(cluster, 4)
        await cluster.delete("Pod", first["metadata"]["name"])

        def replaced(found: list[Json]) -> bool:
            return len(found) == 4 and first["metadata"]["uid"] not in {pod["metadata"]["uid"] for pod in found}

        await cluster.eventually("Pod", replaced)
        await end(cluster, others)
        await cluster.eventually("Pod", lambda found: sum(p["status"]["phase"] == "Succeeded" for p in found) == 3)
        for pod in others:  # before the Job controller has counted them
            await cluster.delete("Pod", pod["metadata"]["name"])
        (left,) = await cluster.eventually("Pod", lambda found: len(found) == 1)
        name = left["spec"]["schedulingGroup"]["podGroupName"]
        await cluster.until(
            "PodGroup", name, when=lambda found: found["spec"]["schedulingPolicy"]["gang"]["minCount"] == 1
        )

    play(scenario, controllers=False)


class SlowAnswers(Client):
    """A client that gets the answer of a patch of a pod after the watch showed the change, as from a busy server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def call(self, call: Call) -> bytes:
        answer = await self._client.call(call)
        if call.resource.plural == "pods" and call.verb == "patch":
            await asyncio.sleep(0.3)
        return answer

    async def served(self, resource: Resource) -> bool:
        return await self._client.served(resource)

    def events(self, call: Call) -> AsyncIterator[WatchEvent]:
        return self._client.events(call)
