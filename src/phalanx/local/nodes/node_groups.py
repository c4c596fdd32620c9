"""Node groups of a simulated autoscaler: `--autoscale SHAPE=MIN..MAX,delay=30s`.

SHAPE is written like `--topology` (`gpus=8,cpu=64,racks=4`), or in short `gpu8` or `cpu64`. A group has MAX places with
fixed labels, divided among racks, blocks and zones in the same way as the nodes of `--topology`. Each created node
fills one place.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from phalanx.base.errors import ConfigProblem
from phalanx.local.nodes.fleet import node_labels, node_object
from phalanx.local.nodes.topology import CAPACITY, LEVELS, Topology, parse_topology

NODE_GROUP = "simulation.phalanx.dev/node-group"  # label of nodes that the simulated autoscaler created
OPTION = "--autoscale"
DELAY_SECONDS = 30.0  # from the demand to a node that is ready
IDLE_SECONDS = 60.0  # for which a node is unused before it is removed
FIRST_INDEX = 200_000  # above all indexes of --nodes, because the index determines the address
MOST_NODES = 10_000  # of one group
_HELP = "write it like gpus=8,racks=4=0..16,delay=30s or gpu8=0..16"
_SPEC = re.compile(r"(?P<shape>.*?)=(?P<low>\d{1,6})\.\.(?P<high>\d{1,6})(?P<more>(?:,[^,]*)*)")
_SHORT = re.compile(r"(?:simulated-)?(?P<what>gpu|cpu)(?P<count>\d{1,6})")
_DURATION = re.compile(r"(?P<number>\d{1,9}(?:\.\d{1,3})?)(?P<unit>ms|s|m|h|)")
_UNITS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}


class NodeGroup(msgspec.Struct, frozen=True):
    name: str
    topology: Topology
    low: int  # smallest number of nodes
    high: int  # largest number of nodes
    delay: float = DELAY_SECONDS
    idle: float = IDLE_SECONDS
    first: int = FIRST_INDEX  # index of its first node

    def node_name(self, number: int) -> str:
        return f"{self.name}-{number:03d}"

    @property
    def names(self) -> list[str]:
        return [self.node_name(number) for number in range(self.high)]

    def body(self, number: int, now: float) -> dict[str, Any]:
        """Return the Node of one place."""
        topology, name = self.topology, self.node_name(number)
        labels = {**node_labels(name, topology, number, self.high), NODE_GROUP: self.name}
        return node_object(name, self.first + number, labels, {}, topology.capacity, topology.capacity, now)


def parse_node_groups(specs: Sequence[str], around: Topology | None = None) -> list[NodeGroup]:
    """Parse the values of `--autoscale`. around: its levels apply to shapes without levels. Raises ConfigProblem."""
    groups: list[NodeGroup] = []
    for number, spec in enumerate(specs):
        group = _parse(spec, around)
        taken = {other.name for other in groups}
        name = group.name if group.name not in taken else f"{group.name}-{number + 1}"
        if name in taken:
            raise ConfigProblem(OPTION, f"two node groups are named {name}")
        groups.append(msgspec.structs.replace(group, name=name, first=FIRST_INDEX + number * MOST_NODES))
    return groups


def _parse(spec: str, around: Topology | None) -> NodeGroup:
    match = _SPEC.fullmatch(spec.strip())
    if match is None:
        raise ConfigProblem(OPTION, f"{spec!r} has no SHAPE=MIN..MAX: {_HELP}")
    low, high = int(match["low"]), int(match["high"])
    if not low <= high or not 1 <= high <= MOST_NODES:
        raise ConfigProblem(OPTION, f"{low}..{high}: MIN must not exceed MAX, and MAX is from 1 to {MOST_NODES}")
    options: dict[str, str] = {}
    for part in filter(None, match["more"].split(",")):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if key not in ("delay", "idle", "name") or not equals or key in options:
            raise ConfigProblem(OPTION, f"{part!r} is not delay=, idle= or name=, each once: {_HELP}")
        options[key] = value
    topology = _topology(match["shape"].strip(), around)
    name = options.get("name") or topology.instance_type.removeprefix("simulated-")
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?", name):
        raise ConfigProblem(OPTION, f"name={name}: must be lower-case letters, digits and hyphens")
    return NodeGroup(
        name,
        topology,
        low,
        high,
        _seconds("delay", options.get("delay"), DELAY_SECONDS),
        _seconds("idle", options.get("idle"), IDLE_SECONDS),
    )


def _topology(shape: str, around: Topology | None) -> Topology:
    short = _SHORT.fullmatch(shape)
    if short is not None:
        shape = f"gpus={short['count']}" if short["what"] == "gpu" else f"cpu={short['count']},gpus=0"
    if not shape:
        raise ConfigProblem(OPTION, f"the shape is missing; known are {', '.join((*LEVELS, *CAPACITY))}: {_HELP}")
    topology = parse_topology(shape, OPTION)
    if around is not None and not any(part.strip().split("=")[0] in LEVELS for part in shape.split(",")):
        levels = {"zones": around.zones, "blocks": around.blocks, "racks": around.racks}
        topology = msgspec.structs.replace(topology, **levels)
    return topology


def _seconds(key: str, text: str | None, default: float) -> float:
    if text is None:
        return default
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ConfigProblem(OPTION, f"{key}={text} is not a duration like 30s, 2m or 500ms")
    return float(match["number"]) * _UNITS[match["unit"]]
