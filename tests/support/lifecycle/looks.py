"""One-line looks at a simulated cluster."""

from __future__ import annotations

from typing import Any

from support.lifecycle.manifests import job, jobset, mpi_job, stateful_set, template, train_job
from support.simulated_cluster import SimulatedCluster

Json = dict[str, Any]
KINDS: dict[str, list[Json]] = {
    "Job": [job("w", 3)],
    "JobSet": [jobset("w", 3, 1)],
    "StatefulSet": [stateful_set("w", 3)],
    "MPIJob": [mpi_job("w", 2)],
    "TrainJob": train_job("w", 3),
}


def running(cluster: SimulatedCluster) -> int:
    return sum(pod["status"]["phase"] == "Running" for pod in cluster.all("Pod"))


def minimum(cluster: SimulatedCluster) -> int:
    (group,) = cluster.all("PodGroup")
    return int(group["spec"]["schedulingPolicy"]["gang"]["minCount"])


def linked(pod: Json) -> bool:
    return "schedulingGroup" in pod["spec"]


def priorities(cluster: SimulatedCluster) -> list[tuple[str, int]]:
    return [(pod["status"]["phase"], pod["spec"]["priority"]) for pod in cluster.all("Pod")]


def pods_of(priority: str) -> Json:
    found = template("1")
    found["spec"]["priorityClassName"] = priority or None
    return {"spec": {"template": found}}
