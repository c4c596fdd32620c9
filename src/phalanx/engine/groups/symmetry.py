"""What the search for tied members must know about nodes and members: which it need not tell apart, which are open."""

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


def _understood(built: Built) -> bool:
    """Whether every rule that members can change is one of capacity, ports, affinity and their own spreading."""
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
    """(n,) rows with the same number give the same answers to all members, now and beside the same members."""
    columns = built.evaluations[0].columns
    n = columns.n
    if not _understood(built):
        return np.arange(n, dtype=np.int64)
    rids = sorted({rid for shape in built.shapes for rid, _ in shape.requests})
    facts: list[NDArray[np.generic]] = [columns.alive[:n], columns.taint_set[:n]]
    for rid in rids:
        facts += [columns.alloc[rid, :n], columns.used[rid, :n]]
    facts += [tracker.mask[:n] for evaluation in built.evaluations for _, tracker in evaluation.filters]
    facts += [ids for ids in (columns.label(key).ids[:n] for key in _keys(built)) if not _one_each(ids)]
    # Room that is promised to others is no longer the room of its likes.
    residents = [tuple(sorted(record.shape.id for record in columns.pods[row].values())) for row in range(n)]
    for row in built.reserved:
        residents[row] = (-1, row)
    numbers: dict[tuple[object, ...], int] = {}
    table = zip(residents, *(fact.tolist() for fact in facts), strict=True)
    return np.array([numbers.setdefault(fact, len(numbers)) for fact in table], dtype=np.int64)


def _keys(built: Built) -> list[str]:
    """Labels that some rule of the members or of their groups goes by."""
    keys = set(built.problem.domains)
    for shape in built.shapes:
        keys.update(constraint.topology_key for constraint in shape.spread)
        keys.update(term.key for term in _terms(shape))
    return sorted(keys)


def _one_each(ids: NDArray[np.integer]) -> bool:
    """Every node is a domain of its own, as with host names."""
    return bool((ids > 0).all()) and len(np.unique(ids)) == len(ids)


def _terms(shape: Shape) -> tuple[AffinityTerm, ...]:
    return tuple(term for term in terms_of_shape(shape) if term.kind in (REQUIRED, ANTI))


def detached(built: Built) -> frozenset[int]:
    """Ids of shapes for which the order does not matter: they want nobody's company, do not spread, and nobody among
    the members counts them for either. Others may still keep away from them: that holds in both directions."""
    if not _understood(built):
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
    """(n,) per shape: nodes that could take it if members sat where its ties want them; None: the ties rule nothing
    out as it is, so what counting says is the last word."""
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
    """Takes rows out of a mask whose room for the shape is promised to others."""
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
