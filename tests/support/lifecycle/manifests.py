"""Small gangs of every kind, as sequences of events need them. Their pods run until they are asked to end."""

from __future__ import annotations

from typing import Any

from support import manifests as m
from support.manifests import GANG

Json = dict[str, Any]


def template(cpu: str, seconds: float | None = None, **spec: Any) -> Json:
    return m.template(cpu, app="x", run=seconds, **spec)


def job(name: str, size: int = 3, cpu: str = "1", seconds: float | None = None) -> Json:
    return m.job(name, size, cpu, gang=True, backoffLimit=100, template=template(cpu, seconds, restartPolicy="Never"))


def jobset(name: str, jobs: int = 2, size: int = 2, cpu: str = "1", seconds: float | None = None) -> Json:
    part = m.part("w", jobs, size, cpu, run=seconds, pod={"restartPolicy": "Never"}, job={"backoffLimit": 100})
    return m.jobset(name, part, gang=True)


def stateful_set(name: str, size: int = 3, cpu: str = "1") -> Json:
    rules = {"replicas": size, "serviceName": name, "podManagementPolicy": "Parallel"}
    return m.apps_set("StatefulSet", name, template(cpu), metadata={"annotations": {GANG: "true"}}, **rules)


def replica_set(name: str, size: int = 3, cpu: str = "1") -> Json:
    """Like a Deployment no gang."""
    return m.apps_set("ReplicaSet", name, template(cpu), metadata={"annotations": {GANG: "false"}}, replicas=size)


def deployment(name: str, size: int = 3, cpu: str = "1") -> Json:
    """Its pods are replaced one by one, so that its group is no gang."""
    return m.apps_set("Deployment", name, template(cpu), metadata={"annotations": {GANG: "false"}}, replicas=size)


def leader_worker_set(name: str, replicas: int = 2, size: int = 2, cpu: str = "1") -> Json:
    return m.leader_worker_set(name, replicas, size, template(cpu), metadata={"annotations": {GANG: "true"}})


def pod_specs(node: Any) -> list[Json]:
    """Of all pod templates in an object."""
    if isinstance(node, list):
        return [found for item in node for found in pod_specs(item)]
    if not isinstance(node, dict):
        return []
    here = [node] if "containers" in node else []
    return here + [found for value in node.values() for found in pod_specs(value)]


EVERY_KIND = {
    "Job": job,
    "JobSet": jobset,
    "StatefulSet": stateful_set,
    "Deployment": deployment,
    "LeaderWorkerSet": leader_worker_set,
}


def mpi_job(name: str, workers: int = 2, cpu: str = "1") -> Json:
    pods = {"Launcher": {"replicas": 1, "template": template(cpu)}}
    pods["Worker"] = {"replicas": workers, "template": template(cpu)}
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": name, "annotations": {GANG: "true"}},
        "spec": {"slotsPerWorker": 1, "runPolicy": {"backoffLimit": 100}, "mpiReplicaSpecs": pods},
    }


def train_job(name: str, nodes: int = 2, cpu: str = "1") -> list[Json]:
    """With the runtime it refers to, called by-hand."""
    inner = {"backoffLimit": 100, "template": template(cpu, restartPolicy="Never")}
    step = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
    jobs = [{"name": "node", "template": {"metadata": step, "spec": inner}}]
    runtime = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": "by-hand"},
        "spec": {"mlPolicy": {"numNodes": 1, "torch": {}}, "template": {"spec": {"replicatedJobs": jobs}}},
    }
    reference = {"name": "by-hand", "kind": "ClusterTrainingRuntime", "apiGroup": "trainer.kubeflow.org"}
    job_ = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name, "annotations": {GANG: "true"}},
        "spec": {"runtimeRef": reference, "trainer": {"numNodes": nodes}},
    }
    return [runtime, job_]


def ray_cluster(name: str, workers: int = 2, cpu: str = "1") -> Json:
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": name, "annotations": {GANG: "true"}},
        "spec": {
            "headGroupSpec": {"rayStartParams": {}, "template": template(cpu)},
            "workerGroupSpecs": [ray_workers(workers, cpu)],
        },
    }


def ray_workers(count: int, cpu: str) -> Json:
    return {"groupName": "small", "replicas": count, "rayStartParams": {}, "template": template(cpu)}


def pytorch_job(name: str, workers: int = 2, cpu: str = "1") -> Json:
    pods = {"Master": {"replicas": 1, "template": template(cpu)}}
    pods["Worker"] = {"replicas": workers, "template": template(cpu)}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "annotations": {GANG: "true"}},
        "spec": {"pytorchReplicaSpecs": pods},
    }
