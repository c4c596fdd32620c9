"""NodeAffinity: nodeSelector, required and preferred node affinity, and the profile's addedAffinity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from phalanx.base.errors import ConfigProblem
from phalanx.engine.framework import Bools, Depends, Finding, Floats, Handle, Rows, Traits
from phalanx.engine.framework.adapters import ByMax
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.labels import integer
from phalanx.engine.state.node_terms import matching, selected
from phalanx.engine.state.shapes import Shape
from phalanx.model.objects.pod import NodeAffinity as Affinity
from phalanx.model.objects.pod import NodeSelectorRequirement, NodeSelectorTerm


class NodeAffinityPlugin:
    name = "NodeAffinity"
    traits = Traits(depends=Depends.NODE, default_weight=2)
    normaliser = ByMax()

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        self._added: Affinity | None = None
        added = args.get("addedAffinity")
        if added is not None:
            try:
                self._added = msgspec.convert(added, Affinity)
            except msgspec.ValidationError as problem:
                raise ConfigProblem("addedAffinity", str(problem)) from problem

    def mask(self, shape: Shape, columns: Columns) -> Bools | None:
        required = [each.required for each in (shape.node_affinity, self._added) if each is not None and each.required]
        if not shape.node_selector and not required:
            return None
        mask = selected(shape, columns)
        for selector in required:
            any_term = np.zeros(columns.n, dtype=np.bool_)
            for term in selector.node_selector_terms:
                any_term |= matching(term, columns)
            mask &= any_term
        return mask

    def mask_row(self, shape: Shape, columns: Columns, row: int) -> bool:
        node = columns.nodes[row]
        if node is None:
            return False
        labels, name = node.metadata.labels, node.metadata.name
        if any(labels.get(key) != value for key, value in shape.node_selector.items()):
            return False
        for each in (shape.node_affinity, self._added):
            if each is not None and each.required is not None:
                terms = each.required.node_selector_terms
                if not any(matches(term, labels, name) for term in terms):
                    return False
        return True

    def explain(self, shape: Shape, columns: Columns, rows: Rows) -> Sequence[Finding]:
        """Return the reasons; the profile's addedAffinity is checked first."""
        enforced = np.zeros(columns.n, dtype=np.bool_)
        if self._added is not None and self._added.required is not None:
            enforced[:] = True
            for term in self._added.required.node_selector_terms:
                enforced &= ~matching(term, columns)
        findings = [
            Finding(rows[enforced[rows]], "node(s) didn't match scheduler-enforced node affinity", unresolvable=True),
            Finding(rows[~enforced[rows]], "node(s) didn't match Pod's node affinity/selector", unresolvable=True),
        ]
        return [finding for finding in findings if len(finding.rows)]

    def scores(self, shape: Shape, columns: Columns) -> Floats | None:
        preferred = self._preferred(shape)
        if not preferred:
            return None
        scores = np.zeros(columns.n)
        for weight, term in preferred:
            scores[matching(term, columns)] += weight
        return scores

    def score_row(self, shape: Shape, columns: Columns, row: int) -> float:
        node = columns.nodes[row]
        if node is None:
            return 0.0
        labels, name = node.metadata.labels, node.metadata.name
        return float(sum(weight for weight, term in self._preferred(shape) if matches(term, labels, name)))

    def _preferred(self, shape: Shape) -> list[tuple[int, NodeSelectorTerm]]:
        return [
            (term.weight, term.preference)
            for each in (shape.node_affinity, self._added)
            if each is not None
            for term in each.preferred or ()
            if term.weight
        ]


def matches(term: NodeSelectorTerm, labels: Mapping[str, str], name: str) -> bool:
    """Apply the same rule to one node."""
    if not term.match_expressions and not term.match_fields:
        return False
    return all(_one_label(each, labels) for each in term.match_expressions or ()) and all(
        _one_field(each, name) for each in term.match_fields or ()
    )


def _one_label(requirement: NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key)
    values = requirement.values or []
    operator = requirement.operator
    if operator == "Exists":
        return value is not None
    if operator == "DoesNotExist":
        return value is None
    if operator == "In":
        return value is not None and value in values
    if operator == "NotIn":
        return value is None or value not in values
    if operator in ("Gt", "Lt") and len(values) == 1 and value is not None:
        actual, wanted = integer(value), integer(values[0])
        if actual is None or wanted is None:
            return False
        return actual > wanted if operator == "Gt" else actual < wanted
    return False


def _one_field(requirement: NodeSelectorRequirement, name: str) -> bool:
    if requirement.key != "metadata.name" or requirement.operator not in ("In", "NotIn"):
        return False
    return (name in (requirement.values or ())) == (requirement.operator == "In")
