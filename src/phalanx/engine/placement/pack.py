"""Pack a few shapes onto a few nodes by best-fit passes. Finds placements; never proves that none exists.

Works on small local arrays (a domain, a cluster); the bounds have already decided which pods may go where.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice, permutations

import msgspec
import numpy as np

from phalanx.engine.placement.problem import Floats, Ints, count_slots
from phalanx.engine.placement.residual_capacity import ResidualCapacity
from phalanx.engine.slices import worked

NODES_PER_EXPANSION = 512
MOST_NODES_COMPARED = 256  # up to this many nodes the best of several packings is taken, else the first


class Item(msgspec.Struct, eq=False):
    """Request count pods of one shape, at most bound[m] of them on node m."""

    request: Floats  # (R,)
    count: int
    bound: Ints  # (M,)
    rivals: tuple[int, ...] = ()  # items that must not share a node with this one
    score: Floats | None = None  # (M,) higher is better


class Area(msgspec.Struct, eq=False):
    """Hold the nodes to pack onto."""

    free: Floats  # (R, M)
    scale: Floats  # (R,) total free of each resource: turns amounts into shares
    inverse: Floats  # (R,) 1 / scale
    plain: Ints  # rows of resources that every node has, see split_resources
    devices: Ints  # rows of devices, such as accelerators
    rank: Ints  # (M,) tie-break order


def make_area(free: Floats, kinds: tuple[Ints, Ints], rank: Ints) -> Area:
    scale = free.sum(axis=1)
    scale[scale <= 0] = 1.0
    return Area(free, scale, 1.0 / scale, *kinds, rank)


def fill(slots: Ints, order: Ints, count: int) -> tuple[Ints, Ints]:
    """Fill nodes completely in the given order until count pods are placed. Return (nodes, pods per node)."""
    take = slots[order]
    sums = take.cumsum()
    last = int(sums.searchsorted(count))
    if last >= len(order):
        return order, take
    chosen = order[: last + 1]
    counts = take[: last + 1].copy()
    counts[-1] -= int(sums[last]) - count
    return chosen, counts


def smallest(values: Floats, rank: Ints, count: int) -> Ints:
    """Return indices of the `count` smallest values in order, ties by rank. Sorts no more than needed."""
    if count < len(values) // 2:
        edge = np.partition(values, count - 1)[count - 1]
        below = np.flatnonzero(values < edge)
        level = np.flatnonzero(values == edge)
        lacking = count - len(below)
        if lacking < len(level):
            level = level[np.argpartition(rank[level], lacking - 1)[:lacking]]
        keep = np.concatenate([below, level])
        return keep[np.lexsort((rank[keep], values[keep]))]
    return np.lexsort((rank, values))


def _node_order(area: Area, free: Floats, item: Item, slots: Ints, rule: int) -> Ints:
    """Order nodes with room, best first; each takes at least one pod, so item.count nodes are enough."""
    room = np.flatnonzero(slots)
    if not len(room):
        return room
    if item.score is not None and rule == 0:
        return room[smallest(-item.score[room], area.rank[room], item.count)]
    left = free[:, room] * area.inverse[:, None]
    if rule == 0:  # least left over all resources: cpu pods avoid accelerator nodes
        waste = left.sum(axis=0)
    elif rule == 1:  # fullest first, by the resources that the shape requests
        waste = slots[room].astype(np.float64)
    elif rule == 2:  # worst balance first: highest use of the scarcest requested resource
        asks = item.request > 0
        waste = left[asks].min(axis=0) + left[~asks].sum(axis=0)
    else:  # least left once the node is filled with this shape
        filled = np.minimum(slots[room], item.count)
        waste = ((free[:, room] - item.request[:, None] * filled) * area.inverse[:, None]).sum(axis=0)
    return room[smallest(waste, area.rank[room], item.count)]


def one_pass(area: Area, items: list[Item], order: tuple[int, ...], rule: int) -> Ints | None:
    """Return (I, M) pods per item and node, or None if an item does not fit."""
    free = area.free.copy()
    placed = np.zeros((len(items), free.shape[1]), dtype=np.int64)
    price = 2 + free.shape[1] // 250
    for i in order:
        worked(price)
        item = items[i]
        slots = np.minimum(count_slots(item.request, free), item.bound)
        for rival in item.rivals:
            slots[placed[rival] > 0] = 0
        nodes, counts = fill(slots, _node_order(area, free, item, slots, rule), item.count)
        if int(counts.sum()) < item.count:
            return None
        placed[i, nodes] = counts
        free[:, nodes] -= item.request[:, None] * counts
    return placed


def _orders(area: Area, items: list[Item], limit: int) -> Iterator[tuple[int, ...]]:
    """Yield orders of items: most constrained first, largest first, then every other order."""
    indices = range(len(items))
    slots = []
    for item in items:
        worked(1 + area.free.shape[1] // 250)
        slots.append(int(np.minimum(count_slots(item.request, area.free), item.bound).sum()))
    size = [float((item.request / area.scale).sum()) for item in items]
    scarce = tuple(sorted(indices, key=lambda i: (slots[i] / max(1, items[i].count), -size[i], i)))
    big = tuple(sorted(indices, key=lambda i: (-size[i], i)))
    dominant = tuple(sorted(indices, key=lambda i: (-float((items[i].request / area.scale).max()), i)))
    seen: set[tuple[int, ...]] = set()
    for order in (big, scarce, dominant, *islice(permutations(big), limit)):
        if order not in seen:
            seen.add(order)
            yield order


def _worth_left(area: Area, worth: ResidualCapacity, items: list[Item], placed: Ints) -> float:
    """Return the residual capacity of all nodes after the placement."""
    left = area.free.copy()
    for item, row in zip(items, placed, strict=True):
        used = np.flatnonzero(row)
        left[:, used] -= item.request[:, None] * row[used]
    return float(worth(left).sum())


def pack(
    area: Area,
    items: list[Item],
    passes: int = 24,
    *,
    compare: bool = True,
    spend: Callable[[int], None] | None = None,
) -> Ints | None:
    """Return the best-fit pass with the most residual capacity, or None if all passes fail.

    `spend` is called with the cost of the passes, weighted by the number of nodes.
    """
    best: tuple[float, Ints] | None = None
    price = 1 + area.free.shape[1] // NODES_PER_EXPANSION
    compare = compare and area.free.shape[1] <= MOST_NODES_COMPARED and len(items) > 1 and items[0].score is None
    worth = ResidualCapacity(area.free, area.plain, area.devices) if compare else None
    for number, order in enumerate(_orders(area, items, passes)):
        if spend is not None and number:
            spend(price)  # the first order is paid for by the calling step
        for rule in (0, 1, 2, 3):
            placed = one_pass(area, items, order, rule)
            if placed is not None:
                if worth is None:
                    return placed
                value = _worth_left(area, worth, items, placed)
                if best is None or value > best[0] + 1e-12:
                    best = (value, placed)
        if best is not None and number >= 3:
            break
    return best[1] if best is not None else None
