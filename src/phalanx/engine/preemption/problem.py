"""Which evictions could make room: evictable units against a placement problem, free of Kubernetes objects.

A unit is evicted whole or not at all. Its pods may sit on several nodes; what it frees on one node is a part. Arrays
are ordered: units by what evicting each alone costs (`cost.unit_cost`), parts by node, then unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from phalanx.engine.placement.problem import Floats, Ints, Problem

DEFAULT_BUDGET = 3_000


@dataclass(slots=True, eq=False)
class Units:
    names: Sequence[str]  # (U,) for people: "pod ns/name", "PodGroup ns/name"
    priority: Ints  # (U,) of the unit's root
    lost: Floats  # (U,) seconds of work that an eviction throws away, over all its pods
    part_unit: Ints  # (Q,)
    part_node: Ints  # (Q,) ascending
    part_request: Floats  # (R, Q) what is freed
    part_pods: Ints  # (Q,)
    part_hits: Ints  # (B, Q) pods of the part that count against each disruption budget
    allowed: Ints  # (B,) disruptions left
    gangs: Sequence[Sequence[tuple[int, int]]] = ()  # per unit: (gang, how many of its pods)
    gang_running: Sequence[int] = ()  # (G,) pods of the gang that run now
    gang_minimum: Sequence[int] = ()  # (G,)
    budget_names: Sequence[str] = ()  # (B,)
    workload: Sequence[int] = ()  # (U,) the gang, or the group evicted as a whole, that is hit; -1 none; () all none
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
    """`placement.free` is what is free now; masks of its shapes say where a member could go once the units named in
    `blockers` are gone."""

    placement: Problem
    units: Units  # only those that may be evicted for this preemptor
    # (shape, node) -> units that keep the shape off the node by something else than capacity (a port, anti-affinity)
    blockers: Mapping[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    node_names: Sequence[str] = ()  # (N,) for people
    budget: int = DEFAULT_BUDGET  # expansions, see Plan.expansions
