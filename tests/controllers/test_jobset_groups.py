"""Gangs of JobSets in a running cluster, what hinders them, and that they come out the same wherever we crash."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import suppress
from typing import Any

import pytest

from phalanx.base.client import Resource
from phalanx.base.errors import NotFound
from phalanx.controllers.workloads.job import controller as job_module
from phalanx.controllers.workloads.jobset import controller as jobset_module
from phalanx.controllers.workloads.jobset.grouping import group_job_set
from support.controller_world import DyingClient, World, condition, let_groups_go, play, world
from support.manifests import GANG_POLICY, jobset, part
from support.states import end, finished, live, nothing_left, running

Json = dict[str, Any]
TREE = "scheduling.phalanx.dev/group-tree"
GROUPED = "WorkloadSchedulingReady"

WAYS: dict[str, Json] = {
    "the seed's gang": {"gangConfig": {"gangMode": "Gang"}},
    "one group": {"scheduling": GANG_POLICY},
    "a group each": {"scheduling": {"replicatedJobs": [{"targetReplicatedJobs": [n]} for n in ("a", "b")]}},
    "a group per job": {
        "scheduling": {"replicatedJobs": [{"targetReplicatedJobs": [n], "job": {}} for n in ("a", "b")]}
    },
    "a tree": {"annotations": {TREE: "Job"}},
    "a flat tree": {"annotations": {TREE: "ReplicatedJob"}},
    "exclusive": {"annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "kubernetes.io/hostname"}},
}


def sample(way: str, run: float | None = None) -> Json:
    return jobset("js", part("a", 2, 2, run=run), part("b", 1, 3, run=run), **WAYS[way])


def refers(cluster: World) -> None:
    """Every pod names a group that exists."""
    groups, workloads = set(cluster.names("PodGroup")), set(cluster.names("Workload"))
    for pod in cluster.all("Pod"):
        group, ref = pod["spec"].get("schedulingGroup"), pod["spec"].get("workloadRef")
        assert (group and group["podGroupName"] in groups) or (ref and ref["name"] in workloads), pod["metadata"][
            "name"
        ]


def will_exist(cluster: World) -> None:
    """Every pod names a group that its JobSet has or will make (again)."""
    found = cluster.look("JobSet", "js")
    assert found is not None
    wanted = group_job_set(found)
    groups = {group["metadata"]["name"] for group in wanted.groups}
    for pod in cluster.all("Pod"):
        group, ref = pod["spec"].get("schedulingGroup"), pod["spec"].get("workloadRef")
        assert (group and group["podGroupName"] in groups) or (ref and ref["name"] == "w-js"), pod["metadata"]["name"]


@pytest.mark.parametrize("way", WAYS)
def test_gangs_form_run_finish_and_leave_nothing(way: str) -> None:
    async def scenario(cluster: World) -> None:
        await cluster.apply(sample(way))
        pods = await running(cluster, 7)
        refers(cluster)
        if way == "exclusive":
            by_job: dict[str, set[str]] = {}
            for pod in pods:
                name = pod["metadata"]["labels"]["job-name"]
                by_job.setdefault(name, set()).add(pod["spec"]["nodeName"])
            assert all(len(nodes) == 1 for nodes in by_job.values())
            assert len(set.union(*by_job.values())) == 3
        await end(cluster, pods)
        await cluster.until("JobSet", "js", when=finished)
        assert len(cluster.names("Workload")) == 1, "a record, as long as the set is there"
        await cluster.delete("JobSet", "js", propagation="Foreground")
        await cluster.gone("JobSet", "js")
        await nothing_left(cluster)

    play(scenario)


async def refused(cluster: World, words: str) -> Json:
    found = await cluster.until("JobSet", "js", when=lambda j: condition(j, GROUPED).get("status") == "False")
    assert words in condition(found, GROUPED)["message"]
    reason = condition(found, GROUPED)["reason"]
    events = await cluster.eventually("Event", lambda events: any(e["reason"] == reason for e in events))
    assert any(words in str(e.get("note") or e.get("message")) for e in events)
    assert cluster.names("Pod") == [] and cluster.names("Job") == []
    return found


def test_too_many_groups_are_refused_on_the_users_object() -> None:
    async def scenario(cluster: World) -> None:
        parts = [part(f"p{i}", 1, 1, gangConfig={"gangMode": "Gang"}) for i in range(9)]
        await cluster.apply(jobset("js", *parts))
        await refused(cluster, "asks for 9 groups and a Workload holds 8")
        assert cluster.names("Workload") == []

    play(scenario)


def test_a_users_workload_is_respected_and_goes_with_the_set() -> None:
    async def scenario(cluster: World) -> None:
        spec = {
            "controllerRef": {"apiGroup": "jobset.x-k8s.io", "kind": "JobSet", "name": "js"},
            "podGroupTemplates": [{"name": "pg-js", "schedulingPolicy": {"gang": {"minCount": 3}}}],
        }
        mine = await cluster.create("Workload", "w-js", spec=spec)
        await cluster.apply(jobset("js", part("a", 2, 2), gangConfig={"gangMode": "Gang"}))
        pods = await running(cluster, 4)
        assert all(p["spec"]["workloadRef"] == {"name": "w-js", "podGroup": "pg-js"} for p in pods)
        (found,) = cluster.all("Workload")
        assert found["metadata"]["uid"] == mine["metadata"]["uid"]
        assert found["spec"]["podGroupTemplates"] == mine["spec"]["podGroupTemplates"]
        await cluster.delete("JobSet", "js", propagation="Background")
        await nothing_left(cluster)

    play(scenario)


def test_a_users_workload_that_does_not_fit_is_reported_and_used_when_corrected() -> None:
    async def scenario(cluster: World) -> None:
        reference = {"apiGroup": "jobset.x-k8s.io", "kind": "JobSet", "name": "js"}
        templates = [{"name": "pg-js", "schedulingPolicy": {"gang": {"minCount": 9}}}]
        await cluster.create("Workload", "w-js", spec={"controllerRef": reference, "podGroupTemplates": templates})
        await cluster.apply(jobset("js", part("a", 2, 2), gangConfig={"gangMode": "Gang"}))
        await refused(cluster, "wants 9 pods and will only ever have 4")
        templates[0]["schedulingPolicy"] = {"gang": {"minCount": 4}}
        await cluster.patch("Workload", "w-js", {"spec": {"podGroupTemplates": templates}})
        await running(cluster, 4)
        await cluster.until("JobSet", "js", when=lambda j: condition(j, GROUPED).get("status") == "True")

    play(scenario)


def test_a_group_of_another_owner_is_never_taken_over() -> None:
    async def scenario(cluster: World) -> None:
        await cluster.create(
            "CompositePodGroup",
            "js",
            spec={"workloadRef": {"workloadName": "x", "templateName": "y"}, "schedulingPolicy": {"basic": {}}},
        )
        await cluster.apply(sample("a tree"))
        await refused(cluster, "CompositePodGroup js already exists and was made by hand")
        theirs = cluster.look("CompositePodGroup", "js")
        assert theirs is not None and "ownerReferences" not in theirs["metadata"]

    play(scenario)


def test_a_group_the_server_refuses_is_reported_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobset_module, "RETRY", 0.2)

    async def scenario(cluster: World) -> None:
        high = {"pod": {"priorityClassName": "soon"}}
        await cluster.apply(jobset("js", part("a", 1, 2, **high), scheduling=GANG_POLICY))
        found = await refused(cluster, "soon")
        assert condition(found, GROUPED)["reason"] == "GroupCreationFailed"
        await cluster.create("PriorityClass", "soon", value=5)
        await running(cluster, 2)

    play(scenario)


def test_a_set_whose_groups_are_refused_can_still_be_suspended() -> None:
    async def scenario(cluster: World) -> None:
        reference = {"apiGroup": "jobset.x-k8s.io", "kind": "JobSet", "name": "js"}
        templates: list[Json] = [{"name": "pg-js", "schedulingPolicy": {"gang": {"minCount": 4}}}]
        await cluster.create("Workload", "w-js", spec={"controllerRef": reference, "podGroupTemplates": templates})
        await cluster.apply(jobset("js", part("a", 2, 2), gangConfig={"gangMode": "Gang"}))
        await running(cluster, 4)
        templates[0]["schedulingPolicy"] = {"gang": {"minCount": 9}}
        await cluster.patch("Workload", "w-js", {"spec": {"podGroupTemplates": templates}})
        await cluster.until("JobSet", "js", when=lambda j: condition(j, GROUPED).get("status") == "False")
        await cluster.patch("JobSet", "js", {"spec": {"suspend": True}})
        await cluster.eventually("Pod", lambda pods: not pods)

    play(scenario)


def test_groups_deleted_under_a_running_set_come_back() -> None:
    async def scenario(cluster: World) -> None:
        await cluster.apply(sample("a group each"))
        pods = await running(cluster, 7)
        before = {g["metadata"]["name"]: g["metadata"]["uid"] for g in cluster.all("PodGroup")}
        await cluster.delete("Workload", cluster.names("Workload")[0])
        for name in before:
            await cluster.delete("PodGroup", name)
        await cluster.eventually("Workload", lambda found: len(found) == 1)
        # Protected while their pods run, made again afterwards.
        victims = [p for p in pods if p["metadata"]["labels"]["jobset.sigs.k8s.io/replicatedjob-name"] == "b"]
        await end(cluster, victims)
        name = next(n for n in before if "-b-" in n)
        await cluster.until("PodGroup", name, when=lambda g: g["metadata"]["uid"] != before[name])

    play(scenario)


@pytest.mark.parametrize("way", WAYS)
def test_a_set_made_again_under_the_name_of_one_just_deleted(way: str) -> None:
    async def scenario(cluster: World) -> None:
        await cluster.apply(sample(way))
        old = {p["metadata"]["uid"] for p in await running(cluster, 7)}
        await cluster.delete("JobSet", "js", propagation="Background")
        await cluster.gone("JobSet", "js")
        await cluster.apply(sample(way))

        def recomputed(pods: list[Json]) -> bool:
            return len(live(pods)) == 7 and old.isdisjoint(p["metadata"]["uid"] for p in live(pods))

        await cluster.eventually("Pod", recomputed)
        refers(cluster)
        found = cluster.look("JobSet", "js")
        assert found is not None and not condition(found, GROUPED)

    play(scenario)


@pytest.mark.parametrize("way", ["the seed's gang", "a group per job", "a tree"])
@pytest.mark.parametrize("writes", [1, 3, 6, 9, 12, 15])
def test_the_same_objects_wherever_the_controllers_die(way: str, writes: int) -> None:
    async def run() -> None:
        async with world(controllers=False, scheduler=False, nodes=0) as cluster:
            await cluster.apply(sample(way))
            dying = DyingClient(cluster.client, writes)
            await cluster.start_controllers(dying)
            await asyncio.wait_for(dying.died.wait(), 90)
            await cluster.kill_controllers()
            refers(cluster)
            await cluster.start_controllers()
            await cluster.eventually("Pod", lambda pods: len(pods) == 7)
            await cluster.eventually("Job", lambda jobs: sum(j.get("status", {}).get("active", 0) for j in jobs) == 7)
            refers(cluster)
            assert cluster.names("Job") == ["js-a-0", "js-a-1", "js-b-0"]
            counts = {"the seed's gang": (1, 0, 0), "a group per job": (1, 0, 3), "a tree": (1, 3, 3)}[way]
            found = tuple(len(cluster.names(kind)) for kind in ("Workload", "CompositePodGroup", "PodGroup"))
            assert found == counts
            await cluster.delete("JobSet", "js", propagation="Foreground")
            await nothing_left(cluster)

    asyncio.run(run())


@pytest.mark.parametrize("seed", [*range(16), 208, 224])
def test_any_history_of_edits_and_crashes_ends_well(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Suspend, resume, resize, delete groups, kill pods and controllers, in any order: the set converges, and goes."""
    rng = random.Random(seed)
    for module in (job_module, jobset_module):
        monkeypatch.setattr(module, "GATHERING", 0.0)

    async def run() -> None:
        async with world() as cluster:
            way = rng.choice(sorted(WAYS))
            await cluster.apply(sample(way))
            suspended, size = False, 2
            for _ in range(8):
                step = rng.choice(["suspend", "resize", "group", "pod", "crash", "look"])
                if step == "suspend":
                    suspended = not suspended
                    await cluster.patch("JobSet", "js", {"spec": {"suspend": suspended}})
                elif step == "resize":
                    size = rng.randint(1, 3)
                    found = cluster.look("JobSet", "js")
                    assert found is not None
                    parts = found["spec"]["replicatedJobs"]
                    parts[0]["template"]["spec"] |= {"parallelism": size, "completions": size}
                    await cluster.patch("JobSet", "js", {"spec": {"replicatedJobs": parts}})
                elif step == "group" and cluster.names("PodGroup"):
                    with suppress(NotFound):
                        await cluster.delete("PodGroup", rng.choice(cluster.names("PodGroup")))
                elif step == "pod" and cluster.names("Pod"):
                    with suppress(NotFound):
                        await cluster.delete("Pod", rng.choice(cluster.names("Pod")))
                elif step == "crash":
                    await cluster.kill_controllers()
                    dying = DyingClient(cluster.client, rng.randint(0, 25))
                    await cluster.start_controllers(rng.choice([dying, None]))
                for _ in range(rng.choice([0, 5, 50, 300])):
                    await asyncio.sleep(0)
                will_exist(cluster)
            await cluster.kill_controllers()
            await cluster.start_controllers()
            if not suspended and any("deletionTimestamp" in g["metadata"] for g in cluster.all("PodGroup")):
                # Deleted by hand under running pods: it goes with the last of them, and who is made meanwhile waits.
                suspended = True
                await cluster.patch("JobSet", "js", {"spec": {"suspend": True}})
                await cluster.eventually("Pod", lambda pods: not pods)
            if suspended:
                await cluster.patch("JobSet", "js", {"spec": {"suspend": False}})
            await let_groups_go(cluster)
            wanted = 2 * size + 3
            pods = await running(cluster, wanted)
            refers(cluster)
            assert len(live(pods)) == wanted
            await cluster.delete("JobSet", "js", propagation=rng.choice(["Foreground", "Background"]))
            await nothing_left(cluster)

    asyncio.run(run())


