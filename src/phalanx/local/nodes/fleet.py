"""Build the simulated Node objects: complete at creation, so that a scheduler can use them at once.

Nodes may also be copied from another cluster, with the same labels, capacity and taints under new names. Names,
addresses, IDs, annotations and images are not copied, because they identify a machine or a cluster. Labels are copied,
because topology and affinity depend on them, unless their value contains the name, an address or the ID of the node.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

import phalanx
from phalanx.base.client import Client
from phalanx.base.clock import Clock, rfc3339
from phalanx.base.errors import AlreadyExists, ApiProblem
from phalanx.base.resources import NODES
from phalanx.base.retry import delay, verdict
from phalanx.base.well_known import INSTANCE_TYPE
from phalanx.local.nodes.devices import SimulatedDriver
from phalanx.local.nodes.topology import Topology, usual_topology
from phalanx.model.groups.keys import HOSTNAME
from phalanx.model.kinds import Json

SIMULATED = "simulation.phalanx.dev/simulated"  # label; "true": the simulated kubelet manages this node
AT_ONCE = 64
USUAL = 10  # nodes of a new cluster if the user gives no number

log = logging.getLogger(__name__)

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
    labels = node_labels(name, topology, index, count)
    return node_object(name, index, labels, {}, topology.capacity, topology.capacity, now)


def node_labels(name: str, topology: Topology, index: int, count: int) -> dict[str, str]:
    """Return the labels of node `index` of `count` nodes."""
    return {
        HOSTNAME: name,
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        INSTANCE_TYPE: topology.instance_type,
        SIMULATED: "true",
        **topology.labels(index, count),
        **topology.gpu_labels,
    }


def node_object(
    name: str,
    index: int,
    labels: dict[str, str],
    spec: dict[str, Any],
    capacity: dict[str, Any],
    allocatable: dict[str, Any],
    now: float,
    *,
    architecture: str = "amd64",
    system: str = "linux",
) -> dict[str, Any]:
    """Build a Node that is ready at creation."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"providerID": f"simulated://{name}", **spec},
        "status": {
            "capacity": capacity,
            "allocatable": allocatable,
            "conditions": ready_conditions(rfc3339(now)),
            "addresses": [
                {"type": "InternalIP", "address": node_ip(index)},
                {"type": "Hostname", "address": name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": {
                "architecture": architecture,
                "bootID": f"simulated-{index}",
                "containerRuntimeVersion": f"simulated://{phalanx.__version__}",
                "kernelVersion": "simulated",
                "kubeProxyVersion": "",
                "kubeletVersion": "v1.37.0-phalanx",
                "machineID": f"simulated-{index}",
                "operatingSystem": system,
                "osImage": "Phalanx simulated node",
                "systemUUID": f"simulated-{index}",
            },
        },
    }


Notify = Callable[[int, int], None]  # called with the numbers done and in total


def _ignore_progress(done: int, total: int) -> None:
    """Ignore progress."""


class Fleet(msgspec.Struct, frozen=True):
    """Simulated nodes that a user requests."""

    count: int | None = 0  # None: the existing nodes, or `default_count` in a new cluster
    topology: Topology | None = None
    default_count: int = USUAL
    originals: Sequence[Json] = ()  # nodes of another cluster to copy
    drivers: Sequence[SimulatedDriver] = ()  # whose devices every node gets


async def create_fleet(client: Client, fleet: Fleet, clock: Clock, notify: Notify = _ignore_progress) -> int:
    """Create the nodes 0 … count-1 that do not exist; return how many were created. Existing nodes are not changed.

    A difference between existing nodes and the request is logged.
    """
    rng, attempt = random.Random(0), 0  # a single process creates nodes: no jitter needed
    while True:
        try:
            return await _complete_fleet(client, fleet, clock, notify)
        except ApiProblem as problem:
            if verdict(problem) == "final":
                raise
            log.warning("creating the simulated nodes: %s; retrying", problem)
            await asyncio.sleep(delay(attempt, problem, rng))
            attempt += 1


