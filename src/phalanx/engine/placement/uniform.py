"""Place the most common case directly: one PodGroup whose pods are all equal. Exact by counting."""

from __future__ import annotations

import numpy as np

from phalanx.engine.placement.exact_packing import choose_alike, other_pods
from phalanx.engine.placement.outcome import SearchOutcome, SearchVerdict, Share
from phalanx.engine.placement.pack import fill
from phalanx.engine.placement.problem import Ints, Leaf, PlacementProblem, ShapeRow, base_slots
from phalanx.engine.placement.residual_capacity import split_resources
from phalanx.engine.state.requests import is_device


def place_uniform(problem: PlacementProblem) -> SearchOutcome | None:
    """Return the outcome, or None if the problem is not of this kind."""
    leaf = problem.root
    if not isinstance(leaf, Leaf) or len(leaf.demand) != 1 or leaf.preferred is not None:
        return None
    number, total = leaf.demand[0]
    shape = problem.shapes[number]
    slots = base_slots(problem, shape)
    need = leaf.need
    domain = -1
    nodes: Ints | None = None
    if leaf.key is not None:
        column = problem.domains.get(leaf.key)
        domain = -1 if column is None else _domain(problem, leaf, shape, slots, need, total)
        if domain < 0:
            # The minimum is met by finished members: nothing has to fit.
            return (
                SearchOutcome(SearchVerdict.IMPOSSIBLE, 1)
                if need
                else SearchOutcome(SearchVerdict.PLACED, 1, satisfied={id(leaf)})
            )
        nodes = np.flatnonzero(column == domain)
        slots = slots[nodes]
    fits = int(slots.sum())
    if fits < need or total < need:
        return SearchOutcome(SearchVerdict.IMPOSSIBLE, 1)
    outcome = SearchOutcome(SearchVerdict.PLACED, 1, satisfied={id(leaf)})
    if leaf.key is not None:
        outcome.domains[id(leaf)] = (leaf.key, domain)
    if fits:
        chosen, counts = _nodes(problem, shape, slots, nodes, min(total, fits))
        outcome.shares.append(Share(leaf, number, chosen, counts))
    return outcome


def _domain(problem: PlacementProblem, leaf: Leaf, shape: ShapeRow, slots: Ints, need: int, total: int) -> int:
    """Choose the domain; -1 if none has room.

    Order: most members, smallest sufficient domain, fewest free devices that the pods do not request, busiest (so that
    empty domains stay empty), least spare of the requested resources, lowest id.
    """
    assert leaf.key is not None
    column = problem.domains[leaf.key]
    ids = np.where(column >= 0, column, 0)
    sums = np.bincount(ids, weights=np.where(column >= 0, slots, 0))
    if leaf.pinned >= 0:
        inside = leaf.pinned < len(sums) and bool((column == leaf.pinned).any())
        return leaf.pinned if inside and sums[leaf.pinned] >= need else -1
    fits = np.minimum(sums, total)
    most = fits.max(initial=0)
    if most < need or most <= 0:
        return -1
    good = np.flatnonzero(fits == most)
    if len(good) > 1:
        good = good[sums[good] == sums[good].min()]
    if len(good) > 1:
        labelled = np.flatnonzero(column >= 0)
        beside = problem.devices_beside(shape.request, column[labelled], labelled)
        good = good[beside[good] == beside[good].min()]
        busy = problem.utilization(column[labelled], labelled)
        good = good[busy[good] == busy[good].max()]
    if len(good) > 1:
        spare = np.zeros(len(sums))
        for r in np.flatnonzero(shape.request):
            spare += np.bincount(ids, weights=np.where(column >= 0, problem.free[r], 0)) / shape.request[r]
        good = good[spare[good] == spare[good].min()]
    return int(good[0])


def _nodes(
    problem: PlacementProblem, shape: ShapeRow, slots: Ints, nodes: Ints | None, count: int
) -> tuple[Ints, Ints]:
    """Choose nodes: highest score or tightest first, at most one node per pod.

    Where nodes have devices, choose those that leave the most residual capacity.
    """
    room = slots.nonzero()[0]
    if shape.score is None and any(map(is_device, problem.resources)):
        kinds = split_resources(problem.resources)
        free = problem.free if nodes is None else problem.free[:, nodes]
        rank = np.arange(problem.node_count) if problem.order is None else problem.order
        best = choose_alike(free, kinds, rank if nodes is None else rank[nodes], shape.request, slots, count)
        if best is not None:
            return (best[0] if nodes is None else nodes[best[0]]), best[1]
        others = room[~other_pods(free, kinds[1], shape.request)[room]]
        if int(slots[others].sum()) >= count:
            room = others
    if shape.score is None and problem.order is None:
        least = slots[room]
        tightest = int(least.min())
        equal = room[least == tightest]
        if len(equal) * tightest >= count:  # the tightest nodes are enough: take them in column order
            chosen, counts = fill(slots, equal[: -(-count // tightest)], count)
            return (chosen if nodes is None else nodes[chosen]), counts
    where = room if nodes is None else nodes[room]
    rank = where if problem.order is None else problem.order[where]
    first: Ints
    if shape.score is not None:
        score = shape.score[where]
        if count < len(room):
            edge = np.partition(score, len(score) - count)[len(score) - count]
            keep = np.flatnonzero(score >= edge)
            room, where, rank, score = room[keep], where[keep], rank[keep], score[keep]
        first = np.lexsort((rank, -score))
    else:
        key = slots[room] * problem.node_count + rank
        if count < len(room):
            first = np.argpartition(key, count - 1)[:count]
            first = first[np.argsort(key[first])]
        else:
            first = np.argsort(key)
    chosen, counts = fill(slots, room[first], count)
    return (chosen if nodes is None else nodes[chosen]), counts
