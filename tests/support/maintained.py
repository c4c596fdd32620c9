"""A gang that runs and loses members, for tests of policies."""

from __future__ import annotations

from typing import Any

import msgspec

from phalanx.model.objects.pod import PodCondition
from phalanx.testing.builders import node, pod, pod_group, workload_policy
from phalanx.testing.cluster import Cluster

HEALTHY = "scheduling.phalanx.dev/Healthy"
START = 1000.0


def healthy(cluster: Cluster, name: str = "g", kind: str = "PodGroup") -> tuple[str, str, str]:
    conditions = cluster.objects[kind][name].status.conditions or ()
    return next(((c.status, c.reason, c.message) for c in conditions if c.type == HEALTHY), ("", "", ""))


def member(name: str, group: str = "g", cpu: str = "1", created: float = START) -> Any:
    return pod(name).group(group).cpu(cpu).created(created)


def policy(**parts: Any) -> Any:
    return workload_policy("policy").target("PodGroup", "g").set(**parts)


def running(size: int = 3, nodes: int = 2, **parts: Any) -> Cluster:
    """A gang of `size` pods on nodes of two racks, one node each."""
    cluster = Cluster(grace=True)
    cluster.see(*(node(f"n{n}").cpu("4").label("rack", f"r{n}") for n in range(nodes)), policy(**parts))
    cluster.see(pod_group("g").gang(size), *(member(f"g-{n}") for n in range(size)))
    cluster.step()
    assert healthy(cluster)[1] == "Running"
    return cluster


def lose(cluster: Cluster, name: str, reason: str = "") -> None:
    """Delete a pod; reason: of its condition DisruptionTarget."""
    if reason:
        lost = cluster.pods[name]
        target = PodCondition(type="DisruptionTarget", status="True", reason=reason)
        cluster.see(msgspec.structs.replace(lost, status=msgspec.structs.replace(lost.status, conditions=[target])))
    cluster.gone("Pod", name)
    cluster.step()
