"""The waiting units as a table: which are first in the order now, and which of them cannot start because one cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from phalanx.engine.reservations.reservation import FOREVER, Demand, PodDemand
from phalanx.engine.reservations.units import PlanSettings, WaitingUnit

FIRST_ROWS = 64  # rows that a new table allocates
COLUMNS: dict[str, Any] = {
    "priority": np.int64,
    "created": np.float64,
    "index": np.int64,
    "preference": np.float64,  # by size and expected duration
    "pods": np.int64,
    "span": np.float64,
    "demand": np.intp,  # number of what one pod needs
}


class WaitingUnits:
    def __init__(self, settings: PlanSettings) -> None:
        self._settings = settings
        self._entries: list[WaitingUnit] = []  # by row
        self._row_of: dict[str, int] = {}
        self._columns = {name: np.zeros(FIRST_ROWS, dtype=kind) for name, kind in COLUMNS.items()}
        self._numbers: dict[PodDemand, int] = {}
        self._demands: list[Demand] = []  # by number: a demand of such pods
        self._users: list[int] = []  # by number: units
        self._unused: list[int] = []  # numbers

    def add(self, entry: WaitingUnit) -> None:
        unit, row = entry.unit, len(self._entries)
        if row == len(self._columns["pods"]):
            self._columns = {name: np.resize(column, 2 * row) for name, column in self._columns.items()}
        self._entries.append(entry)
        self._row_of[unit.name] = row
        values = (
            unit.priority,
            unit.created,
            unit.index,
            self._preference(entry),
            unit.demand.pods,
            entry.span,
            self._number(unit.demand),
        )
        for column, value in zip(self._columns.values(), values, strict=True):
            column[row] = value

    def remove(self, entry: WaitingUnit) -> None:
        """Remove a unit; the last one takes its row."""
        row, last = self._row_of.pop(entry.unit.name), self._entries.pop()
        number = int(self._columns["demand"][row])
        self._users[number] -= 1
        if not self._users[number]:
            del self._numbers[self._demands[number].pod]
            self._unused.append(number)
        if last is not entry:
            self._entries[row], self._row_of[last.unit.name] = last, row
            for column in self._columns.values():
                column[row] = column[len(self._entries)]

    def _number(self, demand: Demand) -> int:
        """Return the number of what one pod of a demand needs, and count a unit for it."""
        number = self._numbers.get(demand.pod)
        if number is None:
            number = self._unused.pop() if self._unused else len(self._demands)
            self._numbers[demand.pod] = number
            self._demands[number : number + 1], self._users[number : number + 1] = [demand], [0]
        self._users[number] += 1
        return number

    def _preference(self, entry: WaitingUnit) -> float:
        """Return by how much the age of a unit counts. A unit of unknown duration counts as one of a day."""
        settings, seconds = self._settings, entry.span if entry.span != FOREVER else 86400.0
        return float(entry.unit.size**settings.size_exponent / seconds**settings.duration_exponent)

    @property
    def lowest_priority(self) -> int:
        return int(self._columns["priority"][: len(self._entries)].min()) if self._entries else 0

    # ---- in order

    def by_creation(self) -> Candidates:
        """Return all units: priority, then age."""
        return self._sorted(np.arange(len(self._entries)), None)

    def by_rank(self, now: float, slots: Callable[[Demand], int] | None = None) -> Candidates:
        """Return the units: priority, then age weighted by size and expected duration, then age.

        Exponents of zero give the order of creation. `slots`: returns for how many pods like those of a demand there is
        room; units with more pods are left out.
        """
        n, columns = len(self._entries), self._columns
        if slots is None:
            rows = np.arange(n)
        else:
            most = np.zeros(len(self._demands), dtype=np.int64)
            for number in self._numbers.values():
                most[number] = slots(self._demands[number])
            rows = np.flatnonzero(columns["pods"][:n] <= most[columns["demand"][:n]])
        age = np.maximum(0.0, now - columns["created"][rows]) + 60.0
        return self._sorted(rows, age * columns["preference"][rows])

    def _sorted(self, rows: npt.NDArray[np.intp], weights: npt.NDArray[np.float64] | None) -> Candidates:
        columns = self._columns
        keys = [columns["index"][rows], columns["created"][rows]]
        if weights is not None:
            keys.append(-weights)
        rows = rows[np.lexsort((*keys, -columns["priority"][rows]))]
        return Candidates(
            self._entries.copy(), rows, columns["demand"][rows], columns["pods"][rows], columns["span"][rows]
        )


class Candidates:
    """Units in order. Those that cannot start because another one cannot may be excluded meanwhile."""

    def __init__(
        self,
        entries: list[WaitingUnit],
        rows: npt.NDArray[np.intp],
        demand: npt.NDArray[np.intp],
        pods: npt.NDArray[np.int64],
        span: npt.NDArray[np.float64],
    ) -> None:
        self._entries, self._rows = entries, rows
        self._demand, self._pods, self._span = demand, pods, span
        self._open = np.ones(len(rows), dtype=np.bool_)
        self._next = 0

    def first(self, count: int) -> list[WaitingUnit]:
        return [self._entries[row] for row in self._rows[:count].tolist()]

    def __iter__(self) -> Candidates:
        return self

    def __next__(self) -> WaitingUnit:
        more = self._open[self._next :]
        step = int(more.argmax()) if len(more) else 0
        if step >= len(more) or not more[step]:
            raise StopIteration
        self._next += step + 1
        return self._entries[int(self._rows[self._next - 1])]

    def exclude(self, span: float) -> None:
        """Leave out units that need at least as many pods like those of the last unit, for at least `span` seconds."""
        at = slice(self._next, None)
        last = self._next - 1
        more = (self._pods[at] >= self._pods[last]) & (self._demand[at] == self._demand[last])
        self._open[at] &= ~(more & (self._span[at] >= span))
