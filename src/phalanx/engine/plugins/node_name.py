"""NodeName: a pod that names its node fits no other.

The engine counts such a pod on its node and never queues it, so queued shapes name no node. The filter exists for
profiles that list it, and for callers that evaluate a shape of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from phalanx.engine.framework import Bools, Depends, Finding, Handle, Rows, Traits
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.shapes import Shape


class NodeName:
    name = "NodeName"
    traits = Traits(depends=Depends.NODE)

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        pass

    def mask(self, shape: Shape, columns: Columns) -> Bools | None:
        wanted = shape.pod.spec.node_name
        if not wanted:
            return None
        mask = np.zeros(columns.n, dtype=np.bool_)
        row = columns.row_of.get(wanted, -1)
        if row >= 0:
            mask[row] = True
        return mask

    def explain(self, shape: Shape, columns: Columns, rows: Rows) -> Sequence[Finding]:
        return [Finding(rows, "node(s) didn't match the requested node name", unresolvable=True)]
