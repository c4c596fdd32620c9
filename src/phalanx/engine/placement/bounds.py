"""Prune by counting: domains, children and trees that no search can place.

Bounds use the capacity at the start of the search, so a negative answer stays valid during the search.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from phalanx.engine.placement.problem import Bools, Composite, Floats, Ints, Leaf, Subtree, done, leaves
from phalanx.engine.placement.state import SearchState


def wanted(leaf: Leaf, full: bool) -> int:
    """Return how many pods a leaf must place in this mode."""
    return leaf.total if full else min(leaf.need, leaf.total)


def demand_of(group: Subtree, state: SearchState, full: bool) -> Floats:
    """Return (R,) a lower bound on the amount of every resource that the group takes."""
    problem = state.problem
    total = np.zeros(problem.free.shape[0])
    if isinstance(group, Leaf):
        if full or group.need >= group.total:
            for shape, count in group.demand:
                total += problem.shapes[shape].request * count
            return total
        if not group.demand:
            return total
        # Lower bound over all choices of `need` members: the smallest requests, per resource.
        requests = np.repeat(
            np.array([problem.shapes[s].request for s, _ in group.demand]), [c for _, c in group.demand], axis=0
        )
        return np.asarray(np.sort(requests, axis=0)[: group.need].sum(axis=0), dtype=np.float64)
    children = [demand_of(c, state, full) for c in group.children if full or not done(c)]
    if full:
        return sum(children, total)
    missing = group.minimum - sum(done(c) for c in group.children)
    if missing <= 0 or not children:
        return total
    return np.asarray(np.sort(np.array(children), axis=0)[:missing].sum(axis=0), dtype=np.float64)


class Bounds:
    """Computes bounds. Groups with equal demand, such as replicas of one template, share answers."""

    def __init__(self, state: SearchState, full: bool, more: int = 0) -> None:
        self.state = state
        self.full = full
        self.more = more  # children of the root required beyond its minimum
        self._possible: dict[tuple[int, int], bool] = {}
        self._inside: dict[tuple[int, int], bool] = {}
        self._demand: dict[int, Floats] = {}
        self._kind: dict[int, int] = {}  # id(group) -> number of its kind
        self._kinds: dict[tuple[object, ...], int] = {}

    def kind(self, group: Subtree) -> int:
        """Return a number that is equal for groups with equal demand and rules."""
        if id(group) not in self._kind:
            what: tuple[object, ...]
            if isinstance(group, Leaf):
                what = (group.need, group.demand)
            else:
                what = (group.minimum, tuple(self.kind(c) for c in group.children))
            what = (isinstance(group, Leaf), group.key, group.preferred, group.pinned, *what)
            self._kind[id(group)] = self._kinds.setdefault(what, len(self._kinds))
        return self._kind[id(group)]

    def demand(self, group: Subtree) -> Floats:
        kind = self.kind(group)
        if kind not in self._demand:
            self._demand[kind] = demand_of(group, self.state, self.full)
        return self._demand[kind]

    def required(self, group: Subtree) -> bool:
        """Return whether the group has to place anything in this mode."""
        if self.full:
            return any(leaf.total for leaf in leaves(group)) or not done(group)
        return not done(group) or (self.more > 0 and group is self.state.problem.root)

    def missing(self, group: Composite) -> int:
        """Return how many children must still be placed."""
        if self.full:
            return sum(self.required(c) for c in group.children)
        more = self.more if group is self.state.problem.root else 0
        return max(0, group.minimum - sum(done(c) for c in group.children)) + more

    def possible(self, group: Subtree, area: int) -> bool:
        """Return False if counting proves that the group does not fit inside the area."""
        handle = (self.kind(group), area)
        if handle not in self._possible:
            self._possible[handle] = self._check_area(group, area)
        return self._possible[handle]

    def _check_area(self, group: Subtree, area: int) -> bool:
        if not self.required(group):
            return True
        if group.key is None:
            return self.inside(group, area)
        found = self.domains(group, area)
        if isinstance(group, Leaf):
            return bool(len(found))
        return any(self.inside(group, self.state.area(area, group.key, int(d))) for d in found)

    def inside(self, group: Subtree, area: int) -> bool:
        """Like `possible`, but the area is already a domain of the group's own key."""
        handle = (self.kind(group), area)
        if handle not in self._inside:
            self._inside[handle] = self._possible_in_area(group, area)
        return self._inside[handle]

    def _possible_in_area(self, group: Subtree, area: int) -> bool:
        nodes = self.state.areas[area]
        demand = self.demand(group)
        for r in np.flatnonzero(demand):
            if self.state.problem.free[r, nodes].clip(min=0).sum() < demand[r]:
                return False
        if isinstance(group, Leaf):
            return self._leaf_fits(group, nodes)
        pending = [c for c in group.children if self.required(c)]
        return sum(self.possible(c, area) for c in pending) >= self.missing(group)

    def _leaf_fits(self, leaf: Leaf, nodes: Ints) -> bool:
        need = wanted(leaf, self.full)
        if need < leaf.need:
            return False  # too few members
        fits = sum(min(count, int(self.state.base(shape)[nodes].sum())) for shape, count in leaf.demand)
        return fits >= need

    def domains(self, group: Subtree, area: int) -> NDArray[np.int64]:
        """Return ids of the domains of group.key inside the area that counting does not rule out, in id order."""
        assert group.key is not None
        state = self.state
        nodes, ids = state.split(area, group.key)
        if not len(ids):
            return np.zeros(0, dtype=np.int64)
        size = int(ids.max()) + 1
        demand = self.demand(group)
        ok: Bools | None = None
        for r in np.flatnonzero(demand):
            enough = np.bincount(ids, weights=state.problem.free[r, nodes].clip(min=0), minlength=size) >= demand[r]
            ok = enough if ok is None else ok & enough
        if ok is None:
            ok = np.bincount(ids, minlength=size) > 0
        if group.pinned >= 0:
            ok &= np.arange(size) == group.pinned
        if isinstance(group, Leaf):
            need = wanted(group, self.full)
            if need < group.need:
                return np.zeros(0, dtype=np.int64)
            fits = np.zeros(size)
            for shape, count in group.demand:
                fits += np.minimum(np.bincount(ids, weights=state.base(shape)[nodes], minlength=size), count)
            ok &= fits >= need
        return np.flatnonzero(ok)
