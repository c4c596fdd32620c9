"""Find the packing with the best residual capacity exactly, for small problems.

Like the table in exact.py, but over all fillings of a node, with the residual capacity as value.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from phalanx.engine.placement.exact import CELLS_PER_STEP, TooLarge
from phalanx.engine.placement.pack import Area, Item, make_area, smallest
from phalanx.engine.placement.problem import Floats, Ints, count_slots
from phalanx.engine.placement.residual_capacity import ResidualCapacity
from phalanx.engine.slices import worked

MAX_CELLS = 300_000  # a few milliseconds
MAX_STATES = 4_096
MAX_FILLINGS = 4_096
SHORTLIST = 48  # nodes considered for equal pods, with and without unrequested devices each


def strides_of(sizes: Sequence[int]) -> Ints:
    """Return the distance between neighbours along each axis of an array in C order."""
    strides = np.ones(len(sizes), dtype=np.int64)
    for axis in range(len(sizes) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * sizes[axis + 1]
    return strides


class ValuedFillings:
    """All ways to fill one class of node: pods per item, resources left, and the state before."""

    __slots__ = ("counts", "gain", "left", "sources")

    def __init__(self, counts: Ints, left: Floats, sources: NDArray[np.int64]) -> None:
        self.counts = counts  # (P, I)
        self.left = left  # (R, P)
        self.sources = sources  # (P, T); T: not reachable
        self.gain: Floats = np.zeros(len(counts))  # (P,) change of residual capacity


def _fillings(
    items: list[Item], requests: Floats, free: Floats, bounds: Ints, axes: Ints, strides: Ints
) -> ValuedFillings:
    if float(np.prod(bounds + 1, dtype=np.float64)) > MAX_FILLINGS:
        raise TooLarge
    grid = np.indices(tuple(bounds + 1)).reshape(len(items), -1).T
    left = free[None, :] - grid @ requests
    ok = (left >= 0).all(axis=1)
    for i, item in enumerate(items):
        for rival in item.rivals:
            ok &= ~((grid[:, i] > 0) & (grid[:, rival] > 0))
    grid, left = grid[ok], left[ok]
    if len(grid) * len(axes) > MAX_CELLS:
        raise TooLarge
    before = axes[None, :, :] - grid[:, None, :]  # (P, T, I)
    sources = before @ strides
    sources[(before < 0).any(axis=2)] = len(axes)
    return ValuedFillings(grid, left.T, sources)


def _weigh(worth: ResidualCapacity, classes: list[ValuedFillings]) -> None:
    """Compute the gains of all fillings in one evaluation; the first filling of a class is the empty one."""
    values = worth(np.concatenate([fillings.left for fillings in classes], axis=1))
    start = 0
    for fillings in classes:
        end = start + len(fillings.counts)
        fillings.gain = values[start:end] - values[start]
        start = end


def solve_best(area: Area, items: list[Item]) -> Ints | None:
    """Return (I, M) pods per item and node; None proves that the items do not fit. Raises TooLarge."""
    sizes = [item.count + 1 for item in items]
    if float(np.prod(sizes, dtype=np.float64)) > MAX_STATES:
        raise TooLarge
    axes = np.indices(sizes).reshape(len(items), -1).T  # (T, I)
    states = len(axes)
    strides = strides_of(sizes)
    bounds = np.array(
        [np.minimum(np.minimum(item.bound, count_slots(item.request, area.free)), item.count) for item in items]
    )
    order = np.argsort(area.rank, kind="stable")
    nodes = order[np.asarray(bounds.any(axis=0))[order]].tolist()
    rows, limits = np.ascontiguousarray(area.free.T), np.ascontiguousarray(bounds.T)
    requests = np.array([item.request for item in items])
    known: dict[bytes, ValuedFillings] = {}
    uses: list[tuple[int, ValuedFillings]] = []
    cells = 0
    pods = sum(item.count for item in items)
    alike: dict[bytes, int] = {}
    for m in nodes:
        signature = rows[m].tobytes() + limits[m].tobytes()
        alike[signature] = alike.get(signature, 0) + 1
        if alike[signature] > pods:
            continue  # one node of this class per pod is enough
        if signature not in known:
            known[signature] = _fillings(items, requests, area.free[:, m], bounds[:, m], axes, strides)
        uses.append((m, known[signature]))
        cells += known[signature].sources.size
        if cells > MAX_CELLS:
            raise TooLarge
    if not uses:
        return None
    _weigh(ResidualCapacity(area.free, area.plain, area.devices), list(known.values()))
    table = np.full(states + 1, -np.inf)
    table[0] = 0.0
    steps: list[tuple[int, ValuedFillings, NDArray[np.int64]]] = []
    everyone = np.arange(states)
    for m, fillings in uses:
        worked(4 + fillings.sources.size // CELLS_PER_STEP)
        values = table[fillings.sources] + fillings.gain[:, None]
        choice = values.argmax(axis=0)
        table[:-1] = values[choice, everyone]
        steps.append((m, fillings, choice))
    state = states - 1
    if table[state] == -np.inf:
        return None
    placed = np.zeros((len(items), area.free.shape[1]), dtype=np.int64)
    for m, fillings, choice in reversed(steps):
        chosen = int(choice[state])
        placed[:, m] = fillings.counts[chosen]
        state = int(fillings.sources[chosen, state])
    return placed


def choose_alike(
    free: Floats, kinds: tuple[Ints, Ints], rank: Ints, request: Floats, slots: Ints, count: int
) -> tuple[Ints, Ints] | None:
    """Return (nodes, pods per node) for `count` equal pods so that free devices stay usable.

    None: the area has no free devices, or the problem is too large.
    """
    room = np.flatnonzero(slots)
    devices = kinds[1]
    if not free[np.ix_(devices, room)].any():
        return None
    spared = other_pods(free, devices, request)[room]
    few = np.concatenate([_tightest(room[~spared], slots, rank), _tightest(room[spared], slots, rank)])
    if int(slots[few].sum()) < count:
        return None
    area = make_area(free[:, few], kinds, rank[few])
    try:
        placed = solve_best(area, [Item(request, count, slots[few])])
    except TooLarge:
        return None
    if placed is None:
        return None
    used = np.flatnonzero(placed[0])
    return few[used], placed[0][used]


def other_pods(free: Floats, devices: Ints, request: Floats) -> NDArray[np.bool_]:
    """Return (M,) nodes with free devices that the pod does not request."""
    found: NDArray[np.bool_] = (free[devices[request[devices] == 0]] > 0).any(axis=0)
    return found


def _tightest(nodes: Ints, slots: Ints, rank: Ints) -> Ints:
    return nodes[smallest(slots[nodes].astype(np.float64), rank[nodes], SHORTLIST)[:SHORTLIST]]
