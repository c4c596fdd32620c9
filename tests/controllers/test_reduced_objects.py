"""Every reconciler survives every object that its API accepts: objects with each field left out, and the smallest."""

from __future__ import annotations

import asyncio
import copy
import logging
from pathlib import Path
from typing import Any

import pytest
import yaml

from phalanx.base.errors import ApiProblem
from phalanx.controllers.runtime.controller import Key
from phalanx.controllers.workloads.job.tally import tally_of
from phalanx.model.annotation_values import MAX_INT32
from phalanx.serve.controllers import ControllersService
from support.controller_world import World, condition, world
from support.manifests import jobset, part
from support.reduced_objects import CONDITIONS, FULL, Json, Reduction, paths, without


async def reconcile_everything(cluster: World, service: ControllersService) -> None:
    """Call every reconciler with every name there is; what the API server refuses is no failure of a reconciler."""
    keys = {
        Key(entry.key[1], entry.key[2])
        for kind in cluster.registry.all()
        for entry in cluster.store.list(kind.storage_key)
    }
    for controller in service.controllers:
        for key in sorted(keys):
            try:
                await controller.reconcile(key)
            except ApiProblem:
                continue


async def create_variants(cluster: World, kind: str) -> list[str]:
    """Create the full object and everything smaller that is accepted; return the names."""
    resource = cluster.resource(kind)
    full: Json = {"apiVersion": resource.api_version, "kind": kind, "metadata": {"name": "x"}, **FULL[kind]}
    made = []
    for number, body in enumerate(await Reduction(cluster.client, resource).variants(full)):
        name = f"x{number}"
        try:
            await cluster.apply({**body, "metadata": {"name": name}})
        except ApiProblem:
            continue  # it and an earlier one exclude each other
        made.append(name)
    return made


async def say(cluster: World, kind: str, type_: str) -> None:
    """Write a condition onto everything of a kind, with nothing but what is required."""
    body = {"status": {"conditions": [{"type": type_, "status": "True"}]}}
    for obj in cluster.all(kind):
        try:
            await cluster.patch(kind, obj["metadata"]["name"], body, subresource="status")
        except ApiProblem:
            continue


