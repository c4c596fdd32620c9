"""Reserve room for waiting units: where each one starts, and where one starts that was overtaken for too long.

If everything in its way has a known end, a unit is promised a start (`QueuePlan`). No unit of equal or lower priority
is placed where it would delay that start. Where ends are not known no unit starves all the same: younger units that fit
may overtake an older one, but only so far. After `starvationSeconds`, or when more than `maxOvertaken` younger units
have passed it, it gets a reservation.

Nodes that come one by one for a gang that was refused before (an autoscaler, a repair) are reserved for it, within
`nodesToComeSeconds` of the last one.

Room that is planned with all other units is checked where a placement would use it (`PromisedRoom`); the attempt is
then repeated with placeholders on those nodes. Room that is reserved otherwise is held by placeholders all the time.
They are nominated like the pods of preemptors: pods of equal and lower priority leave the room alone, more important
ones do not. A unit that is expected to end before the reservation begins may use the room (backfill). Nothing is ever
evicted for a reservation, and none survives its owner.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from phalanx.engine.framework import ClusterChange, Wake
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.groups.quota_room import exceeded
from phalanx.engine.reservations import FOREVER, Reason
from phalanx.engine.scheduling.attempt.partial_placement import partial_placement
from phalanx.engine.scheduling.attempt.room_over_time import PlannedUnit, ReservedPod
from phalanx.engine.scheduling.attempt.start_times import Planned
from phalanx.engine.scheduling.commit.held_starts import KEPT_WITHIN, WHY_MOVED, HeldStart, HeldStarts
from phalanx.engine.scheduling.commit.overtaking import REFUSED, StrictOrder, in_line, namespace_of, settings_of
from phalanx.engine.scheduling.commit.reservation_limits import PromiseLimits, refusal_of, room_at
from phalanx.engine.scheduling.lifecycle.members import Members
from phalanx.engine.scheduling.lifecycle.pod_lifecycle import PodLifecycle
from phalanx.engine.scheduling.lifecycle.pod_status import PROMISED, UNSCHEDULABLE, PodStatusWriter
from phalanx.engine.scheduling.lifecycle.unit_lifecycle import UnitLifecycle
from phalanx.engine.scheduling.queue.queue import Queue
from phalanx.engine.scheduling.queue.units import QueueName, SchedulingUnit, UnitState
from phalanx.engine.state.records import PodRecord

SWEEP_SECONDS = 1.0  # between two looks at the units that wait
PLANS_PER_SWEEP = 2  # starts that are planned in one sweep; each takes some attempts on the whole cluster
PODS_PER_SWEEP = 5_000  # pods whose ends are looked at, on average
PLAN_AGAIN_SECONDS = 30.0  # after which the start of a unit is planned again that has none
NEVER_AGAIN_SECONDS = 120.0  # the same for starving units that fit at no time: nodes must change first
_NEW = (QueueName.ACTIVE, QueueName.SEARCH)
_WAITS = _NEW + REFUSED
GANGS_PER_NODE = 8  # gangs in order for which nodes that came are tried


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
        self._late_again: dict[str, float] = {}  # by key of the unit: until when it is not planned with the others
        self._came: dict[str, None] = {}  # nodes that came, or became usable, since the last sweep
        self._had_nodes: set[str] = set()  # keys of units that waited too long for more nodes
        self._limited: dict[str, float] = {}  # namespace -> until when nothing more is planned: it has its share
        self._doubtful: dict[str, bool] = {}  # keys of units: pods were placed there; True: of higher priority
        self._due = 0.0
        self._ends_due, self._any_end = float("-inf"), False  # when to look for known ends again, and the last result
        self._tried: dict[str, float] = {}  # by key of the unit: when its start was last planned
        self._starving: dict[Hashable, float] = {}  # by class of starving units without a plan: when to plan again
        self._starving_due = FOREVER  # when a unit begins to starve, or is planned again
        self._seen: set[str] = set()  # keys of units in the queue at the last sweep that were tried before it
        self._swept: tuple[object, ...] = ()  # what the last sweep was made of
        self._quiet_until = 0.0  # when a sweep has something to do although nothing happened since the last one
        self.given = self.kept = self.late = self.withdrawn = 0  # promised starts, for metrics

    # ---- what happens

    def placed(self, unit: SchedulingUnit, pods: Iterable[PodRecord]) -> None:
        """Release what a unit reserved when it gets its nodes, and count older pending units as overtaken."""
        self.overtaking.of.pop(unit.key, None)
        pods = list(pods)
        if self._room:
            self.times.run_times.placed(pods)
        for planned, later in self._shifts.pop(pods[0].key, ()) if pods and self._shifts else ():
            self.plan.delay(planned, later)
        if unit.key in self.held:
            start = self.held[unit.key].planned.start
            if start is not None and self._cluster.now > start + KEPT_WITHIN:
                self.late += 1
            else:
                self.kept += 1
            self._release(unit.key, started=True)
        if self.held:
            self._note_taken(unit, pods)
        if self._queue.units:
            self.overtaking.place(unit)
            for following in self.strict_order.first_held_for_older():
                self._unit_lifecycle.admit(following)

    def _note_taken(self, unit: SchedulingUnit, pods: Iterable[PodRecord]) -> None:
        """Remember the reservations on whose nodes the pods of a unit were placed."""
        names = self._cluster.columns.names
        nodes = {names[record.row] for record in pods if record.row >= 0}
        self._room.outrank(nodes, unit.priority)
        for key, held in self.held.items():
            if held.entry is None and any(placeholder.nominated in nodes for placeholder in held.placeholders):
                self._doubtful[key] = self._doubtful.get(key, False) or unit.priority > held.unit.priority

    def node_came(self, name: str) -> None:
        """Note a node that was added, or that changed so that more pods may fit."""
        self._came[name] = None

    def sweep(self) -> None:
        """Before units are tried: count overtaken units, release what has no owner, reserve planned starts."""
        for key in [key for key, held in self.held.items() if self._queue.units.get(key) is not held.unit]:
            self._release(key)
        if self._came:
            came, self._came = self._came, {}
            self._reserve_nodes(came)
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
        self._swept, self._quiet_until = self._made_of(), min(again, self._due_by_time())

    def _made_of(self) -> tuple[object, ...]:
        """Return a value that differs when something happened that a sweep depends on."""
        state = self._cluster
        return (state.columns.log.position, state.nominations.version, state.objects.version, len(self._queue.units))

    def _due_by_time(self) -> float:
        """Return when a reservation has to be looked at again because of the time alone."""
        due = min(self._late_again.values(), default=FOREVER)
        for held in self.held.values():
            if held.entry is not None:
                due = min(due, held.entry.promise + KEPT_WITHIN)
            elif held.planned.start is not None:
                due = min(due, held.planned.start + SWEEP_SECONDS + 0.001)
            due = min(due, held.until)
        return due

    def _reserve_starving(self, waiting: list[SchedulingUnit]) -> None:
        """Reserve room for starving units, for a few per sweep: each plan takes some attempts on the whole cluster.

        Units of one equivalence class fail alike: the first one is planned for all of them, and again after a while.
        """
        now, due, without = self._cluster.now, FOREVER, dict[Hashable, SchedulingUnit]()
        for unit in waiting:
            known, settings = self.overtaking.of.get(unit.key), settings_of(self._cluster, unit)
            if known is None or not settings.starvation_seconds:
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
        first = sorted(without.items(), key=lambda entry: self._starving.get(entry[0], -FOREVER))[:PLANS_PER_SWEEP]
        self._starving = {key: again for key, again in self._starving.items() if again > now or key in without}
        for key, unit in first:
            planned = self._reserve(unit, Reason.STARVING)
            if unit.key not in self.held:
                seconds = PLAN_AGAIN_SECONDS if planned is not None or self.held else NEVER_AGAIN_SECONDS
                self._starving[key] = now + seconds
                due = min(due, now + seconds)
        self._starving_due = now if len(without) > len(first) else due

    def _waiting(self) -> list[SchedulingUnit]:
        """Return the units that wait for room, in order."""
        units = (u for u in self._queue.units.values() if u.place in _WAITS and u.state is UnitState.QUEUED)
        return sorted(units, key=in_line)

    def _withdraw_lost(self) -> None:
        """Release reservations that cannot be kept."""
        doubtful, self._doubtful = self._doubtful, {}
        for key, held in list(self.held.items()):
            lost = None
            if held.entry is not None:
                continue  # planned with the others
            if not self._stands(held):
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
        start = held.planned.start
        if held.reason is Reason.NODES_TO_COME:
            return room_at(self._cluster, held.placeholders, lambda record: False)
        end_of = self.times.run_times.end_of
        return start is None or room_at(self._cluster, held.placeholders, lambda record: end_of(record) <= start)

    # ---- nodes to come

    def _reserve_nodes(self, came: Iterable[str]) -> None:
        """Reserve nodes that came for the first gangs in order that were refused before and that can use them."""
        columns = self._cluster.columns
        rows = {columns.row_of[name] for name in came if name in columns.row_of}
        gangs = [u for u in self._waiting() if u.kind != "Pod" and u.attempts and len(u.records) > 1]
        for unit in gangs[:GANGS_PER_NODE]:
            seconds, held = settings_of(self._cluster, unit).nodes_to_come_seconds, self.held.get(unit.key)
            group = self._members.group_of(unit)
            if not rows or group is None or not seconds or unit.key in self._had_nodes:
                continue
            if held is not None and (held.planned.start is not None or held.entry is not None):
                continue  # it has a promised start
            own = [p for p in held.placeholders if held.reason is Reason.NODES_TO_COME] if held is not None else []
            mine = {columns.row_of[p.nominated] for p in own if p.nominated in columns.row_of}
            key = (group.spec.topology_key if group.spec is not None else "") or ""
            lifted = self.lift(list(unit.records.values()), in_line(unit))
            found = partial_placement(self._cluster, list(unit.records.values()), rows | mine, key)
            self.put_back(lifted)
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
        """Promise a start to every unit whose time is known: plan all plain units together, others one by one.

        Return when to do so again if nothing happens before.
        """
        now, plans, heads = self._cluster.now, PLANS_PER_SWEEP, {held.unit.priority for held in self.held.values()}
        due = self.plan.due
        if now >= self.plan.due:
            self._plan(waiting)
            due = FOREVER if not self.plan.units else max(self.plan.lasts_until, self.plan.due)
            due = self.plan.due if self.plan.unfinished else due
        for unit in waiting:
            backfill = settings_of(self._cluster, unit).backfill
            if unit.place not in REFUSED or unit.key in self.held or backfill == "None":
                continue
            if unit.key in self.plan.tried or any(record.nominated for record in unit.records.values()):
                continue  # victims leave for it
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
            self._seen = {key for key, unit in self._queue.units.items() if unit.place not in _NEW}
        return due

    # ---- all units together

    def _plan(self, waiting: list[SchedulingUnit]) -> None:
        """Plan all plain units again, and report what is new or has moved."""
        now = self._cluster.now
        asking = []
        for unit in waiting:
            held, settings = self.held.get(unit.key), settings_of(self._cluster, unit)
            known = held is not None and held.entry is not None
            if held is not None and held.entry is not None and now > held.entry.promise + KEPT_WITHIN:
                self._late_again[unit.key] = now + PLAN_AGAIN_SECONDS  # something else than room is in its way
            if self._late_again.get(unit.key, 0.0) > now or settings.backfill == "None":
                continue
            if known or (held is None and unit.place in REFUSED and not self._over_quota(unit)):
                asking.append(unit)
        if not asking and not self.plan.units:
            return
        if self.plan.stands(asking) and not self._late_again:
            return
        self._late_again = {key: until for key, until in self._late_again.items() if until > now}
        slack = {
            name: profile.reservations.promise_slack if profile.reservations.backfill == "Easy" else 0.0
            for name, profile in self._cluster.profiles.items()
        }
        limits = PromiseLimits(self._cluster, (held.entry for held in self.held.values()))
        self.plan.make(
            asking,
            self._held_otherwise(),
            slack.__getitem__,
            lambda planned: self._may_hold(planned, limits),
        )
        for key in [key for key, held in self.held.items() if held.entry is not None and key not in self.plan.units]:
            self._release(key, self.plan.lost.get(key, Reason.OVERRAN) if key in self._queue.units else None)
        for key, planned in self.plan.units.items():
            self._report_plan(key, planned)
        for planned in self.plan.units.values():  # others of its class may have been refused since
            if planned.start <= now and planned.unit.place is QueueName.WAITING:
                self._unit_lifecycle.admit(planned.unit)

    def _may_hold(self, planned: PlannedUnit, limits: PromiseLimits) -> bool:
        """Whether a start may be promised; the limits do not hold for starving units."""
        unit, settings = planned.unit, settings_of(self._cluster, planned.unit)
        return limits.allow(planned, settings) or self.overtaking.is_starving(unit, settings, self._cluster.now)

    def _over_quota(self, unit: SchedulingUnit) -> bool:
        return bool(exceeded(self._cluster, namespace_of(unit), list(unit.records.values())))

    def _held_otherwise(self) -> list[ReservedPod]:
        """Return the room that is reserved for others than units of the plan."""
        start_of = {
            id(p): (held.planned.start, self.times.run_times.expected_of(held.unit.records.values()))
            for held in self.held.values()
            if held.entry is None
            for p in held.placeholders
        }
        found = []
        for node, record in self._cluster.nominations.all():
            if record.row >= 0:
                continue
            start, span = start_of.get(id(record), (None, FOREVER))
            begin = self._cluster.now if start is None else start
            found.append(ReservedPod(node, record, begin, begin + span))
        return found

    def _report_plan(self, key: str, planned: PlannedUnit) -> None:
        """Hold the room of a planned start, and say when it is new or has moved later."""
        held = self.held.get(key)
        if held is not None and held.entry is planned:
            return
        if planned.moved is not None:
            self._moved[key] = planned.moved
            self.late += planned.moved is Reason.OVERRAN
            self.withdrawn += planned.moved is not Reason.OVERRAN
        moved = held is None or planned.moved is not None
        records = sorted(planned.unit.records.values(), key=PodRecord.sort_key)
        rows = [row for name, count in planned.nodes.items() for row in [self._cluster.columns.row_of[name]] * count]
        topology = self._members.group_of(planned.unit)
        level = (topology.spec.topology_key if topology is not None and topology.spec is not None else "") or ""
        waits_for = sum(len(self._cluster.columns.pods[row]) for row in set(rows))
        where = self.times.where(sorted(set(rows)), level)
        start = Planned(list(zip(records, rows, strict=False)), planned.promise, where, waits_for)
        reason = held.reason if held is not None else Reason.PROMISED
        self.held[key] = HeldStart(planned.unit, start, [], reason, entry=planned)
        self.given += held is None
        if moved:
            self._announce(planned.unit)

    def _has_new_units(self) -> bool:
        """Return True if a unit was queued that may get a promised start; without a known end there is none."""
        if len(self._queue.units) <= len(self._seen):
            return False
        return self._has_known_end()

    def _has_known_end(self) -> bool:
        """Whether a running pod has a known end. It looks at all pods: the more there are, the less often."""
        now = self._cluster.now
        if now >= self._ends_due:
            self._any_end = self.times.any_known_end()
            self._ends_due = now + SWEEP_SECONDS * max(1.0, len(self._cluster.records) / PODS_PER_SWEEP)
        return self._any_end

    def _is_late(self, held: HeldStart) -> bool:
        """Return True if the promised start has passed, because running pods take longer than expected."""
        start = held.planned.start
        return start is not None and start + SWEEP_SECONDS < self._cluster.now

    def _start_free(self) -> None:
        """Try the units whose reserved room is free: of an equivalence class, an event wakes only the first one."""
        for held in self.held.values():
            waits = held.unit.place is QueueName.WAITING and held.reason is not Reason.NODES_TO_COME
            if waits and held.placeholders and room_at(self._cluster, held.placeholders, lambda record: False):
                self._unit_lifecycle.admit(held.unit)

    def next_time(self) -> float | None:
        """Return the time in seconds at which `sweep` may have something to do."""
        if self._came:
            return self._cluster.now
        if self.overtaking.placed or self._has_new_units() or (self.held and self._made_of() != self._swept):
            return self._due
        due = self._starving_due if self.overtaking.of else FOREVER
        due = min(due, self._quiet_until) if self.held else due
        return max(self._due, due) if due < FOREVER else None

    # ---- reserving

    def _reserve(self, unit: SchedulingUnit, reason: Reason) -> Planned | None:
        """Hold the nodes of the unit's first start; return it, or None if the unit fits at no time.

        A promise needs a known time, a starving unit only nodes.
        """
        pressed = self._nominate_all_planned(in_line(unit))
        planned = self.times.plan(unit)
        self.withdraw_planned_starts(pressed)
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
        self._say(unit)
        group = self._members.group_of(unit)
        if group is not None:
            self._members.conditions.promise(group, "True", "Reserved", text)

    def _say(self, unit: SchedulingUnit) -> None:
        """Report on the pods of a unit when they start."""
        if promise := self.promise(unit):
            for record in unit.records.values():
                self._status.say(record, PROMISED, promise, event=False)

    def _limit(self, unit: SchedulingUnit, planned: Planned) -> str:
        """Say which limit forbids another reservation; "" if none does."""
        others = [p for key, held in self.held.items() if key != unit.key for p in held.placeholders]
        return refusal_of(self._cluster, unit, planned.assignment, others, settings_of(self._cluster, unit))

    def _release(self, key: str, lost: Reason | None = None, *, started: bool = False) -> None:
        """Release a reservation.

        `lost`: why the unit cannot start as promised.
        """
        held = self.held.pop(key)
        self._limited.clear()
        self._tried.pop(key, None)
        self._seen.discard(key)
        if lost is not None and held.planned.start is not None:
            self._moved[key] = lost
        self._free(held)
        if held.entry is not None:
            self.plan.forget(key)
            for name in held.entry.nodes:  # it was free to be used by others only until then
                self._queue.wake(ClusterChange(Wake.NOMINATION, self._cluster.columns.row_of.get(name, -1)))
        group = self._members.group_of(held.unit)
        if group is not None:
            message = "no room is reserved for it" + (f"; {WHY_MOVED[lost]}" if lost is not None else "")
            reason = "NotReserved" if lost is None else str(lost)
            if started:
                reason, message = "Started", "it has its nodes"
            self._members.conditions.promise(group, "False", reason, message)
        self._repeat_unschedulable(held)

    def _repeat_unschedulable(self, held: HeldStart) -> None:
        """Let pods that still wait say again that they fit nowhere: an autoscaler may help them now."""
        unit = held.unit
        if held.planned.start is None or unit.state is not UnitState.QUEUED:
            return
        waits = unit.equivalence_class
        message = unit.refusal.message if unit.refusal is not None else waits.message if waits is not None else ""
        for record in unit.records.values() if message else ():
            if record.said.startswith(PROMISED):
                self._status.say(record, UNSCHEDULABLE, message, event=False)


def _class_of(unit: SchedulingUnit) -> Hashable:
    """Return a key that units share which an attempt cannot tell apart."""
    waits_in = unit.equivalence_class if unit.place is QueueName.WAITING else None
    return waits_in.key if waits_in is not None else unit.key
