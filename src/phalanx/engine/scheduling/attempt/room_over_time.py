"""Free capacity of every node over time, after running pods and reservations outside the plan of the queue.

The whole table is built when nodes came or left. Otherwise only affected nodes are read again: pods came, left, started
or run longer than expected, or reservations changed. With every plan some other nodes are read in turn, because the
expected durations of their pods may have changed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import msgspec
import numpy as np
import numpy.typing as npt

from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.reservations import FOREVER, CapacityProfile, TopologyLevels
from phalanx.engine.scheduling.attempt.run_times import RunTimes
from phalanx.engine.state.records import PodRecord

MOST_ENDS = 48  # end times of running pods in a new table; an end between two of them is rounded up
ROWS_IN_TURN = 16  # nodes that are read again with each plan, at most
PLANS_PER_TURN = 64  # after so many plans every node of a small cluster was read again
REBUILD_PIECES = 1_000
REBUILD_SHARE = 0.25  # of the nodes: if more of them changed, the whole table is built
REBUILD_ROWS = 64  # changed nodes up to which the table is never rebuilt
LARGEST_AMOUNT = 2**29  # of a resource on one node; larger ones are counted in multiples of their unit

Floats = npt.NDArray[np.float64]


class ReservedPod(msgspec.Struct, frozen=True):
    """Room reserved by placeholders of a unit that is not planned here, or by a nomination."""

    node: str
    record: PodRecord
    start: float
    until: float


Running = list[tuple[PodRecord, float]]


class RoomOverTime:
    def __init__(self, state: ClusterState, run_times: RunTimes) -> None:
        self._cluster = state
        self._run_times = run_times
        self.rids: list[int] = []  # resources that are counted
        self._index: dict[int, int] = {}  # resource -> its position
        self._units: Floats = np.ones(0)  # (resource,) what is counted as one
        self._position = 0  # in the log of the columns
        self._made_of: tuple[object, ...] = ()
        self._turn = 0  # the next row to read in turn
        self.changed_nodes: set[int] = set()  # rows of nodes that changed since the last plan
        self._held: dict[str, list[ReservedPod]] = {}  # by node
        self._ends: list[tuple[float, int]] = []  # heap of (first known end of a pod on a row, row)
        self._starting: dict[str, PodRecord] = {}  # pods on nodes whose start is not reported yet
        self._reported_starts = -1  # of the cluster, when they were last looked at
        self._read: dict[int, tuple[object, ...]] = {}  # by row: what was last read there

    def next_end(self) -> float:
        """Return when the first running pod is expected to end."""
        return self._ends[0][0] if self._ends else FOREVER

    def request_of(self, record: PodRecord) -> tuple[int, ...]:
        amounts = dict(record.shape.requests)
        return tuple(
            int(np.ceil(amounts.get(rid, 0.0) / unit)) for rid, unit in zip(self.rids, self._units, strict=True)
        )

    # ---- the whole table

    def running(self) -> Running:
        """Return all running pods with their expected ends."""
        end_of = self._run_times.end_of
        return [(record, end_of(record)) for pods in self._cluster.columns.pods for record in pods.values()]

    def build(
        self, running: Running, rids: list[int], topology: TopologyLevels, held: Iterable[ReservedPod]
    ) -> CapacityProfile:
        """Build the whole table, without the reservations in `held`: their nodes are to be read again."""
        columns, now, n = self._cluster.columns, self._cluster.now, self._cluster.columns.n
        self.rids, self._index = rids, {rid: number for number, rid in enumerate(rids)}
        largest = columns.alloc[rids, :n].max(axis=1, initial=0.0)
        self._units = np.maximum(1.0, np.ceil(largest / LARGEST_AMOUNT))
        ends = np.unique(np.array([end for _, end in running if end != FOREVER]))
        if len(ends) > MOST_ENDS:
            ends = ends[np.ceil(np.linspace(0, len(ends) - 1, MOST_ENDS)).astype(np.intp)]
        gained = np.zeros((len(ends) + 1, len(rids), n))
        first = dict[int, float]()
        for record, end in running:
            if end == FOREVER:
                continue
            first[record.row] = min(end, first.get(record.row, FOREVER))
            at = int(ends.searchsorted(end)) + 1
            for rid, amount in record.shape.requests:
                if rid in self._index:
                    gained[at, self._index[rid], record.row] += amount
        gained[0] = columns.alloc[rids, :n] - columns.used[rids, :n]
        gained[0][:, ~columns.alive[:n]] = 0
        free = np.floor(gained.cumsum(axis=0) / self._units[:, None]).astype(np.int32)
        self._held, self._read = _by_node(held), {}
        self._ends = sorted((end, row) for row, end in first.items())
        self._starting = {record.key: record for record, _ in running if record.start_time is None}
        self._position, self._made_of = columns.log.position, self._now_made_of()
        return CapacityProfile.over(np.concatenate(([now], ends)), free, topology)

    def _now_made_of(self) -> tuple[object, ...]:
        columns = self._cluster.columns
        return (self._cluster.interest.epoch, columns.generation, columns.n)

    def rows_with_reservations(self) -> set[int]:
        row_of = self._cluster.columns.row_of
        return {row_of[node] for node in self._held if node in row_of}

    # ---- node by node

    def changed(self, held: Iterable[ReservedPod], pieces: int) -> set[int] | None:
        """Return the rows to read again; None: build the whole table. `pieces`: that it has."""
        columns = self._cluster.columns
        placed = self._placed()
        if placed is None or pieces > REBUILD_PIECES or self._made_of != self._now_made_of():
            return None
        rows = placed | self._overdue()
        before, self._held = self._held, _by_node(held)
        nodes = {node for node in before.keys() | self._held.keys() if before.get(node) != self._held.get(node)}
        rows.update(columns.row_of[node] for node in nodes if node in columns.row_of)
        if len(rows) > max(REBUILD_ROWS, REBUILD_SHARE * columns.n):
            return None
        count = min(ROWS_IN_TURN, 1 + columns.n // PLANS_PER_TURN)
        first, self._turn = self._turn, self._turn + count if self._turn + count < columns.n else 0
        return rows.union(range(first, min(first + count, columns.n)))

    def _placed(self) -> set[int] | None:
        """Return the rows whose pods or node changed; None: unknown."""
        self.changed_nodes = set()
        changes, net = self._cluster.columns.log.since(self._position), dict[tuple[int, int], int]()
        left: list[PodRecord] = []
        for row, record, sign in changes if changes is not None else ():
            if record is None:
                self.changed_nodes.add(row)
                continue
            key = (row, id(record))
            net[key] = net.get(key, 0) + sign
            if sign < 0:
                left.append(record)
        for record in left:
            if record.row < 0 and self._starting.get(record.key) is record:
                del self._starting[record.key]
        self._position = self._cluster.columns.log.position
        rows = {row for (row, _), sign in net.items() if sign}
        return rows | self.changed_nodes if changes is not None else None

    def _overdue(self) -> set[int]:
        """Return the rows of pods that should have ended, and of pods whose start time became known."""
        rows = set()
        while self._ends and self._ends[0][0] <= self._cluster.now:
            rows.add(heapq.heappop(self._ends)[1])
        reported, self._reported_starts = self._reported_starts, self._cluster.reported_starts
        changed = reported != self._reported_starts
        for record in [r for r in self._starting.values() if r.start_time is not None or r.row < 0] if changed else ():
            del self._starting[record.key]
            if record.row >= 0:
                rows.add(record.row)
        return rows

    def read_again(self, row: int) -> tuple[Floats, list[tuple[float, Floats]]] | None:
        """Return `on`; None: it is what was read before, so the table has it."""
        free, changes = self.on(row)
        read = (free.tobytes(), *((at, amounts.tobytes()) for at, amounts in changes))
        same = self._read.get(row) == read
        self._read[row] = read
        return None if same else (free, changes)

    def on(self, row: int) -> tuple[Floats, list[tuple[float, Floats]]]:
        """Return what is free on a node now, (resource,), and how much more or less from which times on."""
        columns, now = self._cluster.columns, self._cluster.now
        free = np.zeros(len(self.rids))
        if columns.alive[row]:
            free += (columns.alloc[self.rids, row] - columns.used[self.rids, row]) / self._units
        changes: dict[float, Floats] = {}
        for record in columns.pods[row].values():
            if record.start_time is None:
                self._starting[record.key] = record
            end = self._run_times.end_of(record)
            if end != FOREVER:
                self._add(changes, end, record, +1.0)
        if changes:
            heapq.heappush(self._ends, (min(changes), row))
        for each in self._held.get(columns.names[row], ()):
            if each.start > now:
                self._add(changes, each.start, each.record, -1.0)
            elif each.until > now:
                free -= self.request_of(each.record)
            if now < each.until != FOREVER:
                self._add(changes, each.until, each.record, +1.0)
        return free, sorted(changes.items(), key=lambda change: change[0])

    def _add(self, changes: dict[float, Floats], at: float, record: PodRecord, sign: float) -> None:
        amounts = changes.setdefault(at, np.zeros(len(self.rids)))
        for rid, amount in record.shape.requests:
            if rid in self._index:
                amounts[self._index[rid]] += sign * amount / self._units[self._index[rid]]


def _by_node(held: Iterable[ReservedPod]) -> dict[str, list[ReservedPod]]:
    found: dict[str, list[ReservedPod]] = {}
    for each in held:
        found.setdefault(each.node, []).append(each)
    return found
