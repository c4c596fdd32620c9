"""Find the allowed row with the lowest key (cost) without a pass over all rows.

An array holds the keys of all rows. A sorted list, the front, holds the lowest keys and is updated with every change.
All rows are read only if the front is too short or contains no allowed row.
"""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np
import numpy.typing as npt

from phalanx.engine.framework import Bools
from phalanx.engine.preemption.cost import Key

IMPOSSIBLE = np.inf
SHORTLIST = 128  # rows in a new front; it may grow to twice as many


class RankedRows:
    """Hold the key of every row, or none."""

    def __init__(self, parts: int, capacity: int) -> None:
        self._parts: npt.NDArray[np.float64] = np.full((parts, capacity), IMPOSSIBLE)
        self._shortlist: list[tuple[Key, int]] = []  # sorted: all entries up to `_end`
        self._in_shortlist: dict[int, Key] = {}
        self._end: tuple[Key, int] = ((), -1)

    @property
    def possible(self) -> Bools:
        """Return the mask of rows that have a key."""
        found: Bools = self._parts[0] < IMPOSSIBLE
        return found

    def key(self, row: int) -> Key:
        return self._in_shortlist.get(row) or tuple(self._parts[:, row].tolist())

    def put(self, row: int, key: Key) -> None:
        """Set the key of a row."""
        if row in self._in_shortlist:
            self._leave(row)
        self._parts[:, row] = key
        entry = (key, row)
        if entry <= self._end:
            insort(self._shortlist, entry)
            self._in_shortlist[row] = key
            if len(self._shortlist) > 2 * SHORTLIST:
                self._cut()

    def forget(self, row: int) -> None:
        if row in self._in_shortlist:
            self._leave(row)
        self._parts[:, row] = IMPOSSIBLE

    def lowest(self, allowed: Bools) -> int:
        """Return the allowed row with the lowest key, the first among equals; -1 if there is none."""
        found = self._lowest_in_shortlist(allowed)
        if found < 0 and len(self._shortlist) <= SHORTLIST // 2 and not self._whole:
            self._build_shortlist()
            found = self._lowest_in_shortlist(allowed)
        return self._lowest_of_all(allowed) if found < 0 and not self._whole else found

    def below(self, allowed: Bools, key: Key) -> list[int]:
        """Return the allowed rows with lower keys, the lowest first."""
        less = np.zeros(len(allowed), dtype=np.bool_)
        same = allowed & self.possible
        for part, value in zip(self._parts, key, strict=True):
            less |= same & (part < value)
            same &= part == value
        rows = np.flatnonzero(less)
        return rows[np.lexsort(self._parts[::-1, rows])].tolist() if len(rows) else []

    @property
    def _whole(self) -> bool:
        """Return True if the front contains every row that has a key."""
        return self._end[0] == (IMPOSSIBLE,)

    def _leave(self, row: int) -> None:
        del self._shortlist[bisect_left(self._shortlist, (self._in_shortlist.pop(row), row))]

    def _cut(self) -> None:
        for _, row in self._shortlist[SHORTLIST:]:
            del self._in_shortlist[row]
        del self._shortlist[SHORTLIST:]
        self._end = self._shortlist[-1]

    def _build_shortlist(self) -> None:
        rows = np.flatnonzero(self.possible)
        first = rows[np.lexsort(self._parts[::-1, rows])[:SHORTLIST]]
        keys = map(tuple, self._parts[:, first].T.tolist())
        self._shortlist = list(zip(keys, first.tolist(), strict=True))
        self._in_shortlist = {row: key for key, row in self._shortlist}
        self._end = self._shortlist[-1] if len(rows) > len(first) else ((IMPOSSIBLE,), -1)

    def _lowest_in_shortlist(self, allowed: Bools) -> int:
        for _, row in self._shortlist:
            if allowed[row]:
                return row
        return -1

    def _lowest_of_all(self, allowed: Bools) -> int:
        left = allowed & self.possible
        for part in self._parts:
            left &= part == part.min(where=left, initial=IMPOSSIBLE)
        row = int(left.argmax())
        return row if left[row] else -1