@pytest.mark.parametrize("kind", sorted(FULL))
def test_reconcilers_survive_what_the_api_accepts(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with world(nodes=0, scheduler=False, controllers=False) as cluster:
            await cluster.create("PriorityClass", "high", value=5)
            names = await create_variants(cluster, kind)
            assert len(names) > 2, "the full object must be accepted, and something must be optional"
            service = await cluster.start_controllers()
            await reconcile_everything(cluster, service)
            await reconcile_everything(cluster, service)
            assert not [entry for entry in caplog.records if entry.levelno >= logging.ERROR]

    asyncio.run(scenario())


@pytest.mark.parametrize(("kind", "said"), [(kind, each) for kind, found in CONDITIONS.items() for each in found])
def test_reconcilers_survive_conditions_without_times(kind: str, said: str, caplog: pytest.LogCaptureFixture) -> None:
    """lastTransitionTime, reason and message are optional in conditions of built-in kinds."""

    async def scenario() -> None:
        async with world(nodes=0, scheduler=False, controllers=False) as cluster:
            await cluster.create("PriorityClass", "high", value=5)
            for each in ("JobSet", "LeaderWorkerSet", "Deployment", "StatefulSet", "DaemonSet", "Job", "Node"):
                await cluster.create(each, each.lower(), **FULL[each])
            await cluster.create("PersistentVolumeClaim", "claim", **FULL["PersistentVolumeClaim"])
            await cluster.create("PodDisruptionBudget", "budget", **FULL["PodDisruptionBudget"])
            await reconcile_everything(cluster, await cluster.start_controllers())
            assert cluster.all(kind), "there must be something to say it of"
            await cluster.kill_controllers()
            await say(cluster, kind, said)
            service = await cluster.start_controllers()
            await reconcile_everything(cluster, service)
            assert not [entry for entry in caplog.records if entry.levelno >= logging.ERROR]

    asyncio.run(scenario())


def test_a_jobset_says_what_it_lacks_and_goes_on() -> None:
    """A shared claim without spec is accepted with the set and refused when it is created."""

    async def scenario() -> None:
        async with world() as cluster:
            made = jobset("js", part("a", 1, 1), volumeClaimPolicies=[{"templates": [{"metadata": {"name": "d"}}]}])
            pod = made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
            pod["containers"][0]["volumeMounts"] = [{"name": "d", "mountPath": "/d"}]
            await cluster.apply(made)
            await cluster.create("JobSet", "empty", spec={})
            for name in ("js", "empty"):
                await cluster.until("Service", name, when=bool)
            await cluster.until("JobSet", "js", when=lambda found: found.get("status"))
            await cluster.eventually("Event", lambda found: any(e["reason"] == "PVCCreationFailed" for e in found))
            assert cluster.names("Job") == ["js-a-0"]

    asyncio.run(scenario())


def is_ready(jobset: Json) -> bool:
    counts = (jobset.get("status") or {}).get("replicatedJobsStatus") or [{}]
    return bool(counts[0].get("ready"))


@pytest.mark.parametrize("restarts", [-1, MAX_INT32])
def test_a_jobset_goes_on_with_any_number_of_restarts(restarts: int) -> None:
    """Its Jobs have the number as a label, so a status written by hand could stop the set for good, or never let it."""

    async def scenario() -> None:
        async with world() as cluster:
            await cluster.apply(jobset("js", part("a", 1, 1)))
            (job,) = await cluster.eventually("Job", lambda found: found if len(found) == 1 else [])
            await cluster.patch("JobSet", "js", {"status": {"restarts": restarts}}, subresource="status")
            if restarts < 0:
                await cluster.delete("Job", "js-a-0")  # of the present attempt, so only a lost one is created again
            uid = job["metadata"]["uid"]
            again = await cluster.until("Job", "js-a-0", when=lambda found: found and found["metadata"]["uid"] != uid)
            await cluster.until("JobSet", "js", when=is_ready)
            now = cluster.look("Job", "js-a-0")
            assert now is not None and now["metadata"]["uid"] == again["metadata"]["uid"]

    asyncio.run(scenario())


FAILED: Json = {"status": {"conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]}}
DAMAGE = [
    ("LeaderWorkerSet", "StatefulSet", "annotations", "leaderworkerset.sigs.k8s.io/replicas"),
    ("JobSet", "Job", "labels", "jobset.sigs.k8s.io/job-index"),
    ("JobSet", "Job", "labels", "jobset.sigs.k8s.io/restart-attempt"),
]


@pytest.mark.parametrize(("kind", "made", "where", "key"), DAMAGE)
def test_reconcilers_survive_what_a_user_made_of_their_labels(
    kind: str, made: str, where: str, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with world(nodes=0, scheduler=False, controllers=False) as cluster:
            await cluster.create("PriorityClass", "high", value=5)
            await cluster.create(kind, "x", **FULL[kind])
            await reconcile_everything(cluster, await cluster.start_controllers())
            await cluster.kill_controllers()
            for value in ("x", "-1", "9" * 5000 if where == "annotations" else "9" * 60, None):
                for obj in cluster.all(made):
                    await cluster.patch(made, obj["metadata"]["name"], {"metadata": {where: {key: value}}})
                    if made == "Job" and not obj.get("status", {}).get("conditions"):
                        await cluster.patch("Job", obj["metadata"]["name"], FAILED, subresource="status")
                await reconcile_everything(cluster, await cluster.start_controllers())
                await cluster.kill_controllers()
            assert not [entry for entry in caplog.records if entry.levelno >= logging.ERROR]

    asyncio.run(scenario())


def test_a_cron_job_whose_last_run_is_in_the_future_waits(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with world(nodes=0, scheduler=False, controllers=False) as cluster:
            await cluster.create("CronJob", "x", **FULL["CronJob"])
            last = {"status": {"lastScheduleTime": "9999-12-31T23:59:59Z"}}
            await cluster.patch("CronJob", "x", last, subresource="status")
            await reconcile_everything(cluster, await cluster.start_controllers())
            assert cluster.all("Job") == [] and not [e for e in caplog.records if e.levelno >= logging.ERROR]

    asyncio.run(scenario())


def test_a_job_counts_no_further_than_its_status_can() -> None:
    counted = {"succeeded": MAX_INT32, "failed": MAX_INT32}
    job = {"spec": {}, "status": {**counted, "uncountedTerminatedPods": {"succeeded": ["a"], "failed": ["b"]}}}
    status = tally_of(job, []).status()
    assert {name: status[name] for name in counted} == counted


CRDS = Path(__file__).parents[2] / "examples" / "crds"
POD: Json = {"spec": {"containers": [{"name": "node", "image": "i", "resources": {"requests": {"cpu": "1"}}}]}}
STEP: Json = {"name": "node", "template": {"metadata": {"labels": {}}, "spec": {"parallelism": 1, "template": POD}}}
# Definitions of these kinds keep whatever is written: every part may be missing, or of another type.
LOOSE: dict[str, tuple[str, Json]] = {
    "TrainJob": (
        "trainer",
        {
            "runtimeRef": {"name": "rt", "kind": "ClusterTrainingRuntime"},
            "trainer": {"numNodes": 2, "resourcesPerNode": {"limits": {"cpu": "1"}}, "env": [{"name": "A"}]},
            "initializer": {"dataset": {"storageUri": "s3://x", "secretRef": {"name": "s"}}},
            "podTemplateOverrides": [{"targetJobs": [{"name": "node"}], "spec": {"nodeSelector": {"a": "b"}}}],
            "suspend": False,
            "activeDeadlineSeconds": 100,
        },
    ),
    "MPIJob": (
        "mpijob",
        {
            "slotsPerWorker": 1,
            "runPolicy": {"suspend": False, "schedulingPolicy": {"minAvailable": 1}},
            "mpiReplicaSpecs": {
                "Launcher": {"replicas": 1, "template": POD},
                "Worker": {"replicas": 2, "template": POD},
            },
        },
    ),
}


def loose_variants(spec: Json) -> list[Any]:
    """Return the spec with each of its parts left out, or replaced by something of another type."""
    found: list[Any] = [spec, None, {}]
    for path in paths(spec):
        found.append(without(spec, path))
        for other in (None, "text", 7, [], {}, [None], {"x": None}):
            changed = copy.deepcopy(spec)
            holder: Any = changed
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = other
            found.append(changed)
    return found


@pytest.mark.parametrize("kind", sorted(LOOSE))
def test_reconcilers_survive_custom_resources_of_any_shape(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with world(nodes=0, scheduler=False, controllers=False) as cluster:
            crd, spec = LOOSE[kind]
            for body in yaml.safe_load_all((CRDS / f"{crd}.yaml").read_text()):
                await cluster.apply(body)
                name = body["metadata"]["name"]
                await cluster.until(
                    "CustomResourceDefinition", name, when=lambda o: condition(o, "Established").get("status") == "True"
                )
            if kind == "TrainJob":
                runtime = {"mlPolicy": {"torch": {}}, "template": {"spec": {"replicatedJobs": [STEP]}}}
                await cluster.create("ClusterTrainingRuntime", "rt", spec=runtime)
            for number, variant in enumerate(loose_variants(spec)):
                body = {"spec": variant} if variant is not None else {}
                try:
                    await cluster.create(kind, f"x{number}", **body)
                except ApiProblem:
                    continue
            service = await cluster.start_controllers()
            await reconcile_everything(cluster, service)
            assert not [entry for entry in caplog.records if entry.levelno >= logging.ERROR]

    asyncio.run(scenario())
