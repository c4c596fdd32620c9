"""Free capacity of every node over time, after running pods and reservations.

The whole table is built when nodes came or left. Otherwise only affected nodes are computed again: pods came, left,
started or run longer than expected, or reservations changed. Each plan also computes some other nodes in turn, because
the expected durations of their pods may have changed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.reservations import FOREVER, Assignment, CapacityProfile, Demand, Reason, TopologyLevels
from phalanx.engine.reservations.capacity import Ints
from phalanx.engine.scheduling.attempt.run_times import RunTimes
from phalanx.engine.scheduling.queue.units import SchedulingUnit
from phalanx.engine.state.records import PodRecord

MOST_ENDS = 48  # end times of running pods; an end between two of them is rounded up
MOST_PIECES = 160  # pieces of the table; beyond it an end is rounded up to the next existing time
ROWS_IN_TURN = 16  # nodes that are computed again with each plan
REBUILD_PIECES = 2 * MOST_PIECES
REBUILD_SHARE = 0.25  # of the nodes: if more of them changed, the whole table is built
REBUILD_ROWS = 64  # changed nodes up to which the table is never rebuilt


class PlannedUnit(msgspec.Struct, eq=False):
    """The planned start of a waiting unit. `promise`: the latest promised start."""

    unit: SchedulingUnit
    demand: Demand
    span: float  # expected duration in seconds
    start: float
    where: Assignment
    nodes: dict[str, int]  # node -> pods
    promise: float
    moved: Reason | None = None  # why the promise moved later
    outranked: bool = False  # a unit of higher priority was placed on its nodes

    @property
    def until(self) -> float:
        return self.start + self.span

    @property
    def requests(self) -> Sequence[tuple[int, float]]:
        """Return what one pod requests: (resource, amount)."""
        return next(iter(self.unit.records.values())).shape.requests


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
        self.profile: CapacityProfile | None = None
        self.rids: list[int] = []  # resources that are counted
        self._position = 0  # in the log of the columns
        self._epoch = 0
        self._generation = 0
        self._turn = 0  # the next row to compute in turn
        self.changed_nodes: set[int] = set()  # rows of nodes that changed since the last plan
        self._held: dict[str, list[ReservedPod]] = {}  # by node
        self._ends: list[tuple[float, int]] = []  # heap of (first known end of a pod on a row, row)
        self._starting: dict[str, PodRecord] = {}  # pods on nodes whose start is not reported yet
        self._touched: set[str] = set()  # nodes whose planned starts changed

    def forget(self) -> None:
        self.profile = None

    def touch(self, nodes: Iterable[str]) -> None:
        """Compute nodes again: what is planned there has changed."""
        self._touched.update(nodes)

    def touched(self) -> set[int]:
        """Return the rows of nodes touched since the last call."""
        nodes, self._touched = self._touched, set()
        return {self._cluster.columns.row_of[node] for node in nodes if node in self._cluster.columns.row_of}

    def next_end(self) -> float:
        """Return when the first running pod is expected to end."""
        return self._ends[0][0] if self._ends else FOREVER

    # ---- the whole table

    def running(self) -> Running:
        """Return all running pods with their expected ends."""
        end_of = self._run_times.end_of
        return [(record, end_of(record)) for pods in self._cluster.columns.pods for record in pods.values()]

    def build(
        self,
        running: Running,
        rids: list[int],
        topology: TopologyLevels,
        held: Iterable[ReservedPod],
        starts: Iterable[float],
    ) -> CapacityProfile:
        """Build the whole table. `starts`: planned starts; ends are not rounded across them."""
        columns, now = self._cluster.columns, self._cluster.now
        self.rids, n = rids, columns.n
        ends = np.unique(np.array([end for _, end in running if end != FOREVER]))
        if len(ends) > MOST_ENDS:
            ends = ends[np.ceil(np.linspace(0, len(ends) - 1, MOST_ENDS)).astype(np.intp)]
            between = {start for start in starts if now < start < ends[-1]}
            ends = np.unique(np.concatenate((ends, sorted(between))))
        gained = np.zeros((len(ends) + 1, len(rids), n), dtype=np.int64)
        index = {rid: number for number, rid in enumerate(rids)}
        first = dict[int, float]()
        for record, end in running:
            if end == FOREVER:
                continue
            first[record.row] = min(end, first.get(record.row, FOREVER))
            at = int(ends.searchsorted(end)) + 1
            for rid, amount in record.shape.requests:
                if rid in index:
                    gained[at, index[rid], record.row] += int(amount)
        gained[0] = np.floor(columns.alloc[rids, :n] - columns.used[rids, :n]).astype(np.int64)
        gained[0][:, ~columns.alive[:n]] = 0
        self.profile = CapacityProfile.over(np.concatenate(([now], ends)), gained.cumsum(axis=0), topology)
        self._held = _by_node(held)
        for each in (each for many in self._held.values() for each in many):
            row = columns.row_of.get(each.node, -1)
            if row >= 0:
                where = Assignment(np.array([row]), np.array([1]))
                self.profile.change(each.start, each.until, Demand(1, self.request_of(each.record)), where, -1)
        self._ends = sorted((end, row) for row, end in first.items())
        self._starting = {record.key: record for record, _ in running if record.start_time is None}
        self._touched.clear()
        self._position, self._epoch = columns.log.position, self._cluster.interest.epoch
        self._generation = columns.generation
        return self.profile

    def request_of(self, record: PodRecord) -> tuple[int, ...]:
        amounts = dict(record.shape.requests)
        return tuple(int(np.ceil(amounts.get(rid, 0.0))) for rid in self.rids)

    # ---- node by node

    def changed(self, held: Iterable[ReservedPod]) -> set[int] | None:
        """Return the rows to compute again; None: build the whole table."""
        profile, columns, now = self.profile, self._cluster.columns, self._cluster.now
        if profile is None or profile.n > REBUILD_PIECES or columns.n != profile.topology.nodes:
            return None
        placed = self._placed()
        if placed is None or (self._epoch, self._generation) != (self._cluster.interest.epoch, columns.generation):
            return None
        profile.advance(now)
        rows = placed | self._overdue()
        before, self._held = self._held, _by_node(held)
        nodes = {node for node in before.keys() | self._held.keys() if before.get(node) != self._held.get(node)}
        rows.update(columns.row_of[node] for node in nodes if node in columns.row_of)
        if len(rows) > max(REBUILD_ROWS, REBUILD_SHARE * columns.n):
            return None
        first, self._turn = self._turn, self._turn + ROWS_IN_TURN if self._turn + ROWS_IN_TURN < columns.n else 0
        return rows.union(range(first, min(first + ROWS_IN_TURN, columns.n)))

    def _placed(self) -> set[int] | None:
        """Return the rows whose pods or node changed; None: unknown."""
        self.changed_nodes = set()
        changes, net = self._cluster.columns.log.since(self._position), dict[tuple[int, int], int]()
        for row, record, sign in changes if changes is not None else ():
            if record is None:
                self.changed_nodes.add(row)
                continue
            key = (row, id(record))
            net[key] = net.get(key, 0) + sign
        self._position = self._cluster.columns.log.position
        rows = {row for (row, _), sign in net.items() if sign}
        return rows | self.changed_nodes if changes is not None else None

    def _overdue(self) -> set[int]:
        """Return the rows of pods that should have ended, and of pods whose start time became known."""
        rows = set()
        while self._ends and self._ends[0][0] <= self._cluster.now:
            rows.add(heapq.heappop(self._ends)[1])
        known = [r for r in self._starting.values() if r.start_time is not None or r.row < 0]
        for record in known:
            del self._starting[record.key]
            if record.row >= 0:
                rows.add(record.row)
        return rows

    def compute(self, rows: Iterable[int], planned: Mapping[str, Sequence[PlannedUnit]]) -> list[str]:
        """Compute rows again. Return the nodes where less is free at some time than planned."""
        profile, names, short = self.profile, self._cluster.columns.names, []
        assert profile is not None
        for row in sorted(rows):
            units = planned.get(names[row], ())
            free = self._free(profile, row)
            taken = self._taken(profile, row, units)
            profile.set_node(row, free - taken)
            if units and bool(((free < taken) & (taken > 0)).any()):
                short.append(names[row])
        return short

    def beside(self, node: str, planned: Sequence[PlannedUnit]) -> bool:
        """Return True if a node has room for these units next to running pods and other reservations."""
        assert self.profile is not None
        row = self._cluster.columns.row_of[node]
        free = self._free(self.profile, row)
        taken = self._taken(self.profile, row, planned)
        return not ((free < taken) & (taken > 0)).any()

    def _taken(self, profile: CapacityProfile, row: int, planned: Sequence[PlannedUnit]) -> Ints:
        """Return the room that planned units take of a node over time, (piece, resource)."""
        taken = np.zeros((profile.n, len(self.rids)), dtype=np.int64)
        for unit in planned:
            start = max(unit.start, self._cluster.now)
            i, k = profile.window(start, start + unit.span)
            taken[i:k] += np.array(unit.demand.request, dtype=np.int64) * unit.nodes[self._cluster.columns.names[row]]
        return taken

    def _free(self, profile: CapacityProfile, row: int) -> Ints:
        """Return the free room of a node over time after running pods and other reservations, (piece, resource)."""
        columns, index = self._cluster.columns, {rid: i for i, rid in enumerate(self.rids)}
        ends = []
        for record in columns.pods[row].values():
            end = self._run_times.end_of(record)
            if record.start_time is None:
                self._starting[record.key] = record
            if end != FOREVER:
                ends.append((end, record))
                if profile.n < MOST_PIECES or end > profile.times[-1]:
                    profile.piece_at(end)
        column = np.zeros((profile.n, len(self.rids)), dtype=np.int64)
        if columns.alive[row]:
            column += np.floor(columns.alloc[self.rids, row] - columns.used[self.rids, row]).astype(np.int64)
        for end, record in ends:
            at = int(profile.times.searchsorted(end))
            for rid, amount in record.shape.requests:
                if rid in index:
                    column[at:, index[rid]] += int(amount)
        if ends:
            heapq.heappush(self._ends, (min(end for end, _ in ends), row))
        for each in self._held.get(columns.names[row], ()):
            i, k = profile.window(each.start, each.until)
            column[i:k] -= self.request_of(each.record)
        return column


def _by_node(held: Iterable[ReservedPod]) -> dict[str, list[ReservedPod]]:
    found: dict[str, list[ReservedPod]] = {}
    for each in held:
        found.setdefault(each.node, []).append(each)
    return found
