"""Pack exactly by dynamic programming over nodes: which numbers of pods per shape are reachable.

Pods of one shape are equal, so the state after some nodes is the number of pods of each shape that they took. For every
combination of counts of all shapes but one, the table has the maximum number of pods of that last shape. Placing fewer
pods is always possible, so only undominated fillings of a node are tried. The answer is always a proof.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from phalanx.engine.placement.pack import Area, Item
from phalanx.engine.placement.problem import Floats, Ints, count_slots
from phalanx.engine.slices import worked

CELLS_PER_STEP = 500  # table cells computed per step of work
CELLS_PER_EXPANSION = 4096  # one expansion of the search budget pays for this many table cells
MAX_STATES = 250_000
MAX_GRID = 200_000
MAX_CLASS_CELLS = 2_000_000  # memory: one class of nodes keeps a source per filling and state


class TooLarge(Exception):
    """The table exceeds the budget; the result is unknown."""


class Fillings(msgspec.Struct, eq=False):
    """Undominated ways to fill one class of node; the last column belongs to the last item."""

    counts: Ints  # (P, I)
    sources: NDArray[np.int32]  # (P, T) state reached from, for every state


def _undominated(rows: Ints) -> Ints:
    """Return rows that no other row covers in every column."""
    rows = rows[np.lexsort((*rows.T[::-1], -rows.sum(axis=1)))]  # covering rows first
    kept: list[Ints] = []
    for row in rows:
        if not any((other >= row).all() for other in kept):
            kept.append(row)
    return np.array(kept, dtype=np.int64).reshape(-1, rows.shape[1])


def _fillings(free: Floats, items: list[Item], bounds: Ints) -> Ints:
    """Return (P, I) every undominated number of pods per item on one node with this free vector (R,)."""
    if int(np.prod(bounds[:-1] + 1, dtype=np.float64)) > MAX_GRID:
        raise TooLarge
    grid = np.indices(tuple(bounds[:-1] + 1)).reshape(len(items) - 1, -1).T if len(items) > 1 else np.zeros((1, 0), int)
    requests = np.array([item.request for item in items])  # (I, R)
    left = free[None, :] - grid @ requests[:-1] if len(items) > 1 else free[None, :]
    ok = (left >= 0).all(axis=1)
    for i, item in enumerate(items[:-1]):
        for rival in item.rivals:
            if rival < len(items) - 1:
                ok &= ~((grid[:, i] > 0) & (grid[:, rival] > 0))
    grid, left = grid[ok], left[ok]
    last = np.minimum(count_slots(requests[-1], left.T), bounds[-1])
    for rival in items[-1].rivals:
        last[grid[:, rival] > 0] = 0
    return _undominated(np.column_stack([grid, last]))


def _sources(counts: Ints, dims: tuple[int, ...], strides: Ints) -> NDArray[np.int32]:
    """Return (P, T) the state before a node took counts (P, K).

    Computed axis by axis: only the last step has full size.
    """
    sources = np.zeros((len(counts), *(1 for _ in dims)), dtype=np.int32)
    for axis, size in enumerate(dims):
        before = np.maximum(np.arange(size)[None, :] - counts[:, axis : axis + 1], 0) * strides[axis]
        shape = [len(counts), *(1 for _ in dims)]
        shape[axis + 1] = size
        sources = sources + before.astype(np.int32).reshape(shape)
    return sources.reshape(len(counts), -1)


class Table:
    """Counts reachable after each node of an area."""

    def __init__(self, area: Area, items: list[Item], budget: int) -> None:
        self.area = area
        # The last item has no table dimension: choose the most numerous one.
        self.arrange = sorted(range(len(items)), key=lambda i: (items[i].count, -i))
        place = {i: k for k, i in enumerate(self.arrange)}
        self.items = [
            Item(items[i].request, items[i].count, items[i].bound, tuple(place[r] for r in items[i].rivals))
            for i in self.arrange
        ]
        self.wanted = np.array([item.count for item in self.items], dtype=np.int64)
        self.dims = tuple(int(c) + 1 for c in self.wanted[:-1])
        states = int(np.prod(self.dims, dtype=np.float64))
        if states > MAX_STATES:
            raise TooLarge
        self.states = states
        self.budget = budget * CELLS_PER_EXPANSION
        self.cells = 0
        self.nodes = self._node_order()
        self.classes: list[Fillings] = []
        self.class_of: list[int] = []
        self.layers: list[NDArray[np.int32]] = []
        self._axes = (
            np.indices(self.dims).reshape(len(self.dims), -1) if self.dims else np.zeros((0, 1), dtype=np.int64)
        )
        self._strides = np.ones(len(self.dims), dtype=np.int64)
        for axis in range(len(self.dims) - 2, -1, -1):
            self._strides[axis] = self._strides[axis + 1] * self.dims[axis + 1]

    @property
    def expansions(self) -> int:
        return -(-self.cells // CELLS_PER_EXPANSION)

    def _node_order(self) -> list[int]:
        """Order the fullest nodes first: the walk back from the end then leaves the emptiest nodes unused."""
        left = (self.area.free / self.area.scale[:, None]).sum(axis=0)
        usable = np.zeros(len(left), dtype=bool)
        for item in self.items:
            usable |= (np.minimum(count_slots(item.request, self.area.free), item.bound)) > 0
        order = np.lexsort((self.area.rank, left))
        return [int(m) for m in order if usable[m]]

    def _class(self, node: int, known: dict[bytes, int]) -> int:
        free = self.area.free[:, node]
        bounds = np.array(
            [
                min(int(item.bound[node]), item.count, int(s))
                for item, s in zip(self.items, self._slots(free), strict=True)
            ],
            dtype=np.int64,
        )
        signature = free.tobytes() + bounds.tobytes()
        if signature not in known:
            counts = _fillings(free, self.items, bounds)
            if len(counts) * self.states > MAX_CLASS_CELLS:
                raise TooLarge
            sources = _sources(counts[:, :-1], self.dims, self._strides)
            known[signature] = len(self.classes)
            self.classes.append(Fillings(counts, sources))
        return known[signature]

    def _slots(self, free: Floats) -> list[int]:
        return [int(count_slots(item.request, free[:, None])[0]) for item in self.items]

    def build(self, stop: Ints | None = None) -> bool:
        """Add nodes until the wanted counts are reachable (stop=None: add all nodes). Return True if reached."""
        limit = int(self.wanted[-1])
        table = np.full(self.states, -1, dtype=np.int32)
        table[0] = 0
        self.layers = [table]
        known: dict[bytes, int] = {}
        for node in self.nodes:
            number = self._class(node, known)
            fillings = self.classes[number]
            self.cells += fillings.sources.size
            worked(8 + fillings.sources.size // CELLS_PER_STEP)
            if self.cells > self.budget:
                raise TooLarge
            reached = table[fillings.sources]  # (P, T)
            gained = np.where(reached >= 0, reached + fillings.counts[:, -1:].astype(np.int32), -1)
            table = np.minimum(np.maximum(table, gained.max(axis=0)), limit).astype(np.int32)
            self.class_of.append(number)
            self.layers.append(table)
            if stop is not None and table[self._index(stop)] >= stop[-1]:
                return True
        return stop is None or bool(table[self._index(stop)] >= stop[-1])

    def _index(self, counts: Ints) -> int:
        return int((counts[:-1] * self._strides).sum()) if self.dims else 0

    def walk_back(self, target: Ints) -> Ints:
        """Return (I, M) an assignment that reaches target (in table order), in the original item order."""
        placed = np.zeros((len(self.items), self.area.free.shape[1]), dtype=np.int64)
        counts = target.copy()
        for step in range(len(self.layers) - 1, 0, -1):
            before = self.layers[step - 1]
            if before[self._index(counts)] >= counts[-1]:
                continue  # the node takes no pod
            fillings = self.classes[self.class_of[step - 1]]
            state = self._index(counts)
            reached = before[fillings.sources[:, state]]
            works = (reached >= 0) & (reached + fillings.counts[:, -1] >= counts[-1])
            used = np.minimum(fillings.counts, counts[None, :])
            pods = np.where(works, used.sum(axis=1), np.iinfo(np.int64).max)
            chosen = used[int(pods.argmin())]
            # Of the last item, place only the pods that the previous state lacks.
            choice = int(pods.argmin())
            chosen = chosen.copy()
            chosen[-1] = max(0, int(counts[-1]) - int(reached[choice]))
            placed[:, self.nodes[step - 1]] = chosen
            counts = counts - chosen
        back = np.zeros_like(placed)
        for k, i in enumerate(self.arrange):
            back[i] = placed[k]
        return back

    def best(self, least: Ints) -> Ints | None:
        """Return the reachable counts with most pods that cover `least` (original order), in table order."""
        floor = least[self.arrange]
        table = self.layers[-1]
        ok = (table >= floor[-1]) & (self._axes >= floor[:-1, None]).all(axis=0)
        if not ok.any():
            return None
        value = np.where(ok, self._axes.sum(axis=0) + table, -1)
        state = int(value.argmax())
        return np.append(self._axes[:, state], table[state]).astype(np.int64)


def solve(area: Area, items: list[Item], budget: int) -> tuple[Ints | None, int]:
    """Return a packing of all items, or None as a proof that there is none, and the expansions. Raises TooLarge."""
    table = Table(area, items, budget)
    if not table.build(stop=table.wanted):
        return None, table.expansions
    return table.walk_back(table.wanted), table.expansions


def solve_most(area: Area, items: list[Item], least: Ints, budget: int) -> tuple[Ints | None, int]:
    """Pack as many pods as possible, at least `least` of each item. Raises TooLarge."""
    table = Table(area, items, budget)
    table.build()
    target = table.best(least)
    return (None if target is None else table.walk_back(target)), table.expansions