@pytest.mark.parametrize("way", WAYS)
def test_a_suspended_set_has_its_groups_before_it_ever_starts(way: str) -> None:
    async def scenario(cluster: World) -> None:
        body = sample(way)
        body["spec"]["suspend"] = True
        await cluster.apply(body)
        (workload,) = await cluster.eventually("Workload", lambda found: len(found) == 1)
        groups = len(group_job_set(cluster.look("JobSet", "js") or {}).groups)
        before = await cluster.eventually("PodGroup", lambda found: len(found) == groups)
        await cluster.patch("JobSet", "js", {"spec": {"suspend": False}})
        await running(cluster, 7)
        await cluster.patch("JobSet", "js", {"spec": {"suspend": True}})
        await cluster.eventually("Pod", lambda pods: not pods)
        assert [w["metadata"]["uid"] for w in cluster.all("Workload")] == [workload["metadata"]["uid"]]
        uids = [group["metadata"]["uid"] for group in before]
        assert [group["metadata"]["uid"] for group in cluster.all("PodGroup")] == uids, "kept over a suspension"

    play(scenario)


def test_the_workload_of_a_failed_set_is_there_as_long_as_the_set() -> None:
    async def scenario(cluster: World) -> None:
        await cluster.apply(
            jobset("js", part("a", 1, 2, run=0.1, exit_code=1, job={"backoffLimit": 0}), scheduling=GANG_POLICY)
        )
        found = await cluster.until("JobSet", "js", when=finished)
        assert condition(found, "Failed")["status"] == "True"
        assert len(cluster.names("Workload")) == len(cluster.names("PodGroup")) == 1

    play(scenario)


