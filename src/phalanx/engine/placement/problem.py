"""Define the input of the placement search: what to place and where, without Kubernetes objects.

Arrays are borrowed from the engine's columns and never written to. Units are integers kept in float64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from phalanx.engine.state.requests import is_device

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]

DEFAULT_BUDGET = 5_000


@dataclass(slots=True, eq=False)
class ShapeRow:
    """Describe interchangeable pods against every node."""

    request: Floats  # (R,)
    mask: Bools  # (N,) nodes that every filter other than capacity allows
    cap: Ints | None = None  # (N,) most members per node (ports, host anti-affinity); None = capacity decides
    slots: Ints | None = None  # (N,) how many fit by mask, cap and capacity, where the caller already knows
    score: Floats | None = None  # (N,) score, higher first; None = tightest node first
    claims: bool = False  # devices limit the pods where their requests do not
    reasons: NDArray[np.int16] | None = None  # (N,) index into Problem.reason_names where mask is False


@dataclass(slots=True, eq=False)
class Leaf:
    """Describe a PodGroup: its pods that still have to be placed."""

    name: str
    minimum: int  # minCount; 1 for basic
    demand: tuple[tuple[int, int], ...]  # (shape, how many pending pods)
    satisfied: int = 0  # members already placed or finished that count towards minimum
    key: str | None = None  # all members in one domain of this label
    preferred: str | None = None  # preferred narrower domain; dropped if infeasible
    pinned: int = -1  # domain of `key` where running members are

    @property
    def total(self) -> int:
        return sum(count for _, count in self.demand)

    @property
    def need(self) -> int:
        return max(0, self.minimum - self.satisfied)


@dataclass(slots=True, eq=False)
class Composite:
    """Describe a CompositePodGroup: `minimum` counts satisfied children. Children are in creation order."""

    name: str
    minimum: int
    children: tuple[Leaf | Composite, ...]
    key: str | None = None
    preferred: str | None = None
    pinned: int = -1


Subtree: TypeAlias = Leaf | Composite


@dataclass(slots=True, eq=False)
class PlacementProblem:
    resources: Sequence[str]
    free: Floats  # (R, N) free amount of every resource, including the pod count
    shapes: Sequence[ShapeRow]
    root: Subtree
    domains: Mapping[str, NDArray[np.int32]] = field(default_factory=dict)  # key -> (N,) domain id, -1 = no label
    domain_names: Mapping[str, Sequence[str]] = field(default_factory=dict)  # key -> name by id
    conflicts: frozenset[tuple[int, int]] = frozenset()  # shapes (a < b) that must not share a node
    order: Ints | None = None  # (N,) rank of a node among equals; None = column order
    reason_names: Sequence[str] = ()
    room_reasons: frozenset[int] = frozenset()  # reasons that free capacity would lift
    budget: int = DEFAULT_BUDGET  # expansions, see Outcome.expansions
    rows: Ints | None = None  # columns of existing nodes, ascending; None = all. Deleted nodes keep a column briefly
    used: Floats | None = None  # (R, N) used amounts: of equally tight domains the busier one is chosen

    @property
    def total(self) -> Floats:
        """Return (R, N) what every node has of every resource, used or free."""
        return self.free if self.used is None else self.free + self.used

    @property
    def node_count(self) -> int:
        return int(self.free.shape[1])

    def utilization(self, ids: NDArray[np.integer], nodes: Ints | None = None) -> Floats:
        """Return by domain id the utilization of a domain, summed over resources except the pod count."""
        size = int(ids.max(initial=-1)) + 1
        total = np.zeros(size)
        if self.used is None:
            return total
        for r, name in enumerate(self.resources):
            if name == "pods":
                continue
            used, free = (a[r] if nodes is None else a[r, nodes] for a in (self.used, self.free))
            taken = np.bincount(ids, weights=used, minlength=size)
            offered = taken + np.bincount(ids, weights=free, minlength=size)
            total += np.divide(taken, offered, out=np.zeros(size), where=offered > 0)
        return total

    def devices_beside(self, request: Floats, ids: NDArray[np.integer], nodes: Ints) -> Floats:
        """Return by domain id the free devices that a request does not ask for, as shares of all free devices."""
        total = np.zeros(int(ids.max(initial=-1)) + 1)
        for r, name in enumerate(self.resources):
            if request[r] == 0 and is_device(name):
                free = self.free[r, nodes]
                total += np.bincount(ids, weights=free, minlength=len(total)) / max(1.0, float(free.sum()))
        return total

    def domain_name(self, key: str, domain: int) -> str:
        names = self.domain_names.get(key, ())
        return names[domain] if 0 <= domain < len(names) else str(domain)


def done(group: Subtree) -> bool:
    """Return whether the minimum is met by pods that already run or finished: nothing below must be placed."""
    if isinstance(group, Leaf):
        return group.need == 0
    return sum(done(child) for child in group.children) >= group.minimum


def leaves(group: Subtree) -> list[Leaf]:
    if isinstance(group, Leaf):
        return [group]
    return [leaf for child in group.children for leaf in leaves(child)]


def groups(group: Subtree) -> list[Subtree]:
    """Return the group and its descendants, parents first."""
    if isinstance(group, Leaf):
        return [group]
    return [group, *(below for child in group.children for below in groups(child))]


DEVICES = "devices"  # what limits pods whose claims find no devices
# What limits pods of which a node takes only so many.
FEW_PER_NODE = "one node takes only so many of them (host port or anti-affinity)"
MANY = 1 << 40  # unlimited: slots of a shape without requests


def count_slots(request: Floats, free: Floats) -> Ints:
    """Return (M,) ⌊free / request⌋, the minimum over requested resources.

    The result is exact: all values are integers below 2^52.
    """
    least: Floats | None = None
    for r in np.flatnonzero(request):
        fit = free[r] / request[r]
        least = fit if least is None else np.minimum(least, fit, out=least)
    if least is None:
        return np.full(free.shape[1], MANY, dtype=np.int64)
    slots: Ints = least.astype(np.int64)  # truncation is the floor: free is never negative in a healthy column
    return np.maximum(slots, 0, out=slots)


def base_slots(problem: PlacementProblem, shape: ShapeRow) -> Ints:
    """Return (N,) slots by mask, cap and the problem's free capacity."""
    if shape.slots is not None:
        return shape.slots
    slots = count_slots(shape.request, problem.free)
    if shape.cap is not None:
        np.minimum(slots, shape.cap, out=slots)
    slots[~shape.mask] = 0
    return slots


def limiting_resource(problem: PlacementProblem, shape: ShapeRow, nodes: Ints, count: int) -> str | None:
    """Return the requested resource that limits `count` pods on these nodes, or the rule if it is not capacity."""
    allowed = nodes[shape.mask[nodes]]
    if not len(allowed):
        return None
    worst: tuple[float, int] | None = None
    for r in np.flatnonzero(shape.request):
        fit = float(np.floor(problem.free[r, allowed] / shape.request[r]).clip(min=0).sum())
        if worst is None or fit < worst[0]:
            worst = (fit, int(r))
    if shape.cap is not None:
        capped = float(shape.cap[allowed].sum())
        if worst is None or capped < worst[0]:
            return FEW_PER_NODE
    if shape.claims and (worst is None or worst[0] >= count):
        return DEVICES
    return str(problem.resources[worst[1]]) if worst is not None else None
