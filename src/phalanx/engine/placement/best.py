"""The packing that leaves the nodes worth most to others, exactly, for tasks small enough to look at every way.

Like the table in exact.py, but over all fillings of a node, and with the worth of what is left as the value.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from phalanx.engine.placement.exact import TooLarge
from phalanx.engine.placement.pack import Area, Item, node_worth
from phalanx.engine.placement.problem import Floats, Ints
from phalanx.engine.placement.slots import count_slots

MAX_CELLS = 300_000  # a few milliseconds
MAX_STATES = 4_096
MAX_FILLINGS = 4_096


class Fillings:
    """Every way to use one class of node: pods per item, what it changes in worth, and the state before."""

    __slots__ = ("counts", "gain", "sources")

    def __init__(self, counts: Ints, gain: Floats, sources: NDArray[np.int64]) -> None:
        self.counts = counts  # (P, I)
        self.gain = gain  # (P,)
        self.sources = sources  # (P, T); T itself = not reachable


def _fillings(area: Area, items: list[Item], free: Floats, bounds: Ints, axes: Ints, strides: Ints) -> Fillings:
    if float(np.prod(bounds + 1, dtype=np.float64)) > MAX_FILLINGS:
        raise TooLarge
    grid = np.indices(tuple(bounds + 1)).reshape(len(items), -1).T
    left = free[None, :] - grid @ np.array([item.request for item in items])
    ok = (left >= 0).all(axis=1)
    for i, item in enumerate(items):
        for rival in item.rivals:
            ok &= ~((grid[:, i] > 0) & (grid[:, rival] > 0))
    grid, left = grid[ok], left[ok]
    if len(grid) * len(axes) > MAX_CELLS:
        raise TooLarge
    gain = node_worth(area, left.T) - node_worth(area, free[:, None])
    before = axes[None, :, :] - grid[:, None, :]  # (P, T, I)
    sources = before @ strides
    sources[(before < 0).any(axis=2)] = len(axes)
    return Fillings(grid, gain, sources)


def solve_best(area: Area, items: list[Item]) -> Ints | None:
    """(I, M) pods per item and node; None is a proof that the items do not fit. Raises TooLarge."""
    sizes = [item.count + 1 for item in items]
    if float(np.prod(sizes, dtype=np.float64)) > MAX_STATES:
        raise TooLarge
    axes = np.indices(sizes).reshape(len(items), -1).T  # (T, I)
    states = len(axes)
    strides = np.ones(len(items), dtype=np.int64)
    for axis in range(len(items) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * sizes[axis + 1]
    bounds = np.array(
        [np.minimum(np.minimum(item.bound, count_slots(item.request, area.free)), item.count) for item in items]
    )
    nodes = [int(m) for m in np.argsort(area.rank, kind="stable") if bounds[:, m].any()]
    known: dict[bytes, Fillings] = {}
    table = np.full(states + 1, -np.inf)
    table[0] = 0.0
    steps: list[tuple[int, Fillings, NDArray[np.int64]]] = []
    cells = 0
    everyone = np.arange(states)
    for m in nodes:
        signature = area.free[:, m].tobytes() + bounds[:, m].tobytes()
        if signature not in known:
            known[signature] = _fillings(area, items, area.free[:, m], bounds[:, m], axes, strides)
        fillings = known[signature]
        cells += fillings.sources.size
        if cells > MAX_CELLS:
            raise TooLarge
        values = table[fillings.sources] + fillings.gain[:, None]
        choice = values.argmax(axis=0)
        table = np.append(values[choice, everyone], -np.inf)
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
