"""Describe a preemption problem as arrays: evictable units and a placement problem, without Kubernetes objects.

A unit is evicted as a whole or not at all. Its pods may be on several nodes; its pods on one node are a part. Units are
sorted by the cost of evicting each alone (`cost.unit_cost`), parts by node, then unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from phalanx.engine.placement.problem import Floats, Ints, PlacementProblem

DEFAULT_BUDGET = 3_000


@dataclass(slots=True, eq=False)
class Units:
    names: Sequence[str]  # (U,) for messages: "pod ns/name", "PodGroup ns/name"
    priority: Ints  # (U,) priority of the unit's root group or pod
    lost: Floats  # (U,) seconds of work lost by an eviction, over all pods of the unit
    part_unit: Ints  # (Q,)
    part_node: Ints  # (Q,) ascending
    part_request: Floats  # (R, Q) resources that an eviction frees
    part_pods: Ints  # (Q,)
    part_hits: Ints  # (B, Q) pods of the part that count against each disruption budget
    allowed: Ints  # (B,) disruptions allowed
    gangs: Sequence[Sequence[tuple[int, int]]] = ()  # per unit: (gang, pods of the unit in it)
    gang_running: Sequence[int] = ()  # (G,) pods of the gang that run now
    gang_minimum: Sequence[int] = ()  # (G,)
    workload: Sequence[int] = ()  # (U,) affected gang, or group evicted as a whole; -1: none; (): none for all units
    kind: Sequence[int] = ()  # (U,) cost.POD, GROUP or COMPOSITE; () all pods
    pods: Ints = field(init=False)  # (U,)
    hits: Ints = field(init=False)  # (B, U)

    def __post_init__(self) -> None:
        count = len(self.names)
        self.pods = np.bincount(self.part_unit, weights=self.part_pods, minlength=count).astype(np.int64)
        self.hits = np.zeros((len(self.allowed), count), dtype=np.int64)
        for b in range(len(self.allowed)):
            self.hits[b] = np.bincount(self.part_unit, weights=self.part_hits[b], minlength=count)

    def __len__(self) -> int:
        return len(self.names)


@dataclass(slots=True, eq=False)
class PreemptionProblem:
    """State which units may be evicted to place a group.

    `placement.free` is the free capacity now. The masks of its shapes show where a member can go once the units in
    `blockers` are evicted.
    """

    placement: PlacementProblem
    units: Units  # only units that this preemptor may evict
    # (shape, node) -> units that block the shape on the node by something other than capacity (a port, anti-affinity)
    blockers: Mapping[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    node_names: Sequence[str] = ()  # (N,) for messages
    budget: int = DEFAULT_BUDGET  # expansions, see Plan.expansions
