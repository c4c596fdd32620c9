"""Find the cheapest victims for one choice of domains: branch and bound over units that span nodes or share a budget.

`covering` prices every node independently. It may evict a unit in part, or use the same allowed disruption of a budget
twice, so its price is a lower bound. If the victims cost more than the bound, the search branches on one unit: it is
evicted in one branch and kept in the other.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from phalanx.engine.placement.problem import Floats
from phalanx.engine.preemption.cost import cheapest_first, cost_of
from phalanx.engine.preemption.cost_bounds import BranchDecisions
from phalanx.engine.preemption.covering import Contest, Cover, cover
from phalanx.engine.preemption.node_options import BranchState, NodeOptions, Scope, TooManySubsets
from phalanx.engine.slices import worked


class SearchBudget(msgspec.Struct):
    """Count expansions: one per covering task, more for large tasks."""

    limit: int
    used: int = 0
    truncated: bool = False  # part of the search was skipped, so there is no proof

    def spend(self, cells: int) -> None:
        self.used += 1 + cells // 50_000
        worked(40 + cells // 20_000)

    @property
    def over(self) -> bool:
        return self.used >= self.limit


class Relaxed(msgspec.Struct, frozen=True):
    price: float
    units: frozenset[int]  # units with at least one evicted pod
    share: dict[int, int]  # unit -> its pods that the relaxed solution evicts
    placed: dict[int, list[tuple[int, int]]]  # node -> (shape, members)


class BranchAndBound:
    def __init__(self, freeing: NodeOptions, effort: SearchBudget) -> None:
        self.freeing = freeing
        self.units = freeing.units
        self.effort = effort
        self._covers: dict[tuple[object, ...], Cover | None] = {}

    def cover(self, name: object, cluster: Contest, now: BranchState) -> Cover | None:
        """Solve one covering task; cached by everything that its solution depends on."""
        touched: tuple[object, ...] = ()
        if now.node_key:
            inside = set(cluster.nodes.tolist())
            touched = tuple((node, key) for node, key in sorted(now.node_key.items()) if node in inside)
        handle = (name, now.scope.name, now.terms, touched)
        if handle not in self._covers:
            states = int(np.prod([item.most + 1 for item in cluster.items], dtype=np.float64))
            self.effort.spend(len(cluster.nodes) * min(states, 1_000))
            self._covers[handle] = cover(self.freeing, cluster, now)
        return self._covers[handle]

    def relax(self, clusters: list[tuple[object, Contest]], now: BranchState) -> Relaxed | None:
        price = 0.0
        taken: list[int] = []
        placed: dict[int, list[tuple[int, int]]] = {}
        for name, cluster in clusters:
            found = self.cover(name, cluster, now)
            if found is None:
                return None
            price += found.price
            for at in np.flatnonzero(found.counts.any(axis=0)):
                node = int(cluster.nodes[at])
                wanted = [(item.shape, int(c)) for item, c in zip(cluster.items, found.counts[:, at], strict=True) if c]
                placed[node] = wanted
                taken += self.freeing.cheapest(node, wanted, cluster.rivals, now)
        share: dict[int, int] = {}
        for part in taken:
            unit = int(self.units.part_unit[part])
            share[unit] = share.get(unit, 0) + int(self.units.part_pods[part])
        return Relaxed(price, frozenset(share), share, placed)

    def run(
        self,
        clusters: list[tuple[object, Contest]],
        scope: Scope,
        best: float,
        found: Callable[[frozenset[int]], float],
    ) -> None:
        """Pass every victim set that is at least as good as `best` to `found`, which returns the new best cost."""
        prices = self.freeing.prices
        stack = [BranchDecisions()]
        while stack:
            if self.effort.over:
                self.effort.truncated = True
                return
            stand = stack.pop()
            now = BranchState(self.freeing, scope, stand)
            try:
                relaxed = self.relax(clusters, now)
            except TooManySubsets:
                self.effort.truncated = True
                return
            if relaxed is None:
                continue
            bound = prices.proved(prices.decided(stand) + relaxed.price)
            if bound >= best:
                continue
            rounded = self.spare(stand.out | relaxed.units, relaxed.placed)
            if prices.whole(cost_of(self.units, rounded)) <= best:
                best = found(rounded)
            if bound < best:
                stack += self.cases(stand, relaxed)

    def cases(self, stand: BranchDecisions, relaxed: Relaxed) -> list[BranchDecisions]:
        """Return the branches to search, the more promising last; empty if the bound is attained."""
        units = self.responsible(stand.out, relaxed)
        if not units:
            return self.freeing.prices.responsible(stand, relaxed.units)
        settled = self.freeing.prices.settled
        return [
            settled(BranchDecisions(stand.out, stand.kept | {units[0]}, stand.paid, stand.whole)),
            settled(BranchDecisions(stand.out | {units[0]}, stand.kept, stand.paid, stand.whole)),
        ]

    def responsible(self, out: frozenset[int], relaxed: Relaxed) -> list[int]:
        """Return the units whose real cost exceeds the cost in the bound, largest difference first."""
        units = self.units
        partly = [u for u in relaxed.share if u not in out and relaxed.share[u] < units.pods[u]]
        if partly:
            return sorted(partly, key=lambda u: (-relaxed.share[u] / units.pods[u], -units.pods[u], u))
        all_pods = sorted(out | relaxed.units)
        over = units.hits[:, all_pods].sum(axis=1) > units.allowed
        responsible = [u for u in relaxed.share if u not in out and units.hits[over, u].any()]
        return sorted(responsible, key=lambda u: (-int(units.hits[over, u].sum()), u))

    def spare(self, chosen: frozenset[int], placed: dict[int, list[tuple[int, int]]]) -> frozenset[int]:
        """Reprieve victims in descending cost while the members still fit where they are placed."""
        units, freeing = self.units, self.freeing
        placement = freeing.problem.placement
        slack: dict[int, Floats] = {}
        for node, wanted in placed.items():
            left = placement.free[:, node].copy()
            for shape, count in wanted:
                left -= placement.shapes[shape].request * count
            slack[node] = left
        needed_for = {
            node: {r for s, _ in wanted for r in np.flatnonzero(placement.shapes[s].request)}
            for node, wanted in placed.items()
        }
        for unit in chosen:
            for part in freeing.parts_of((unit,)):
                node = int(units.part_node[part])
                if node in slack:
                    slack[node] += units.part_request[:, part]
        kept = set(chosen)
        for unit in reversed(cheapest_first(units, chosen)):
            parts = [p for p in freeing.parts_of((unit,)) if int(units.part_node[p]) in slack]
            fits = True
            for part in parts:
                node = int(units.part_node[part])
                after = slack[node] - units.part_request[:, part]
                if any(after[r] < 0 for r in needed_for[node]) or self._blocks(unit, node, placed[node]):
                    fits = False
                    break
            if fits:
                kept.discard(unit)
                for part in parts:
                    slack[int(units.part_node[part])] -= units.part_request[:, part]
        return frozenset(kept)

    def _blocks(self, unit: int, node: int, wanted: list[tuple[int, int]]) -> bool:
        blocked = self.freeing.blocked.get(node)
        return blocked is not None and any(unit in blocked.get(shape, ()) for shape, _ in wanted)
