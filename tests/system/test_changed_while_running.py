"""What a TrainJob or an MPIJob is asked for later, while it runs, makes no pod wait for ever."""

from __future__ import annotations

from support.lifecycle.events import CLASS, priority_class
from support.lifecycle.looks import minimum, priorities, running
from support.lifecycle.manifests import mpi_job, train_job
from support.lifecycle.sequences import definitions
from support.simulated_cluster import SimulatedCluster, simulated_cluster
from support.virtual_time import VirtualLoop, run


def announced(cluster: SimulatedCluster, reason: str) -> list[str]:
    return [event["message"] for event in cluster.all("Event") if event["reason"] == reason]


def test_the_gang_of_a_train_job_does_not_ask_for_nodes_that_no_controller_makes() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(6) as cluster:
            for definition in definitions("trainer"):
                await cluster.apply(definition)
            await cluster.settle(40)
            for body in train_job("w", 3):
                await cluster.apply(body)
            await cluster.settle(60)
            await cluster.patch("TrainJob", "w", {"spec": {"trainer": {"numNodes": 5}}})
            await cluster.settle(60)
            assert minimum(cluster) == running(cluster) == 3
            assert announced(cluster, "SizeUnchanged") == [
                "it runs with 3 pods; another size holds when it is made again"
            ]
            await cluster.delete("Pod", cluster.all("Pod")[-1]["metadata"]["name"])
            await cluster.settle(90)
            assert running(cluster) == 3, "who takes its place does not wait for two more"

    run(main)


def test_new_pods_of_an_mpi_job_have_the_priority_of_its_gang() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(4) as cluster:
            for definition in definitions("mpijob"):
                await cluster.apply(definition)
            await cluster.apply(priority_class(100))
            await cluster.settle(40)
            await cluster.apply(mpi_job("w", 2))
            await cluster.settle(60)
            later = {"template": {"spec": {"priorityClassName": CLASS}}}
            await cluster.patch("MPIJob", "w", {"spec": {"mpiReplicaSpecs": {"Worker": later, "Launcher": later}}})
            await cluster.settle(60)
            assert announced(cluster, "GroupsUnchanged"), "its author can read it"
            worker = next(pod for pod in cluster.all("Pod") if "worker" in pod["metadata"]["name"])
            await cluster.delete("Pod", worker["metadata"]["name"])
            await cluster.settle(90)
            assert priorities(cluster) == [("Running", 0)] * 3

    run(main)
