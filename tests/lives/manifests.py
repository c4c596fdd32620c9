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


EVERY_KIND = {
    "Job": job,
    "JobSet": jobset,
    "StatefulSet": stateful_set,
    "Deployment": deployment,
    "LeaderWorkerSet": leader_worker_set,
}
