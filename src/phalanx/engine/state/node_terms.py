"""Match the terms of node affinity with all nodes at once, over the label columns."""

from __future__ import annotations

import numpy as np

from phalanx.engine.state.columns import Bools, Columns
from phalanx.engine.state.labels import integer
from phalanx.engine.state.shapes import Shape
from phalanx.model.objects.pod import NodeSelectorRequirement, NodeSelectorTerm


def selected(shape: Shape, columns: Columns) -> Bools:
    """Return (n,) the rows with all labels of the node selector of a shape."""
    mask = columns.alive[: columns.n].copy()
    for key, value in shape.node_selector.items():
        column = columns.label(key)
        mask &= column.ids[: columns.n] == column.id_of(value)
    return mask


def matching(term: NodeSelectorTerm, columns: Columns) -> Bools:
    """Return (n,) the rows that a term matches; a term without expressions and fields matches none."""
    n = columns.n
    if not term.match_expressions and not term.match_fields:
        return np.zeros(n, dtype=np.bool_)
    mask = columns.alive[:n].copy()
    for expression in term.match_expressions or ():
        mask &= by_label(expression, columns)
    for field in term.match_fields or ():
        mask &= _by_field(field, columns)
    return mask


def by_label(requirement: NodeSelectorRequirement, columns: Columns) -> Bools:
    """Return (n,) the rows whose label meets one expression; free rows count as nodes without labels."""
    column = columns.label(requirement.key)
    ids = column.ids[: columns.n]
    operator = requirement.operator
    values = requirement.values or []
    if operator == "Exists":
        return np.not_equal(ids, 0)
    if operator == "DoesNotExist":
        return np.equal(ids, 0)
    if operator in ("In", "NotIn"):
        by_id = np.zeros(column.size, dtype=np.bool_)
        for value in values:
            value_id = column.id_of(value)
            if value_id > 0:
                by_id[value_id] = True
        inside = by_id[ids]
        return inside if operator == "In" else ~inside
    if operator in ("Gt", "Lt") and len(values) == 1:
        wanted = integer(values[0])
        numbers = column.numbers()[ids]
        if wanted is not None:
            return numbers > wanted if operator == "Gt" else numbers < wanted
    return np.zeros(columns.n, dtype=np.bool_)  # an unknown operator matches nothing


def _by_field(requirement: NodeSelectorRequirement, columns: Columns) -> Bools:
    inside = np.zeros(columns.n, dtype=np.bool_)
    if requirement.key != "metadata.name" or requirement.operator not in ("In", "NotIn"):
        return inside
    for value in requirement.values or ():
        row = columns.row_of.get(value, -1)
        if row >= 0:
            inside[row] = True
    return inside if requirement.operator == "In" else ~inside
