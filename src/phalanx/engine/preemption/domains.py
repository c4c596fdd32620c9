"""Enumerate assignments of groups to topology domains in ascending order of their lower bound (best first).

Equal groups under one parent are interchangeable, so only one order of them is enumerated.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import combinations

import msgspec
import numpy as np

from phalanx.engine.placement.problem import Composite, Ints, Leaf, PlacementProblem, Subtree, done
from phalanx.engine.preemption.covering import Contest, CoverItem

MAX_SUBSETS = 70


class FreedSlot(msgspec.Struct, frozen=True):
    """A leaf group assigned to a node set."""

    leaf: int
    area: int


class DomainChoice(msgspec.Struct, frozen=True, eq=False):
    bound: float
    assignment: tuple[FreedSlot, ...]


class Domains:
    """Hold the node sets (areas) that the groups of a placement problem may use."""

    def __init__(self, problem: PlacementProblem) -> None:
        self.problem = problem
        self.leaves: list[Leaf] = []
        self._leaf_number: dict[int, int] = {}
        self.areas: list[Ints] = [np.arange(problem.node_count)]
        self._area_ids: dict[tuple[int, str, int], int] = {}
        self._split: dict[tuple[int, str], list[int]] = {}
        self._parent: dict[int, int] = {}
        self._kinds: dict[int, tuple[object, ...]] = {}

    def number(self, leaf: Leaf) -> int:
        if id(leaf) not in self._leaf_number:
            self._leaf_number[id(leaf)] = len(self.leaves)
            self.leaves.append(leaf)
        return self._leaf_number[id(leaf)]

    def kind(self, group: Subtree) -> tuple[object, ...]:
        """Return a key that is equal for interchangeable groups."""
        if id(group) not in self._kinds:
            if isinstance(group, Leaf):
                what: tuple[object, ...] = (group.need, group.demand, group.key, group.pinned)
            else:
                what = (group.minimum, tuple(self.kind(c) for c in group.children), group.key, group.pinned)
            self._kinds[id(group)] = what
        return self._kinds[id(group)]

    def inside(self, group: Subtree, parent: int) -> list[int]:
        """Return the node sets that the group may use, in domain order."""
        if group.key is None:
            return [parent]
        if (parent, group.key) not in self._split:
            column = self.problem.domains.get(group.key)
            nodes = self.areas[parent]
            found: list[int] = []
            if column is not None:
                for domain in np.unique(column[nodes][column[nodes] >= 0]):
                    handle = (parent, group.key, int(domain))
                    self._area_ids[handle] = len(self.areas)
                    self._parent[len(self.areas)] = parent
                    found.append(len(self.areas))
                    self.areas.append(nodes[column[nodes] == domain])
            self._split[parent, group.key] = found
        if group.pinned >= 0:
            area = self._area_ids.get((parent, group.key, group.pinned))
            return [] if area is None else [area]
        return self._split[parent, group.key]

    def top(self, area: int) -> int:
        """Return the node set of the whole tree that contains this one: the root's domain, or all nodes."""
        keyed = self.problem.root.key is not None
        while area in self._parent and not (keyed and self._parent[area] == 0):
            area = self._parent[area]
        return area

    # ---- clusters ------------------------------------------------------------------------------------------

    def clusters(self, assignment: tuple[FreedSlot, ...]) -> list[tuple[tuple[FreedSlot, ...], Contest]]:
        """Combine slots with overlapping node sets; each combination is one covering task."""
        groups: list[tuple[list[FreedSlot], set[int]]] = []
        for assign in assignment:
            mine = {assign.area}
            members = [assign]
            rest = []
            for others, areas in groups:
                if any(self._overlap(assign.area, a) for a in areas):
                    members = others + members
                    mine |= areas
                else:
                    rest.append((others, areas))
            groups = [*rest, (members, mine)]
        return [(tuple(members), self._cluster(members)) for members, _ in groups]

    def _overlap(self, a: int, b: int) -> bool:
        return a == b or bool(np.intersect1d(self.areas[a], self.areas[b], assume_unique=True).size)

    def _cluster(self, assignment: list[FreedSlot]) -> Contest:
        areas = sorted({s.area for s in assignment})
        nodes = self.areas[areas[0]] if len(areas) == 1 else np.unique(np.concatenate([self.areas[a] for a in areas]))
        plain: dict[tuple[int, int], int] = {}  # (shape, area) -> members, for leaves with a fixed number per shape
        mixed: list[tuple[FreedSlot, Leaf]] = []
        for assign in assignment:
            leaf = self.leaves[assign.leaf]
            if leaf.need >= leaf.total:
                for shape, count in leaf.demand:
                    plain[shape, assign.area] = plain.get((shape, assign.area), 0) + count
            elif len(leaf.demand) == 1:
                shape = leaf.demand[0][0]
                plain[shape, assign.area] = plain.get((shape, assign.area), 0) + leaf.need
            else:
                mixed.append((assign, leaf))
        items: list[CoverItem] = []
        claims: list[tuple[tuple[int, ...], int]] = []

        def add(shape: int, area: int, most: int) -> int:
            inside = None if len(areas) == 1 else np.isin(nodes, self.areas[area])
            items.append(CoverItem(shape, most, inside))
            return len(items) - 1

        for (shape, area), count in plain.items():
            if count:
                claims.append(((add(shape, area, count),), count))
        for assign, leaf in mixed:
            numbers = tuple(add(shape, assign.area, min(count, leaf.need)) for shape, count in leaf.demand if count)
            claims.append((numbers, leaf.need))
        rivals = set()
        for a, x in enumerate(items):
            for b in range(a + 1, len(items)):
                y = items[b]
                same = x.shape == y.shape and self.problem.shapes[x.shape].cap is not None
                if (min(x.shape, y.shape), max(x.shape, y.shape)) in self.problem.conflicts or same:
                    rivals.add((a, b))
        return Contest(nodes, tuple(items), tuple(claims), frozenset(rivals))


