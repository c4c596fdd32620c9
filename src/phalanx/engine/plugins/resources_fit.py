"""NodeResourcesFit: filter nodes by free resources and score them by least, most or ratio of allocated resources.

Scores are kube-scheduler's integers. They are computed in float64 with floor: exact while capacities stay below 2^46
(64 TiB), because a quotient of such integers never lies within rounding distance of the next whole number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import floor
from typing import Any

import numpy as np

from phalanx.base.errors import ConfigProblem
from phalanx.engine.framework import MAX_SCORE, Bools, Finding, Floats, Handle, Rows, Traits
from phalanx.engine.framework.config_args import resource_weights
from phalanx.engine.state.columns import CPU, MEMORY, PODS, Columns
from phalanx.engine.state.shapes import Shape

MANY_SHAPES = 4096  # cached shapes, with their requests of the scored resources

TOO_MANY_PODS = "Too many pods"
_STRATEGIES = ("LeastAllocated", "MostAllocated", "RequestedToCapacityRatio")


class NodeResourcesFit:
    name = "NodeResourcesFit"
    traits = Traits(room=True, counted=True)

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        strategy = args.get("scoringStrategy") or {}
        kind = strategy.get("type", "LeastAllocated")
        if kind not in _STRATEGIES:
            raise ConfigProblem("scoringStrategy.type", f"{kind!r} is none of {', '.join(_STRATEGIES)}")
        self.strategy = kind
        weights = resource_weights(strategy.get("resources"), "scoringStrategy.resources")
        self._weights = [(handle.columns.resource(name), float(weight)) for name, weight in weights]
        self._always = {handle.columns.resource(name) for name in ("cpu", "memory", "ephemeral-storage")}
        self._curve: Curve | None = None
        if kind == "RequestedToCapacityRatio":
            self._curve = Curve((strategy.get("requestedToCapacityRatio") or {}).get("shape"))
        ignored = set(args.get("ignoredResources") or ())
        groups = set(args.get("ignoredResourceGroups") or ())
        self._ignores: Callable[[str], bool] | None = None
        if ignored or groups:
            self._ignores = lambda name: "/" in name and (name in ignored or name.split("/")[0] in groups)
        self._of_shape: dict[Shape, list[tuple[int, float, float]]] = {}

    @property
    def strict(self) -> bool:
        """Return True if no resource is ignored."""
        return self._ignores is None

    # ---- filter

    def _requests(self, shape: Shape, columns: Columns) -> Sequence[tuple[int, float]]:
        if self._ignores is None:
            return shape.requests
        return [(rid, amount) for rid, amount in shape.requests if not self._ignores(columns.resource_names[rid])]

    def mask(self, shape: Shape, columns: Columns) -> Bools | None:
        return self.mask_rows(shape, columns, slice(0, columns.n))

    def mask_rows(self, shape: Shape, columns: Columns, rows: Rows | slice) -> Bools:
        mask = columns.alive[rows].copy()
        for rid, amount in self._requests(shape, columns):
            mask &= columns.used[rid, rows] + amount <= columns.alloc[rid, rows]
        return mask

    def mask_row(self, shape: Shape, columns: Columns, row: int) -> bool:
        alloc, used = columns.alloc_cell, columns.used_cell
        requests = shape.requests if self._ignores is None else self._requests(shape, columns)
        for rid, amount in requests:
            if used[rid][row] + amount > alloc[rid][row]:
                return False
        return bool(columns.alive[row])

    def explain(self, shape: Shape, columns: Columns, rows: Rows) -> Sequence[Finding]:
        findings: list[Finding] = []
        for rid, amount in self._requests(shape, columns):
            alloc = columns.alloc[rid, rows]
            short = columns.used[rid, rows] + amount > alloc
            if not short.any():
                continue
            if rid == PODS:
                findings.append(Finding(rows[short], TOO_MANY_PODS))
                continue
            reason = f"Insufficient {columns.resource_names[rid]}"
            never = short & (amount > alloc)
            if never.any():
                findings.append(Finding(rows[never], reason, unresolvable=True))
            if (short & ~never).any():
                findings.append(Finding(rows[short & ~never], reason))
        return findings

    # ---- score

    def _wanted(self, shape: Shape) -> list[tuple[int, float, float]]:
        """Return (resource, pod's request, weight); extended resources only if the pod requests them."""
        found = self._of_shape.get(shape)
        if found is None:
            if len(self._of_shape) > MANY_SHAPES:
                self._of_shape.clear()
            asked = dict(shape.requests)
            asked[CPU], asked[MEMORY] = shape.nonzero
            found = [
                (rid, asked.get(rid, 0.0), weight)
                for rid, weight in self._weights
                if asked.get(rid, 0.0) > 0 or rid in self._always
            ]
            self._of_shape[shape] = found
        return found

    def scores(self, shape: Shape, columns: Columns) -> Floats | None:
        return self.score_rows(shape, columns, slice(0, columns.n))

    def score_rows(self, shape: Shape, columns: Columns, rows: Rows | slice) -> Floats:
        n = len(columns.alive[rows])
        total, weights = np.zeros(n), np.zeros(n)
        for rid, amount, weight in self._wanted(shape):
            alloc = columns.alloc[rid, rows]
            used = columns.nonzero[rid, rows] if rid <= MEMORY else columns.used[rid, rows]
            there = alloc > 0
            score = self._score(used + amount, np.where(there, alloc, 1.0))
            if self._curve is not None:
                there = there & (score > 0)
            total += np.where(there, score * weight, 0.0)
            weights += np.where(there, weight, 0.0)
        result = np.divide(total, weights, out=np.zeros(n), where=weights > 0)
        return np.floor(result + 0.5) if self._curve is not None else np.floor(result)

    def _score(self, asked: Floats, alloc: Floats) -> Floats:
        if self._curve is not None:
            return self._curve.over(np.where(asked > alloc, MAX_SCORE, np.floor(asked * MAX_SCORE / alloc)))
        if self.strategy == "MostAllocated":
            return np.floor(np.minimum(asked, alloc) * MAX_SCORE / alloc)
        return np.where(asked > alloc, 0.0, np.floor((alloc - asked) * MAX_SCORE / alloc))

    def score_row(self, shape: Shape, columns: Columns, row: int) -> float:
        total = weights = 0.0
        nonzero, used, alloc_cell = columns.nonzero_cell, columns.used_cell, columns.alloc_cell
        for rid, amount, weight in self._wanted(shape):
            alloc = alloc_cell[rid][row]
            if alloc <= 0:
                continue
            asked = (nonzero[rid][row] if rid <= MEMORY else used[rid][row]) + amount
            if self._curve is not None:
                score = self._curve.at(float(MAX_SCORE) if asked > alloc else float(floor(asked * MAX_SCORE / alloc)))
                if score <= 0:
                    continue
            elif self.strategy == "MostAllocated":
                score = float(floor(min(asked, alloc) * MAX_SCORE / alloc))
            else:
                score = 0.0 if asked > alloc else float(floor((alloc - asked) * MAX_SCORE / alloc))
            total += score * weight
            weights += weight
        if weights == 0:
            return 0.0
        result = total / weights
        return float(floor(result + 0.5) if self._curve is not None else floor(result))


class Curve:
    """RequestedToCapacityRatio: interpolate linearly between points (utilisation 0..100, score 0..10)."""

    def __init__(self, points: Any) -> None:
        path = "scoringStrategy.requestedToCapacityRatio.shape"
        if not points:
            raise ConfigProblem(path, "at least one point must be specified")
        self.points: list[tuple[float, float]] = []
        for at, point in enumerate(points):
            use, score = point.get("utilization", 0), point.get("score", 0)
            if not 0 <= use <= 100:
                raise ConfigProblem(f"{path}[{at}].utilization", "must be between 0 and 100")
            if not 0 <= score <= 10:
                raise ConfigProblem(f"{path}[{at}].score", "must be between 0 and 10")
            if self.points and use <= self.points[-1][0]:
                raise ConfigProblem(f"{path}[{at}].utilization", "must be sorted in increasing order")
            self.points.append((float(use), float(score) * MAX_SCORE / 10))

    def at(self, use: float) -> float:
        points = self.points
        if use <= points[0][0]:
            return points[0][1]
        for (left, low), (right, high) in pairwise(points):
            if use <= right:
                return low + float(int((high - low) * (use - left) / (right - left)))
        return points[-1][1]

    def over(self, use: Floats) -> Floats:
        # Utilisation is a whole percentage, so a table of 101 entries covers all nodes.
        table = np.array([self.at(float(percent)) for percent in range(MAX_SCORE + 1)])
        return table[use.astype(np.int64)]
