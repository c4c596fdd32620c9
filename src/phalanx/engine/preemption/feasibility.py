"""Test whether the group fits once given units are evicted, with the same placement search that schedules it later."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from phalanx.engine.placement.outcome import SearchOutcome
from phalanx.engine.placement.place import place
from phalanx.engine.placement.problem import Floats, Ints, Leaf, PlacementProblem, ShapeRow, base_slots
from phalanx.engine.preemption.cost import cheapest_first
from phalanx.engine.preemption.problem import PreemptionProblem
from phalanx.engine.slices import worked

UNITS_PER_STEP = 50  # units of a large cluster that are processed per step of work


class Feasibility:
    def __init__(self, problem: PreemptionProblem) -> None:
        self.problem = problem
        units = problem.units
        order = np.argsort(units.part_unit, kind="stable")
        self._order = order
        self._start = np.searchsorted(units.part_unit[order], np.arange(len(units) + 1))
        self.calls = 0
        # By shape: blocked nodes, start index of each node's blocking units, and these units.
        self._blockers: dict[int, tuple[Ints, Ints, Ints]] = {}
        by_shape: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
        for (shape, node), blocking in problem.blockers.items():
            if blocking:
                by_shape.setdefault(shape, []).append((node, blocking))
        for shape, entries in by_shape.items():
            counts = np.array([0, *(len(blocking) for _, blocking in entries)])
            self._blockers[shape] = (
                np.array([node for node, _ in entries]),
                np.cumsum(counts)[:-1],
                np.array([unit for _, blocking in entries for unit in blocking]),
            )

    def parts_of(self, unit: int) -> Ints:
        return self._order[self._start[unit] : self._start[unit + 1]]

    def without(self, evicted: Collection[int]) -> PlacementProblem:
        """Return the placement problem with these units evicted."""
        base, units = self.problem.placement, self.problem.units
        gone = np.zeros(len(units), dtype=bool)
        gone[list(evicted)] = True
        free: Floats = base.free.copy()
        parts = np.flatnonzero(gone[units.part_unit])
        if len(parts):
            for r in np.flatnonzero(units.part_request.any(axis=1)):
                free[r] += np.bincount(
                    units.part_node[parts], weights=units.part_request[r, parts], minlength=free.shape[1]
                )
        shapes = list(base.shapes)
        for shape, (nodes, starts, blocking) in self._blockers.items():
            mask = shapes[shape].mask.copy()
            mask[nodes[np.logical_or.reduceat(~gone[blocking], starts)]] = False
            shapes[shape] = replace(shapes[shape], mask=mask)
        return replace(base, free=free, shapes=[_without_slots(row) for row in shapes])

    def outcome(self, evicted: Collection[int], *, explained: bool = False) -> SearchOutcome:
        self.calls += 1
        worked(len(evicted) // UNITS_PER_STEP)
        return place(self.without(evicted), explained=explained)

    def fits(self, evicted: Collection[int]) -> bool:
        return self.outcome(evicted).placed

    # ---- reprieve unnecessary victims ----------------------------------------------------------------------

    def spare(self, evicted: frozenset[int]) -> frozenset[int]:
        """Reprieve victims in descending cost while the group still fits somewhere."""
        units = self.problem.units
        order = cheapest_first(units, evicted)[::-1]
        kept = set(evicted)
        quick = self._counted()
        while True:
            doubtful = quick.reprievable(kept) if quick is not None else order
            found = next((u for u in order if u in kept and u in doubtful and self.fits(kept - {u})), None)
            if quick is not None:
                if found is None:
                    return frozenset(kept)
                kept.discard(found)
                continue
            for unit in order:
                if unit in kept and self.fits(kept - {unit}):
                    kept.discard(unit)
            return frozenset(kept)

    def _counted(self) -> Counted | None:
        root = self.problem.placement.root
        if isinstance(root, Leaf) and len(root.demand) == 1 and not self.problem.blockers:
            return Counted(self, root)
        return None


class Counted:
    """For one leaf group of identical members: find all units to reprieve by counting slots per domain."""

    def __init__(self, fitting: Feasibility, leaf: Leaf) -> None:
        self.fitting = fitting
        self.leaf = leaf
        self.shape = leaf.demand[0][0]

    def reprievable(self, kept: set[int]) -> set[int]:
        units = self.fitting.problem.units
        after = self.fitting.without(kept)
        row = after.shapes[self.shape]
        slots = base_slots(after, row)
        n = len(slots)
        key = self.leaf.key
        domain = np.zeros(n, dtype=np.int64) if key is None else after.domains[key].astype(np.int64)
        if self.leaf.pinned >= 0:
            domain = np.where(domain == self.leaf.pinned, domain, -1)
        size = int(domain.max(initial=0)) + 1
        total = np.bincount(domain[domain >= 0], weights=slots[domain >= 0], minlength=size)
        need = self.leaf.need
        chosen = np.zeros(len(units), dtype=bool)
        chosen[list(kept)] = True
        parts = np.flatnonzero(chosen[units.part_unit])
        nodes = units.part_node[parts]
        back = np.full(len(parts), np.iinfo(np.int64).max)
        for r in np.flatnonzero(row.request):
            fit = (after.free[r, nodes] - units.part_request[r, parts]) / row.request[r]
            back = np.minimum(back, np.floor(fit).astype(np.int64))
        if row.cap is not None:
            back = np.minimum(back, row.cap[nodes])
        loss = np.where(row.mask[nodes] & (domain[nodes] >= 0), slots[nodes] - back.clip(min=0), 0)
        enough = int((total >= need).sum())
        found: set[int] = set()
        lost: dict[tuple[int, int], int] = {}
        for part, amount, node in zip(parts, loss, nodes, strict=True):
            if amount > 0:
                at = (int(units.part_unit[part]), int(domain[node]))
                lost[at] = lost.get(at, 0) + int(amount)
        domains_lost: dict[int, int] = {}
        for (unit, d), amount in lost.items():
            if total[d] >= need > total[d] - amount:
                domains_lost[unit] = domains_lost.get(unit, 0) + 1
        for unit in kept:
            if domains_lost.get(unit, 0) < enough:
                found.add(unit)
        return found


def _without_slots(row: ShapeRow) -> ShapeRow:
    return row if row.slots is None else replace(row, slots=None)
