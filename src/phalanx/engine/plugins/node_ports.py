"""NodePorts: a host port can be used once per address and protocol on a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from phalanx.engine.framework import Bools, Finding, Handle, Rows, Traits
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.shapes import Shape


class NodePorts:
    name = "NodePorts"
    traits = Traits(counted=True)

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        pass

    def mask(self, shape: Shape, columns: Columns) -> Bools | None:
        if not shape.host_ports:
            return None
        mask = np.ones(columns.n, dtype=np.bool_)
        taken = columns.ports.conflicts(shape.host_ports)
        if taken:
            mask[list(taken)] = False
        return mask

    def mask_row(self, shape: Shape, columns: Columns, row: int) -> bool:
        return not columns.ports.conflict(row, shape.host_ports)

    def explain(self, shape: Shape, columns: Columns, rows: Rows) -> Sequence[Finding]:
        return [Finding(rows, "node(s) didn't have free ports for the requested pod ports")]
