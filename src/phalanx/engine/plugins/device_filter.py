"""Filter and score of DynamicResources for one shape: find rows with devices for its claims, updated row by row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from phalanx.engine.devices.allocator import AllocationError
from phalanx.engine.devices.selectors import SelectorFailure
from phalanx.engine.devices.state import ALL_ROWS, DeviceState
from phalanx.engine.framework import Bools, Finding, Floats, Rows
from phalanx.engine.framework.adapters import ByMax
from phalanx.engine.placement.plain import CANNOT_ALLOCATE, CLAIM_ELSEWHERE, INVALID_POOLS
from phalanx.engine.state.claims import EXTENDED, NAMED
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.journal import Change
from phalanx.engine.state.records import PodRecord
from phalanx.engine.state.shapes import Shape

NO_LIMIT = 2**31  # slots of a row that cannot be counted
MOST_ALTERNATIVES = 8  # alternatives of one request (resource/v1 FirstAvailableDeviceRequestMaxSize)


class FollowsDevices:
    """Track the rows to evaluate again after changes of devices or claims."""

    def __init__(self, state: DeviceState, shape: Shape, columns: Columns) -> None:
        self.state = state
        self.shape = shape
        self.columns = columns
        self._position = -1
        self._named = [use.claim for use in shape.claims if use.kind in (NAMED, EXTENDED)]
        self._seen: tuple[object, ...] = ()

    def _claims(self) -> tuple[object, ...]:
        """Return the state of the claims that the shape names; a change of it affects every row."""
        state = self.state
        return tuple((id(state.holdings.claims.get(key)), state.pending(key)) for key in self._named)

    def _start(self) -> None:
        self.state.sync()
        self._position = self.state.log.position
        self._seen = self._claims()

    def _rows(self) -> list[int] | None:
        """Return the rows that changed since the last call; None: all rows."""
        state = self.state
        state.sync()
        rows = state.log.since(self._position) if self._position >= 0 else None
        if rows is None or ALL_ROWS in rows or self._claims() != self._seen:
            return None
        self._position = state.log.position
        return [row for row in dict.fromkeys(rows) if row < self.columns.capacity]


class DeviceFilter(FollowsDevices):
    def __init__(self, state: DeviceState, shape: Shape, columns: Columns) -> None:
        super().__init__(state, shape, columns)
        self.mask: Bools = np.zeros(0, dtype=np.bool_)
        self._simple = state.counted(shape)
        # Number of further pods of the shape that each row's devices can serve at most; None: it cannot be counted.
        self.slots: Rows | None = None
        self.failures: dict[int, str] = {}  # row -> error of a device selector, or claim too large
        self.counted = False  # the slots alone decide for members of one shape

    def rebuild(self) -> None:
        self._start()
        self._simple = self.state.counted(self.shape)  # its class may have changed
        self.mask = np.zeros(self.columns.capacity, dtype=np.bool_)
        self.slots = np.zeros(self.columns.capacity, dtype=np.int64) if self._simple is not None else None
        self.counted = self._simple is not None
        self.failures = {}
        for row in np.flatnonzero(self.columns.alive[: self.columns.n]).tolist():
            self._evaluate_row(row)
        self._clear_wait_limits()

    def update(self, changes: Sequence[Change]) -> Sequence[int] | None:
        rows = self._rows()
        if rows is None:
            self.rebuild()
            return None
        for row in rows:
            if self.columns.alive[row]:
                self._evaluate_row(row)
            else:
                self.mask[row] = False
        self._clear_wait_limits()
        return rows

    def _clear_wait_limits(self) -> None:
        """Leave the rows where claims wait without a limit, unless the slots alone decide."""
        if self.slots is not None and not self.counted:
            for row in self.state.waiting_rows():
                if self.mask[row]:
                    self.slots[row] = NO_LIMIT

    def _evaluate_row(self, row: int) -> None:
        count = self.state.slots(self._simple, row) if self._simple is not None else None
        if self.failures:
            self.failures.pop(row, None)
        if count is None:
            try:
                found = self.state.solve(self.shape, row) is not None
            except (AllocationError, SelectorFailure) as problem:
                found, self.failures[row] = False, str(problem)
            waiting = self.state.is_pending(row)
            self.counted = self.counted and waiting
            count = (1 if waiting else NO_LIMIT) if found else 0
        self.mask[row] = count > 0
        if self.slots is not None:
            self.slots[row] = count

    def affects_other_nodes(self, record: PodRecord) -> bool:
        return bool(record.claims or record.shape.claims)

    def explain(self, rows: Rows) -> Sequence[Finding]:
        state = self.state
        found: dict[tuple[str, bool], list[int]] = {}
        for row in rows.tolist():
            if state.demands(self.shape, row) is None:
                found.setdefault((CLAIM_ELSEWHERE, True), []).append(row)
                continue
            reason = INVALID_POOLS if state.view(row).invalid else CANNOT_ALLOCATE
            reason = self.failures.get(row, reason)
            hopeless = row in self.failures or not state.possible(self.shape, row)
            found.setdefault((reason, hopeless), []).append(row)
        return [Finding(np.array(at), reason, unresolvable) for (reason, unresolvable), at in found.items()]


class DeviceScore(FollowsDevices):
    """Keep one score per row current; a subclass computes it in `_score`."""

    def __init__(self, state: DeviceState, shape: Shape, columns: Columns) -> None:
        super().__init__(state, shape, columns)
        self.raw: Floats = np.zeros(columns.capacity)

    def rebuild(self) -> None:
        self._start()
        self.raw = np.zeros(self.columns.capacity)
        for row in np.flatnonzero(self.columns.alive[: self.columns.n]).tolist():
            self.raw[row] = self._score(row)

    def update(self, changes: Sequence[Change]) -> Sequence[int] | None:
        rows = self._rows()
        if rows is None:
            self.rebuild()
            return None
        for row in rows:
            self.raw[row] = self._score(row) if self.columns.alive[row] else 0.0
        return rows

    def _score(self, row: int) -> float:
        raise NotImplementedError


class AlternativeScore(DeviceScore):
    """Prefer nodes that serve earlier alternatives of a request (KEP-4816)."""

    normaliser = ByMax()

    @classmethod
    def of(cls, state: DeviceState, shape: Shape, columns: Columns) -> AlternativeScore | None:
        """Return the score tracker; None if no claim of the shape has alternatives."""
        chosen = any(len(request.first_available) > 1 for spec in state.specs_of(shape) for request in spec.requests)
        return cls(state, shape, columns) if chosen else None

    def _score(self, row: int) -> float:
        try:
            solution = self.state.solve(self.shape, row)
        except (AllocationError, SelectorFailure):
            return 0.0
        demands = self.state.demands(self.shape, row)
        if solution is None or demands is None:
            return 0.0
        points = 0
        for demand in demands:
            chosen = {pick.request.name for pick in solution.get(demand.claim, ())}
            for alternatives in demand.spec.requests:
                if len(alternatives) > 1:
                    place = next((n for n, each in enumerate(alternatives) if each.name in chosen), MOST_ALTERNATIVES)
                    points += MOST_ALTERNATIVES - place
        return float(points)
