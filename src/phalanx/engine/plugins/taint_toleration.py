"""TaintToleration: evaluate each distinct set of taints once (a cluster has few) and apply the result to its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from phalanx.engine.framework import Bools, Depends, Finding, Floats, Handle, Rows, Traits
from phalanx.engine.framework.adapters import ByMax
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.shapes import Shape
from phalanx.model.objects.cluster import Taint
from phalanx.model.tolerations import PREFER_NO_SCHEDULE, tolerated, untolerated


class TaintToleration:
    name = "TaintToleration"
    traits = Traits(depends=Depends.NODE, default_weight=3, by_taints=True)
    normaliser = ByMax(reverse=True)

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        pass

    def mask(self, shape: Shape, columns: Columns) -> Bools | None:
        verdicts = [untolerated(shape.tolerations, taints) is None for taints in columns.taint_sets]
        return np.array(verdicts, dtype=np.bool_)[columns.taint_set[: columns.n]]

    def mask_row(self, shape: Shape, columns: Columns, row: int) -> bool:
        return untolerated(shape.tolerations, columns.taint_sets[columns.taint_set[row]]) is None

    def explain(self, shape: Shape, columns: Columns, rows: Rows) -> Sequence[Finding]:
        return [Finding(rows, "node(s) had untolerated taint(s)", unresolvable=True)]

    def scores(self, shape: Shape, columns: Columns) -> Floats | None:
        counts = [_soft(shape, taints) for taints in columns.taint_sets]
        return np.array(counts, dtype=np.float64)[columns.taint_set[: columns.n]]

    def score_row(self, shape: Shape, columns: Columns, row: int) -> float:
        return float(_soft(shape, columns.taint_sets[columns.taint_set[row]]))


def _soft(shape: Shape, taints: tuple[Taint, ...]) -> int:
    """Count the PreferNoSchedule taints that the pod does not tolerate.

    Only tolerations for that effect, or for all effects, count.
    """
    return sum(taint.effect == PREFER_NO_SCHEDULE and not tolerated(shape.tolerations, taint) for taint in taints)
