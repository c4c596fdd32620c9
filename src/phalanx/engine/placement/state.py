"""Hold the partial placement of a search: free capacity per node, placed pods, and undo."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from phalanx.engine.placement.exact import TooLarge, solve, solve_most
from phalanx.engine.placement.exact_packing import choose_alike, solve_best
from phalanx.engine.placement.pack import MOST_NODES_COMPARED, Area, Item, fill, make_area, pack, smallest
from phalanx.engine.placement.problem import Floats, Ints, Leaf, PlacementProblem, base_slots, count_slots
from phalanx.engine.placement.residual_capacity import split_resources
from phalanx.engine.slices import worked


class Slot(msgspec.Struct, eq=False):
    """Hold one leaf in its area: pods per shape and node."""

    leaf: Leaf
    area: int  # node set
    shapes: tuple[int, ...]
    counts: dict[int, int]  # shape -> pods
    placed: dict[int, tuple[Ints, Ints]]  # shape -> (nodes, pods per node)


class Budget:
    """Count expansions. Spending more than the limit raises Exhausted."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.truncated = False  # some negative answer was not a proof

    def spend(self, amount: int = 1) -> None:
        self.used += amount
        if self.used > self.limit:
            raise Exhausted
        worked(20)

    @property
    def left(self) -> int:
        return max(0, self.limit - self.used)


class Exhausted(Exception):
    """Report that the search budget is used up."""


