"""Plan the starts of all waiting units together: pass what waits and runs to the start planner, read its reservations.

Units that are not planned here (see `unit_requests`) are planned one by one by attempts (`StartTimes`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.framework.settings import ReservationSettings
from phalanx.engine.reservations import FOREVER, Assignment, Backfill, Demand, PlanSettings, Reason, TopologyLevels
from phalanx.engine.reservations.live_start_planner import LiveStartPlanner
from phalanx.engine.reservations.units import StartPromise, Unit
from phalanx.engine.scheduling.attempt.room_over_time import ReservedPod, RoomOverTime
from phalanx.engine.scheduling.attempt.run_times import RunTimes
from phalanx.engine.scheduling.attempt.start_times import Planned, place_name
from phalanx.engine.scheduling.attempt.unit_requests import (
    PlannedUnit,
    Requests,
    RoomRequest,
    UnitRequest,
    UnitRequests,
)
from phalanx.engine.scheduling.queue.units import QueueName, SchedulingUnit
from phalanx.engine.state.columns import PODS
from phalanx.engine.state.records import PodRecord
from phalanx.model.groups import Group

RETRIES_PER_PLAN = 1  # units that are planned although equal ones found no place before
RETRIES_AT_ONCE = 10  # the same after nodes changed or one of them found a place
PODS_PER_SECOND = 10_000  # pods examined: running pods, and tenths of waiting units
BACKOFF_AGAIN = 10.0  # seconds in which a unit leaves backoff early once: its binds may fail each time
WORK_PER_EVENT = 300  # searches of the smallest size that one plan may take

Failed = tuple[str, tuple[int, str, int], float]  # namespace, request, and expected duration in seconds


class QueuePlan:
    def __init__(
        self, state: ClusterState, run_times: RunTimes, group_of: Callable[[SchedulingUnit], Group | None]
    ) -> None:
        self._cluster = state
        self._run_times = run_times
        self._room = RoomOverTime(state, run_times)
        self._requests = UnitRequests(state, run_times, group_of)
        self.planner: LiveStartPlanner | None = None
        self.units: dict[str, PlannedUnit] = {}  # by key
        self.on: dict[str, list[PlannedUnit]] = {}  # by node
        self.tried: set[str] = set()  # keys of units that the last plan examined
        self.promises: list[StartPromise] = []  # starts that the last plan promised, moved or withdrew
        self._keys: list[str] = []  # topology keys that units require one domain of
        self._nodes: list[Any] = []  # Node objects from which `_topology` was made
        self._topology = TopologyLevels([], 0)
        self._demands: dict[int, Demand] = {}  # by number of the request
        self._lost: list[str] = []  # keys of units that lost their nodes since the last plan
        self._failed: dict[Failed, None] = {}  # requests that found no place, the least recently tried first
        self._retries = 0  # of them, those to try again soon
        self._left_backoff: dict[str, float] = {}  # by key: when a unit left backoff because its room was free
        self.due = 0.0
        self._fingerprint: tuple[object, ...] = ()

    # ---- planning

    @property
    def lasts_until(self) -> float:
        """Return when a pod ends or a unit starts by plan."""
        return min(self._room.next_end(), self.planner.next_time()) if self.planner is not None else FOREVER

    @property
    def unfinished(self) -> bool:
        """Return True if the last plan did not search the starts of all units."""
        return self.planner is not None and (self.planner.unfinished or self._retries > 0)

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
        self, waiting: Sequence[SchedulingUnit], held: Iterable[ReservedPod], allows: Callable[[PlannedUnit], bool]
    ) -> None:
        """Plan all of `waiting`, which are in queue order. `allows`: returns whether another start may be promised."""
        now = self._cluster.now
        self.due, self.promises = now + 1.0, []
        if not waiting:  # running pods need not be examined
            self._clear()
            self._failed, self._retries = {}, 0
            return
        held = list(held)
        rows = self._room.changed(held, self.planner.plan.n) if self.planner is not None else None
        if self._room.changed_nodes:
            self._retries = len(self._failed)
        if rows is None or not self._same_nodes():
            requests = self._requests.of(waiting)
            if not self._build(requests, held):
                return
        else:
            requests = self._requests.of(waiting)
            if not self._is_known():
                if not self._build(requests, held):
                    return
            else:
                self._update(requests, rows)
        self.tried = set(requests)
        self._decide(requests, allows)

    def _clear(self) -> None:
        self.planner = None
        self.on.clear()
        self.units, self.tried = {}, set()
        self._requests.forget()
        self._demands = {}

    def _build(self, requests: Requests, held: list[ReservedPod]) -> bool:
        """Build a new planner; return False if no unit can be planned or no end is known."""
        before, waiting = self.units, [unit for unit, _ in requests.values()]
        self._clear()
        requests.clear()
        requests.update(self._requests.of(waiting))
        running = self._room.running()
        self.due += max(0.0, (len(running) + 10 * len(waiting)) / PODS_PER_SECOND - 1.0)
        if not requests or (not before and all(end == FOREVER for _, end in running)):
            return False
        rids = self._set_columns()
        self.planner = LiveStartPlanner(self._room.build(running, rids, self._topology, held), self._settings())
        held_on = sorted(self._room.rows_with_reservations())
        self.planner.set_rows({row: self._room.on(row) for row in held_on}, lambda row: Reason.OVERRAN)
        for key, planned in sorted(before.items(), key=lambda each: self._promised_order(each[1])):
            if key in requests:
                self._restore(*requests[key], planned)
        return True

    @staticmethod
    def _promised_order(planned: PlannedUnit) -> tuple[float, ...]:
        return (-planned.unit.priority, planned.promise, planned.unit.queued_at, planned.unit.order)

    def _restore(self, unit: SchedulingUnit, request: UnitRequest, old: PlannedUnit) -> None:
        """Keep the reservation of a unit in a new planner, if its room is still there."""
        assert self.planner is not None
        made, row_of = self._unit(unit, request), self._cluster.columns.row_of
        rows = np.array([row_of.get(name, -1) for name in old.nodes], dtype=np.intp)
        eligible, demand = made.demand.eligible, old.entry.unit.demand
        gone = bool((rows < 0).any()) or (eligible is not None and not eligible[rows].all())
        gone = gone or not self._topology.is_one_domain(made.demand.level, rows)
        same = demand.pods == made.demand.pods and (demand.level < 0) == (made.demand.level < 0)
        where = Assignment(rows, np.array(list(old.nodes.values()), dtype=np.int64)) if not gone and same else None
        place = None
        if where is not None and max(old.start, self._cluster.now) < old.entry.until:
            place = (old.start, max(old.entry.until, old.start + made.expected), where)
        if gone:
            self._lost.append(unit.key)
        lost = Reason.NODE_LOST if gone else Reason.HIGHER_PRIORITY if old.outranked else Reason.OVERRAN
        self.planner.restore(made, old.entry.promise, place, lost)

    def _settings(self) -> PlanSettings:
        """Return the settings of the first profile that promises starts."""
        profiles = [profile.reservations for profile in self._cluster.profiles.values()]
        chosen = next((each for each in profiles if each.backfill != Backfill.NONE), ReservationSettings())
        easy = chosen.backfill == Backfill.EASY
        return PlanSettings(
            Backfill(chosen.backfill),
            chosen.size_exponent,
            chosen.duration_exponent,
            work_per_event=WORK_PER_EVENT,
            work_per_later_event=WORK_PER_EVENT,
            drift=self._cluster.settings.start_drift,
            promise_slack=chosen.promise_slack if easy else 0.0,
        )

    def _same_nodes(self) -> bool:
        """Return True if no node came or left since the table was built. Call the filters again if one changed."""
        nodes, rows = self._cluster.columns.nodes, self._room.changed_nodes
        for row in rows:
            old, new = self._nodes[row], nodes[row]
            if old is None or new is None or old.metadata.name != new.metadata.name:
                return False
            if any(old.metadata.labels.get(key) != new.metadata.labels.get(key) for key in self._keys):
                return False
            self._nodes[row] = new
        self._requests.check(changed=bool(rows))
        return True

    def _is_known(self) -> bool:
        """Return True if the planner counts every requested resource and knows every topology key."""
        for request in self._requests.rooms.values():
            if request is None:
                continue
            if request.key and request.key not in self._keys:
                return False
            if any(rid not in self._room.rids for rid, _ in request.record.shape.requests):
                return False
        return True

    def _update(self, requests: Requests, rows: Iterable[int]) -> None:
        """Pass to the planner what happened since the last plan."""
        planner = self.planner
        assert planner is not None
        for key in sorted(planner.waiting.keys() - requests.keys()):
            self.forget(key)
        columns = self._cluster.columns
        reads = {row: read for row in sorted(rows) if (read := self._room.read_again(row)) is not None}
        planner.set_rows(reads, lambda row: self._why_less(row, columns.names[row]))
        for key in self._requests.changed:
            entry = planner.waiting.get(key)
            made = self._unit(*requests[key])
            if entry is None or (entry.unit.demand is made.demand and entry.unit.expected == made.expected):
                continue
            if made.demand.request == entry.unit.demand.request and made.demand.pods == entry.unit.demand.pods:
                planner.replace(made)
                if key in self.units:
                    self.units[key].shape = requests[key][1].room.record.shape
                if entry.where is None:
                    self._lost.append(key)
            else:
                self.forget(key)

    def _why_less(self, row: int, node: str) -> Reason:
        if row in self._room.changed_nodes:
            return Reason.NODE_LOST
        outranked = any(planned.outranked for planned in self.on.get(node, ()))
        return Reason.HIGHER_PRIORITY if outranked else Reason.OVERRAN

    def _decide(self, requests: Requests, allows: Callable[[PlannedUnit], bool]) -> None:
        planner = self.planner
        assert planner is not None
        tried = self._submit_new(planner, requests)
        out = planner.decide(self._cluster.now)
        for key in list(planner.changed):
            self._read(key, requests)
        planner.changed.clear()
        for key in list(planner.unplaced):
            self._failed[_failure(*requests[key])] = None
            self.forget(key)
        for promise in out.promises:
            key = promise.name
            if promise.moved_from is None and key in self.units and not allows(self.units[key]):
                self._failed[_failure(*requests[key])] = None
                self.forget(key)
                continue
            if key in requests and promise.where is not None:
                self._failed.pop(_failure(*requests[key]), None)
            self.promises.append(promise)
        self._promise_other_nodes()
        found = any(failure not in self._failed for failure in tried)
        self._retries = len(self._failed) if found else max(0, self._retries - len(tried)) if tried else 0

    def _promise_other_nodes(self) -> None:
        """Repeat the promises of units that lost their nodes and start at the same time on others."""
        moved, self._lost = set(self._lost).difference(promise.name for promise in self.promises), []
        for key in sorted(moved & self.units.keys()):
            entry = self.units[key].entry
            if entry.promise is not None:
                self.promises.append(StartPromise(key, entry.promise, entry.where))

    def _submit_new(self, planner: LiveStartPlanner, requests: Requests) -> set[Failed]:
        """Submit the units that are not planned; of those like one that found no place a few, which are returned."""
        new = {key: _failure(*requests[key]) for key in requests if key not in planner.waiting}
        kinds, most = set(new.values()), min(max(self._retries, RETRIES_PER_PLAN), RETRIES_AT_ONCE)
        again = set(itertools.islice((failure for failure in self._failed if failure in kinds), most))
        tried = set[Failed]()
        for key, failure in new.items():
            if failure in tried or (failure in self._failed and failure not in again):
                continue
            if failure in again:
                tried.add(failure)
                self._failed[failure] = self._failed.pop(failure)
            planner.submit(self._unit(*requests[key]))
        return tried

    def _read(self, key: str, requests: Requests) -> None:
        """Take over the reservation of a unit from the planner."""
        assert self.planner is not None
        entry, old = self.planner.waiting.get(key), self.units.get(key)
        if entry is None or entry.where is None:
            self._drop(key)
            return
        names = self._cluster.columns.names
        pairs = zip(entry.where.rows.tolist(), entry.where.counts.tolist(), strict=True)
        nodes = {names[row]: count for row, count in pairs}
        if old is None or old.entry is not entry:
            self._drop(key)
            unit, request = requests[key]
            record = request.room.record
            self.units[key] = old = PlannedUnit(unit, entry, record.shape, request.records[0].namespace)
        if nodes != old.nodes:
            self._leave_nodes(old)
            old.nodes = nodes
            for node in nodes:
                self.on.setdefault(node, []).append(old)

    def _leave_nodes(self, planned: PlannedUnit) -> None:
        for node in planned.nodes:
            left = [each for each in self.on.get(node, ()) if each is not planned]
            if left:
                self.on[node] = left
            else:
                self.on.pop(node, None)

    def _drop(self, key: str) -> None:
        planned = self.units.pop(key, None)
        if planned is not None:
            self._leave_nodes(planned)

    def forget(self, key: str) -> None:
        """Remove a unit from the plan."""
        self._drop(key)
        if self.planner is not None and key in self.planner.waiting:
            self.planner.remove(key)

    def may_start(self) -> list[PlannedUnit]:
        """Return the units that may start now by plan."""
        return (
            [self.units[key] for key in self.planner.proposed if key in self.units] if self.planner is not None else []
        )

    def ends_backoff(self, planned: PlannedUnit) -> bool:
        """Return True if a unit need not wait until its backoff ends, because its room is free since this plan."""
        unit, now = planned.unit, self._cluster.now
        if self.planner is None or unit.queue_name is not QueueName.BACKOFF or unit.gate[0]:
            return False
        if self.planner.proposed[unit.key] < now or self._left_backoff.get(unit.key, -FOREVER) + BACKOFF_AGAIN > now:
            return False
        self._left_backoff = {key: at for key, at in self._left_backoff.items() if at + BACKOFF_AGAIN > now}
        self._left_backoff[unit.key] = now
        return True

    def overdue(self, seconds: float) -> set[str]:
        """Return the keys of units that have not started for so long although they may start by plan."""
        proposed = self.planner.proposed if self.planner is not None else {}
        return {key for key, since in proposed.items() if since + seconds < self._cluster.now}

    # ---- questions

    def assignment(self, planned: PlannedUnit) -> list[tuple[PodRecord, int]]:
        """Return the planned node, by row, of every pod that is planned."""
        records = sorted(planned.unit.records.values(), key=PodRecord.sort_key)
        row_of = self._cluster.columns.row_of
        rows = [row_of[name] for name, count in planned.nodes.items() for _ in range(count) if name in row_of]
        return list(zip(records, rows, strict=False))

    def describe(self, planned: PlannedUnit) -> Planned:
        """Return the promised start of a unit, for messages."""
        assignment, columns = self.assignment(planned), self._cluster.columns
        rows, level = sorted({row for _, row in assignment}), planned.entry.unit.demand.level
        where = place_name(columns, rows, self._keys[level] if level >= 0 else "")
        return Planned(assignment, planned.promise, where, sum(len(columns.pods[row]) for row in rows))

    def first_start(self, records: Sequence[PodRecord], group: Group | None) -> tuple[float, Assignment] | None:
        """Return when and where a unit that is not in the queue would start; None: unknown, as when no unit is planned:
        then the last plan is out of date.

        The time is FOREVER if only planned units are in its way, and one of them has no known end.
        """
        request = self._requests.room_request(records, group)
        if self.planner is None or not self.units or request is None:
            return None
        if request.key and request.key not in self._keys:
            return None
        if any(rid not in self._room.rids for rid, _ in request.record.shape.requests):
            return None
        span = self._run_times.expected_of(records)
        found = self.planner.first_start(Unit("", self._demand(request), expected=span))
        return (max(found[0], self._cluster.now), found[1]) if found is not None else None

    # ---- requests of units

    def _unit(self, unit: SchedulingUnit, request: UnitRequest) -> Unit:
        demand = self._demand(request.room)
        return Unit(
            unit.key,
            demand,
            unit.priority,
            unit.queued_at,
            unit.order,
            request.span,
            _size(request.room.record) * demand.pods,
        )

    def _demand(self, room: RoomRequest) -> Demand:
        known = self._demands.get(room.number)
        if known is None:
            level = self._keys.index(room.key) if room.key else -1
            request = self._room.request_of(room.record)
            known = Demand(room.pods, request, level, room.eligible, room.eligible_id)
            self._demands[room.number] = known
        return known

    def _set_columns(self) -> list[int]:
        """Set the topology keys that the units of this plan request, and return the resources."""
        rooms = [each for each in self._requests.rooms.values() if each is not None]
        rids = sorted({rid for each in rooms for rid, _ in each.record.shape.requests})
        keys = sorted({each.key for each in rooms if each.key})
        columns = self._cluster.columns
        if keys != self._keys or self._nodes != columns.nodes or self._topology.nodes != columns.n:
            self._keys, self._nodes = keys, list(columns.nodes)
            labels = [node.metadata.labels if node is not None else {} for node in columns.nodes]
            self._topology = TopologyLevels([[each.get(key, "") for each in labels] for key in keys], columns.n)
        return rids


def _failure(unit: SchedulingUnit, request: UnitRequest) -> Failed:
    return (unit.key.split("/", 2)[1], request.room.wanted, request.span)


def _size(record: PodRecord) -> float:
    """Return how large one pod is in the order of the plan: its devices, or 1 if it has none."""
    return max((amount for rid, amount in record.shape.requests if rid > PODS and amount >= 1.0), default=1.0)
