"""Makes the simulated Node objects: complete from their first moment, so that a scheduler can use them at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import phalanx
from phalanx.base.client import Client, Resource
from phalanx.base.clock import Clock, rfc3339
from phalanx.base.errors import AlreadyExists
from phalanx.local.nodes.topology import HOSTNAME, Topology

NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
SIMULATED = "simulation.phalanx.dev/simulated"  # label; "true": the simulated kubelet looks after this node
AT_ONCE = 64

_PRESSURES = (
    ("MemoryPressure", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
)


def node_name(index: int) -> str:
    return f"node-{index:05d}"


def node_ip(index: int) -> str:
    number = index + 1
    return f"10.{number >> 16 & 63}.{number >> 8 & 255}.{number & 255}"


def ready_conditions(now: str) -> list[dict[str, str]]:
    times = {"lastHeartbeatTime": now, "lastTransitionTime": now}
    conditions = [
        {"type": type_, "status": "False", "reason": reason, "message": message, **times}
        for type_, reason, message in _PRESSURES
    ]
    ready = {"status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"}
    return [*conditions, {"type": "Ready", **ready, **times}]


def node_body(index: int, count: int, topology: Topology, now: float) -> dict[str, Any]:
    name = node_name(index)
    labels = {
        HOSTNAME: name,
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": topology.instance_type,
        SIMULATED: "true",
        **topology.labels(index, count),
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"providerID": f"simulated://{name}"},
        "status": {
            "capacity": topology.capacity,
            "allocatable": topology.capacity,
            "conditions": ready_conditions(rfc3339(now)),
            "addresses": [
                {"type": "InternalIP", "address": node_ip(index)},
                {"type": "Hostname", "address": name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": {
                "architecture": "amd64",
                "bootID": f"simulated-{index}",
                "containerRuntimeVersion": f"simulated://{phalanx.__version__}",
                "kernelVersion": "simulated",
                "kubeProxyVersion": "",
                "kubeletVersion": "v1.37.0-phalanx",
                "machineID": f"simulated-{index}",
                "operatingSystem": "linux",
                "osImage": "Phalanx simulated node",
                "systemUUID": f"simulated-{index}",
            },
        },
    }


async def create_fleet(client: Client, count: int, topology: Topology, clock: Clock) -> int:
    """Make sure that nodes 0 … count-1 exist; those that are there stay as they are. Returns how many were made."""
    indexes = iter(range(count))
    now = clock.now()
    made = await asyncio.gather(
        *(_create_some(client, indexes, count, topology, now) for _ in range(min(AT_ONCE, count)))
    )
    return sum(made)


async def _create_some(client: Client, indexes: Iterator[int], count: int, topology: Topology, now: float) -> int:
    made = 0
    for index in indexes:
        try:
            await client.create(NODES, node_body(index, count, topology, now))
            made += 1
        except AlreadyExists:
            continue
    return made
