"""Gangs of every kind after pods, nodes and schedulers are lost: whole again, truly reported, nothing reserved."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from phalanx.base.errors import TooManyRequests
from phalanx.base.resources import PODS
from phalanx.engine.explain import why
from phalanx.serve.queries.engine_view import EngineReader
from support.lifecycle.manifests import job, jobset, leader_worker_set, mpi_job, stateful_set, train_job
from support.manifests import pod
from support.simulated_cluster import SimulatedCluster, simulated_cluster
from support.virtual_time import VirtualLoop, run

Json = dict[str, Any]
DEFINITIONS = Path(__file__).parents[2] / "examples/crds"
HEALTHY, RESERVED = "scheduling.phalanx.dev/Healthy", "scheduling.phalanx.dev/RoomReserved"
CPU = "2"  # of a pod; two fit on a node


def restarting(made: Json) -> Json:
    made["spec"]["failurePolicy"] = {"maxRestarts": 20}
    return made


def tree() -> Json:
    made = restarting(jobset("w", 2, 2, CPU))
    made["metadata"]["annotations"] = {"scheduling.phalanx.dev/group-tree": "Job"}
    return made


KINDS: dict[str, tuple[Callable[[], list[Json]], str]] = {  # objects; file with their definitions
    "Job": (lambda: [job("w", 4, CPU)], ""),
    "JobSet": (lambda: [restarting(jobset("w", 2, 2, CPU))], ""),
    "JobSet with a group for each Job": (lambda: [tree()], ""),
    "LeaderWorkerSet": (lambda: [leader_worker_set("w", 2, 2, CPU)], ""),
    "StatefulSet": (lambda: [stateful_set("w", 4, CPU)], ""),
    "MPIJob": (lambda: [mpi_job("w", 3, CPU)], "mpijob.yaml"),
    "TrainJob": (lambda: train_job("w", 4, CPU), "trainer.yaml"),
}


def members(cluster: SimulatedCluster) -> list[Json]:
    """The pods on nodes that are not terminating, by name."""
    return [
        each
        for each in cluster.all("Pod")
        if each["spec"].get("schedulingGroup")
        and each["spec"].get("nodeName")
        and not each["metadata"].get("deletionTimestamp")
        and each["status"].get("phase") in ("Pending", "Running")
    ]


def victim(cluster: SimulatedCluster) -> tuple[str, str]:
    """The name and the node of one member."""
    found = members(cluster)[1]
    return found["metadata"]["name"], found["spec"]["nodeName"]


async def evict(cluster: SimulatedCluster, name: str) -> None:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "default"}}
    await cluster.client.create(PODS, body, "default", name=name, subresource="eviction")


async def deleted(cluster: SimulatedCluster) -> None:
    await cluster.delete("Pod", victim(cluster)[0])


async def deleted_at_once(cluster: SimulatedCluster) -> None:
    await cluster.delete("Pod", victim(cluster)[0], grace_seconds=0)


async def failed(cluster: SimulatedCluster) -> None:
    await cluster.patch("Pod", victim(cluster)[0], {"status": {"phase": "Failed"}}, subresource="status")


async def drained(cluster: SimulatedCluster) -> None:
    _, node = victim(cluster)
    await cluster.patch("Node", node, {"spec": {"unschedulable": True}})
    while names := [each["metadata"]["name"] for each in members(cluster) if each["spec"]["nodeName"] == node]:
        await evict(cluster, names[0])
    await cluster.settle()
    await cluster.patch("Node", node, {"spec": {"unschedulable": None}})


async def tainted(cluster: SimulatedCluster) -> None:
    _, node = victim(cluster)
    await cluster.patch("Node", node, {"spec": {"taints": [{"key": "repair", "effect": "NoExecute"}]}})
    await cluster.settle()
    await cluster.patch("Node", node, {"spec": {"taints": None}})


async def node_failed(cluster: SimulatedCluster) -> None:
    """The node is deleted after its pods were."""
    _, node = victim(cluster)
    await cluster.patch("Node", node, {"metadata": {"annotations": {"simulation.phalanx.dev/fail": "true"}}})
    await cluster.settle(310)
    await cluster.delete("Node", node)


async def preempted(cluster: SimulatedCluster) -> None:
    urgent = pod("urgent", "4", priorityClassName="high", nodeSelector={"kubernetes.io/hostname": victim(cluster)[1]})
    await cluster.apply(urgent)
    await cluster.settle()
    await cluster.delete("Pod", "urgent")


async def scheduler_killed(cluster: SimulatedCluster) -> None:
    await cluster.delete("Pod", victim(cluster)[0])
    await cluster.kill("scheduler")
    await cluster.start_scheduler()


EVENTS: tuple[Callable[[SimulatedCluster], Awaitable[None]], ...] = (
    deleted, deleted_at_once, failed, drained, tainted, preempted, scheduler_killed, node_failed,
)  # fmt: skip


def check(cluster: SimulatedCluster, after: str) -> None:
    """The gang is whole, every view of its groups says so, and nothing is reserved."""
    on_nodes = members(cluster)
    assert len(on_nodes) == 4, after
    engine = cluster.schedulers["scheduler"].engine
    engine.validate()
    shown = {key.rpartition("/")[2]: each for key, each in EngineReader(engine, cluster.clock.now).groups().items()}
    for group in cluster.all("PodGroup"):
        name, status = group["metadata"]["name"], group["status"]
        size = sum(each["spec"]["schedulingGroup"]["podGroupName"] == name for each in on_nodes)
        said = {each["type"]: each for each in status["conditions"]}
        levels = why(engine, "PodGroup", "default", name).items[0].levels
        state = next(level.state for level in levels if (level.kind, level.name) == ("PodGroup", name))
        assert state == f"Running {size} of {size}", after
        assert (said[HEALTHY]["status"], said[HEALTHY]["reason"]) == ("True", "Running"), after
        assert (status["scheduledPods"], status["pods"]) == (size, size), after
        assert shown[name]["pods"] == [size, size], after
        assert said.get(RESERVED, {"status": "False"})["status"] == "False", after


@pytest.mark.parametrize("policy", ["Replace", "TerminateAll"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_gang_is_whole_again_after_every_loss(kind: str, policy: str) -> None:
    made, definitions = KINDS[kind]

    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(7, topology="cpu=4") as cluster:
            for body in yaml.safe_load_all((DEFINITIONS / definitions).read_text()) if definitions else ():
                await cluster.apply(body)
            await cluster.settle()
            high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}}
            await cluster.apply({**high, "value": 1000})
            for body in made():
                notes = body["metadata"].setdefault("annotations", {})
                notes["scheduling.phalanx.dev/rescheduling-policy"] = policy
                await cluster.apply(body)
            await cluster.settle()
            check(cluster, "start")
            for event in EVENTS:
                await event(cluster)
                await cluster.settle(80)
                check(cluster, event.__name__)

    run(main)


def test_no_more_replicas_of_a_job_set_are_evicted_than_its_policy_allows() -> None:
    """Each Job is a gang of a v1alpha1 Workload, so that there are no PodGroup objects (KEP-1068)."""
    made = restarting(jobset("w", 3, 2, CPU))
    made["spec"]["replicatedJobs"][0]["gangConfig"] = {"gangMode": "ReplicatedGang"}
    del made["metadata"]["annotations"]
    target = {"apiGroup": "jobset.x-k8s.io", "kind": "JobSet", "name": "w"}
    policy = {
        "apiVersion": "scheduling.phalanx.dev/v1alpha1",
        "kind": "WorkloadPolicy",
        "metadata": {"name": "p"},
        "spec": {"targetRef": target, "disruption": {"maxUnavailableReplicas": 1}},
    }

    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(3, topology="cpu=4") as cluster:
            await cluster.apply(policy)
            await cluster.apply(made)
            await cluster.settle()
            for node in cluster.all("Node"):
                await cluster.patch("Node", node["metadata"]["name"], {"spec": {"unschedulable": True}})
            of_job = {each["metadata"]["labels"]["jobset.sigs.k8s.io/job-index"]: each for each in cluster.all("Pod")}
            await evict(cluster, of_job["0"]["metadata"]["name"])
            with pytest.raises(TooManyRequests):
                await evict(cluster, of_job["1"]["metadata"]["name"])

    run(main)
