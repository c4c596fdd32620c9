"""Simulated copies of the nodes of another cluster: the same labels, room and taints under names of their own.

Whatever says which machine or cluster a node is stays behind: names, addresses, ids, annotations, images. Labels are
kept, since topology and affinity are made of them, unless their value holds the node's name, an address or its id.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.base.client import Client
from phalanx.base.clock import Clock
from phalanx.base.errors import AlreadyExists
from phalanx.base.resources import NODES
from phalanx.local.nodes.fleet import SIMULATED, Notify, node_object
from phalanx.model.groups.keys import HOSTNAME
from phalanx.model.kinds import Json

# Taints that tell of a node's state. The twin has a state of its own, and the node controller writes its taints.
_STATE = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")


def copy_name(index: int) -> str:
    return f"twin-{index:05d}"


def twin(node: Json, index: int, now: float) -> Json:
    """Build the simulated node to create as the copy of `node`; `index`: its number among the copies."""
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
    """Create one copy of every node, in the order of their names, and return how many were created.

    Copies that exist already stay as they are.
    """
    made = 0
    for index, node in enumerate(sorted(nodes, key=lambda one: str(one["metadata"]["name"]))):
        try:
            await client.create(NODES, twin(node, index, clock.now()))
            made += 1
            notify(index + 1, len(nodes))
        except AlreadyExists:
            continue
    return made
