"""Plan the starts of all waiting units together, on the free capacity of the nodes over time.

Only a unit of equal pods without rules about other pods is planned here: free resources and the verdicts of the filters
per node decide where it fits. Other units are planned one by one by attempts (`StartTimes`).

A promised start is kept while the room exists. Units without one get, in queue order, the earliest room that delays no
promise of equal or higher priority.
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
from phalanx.engine.scheduling.attempt.room_over_time import MOST_PIECES, PlannedUnit, ReservedPod, RoomOverTime
from phalanx.engine.scheduling.attempt.run_times import RunTimes
from phalanx.engine.scheduling.queue.units import SchedulingUnit
from phalanx.engine.state.records import PodRecord
from phalanx.model.groups import Group
from phalanx.model.groups.policy import ANY

SEARCHES_PER_PLAN = 64  # starts that are searched in one plan
MASK_SECONDS = 60.0  # after which the filters are called again
RETRIES_PER_PLAN = 1  # of these searches, for units for which none was found before
DRIFT_SECONDS = 10.0  # a start may be this much later than promised before the promise moves: pods start with a delay
PODS_PER_SECOND = 10_000  # pods examined: running pods, and tenths of waiting units
LARGE = 4.0  # a unit of at least 1/LARGE of the largest one is promised exactly its planned start

Bools = npt.NDArray[np.bool_]


class RoomRequest(msgspec.Struct, frozen=True, eq=False):
    """What a unit needs: `pods` pods like `record` on `eligible` nodes, in one domain of the topology key `key`."""

    record: PodRecord
    key: str
    pods: int
    eligible: Bools  # (node,)

    @property
    def wanted(self) -> Wanted:
        return (self.record.shape.id, self.key, self.pods)


class UnitRequest(msgspec.Struct, frozen=True, eq=False):
    """The request of a waiting unit, valid while its pods are unchanged."""

    records: list[PodRecord]
    history: int  # version of the run times that `span` was computed from
    group: tuple[object, object] | None  # its object and policy
    asked: RoomRequest
    span: float  # expected duration in seconds


Asking = list[tuple[SchedulingUnit, UnitRequest]]
Slack = Callable[[str], float]
Allows = Callable[[PlannedUnit], bool]
Wanted = tuple[int, str, int]  # shape (by id), topology key and number of pods
Failed = tuple[str, Wanted, float]  # namespace, request, and expected duration in seconds


class QueuePlan:
    def __init__(
        self, state: ClusterState, run_times: RunTimes, group_of: Callable[[SchedulingUnit], Group | None]
    ) -> None:
        self._cluster = state
        self._run_times = run_times
        self._group_of = group_of
        self._room = RoomOverTime(state, run_times)
        self.units: dict[str, PlannedUnit] = {}  # by key
        self.on: dict[str, list[PlannedUnit]] = {}  # by node
        self.tried: set[str] = set()  # keys of units that the last plan examined
        self.unfinished = False  # the last plan did not search the starts of all units
        self.lost: dict[str, Reason] = {}  # by key of the unit: why the last plan dropped its start
        self._keys: list[str] = []  # topology keys that units require one domain of
        self._nodes: list[Any] = []  # Node objects from which `_topology` was made
        self._topology = TopologyLevels([], 0)
        self._requests: dict[str, UnitRequest] = {}  # by key of the unit
        self._rids: list[int] = []
        self._asked: dict[Wanted, RoomRequest | None] = {}
        self._demands: dict[int, Demand] = {}  # by shape, topology key and number of pods
        self._failed: set[Failed] = set()
        self._masks_due = 0.0  # when to call the filters again
        self.searches = 0  # searches left in the present plan
        self.due = 0.0
        self.lasts_until = 0.0  # when a pod ends or a unit starts by plan
        self._fingerprint: tuple[object, ...] = ()

    # ---- planning

    def is_current(self, waiting: Sequence[SchedulingUnit]) -> bool:
        """Return True if nothing has happened since the last plan that could change it."""
        made_of = (
            self._cluster.columns.log.position,
            self._cluster.nominations.version,
            self._cluster.objects.version,
            len(waiting),
            max((unit.order for unit in waiting), default=0),
        )
        same = made_of == self._fingerprint and self._cluster.now < self.lasts_until and not self.unfinished
        self._fingerprint = made_of
        return same

    def make(
        self, waiting: Sequence[SchedulingUnit], held: Iterable[ReservedPod], slack_of: Slack, allows: Allows
    ) -> None:
        """Plan all of `waiting`, which are in queue order.

        `slack_of`: by scheduler name, the tolerated delay of a start as a share of the unit's wait. `allows`: returns
        whether another start may be promised. If possible, only units affected by a change are planned again.
        """
        now = self._cluster.now
        self.searches, self.unfinished, self.lost = SEARCHES_PER_PLAN, False, {}
        if not waiting:  # running pods need not be examined
            self._clear()
            self._failed = set()
            self.due, self.lasts_until = now + 1.0, FOREVER
            return
        held, self.due, before = list(held), now + 1.0, dict(self.units)
        rows = self._room.changed(held) if before else None
        asking = self._asking(waiting) if rows is not None and self._same_nodes() else []
        todo = self._affected(asking, rows, before) if rows is not None else None
        if todo is None:
            asking = self._begin(waiting, held, before)
            todo = [unit for unit, _ in asking]
            if not asking:
                return
        self.tried = {unit.key for unit, _ in asking}
        self._plan(asking, todo, before, slack_of, allows)
        starts = (each.start for each in self.units.values())
        self.lasts_until = min((self._room.next_end(), *starts))

    def _clear(self) -> None:
        self._room.forget()
        self.on.clear()
        self.units, self.tried = {}, set()
        self._requests, self._asked, self._demands = {}, {}, {}

    def _begin(
        self, waiting: Sequence[SchedulingUnit], held: list[ReservedPod], before: dict[str, PlannedUnit]
    ) -> Asking:
        """Build the table of free room and return the units to plan; none if no end is known."""
        self._clear()
        running, self.lasts_until = self._room.running(), FOREVER
        self.due += max(0.0, (len(running) + 10 * len(waiting)) / PODS_PER_SECOND - 1.0)
        if not before and all(end == FOREVER for _, end in running):
            return []
        asking = self._asking(waiting)
        if asking:
            self._set_columns()
            self._room.build(running, self._rids, self._topology, held, [each.start for each in before.values()])
        return asking

    def _same_nodes(self) -> bool:
        """Return True if no node came or left since the table was built. Mark the filters as stale if one changed."""
        nodes, rows = self._cluster.columns.nodes, self._room.changed_nodes
        for row in rows:
            old, new = self._nodes[row], nodes[row]
            if old is None or new is None or old.metadata.name != new.metadata.name:
                return False
            if any(old.metadata.labels.get(key) != new.metadata.labels.get(key) for key in self._keys):
                return False
            self._nodes[row] = new
        if rows or self._cluster.now >= self._masks_due:
            self._masks_due = self._cluster.now + MASK_SECONDS
            for wanted, asked in list(self._asked.items()):
                eligible = self._eligible(asked.record) if asked is not None else None
                if asked is None or eligible is None or not np.array_equal(eligible, asked.eligible):
                    del self._asked[wanted]
                    self._requests = {k: r for k, r in self._requests.items() if r.asked is not asked}
        return True

    def _affected(self, asking: Asking, rows: set[int], before: dict[str, PlannedUnit]) -> list[SchedulingUnit] | None:
        """Remove affected units from the plan. Return the units to plan; None: plan all of them again."""
        if not asking or not self._is_known():
            return None
        now, requests = self._cluster.now, {unit.key: request for unit, request in asking}
        for key in [key for key in self.units if key not in requests]:
            self.forget(key)
        for planned in list(self.units.values()):
            request = requests[planned.unit.key]
            late = planned.start + DRIFT_SECONDS < now
            if late or planned.span != request.span or not self._same(planned, request.asked):
                self.forget(planned.unit.key)
        self._drop_last(self._room.compute(rows | self._room.touched(), self.on))
        todo = [unit for unit, _ in asking if unit.key not in self.units]
        lowest = min((float(planned.unit.priority) for planned in self.units.values()), default=FOREVER)
        profile = self._room.profile
        assert profile is not None
        for unit in sorted((unit for unit in todo if unit.key in before), key=lambda each: self._order(each, before)):
            old, request = before[unit.key], requests[unit.key]
            if not self._keeps(profile, old, self._demand(request.asked), request.span):
                return None  # units with a later promised start may have to move
            self._put(profile, old)
        todo = [unit for unit in todo if unit.key not in before]
        outranks = (u for u in todo if u.priority > lowest and self._failure(u, requests[u.key]) not in self._failed)
        return todo if next(outranks, None) is None else None  # a new unit goes before planned ones: plan again

    def _same(self, planned: PlannedUnit, asked: RoomRequest) -> bool:
        return planned.demand is self._demands.get(id(asked))

    def _is_known(self) -> bool:
        """Return True if the table has columns for every requested resource and topology key."""
        for asked in self._asked.values():
            if asked is None:
                continue
            if asked.key and asked.key not in self._keys:
                return False
            if any(rid not in self._room.rids for rid, _ in asked.record.shape.requests):
                return False
        return True

    def _drop_last(self, short: Iterable[str]) -> None:
        """Remove the last units in queue order from nodes where less is free than planned."""
        lost: dict[str, PlannedUnit] = {}
        for node in short:
            kept: list[PlannedUnit] = []
            for planned in sorted(self.on.get(node, ()), key=lambda each: self._order(each.unit, self.units)):
                if planned.unit.key not in lost:
                    if self._room.beside(node, [*kept, planned]):
                        kept.append(planned)
                    else:
                        lost[planned.unit.key] = planned
        for key in lost:
            self.forget(key)
        self._room.compute(self._room.touched(), self.on)

    def _plan(
        self,
        asking: Asking,
        todo: Sequence[SchedulingUnit],
        before: dict[str, PlannedUnit],
        slack_of: Slack,
        allows: Allows,
    ) -> None:
        """Place units in order: each keeps its earlier start, or gets the earliest one that delays no other."""
        profile = self._room.profile
        assert profile is not None
        requests = {unit.key: request for unit, request in asking}
        heads, largest = set[str](), 0.0
        retries, again = RETRIES_PER_PLAN, set[Failed]()
        for unit in sorted(todo, key=lambda each: self._order(each, before)):
            request, old = requests[unit.key], before.get(unit.key)
            demand, failure = self._demand(request.asked), self._failure(unit, request)
            if old is not None and self._keeps(profile, old, demand, request.span):
                self._put(profile, old)
                continue
            if old is None and failure in self._failed:
                if not retries or failure in again:
                    continue
                retries -= 1
            self.unfinished = self.unfinished or not self.searches
            if not self.searches:
                continue
            if not heads:
                heads = self._heads([unit for unit, _ in asking], before)
                largest = max(unit_size(self._demand(request.asked)) for _, request in asking)
            planned = self._place(unit, demand, request.span, 0.0 if unit.key in heads else largest, slack_of)
            if planned is None or (old is None and not allows(planned)):
                self._failed.add(failure)
                again.add(failure)
                if old is not None:
                    self.lost[unit.key] = self._why_lost(demand, old)
                continue
            if old is not None:
                self._move(planned, old)
            self._failed.discard(failure)
            self._put(profile, planned)

    def _place(
        self, unit: SchedulingUnit, demand: Demand, span: float, largest: float, slack_of: Slack
    ) -> PlannedUnit | None:
        """Search the first start. `largest`: size of the largest unit; 0: its start is promised exactly."""
        self.searches -= 1
        now, profile = self._cluster.now, self._room.profile
        place = profile.earliest(demand, span, now) if profile is not None else None
        if place is None:
            return None
        share = max(0.0, 1.0 - LARGE * unit_size(demand) / largest) if largest else 0.0
        slack = share * slack_of(next(iter(unit.records.values())).scheduler_name)
        planned = PlannedUnit(unit, demand, span, *place, {}, place[0] + slack * (place[0] - now))
        self._name_nodes(planned)
        return planned

    @staticmethod
    def _failure(unit: SchedulingUnit, request: UnitRequest) -> Failed:
        return (unit.key.split("/", 2)[1], request.asked.wanted, request.span)

    def _heads(self, units: Iterable[SchedulingUnit], before: dict[str, PlannedUnit]) -> set[str]:
        """Return the key of the first unit of each priority."""
        first: dict[int, tuple[tuple[int, float, float, int], str]] = {}
        for unit in units:
            mine = (self._order(unit, before), unit.key)
            if unit.priority not in first or mine < first[unit.priority]:
                first[unit.priority] = mine
        return {key for _, key in first.values()}

    def forget(self, key: str) -> None:
        """Remove a unit from the plan."""
        planned = self.units.pop(key, None)
        for node in planned.nodes if planned is not None else ():
            left = [each for each in self.on.get(node, ()) if each is not planned]
            if left:
                self.on[node] = left
            else:
                self.on.pop(node, None)
        if planned is not None:
            self._room.touch(planned.nodes)

    def delay(self, planned: PlannedUnit, start: float) -> None:
        """Start a unit later than planned, on the same nodes."""
        planned.start = start
        self._room.touch(planned.nodes)

    @staticmethod
    def _order(unit: SchedulingUnit, before: dict[str, PlannedUnit]) -> tuple[int, float, float, int]:
        old = before.get(unit.key)
        return (-unit.priority, old.promise if old is not None else FOREVER, unit.asked, unit.order)

    def _keeps(self, profile: CapacityProfile, old: PlannedUnit, demand: Demand, span: float) -> bool:
        """Take over the earlier start of a unit if the room exists, or will within `DRIFT_SECONDS`."""
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

    def _name_nodes(self, planned: PlannedUnit) -> None:
        names = self._cluster.columns.names
        pairs = zip(planned.where.rows.tolist(), planned.where.counts.tolist(), strict=True)
        planned.nodes = {names[row]: count for row, count in pairs}

    def _put(self, profile: CapacityProfile, planned: PlannedUnit) -> None:
        self.units[planned.unit.key] = planned
        for node in planned.nodes:
            self.on.setdefault(node, []).append(planned)
        start = max(planned.start, self._cluster.now)
        profile.change(start, self._rounded_end(profile, start + planned.span), planned.demand, planned.where, -1)

    @staticmethod
    def _rounded_end(profile: CapacityProfile, until: float) -> float:
        """Return the end of a reservation, rounded up if the profile has many pieces."""
        if until == FOREVER or profile.n < MOST_PIECES:
            return until
        at = int(profile.times.searchsorted(until))
        return float(profile.times[at]) if at < profile.n else FOREVER

    def _move(self, planned: PlannedUnit, old: PlannedUnit) -> None:
        """Keep the earlier promise if the new start is not later; otherwise record why it moves."""
        if planned.start <= old.promise:
            planned.promise = old.promise
        else:
            planned.moved = self._why_lost(planned.demand, old)

    def _why_lost(self, demand: Demand, old: PlannedUnit) -> Reason:
        rows = [self._cluster.columns.row_of.get(name, -1) for name in old.nodes]
        if min(rows) < 0 or (demand.eligible is not None and not demand.eligible[rows].all()):
            return Reason.NODE_LOST
        if old.outranked or all(self._room.beside(node, [old]) for node in old.nodes):
            return Reason.HIGHER_PRIORITY
        return Reason.OVERRAN

    # ---- questions

    def first_start(self, records: Sequence[PodRecord], group: Group | None) -> tuple[float, Assignment] | None:
        """Return when and where a unit that is not in the queue would start; None: unknown."""
        profile, asked = self._room.profile, self._asked_by(records, group)
        if profile is None or asked is None or (asked.key and asked.key not in self._keys):
            return None
        if any(rid not in self._room.rids for rid, _ in asked.record.shape.requests):
            return None
        span = self._run_times.expected_of(records)
        return profile.earliest(self._demand(asked), span, self._cluster.now)

    # ---- requests of units

    def _asking(self, waiting: Iterable[SchedulingUnit]) -> Asking:
        """Return the units that are planned here with their requests."""
        known, self._requests, found = self._requests, {}, []
        nominated = self._nominated()
        for unit in waiting:
            group, records = self._group_of(unit), list(unit.records.values())
            if unit.kind != "Pod" and group is None:
                continue
            old = known.get(unit.key)
            same = old is not None and old.records == records and _is_same(old, group)
            same = same and not (nominated and any(key in unit.records for key in nominated))
            if old is None or not same or old.history != self._run_times.version:
                asked = self._asked_by(records, group)
                if asked is None:
                    continue
                span = self._run_times.expected_of(records)
                made_of = (group.source, group.policy) if group is not None else None
                old = UnitRequest(records, self._run_times.version, made_of, asked, span)
            self._requests[unit.key] = old
            found.append((unit, old))
        return found

    def _nominated(self) -> list[str]:
        """Return the keys of the nominated pods, without placeholders."""
        return [record.key for _, record in self._cluster.nominations.all() if record.uid]

    def _asked_by(self, records: Sequence[PodRecord], group: Group | None) -> RoomRequest | None:
        """Return the request of a unit; None: it is not planned here."""
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
        before = self._asked.get(known)
        if known not in self._asked or (before is not None and before.record.shape is not shape):
            eligible = self._eligible(records[0])
            self._asked[known] = RoomRequest(records[0], key, pods, eligible) if eligible is not None else None
        return self._asked[known]

    def _eligible(self, record: PodRecord) -> Bools | None:
        """Return (node,) the nodes that the filters allow apart from free room; None: the verdict is not per node."""
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

    def _demand(self, asked: RoomRequest) -> Demand:
        known = self._demands.get(id(asked))
        if known is None:
            level = self._keys.index(asked.key) if asked.key else -1
            known = self._demands[id(asked)] = Demand(
                asked.pods, self._room.request_of(asked.record), level, asked.eligible
            )
        return known

    def _set_columns(self) -> None:
        """Set the resources and topology keys that the units of this plan request."""
        asked = [each for each in self._asked.values() if each is not None]
        self._rids = sorted({rid for each in asked for rid, _ in each.record.shape.requests})
        keys = sorted({each.key for each in asked if each.key})
        columns = self._cluster.columns
        if keys == self._keys and self._nodes == columns.nodes and self._topology.nodes == columns.n:
            return
        self._keys, self._nodes = keys, list(columns.nodes)
        labels = [node.metadata.labels if node is not None else {} for node in columns.nodes]
        self._topology = TopologyLevels([[each.get(key, "") for each in labels] for key in keys], columns.n)


def unit_size(demand: Demand) -> float:
    return float(demand.pods)


def _is_same(old: UnitRequest, group: Group | None) -> bool:
    """Return True if the group of a unit is unchanged."""
    if group is None or old.group is None:
        return group is None and old.group is None
    return old.group[0] is group.source and old.group[1] is group.policy and not group.placed


def _is_plain(group: Group) -> bool:
    """Return True if a group is one gang without rules beyond one topology domain and without members on nodes."""
    if group.composite or group.spec is None or group.placed or group.policy.has_counts or group.policy.co_place_with:
        return False
    if group.policy.rank_placement != ANY:
        return False
    return expected_pods.announced_by(group) is None and not completion.wanted(group)
