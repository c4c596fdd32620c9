"""Find the unschedulable equivalence classes that may fit a row, with one vector comparison for all of them."""

from __future__ import annotations

from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from phalanx.engine.state.columns import Columns

WaitingShape = TypeVar(
    "WaitingShape"
)  # an unschedulable equivalence class: compared by identity, its content is not read
Requests = tuple[tuple[int, float], ...]
_NOTHING = -np.inf  # requests none of a resource: fits even where that resource is over-committed
# A resource gets its own vector once this many classes request it; a rarely requested resource must not add a
# comparison to every lookup.
_MANY = 32


class CapacityIndex(Generic[WaitingShape]):
    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._equivalence_classes: list[WaitingShape | None] = []
        self._requests: list[Requests] = []
        self._slot: dict[int, int] = {}  # id(equivalence class) -> slot
        self._free: list[int] = []
        self._wanted: dict[int, int] = {}  # resource id -> number of classes that request it
        # resource id -> (slots,) request, for resources many request
        self._needs: dict[int, npt.NDArray[np.float64]] = {}
        self._used: npt.NDArray[np.bool_] = np.zeros(64, dtype=np.bool_)

    def __len__(self) -> int:
        return len(self._slot)

    def requested(self) -> set[int]:
        """Return the ids of the resources that waiting classes request."""
        return set(self._wanted)

    def add(self, equivalence_class: WaitingShape, requests: Requests) -> None:
        """Add a class. A row matters to it only if all `requests` (resource id, amount) fit; with () every row
        matters."""
        self.remove(equivalence_class)
        slot = self._free.pop() if self._free else len(self._equivalence_classes)
        if slot == len(self._equivalence_classes):
            self._equivalence_classes.append(None)
            self._requests.append(())
            if slot == len(self._used):
                self._used = np.concatenate([self._used, np.zeros_like(self._used)])
                self._needs = {rid: np.concatenate([a, np.full(len(a), _NOTHING)]) for rid, a in self._needs.items()}
        self._equivalence_classes[slot] = equivalence_class
        self._requests[slot] = requests
        self._slot[id(equivalence_class)] = slot
        self._used[slot] = True
        for rid, amount in requests:
            count = self._wanted[rid] = self._wanted.get(rid, 0) + 1
            if rid in self._needs:
                self._needs[rid][slot] = amount
            elif count >= _MANY:
                self._promote(rid)

    def _promote(self, rid: int) -> None:
        needs = self._needs[rid] = np.full(len(self._used), _NOTHING)
        for slot, requests in enumerate(self._requests):
            for wanted, amount in requests:
                if wanted == rid:
                    needs[slot] = amount

    def remove(self, equivalence_class: WaitingShape) -> None:
        slot = self._slot.pop(id(equivalence_class), -1)
        if slot < 0:
            return
        for rid, _ in self._requests[slot]:
            self._wanted[rid] -= 1
            if not self._wanted[rid]:
                del self._wanted[rid]
                self._needs.pop(rid, None)
            elif rid in self._needs:
                self._needs[rid][slot] = _NOTHING
        self._equivalence_classes[slot] = None
        self._requests[slot] = ()
        self._used[slot] = False
        self._free.append(slot)

    def passing(self, row: int) -> list[WaitingShape]:
        """Return the classes, in slot order, whose requests all fit the row in its current state."""
        if not self._slot:
            return []
        count = len(self._equivalence_classes)
        mask = self._used[:count].copy()
        alloc, used = self._columns.alloc_cell, self._columns.used_cell
        # The same comparison as NodeResourcesFit, so that rounding can never hide a fit.
        for rid, needs in self._needs.items():
            mask &= used[rid][row] + needs[:count] <= alloc[rid][row]
        found: list[WaitingShape] = []
        whole = len(self._needs) == len(self._wanted)  # every resource has its own vector: no further check is needed
        for slot in np.flatnonzero(mask).tolist():
            equivalence_class = self._equivalence_classes[slot]
            if equivalence_class is not None and (
                whole or all(used[rid][row] + amount <= alloc[rid][row] for rid, amount in self._requests[slot])
            ):
                found.append(equivalence_class)
        return found
