"""Topology specs such as "zones=2,blocks=4,racks=8,gpus=8": capacity and location of the simulated nodes.

Counts are totals for the whole cluster: blocks are divided evenly among zones and racks among blocks, so each count
must be a multiple of the level above. A level that is not named has one domain per domain of the level above. Nodes
fill racks in order; racks differ by at most one node.
"""

from __future__ import annotations

from math import ceil

import msgspec

from phalanx.base.errors import ConfigProblem
from phalanx.base.well_known import GPU
from phalanx.model.groups.keys import REGION, ZONE
from phalanx.model.quantity import BadQuantity, parse

BLOCK = "topology.phalanx.dev/block"
RACK = "topology.phalanx.dev/rack"

# Labels that describe the GPUs; `gpu.memory` is in MiB.
GPU_LABELS = {
    f"{GPU}.present": "true",
    f"{GPU}.product": "NVIDIA-H100-80GB-HBM3",
    f"{GPU}.family": "hopper",
    f"{GPU}.memory": "81559",
}

FEW_NODES = 64  # up to this number they are in one rack
NODES_PER_RACK = 16  # at most
RACKS_PER_BLOCK = 8
LEVELS = ("zones", "blocks", "racks")
CAPACITY = {"cpu": "cpu", "memory": "memory", "gpus": GPU, "pods": "pods", "storage": "ephemeral-storage"}
_HELP = f"write it like zones=2,blocks=4,racks=8,gpus=8; known are {', '.join((*LEVELS, *CAPACITY))}"


def _default_capacity() -> dict[str, str]:
    return {"cpu": "64", "memory": "512Gi", GPU: "8", "pods": "110", "ephemeral-storage": "1Ti"}


class Topology(msgspec.Struct, frozen=True):
    zones: int = 1
    blocks: int = 1
    racks: int = 1
    capacity: dict[str, str] = msgspec.field(default_factory=_default_capacity)

    def labels(self, index: int, nodes: int) -> dict[str, str]:
        """Return the topology labels of node `index` of `nodes`."""
        rack = index * self.racks // nodes
        block = rack * self.blocks // self.racks
        zone = block * self.zones // self.blocks
        return {REGION: "local", ZONE: f"zone-{zone}", BLOCK: f"block-{block}", RACK: f"rack-{rack}"}

    @property
    def gpu_labels(self) -> dict[str, str]:
        """Return the labels that NVIDIA's GPU operator sets; clients find GPUs by them."""
        gpus = self.capacity.get(GPU)
        return {**GPU_LABELS, f"{GPU}.count": gpus} if gpus else {}

    @property
    def instance_type(self) -> str:
        gpus = self.capacity.get(GPU)
        return f"simulated-gpu{gpus}" if gpus else f"simulated-cpu{self.capacity.get('cpu', '0')}"


def usual_topology(nodes: int) -> Topology:
    """Return the topology of a cluster for which none was requested: one rack, or racks of 16 in blocks of 8 racks."""
    if nodes <= FEW_NODES:
        return Topology()
    racks = ceil(nodes / NODES_PER_RACK)
    return Topology(blocks=ceil(racks / RACKS_PER_BLOCK), racks=racks)


def parse_topology(spec: str, path: str = "--topology") -> Topology:
    """Parse a spec. Raises ConfigProblem with what is wrong and how to write it."""
    counts: dict[str, int] = {}
    capacity = _default_capacity()
    seen: set[str] = set()
    for part in filter(None, (part.strip() for part in spec.split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value:
            raise ConfigProblem(path, f"{part!r} has no value: {_HELP}")
        if name in seen:
            raise ConfigProblem(path, f"{name} is given twice")
        seen.add(name)
        if name in LEVELS:
            counts[name] = _count(path, name, value)
        elif name in CAPACITY:
            _set_capacity(capacity, path, name, value)
        else:
            raise ConfigProblem(path, f"{name!r} is not known: {_HELP}")
    above, above_name = 1, ""
    for name in LEVELS:
        count = counts.setdefault(name, above)
        if count % above:
            raise ConfigProblem(
                path,
                f"{name}={count} cannot be divided evenly among {above_name}={above}: counts are totals for the whole "
                f"cluster, so {name} must be a multiple of {above_name}",
            )
        above, above_name = count, name
    return Topology(**counts, capacity=capacity)


def _count(path: str, name: str, value: str) -> int:
    if not value.isascii() or not value.isdigit() or not 1 <= int(value) <= 100_000:
        raise ConfigProblem(path, f"{name}={value}: must be a whole number from 1 to 100000")
    return int(value)


def _set_capacity(capacity: dict[str, str], path: str, name: str, value: str) -> None:
    try:
        amount = parse(value)
    except BadQuantity as error:
        raise ConfigProblem(path, f"{name}={value} is not a quantity: {error}") from error
    if amount.nanos < 0:
        raise ConfigProblem(path, f"{name}={value}: must not be negative")
    if name in ("gpus", "pods") and amount.nanos % 10**9:
        raise ConfigProblem(path, f"{name}={value}: must be a whole number")
    if amount.nanos == 0 and name == "gpus":
        capacity.pop(GPU, None)
    else:
        capacity[CAPACITY[name]] = str(amount)
