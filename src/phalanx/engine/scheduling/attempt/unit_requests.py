"""What waiting units request of the plan, and what is reserved for them.

Only a unit of equal pods without rules about other pods is planned with the others: free resources and the verdicts of
the filters per node decide where it fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from phalanx.engine.framework.adapters import PluginFailure
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.framework.traits import traits_of
from phalanx.engine.groups import completion, expected_pods
from phalanx.engine.reservations import Assignment
from phalanx.engine.reservations.units import WaitingUnit
from phalanx.engine.scheduling.attempt.run_times import RunTimes
from phalanx.engine.scheduling.queue.units import SchedulingUnit
from phalanx.engine.state.records import PodRecord
from phalanx.engine.state.shapes import Shape
from phalanx.model.groups import Group
from phalanx.model.groups.policy import ANY

NO_HISTORY = -1
CHECKED_PER_PLAN = 100  # units whose pods and group are compared with those of the last plan
CHECK_SECONDS = 60.0  # after which the filters are called again and all pods of the units are compared

Bools = npt.NDArray[np.bool_]
Wanted = tuple[int, str, int]  # shape (by id), topology key and number of pods


class RoomRequest(msgspec.Struct, frozen=True, eq=False):
    """What a unit needs: `pods` pods like `record` on `eligible` nodes, in one domain of the topology key `key`."""

    record: PodRecord
    key: str
    pods: int
    eligible: Bools  # (node,)
    number: int  # differs for every request, also for an equal one with other eligible nodes
    eligible_id: int  # equal for requests with the same eligible nodes

    @property
    def wanted(self) -> Wanted:
        return (self.record.shape.id, self.key, self.pods)


class UnitRequest(msgspec.Struct, frozen=True, eq=False):
    """The request of a waiting unit, valid while its pods are unchanged."""

    records: list[PodRecord]
    history: int  # version of the run times that `span` was computed from; -1: it does not depend on them
    group: tuple[object, object] | None  # its object and policy
    room: RoomRequest
    span: float  # expected duration in seconds, stretched when the unit came


class PlannedUnit(msgspec.Struct, eq=False):
    """The reservation of a waiting unit."""

    unit: SchedulingUnit
    entry: WaitingUnit
    shape: Shape  # of its pods
    namespace: str
    nodes: dict[str, int] = {}  # node -> pods
    outranked: bool = False  # a unit of higher priority was placed on its nodes

    @property
    def start(self) -> float:
        return self.entry.start

    @property
    def span(self) -> float:
        return self.entry.span

    @property
    def until(self) -> float:
        return self.start + self.span

    @property
    def promise(self) -> float:
        """Return the latest start that was promised; its planned start if it may start now."""
        return self.entry.start if self.entry.promise is None else self.entry.promise

    @property
    def where(self) -> Assignment:
        assert self.entry.where is not None
        return self.entry.where

    @property
    def requests(self) -> Sequence[tuple[int, float]]:
        """Return what one pod requests: (resource, amount)."""
        return self.shape.requests


Requests = dict[str, tuple[SchedulingUnit, UnitRequest]]  # by key of the unit, in queue order


class UnitRequests:
    def __init__(
        self, state: ClusterState, run_times: RunTimes, group_of: Callable[[SchedulingUnit], Group | None]
    ) -> None:
        self._cluster = state
        self._run_times = run_times
        self._group_of = group_of
        self._requests: Requests = {}
        self.changed: list[str] = []  # keys of units whose request is not that of the last call of `of`
        self.rooms: dict[Wanted, RoomRequest | None] = {}
        self._numbers = 0
        self._eligible_ids: dict[bytes, int] = {}
        self._check_due = 0.0
        self._turn = 0  # which of the units are compared in the next plan
        self._checked: object = None  # version of the objects when the filters were called

    def forget(self) -> None:
        self._requests, self.rooms, self._eligible_ids = {}, {}, {}

    def of(self, waiting: Sequence[SchedulingUnit]) -> Requests:
        """Return the units that are planned together, with their requests. If many wait, some are checked in turn."""
        known, self._requests = self._requests, {}
        self.changed = []
        nominated, history = self._nominated(), (self._run_times.version, NO_HISTORY)
        turns = 1 + len(waiting) // CHECKED_PER_PLAN
        self._turn = (self._turn + 1) % turns
        in_turn = set(waiting[self._turn :: turns])
        for unit in waiting:
            key = unit.key
            pair = known.get(key)
            if pair is None or pair[0] is not unit or nominated or unit in in_turn or pair[1].history not in history:
                request = self._request_of(unit, pair[1] if pair is not None else None, nominated)
                if request is None:
                    continue
                pair = (unit, request)
            self._requests[key] = pair
        return self._requests.copy()

    def _request_of(self, unit: SchedulingUnit, old: UnitRequest | None, nominated: set[str]) -> UnitRequest | None:
        """Return the request of a unit, which is `old` if nothing changed; None: it is not planned with the others."""
        group = self._group_of(unit)
        if unit.kind != "Pod" and group is None:
            return None
        same = old is not None and _is_same(old, unit, group) and nominated.isdisjoint(unit.records)
        if same and old is not None and old.history in (self._run_times.version, NO_HISTORY):
            return old
        records = list(unit.records.values())
        room = self.room_request(records, group)
        if room is None:
            return None
        span = self._run_times.expected_of(records)
        made_of = (group.source, group.policy) if group is not None else None
        version = self._run_times.version if self._run_times.learned(records) else NO_HISTORY
        self.changed.append(unit.key)
        return UnitRequest(records, version, made_of, room, span)

    def _nominated(self) -> set[str]:
        """Return the keys of the nominated pods, without placeholders."""
        return {record.key for _, record in self._cluster.nominations.all() if record.uid}

    def room_request(self, records: Sequence[PodRecord], group: Group | None) -> RoomRequest | None:
        """Return the request of a unit; None: it is not planned with the others."""
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
        wanted = (shape.id, key, pods)
        before = self.rooms.get(wanted)
        if wanted not in self.rooms or (before is not None and before.record.shape is not shape):
            eligible = self._eligible(records[0])
            self.rooms[wanted] = self._request(records[0], key, pods, eligible) if eligible is not None else None
        return self.rooms[wanted]

    def _request(self, record: PodRecord, key: str, pods: int, eligible: Bools) -> RoomRequest:
        self._numbers += 1
        eligible_id = self._eligible_ids.setdefault(eligible.tobytes(), self._numbers)
        return RoomRequest(record, key, pods, eligible, self._numbers, eligible_id)

    def check(self, *, changed: bool) -> None:
        """Call the filters again if nodes changed, or after a while."""
        objects = self._cluster.objects.version
        if not changed and (self._cluster.now < self._check_due or objects == self._checked):
            return
        self._check_due, self._checked = self._cluster.now + CHECK_SECONDS, objects
        again: set[int] = set()
        for wanted, room in list(self.rooms.items()):
            eligible = self._eligible(room.record) if room is not None else None
            if room is None or eligible is None or not np.array_equal(eligible, room.eligible):
                del self.rooms[wanted]
                again.add(id(room))
        self._requests = {
            key: (unit, request)
            for key, (unit, request) in self._requests.items()
            if id(request.room) not in again and all(r.shape is request.records[0].shape for r in request.records)
        }

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


def _is_same(old: UnitRequest, unit: SchedulingUnit, group: Group | None) -> bool:
    """Return True if the pods and the group of a unit are unchanged. Compares the first and the last pod."""
    records = unit.records
    if len(records) != len(old.records) or not records:
        return False
    if next(iter(records.values())) is not old.records[0] or next(reversed(records.values())) is not old.records[-1]:
        return False
    if old.room.record.shape is not old.records[0].shape:
        return False
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
