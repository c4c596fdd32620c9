"""Every file in examples/ does what it says on a local cluster, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from phalanx.base.clock import SystemClock
from phalanx.cli.group import group as group_command
from phalanx.controllers.workloads.registry import group
from support.controller_world import Json, MovedClock, World, condition, world

EXAMPLES = Path(__file__).parents[2] / "examples"
TOPOLOGY = "blocks=2,racks=4"
RACK, BLOCK = "topology.phalanx.dev/rack", "topology.phalanx.dev/block"
MADE = ("Pod", "Job", "ReplicaSet", "StatefulSet", "PodGroup", "CompositePodGroup", "Workload", "ControllerRevision")


def documents(name: str) -> list[Json]:
    return [document for document in yaml.safe_load_all((EXAMPLES / f"{name}.yaml").read_text()) if document]


def files() -> list[str]:
    return sorted(path.stem for path in EXAMPLES.glob("*.yaml"))


def is_true(type_: str) -> Callable[[Json], bool]:
    return lambda obj: condition(obj, type_).get("status") == "True"


def all_ready(obj: Json) -> bool:
    return bool((obj.get("status") or {}).get("readyReplicas") == obj["spec"]["replicas"])


# What tells that an example has come to where it wants to be.
GOALS: dict[str, Callable[[Json], bool]] = {
    "Job": is_true("Complete"),
    "JobSet": is_true("Completed"),
    "LeaderWorkerSet": is_true("Available"),
    "StatefulSet": all_ready,
    "Deployment": all_ready,
    "ReplicaSet": all_ready,
    "Pod": is_true("Ready"),
}
# name -> (PodGroups, pods of each gang that share a domain of this label)
EXPECTED: dict[str, tuple[int, str]] = {
    "compositepodgroup-two-blocks": (2, BLOCK),
    "deployment-basic": (1, RACK),
    "job-gang": (1, ""),
    "job-indexed": (1, ""),
    "jobset-composite": (2, RACK),
    "jobset-depends-on": (2, ""),
    "jobset-gang": (0, ""),
    "jobset-gang-per-replicatedjob": (0, ""),
    "jobset-replicated-gang": (0, ""),
    "jobset-scheduling": (2, ""),
    "lws-leader-created": (2, ""),
    "lws-leader-ready": (2, ""),
    "lws-rolling-update": (3, ""),
    "lws-subgroups": (2, RACK),
    "podgroup-topology": (1, RACK),
    "statefulset-gang": (1, ""),
    "workload-v1alpha1": (0, ""),
}
OTHERWISE = {"cronjob-gang", "mpijob", "pytorchjob", "raycluster", "rayjob", "trainjob"}  # tested below
OTHERWISE |= {"urgent"}  # tested where the README is typed: it needs gangs that are preempted


def placed(count: int) -> Callable[[list[Json]], bool]:
    return lambda pods: sum(bool(pod["spec"].get("nodeName")) for pod in pods) == count


def test_every_example_is_tested_and_listed() -> None:
    assert set(files()) == set(EXPECTED) | OTHERWISE
    readme = (EXAMPLES / "README.md").read_text()
    assert all(f"`{name}.yaml`" in readme for name in files())


async def create(cluster: World, body: Json) -> None:
    known = cluster.resource(body["kind"])
    resource = replace(known, version=body["apiVersion"].rpartition("/")[2])
    await cluster.client.create(resource, body, "default" if known.namespaced else "")


def domains(cluster: World, groups: dict[str, list[Json]], key: str) -> dict[str, set[str]]:
    labels = {node["metadata"]["name"]: node["metadata"]["labels"] for node in cluster.all("Node", "")}
    return {name: {labels[pod["spec"]["nodeName"]][key] for pod in pods} for name, pods in groups.items()}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_it_runs_and_leaves_nothing_behind(name: str) -> None:
    async def scenario() -> None:
        async with world(nodes=8, topology=TOPOLOGY) as cluster:
            made = documents(name)
            seen: dict[str, dict[str, Json]] = {}

            def remember(pods: list[Json]) -> None:
                for pod in pods:
                    if pod["spec"].get("nodeName") and pod["spec"].get("schedulingGroup"):
                        group_name = pod["spec"]["schedulingGroup"]["podGroupName"]
                        seen.setdefault(group_name, {})[pod["metadata"]["name"]] = pod

            for body in made:
                await create(cluster, body)
            for body in made:
                if goal := GOALS.get(body["kind"]):
                    reached = await cluster.until(body["kind"], body["metadata"]["name"], when=goal)
                    assert reached["kind"] == body["kind"]
            remember(cluster.all("Pod"))
            groups, key = EXPECTED[name]
            assert len(cluster.all("PodGroup")) == groups or made[0]["kind"] == "JobSet"
            if key and seen:
                placed = domains(cluster, {group_name: list(pods.values()) for group_name, pods in seen.items()}, key)
                assert all(len(found) == 1 for found in placed.values()), placed
            for body in reversed(made):
                resource = cluster.resource(body["kind"])
                await cluster.client.delete(resource, body["metadata"]["name"], "default", propagation="Background")
            for kind in MADE:
                await cluster.eventually(kind, lambda found: not found)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "name",
    ["job-gang", "statefulset-gang", "deployment-basic", "jobset-composite", "lws-leader-created", "lws-subgroups"],
)
def test_phalanx_group_prints_the_names_that_the_cluster_makes(name: str) -> None:
    async def scenario() -> None:
        async with world(nodes=0, scheduler=False) as cluster:
            (body,) = documents(name)
            await create(cluster, body)
            stored = await cluster.until(body["kind"], body["metadata"]["name"], when=bool)
            body["metadata"]["uid"] = stored["metadata"]["uid"]  # some names end in its hash
            answer = CliRunner().invoke(group_command, ["-f", "-", "-o", "json"], input=json.dumps(body))
            wanted: dict[str, set[str]] = {"Workload": set(), "CompositePodGroup": set(), "PodGroup": set()}
            for item in json.loads(answer.stdout)["items"]:
                wanted[item["kind"]].add(item["metadata"]["name"])
            for kind, names in wanted.items():
                await cluster.eventually(kind, lambda found, n=names: {each["metadata"]["name"] for each in found} == n)

    asyncio.run(scenario())


def test_each_run_of_the_cron_job_has_a_workload_of_its_own() -> None:
    async def scenario() -> None:
        clock = MovedClock(SystemClock().now())
        async with world(nodes=4, clock=clock) as cluster:
            (body,) = documents("cronjob-gang")
            await create(cluster, body)
            for run in (1, 2):
                clock.advance(60)
                poke = {"metadata": {"annotations": {"poked": str(run)}}}
                await cluster.patch("CronJob", "cronjob-gang", poke)
                await cluster.eventually("Workload", lambda found, run=run: len(found) == run)  # type: ignore[misc]
            jobs = await cluster.eventually("Job", lambda jobs: len(jobs) == 2 and all(map(is_true("Complete"), jobs)))
            about = sorted(w["spec"]["controllerRef"]["name"] for w in cluster.all("Workload"))
            assert about == [job["metadata"]["name"] for job in jobs]
            await cluster.delete("CronJob", "cronjob-gang", propagation="Background")
            for kind in MADE:
                await cluster.eventually(kind, lambda found: not found)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("name", "crd", "count"),
    [
        ("mpijob", "mpijob", 5),
        ("pytorchjob", "pytorchjob", 3),
        ("raycluster", "ray", 4),
        ("rayjob", "ray", 3),
        ("trainjob", "trainer", 5),
    ],
)
def test_kinds_of_other_operators_are_stored_and_grouped(name: str, crd: str, count: int) -> None:
    async def scenario() -> None:
        async with world(nodes=0, scheduler=False, controllers=False) as cluster:
            for body in yaml.safe_load_all((EXAMPLES / "crds" / f"{crd}.yaml").read_text()):
                await create(cluster, body)
                names = body["metadata"]["name"]
                await cluster.until("CustomResourceDefinition", names, when=is_true("Established"))
            stored = []
            for body in documents(name):
                await create(cluster, body)
                stored.append(json.loads(json.dumps(cluster.look(body["kind"], body["metadata"]["name"]))))
            found: Any = group(stored[-1], stored)
            assert [g["spec"]["schedulingPolicy"] for g in found.groups] == [{"gang": {"minCount": count}}]

    asyncio.run(scenario())


def test_an_mpi_job_of_another_controller_is_left_alone() -> None:
    """A MultiKueue's MPIJob has its pods in another cluster."""

    async def scenario() -> None:
        async with world(nodes=1, controllers=False) as cluster:
            (definition,) = yaml.safe_load_all((EXAMPLES / "crds" / "mpijob.yaml").read_text())
            await create(cluster, definition)
            await cluster.until("CustomResourceDefinition", definition["metadata"]["name"], when=is_true("Established"))
            (ours,) = documents("mpijob")
            theirs = copy.deepcopy(ours)
            theirs["metadata"]["name"] = "elsewhere"
            theirs["spec"].setdefault("runPolicy", {})["managedBy"] = "kueue.x-k8s.io/multikueue"
            for body in (theirs, ours):
                await create(cluster, body)
            await cluster.start_controllers()
            await cluster.eventually("Pod", lambda pods: len(pods) == 5)
            assert not [pod for pod in cluster.all("Pod") if pod["metadata"]["name"].startswith("elsewhere")]
            assert "status" not in await cluster.until("MPIJob", "elsewhere", when=bool)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("name", "crd", "over"), [("mpijob", "mpijob", "Succeeded"), ("trainjob", "trainer", "Complete")]
)
def test_jobs_of_other_operators_run_restart_and_finish(name: str, crd: str, over: str) -> None:
    async def scenario() -> None:
        async with world(nodes=4, controllers=False) as cluster:
            for body in yaml.safe_load_all((EXAMPLES / "crds" / f"{crd}.yaml").read_text()):
                await create(cluster, body)
                await cluster.until("CustomResourceDefinition", body["metadata"]["name"], when=is_true("Established"))
            await cluster.start_controllers()
            made = documents(name)
            for body in made:
                await create(cluster, body)
            kind = made[-1]["kind"]
            pods = await cluster.eventually(
                "Pod", lambda pods: len([p for p in pods if p["spec"].get("nodeName")]) == 5
            )
            (group,) = cluster.all("PodGroup")
            assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 5}}
            assert {pod["spec"]["schedulingGroup"]["podGroupName"] for pod in pods} == {group["metadata"]["name"]}
            lost = next(pod for pod in pods if "worker" in pod["metadata"]["name"] or "node" in pod["metadata"]["name"])
            await cluster.delete("Pod", lost["metadata"]["name"])
            await cluster.kill_controllers()
            await cluster.start_controllers()
            found = await cluster.until(kind, name, when=is_true(over))
            assert found["kind"] == kind
            for body in reversed(made):
                resource = cluster.resource(body["kind"])
                namespace = "default" if resource.namespaced else ""
                await cluster.client.delete(resource, body["metadata"]["name"], namespace, propagation="Background")
            for left in (*MADE, "JobSet"):
                await cluster.eventually(left, lambda found: not found)

    asyncio.run(scenario())


