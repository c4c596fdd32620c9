"""Topology spread constraints of a shape, and the rows and pods that they count."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from phalanx.engine.plugins.pod_index import LabelClass
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.node_terms import matching
from phalanx.engine.state.objects import Objects
from phalanx.engine.state.pod_rules import SpreadConstraint, matcher_of, spread_constraint
from phalanx.engine.state.shapes import Shape
from phalanx.model.objects import ReplicaSet, ReplicationController, StatefulSet
from phalanx.model.objects.pod import TopologySpreadConstraint
from phalanx.model.selectors import LabelMatcher, Requirement
from phalanx.model.tolerations import untolerated

Bools = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]


def counting(constraints: Sequence[SpreadConstraint], namespace: str, pods: LabelClass) -> tuple[int, ...] | None:
    """Return the numbers of the constraints that count pods of a class; None: no constraint does."""
    found = tuple(i for i, constraint in enumerate(constraints) if constraint.counts(namespace, pods))
    return found or None


def one_matcher(constraints: Sequence[SpreadConstraint]) -> LabelMatcher | None:
    """Return the selector if all constraints have the same, else None."""
    found = {constraint.matcher for constraint in constraints}
    return found.pop() if len(found) == 1 else None


def default_constraints(
    shape: Shape, defaults: Iterable[TopologySpreadConstraint], action: str, objects: Objects
) -> tuple[SpreadConstraint, ...]:
    """Return the profile's default constraints with the selector of the pod's services and controller, if any."""
    wanted = [c for c in defaults if c.when_unsatisfiable == action]
    if not wanted:
        return ()
    matcher = default_matcher(shape, objects)
    return () if matcher.everything else tuple(spread_constraint(c, matcher) for c in wanted)


def default_matcher(shape: Shape, objects: Objects) -> LabelMatcher:
    labels: dict[str, str] = {}
    for service in objects.services_of(shape.namespace, shape.labels):
        labels.update(service.spec.selector or {})
    kind, name = shape.owner
    if kind == "ReplicationController":
        controller = objects.get(ReplicationController, shape.namespace, name)
        labels.update((controller.spec.selector if controller is not None else None) or {})
    requirements = [Requirement(key, "In", (value,)) for key, value in labels.items()]
    owner: ReplicaSet | StatefulSet | None = None
    if kind == "ReplicaSet":
        owner = objects.get(ReplicaSet, shape.namespace, name)
    elif kind == "StatefulSet":
        owner = objects.get(StatefulSet, shape.namespace, name)
    if owner is not None:
        requirements += matcher_of(owner.spec.selector).requirements
    return LabelMatcher(tuple(requirements))


def with_all_keys(constraints: Sequence[SpreadConstraint], columns: Columns) -> Bools:
    """Return (capacity,) the rows that have the label of every constraint."""
    mask: Bools = np.ones(columns.capacity, dtype=np.bool_)
    for constraint in constraints:
        mask &= columns.label(constraint.key).ids > 0
    return mask


class Inclusion:
    """Find the rows that count for one shape (nodeAffinityPolicy, nodeTaintsPolicy)."""

    __slots__ = ("_affinity", "_columns", "_shape", "_taints")

    def __init__(self, shape: Shape, columns: Columns) -> None:
        self._shape = shape
        self._columns = columns
        self._affinity: Bools | None = None
        self._taints: Bools | None = None

    def mask(self, constraint: SpreadConstraint) -> Bools | None:
        """Return the (capacity,) mask; None: every row. The mask is computed once and is read-only."""
        masks = []
        if constraint.honor_affinity and self.has_affinity:
            if self._affinity is None:
                self._affinity = self._affinity_mask()
            masks.append(self._affinity)
        if constraint.honor_taints:
            if self._taints is None:
                table = [untolerated(self._shape.tolerations, taints) is None for taints in self._columns.taint_sets]
                self._taints = np.array(table, dtype=np.bool_)[self._columns.taint_set]
            masks.append(self._taints)
        if not masks:
            return None
        return masks[0] if len(masks) == 1 else masks[0] & masks[1]

    @property
    def has_affinity(self) -> bool:
        affinity = self._shape.node_affinity
        return bool(self._shape.node_selector) or (affinity is not None and affinity.required is not None)

    def _affinity_mask(self) -> Bools:
        columns, shape = self._columns, self._shape
        mask: Bools = columns.alive.copy()
        for key, value in shape.node_selector.items():
            column = columns.label(key)
            mask &= column.ids == column.id_of(value)
        required = shape.node_affinity.required if shape.node_affinity is not None else None
        if required is not None:
            found: Bools = np.zeros(columns.capacity, dtype=np.bool_)
            for term in required.node_selector_terms:
                found[: columns.n] |= matching(term, columns)
            mask &= found
        return mask

    def watched(self, constraints: Iterable[SpreadConstraint]) -> bool:
        """Return True if a change of node labels or taints can change the masks."""
        return any((c.honor_affinity and self.has_affinity) or c.honor_taints for c in constraints)
