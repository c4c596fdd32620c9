"""NodeUnschedulable: cordoned nodes accept only pods that tolerate the unschedulable taint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from phalanx.base.well_known import UNSCHEDULABLE_TAINT
from phalanx.engine.framework import Bools, Depends, Finding, Handle, Rows, Traits
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.shapes import Shape
from phalanx.model.objects.cluster import Taint
from phalanx.model.tolerations import NO_SCHEDULE, tolerated

_TAINT = Taint(key=UNSCHEDULABLE_TAINT, effect=NO_SCHEDULE)


class NodeUnschedulable:
    name = "NodeUnschedulable"
    traits = Traits(depends=Depends.NODE, cordons=True)

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        pass

    def mask(self, shape: Shape, columns: Columns) -> Bools | None:
        if tolerated(shape.tolerations, _TAINT):
            return None
        return ~columns.unschedulable[: columns.n]

    def mask_row(self, shape: Shape, columns: Columns, row: int) -> bool:
        return not columns.unschedulable[row] or tolerated(shape.tolerations, _TAINT)

    def explain(self, shape: Shape, columns: Columns, rows: Rows) -> Sequence[Finding]:
        return [Finding(rows, "node(s) were unschedulable", unresolvable=True)]
