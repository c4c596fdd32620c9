"""Assign ranks to the chosen nodes so that consecutive ranks are near each other (Pack) or far apart (Stripe).

This module does not know pods: members are positions in rank order, nodes are numbers, and a node has a path of
domains, coarsest first and the node itself last. Two members separate at the first level where their paths differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

Path = tuple[int, ...]
EXPANSIONS = 4_000  # branches of the exact search
MEMBERS = 200  # above this number of members the nearest free slot is taken, without a search
FEW = 8  # members that join placed ones: the search is short


def hops(a: Path, b: Path) -> int:
    """Return the levels between two nodes: 0 on one node, 1 in one domain of the finest key, …"""
    for level, (x, y) in enumerate(zip(a, b, strict=True)):
        if x != y:
            return len(a) - level
    return 0


def ring_cost(nodes: Sequence[int], paths: Mapping[int, Path]) -> int:
    """Return the sum of hops between consecutive ranks on these nodes."""
    return sum(hops(paths[a], paths[b]) for a, b in pairwise(nodes))


class RankedMembers(msgspec.Struct, frozen=True):
    """Hold members of one group in rank order, and the slots that a search has chosen for some of them."""

    shapes: Sequence[int]  # of each member
    fixed: Mapping[int, int]  # member -> node, for members that have a node
    slots: Mapping[int, Mapping[int, int]]  # shape -> node -> number of other members to place there


def pack(members: RankedMembers, paths: Mapping[int, Path], *, exact: bool = True) -> list[int]:
    """Return a node for every member so that the ring cost is low; every slot is used.

    With `exact`, branch and bound improves the assignment within its limits (MEMBERS, EXPANSIONS). Without it this is
    done for a few members that join placed ones; other members are assigned domain by domain.
    """
    free = [m for m in range(len(members.shapes)) if m not in members.fixed]
    plain = _by_path(members, free, paths)
    if not members.fixed and len({members.shapes[m] for m in free}) <= 1:
        return plain  # every domain is entered once: this is the lower bound
    if not exact and not (members.fixed and len(free) <= FEW):
        return plain
    kept = [m for m in range(len(members.shapes)) if not {m - 1, m, m + 1} <= members.fixed.keys()]
    near = RankedMembers(
        [members.shapes[m] for m in kept],
        {at: members.fixed[m] for at, m in enumerate(kept) if m in members.fixed},
        members.slots,
    )
    found = min(([plain[m] for m in kept], _by_nearest_slot(near, paths)), key=lambda each: ring_cost(each, paths))
    if len(kept) <= MEMBERS:
        found = _Search(near, paths, found).best
    for m, node in zip(kept, found, strict=True):
        plain[m] = node
    return plain


def _by_nearest_slot(members: RankedMembers, paths: Mapping[int, Path]) -> list[int]:
    """Assign each member, in rank order, to the free slot of its shape that is nearest to the member before it."""
    slots = {shape: _SlotTree(counts, paths) for shape, counts in members.slots.items()}
    found: list[int] = []
    last: Path = ()
    for m, shape in enumerate(members.shapes):
        found.append(members.fixed[m] if m in members.fixed else slots[shape].take(last))
        last = paths[found[-1]]
    return found


class _SlotTree:
    """Count the free slots of one shape by domain, so that the nearest one is found without looking at every node."""

    def __init__(self, counts: Mapping[int, int], paths: Mapping[int, Path]) -> None:
        self._left: dict[Path, int] = {}
        self._below: dict[Path, list[Path]] = {}  # in descending order: the first one is taken from the end
        for node in sorted(counts, key=lambda each: paths[each], reverse=True):
            path = paths[node]
            for depth in range(len(path) + 1):
                if path[:depth] not in self._left and depth:
                    self._below.setdefault(path[: depth - 1], []).append(path[:depth])
                self._left[path[:depth]] = self._left.get(path[:depth], 0) + counts[node]

    def take(self, last: Path) -> int:
        """Return the node of the slot that is nearest to the node of path `last`, and use the slot."""
        depth = next(depth for depth in range(len(last), -1, -1) if self._left.get(last[:depth], 0))
        at = last[:depth]
        while self._below.get(at):
            while not self._left[self._below[at][-1]]:
                self._below[at].pop()
            at = self._below[at][-1]
        for depth in range(len(at) + 1):
            self._left[at[:depth]] -= 1
        return at[-1]


def _by_path(members: RankedMembers, free: Sequence[int], paths: Mapping[int, Path]) -> list[int]:
    """Assign the members of each shape from the first domain to the last."""
    left = {
        shape: [node for node in sorted(counts, key=lambda n: paths[n]) for _ in range(counts[node])]
        for shape, counts in members.slots.items()
    }
    used = dict.fromkeys(left, 0)
    found = [members.fixed.get(m, -1) for m in range(len(members.shapes))]
    for m in free:
        shape = members.shapes[m]
        found[m] = left[shape][used[shape]]
        used[shape] += 1
    return found


class _Search:
    """Branch and bound in rank order, nearest slot first."""

    def __init__(self, members: RankedMembers, paths: Mapping[int, Path], known: list[int]) -> None:
        self._members = members
        self._paths = paths
        self._left = {shape: dict(counts) for shape, counts in members.slots.items()}
        self._chosen: list[int] = []
        self._expansions = EXPANSIONS
        self._seen: dict[tuple[object, ...], int] = {}
        self.best, self._cost = known, ring_cost(known, paths)
        self._branch(0)

    def _branch(self, cost: int) -> None:
        at = len(self._chosen)
        if at == len(self._members.shapes):
            if cost < self._cost:
                self.best, self._cost = list(self._chosen), cost
            return
        self._expansions -= 1
        if self._expansions < 0 or cost + self._bound() >= self._cost or self._known(cost):
            return
        shape = self._members.shapes[at]
        if at in self._members.fixed:
            self._branch_to(self._members.fixed[at], cost, None)
            return
        counts = self._left[shape]
        last = self._paths[self._chosen[-1]] if self._chosen else None
        near = sorted(
            (node for node, count in counts.items() if count),
            key=lambda node: (hops(last, self._paths[node]) if last is not None else 0, self._paths[node]),
        )
        for node in near:
            self._branch_to(node, cost, counts)

    def _branch_to(self, node: int, cost: int, counts: dict[int, int] | None) -> None:
        more = hops(self._paths[self._chosen[-1]], self._paths[node]) if self._chosen else 0
        if counts is not None:
            counts[node] -= 1
        self._chosen.append(node)
        self._branch(cost + more)
        self._chosen.pop()
        if counts is not None:
            counts[node] += 1

    def _bound(self) -> int:
        """Return a lower bound: every domain with a free slot, except the current one, is entered once more."""
        last = self._paths[self._chosen[-1]] if self._chosen else None
        nodes = {node for counts in self._left.values() for node, count in counts.items() if count}
        prefixes = {self._paths[node][:depth] for node in nodes for depth in range(1, len(self._paths[node]) + 1)}
        here = {last[:depth] for depth in range(1, len(last) + 1)} if last is not None else set()
        levels = len(next(iter(self._paths.values()), ()))
        return len(prefixes - here) - (levels if last is None and prefixes else 0)

    def _known(self, cost: int) -> bool:
        """Return whether the same slots were left after the same last node at no higher cost."""
        rest = tuple((shape, tuple(sorted(counts.items()))) for shape, counts in sorted(self._left.items()))
        key = (len(self._chosen), self._chosen[-1] if self._chosen else -1, rest)
        if self._seen.get(key, cost + 1) <= cost:
            return True
        self._seen[key] = cost
        return False


def stripe(members: int, domains: int) -> list[int]:
    """Return the domain of every member: consecutive members in different domains."""
    return [m % domains for m in range(members)]


def balance(members: int, domains: int) -> list[int]:
    """Return the domain of every member: equal numbers per domain, consecutive members together."""
    return [m * domains // members for m in range(members)]
