"""Find the cheapest evictions that make room for members on a set of nodes, by dynamic programming over the nodes."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from phalanx.engine.placement.exact_packing import strides_of
from phalanx.engine.placement.problem import Bools, Floats, Ints
from phalanx.engine.preemption.node_options import BranchState, NodeOptions, TooManySubsets
from phalanx.engine.slices import worked

MAX_STATES = 20_000


class CoverItem(msgspec.Struct, frozen=True):
    """Members of one shape that may be placed on some of the nodes of a Contest."""

    shape: int
    most: int
    inside: Bools | None = None  # (M,) mask of the nodes; None: all nodes


class Contest(msgspec.Struct, frozen=True, eq=False):
    """Groups with overlapping node sets, whose members compete for the same resources."""

    nodes: Ints  # (M,)
    items: tuple[CoverItem, ...]
    claims: tuple[tuple[tuple[int, ...], int], ...]  # (items, total number of their members)
    rivals: frozenset[tuple[int, int]] = frozenset()  # items (a < b) that must not share a node


class Cover(msgspec.Struct, frozen=True, eq=False):
    price: float
    counts: Ints  # (I, M) members per item and node


def cover(freeing: NodeOptions, cluster: Contest, now: BranchState) -> Cover | None:
    """Return the cheapest cover; None if it is impossible with everything evicted. May raise TooManySubsets."""
    if len(cluster.items) == 1:
        return _one_kind(freeing, cluster, now)
    return _many_kinds(freeing, cluster, now)


def _one_kind(freeing: NodeOptions, cluster: Contest, now: BranchState) -> Cover | None:
    item, need = cluster.items[0], cluster.claims[0][1]
    nodes = cluster.nodes
    table = freeing.table(item.shape, nodes, min(need, _deepest(freeing, item.shape, nodes, now)), now)
    counts = np.zeros((1, len(nodes)), dtype=np.int64)
    finite = np.isfinite(table)
    if int(finite[:, 1:].sum()) < need:
        return None
    steps = np.diff(np.where(finite, table, 0.0), axis=1)
    steps[~finite[:, 1:]] = np.inf
    if table.shape[1] <= 2 or bool((np.diff(np.where(finite[:, 1:], steps, 1e300), axis=1) >= -1e-9).all()):
        # Each further member costs at least as much as the one before, so the cheapest steps are optimal.
        order = np.argsort(steps, axis=None, kind="stable")[:need]
        np.add.at(counts[0], order // steps.shape[1], 1)
        return Cover(float(steps.flat[order].sum()), counts)
    keep = _useful(table, need)
    best = np.full(need + 1, np.inf)
    best[0] = 0.0
    depth = table.shape[1] - 1
    choices = np.zeros((len(keep), need + 1), dtype=np.int32)
    for at, node in enumerate(keep):
        padded = np.concatenate([np.full(depth, np.inf), best])
        total = (sliding_window_view(padded, depth + 1) + table[node, ::-1])[
            :, ::-1
        ]  # [j, k] = best[j - k] + price of k
        choices[at] = total.argmin(axis=1)
        best = total[np.arange(need + 1), choices[at]]
    if not np.isfinite(best[need]):
        return None
    left = need
    for at in range(len(keep) - 1, -1, -1):
        k = int(choices[at, left])
        counts[0, keep[at]] = k
        left -= k
    return Cover(float(best[need]), counts)


def _deepest(freeing: NodeOptions, shape: int, nodes: Ints, now: BranchState) -> int:
    """Return the most members that any of these nodes can hold with everything evictable evicted."""
    row = freeing.problem.placement.shapes[shape]
    inside = nodes[row.mask[nodes]]
    if not len(inside):
        return 0
    most: Ints | None = None
    room = freeing.everything()
    for r in np.flatnonzero(row.request):
        fit = (room[r, inside] / row.request[r]).astype(np.int64)
        most = fit if most is None else np.minimum(most, fit)
    if most is None:
        return 1 << 20
    if row.cap is not None:
        most = np.minimum(most, row.cap[inside])
    return max(0, int(most.max()))


def _useful(table: Floats, need: int) -> Ints:
    """Return nodes that are sufficient for some cheapest solution.

    For every number of members per node, only the `need` cheapest nodes matter: a solution uses at most that many, and
    any other node can be exchanged for an unused cheaper one.
    """
    if len(table) <= need:
        return np.arange(len(table))
    keep = np.zeros(len(table), dtype=bool)
    for k in range(1, table.shape[1]):
        order = np.argsort(table[:, k], kind="stable")[: max(1, need)]
        keep[order[np.isfinite(table[order, k])]] = True
    return np.flatnonzero(keep)


def _many_kinds(freeing: NodeOptions, cluster: Contest, now: BranchState) -> Cover | None:
    dims = tuple(item.most + 1 for item in cluster.items)
    states = int(np.prod(dims, dtype=np.float64))
    if states > MAX_STATES:
        raise TooManySubsets
    strides = strides_of(dims)
    axes = np.indices(dims).reshape(len(dims), -1)  # (I, T)
    best = np.full(states, np.inf)
    best[0] = 0.0
    shapes = tuple(item.shape for item in cluster.items)
    masks = [freeing.problem.placement.shapes[s].mask for s in shapes]
    trail: list[tuple[int, Ints, Ints]] = []  # (node position, choice per state, options)
    sources: dict[bytes, Ints] = {}
    for at, node in enumerate(cluster.nodes):
        most = tuple(
            item.most if masks[i][node] and (item.inside is None or item.inside[at]) else 0
            for i, item in enumerate(cluster.items)
        )
        if not any(most):
            continue
        worked(20 + states // 100)
        options, price = freeing.options(int(node), shapes, most, cluster.rivals, now)
        if len(options) == 1 and not options[0].any():
            continue
        handle = options.tobytes()
        if handle not in sources:
            before = np.maximum(axes[None, :, :] - options[:, :, None], 0)
            sources[handle] = np.tensordot(before, strides, axes=([1], [0]))  # (P, T)
        total = best[sources[handle]] + price[:, None]
        if options[0].any():  # placing no member on the node is always an option
            total = np.vstack([best[None, :], total])
            options = np.vstack([np.zeros((1, len(dims)), dtype=np.int64), options])
        choice = total.argmin(axis=0)
        best = total[choice, np.arange(states)]
        trail.append((at, choice, options))
    final = np.ones(states, dtype=bool)
    for items, need in cluster.claims:
        final &= axes[list(items)].sum(axis=0) >= need
    value = np.where(final, best, np.inf)
    state = int(value.argmin())
    if not np.isfinite(value[state]):
        return None
    price_total = float(value[state])
    counts = np.zeros((len(dims), len(cluster.nodes)), dtype=np.int64)
    left = axes[:, state].copy()
    for at, choice, options in reversed(trail):
        taken = np.minimum(options[choice[int((left * strides).sum())]], left)
        counts[:, at] = taken
        left -= taken
    return Cover(price_total, counts)
