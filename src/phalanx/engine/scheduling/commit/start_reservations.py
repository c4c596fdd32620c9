"""Reserve room for waiting units: promised starts, and starts of units that were overtaken for too long.

A unit is promised a start if all pods in its way have a known end (`QueuePlan`). No unit of equal or lower priority is
placed where it would delay that start. If ends are unknown, younger units that fit may overtake an older one, with a
limit: after `starvationSeconds`, or after more than `maxOvertaken` younger units, the older one gets a reservation.

Nodes that arrive one by one for a refused gang (an autoscaler, a repair) are reserved for it, within
`nodesToComeSeconds` of the last one.

Room that is planned together with all units is checked when a placement would use it (`PromisedRoom`); the attempt is
then repeated with placeholders on those nodes. Other reservations hold their room with placeholders all the time.
Placeholders are nominated like preemptors: only pods of higher priority, and units that are expected to end before the
reservation begins (backfill), use the room. Nothing is evicted for a reservation, which ends with its owner.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from phalanx.base.well_known import UNSCHEDULABLE
from phalanx.engine.framework import ClusterChange, Wake
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.groups.quota_room import exceeded
from phalanx.engine.reservations import FOREVER, Reason, StartPromise
from phalanx.engine.scheduling.attempt.partial_placement import partial_placement
from phalanx.engine.scheduling.attempt.room_over_time import ReservedPod
from phalanx.engine.scheduling.attempt.start_times import Planned
from phalanx.engine.scheduling.attempt.unit_requests import PlannedUnit
from phalanx.engine.scheduling.commit.held_starts import KEPT_WITHIN, WHY_MOVED, HeldStart, HeldStarts
from phalanx.engine.scheduling.commit.overtaking import REFUSED, StrictOrder, namespace_of, queue_order, settings_of
from phalanx.engine.scheduling.commit.reservation_limits import PromiseLimits, refusal_of, room_at
from phalanx.engine.scheduling.lifecycle.members import Members
from phalanx.engine.scheduling.lifecycle.pod_lifecycle import PodLifecycle
from phalanx.engine.scheduling.lifecycle.pod_status import PROMISED, PodStatusWriter
from phalanx.engine.scheduling.lifecycle.unit_lifecycle import UnitLifecycle
from phalanx.engine.scheduling.queue.queue import Queue
from phalanx.engine.scheduling.queue.units import QueueName, SchedulingUnit, UnitState
from phalanx.engine.state.records import PodRecord

SWEEP_SECONDS = 1.0  # between two sweeps of the waiting units
PLANS_PER_SWEEP = 2  # starts that are planned in one sweep; each takes some attempts on the whole cluster
PODS_PER_SWEEP = 5_000  # pods whose ends are read, on average
PODS_PER_PLANS = 2_000  # pods among which starts of starving units are planned in every sweep; with more of them rarer
PLAN_AGAIN_SECONDS = 30.0  # after which a unit without a start is planned again
NEVER_AGAIN_SECONDS = 120.0  # the same for starving units that never fit: nodes must change first
_NEW = (QueueName.ACTIVE, QueueName.SEARCH)
_WAITS = _NEW + REFUSED
STARTED = ("Started", "it has its nodes")
GANGS_PER_NODE = 8  # first gangs in order for which arriving nodes are tried


class StartReservations(HeldStarts):
    def __init__(
        self,
        state: ClusterState,
        queue: Queue,
        pod_lifecycle: PodLifecycle,
        unit_lifecycle: UnitLifecycle,
        members: Members,
        status: PodStatusWriter,
    ) -> None:
        super().__init__(state, pod_lifecycle, members)
        self._queue = queue
        self._unit_lifecycle = unit_lifecycle
        self._members = members
        self._status = status
        self.strict_order = StrictOrder(state, queue)
        self._planned_alone_until: dict[
            str, float
        ] = {}  # by key of the unit: until when it is planned without the others
        self._arrived_nodes: dict[str, None] = {}  # nodes that arrived, or became usable, since the last sweep
        self._had_nodes: set[str] = set()  # keys of units that waited too long for more nodes
        self._limited: dict[str, float] = {}  # namespace -> until when nothing is planned: it has its share
        self._doubtful: dict[str, bool] = {}  # keys of units on whose nodes pods were placed; True: of higher priority
        self._due = 0.0
        self._ends_due, self._any_end = float("-inf"), False  # when to search known ends again, and the last result
        self._tried: dict[str, float] = {}  # by key of the unit: when its start was last planned
        self._starving: dict[Hashable, float] = {}  # by class of starving units without a plan: when to plan again
        self._starving_due = FOREVER  # when a unit begins to starve, or is planned again
        self._plans_due = float("-inf")  # when starving units may be planned again
        self._seen: set[str] = set()  # keys of units that have waited or been gated since the last sweep
        queue.on_leave = lambda unit: self._seen.discard(unit.key)
        self._last_fingerprint: tuple[object, ...] = ()  # state at the last sweep
        self._quiet_until = 0.0  # until when no sweep is needed without an event
        self.given = self.kept = self.late = self.withdrawn = 0  # promised starts, for metrics

    # ---- events

    def placed(self, unit: SchedulingUnit, pods: Iterable[PodRecord]) -> None:
        """Release what a unit reserved when it gets its nodes, and count older pending units as overtaken."""
        self.overtaking.of.pop(unit.key, None)
        pods = list(pods)
        if self._room:
            self.times.run_times.placed(pods)
        if unit.key in self.held:
            start = self.held[unit.key].start
            if start is not None and self._cluster.now > start + KEPT_WITHIN:
                self.late += 1
            else:
                self.kept += 1
            self._release(unit.key, started=True)
        elif unit.key in self._moved and (group := self._members.group_of(unit)) is not None:
            self._members.conditions.promise(group, "False", *STARTED)
        self.plan.forget(unit.key)
        if self.held:
            self._note_taken(unit, pods)
        if self._queue.units:
            self.overtaking.place(unit)
            for following in self.strict_order.first_held_for_older():
                self._unit_lifecycle.admit(following)

    def _note_taken(self, unit: SchedulingUnit, pods: Iterable[PodRecord]) -> None:
        """Record the reservations on whose nodes the pods of a unit were placed."""
        names = self._cluster.columns.names
        nodes = {names[record.row] for record in pods if record.row >= 0}
        self._room.outrank(nodes, unit.priority)
        for key, held in self.held.items():
            if held.entry is None and any(placeholder.nominated in nodes for placeholder in held.placeholders):
                self._doubtful[key] = self._doubtful.get(key, False) or unit.priority > held.unit.priority

    def node_changed(self, name: str, *, usable: bool) -> None:
        """Record a node that was added or changed; `usable`: it may take more pods than before."""
        self._seen.clear()
        if usable:
            self._arrived_nodes[name] = None

    def sweep(self) -> None:
        """Count overtaken units, release reservations without an owner, reserve planned starts; called before
        attempts."""
        for key in [key for key, held in self.held.items() if self._queue.units.get(key) is not held.unit]:
            self._release(key)
        if self._arrived_nodes:
            arrived, self._arrived_nodes = self._arrived_nodes, {}
            self._reserve_nodes(arrived)
        now = self._cluster.now
        if now < self._due or not (self.overtaking.placed or self.held or self.overtaking.of or self._has_new_units()):
            return
        self._due = now + SWEEP_SECONDS
        waiting = self._waiting()
        self.overtaking.count(waiting, now)
        present = {unit.key for unit in waiting}
        self._tried = {key: at for key, at in self._tried.items() if key in present}
        self._moved = {key: why for key, why in self._moved.items() if key in present}
        self._had_nodes &= present
        self._withdraw_lost()
        again = self._promise(waiting)
        self._reserve_starving(waiting)
        self._start_free()
        self._last_fingerprint, self._quiet_until = self._fingerprint(), min(again, self._due_by_time())

    def _fingerprint(self) -> tuple[object, ...]:
        """Return a value that changes with everything that a sweep depends on."""
        state = self._cluster
        return (state.columns.log.position, state.nominations.version, state.objects.version, len(self._queue.units))

    def _due_by_time(self) -> float:
        """Return the time at which a reservation has to be checked again."""
        due = min(self._planned_alone_until.values(), default=FOREVER)
        for held in self.held.values():
            if held.entry is not None:
                due = min(due, held.entry.promise + KEPT_WITHIN)
            elif held.start is not None:
                due = min(due, held.start + SWEEP_SECONDS + 0.001)
            due = min(due, held.until)
        return due

    def _reserve_starving(self, waiting: list[SchedulingUnit]) -> None:
        """Reserve room for a few starving units per sweep: each plan takes some attempts on the whole cluster.

        Units of one equivalence class fail alike: only the first one is planned, and again after a while.
        """
        now, due, without = self._cluster.now, FOREVER, dict[Hashable, SchedulingUnit]()
        for unit in waiting if self.overtaking.of else ():
            known = self.overtaking.of.get(unit.key)
            if known is None or not (settings := settings_of(self._cluster, unit)).starvation_seconds:
                continue
            if not self.overtaking.is_starving(unit, settings, now):
                due = min(due, known.since + settings.starvation_seconds)
                continue
            held, key = self.held.get(unit.key), _class_of(unit)
            if held is not None:
                held.reason = Reason.STARVING if held.reason is Reason.PROMISED else held.reason
            elif self._starving.get(key, now) <= now:
                without.setdefault(key, unit)
            else:
                due = min(due, self._starving[key])
        plans = PLANS_PER_SWEEP if now >= self._plans_due else 0
        first = sorted(without.items(), key=lambda entry: self._starving.get(entry[0], -FOREVER))[:plans]
        if first:
            self._plans_due = now + SWEEP_SECONDS * max(1.0, len(self._cluster.records) / PODS_PER_PLANS)
        self._starving = {key: again for key, again in self._starving.items() if again > now or key in without}
        for key, unit in first:
            planned = self._reserve(unit, Reason.STARVING)
            if unit.key not in self.held:
                seconds = PLAN_AGAIN_SECONDS if planned is not None or self.held else NEVER_AGAIN_SECONDS
                self._starving[key] = now + seconds
                due = min(due, now + seconds)
        self._starving_due = self._plans_due if len(without) > len(first) else due

    def _waiting(self) -> list[SchedulingUnit]:
        """Return the units that wait for room, in queue order."""
        units = (u for u in self._queue.units.values() if u.queue_name in _WAITS and u.state is UnitState.QUEUED)
        return sorted(units, key=queue_order)

    def _withdraw_lost(self) -> None:
        """Release reservations that cannot be kept."""
        doubtful, self._doubtful = self._doubtful, {}
        for key, held in list(self.held.items()):
            lost = None
            if held.entry is not None:
                continue  # planned with the others
            if not self._is_valid(held):
                lost = Reason.NODE_LOST
            elif self._is_late(held):
                lost = Reason.OVERRAN
            elif key in doubtful and not self._fits(held):
                lost = Reason.HIGHER_PRIORITY if doubtful[key] else Reason.OVERRAN
            elif held.until <= self._cluster.now:
                self._had_nodes.add(key)
                self._release(key)
            if lost is not None:
                self.late += lost is Reason.OVERRAN
                self.withdrawn += lost is not Reason.OVERRAN
                self._release(key, lost)

    def _fits(self, held: HeldStart) -> bool:
        """Return True if the reserved room still exists. Pods without a known end may leave it at any time."""
        start = held.start
        if held.reason is Reason.NODES_TO_COME:
            return room_at(self._cluster, held.placeholders, lambda record: False)
        end_of = self.times.run_times.end_of
        return start is None or room_at(self._cluster, held.placeholders, lambda record: end_of(record) <= start)

    # ---- arriving nodes

    def _reserve_nodes(self, arrived: Iterable[str]) -> None:
        """Reserve arrived nodes for the first refused gangs in order that can use them."""
        columns = self._cluster.columns
        rows = {columns.row_of[name] for name in arrived if name in columns.row_of}
        gangs = [u for u in self._waiting() if u.kind != "Pod" and u.attempts and len(u.records) > 1]
        for unit in gangs[:GANGS_PER_NODE]:
            seconds, held = settings_of(self._cluster, unit).nodes_to_come_seconds, self.held.get(unit.key)
            group = self._members.group_of(unit)
            if not rows or group is None or not seconds or unit.key in self._had_nodes:
                continue
            if held is not None and (held.start is not None or held.entry is not None):
                continue  # it has a promised start
            own = [p for p in held.placeholders if held.reason is Reason.NODES_TO_COME] if held is not None else []
            mine = {columns.row_of[p.nominated] for p in own if p.nominated in columns.row_of}
            key = (group.spec.topology_key if group.spec is not None else "") or ""
            ignored = self.ignore_reservations(list(unit.records.values()), queue_order(unit))
            found = partial_placement(self._cluster, list(unit.records.values()), rows | mine, key)
            self.put_back(ignored)
            used = {row for _, row in found}
            if not used & rows or len(found) <= len(own):
                continue
            if held is not None:
                self._free(self.held.pop(unit.key))
            planned = Planned(found, None, self.times.where(sorted(used), key))
            if not self._limit(unit, planned):
                self._hold(unit, planned, Reason.NODES_TO_COME, self._cluster.now + seconds)
            rows -= used

    def _promise(self, waiting: list[SchedulingUnit]) -> float:
        """Promise a start to every unit whose time is known: plan plain units together, others one by one.

        Return when to run again if nothing happens before.
        """
        now, plans, heads = self._cluster.now, PLANS_PER_SWEEP, {held.unit.priority for held in self.held.values()}
        due = self.plan.due
        if now >= self.plan.due:
            self._plan(waiting)
            due = FOREVER if not self.plan.units else max(self.plan.lasts_until, self.plan.due)
            due = self.plan.due if self.plan.unfinished else due
        for unit in waiting:
            if unit.key in self.plan.tried or unit.key in self.held or unit.queue_name not in REFUSED:
                continue
            backfill = settings_of(self._cluster, unit).backfill
            if backfill == "None" or any(record.nominated for record in unit.records.values()):
                continue  # it waits for its victims
            first = unit.priority not in heads
            heads.add(unit.priority)
            again = self._tried.get(unit.key, -PLAN_AGAIN_SECONDS) + PLAN_AGAIN_SECONDS
            again = max(again, self._limited.get(namespace_of(unit), 0.0))
            if backfill == "Easy" and not first:
                continue
            if now < again:
                due = min(due, again)
                continue
            if not self._has_known_end():
                break
            due = min(due, now + PLAN_AGAIN_SECONDS if plans else now)
            if not plans:
                break
            plans -= 1
            self._tried[unit.key] = now
            self._reserve(unit, Reason.PROMISED)
        if plans and not self.plan.unfinished:
            self._seen = {key for key, unit in self._queue.units.items() if unit.queue_name not in _NEW}
        return due

    # ---- all units together

    def _plan(self, waiting: list[SchedulingUnit]) -> None:
        """Plan all plain units again, and report new or moved starts."""
        now, asking = self._cluster.now, self._to_plan(waiting)
        if not asking and not self.plan.units:
            return
        if self.plan.is_current(asking) and not self._planned_alone_until:
            return
        self._planned_alone_until = {key: until for key, until in self._planned_alone_until.items() if until > now}
        limits = PromiseLimits(self._cluster, (held.entry for held in self.held.values()))
        self.plan.make(
            asking,
            self._held_otherwise(),
            lambda planned: self._may_hold(planned, limits),
        )
        lost = {promise.name: promise.reason for promise in self.plan.promises if promise.where is None}
        for key in [key for key, held in self.held.items() if held.entry is not None and key not in self.plan.units]:
            self._release(key, lost.get(key, Reason.OVERRAN) if key in self._queue.units else None)
        for promise in self.plan.promises:
            if promise.name in self.plan.units:
                self._report_plan(self.plan.units[promise.name], promise)
        for planned in self.plan.may_start():  # other units of its class may have been refused since
            if planned.unit.queue_name is QueueName.WAITING or self.plan.ends_backoff(planned):
                self._unit_lifecycle.admit(planned.unit)

    def _to_plan(self, waiting: list[SchedulingUnit]) -> list[SchedulingUnit]:
        """Return the units that are planned together, if they are plain."""
        now, planned, found = self._cluster.now, self.plan.units, []
        for key in self.plan.overdue(KEPT_WITHIN):
            self._planned_alone_until[key] = now + PLAN_AGAIN_SECONDS  # something other than room prevents it
        alone = {key for key, until in self._planned_alone_until.items() if until > now}
        for unit in waiting:
            if unit.key in alone:
                continue
            if unit.key in planned or (unit.queue_name in REFUSED and self._may_plan(unit)):
                found.append(unit)
        return found

    def _may_plan(self, unit: SchedulingUnit) -> bool:
        if unit.key in self.held or settings_of(self._cluster, unit).backfill == "None":
            return False
        return not self._over_quota(unit)

    def _may_hold(self, planned: PlannedUnit, limits: PromiseLimits) -> bool:
        """Return True if a start may be promised; the limits do not apply to starving units."""
        unit, settings = planned.unit, settings_of(self._cluster, planned.unit)
        return limits.allow(planned, settings) or self.overtaking.is_starving(unit, settings, self._cluster.now)

    def _over_quota(self, unit: SchedulingUnit) -> bool:
        return bool(exceeded(self._cluster, namespace_of(unit), list(unit.records.values())))

    def _held_otherwise(self) -> list[ReservedPod]:
        """Return the room reserved for units outside the plan."""
        start_of: dict[int, tuple[float | None, float]] = {}
        for held in (each for each in self.held.values() if each.entry is None):
            expected = held.start, self.times.run_times.expected_of(held.unit.records.values())
            start_of |= {id(p): expected for p in held.placeholders}
        found: list[ReservedPod] = []
        for node, record in self._cluster.nominations.all():
            if record.row >= 0:
                continue
            start, span = start_of.get(id(record), (None, FOREVER))
            begin = self._cluster.now if start is None else start
            found.append(ReservedPod(node, record, begin, begin + span))
        return found

    def _report_plan(self, planned: PlannedUnit, promise: StartPromise) -> None:
        """Report a start that is new or moved later."""
        key = planned.unit.key
        held = self.held.get(key)
        if promise.moved_from is not None:
            self._moved[key] = promise.reason
            self.late += promise.reason is Reason.OVERRAN
            self.withdrawn += promise.reason is not Reason.OVERRAN
        reason = held.reason if held is not None else Reason.PROMISED
        self.held[key] = HeldStart(planned.unit, None, [], reason, entry=planned, describe=self.plan.describe)
        self.given += held is None
        self._announce(planned.unit)

    def _has_new_units(self) -> bool:
        """Return True if a queued unit may get a promised start; without a known end there is none."""
        if len(self._queue.units) <= len(self._seen):
            return False
        return self._has_known_end()

    def _has_known_end(self) -> bool:
        """Return True if a running pod has a known end. Reads all pods: the more there are, the less often."""
        now = self._cluster.now
        if now >= self._ends_due:
            self._any_end = self.times.any_known_end()
            self._ends_due = now + SWEEP_SECONDS * max(1.0, len(self._cluster.records) / PODS_PER_SWEEP)
        return self._any_end

    def _is_late(self, held: HeldStart) -> bool:
        """Return True if the promised start has passed, because running pods take longer than expected."""
        start = held.start
        return start is not None and start + SWEEP_SECONDS < self._cluster.now

    def _start_free(self) -> None:
        """Try the units whose reserved room is free: an event wakes only the first one of an equivalence class."""
        for held in self.held.values():
            waits = held.unit.queue_name is QueueName.WAITING and held.reason is not Reason.NODES_TO_COME
            if waits and held.placeholders and room_at(self._cluster, held.placeholders, lambda record: False):
                self._unit_lifecycle.admit(held.unit)

    def next_time(self) -> float | None:
        """Return the time in seconds at which `sweep` may have something to do."""
        if self._arrived_nodes:
            return self._cluster.now
        if (
            self.overtaking.placed
            or self._has_new_units()
            or (self.held and self._fingerprint() != self._last_fingerprint)
        ):
            return self._due
        due = self._starving_due if self.overtaking.of else FOREVER
        due = min(due, self._quiet_until) if self.held else due
        return max(self._due, due) if due < FOREVER else None

    # ---- reserving

    def _reserve(self, unit: SchedulingUnit, reason: Reason) -> Planned | None:
        """Hold the nodes of the unit's first start; return it, or None if the unit never fits.

        A promise needs a known time, a starving unit only nodes.
        """
        temporary_nominations = self._nominate_all_planned(queue_order(unit))
        planned = self.times.plan(unit)
        self.withdraw_planned_starts(temporary_nominations)
        if planned is None:
            return None
        if self._limit(unit, planned):
            self._limited[namespace_of(unit)] = self._cluster.now + PLAN_AGAIN_SECONDS
        elif reason is not Reason.PROMISED or (planned.start is not None and planned.waits_for):
            self._hold(unit, planned, reason)
        return planned

    def _hold(self, unit: SchedulingUnit, planned: Planned, reason: Reason, until: float = FOREVER) -> None:
        self._limited.clear()
        self.held[unit.key] = HeldStart(unit, planned, self._place_holders(planned.assignment), reason, until)
        self.given += planned.start is not None
        self._announce(unit)

    def _announce(self, unit: SchedulingUnit) -> None:
        text = self.text(unit)
        self._unit_lifecycle.notify(unit, "reserved", text)
        self._report_start(unit)
        group = self._members.group_of(unit)
        if group is not None:
            self._members.conditions.promise(group, "True", "Reserved", text)

    def _report_start(self, unit: SchedulingUnit) -> None:
        """Report the start on the pods of a unit."""
        if promise := self.promise(unit):
            for record in unit.records.values():
                self._status.report(record, PROMISED, promise, event=False)

    def _limit(self, unit: SchedulingUnit, planned: Planned) -> str:
        """Return which limit forbids another reservation, as text; "" if none does."""
        others = [p for key, held in self.held.items() if key != unit.key for p in held.placeholders]
        return refusal_of(self._cluster, unit, planned.assignment, others, settings_of(self._cluster, unit))

    def _release(self, key: str, lost: Reason | None = None, *, started: bool = False) -> None:
        """Release a reservation. `lost`: why the unit cannot start as promised."""
        held = self.held.pop(key)
        self._limited.clear()
        self._tried.pop(key, None)
        self._seen.discard(key)
        if lost is not None and held.start is not None:
            self._moved[key] = lost
        self._free(held)
        if held.entry is not None:
            self.plan.forget(key)
            for name in held.entry.nodes if not started else ():  # other units could use it only until then
                self._queue.wake(ClusterChange(Wake.NOMINATION, self._cluster.columns.row_of.get(name, -1)))
        group = self._members.group_of(held.unit)
        if group is not None:
            message = "no room is reserved for it" + (f"; {WHY_MOVED[lost]}" if lost is not None else "")
            reason = "NotReserved" if lost is None else str(lost)
            self._members.conditions.promise(group, "False", *(STARTED if started else (reason, message)))
        self._repeat_unschedulable(held)

    def _repeat_unschedulable(self, held: HeldStart) -> None:
        """Report pending pods as unschedulable again: an autoscaler may help them now."""
        unit = held.unit
        if held.start is None or unit.state is not UnitState.QUEUED:
            return
        waits = unit.equivalence_class
        message = unit.refusal.message if unit.refusal is not None else waits.message if waits is not None else ""
        for record in unit.records.values() if message else ():
            if record.last_condition.startswith(PROMISED):
                self._status.report(record, UNSCHEDULABLE, message, event=False)


def _class_of(unit: SchedulingUnit) -> Hashable:
    """Return the key of units that an attempt cannot tell apart."""
    waits_in = unit.equivalence_class if unit.queue_name is QueueName.WAITING else None
    return waits_in.key if waits_in is not None else unit.key
