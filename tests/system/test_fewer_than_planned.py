"""A workload that its author's own Workload no longer fits: it says so, and can still be made smaller."""

from __future__ import annotations

from typing import Any

import pytest

from support.lifecycle.manifests import job, mpi_job, stateful_set
from support.lifecycle.sequences import definitions
from support.simulated_cluster import simulated_cluster
from support.virtual_time import VirtualLoop, run

Json = dict[str, Any]
KINDS: dict[str, tuple[Json, str, Json]] = {
    "Job": (job("w", 3), "batch", {"spec": {"parallelism": 1}}),
    "StatefulSet": (stateful_set("w", 3), "apps", {"spec": {"replicas": 1}}),
    "MPIJob": (mpi_job("w", 3), "kubeflow.org", {"spec": {"mpiReplicaSpecs": {"Worker": {"replicas": 1}}}}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_fewer_pods_than_the_minimum_of_its_workload_are_what_it_asked_for(kind: str) -> None:
    body, group, smaller = KINDS[kind]
    minimum = 4 if kind == "MPIJob" else 3

    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(4) as cluster:
            for definition in definitions("mpijob"):
                await cluster.apply(definition)
            await cluster.settle(40)
            plan = {"name": "all", "schedulingPolicy": {"gang": {"minCount": minimum}}}
            about = {"apiGroup": group, "kind": kind, "name": "w"}
            await cluster.apply(
                {
                    "apiVersion": "scheduling.k8s.io/v1beta1",
                    "kind": "Workload",
                    "metadata": {"name": "mine"},
                    "spec": {"controllerRef": about, "podGroupTemplates": [plan]},
                }
            )
            await cluster.apply(body)
            await cluster.settle(60)
            assert len(cluster.all("Pod")) == minimum
            await cluster.patch(kind, "w", smaller)
            await cluster.settle(90)
            assert len(cluster.all("Pod")) == minimum - 2
            announced = [event.get("note") or event["message"] for event in cluster.all("Event")]
            assert any(f"wants {minimum} members" in text for text in announced)

    run(main)
