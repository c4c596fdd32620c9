"""Hold a node label key as an int32 column of interned values; for a topology key, these are its domains."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

MISSING = 0  # value id of rows without the label
FEW = 64  # unused values that are tolerated before compaction


class LabelColumn:
    """`ids[row]` is the interned value of `key` on that row; 0 where the label is missing.

    For a topology key the value id is the domain id, so `np.bincount(ids[:n], weights=…, minlength=column.size)` sums
    anything per domain (entry 0 is "in no domain").
    """

    __slots__ = ("_index", "_numbers", "asked", "ids", "key", "made", "values", "version")

    def __init__(self, key: str, capacity: int, made: int = 0) -> None:
        self.key = key
        self.ids: npt.NDArray[np.int32] = np.zeros(capacity, dtype=np.int32)
        self.values: list[str] = [""]  # by id; entry 0 stands for "missing", not for the empty value
        self._index: dict[str, int] = {}
        self._numbers: npt.NDArray[np.float64] | None = None
        self.version = 0  # +1 whenever a row's value changed
        self.made = made  # the `tidy` round in which it was created; `asked`: the round of its last use
        self.asked = made

    @property
    def size(self) -> int:
        """Return the number of ids, including 0."""
        return len(self.values)

    def id_of(self, value: str) -> int:
        """Return the id of a value, or -1 if no node had it."""
        return self._index.get(value, -1)

    def set(self, row: int, value: str | None) -> None:
        value_id = MISSING if value is None else self._intern(value)
        if self.ids[row] != value_id:
            self.ids[row] = value_id
            self.version += 1

    def numbers(self) -> npt.NDArray[np.float64]:
        """Return the values as integers by id (NaN where they are none), for Gt and Lt."""
        if self._numbers is None or len(self._numbers) != len(self.values):
            self._numbers = np.array([np.nan, *map(integer, self.values[1:])], dtype=np.float64)
        return self._numbers

    def grow(self, more: int) -> None:
        self.ids = np.concatenate([self.ids, np.zeros(more, dtype=np.int32)])

    def compact(self) -> bool:
        """Renumber the values in use from 1, in the same order, if most belong to deleted nodes. Return True if ids
        changed. Old `ids` and `values` arrays that a caller holds stay consistent with each other."""
        live = np.unique(self.ids[self.ids != MISSING])
        if len(self.values) <= 2 * (len(live) + 1) + FEW:
            return False
        ids = np.zeros(len(self.values), dtype=np.int32)
        ids[live] = np.arange(1, len(live) + 1)
        self.ids = ids[self.ids]
        self.values = ["", *(self.values[value_id] for value_id in live)]
        self._index = {value: value_id for value_id, value in enumerate(self.values) if value_id}
        self._numbers = None
        self.version += 1
        return True

    def _intern(self, value: str) -> int:
        value_id = self._index.get(value)
        if value_id is None:
            value_id = self._index[value] = len(self.values)
            self.values.append(value)
        return value_id


def integer(text: str) -> int | None:
    """Return the number that Gt and Lt compare; None if the text is none."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) < 20 else None
