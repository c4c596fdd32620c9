"""Plan the starts of all waiting units together, on the free capacity of the nodes over time.

A unit is planned whose pods are equal and have no rules about other pods: then free resources and the verdicts of the
filters per node decide where it fits. Others are planned one by one by attempts (`StartTimes`).

A start that was promised is kept as long as the room is there. Units without one get, in order, the earliest room that
delays no promise of equal or higher priority.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from phalanx.engine.framework.adapters import PluginFailure
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.framework.traits import traits_of
from phalanx.engine.groups import completion, expected_pods
from phalanx.engine.reservations import FOREVER, Assignment, CapacityProfile, Demand, Reason, TopologyLevels
from phalanx.engine.scheduling.attempt.run_times import RunTimes
from phalanx.engine.scheduling.queue.units import SchedulingUnit
from phalanx.engine.state.records import PodRecord
from phalanx.model.groups import Group
from phalanx.model.groups.policy import ANY

MOST_ENDS = 48  # times at which running pods end; an end between two of them counts as the later one
MOST_PIECES = 160  # of the profile; then the end of a reservation counts as the next time that is there
SEARCHES_PER_PLAN = 64  # starts that are looked for in one plan
DRIFT_SECONDS = 10.0  # by which a start may come later than promised before the promise moves: pods start with a delay
PODS_PER_SECOND = 10_000  # running pods, and tenths of waiting units, that are looked at
LARGE = 4.0  # a unit of this part of the largest one is promised exactly its planned start

Bools = npt.NDArray[np.bool_]


class PlannedUnit(msgspec.Struct, eq=False):
    """The planned start of a waiting unit. `promise`: the latest start that it was promised."""

    unit: SchedulingUnit
    demand: Demand
    span: float  # seconds that it is expected to run
    start: float
    where: Assignment
    nodes: dict[str, int]  # node -> pods
    promise: float
    moved: Reason | None = None  # why the promise was moved later
    head: bool = False  # the first of its priority
    outranked: bool = False  # a unit of higher priority was placed on its nodes

    @property
    def until(self) -> float:
        return self.start + self.span

    @property
    def requests(self) -> Sequence[tuple[int, float]]:
        """Return what one pod requests: (resource, amount)."""
        return next(iter(self.unit.records.values())).shape.requests


class ReservedPod(msgspec.Struct, frozen=True):
    """Room that is reserved otherwise: by placeholders of a unit that is not planned here, or by nominations."""

    node: str
    record: PodRecord
    start: float
    until: float


class Asked(msgspec.Struct, frozen=True, eq=False):
    """What a unit needs: `pods` pods like `record` on `eligible` nodes, in one domain of the topology key `key`."""

    record: PodRecord
    key: str
    pods: int
    eligible: Bools  # (node,)


class QueuePlan:
    def __init__(
        self, state: ClusterState, run_times: RunTimes, group_of: Callable[[SchedulingUnit], Group | None]
    ) -> None:
        self._cluster = state
        self._run_times = run_times
        self._group_of = group_of
        self.units: dict[str, PlannedUnit] = {}  # by key, in the order in which they were planned
        self.tried: set[str] = set()  # keys of units that the last plan looked at
        self.unfinished = False  # the last plan did not look for the starts of all units
        self.lost: dict[str, Reason] = {}  # by key of the unit: why the last plan has no start for it any more
        self._keys: list[str] = []  # topology keys that units must stay in one domain of
        self._nodes: list[Any] = []  # Node objects from which `_topology` was made
        self._topology = TopologyLevels([], 0)
        self._rids: list[int] = []
        self._asked: dict[tuple[int, str, int], Asked | None] = {}
        self._profile: CapacityProfile | None = None
        self.searches = 0  # that the last plan may still have made
        self.due = 0.0
        self.lasts_until = 0.0  # when something ends or starts by plan
        self._made_of: tuple[object, ...] = ()

    # ---- planning

    def stands(self, waiting: Sequence[SchedulingUnit]) -> bool:
        """Whether nothing has happened since the last plan that could change it."""
        made_of = (
            self._cluster.columns.log.position,
            self._cluster.nominations.version,
            self._cluster.objects.version,
            len(waiting),
            max((unit.order for unit in waiting), default=0),
        )
        same = made_of == self._made_of and self._cluster.now < self.lasts_until and not self.unfinished
        self._made_of = made_of
        return same

    def make(
        self,
        waiting: Sequence[SchedulingUnit],
        held: Iterable[ReservedPod],
        slack_of: Callable[[str], float],
        allows: Callable[[PlannedUnit], bool],
    ) -> None:
        """Plan all of `waiting`, which are in order. `slack_of`: by scheduler name, how much later than planned a unit
        may be promised to start, as a share of its wait. `allows`: whether another start may be promised."""
        now = self._cluster.now
        self._asked, self.searches = {}, SEARCHES_PER_PLAN
        before, self.units = self.units, {}
        self.tried, self.unfinished, self.lost = set(), False, {}
        if not waiting:  # what runs need not be looked at
            self._profile, self.due, self.lasts_until = None, now + 1.0, FOREVER
            return
        running = self._running()
        self.due = now + max(1.0, (len(running) + 10 * len(waiting)) / PODS_PER_SECOND)
        self.lasts_until = min((end for _, end in running), default=FOREVER)
        if not (before or any(end != FOREVER for _, end in running)):
            self._profile = None
            return
        asking = self._asking(waiting)
        self.tried = {unit.key for unit, _ in asking}
        if not asking:
            self._profile = None
            return
        self._set_columns()
        demands = {id(asked): self._demand(asked) for asked in self._asked.values() if asked is not None}
        found = [(unit, demands[id(asked)]) for unit, asked in asking]
        free = self._base(running, held)
        profile = self._profile = free.copy()
        largest = max(unit_size(demand) for _, demand in found)
        failed: set[tuple[str, int, float]] = set()  # namespace, demand (by id) and span that get no start
        order = sorted(found, key=lambda each: self._order(each[0], before))
        heads: set[int] = set()
        for unit, demand in order:
            old, span = before.get(unit.key), self._run_times.expected_of(unit.records.values())
            head = unit.priority not in heads
            heads.add(unit.priority)
            if old is not None and self._keeps(profile, old, demand, span):
                old.head = head
                self._put(profile, old)
                continue
            self.unfinished = self.unfinished or not self.searches
            namespace = unit.key.split("/", 2)[1]
            if not self.searches or (old is None and (namespace, id(demand), span) in failed):
                continue
            place = self._earliest(profile, demand, span)
            if place is None:
                failed.add((namespace, id(demand), span))
                if old is not None:
                    self.lost[unit.key] = self._why_lost(free, demand, old)
                continue
            share = 0.0 if head else max(0.0, 1.0 - LARGE * unit_size(demand) / largest)
            slack = share * slack_of(next(iter(unit.records.values())).scheduler_name)
            planned = PlannedUnit(unit, demand, span, *place, {}, place[0] + slack * (place[0] - now), None, head)
            self._name_nodes(planned)
            if old is not None:
                self._move(free, planned, old)
            elif not allows(planned):
                failed.add((namespace, id(demand), span))
                continue
            self._put(profile, planned)
        self.lasts_until = min((self.lasts_until, *(each.start for each in self.units.values())))

    @staticmethod
    def _order(unit: SchedulingUnit, before: dict[str, PlannedUnit]) -> tuple[int, float, float, int]:
        old = before.get(unit.key)
        return (-unit.priority, old.promise if old is not None else FOREVER, unit.asked, unit.order)

    def _keeps(self, profile: CapacityProfile, old: PlannedUnit, demand: Demand, span: float) -> bool:
        """Take over the earlier start of a unit if the room is still there, or will be within `DRIFT_SECONDS`."""
        names, rows = self._cluster.columns.row_of, []
        for name in old.nodes:
            row = names.get(name, -1)
            if row < 0 or (demand.eligible is not None and not demand.eligible[row]):
                return False
            rows.append(row)
        same = old.demand.pods == demand.pods and old.demand.request == demand.request
        if not same or old.demand.level != demand.level:
            return False
        old.demand, old.where = demand, Assignment(np.array(rows, dtype=np.intp), np.array(list(old.nodes.values())))
        old.span = span
        start, last = max(old.start, self._cluster.now), max(old.promise, self._cluster.now) + DRIFT_SECONDS
        times = profile.times[(profile.times > start) & (profile.times <= min(start + DRIFT_SECONDS, last))]
        for at in (start, *times.tolist()):
            if profile.holds(demand, old.where, at, at + span):
                old.start = at
                return True
        return False

    def _earliest(self, profile: CapacityProfile, demand: Demand, span: float) -> tuple[float, Assignment] | None:
        self.searches -= 1
        return profile.earliest(demand, span, self._cluster.now)

    def _name_nodes(self, planned: PlannedUnit) -> None:
        names = self._cluster.columns.names
        pairs = zip(planned.where.rows.tolist(), planned.where.counts.tolist(), strict=True)
        planned.nodes = {names[row]: count for row, count in pairs}

    def _put(self, profile: CapacityProfile, planned: PlannedUnit) -> None:
        self.units[planned.unit.key] = planned
        start = max(planned.start, self._cluster.now)
        profile.change(start, self._aligned(profile, start + planned.span), planned.demand, planned.where, -1)

    @staticmethod
    def _aligned(profile: CapacityProfile, until: float) -> float:
        """Return when a reservation counts as ended: later than it is, if the profile has many pieces."""
        if until == FOREVER or profile.n < MOST_PIECES:
            return until
        at = int(profile.times.searchsorted(until))
        return float(profile.times[at]) if at < profile.n else FOREVER

    def _move(self, free: CapacityProfile, planned: PlannedUnit, old: PlannedUnit) -> None:
        """Keep the earlier promise if the new start is not later; otherwise say why it moves."""
        if planned.start <= old.promise:
            planned.promise = old.promise
        else:
            planned.moved = self._why_lost(free, planned.demand, old)

    def _why_lost(self, free: CapacityProfile, demand: Demand, old: PlannedUnit) -> Reason:
        rows = [self._cluster.columns.row_of.get(name, -1) for name in old.nodes]
        if min(rows) < 0 or (demand.eligible is not None and not demand.eligible[rows].all()):
            return Reason.NODE_LOST
        start = max(old.start, self._cluster.now)
        if old.outranked or free.holds(demand, old.where, start, start + old.span):
            return Reason.HIGHER_PRIORITY
        return Reason.OVERRAN

    # ---- questions

    def first_start(self, records: Sequence[PodRecord], group: Group | None) -> tuple[float, Assignment] | None:
        """Return when and where a unit that is not in the queue would start; None: it is not known."""
        profile, asked = self._profile, self._asked_by(records, group)
        if profile is None or asked is None or (asked.key and asked.key not in self._keys):
            return None
        if any(rid not in self._rids for rid, _ in asked.record.shape.requests):
            return None
        span = self._run_times.expected_of(records)
        return profile.earliest(self._demand(asked), span, self._cluster.now)

    # ---- what units ask for

    def _asking(self, waiting: Iterable[SchedulingUnit]) -> list[tuple[SchedulingUnit, Asked]]:
        """Return the units that are planned here, with what they need."""
        found = []
        for unit in waiting:
            group = self._group_of(unit)
            if unit.kind == "Pod" or group is not None:
                asked = self._asked_by(list(unit.records.values()), group)
                found += [(unit, asked)] if asked is not None else []
        return found

    def _asked_by(self, records: Sequence[PodRecord], group: Group | None) -> Asked | None:
        """Return what a unit needs; None: it is not planned here."""
        if not records or records[0].shape_epoch not in (self._cluster.interest.epoch, -1):
            return None
        shape, pods, key = records[0].shape, len(records), ""
        if shape.claims or any(record.shape is not shape or record.nominated for record in records):
            return None
        if group is not None:
            if not _is_plain(group):
                return None
            assert group.spec is not None
            pods, key = max(1, min(pods, group.spec.minimum)), group.spec.topology_key or ""
        known = (shape.id, key, pods)
        if known not in self._asked:
            eligible = self._eligible(records[0])
            self._asked[known] = Asked(records[0], key, pods, eligible) if eligible is not None else None
        return self._asked[known]

    def _eligible(self, record: PodRecord) -> Bools | None:
        """Return (node,) which nodes the filters allow, whatever is free there; None: a node alone cannot tell."""
        try:
            evaluation = self._cluster.evaluation(record)
        except PluginFailure:
            return None
        if evaluation.reaches_beyond or evaluation.cap() is not None or evaluation.pre_filter() is not None:
            return None
        columns = self._cluster.columns
        eligible = columns.alive[: columns.n].copy()
        for plugin, tracker in evaluation.filters:
            if not traits_of(plugin).room:
                eligible &= tracker.mask[: columns.n]
        return eligible

    def _demand(self, asked: Asked) -> Demand:
        level = self._keys.index(asked.key) if asked.key else -1
        return Demand(asked.pods, self._request(asked.record), level, asked.eligible)

    def _request(self, record: PodRecord) -> tuple[int, ...]:
        amounts = dict(record.shape.requests)
        return tuple(int(np.ceil(amounts.get(rid, 0.0))) for rid in self._rids)

    # ---- what is free

    def _set_columns(self) -> None:
        """Set which resources and topology keys the units of this plan ask for."""
        asked = [each for each in self._asked.values() if each is not None]
        self._rids = sorted({rid for each in asked for rid, _ in each.record.shape.requests})
        keys = sorted({each.key for each in asked if each.key})
        columns = self._cluster.columns
        if keys == self._keys and self._nodes == columns.nodes and self._topology.nodes == columns.n:
            return
        self._keys, self._nodes = keys, list(columns.nodes)
        labels = [node.metadata.labels if node is not None else {} for node in columns.nodes]
        self._topology = TopologyLevels([[each.get(key, "") for each in labels] for key in keys], columns.n)

    def _running(self) -> list[tuple[PodRecord, float]]:
        """Return all running pods with their expected end."""
        end_of = self._run_times.end_of
        return [(record, end_of(record)) for pods in self._cluster.columns.pods for record in pods.values()]

    def _base(self, running: Sequence[tuple[PodRecord, float]], held: Iterable[ReservedPod]) -> CapacityProfile:
        """Return what is free over time beside what runs and what is reserved otherwise."""
        columns, now, rids = self._cluster.columns, self._cluster.now, self._rids
        n = columns.n
        free = np.floor(columns.alloc[rids, :n] - columns.used[rids, :n]).astype(np.int64)
        free[:, ~columns.alive[:n]] = 0
        ends = np.unique(np.array([end for _, end in running if end != FOREVER]))
        if len(ends) > MOST_ENDS:
            ends = ends[np.ceil(np.linspace(0, len(ends) - 1, MOST_ENDS)).astype(np.intp)]
        gained = np.zeros((len(ends) + 1, len(rids), n), dtype=np.int64)
        index = {rid: number for number, rid in enumerate(rids)}
        for record, end in running:
            if end == FOREVER:
                continue
            at = int(ends.searchsorted(end)) + 1
            for rid, amount in record.shape.requests:
                if rid in index:
                    gained[at, index[rid], record.row] += int(amount)
        gained[0] = free
        profile = CapacityProfile.over(np.concatenate(([now], ends)), gained.cumsum(axis=0), self._topology)
        for each in held:
            self._take(profile, each)
        return profile

    def _take(self, profile: CapacityProfile, held: ReservedPod) -> None:
        row = self._cluster.columns.row_of.get(held.node, -1)
        if row >= 0:
            demand, where = Demand(1, self._request(held.record)), Assignment(np.array([row]), np.array([1]))
            profile.change(held.start, held.until, demand, where, -1)


def unit_size(demand: Demand) -> float:
    return float(demand.pods)


def _is_plain(group: Group) -> bool:
    """Whether a group is one gang of pods without rules beyond one topology domain, and without members on nodes."""
    if group.composite or group.spec is None or group.placed or group.policy.has_counts or group.policy.co_place_with:
        return False
    if group.policy.rank_placement != ANY:
        return False
    return expected_pods.announced_by(group) is None and not completion.wanted(group)
