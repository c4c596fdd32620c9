"""Workloads of every kind, small, as their users write them. Their pods run until they are told to end."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
GANG = "scheduling.phalanx.dev/gang"
RUN_SECONDS = "simulation.phalanx.dev/run-seconds"


def container(cpu: str) -> Json:
    return {"name": "c", "image": "busybox", "resources": {"requests": {"cpu": cpu}}}


def template(cpu: str, seconds: float | None = None, **spec: Any) -> Json:
    meta: Json = {"labels": {"app": "x"}}
    if seconds is not None:
        meta["annotations"] = {RUN_SECONDS: str(seconds)}
    return {"metadata": meta, "spec": {"containers": [container(cpu)], **spec}}


def job(name: str, size: int = 3, cpu: str = "1", seconds: float | None = None) -> Json:
    pods = template(cpu, seconds, restartPolicy="Never")
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "annotations": {GANG: "true"}},
        "spec": {"parallelism": size, "completions": size, "backoffLimit": 100, "template": pods},
    }


def jobset(name: str, jobs: int = 2, size: int = 2, cpu: str = "1", seconds: float | None = None) -> Json:
    inner = {
        "parallelism": size,
        "completions": size,
        "backoffLimit": 100,
        "template": template(cpu, seconds, restartPolicy="Never"),
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "annotations": {GANG: "true"}},
        "spec": {"replicatedJobs": [{"name": "w", "replicas": jobs, "template": {"spec": inner}}]},
    }


def stateful_set(name: str, size: int = 3, cpu: str = "1") -> Json:
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name, "annotations": {GANG: "true"}},
        "spec": {
            "replicas": size,
            "serviceName": name,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"app": "x"}},
            "template": template(cpu),
        },
    }


def replica_set(name: str, size: int = 3, cpu: str = "1") -> Json:
    """Like a Deployment no gang."""
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": name, "annotations": {GANG: "false"}},
        "spec": {"replicas": size, "selector": {"matchLabels": {"app": "x"}}, "template": template(cpu)},
    }


def deployment(name: str, size: int = 3, cpu: str = "1") -> Json:
    """Its pods are replaced one by one, so that its group is no gang."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "annotations": {GANG: "false"}},
        "spec": {"replicas": size, "selector": {"matchLabels": {"app": "x"}}, "template": template(cpu)},
    }


def leader_worker_set(name: str, replicas: int = 2, size: int = 2, cpu: str = "1") -> Json:
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": name, "annotations": {GANG: "true"}},
        "spec": {"replicas": replicas, "leaderWorkerTemplate": {"size": size, "workerTemplate": template(cpu)}},
    }


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
