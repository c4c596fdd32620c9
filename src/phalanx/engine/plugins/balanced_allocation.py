"""NodeResourcesBalancedAllocation: prefer nodes on which the pod makes the use of resources more even."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any

import numpy as np

from phalanx.engine.framework import Floats, Handle, Rows
from phalanx.engine.framework.config_args import resource_weights
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.shapes import Shape

MANY_SHAPES = 4096  # cached shapes, with their requests of the scored resources


class NodeResourcesBalancedAllocation:
    name = "NodeResourcesBalancedAllocation"

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        weights = resource_weights(args.get("resources"), "resources")
        self._rids = [handle.columns.resource(name) for name, _ in weights]
        self._always = {handle.columns.resource(name) for name in ("cpu", "memory", "ephemeral-storage")}
        self._of_shape: dict[Shape, list[tuple[int, float]] | None] = {}

    def _wanted(self, shape: Shape) -> list[tuple[int, float]] | None:
        """Return (resource, pod's request); extended resources only if the pod requests them. None: best effort."""
        if shape not in self._of_shape:
            if len(self._of_shape) > MANY_SHAPES:
                self._of_shape.clear()
            asked = dict(shape.requests)
            pairs = [(rid, asked.get(rid, 0.0)) for rid in self._rids if rid in asked or rid in self._always]
            self._of_shape[shape] = pairs if any(amount for _, amount in pairs) else None
        return self._of_shape[shape]

    def scores(self, shape: Shape, columns: Columns) -> Floats | None:
        if self._wanted(shape) is None:
            return None
        return self.score_rows(shape, columns, slice(0, columns.n))

    def score_rows(self, shape: Shape, columns: Columns, rows: Rows | slice) -> Floats:
        n = len(columns.alive[rows])
        wanted = self._wanted(shape) or []
        before = np.zeros((len(wanted), n))
        after = np.zeros((len(wanted), n))
        there = np.zeros((len(wanted), n), dtype=np.bool_)
        for at, (rid, amount) in enumerate(wanted):
            alloc, used = columns.alloc[rid, rows], columns.used[rid, rows]
            there[at] = alloc > 0
            np.divide(used, alloc, out=before[at], where=there[at])
            np.divide(used + amount, alloc, out=after[at], where=there[at])
        np.minimum(before, 1.0, out=before)
        np.minimum(after, 1.0, out=after)
        change = _evenness(after, there) - _evenness(before, there)
        scores: Floats = 50.0 + np.trunc((50.0 + change) / 2.0)
        return scores

    def score_row(self, shape: Shape, columns: Columns, row: int) -> float:
        wanted = self._wanted(shape)
        if wanted is None:
            return 0.0
        before, after = [], []
        for rid, amount in wanted:
            alloc = columns.alloc_cell[rid][row]
            if alloc > 0:
                used = columns.used_cell[rid][row]
                fraction = used / alloc
                before.append(fraction if fraction < 1.0 else 1.0)
                fraction = (used + amount) / alloc
                after.append(fraction if fraction < 1.0 else 1.0)
        return float(50 + int((50 + _even(after) - _even(before)) / 2))


def _even(fractions: list[float]) -> int:
    if len(fractions) == 2:
        std = abs((fractions[0] - fractions[1]) / 2)
    elif len(fractions) > 2:
        mean = sum(fractions) / len(fractions)
        total = 0.0
        for fraction in fractions:
            total += (fraction - mean) * (fraction - mean)
        std = sqrt(total / len(fractions))
    else:
        std = 0.0
    return int((1 - std) * 100)


def _evenness(fractions: Floats, there: np.ndarray[Any, np.dtype[np.bool_]]) -> Floats:
    """Compute the score over rows in the same order of operations, so that both functions agree to the last bit."""
    count = there.sum(axis=0)
    if len(fractions) == 2:
        std = np.where(count == 2, np.abs((fractions[0] - fractions[1]) / 2), 0.0)
    elif len(fractions) < 2:
        std = np.zeros(fractions.shape[1])
    else:
        total = np.zeros(fractions.shape[1])
        for at in range(len(fractions)):
            total += np.where(there[at], fractions[at], 0.0)
        mean = np.divide(total, count, out=np.zeros_like(total), where=count > 0)
        squares = np.zeros_like(total)
        for at in range(len(fractions)):
            squares += np.where(there[at], (fractions[at] - mean) * (fractions[at] - mean), 0.0)
        std = np.sqrt(np.divide(squares, count, out=np.zeros_like(total), where=count > 0))
        two = count == 2
        if two.any():
            std[two] = _pair_std(fractions[:, two], there[:, two])
        std[count < 2] = 0.0
    result: Floats = np.trunc((1 - std) * 100)
    return result


def _pair_std(fractions: Floats, there: np.ndarray[Any, np.dtype[np.bool_]]) -> Floats:
    first = np.argmax(there, axis=0)
    last = len(there) - 1 - np.argmax(there[::-1], axis=0)
    columns = np.arange(fractions.shape[1])
    result: Floats = np.abs((fractions[first, columns] - fractions[last, columns]) / 2)
    return result