class SearchState:
    def __init__(self, problem: PlacementProblem, budget: Budget) -> None:
        self.problem = problem
        self.budget = budget
        self.free: Floats = problem.free.copy()
        self.rank: Ints = problem.order if problem.order is not None else np.arange(problem.node_count)
        scale = problem.free.sum(axis=1)
        self.kinds = split_resources(problem.resources)
        self.inverse: Floats = 1.0 / np.where(scale > 0, scale, 1.0)  # (R,) amount -> share of all free
        self.assignment: dict[int, Slot] = {}  # id(leaf) -> slot, in the order of placing
        self.areas: list[Ints] = [np.arange(problem.node_count) if problem.rows is None else problem.rows]
        self.area_ids: dict[tuple[int, str, int], int] = {}
        self._splits: dict[tuple[int, str], tuple[Ints, NDArray[np.int32]]] = {}
        self._base: dict[int, Ints] = {}
        self._proofs: dict[tuple[object, ...], Ints | None] = {}
        self.coupled: set[int] = {s for pair in problem.conflicts for s in pair}
        self.coupled |= {i for i, row in enumerate(problem.shapes) if row.cap is not None}
        self.rivals: dict[int, set[int]] = {}
        for a, b in problem.conflicts:
            self.rivals.setdefault(a, set()).add(b)
            self.rivals.setdefault(b, set()).add(a)

    # ---- node sets -------------------------------------------------------------------------------------------

    def area(self, parent: int, key: str, domain: int) -> int:
        """Return the nodes of `parent` in one domain of `key`."""
        handle = (parent, key, domain)
        if handle not in self.area_ids:
            nodes = self.areas[parent]
            self.area_ids[handle] = len(self.areas)
            self.areas.append(nodes[self.problem.domains[key][nodes] == domain])
        return self.area_ids[handle]

    def split(self, parent: int, key: str) -> tuple[Ints, NDArray[np.int32]]:
        """Return nodes of `parent` that carry the label, and their domain ids."""
        if (parent, key) not in self._splits:
            nodes = self.areas[parent]
            column = self.problem.domains.get(key)
            ids = np.full(len(nodes), -1, dtype=np.int32) if column is None else column[nodes]
            labelled = ids >= 0
            self._splits[parent, key] = (nodes, ids) if labelled.all() else (nodes[labelled], ids[labelled])
        return self._splits[parent, key]

    # ---- counting --------------------------------------------------------------------------------------------

    def base(self, shape: int) -> Ints:
        """Return (N,) slots before this search placed anything: an upper bound for the whole search."""
        if shape not in self._base:
            worked(1 + self.problem.node_count // 1_000)
            self._base[shape] = base_slots(self.problem, self.problem.shapes[shape])
        return self._base[shape]

    def slots(self, shape: int, nodes: Ints) -> Ints:
        """Return (M,) slots next to everything placed so far."""
        row = self.problem.shapes[shape]
        if not self.assignment:
            return self.base(shape)[nodes]
        slots = np.minimum(count_slots(row.request, self.free[:, nodes]), self.base(shape)[nodes])
        if shape in self.coupled:
            self._restrict(shape, nodes, slots)
        return slots

    def _restrict(self, shape: int, nodes: Ints, slots: Ints) -> None:
        """Apply caps and conflicts with pods that this search has placed."""
        own = np.zeros(self.problem.node_count, dtype=np.int64)
        barred = np.zeros(self.problem.node_count, dtype=bool)
        rivals = self.rivals.get(shape, set())
        for assign in self.assignment.values():
            for other, (where, counts) in assign.placed.items():
                if other == shape:
                    own[where] += counts
                elif other in rivals:
                    barred[where[counts > 0]] = True
        cap = self.problem.shapes[shape].cap
        if cap is not None:
            np.minimum(slots, np.maximum(cap[nodes] - own[nodes], 0), out=slots)
        slots[barred[nodes]] = 0

    # ---- placing ---------------------------------------------------------------------------------------------

    def assign(self, leaf: Leaf, area: int, counts: dict[int, int], *, repack: bool = True) -> bool:
        """Place `counts` pods of the leaf in the area, and repack pods of other leaves if needed."""
        shapes = tuple(s for s in counts if counts[s])
        nodes = self.areas[area]
        if len(shapes) == 1:
            shape = shapes[0]
            slots = self.slots(shape, nodes)
            if int(slots.sum()) >= counts[shape]:
                self._take_room(
                    Slot(leaf, area, shapes, counts, {shape: self._choose_nodes(shape, nodes, slots, counts[shape])})
                )
                return True
        else:
            placed = self._pack_beside(shapes, nodes, counts)
            if placed is not None:
                self._take_room(Slot(leaf, area, shapes, counts, placed))
                return True
        neighbours = self._neighbours(nodes)
        if not neighbours and len(shapes) == 1:
            return False  # counting is exact
        if not repack:
            self.budget.truncated = True
            return False
        return self._repack([*neighbours, Slot(leaf, area, shapes, counts, {})])

    def _choose_nodes(self, shape: int, nodes: Ints, slots: Ints, count: int) -> tuple[Ints, Ints]:
        """Return the nodes for `count` pods of a shape, and how many pods each gets."""
        row = self.problem.shapes[shape]
        if row.score is None and len(self.kinds[1]):
            best = choose_alike(self.free[:, nodes], self.kinds, self.rank[nodes], row.request, slots, count)
            if best is not None:
                return nodes[best[0]], best[1]
        room = np.flatnonzero(slots)
        rank = self.rank[nodes[room]]
        if row.score is not None:
            order = room[smallest(-row.score[nodes[room]], rank, count)]
        else:
            # The leftover is below R, so slots decide first.
            order = room[smallest(slots[room] * (len(self.inverse) + 1) + self._leftover(nodes[room]), rank, count)]
        chosen, counts = fill(slots, order, count)
        return nodes[chosen], counts

    def _leftover(self, nodes: Ints) -> Floats:
        """Return (M,) free capacity of a node as a share of all free capacity: ties go to the smallest share."""
        leftover: Floats = self.inverse @ self.free[:, nodes]
        return leftover

    def _item(self, shape: int, count: int, nodes: Ints, bound: Ints, shapes: Sequence[int]) -> Item:
        row = self.problem.shapes[shape]
        rivals = self.rivals.get(shape, set())
        score = None if row.score is None else row.score[nodes]
        beside = tuple(i for i, s in enumerate(shapes) if s in rivals) if rivals else ()
        return Item(row.request, count, bound, beside, score)

    def _pack_beside(
        self, shapes: tuple[int, ...], nodes: Ints, counts: dict[int, int]
    ) -> dict[int, tuple[Ints, Ints]] | None:
        bounds = []
        some = np.zeros(len(nodes), dtype=bool)
        for shape in shapes:
            worked(1 + len(nodes) // 250)
            bound = self.slots(shape, nodes)
            if int(bound.sum()) < counts[shape]:
                return None
            bounds.append(bound)
            some |= bound > 0
        useful = np.flatnonzero(some)
        if len(useful) > MOST_NODES_COMPARED:
            few = self._shortlist(shapes, nodes, counts, bounds)
            found = self._pack_on(few, shapes, nodes, counts, bounds) if len(few) <= MOST_NODES_COMPARED else None
            if found is not None:
                return found
        return self._pack_on(useful, shapes, nodes, counts, bounds)

    def _shortlist(self, shapes: tuple[int, ...], nodes: Ints, counts: dict[int, int], bounds: list[Ints]) -> Ints:
        """Return nodes to pack on: for each shape its tightest or best scored nodes.

        Shapes prefer the same nodes, so each shape gets as many nodes as there are pods of all shapes.
        """
        leftover = self._leftover(nodes)
        pods = min(sum(counts[shape] for shape in shapes), MOST_NODES_COMPARED // len(shapes))
        picks = []
        for shape, bound in zip(shapes, bounds, strict=True):
            worked(1 + len(nodes) // 250)
            room = np.flatnonzero(bound)
            score = self.problem.shapes[shape].score
            value = leftover[room] if score is None else -score[nodes[room]]
            picks.append(room[smallest(value, self.rank[nodes[room]], max(pods, counts[shape]))])
        return np.unique(np.concatenate(picks))

    def _pack_on(
        self, useful: Ints, shapes: tuple[int, ...], nodes: Ints, counts: dict[int, int], bounds: list[Ints]
    ) -> dict[int, tuple[Ints, Ints]] | None:
        nodes = nodes[useful]
        items = []
        for shape, bound in zip(shapes, bounds, strict=True):
            worked(1 + len(nodes) // 1_000)
            items.append(self._item(shape, counts[shape], nodes, bound[useful], shapes))
        free = self.free[:, nodes]
        demand = sum((item.request * item.count for item in items), np.zeros(free.shape[0]))
        if (demand > free.sum(axis=1)).any():
            return None
        placed = self._pack(make_area(free, self.kinds, self.rank[nodes]), items)
        if placed is None:
            return None
        found = {}
        for row, shape in zip(placed, shapes, strict=True):
            worked(1 + len(nodes) // 1_000)
            found[shape] = _sparse(nodes, row)
        return found

    def _pack(self, area: Area, items: list[Item]) -> Ints | None:
        """Return the best packing if all can be enumerated, else a good one. None is no proof."""
        if len(area.rank) <= MOST_NODES_COMPARED and items[0].score is None:
            try:
                return solve_best(area, items)
            except TooLarge:
                pass
        return pack(area, items, spend=self.budget.spend)

    def _neighbours(self, nodes: Ints) -> list[Slot]:
        """Return slots that share nodes with the area, directly or transitively."""
        touched = np.zeros(self.problem.node_count, dtype=bool)
        touched[nodes] = True
        found: dict[int, Slot] = {}
        grew = True
        while grew:
            grew = False
            for assign in self.assignment.values():
                if id(assign) not in found and touched[self.areas[assign.area]].any():
                    found[id(assign)] = assign
                    if not touched[self.areas[assign.area]].all():
                        touched[self.areas[assign.area]] = True
                        grew = True
        return list(found.values())

    def cluster(self, assign: Slot) -> list[Slot]:
        """Return the slot and all slots that must be packed together with it."""
        return self._neighbours(self.areas[assign.area])

    def _joint(self, assignment: list[Slot]) -> tuple[Ints, list[tuple[int, int]], list[Item]]:
        """Build one packing problem for all slots: an item per shape and area."""
        union = np.unique(np.concatenate([self.areas[assign.area] for assign in assignment]))
        wanted: dict[tuple[int, int], int] = {}
        for assign in assignment:
            for shape in assign.shapes:
                wanted[shape, assign.area] = wanted.get((shape, assign.area), 0) + assign.counts[shape]
        handles = list(wanted)
        bounds = []
        for shape, area in handles:
            bound = np.zeros(self.problem.node_count, dtype=np.int64)
            bound[self.areas[area]] = self.base(shape)[self.areas[area]]
            bounds.append(bound[union])
        useful = np.flatnonzero(np.any(bounds, axis=0))
        union = union[useful]
        items = []
        for (shape, area), bound in zip(handles, bounds, strict=True):
            rivals = self.rivals.get(shape, set())
            # A capped shape in two overlapping areas shares its cap; forbidding the overlap is safe.
            shared = self.problem.shapes[shape].cap is not None
            same_shape = [i for i, (s, a) in enumerate(handles) if shared and s == shape and a != area]
            self.budget.truncated |= bool(same_shape)
            numbers = (*(i for i, (s, _) in enumerate(handles) if s in rivals), *same_shape)
            row = self.problem.shapes[shape]
            score = None if row.score is None else row.score[union]
            items.append(Item(row.request, wanted[shape, area], bound[useful], numbers, score))
        return union, handles, items

    def _free_without(self, assignment: list[Slot], nodes: Ints) -> Floats:
        """Return (R, M) free capacity as if these slots were empty."""
        lookup = np.full(self.problem.node_count, -1, dtype=np.int64)
        lookup[nodes] = np.arange(len(nodes))
        free = self.free[:, nodes].copy()
        for assign in assignment:
            for shape, (where, counts) in assign.placed.items():
                at = lookup[where]
                request = self.problem.shapes[shape].request
                inside = at >= 0  # a slot lists a node once per shape, so plain addition is safe
                free[:, at[inside]] += request[:, None] * counts[inside]
        return free

    def _repack(self, assignment: list[Slot]) -> bool:
        union, handles, items = self._joint(assignment)
        free = self._free_without(assignment, union)
        demand = sum((item.request * item.count for item in items), np.zeros(free.shape[0]))
        if (demand > free.sum(axis=1)).any() or any(int(i.bound.sum()) < i.count for i in items):
            return False
        placed = self._solve(union, free, items, greedy=len(assignment) > 1)
        if placed is None:
            return False
        self._divide_packing(assignment, union, handles, placed)
        return True

    def _solve(self, union: Ints, free: Floats, items: list[Item], *, greedy: bool) -> Ints | None:
        task = (
            free.tobytes(),
            tuple((i.request.tobytes(), i.count, i.bound.tobytes(), i.rivals) for i in items),
        )
        if task in self._proofs:
            return self._proofs[task]
        area = make_area(free, self.kinds, self.rank[union])
        placed = pack(area, items, compare=False, spend=self.budget.spend) if greedy else None
        if placed is None:
            try:
                placed, spent = solve(area, items, self.budget.left)
                self.budget.spend(spent)
            except TooLarge:
                self.budget.truncated = True
                self.budget.spend(8)
        self._proofs[task] = placed
        return placed

    def _divide_packing(
        self, assignment: list[Slot], union: Ints, handles: list[tuple[int, int]], placed: Ints
    ) -> None:
        """Give every slot its part of a joint packing, first slot first."""
        left = {handle: placed[i].copy() for i, handle in enumerate(handles)}
        fresh: list[Slot] = []
        for assign in assignment:
            parts: dict[int, tuple[Ints, Ints]] = {}
            for shape in assign.shapes:
                pool = left[shape, assign.area]
                order = np.flatnonzero(pool)
                chosen, counts = fill(pool, order, assign.counts[shape])
                pool[chosen] -= counts
                parts[shape] = (union[chosen], counts)
            fresh.append(Slot(assign.leaf, assign.area, assign.shapes, assign.counts, parts))
        for assign in assignment:
            if id(assign.leaf) in self.assignment and self.assignment[id(assign.leaf)] is assign:
                self._release_room(assign)
        for assign in fresh:
            self._take_room(assign)

    def most(self, assignment: list[Slot], extra: dict[tuple[int, int], int], budget: int) -> None:
        """Grow slots by as many extra pods as an exact packing allows, each slot in turn.

        `extra`: (leaf id, shape) -> extra pods.
        """
        grown = []
        for assign in assignment:
            shapes = tuple(s for s, _ in assign.leaf.demand)
            counts = {s: assign.counts.get(s, 0) + extra.get((id(assign.leaf), s), 0) for s in shapes}
            grown.append(Slot(assign.leaf, assign.area, shapes, counts, {}))
        union, handles, items = self._joint(grown)
        free = self._free_without(assignment, union)
        least = np.zeros(len(handles), dtype=np.int64)
        alone = len(assignment) == 1  # then only the number of placed pods matters, not which pods make up the minimum
        for assign in assignment if not alone else ():
            for shape in assign.shapes:
                least[handles.index((shape, assign.area))] += assign.counts[shape]
        try:
            placed, spent = solve_most(make_area(free, self.kinds, self.rank[union]), items, least, budget)
            self.budget.used += spent
        except TooLarge:
            return
        if placed is None:
            return
        if int(placed.sum()) <= sum(sum(assign.counts.values()) for assign in assignment):
            return
        spare = {h: int(placed[i].sum()) - int(least[i]) for i, h in enumerate(handles)}
        final = []
        for old, new in zip(assignment, grown, strict=True):
            if alone:
                counts = {shape: spare[shape, new.area] for shape in new.shapes}
                final.append(Slot(old.leaf, old.area, new.shapes, counts, old.placed))
                continue
            counts = {}
            for shape in new.shapes:
                gain = min(new.counts[shape] - old.counts.get(shape, 0), spare[shape, new.area])
                spare[shape, new.area] -= gain
                counts[shape] = old.counts.get(shape, 0) + gain
            final.append(Slot(old.leaf, old.area, new.shapes, counts, old.placed))
        for old, new in zip(assignment, final, strict=True):
            self.assignment[id(old.leaf)] = new
        self._divide_packing(final, union, handles, placed)

    # ---- bookkeeping -----------------------------------------------------------------------------------------

    def _take_room(self, assign: Slot) -> None:
        for shape, (nodes, counts) in assign.placed.items():
            worked()
            self.free[:, nodes] -= self.problem.shapes[shape].request[:, None] * counts
        self.assignment[id(assign.leaf)] = assign

    def _release_room(self, assign: Slot) -> None:
        for shape, (nodes, counts) in assign.placed.items():
            self.free[:, nodes] += self.problem.shapes[shape].request[:, None] * counts
        del self.assignment[id(assign.leaf)]

    def mark(self) -> dict[int, Slot]:
        return dict(self.assignment)

    def rewind(self, mark: dict[int, Slot]) -> None:
        """Restore the slots of the mark."""
        for handle, assign in list(self.assignment.items()):
            if mark.get(handle) is not assign:
                self._release_room(assign)
        for handle, assign in mark.items():
            if handle not in self.assignment:
                self._take_room(assign)
        if list(self.assignment) != list(mark):
            self.assignment = dict(mark)

    def grow(self, assign: Slot, shape: int, count: int) -> int:
        """Add up to `count` pods of a shape to a slot, next to everything else. Return how many were added."""
        nodes = self.areas[assign.area]
        slots = self.slots(shape, nodes)
        fits = min(count, int(slots.sum()))
        if fits <= 0:
            return 0
        where, counts = self._choose_nodes(shape, nodes, slots, fits)
        old = assign.placed.get(shape)
        merged = (where, counts) if old is None else _merge(old, (where, counts))
        self._release_room(assign)
        self._take_room(
            Slot(
                assign.leaf,
                assign.area,
                assign.shapes if shape in assign.shapes else (*assign.shapes, shape),
                {**assign.counts, shape: assign.counts.get(shape, 0) + fits},
                {**assign.placed, shape: merged},
            )
        )
        return fits


def _sparse(nodes: Ints, counts: Ints) -> tuple[Ints, Ints]:
    used = np.flatnonzero(counts)
    return nodes[used], counts[used]


def _merge(a: tuple[Ints, Ints], b: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    nodes, inverse = np.unique(np.concatenate([a[0], b[0]]), return_inverse=True)
    counts = np.zeros(len(nodes), dtype=np.int64)
    np.add.at(counts, inverse, np.concatenate([a[1], b[1]]))
    return nodes, counts