def test_a_torch_train_job_is_a_job_set_of_its_nodes_and_may_be_suspended() -> None:
    async def scenario() -> None:
        async with world(nodes=4, controllers=False) as cluster:
            for body in yaml.safe_load_all((EXAMPLES / "crds" / "trainer.yaml").read_text()):
                await create(cluster, body)
                await cluster.until("CustomResourceDefinition", body["metadata"]["name"], when=is_true("Established"))
            await cluster.start_controllers()
            pod = {"spec": {"containers": [{"name": "node", "image": "old"}]}}
            step = {"name": "node", "template": {"spec": {"template": pod}}}
            policy = {"numNodes": 1, "torch": {"numProcPerNode": 1}}
            spec = {"mlPolicy": policy, "template": {"spec": {"replicatedJobs": [step]}}}
            job = {"runtimeRef": {"name": "torch"}, "trainer": {"numNodes": 3, "image": "new"}, "suspend": True}
            await cluster.create("TrainJob", "tj", spec=job)
            await cluster.eventually("Event", lambda found: any(e["reason"] == "RuntimeNotFound" for e in found))
            await cluster.create("ClusterTrainingRuntime", "torch", spec=spec)
            await cluster.eventually("PodGroup", bool)
            await cluster.until("JobSet", "tj", when=is_true("Suspended"))
            assert not cluster.all("Pod")
            await cluster.patch("TrainJob", "tj", {"spec": {"suspend": False}})
            pods = await cluster.eventually(
                "Pod", lambda pods: len([p for p in pods if p["spec"].get("nodeName")]) == 3
            )
            assert {pod["spec"]["containers"][0]["image"] for pod in pods} == {"new"}
            (group,) = cluster.all("PodGroup")
            assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 3}}
            assert {pod["spec"]["schedulingGroup"]["podGroupName"] for pod in pods} == {group["metadata"]["name"]}

    asyncio.run(scenario())
