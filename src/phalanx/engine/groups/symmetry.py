"""Find symmetric nodes, members without mutual constraints, and open nodes, for the backtracking search."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from phalanx.engine.framework import Depends
from phalanx.engine.framework.adapters import RowFilter
from phalanx.engine.framework.traits import traits_of
from phalanx.engine.groups.build import Built
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.pod_rules import (
    ANTI,
    HARD,
    REQUIRED,
    AffinityTerm,
    PodsOfShape,
    own_constraints,
    terms_of_shape,
)
from phalanx.engine.state.shapes import Shape


def _rules_are_countable(built: Built) -> bool:
    """Return whether all rules that members affect are capacity, ports, affinity or their own spreading."""
    for shape, evaluation in zip(built.shapes, built.evaluations, strict=True):
        for plugin, tracker in evaluation.filters:
            if isinstance(tracker, RowFilter):
                known = traits_of(plugin).counted or not tracker.depends & Depends.USAGE
            else:
                known = traits_of(plugin).by_terms(shape)
            if not known:
                return False
    return True


def symmetry(built: Built) -> NDArray[np.int64]:
    """Return (n,) class numbers: rows of one class give equal filter results, now and with equal members placed."""
    columns = built.evaluations[0].columns
    n = columns.n
    if not _rules_are_countable(built):
        return np.arange(n, dtype=np.int64)
    rids = sorted({rid for shape in built.shapes for rid, _ in shape.requests})
    facts: list[NDArray[np.generic]] = [columns.alive[:n], columns.taint_set[:n]]
    for rid in rids:
        facts += [columns.alloc[rid, :n], columns.used[rid, :n]]
    facts += [tracker.mask[:n] for evaluation in built.evaluations for _, tracker in evaluation.filters]
    facts += [ids for ids in (columns.label(key).ids[:n] for key in _keys(built)) if not _one_each(ids)]
    # A row with reservations is not symmetric to any other row.
    pods_of_row = [tuple(sorted(record.shape.id for record in columns.pods[row].values())) for row in range(n)]
    for row in built.reserved:
        pods_of_row[row] = (-1, row)
    numbers: dict[tuple[object, ...], int] = {}
    table = zip(pods_of_row, *(fact.tolist() for fact in facts), strict=True)
    return np.array([numbers.setdefault(fact, len(numbers)) for fact in table], dtype=np.int64)


def _keys(built: Built) -> list[str]:
    """Return the label keys that rules of the members or of their groups use."""
    keys = set(built.problem.domains)
    for shape in built.shapes:
        keys.update(constraint.topology_key for constraint in shape.spread)
        keys.update(term.key for term in _terms(shape))
    return sorted(keys)


def _one_each(ids: NDArray[np.integer]) -> bool:
    """Return whether every node is a domain of its own, as with host names."""
    return bool((ids > 0).all()) and len(np.unique(ids)) == len(ids)


def _terms(shape: Shape) -> tuple[AffinityTerm, ...]:
    return tuple(term for term in terms_of_shape(shape) if term.kind in (REQUIRED, ANTI))


def detached(built: Built) -> frozenset[int]:
    """Return ids of shapes whose placement order does not matter.

    Such a shape has no required affinity and no hard spreading, and no member's affinity or spreading selects it.
    Anti-affinity of other members may select it: anti-affinity holds in both directions.
    """
    if not _rules_are_countable(built):
        return frozenset()
    objects = built.evaluations[0].objects
    near = [term for shape in built.shapes for term in _terms(shape) if term.kind == REQUIRED]
    counted = [(shape.namespace, rule) for shape in built.shapes for rule in own_constraints(shape, HARD)]
    found = set()
    for shape in built.shapes:
        pods = PodsOfShape(shape)
        tied = (
            any(term.kind == REQUIRED for term in _terms(shape))
            or bool(own_constraints(shape, HARD))
            or any(term.selects(shape.namespace, shape.labels, objects) for term in near)
            or any(rule.counts(namespace, pods) for namespace, rule in counted)
        )
        if not tied:
            found.add(shape.id)
    return frozenset(found)


def open_masks(built: Built, columns: Columns) -> list[NDArray[np.bool_]] | None:
    """Return (n,) per shape: nodes that are feasible if other members satisfy its affinity and spreading.

    None: these rules reject no node, so the result of counting is final.
    """
    n = columns.n
    masks = []
    wider = False
    for row, evaluation in zip(built.problem.shapes, built.evaluations, strict=True):
        if evaluation.pre_filter() is not None:
            masks.append(row.mask)
            continue
        mask = _all((tracker.mask[:n] for plugin, tracker in evaluation.filters if not traits_of(plugin).ties), columns)
        wider = wider or bool((mask & ~row.mask).any())
        masks.append(mask)
    return masks if wider else None


def excluding_reservations(built: Built, columns: Columns, shape: Shape, inside: NDArray[np.bool_]) -> None:
    """Clear rows of a mask whose room for the shape is reserved for other pods."""
    for row, held in built.reserved.items():
        if inside[row] and any(
            columns.alloc[rid, row] - columns.used[rid, row] - held.get(rid, 0.0) < amount
            for rid, amount in shape.requests
        ):
            inside[row] = False


def _all(masks: Iterable[NDArray[np.bool_]], columns: Columns) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = columns.alive[: columns.n].copy()
    for mask in masks:
        found &= mask
    return found
