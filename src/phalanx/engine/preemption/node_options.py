"""Price the evictions on one node: for every number of members, the cheapest parts of units to evict.

Prices are per part, so a unit that spans nodes is priced as if it could be evicted in part. Nodes are then independent
of each other; `branch_and_bound` resolves the difference to the real cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from phalanx.engine.placement.problem import Bools, Floats, Ints, count_slots
from phalanx.engine.preemption.cost_bounds import BranchDecisions, CostBounds, Terms
from phalanx.engine.preemption.problem import PreemptionProblem
from phalanx.engine.slices import worked

FEW = 8  # all subsets are tried on nodes with at most this many parts
MANY_WAYS = 4096  # limit of combinations of equivalent parts on one node
MAX_GRID = 200_000
Pairs: TypeAlias = frozenset[tuple[int, int]]


class TooManySubsets(Exception):
    """The problem has too many combinations for an exact solution."""


class PartSubsets(msgspec.Struct, eq=False):
    """Subsets of a node's parts: row c takes takes[c, k] of the parts in members[k]."""

    members: list[Ints]
    takes: Ints  # (C, k)
    free: Floats  # (C, R) free capacity afterwards
    price: Floats  # (C,)
    gone: list[frozenset[int]] | None = None  # (C,) evicted units, only for nodes with blockers

    def parts(self, row: int) -> list[int]:
        found: list[int] = []
        for members, take in zip(self.members, self.takes[row], strict=True):
            found += [int(p) for p in members[: int(take)]]
        return found


class Scope(msgspec.Struct, frozen=True, eq=False):
    """Nodes that members may use, and the fraction of a unit's price that each of its parts on these nodes carries.

    An evicted unit is paid in full wherever the members are placed. Parts outside the scope cannot help, and members
    use at most as many nodes as there are members.
    """

    name: object
    fraction: Floats  # (Q,)
    inside: Bools  # (U,) units with a part in the scope


class BranchState:
    """Prices and free capacity after the decisions of a search branch (units evicted, units kept)."""

    __slots__ = ("allowed", "free", "kept", "node_key", "out", "price", "scope", "terms", "ties")

    def __init__(self, freeing: NodeOptions, scope: Scope, stand: BranchDecisions) -> None:
        units = freeing.units
        out, kept = stand.out, stand.kept
        self.out, self.kept, self.scope = out, kept, scope
        self.terms = freeing.prices.terms(stand)
        self.price, self.ties = freeing.priced(scope, self.terms)
        self.allowed = freeing.within
        self.free = freeing.problem.placement.free
        self.node_key: dict[int, tuple[int, ...]] = {}
        if out or kept:
            self.allowed = self.allowed.copy()
            self.allowed[freeing.parts_of(out | kept)] = False
        if out:
            parts = freeing.parts_of(out)
            self.free = self.free.copy()
            np.add.at(self.free.T, units.part_node[parts], units.part_request[:, parts].T)
        for unit in sorted(out | kept):
            for part in freeing.parts_of((unit,)):
                node = int(units.part_node[part])
                sign = int(part) + 1 if unit in out else -int(part) - 1
                self.node_key[node] = (*self.node_key.get(node, ()), sign)