def test_different_priorities_in_one_gang_are_reported_on_the_set() -> None:
    async def scenario(cluster: World) -> None:
        await cluster.create("PriorityClass", "high", value=1000)
        parts = [part("a", 1, 1, pod={"priorityClassName": "high"}), part("b", 1, 1)]
        await cluster.apply(jobset("js", *parts, gangConfig={"gangMode": "Gang"}))
        events = await cluster.eventually("Event", lambda all_: any(e["reason"] == "MixedPriorities" for e in all_))
        (announced,) = [e for e in events if e["reason"] == "MixedPriorities"]
        assert "a (high), b (none)" in announced["message"] and announced["involvedObject"]["name"] == "js"

    play(scenario)


@pytest.mark.parametrize("odd", ["dependsOn", "basic part"])
def test_a_tree_that_is_disrupted_as_one_may_have_parts_that_start_on_their_own(odd: str) -> None:
    async def scenario(cluster: World) -> None:
        last: Json = {"dependsOn": [{"name": "a", "status": "Ready"}]} if odd == "dependsOn" else {}
        if odd == "basic part":
            last = {"annotations": {"scheduling.phalanx.dev/gang": "false"}}
        workload_annotations = {TREE: "Job", "scheduling.phalanx.dev/disruption": "all"}
        await cluster.apply(jobset("js", part("a", 1, 2), part("b", 1, 2, **last), annotations=workload_annotations))
        await running(cluster, 4)
        modes = [
            obj["spec"]["disruptionMode"] for kind in ("PodGroup", "CompositePodGroup") for obj in cluster.all(kind)
        ]
        assert modes == [{"all": {}}] * 5

    play(scenario)


def test_the_version_of_the_seed_is_another_name_for_the_same_set() -> None:
    async def scenario(cluster: World) -> None:
        body = jobset("js", part("a", 1, 2), gangConfig={"gangMode": "Gang"})
        v1 = Resource("jobset.x-k8s.io", "v1", "jobsets", "JobSet")
        await cluster.client.create(v1, {**body, "apiVersion": "jobset.x-k8s.io/v1"}, "default")
        await running(cluster, 2)
        read = json.loads(await cluster.client.get(v1, "js", "default"))
        assert read["apiVersion"] == "jobset.x-k8s.io/v1" and read["spec"]["gangConfig"] == {"gangMode": "Gang"}
        stored = json.loads(await cluster.client.get(cluster.resource("JobSet"), "js", "default"))
        assert stored["apiVersion"] == "jobset.x-k8s.io/v1alpha2" and stored["spec"] == read["spec"]

    play(scenario)
