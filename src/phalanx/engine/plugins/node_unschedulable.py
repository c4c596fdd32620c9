"""NodeUnschedulable: cordoned nodes accept only pods that tolerate the unschedulable taint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from phalanx.engine.framework import Bools, Depends, Finding, Handle, Rows, Traits
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.shapes import Shape
from phalanx.model.tolerations import CORDON, tolerated


class NodeUnschedulable:
    name = "NodeUnschedulable"
    traits = Traits(depends=Depends.NODE, cordons=True)

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        pass

    def mask(self, shape: Shape, columns: Columns) -> Bools | None:
        if tolerated(shape.tolerations, CORDON):
            return None
        return ~columns.unschedulable[: columns.n]

    def mask_row(self, shape: Shape, columns: Columns, row: int) -> bool:
        return not columns.unschedulable[row] or tolerated(shape.tolerations, CORDON)

    def explain(self, shape: Shape, columns: Columns, rows: Rows) -> Sequence[Finding]:
        return [Finding(rows, "node(s) were unschedulable", unresolvable=True)]