async def _complete_fleet(client: Client, fleet: Fleet, clock: Clock, notify: Notify) -> int:
    existing = await _list_simulated(client)
    count = fleet.count
    if count is None:
        count = 0 if existing else fleet.default_count
    _report_differences(existing, count, fleet.topology)
    wanted = fleet.topology or usual_topology(count)
    indexes = (index for index in range(count) if node_name(index) not in existing)
    now = clock.now()
    missing = sum(node_name(index) not in existing for index in range(count))
    made = 0

    async def create_some() -> None:
        nonlocal made
        for index in indexes:
            with contextlib.suppress(AlreadyExists):
                await client.create(NODES, node_body(index, count, wanted, now))
                made += 1
                notify(made, missing)

    await asyncio.gather(*(create_some() for _ in range(min(AT_ONCE, count))))
    return made


async def _list_simulated(client: Client) -> dict[str, dict[str, str]]:
    """List the simulated nodes that exist and return their labels by name."""
    found = msgspec.json.decode(await client.list(NODES, labels=f"{SIMULATED}=true"))["items"]
    return {node["metadata"]["name"]: node["metadata"].get("labels") or {} for node in found or ()}


def _report_differences(existing: dict[str, dict[str, str]], count: int, topology: Topology | None) -> None:
    if len(existing) > count > 0:
        text = "%d simulated nodes exist, more than the %d requested: delete some with kubectl"
        log.warning(text, len(existing), count)
    if topology is None or count == 0:
        return
    elsewhere = [
        name
        for index in range(count)
        if (labels := existing.get(name := node_name(index))) is not None
        and topology.labels(index, count).items() - labels.items()
    ]
    if elsewhere:
        log.warning(
            "%s another topology than the one requested: "
            "delete the existing nodes with kubectl, or start with another data directory",
            "1 node keeps" if len(elsewhere) == 1 else f"{len(elsewhere)} nodes keep",
        )


# Taints that show a node's state: the node controller sets them from the state of the copy.
_STATE = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")


def copy_name(index: int) -> str:
    return f"twin-{index:05d}"


def copy_of(node: Json, index: int, now: float) -> Json:
    """Build the simulated Node that copies `node`; index: number of the copy."""
    name = copy_name(index)
    spec, status = node.get("spec") or {}, node.get("status") or {}
    secrets = _identities(node)
    labels = {
        key: value
        for key, value in (node["metadata"].get("labels") or {}).items()
        if not any(secret in value for secret in secrets)
    }
    taints = [taint for taint in spec.get("taints") or () if not taint["key"].startswith(_STATE)]
    room = status.get("allocatable") or status.get("capacity") or {}
    info = status.get("nodeInfo") or {}
    return node_object(
        name,
        index,
        {**labels, HOSTNAME: name, SIMULATED: "true"},
        {
            "taints": [{key: taint[key] for key in ("key", "value", "effect") if taint.get(key)} for taint in taints],
            **({"unschedulable": True} if spec.get("unschedulable") else {}),
        },
        status.get("capacity") or room,
        room,
        now,
        architecture=info.get("architecture") or "amd64",
        system=info.get("operatingSystem") or "linux",
    )


def _identities(node: Json) -> set[str]:
    """Return the strings that identify this machine: its name, addresses and IDs.

    Strings of up to three characters are left out: they would match parts of unrelated label values.
    """
    spec, status = node.get("spec") or {}, node.get("status") or {}
    info = status.get("nodeInfo") or {}
    found = {
        node["metadata"]["name"],
        str(spec.get("providerID") or "").rpartition("/")[2],
        *(str(one.get("address") or "") for one in status.get("addresses") or ()),
        *(str(info.get(key) or "") for key in ("machineID", "systemUUID", "bootID")),
    }
    return {text for text in found if len(text) > 3}


async def create_copies(client: Client, nodes: Sequence[Json], clock: Clock, notify: Notify) -> int:
    """Create one copy of every node, ordered by name; return how many were created. Existing copies are not changed."""
    made = 0
    for index, node in enumerate(sorted(nodes, key=lambda one: str(one["metadata"]["name"]))):
        try:
            await client.create(NODES, copy_of(node, index, clock.now()))
            made += 1
            notify(index + 1, len(nodes))
        except AlreadyExists:
            continue
    return made
