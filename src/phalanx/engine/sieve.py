"""Which sleeping shapes a row could have room for: one vector comparison instead of a question to each of thousands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from phalanx.engine.columns import Columns

if TYPE_CHECKING:
    from phalanx.engine.queue import Bucket

Requests = tuple[tuple[int, float], ...]
_NOTHING = -np.inf  # asks nothing of a resource: fits even where that resource is over-committed


class Sieve:
    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._buckets: list[Bucket | None] = []
        self._slot: dict[int, int] = {}  # id(bucket) -> slot
        self._free: list[int] = []
        self._needs: dict[int, npt.NDArray[np.float64]] = {}  # resource id -> (slots,) request
        self._used: npt.NDArray[np.bool_] = np.zeros(64, dtype=np.bool_)

    def __len__(self) -> int:
        return len(self._slot)

    def add(self, bucket: Bucket, requests: Requests) -> None:
        """`requests` (resource id, amount) must all fit for a row to matter to the bucket; () means any row does."""
        if id(bucket) in self._slot:
            self.remove(bucket)
        slot = self._free.pop() if self._free else len(self._buckets)
        if slot == len(self._buckets):
            self._buckets.append(None)
            if slot == len(self._used):
                self._used = np.concatenate([self._used, np.zeros_like(self._used)])
                self._needs = {rid: np.concatenate([a, np.full(len(a), _NOTHING)]) for rid, a in self._needs.items()}
        self._buckets[slot] = bucket
        self._slot[id(bucket)] = slot
        self._used[slot] = True
        for rid, amount in requests:
            if rid not in self._needs:
                self._needs[rid] = np.full(len(self._used), _NOTHING)
            self._needs[rid][slot] = amount

    def remove(self, bucket: Bucket) -> None:
        slot = self._slot.pop(id(bucket), -1)
        if slot < 0:
            return
        self._buckets[slot] = None
        self._used[slot] = False
        for needs in self._needs.values():
            needs[slot] = _NOTHING
        self._free.append(slot)

    def passing(self, row: int) -> list[Bucket]:
        """Buckets, in slot order, for which the row has enough of everything as it is now."""
        count = len(self._buckets)
        if not self._slot:
            return []
        mask = self._used[:count].copy()
        alloc, used = self._columns.alloc_cell, self._columns.used_cell
        for rid, needs in self._needs.items():
            # The same comparison as NodeResourcesFit, so that rounding can never hide a fit.
            mask &= used[rid][row] + needs[:count] <= alloc[rid][row]
        return [bucket for slot in np.flatnonzero(mask) if (bucket := self._buckets[slot]) is not None]
