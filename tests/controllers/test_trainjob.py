"""A TrainJob's pods ask for what the TrainJob says, and its status says how it goes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from phalanx.controllers.grouping.core import GroupingRefused
from phalanx.controllers.workloads.trainjob.grouping import group_train_job, steps_of
from phalanx.controllers.workloads.trainjob.template import resolved
from support.controller_world import Json, World, condition, world

CRDS = Path(__file__).parents[2] / "examples" / "crds" / "trainer.yaml"
STEP = "trainer.kubeflow.org/trainjob-ancestor-step"


def part(name: str, ancestor: str = "", container: str = "node", **rest: Any) -> Json:
    pod = {"spec": {"containers": [{"name": container, "image": "old", "env": [{"name": "KEPT", "value": "1"}]}]}}
    labels = {STEP: ancestor} if ancestor else {}
    return {"name": name, "template": {"metadata": {"labels": labels}, "spec": {"template": pod}}, **rest}


def runtime(*parts: Json, **policy: Any) -> Json:
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": "rt"},
        "spec": {"mlPolicy": policy, "template": {"spec": {"replicatedJobs": list(parts)}}},
    }


def job(trainer: Json | None = None, **spec: Any) -> Json:
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "tj", "namespace": "default", "uid": "u"},
        "spec": {"runtimeRef": {"name": "rt"}, "trainer": trainer or {}, **spec},
    }


def pod_of(template: Json, name: str = "node") -> Json:
    (found,) = [part for part in template["spec"]["replicatedJobs"] if part["name"] == name]
    spec: Json = found["template"]["spec"]["template"]["spec"]
    return spec


def environment(container: Json) -> dict[str, Any]:
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}


GPUS = {"limits": {"nvidia.com/gpu": 8}, "requests": {"nvidia.com/gpu": 8, "cpu": "2"}}


def test_resources_and_environment_reach_the_trainer() -> None:
    trainer = {"numNodes": 3, "resourcesPerNode": GPUS, "env": [{"name": "A", "value": "b"}], "numProcPerNode": 4}
    found = pod_of(resolved(job(trainer), runtime(part("node", "trainer"), torch={})))["containers"][0]
    assert found["resources"] == GPUS
    said = environment(found)
    assert (said["KEPT"], said["A"]) == ("1", "b"), "variables are added to those of the runtime"
    assert (said["PET_NNODES"], said["PET_NPROC_PER_NODE"]) == ("3", "4")
    assert said["PET_MASTER_ADDR"] == "tj-node-0-0.tj"


def test_what_the_runtime_asks_for_stays_where_the_trainjob_says_nothing() -> None:
    rt = runtime(part("node", "trainer"), torch={})
    pod_of(rt["spec"]["template"])["containers"][0]["resources"] = {"requests": {"cpu": "4", "memory": "1Gi"}}
    found = pod_of(resolved(job({"resourcesPerNode": {"requests": {"cpu": "8"}}}), rt))["containers"][0]
    assert found["resources"] == {"requests": {"cpu": "8", "memory": "1Gi"}}
    assert environment(found)["PET_NPROC_PER_NODE"] == "8", "without GPUs a process for each CPU"


def test_groups_are_judged_by_what_pods_will_ask_for() -> None:
    (step,) = steps_of(job({"numNodes": 50, "resourcesPerNode": GPUS}), runtime(part("node", "trainer"), torch={}))
    assert step.pods == 50 and step.pod_spec["containers"][0]["resources"] == GPUS
    several = steps_of(job(), runtime(part("node", "trainer"), part("extra", replicas=3)))
    assert [step.pods for step in several] == [1, 3], "all Jobs of a replicatedJob count"


@pytest.mark.parametrize("launcher_too", [True, False])
def test_mpi_nodes_get_the_resources_and_the_launcher_where_it_is_a_node(launcher_too: bool) -> None:
    policy = {"mpi": {"runLauncherAsNode": launcher_too, "numProcPerNode": 1}}
    rt = runtime(part("launcher", "trainer"), part("node"), **policy)
    template = resolved(job({"numNodes": 4, "resourcesPerNode": GPUS, "numProcPerNode": 8}), rt)
    assert pod_of(template)["containers"][0]["resources"] == GPUS
    launcher = pod_of(template, "launcher")["containers"][0]
    assert (launcher.get("resources") == GPUS) is launcher_too
    assert environment(launcher)["OMPI_MCA_orte_set_default_slots"] == "8"


def test_initializers_know_what_to_fetch() -> None:
    rt = runtime(part("dataset-initializer", "dataset-initializer", "dataset-initializer"), part("node", "trainer"))
    dataset = {"storageUri": "s3://b/c", "env": [{"name": "A", "value": "b"}], "secretRef": {"name": "s"}}
    found = pod_of(resolved(job(initializer={"dataset": dataset}), rt), "dataset-initializer")["containers"][0]
    assert environment(found) == {"KEPT": "1", "STORAGE_URI": "s3://b/c", "A": "b"}
    assert found["envFrom"] == [{"secretRef": {"name": "s"}}]


PATCH = {
    "nodeSelector": {"pool": "x"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "schedulingGates": [{"name": "example.com/wait"}],
    "volumes": [{"name": "v", "emptyDir": {}}],
    "containers": [{"name": "node", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
    "initContainers": [{"name": "i", "image": "x", "resources": {"requests": {"cpu": "9"}}}],
}


@pytest.mark.parametrize(
    "spec",
    [
        {
            "runtimePatches": [
                {
                    "manager": "me.io/x",
                    "trainingRuntimeSpec": {
                        "template": {
                            "spec": {
                                "replicatedJobs": [
                                    {"name": "node", "template": {"spec": {"template": {"spec": PATCH}}}}
                                ]
                            }
                        }
                    },
                }
            ]
        },
        {"podTemplateOverrides": [{"targetJobs": [{"name": "node"}], "spec": PATCH}]},
        {"podSpecOverrides": [{"targetJobs": [{"name": "node"}], **PATCH}]},
    ],
)
def test_patches_of_every_version_of_the_api_are_honoured(spec: Json) -> None:
    found = pod_of(resolved(job(**spec), runtime(part("node", "trainer"))))
    for field in ("nodeSelector", "tolerations", "schedulingGates", "volumes", "initContainers"):
        assert found[field] == PATCH[field]
    (container,) = found["containers"]
    assert container["volumeMounts"] == [{"name": "v", "mountPath": "/v"}] and container["image"] == "old"


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (job({"resourcesPerNode": GPUS}), "resourcesPerNode"),
        (job({"numNodes": 4}), "numNodes"),
        (job(podTemplateOverrides=[{"targetJobs": [{"name": "x"}], "spec": {}}]), "no replicatedJob 'x'"),
        (job("everything"), "wrong type"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_honoured_is_refused(asked: Json, words: str) -> None:
    with pytest.raises(GroupingRefused, match=words):
        resolved(asked, runtime(part("other")))


def test_an_amount_that_is_no_quantity_is_named() -> None:
    with pytest.raises(GroupingRefused, match="cpu 'abc' is no quantity"):
        resolved(job({"resourcesPerNode": {"limits": {"cpu": "abc"}}}), runtime(part("node", "trainer"), torch={}))


def test_a_topology_for_volcano_is_refused_unless_there_is_one_for_us() -> None:
    """Its pods would be a gang that runs anywhere."""
    there = runtime(part("node", "trainer"))
    there["spec"]["podGroupPolicy"] = {"volcano": {"networkTopology": {"mode": "hard", "highestTierAllowed": 1}}}
    with pytest.raises(GroupingRefused, match="networkTopology is read by Volcano only"):
        group_train_job(job(), [there])
    annotated = job()
    annotated["metadata"]["annotations"] = {"scheduling.phalanx.dev/topology": "rack"}
    assert group_train_job(annotated, [there]).groups
    there["spec"]["podGroupPolicy"]["volcano"]["networkTopology"]["mode"] = "soft"
    assert group_train_job(job(), [there]).groups


async def start(cluster: World) -> None:
    for body in yaml.safe_load_all(CRDS.read_text()):
        await cluster.apply(body)
        name = body["metadata"]["name"]
        await cluster.until(
            "CustomResourceDefinition", name, when=lambda o: condition(o, "Established").get("status") == "True"
        )
    await cluster.start_controllers()


def test_more_nodes_than_there_are_gpus_for_stay_unscheduled_and_the_status_says_what_runs() -> None:
    async def scenario() -> None:
        async with world(nodes=3, controllers=False) as cluster:
            await start(cluster)
            for node in cluster.all("Node"):
                gpus = {"status": {"capacity": {"nvidia.com/gpu": "8"}, "allocatable": {"nvidia.com/gpu": "8"}}}
                await cluster.patch("Node", node["metadata"]["name"], gpus, subresource="status")
            rt = runtime(part("node", "trainer"), torch={})
            await cluster.create("ClusterTrainingRuntime", "rt", spec=rt["spec"])
            for name, nodes in (("large", 4), ("small", 3)):
                spec = job({"numNodes": nodes, "resourcesPerNode": GPUS})["spec"]
                await cluster.create("TrainJob", name, spec=spec)
                if name == "large":
                    found = await cluster.eventually("PodGroup", lambda groups: any(g.get("status") for g in groups))
                    assert condition(found[0], "PodGroupInitiallyScheduled")["status"] == "False"
                    await cluster.delete("TrainJob", "large", propagation="Foreground")
                    await cluster.gone("TrainJob", "large")
            found_job = await cluster.until(
                "TrainJob",
                "small",
                when=lambda o: any(e["ready"] == 1 for e in (o.get("status") or {}).get("jobsStatus") or ()),
            )
            (entry,) = found_job["status"]["jobsStatus"]
            assert entry == {"name": "node", "ready": 1, "succeeded": 0, "failed": 0, "active": 1, "suspended": 0}
            pods = cluster.all("Pod")
            assert len({pod["spec"]["nodeName"] for pod in pods}) == 3
            assert {pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] for pod in pods} == {"8"}

    asyncio.run(scenario())


def test_suspension_and_a_deadline_are_in_the_status() -> None:
    async def scenario() -> None:
        async with world(nodes=3, controllers=False) as cluster:
            await start(cluster)
            await cluster.create("ClusterTrainingRuntime", "rt", spec=runtime(part("node", "trainer"))["spec"])
            await cluster.create("TrainJob", "tj", spec=job(suspend=True, activeDeadlineSeconds=1)["spec"])
            await cluster.until("TrainJob", "tj", when=lambda o: condition(o, "Suspended").get("status") == "True")
            await cluster.patch("TrainJob", "tj", {"spec": {"suspend": False}})
            found = await cluster.until("TrainJob", "tj", when=lambda o: condition(o, "Failed"))
            assert condition(found, "Suspended")["reason"] == "Resumed"
            assert condition(found, "Failed")["reason"] == "DeadlineExceeded"
            await cluster.eventually("Pod", lambda pods: not pods)

    asyncio.run(scenario())