PriceOf = Callable[[tuple[FreedSlot, ...]], float | None]
Pending = tuple[Subtree, int, int]  # group, node set of its parent, first area allowed (equal siblings are ordered)


class Choices:
    """Enumerate complete assignments, best first. `price`: lower bound of an assignment; None: impossible."""

    def __init__(self, domains: Domains, price: PriceOf, limit: int) -> None:
        self.domains = domains
        self.price = price
        self.limit = limit
        self.steps = 0
        self.cut = False  # the limit ended the enumeration
        self.floor = 0.0  # lower bound of the remaining choices

    def run(self, root: Subtree) -> Iterator[DomainChoice]:
        """Yield assignments in ascending order of their lower bound."""
        ticket = 0
        heap: list[tuple[float, int, int, tuple[Pending, ...], tuple[FreedSlot, ...]]] = [
            (0.0, 0, 0, ((root, 0, -1),), ())
        ]
        while heap:
            bound, _, _, todo, assignment = heapq.heappop(heap)
            self.floor = bound
            if not todo:
                yield DomainChoice(bound, assignment)
                continue
            if self.steps >= self.limit:
                self.cut = True
                return
            self.steps += 1
            for more, assign in self._expand(todo[0]):
                chosen = assignment
                value = bound
                if assign is not None:
                    chosen = (*assignment, assign)
                    priced = self.price(chosen)
                    if priced is None:
                        continue
                    value = max(bound, priced)
                ticket += 1
                rest = self._with_floor(todo, assign) if assign is not None else todo[1:]
                heapq.heappush(heap, (value, -len(chosen), ticket, (*more, *rest), chosen))
        self.floor = float("inf")

    def _with_floor(self, todo: tuple[Pending, ...], assign: FreedSlot) -> tuple[Pending, ...]:
        """Limit an equal sibling that follows to the same or a later domain."""
        group, parent, _ = todo[0]
        rest = todo[1:]
        if rest and rest[0][1] == parent and self.domains.kind(rest[0][0]) == self.domains.kind(group):
            return ((rest[0][0], parent, assign.area), *rest[1:])
        return rest

    def _expand(self, task: Pending) -> Iterator[tuple[tuple[Pending, ...], FreedSlot | None]]:
        group, parent, least = task
        domains = self.domains
        if isinstance(group, Leaf):
            if group.need == 0:
                yield (), None
                return
            if group.total < group.need:
                return
            for area in domains.inside(group, parent):
                if area >= least:
                    yield (), FreedSlot(domains.number(group), area)
            return
        pending = [c for c in group.children if not done(c)]
        missing = group.minimum - (len(group.children) - len(pending))
        if missing <= 0:
            yield (), None
            return
        if len(pending) < missing:
            return
        subsets = self._subsets(group, pending, missing)
        for area in domains.inside(group, parent):
            for subset in subsets:
                yield tuple((child, area, -1) for child in subset), None

    def _subsets(self, group: Composite, pending: list[Subtree], missing: int) -> list[tuple[Subtree, ...]]:
        kinds: dict[tuple[object, ...], int] = {}
        for child in pending:
            kinds.setdefault(self.domains.kind(child), len(kinds))
        ordered = sorted(pending, key=lambda c: kinds[self.domains.kind(c)])
        seen: set[tuple[int, ...]] = set()
        found: list[tuple[Subtree, ...]] = []
        for subset in combinations(ordered, missing):
            shape = tuple(kinds[self.domains.kind(c)] for c in subset)
            if shape in seen:
                continue
            seen.add(shape)
            found.append(subset)
            if len(found) >= MAX_SUBSETS:
                self.cut = True
                break
        return found
