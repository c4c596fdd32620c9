"""Reservations of waiting units, as read by attempts, queries and messages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from copy import copy

import msgspec

from phalanx.base.clock import rfc3339
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.placement.outcome import plural
from phalanx.engine.reservations import FOREVER, Reason
from phalanx.engine.reservations.holders import DELAYED_MARK, WAITING_MARK, waiting_pod
from phalanx.engine.scheduling.attempt.queue_plan import QueuePlan
from phalanx.engine.scheduling.attempt.start_times import Planned, StartTimes
from phalanx.engine.scheduling.attempt.unit_requests import PlannedUnit
from phalanx.engine.scheduling.commit.overtaking import Overtaking, completes_gang, queue_order, settings_of
from phalanx.engine.scheduling.commit.promised_room import PromisedRoom
from phalanx.engine.scheduling.lifecycle.members import Members
from phalanx.engine.scheduling.lifecycle.pod_lifecycle import PodLifecycle
from phalanx.engine.scheduling.queue.units import SchedulingUnit
from phalanx.engine.state.records import PodRecord

WHY_MOVED = {
    Reason.OVERRAN: "a pod there runs longer than expected",
    Reason.NODE_LOST: "a node of its reservation is gone, cordoned or in another domain",
    Reason.HIGHER_PRIORITY: "a unit of higher priority took its room",
}
KEPT_WITHIN = 60.0  # seconds after the promised start until which the promise counts as kept


class HeldStart(msgspec.Struct):
    """The reservation of one waiting unit."""

    unit: SchedulingUnit
    fixed: Planned | None  # of a unit that is planned without the others
    placeholders: list[PodRecord]  # empty if the room is only checked by `PromisedRoom`
    reason: Reason
    until: float = FOREVER  # expiry of a reservation of arriving nodes
    entry: PlannedUnit | None = None  # None: planned without the other units
    describe: Callable[[PlannedUnit], Planned] | None = None

    @property
    def planned(self) -> Planned:
        if self.entry is not None and self.describe is not None:
            return self.describe(self.entry)
        assert self.fixed is not None
        return self.fixed

    @property
    def start(self) -> float | None:
        """Return the promised start; None: the unit starts as soon as the room is free."""
        return self.entry.promise if self.entry is not None else self.planned.start

    @property
    def begin(self) -> float | None:
        """Return when the unit starts to use the room; None: as soon as it is free."""
        return self.entry.start if self.entry is not None else self.planned.start


class HeldStarts:
    def __init__(self, state: ClusterState, pod_lifecycle: PodLifecycle, members: Members) -> None:
        self._cluster = state
        self._pod_lifecycle = pod_lifecycle
        self.times = StartTimes(state, members.group_of, members.waiting_pods)
        self.plan = QueuePlan(state, self.times.run_times, members.group_of)
        self._room = PromisedRoom(state, self.times.run_times, self.plan.on)
        self.held: dict[str, HeldStart] = {}  # by key of the unit
        self.overtaking = Overtaking()
        self._moved: dict[str, Reason] = {}  # by key of the unit: why its last promise was broken
        state.promises = self

    # ---- placeholders

    def _place_holders(self, rows: Iterable[tuple[PodRecord, int]], mark: str = WAITING_MARK) -> list[PodRecord]:
        placeholders = []
        for record, row in rows:
            placeholder = copy_of(record, mark)
            self._cluster.shapes.keep(placeholder.shape)
            self._pod_lifecycle.nominate(placeholder, self._cluster.columns.names[row], write=False, wake=False)
            placeholders.append(placeholder)
        return placeholders

    def _free(self, held: HeldStart) -> None:
        for placeholder in held.placeholders:
            self._pod_lifecycle.drop_placeholder(placeholder)

    # ---- checks

    def moved_because(self, key: str) -> str:
        """Return why the last promised start of a waiting unit was not kept."""
        return str(self._moved.get(key, ""))

    def _is_valid(self, held: HeldStart) -> bool:
        """Return True if all nodes of a reservation exist and its unit still requests the same pods."""
        names = self._cluster.columns.row_of
        records = held.unit.records
        return all(p.nominated in names for p in held.placeholders) and all(
            waiting_pod(p) in records for p in held.placeholders
        )

    # ---- attempts that would delay a promised start

    @property
    def any_promised(self) -> bool:
        return bool(self._room)

    def nominate_delayed(
        self, records: Sequence[PodRecord], assignment: Sequence[tuple[PodRecord, int]]
    ) -> Sequence[tuple[PodRecord, str]]:
        """Nominate the nodes of the units whose promise these pods would break; none: the pods may be placed."""
        if not self._room or not records or completes_gang(self._cluster, records):
            return ()
        own = self._own(records)
        until = self._end(records, own)
        priority = min(record.priority for record in records)
        keys = {own.unit.key} if own is not None else set()
        return self._nominate_planned(self._room.delayed(assignment, keys, priority, until))

    def _nominate_planned(self, units: Iterable[PlannedUnit]) -> list[tuple[PodRecord, str]]:
        made = [each for unit in units for each in self._place_holders(self.plan.assignment(unit), mark=DELAYED_MARK)]
        return [(placeholder, placeholder.nominated) for placeholder in made]

    def _nominate_all_planned(self, line: tuple[int, float, int]) -> list[tuple[PodRecord, str]]:
        """Nominate the nodes of every planned start that a unit at this place in the order must not delay."""
        units = [planned for planned in self.plan.units.values() if queue_order(planned.unit)[0] <= line[0]]
        return self._nominate_planned(units)

    def withdraw_planned_starts(self, temporary_nominations: Iterable[tuple[PodRecord, str]]) -> None:
        for placeholder, _ in temporary_nominations:
            self._pod_lifecycle.drop_placeholder(placeholder, wake=False)

    def _own(self, records: Sequence[PodRecord]) -> PlannedUnit | None:
        """Return the planned start of the unit with these pods."""
        first = records[0]
        return self.plan.units.get(f"podgroup/{first.namespace}/{first.group}" if first.group else f"pod/{first.key}")

    def _end(self, records: Collection[PodRecord], own: PlannedUnit | None) -> float:
        """Return the expected end of pods that start now. A unit that is due ends as planned: others are planned after
        it."""
        end = self._cluster.now + self.times.run_times.expected_of(records)
        due = own is not None and own.start <= self._cluster.now <= own.start + KEPT_WITHIN
        return min(end, own.until) if own is not None and due else end

    def differs_from_class(self, records: Sequence[PodRecord]) -> bool:
        """Return True if a unit may fit where equal ones do not: it has a reservation or a known end."""
        if not self._room or not records:
            return False
        return self._own(records) is not None or self.times.run_times.expected_of(records) != FOREVER

    # ---- attempts

    def ignore_reservations(
        self, records: Collection[PodRecord], line: tuple[int, float, int] | None = None
    ) -> list[tuple[PodRecord, str]]:
        """Remove, during an attempt, reservations that do not concern a unit with these pods.

        These are its own, those that begin after its expected end, and arriving nodes of units behind it. If the pods
        complete a gang that has started, these are all reservations of equal and lower priority. `line`: its place in
        the order (`queue_order`); by default that of its first pod.
        """
        end = self._end(records, self._own(list(records)) if records else None)
        own = {record.key for record in records}
        first = line if line is not None else min((record.sort_key() for record in records), default=None)
        completes = completes_gang(self._cluster, records)
        priority = max((record.priority for record in records), default=0)
        ignored = [
            held
            for held in self.held.values()
            if not own.isdisjoint(held.unit.records)
            or (completes and held.unit.priority <= priority)
            or self._begins_after(held, end)
            or (held.reason is Reason.NODES_TO_COME and first is not None and first < queue_order(held.unit))
        ]
        nodes = [(placeholder, placeholder.nominated) for held in ignored for placeholder in held.placeholders]
        for placeholder, _ in nodes:
            self._pod_lifecycle.nominate(placeholder, "", write=False, wake=False)
        return nodes

    def _begins_after(self, held: HeldStart, end: float) -> bool:
        return end != FOREVER and held.begin is not None and held.begin >= end

    def put_back(self, ignored: Iterable[tuple[PodRecord, str]]) -> None:
        """Restore the reservations after the attempt."""
        for placeholder, node in ignored:
            self._pod_lifecycle.nominate(placeholder, node, write=False, wake=False)

    def without(self, question: Callable[[], Planned | None]) -> bool:
        """Return True if a start exists without the reservations of other units. Changes nothing."""
        self._cluster.promises = None
        ignored = [(placeholder, placeholder.nominated) for placeholder in self.placeholders]
        for placeholder, _ in ignored:
            self._pod_lifecycle.nominate(placeholder, "", write=False, wake=False)
        try:
            return question() is not None
        finally:
            self._cluster.promises = self
            self.put_back(ignored)

    def starts_within_patience(self, unit: SchedulingUnit) -> str:
        """Return the message that nothing is evicted for a unit because it starts within `preemptionPatienceSeconds`,
        or ""."""
        patience, now = settings_of(self._cluster, unit).preemption_patience_seconds, self._cluster.now
        if not patience:
            return ""
        held = self.held.get(unit.key)
        planned = held.planned if held is not None else self.times.plan(unit)
        if planned is None or planned.start is None or not now <= planned.start <= now + patience:
            return ""
        return f"no pod is evicted for it: it is expected to start by {rfc3339(planned.start)} on {planned.where}"

    # ---- messages

    def promise(self, unit: SchedulingUnit) -> str:
        """Return when and where a unit with a reservation starts, as text; "" if that is unknown because it lacks
        nodes."""
        held = self.held.get(unit.key)
        if held is None or held.start is None:
            return ""
        return f"starts by {rfc3339(held.start)} on {held.planned.where}, where room is reserved for it"

    def sentence(self, unit: SchedulingUnit) -> str:
        """Return what a unit with a reservation waits for, as text; "" if it has none."""
        held = self.held.get(unit.key)
        if held is None:
            return ""
        if promise := self.promise(unit):
            return promise
        if held.reason is Reason.NODES_TO_COME:
            return f"lacks nodes; {self._nodes_text(held)}"
        pods = plural(held.planned.waits_for, "pod")
        return f"waits for {pods} on {held.planned.where} to end; room there is reserved for it"

    def text(self, unit: SchedulingUnit) -> str:
        """Return how often a unit was overtaken and what is reserved for it, as text; "" if neither."""
        parts = []
        known, held = self.overtaking.of.get(unit.key), self.held.get(unit.key)
        if known is not None:
            parts.append(f"overtaken by {known.count} younger {_units(unit, known.count)}")
        if held is not None and held.reason is Reason.NODES_TO_COME:
            parts.append(self._nodes_text(held))
        elif held is not None:
            start = held.start
            begin = f"from {rfc3339(start)}" if start is not None else "as soon as it is free"
            parts.append(f"reserved {held.planned.where} {begin}")
            if held.planned.waits_for:
                parts.append(f"waits for {plural(held.planned.waits_for, 'pod')} there to end")
        if unit.key in self._moved:
            parts.append(f"an earlier start was not kept: {WHY_MOVED[self._moved[unit.key]]}")
        return "; ".join(parts)

    def _nodes_text(self, held: HeldStart) -> str:
        share = f"{len(held.placeholders)} of {plural(len(held.unit.records), 'pod')}"
        return f"reserved {held.planned.where} for {share} until {rfc3339(held.until)}, in case more nodes come"

    @property
    def reserved_nodes(self) -> set[str]:
        """Return the nodes of promised starts, which no nomination shows."""
        return {node for planned in self.plan.units.values() for node in planned.nodes}

    @property
    def placeholders(self) -> list[PodRecord]:
        return [placeholder for held in self.held.values() for placeholder in held.placeholders]

    def validate(self) -> None:
        nominated = {id(record) for _, record in self._cluster.nominations.all()}
        for key, held in self.held.items():
            for placeholder in held.placeholders:  # a placeholder without a node is replaced by the next sweep
                known = not placeholder.nominated or id(placeholder) in nominated
                assert known, f"{key} lost the reservation of {placeholder.nominated}"


def _units(unit: SchedulingUnit, count: int) -> str:
    if unit.kind == "Pod":
        return "pod" if count == 1 else "pods"
    return "group or pod" if count == 1 else "groups or pods"


def copy_of(record: PodRecord, mark: str = WAITING_MARK) -> PodRecord:
    """Return a placeholder: equal to the pod for every filter, but without an object."""
    made = copy(record)
    made.key, made.uid, made.nominated, made.row = record.key + mark, "", "", -1
    return made