class NodeOptions:
    def __init__(self, problem: PreemptionProblem, prices: CostBounds, threshold: int) -> None:
        self.problem = problem
        self.units = problem.units
        self.prices = prices
        self.threshold = threshold
        units = problem.units
        self.within: Bools = (units.priority <= threshold)[units.part_unit]  # (Q,) parts that may be evicted
        n = problem.placement.node_count
        self.start: Ints = np.searchsorted(units.part_node, np.arange(n + 1))
        order = np.argsort(units.part_unit, kind="stable")
        self._of_unit = order
        self._unit_start = np.searchsorted(units.part_unit[order], np.arange(len(units) + 1))
        self.blocked: dict[int, dict[int, tuple[int, ...]]] = {}  # node -> shape -> units
        for (shape, node), blocking in problem.blockers.items():
            self.blocked.setdefault(node, {})[shape] = blocking
        self._priced: dict[tuple[object, ...], tuple[Floats, Floats]] = {}
        self._types: dict[tuple[object, ...], Ints] = {}
        self._request_ids: Ints | None = None
        self.truncated = False  # some node had too many kinds of parts, so not all combinations were tried
        self._everything: Floats | None = None
        self._tables: dict[tuple[object, ...], Floats] = {}
        self._multi: dict[tuple[object, ...], tuple[Ints, Floats]] = {}

    def parts_of(self, units: Sequence[int] | frozenset[int] | tuple[int, ...]) -> Ints:
        spans = [self._of_unit[self._unit_start[u] : self._unit_start[u + 1]] for u in sorted(units)]
        return np.concatenate(spans) if spans else np.zeros(0, dtype=np.int64)

    def scope(self, name: object, nodes: Ints, members: int) -> Scope:
        units = self.units
        inside = np.zeros(self.problem.placement.node_count, dtype=bool)
        inside[nodes] = True
        here = inside[units.part_node]
        spread = np.bincount(units.part_unit[here], minlength=len(units))
        pods = np.bincount(units.part_unit[here], weights=units.part_pods[here], minlength=len(units))
        fraction = units.part_pods / np.maximum(pods, 1.0)[units.part_unit]
        wide = (spread > members)[units.part_unit]
        fraction = np.where(wide, 1.0 / max(1, members), fraction)
        return Scope(name, np.where(here, fraction, 0.0), spread > 0)

    def priced(self, scope: Scope, terms: Terms) -> tuple[Floats, Floats]:
        """Return (Q,) the price of every part, without and with tie-breaking fractions."""
        key = (scope.name, terms)
        if key not in self._priced:
            of = self.units.part_unit
            price = scope.fraction * self.prices.units_now(terms, scope.inside)[of]
            self._priced[key] = (price, price + scope.fraction * self.prices.ties[of])
        return self._priced[key]

    def types(self, now: BranchState) -> Ints:
        """Return (Q,) class numbers, equal for parts that free the same resources at the same price."""
        key = (now.scope.name, now.terms)
        if key not in self._types:
            if self._request_ids is None:
                table: dict[bytes, int] = {}
                columns = np.ascontiguousarray(self.units.part_request.T)
                ids = [table.setdefault(row.tobytes(), len(table)) for row in columns]
                self._request_ids = np.array(ids, dtype=np.int64)
            prices, number = np.unique(now.price, return_inverse=True)
            self._types[key] = self._request_ids * len(prices) + number
        return self._types[key]

    def everything(self) -> Floats:
        """Return (R, N) the free capacity with all evictable parts evicted."""
        if self._everything is None:
            units = self.units
            room = self.problem.placement.free.copy()
            for r in range(len(room)):
                room[r] += np.bincount(
                    units.part_node, weights=np.where(self.within, units.part_request[r], 0.0), minlength=room.shape[1]
                )
            self._everything = room
        return self._everything

    # ---- one kind of member --------------------------------------------------------------------------------

    def table(self, shape: int, nodes: Ints, most: int, now: BranchState) -> Floats:
        """Return (M, most + 1) the price of k members of the shape on each node; inf where k do not fit."""
        key = (shape, nodes.tobytes(), most, now.terms, now.scope.name)
        base = self._tables.get(key)
        if base is None:
            plain = now
            if now.out or now.kept:
                plain = BranchState(self, now.scope, BranchDecisions())
                plain.terms, plain.price, plain.ties = now.terms, now.price, now.ties
            base = self._tables[key] = self._cost_table(shape, nodes, most, plain)
        if not now.node_key:
            return base
        touched = np.flatnonzero(np.isin(nodes, list(now.node_key)))
        if not len(touched):
            return base
        table = base.copy()
        table[touched] = self._cost_table(shape, nodes[touched], most, now)
        return table

    def _cost_table(self, shape: int, nodes: Ints, most: int, now: BranchState) -> Floats:
        """Return (nodes, pods) the cost of evictions that make room for 0..most pods of a shape on each node."""
        row = self.problem.placement.shapes[shape]
        table = np.full((len(nodes), most + 1), np.inf)
        table[:, 0] = 0.0
        usable = row.mask[nodes]
        counts = self.start[nodes + 1] - self.start[nodes]
        hard = np.array([int(node) in self.blocked for node in nodes], dtype=bool) if self.blocked else None
        for u in np.unique(counts[usable]):
            here = np.flatnonzero(usable & (counts == u))
            if hard is not None:
                here = here[~hard[here]]
            if u <= FEW and len(here):
                table[here] = self._fill_few(shape, nodes[here], int(u), most, now)
        slow = usable & (counts > FEW)
        if hard is not None:
            slow |= usable & hard
        known: dict[object, Floats] = {}
        types = self.types(now) if slow.any() else None
        for at in np.flatnonzero(slow):
            worked(10)
            node = int(nodes[at])
            alike: object = node
            if hard is None or not hard[at]:
                assert types is not None
                span = slice(int(self.start[node]), int(self.start[node + 1]))
                mine = np.sort(np.where(now.allowed[span], types[span], -1))
                alike = (mine.tobytes(), now.free[:, node].tobytes(), self._cap(shape, node))
            if alike not in known:
                ways = self.ways(node, now)
                known[alike] = _cheapest(self._slots(ways, shape, node), ways.price[None, :], most)[0]
            table[at] = known[alike]
        return table

    def _fill_few(self, shape: int, nodes: Ints, u: int, most: int, now: BranchState) -> Floats:
        row = self.problem.placement.shapes[shape]
        bits = _bits(u)  # (C, u)
        parts = self.start[nodes][:, None] + np.arange(u)  # (M, u)
        barred = ~now.allowed[parts]
        price = np.where(barred, np.inf, now.ties[parts]) if u else np.zeros((len(nodes), 0))
        cost = np.zeros((len(nodes), len(bits)))
        for k in range(u):
            cost += np.where(bits[:, k], price[:, k : k + 1], 0.0)
        slots: Ints | None = None
        for r in np.flatnonzero(row.request):
            freed = self.units.part_request[r][parts] @ bits.T.astype(np.float64) if u else 0.0  # (M, C)
            fit = ((now.free[r, nodes][:, None] + freed) / row.request[r]).astype(np.int64)
            slots = fit if slots is None else np.minimum(slots, fit)
        if slots is None:
            slots = np.full(cost.shape, most, dtype=np.int64)
        if row.cap is not None:
            slots = np.minimum(slots, row.cap[nodes][:, None])
        return _cheapest(slots, cost, most)

    def _cap(self, shape: int, node: int) -> int:
        cap = self.problem.placement.shapes[shape].cap
        return 2**31 if cap is None else int(cap[node])

    def _slots(self, ways: PartSubsets, shape: int, node: int) -> Ints:
        """Return (1, C) the members of one shape that fit after each way of evicting parts."""
        row = self.problem.placement.shapes[shape]
        slots = np.minimum(count_slots(row.request, ways.free.T), self._cap(shape, node))
        blockers = self.blocked.get(node, {}).get(shape)
        if blockers and ways.gone is not None:
            slots[[not gone.issuperset(blockers) for gone in ways.gone]] = 0
        return slots[None, :]

    def ways(self, node: int, now: BranchState) -> PartSubsets:
        """Return the subsets of the node's parts to consider, cheapest parts of a class first."""
        units = self.units
        span = np.arange(self.start[node], self.start[node + 1])
        span = span[now.allowed[span]]
        free = now.free[:, node]
        blockers = self.blocked.get(node)
        prices = now.ties
        if len(span) <= FEW:
            members = [span[k : k + 1] for k in range(len(span))]
            takes = _bits(len(span)).astype(np.int64)
        else:
            members = self._classes(span, now, blockers)
            prices = now.price  # shared between nodes whose parts differ in tie-breaks only
            takes = self._combinations(members)
        requests = np.array([units.part_request[:, m[0]] for m in members]).reshape(len(members), len(free))
        price = np.zeros(len(takes))
        for k, m in enumerate(members):
            price += np.concatenate([[0.0], np.cumsum(prices[m])])[takes[:, k]]
        gone = None
        if blockers:
            already = now.out
            gone = []
            for row in takes:
                taken = [int(units.part_unit[p]) for m, t in zip(members, row, strict=True) for p in m[:t]]
                gone.append(already.union(taken))
        return PartSubsets(members, takes, free + takes @ requests, price, gone)

    def _classes(self, span: Ints, now: BranchState, blockers: dict[int, tuple[int, ...]] | None) -> list[Ints]:
        units = self.units
        special = {u for blocking in blockers.values() for u in blocking} if blockers else set()
        types = self.types(now)
        classes: dict[tuple[int, int], list[int]] = {}
        for part in span:
            unit = int(units.part_unit[part])
            classes.setdefault((int(types[part]), unit if unit in special else -1), []).append(int(part))
        return [np.array(sorted(m, key=lambda p: (now.ties[p], p)), dtype=np.int64) for m in classes.values()]

    def _combinations(self, members: list[Ints]) -> Ints:
        sizes = [len(m) + 1 for m in members]
        if np.prod(sizes, dtype=np.float64) <= MANY_WAYS:
            return np.indices(tuple(sizes)).reshape(len(sizes), -1).T
        # Too many kinds: try prefixes in several orders. This finds good subsets, but not all.
        self.truncated = True
        found: set[tuple[int, ...]] = set()
        units = self.units
        scale = np.maximum(units.part_request.max(axis=1), 1.0)
        size = [float((units.part_request[:, m[0]] / scale).max()) for m in members]
        per_pod = [s / max(1, int(units.part_pods[m[0]])) for s, m in zip(size, members, strict=True)]
        priority = [int(units.priority[units.part_unit[m[0]]]) for m in members]
        base = range(len(members))
        for order in (
            list(base),
            sorted(base, key=lambda k: -size[k]),
            sorted(base, key=lambda k: -per_pod[k]),
            sorted(base, key=lambda k: size[k]),
            sorted(base, key=lambda k: (priority[k], -size[k])),
        ):
            row = [0] * len(members)
            found.add(tuple(row))
            for k in order:
                for _ in range(len(members[k])):
                    row[k] += 1
                    found.add(tuple(row))
            full = [len(m) for m in members]
            for k in order:  # also all parts except a few
                for left in range(len(members[k]) - 1, -1, -1):
                    full[k] = left
                    found.add(tuple(full))
                full[k] = len(members[k]) if size[k] > 0 else 0
        return np.array(sorted(found), dtype=np.int64)

    # ---- several kinds of members --------------------------------------------------------------------------

    def options(
        self,
        node: int,
        shapes: tuple[int, ...],
        most: tuple[int, ...],
        rivals: frozenset[tuple[int, int]],
        now: BranchState,
    ) -> tuple[Ints, Floats]:
        """Return undominated (P, I) members per item on a node and (P,) prices; row 0 is no member at price 0."""
        key = (node, shapes, most, now.terms, now.scope.name, now.node_key.get(node, ()))
        found = self._multi.get(key)
        if found is None:
            found = self._multi[key] = self._options(node, shapes, most, rivals, now)
        return found

    def _options(
        self,
        node: int,
        shapes: tuple[int, ...],
        most: tuple[int, ...],
        rivals: frozenset[tuple[int, int]],
        now: BranchState,
    ) -> tuple[Ints, Floats]:
        ways = self.ways(node, now)
        requests = np.array([self.problem.placement.shapes[s].request for s in shapes])  # (I, R)
        limit = np.array(
            [
                [min(m, int(k)) for k in self._slots(ways, s, node)[0]] if m else [0] * len(ways.price)
                for s, m in zip(shapes, most, strict=True)
            ]
        )  # (I, C)
        top = limit.max(axis=1)
        if np.prod(top[:-1] + 1, dtype=np.float64) * len(ways.price) > MAX_GRID:
            raise TooManySubsets
        grid = np.indices(tuple(top[:-1] + 1)).reshape(len(shapes) - 1, -1).T  # (G, I-1)
        left = ways.free[:, None, :] - (grid @ requests[:-1])[None, :, :]  # (C, G, R)
        # Zero members always fit, even on a node whose reservations exceed its capacity.
        no_member: Bools = grid.sum(axis=1) == 0
        ok = ((left >= 0) | ~requests.any(axis=0)).all(axis=2) | no_member[None, :]
        for i in range(len(shapes) - 1):
            ok &= grid[None, :, i] <= limit[i][:, None]
        for a, b in rivals:
            if b < len(shapes) - 1:
                ok &= ~((grid[:, a] > 0) & (grid[:, b] > 0))[None, :]
        flat = left.reshape(-1, left.shape[2])
        last = np.minimum(count_slots(requests[-1], flat.T).reshape(ok.shape), limit[-1][:, None])
        for a, b in rivals:
            if b == len(shapes) - 1:
                last = np.where(grid[None, :, a] > 0, 0, last)
        best: dict[tuple[int, ...], float] = {}
        for c, g in zip(*np.nonzero(ok), strict=True):
            counts = (*(int(x) for x in grid[g]), int(last[c, g]))
            price = float(ways.price[c])
            if price < best.get(counts, np.inf):
                best[counts] = price
        rows = sorted(best.items(), key=lambda entry: (entry[1], [-x for x in entry[0]]))
        kept: list[tuple[tuple[int, ...], float]] = []
        for counts, price in rows:
            if not any(all(x >= y for x, y in zip(k, counts, strict=True)) for k, _ in kept):
                kept.append((counts, price))
        return np.array([k for k, _ in kept], dtype=np.int64), np.array([p for _, p in kept])

    def cheapest(self, node: int, wanted: Sequence[tuple[int, int]], rivals: Pairs, now: BranchState) -> list[int]:
        """Return the cheapest parts to evict so that these (shape, count) fit on the node."""
        wanted = [(s, c) for s, c in wanted if c]
        if not wanted:
            return []
        ways = self.ways(node, now)
        demand = sum((self.problem.placement.shapes[s].request * c for s, c in wanted), np.zeros(ways.free.shape[1]))
        ok = ((ways.free >= demand) | (demand == 0)).all(axis=1)
        for s, c in wanted:
            ok &= self._slots(ways, s, node)[0] >= c
        price = np.where(ok, ways.price, np.inf)
        best = int(price.argmin())
        assert ok[best], "the table promised room on this node"
        return ways.parts(best)


def _bits(u: int) -> NDArray[np.bool_]:
    """Return (2^u, u) all subsets, in an order that prefers the first parts."""
    subsets: NDArray[np.bool_] = (np.arange(2**u)[:, None] >> np.arange(u)) & 1 == 1
    return subsets


def _cheapest(slots: Ints, cost: Floats, most: int) -> Floats:
    """Return (M, most + 1) the lowest price over the ways (M, C) that give at least k slots."""
    table = np.full((len(slots), most + 1), np.inf)
    table[:, 0] = 0.0
    for k in range(1, most + 1):
        enough = slots >= k
        if not enough.any():
            break
        table[:, k] = np.where(enough, cost, np.inf).min(axis=1)
    return table
