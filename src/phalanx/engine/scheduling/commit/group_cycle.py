"""What becomes of an attempt of a group root: all of it is bound or nothing, and a root that was refused waits."""

from __future__ import annotations

from typing import Any

import msgspec

from phalanx.engine.framework import ClusterChange, Emit, Status, Wake
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.framework.traits import traits_of
from phalanx.engine.groups import messages
from phalanx.engine.groups.admission import shortages_of
from phalanx.engine.groups.build import Built
from phalanx.engine.scheduling.attempt.answers import Cause, NominatedAfterPreemption, Placed, Refused, carry_out
from phalanx.engine.scheduling.attempt.attempt import Attempts
from phalanx.engine.scheduling.attempt.sliced_attempts import SlicedAttempts
from phalanx.engine.scheduling.commit.binding import Binding
from phalanx.engine.scheduling.commit.evictions import Evictions
from phalanx.engine.scheduling.commit.group_reservations import GroupReservations
from phalanx.engine.scheduling.lifecycle.members import Members
from phalanx.engine.scheduling.lifecycle.pod_lifecycle import PodLifecycle
from phalanx.engine.scheduling.lifecycle.pod_status import SCHEDULER_ERROR, UNSCHEDULABLE, PodStatus
from phalanx.engine.scheduling.lifecycle.reserve_permit import rehearse
from phalanx.engine.scheduling.lifecycle.unit_lifecycle import UnitLifecycle
from phalanx.engine.scheduling.queue.queue import Queue
from phalanx.engine.scheduling.queue.units import EquivalenceClass, Refusal, SchedulingUnit
from phalanx.engine.scheduling.queue.waiting import Interest, Waiting
from phalanx.engine.state.records import PodRecord
from phalanx.engine.state.shapes import Shape
from phalanx.model.groups import Group, GroupKey

SEATS = 2  # committed with one step of work


class Sleep(msgspec.Struct, frozen=True):
    """What a bucket of group roots waits for."""

    interests: tuple[Interest, ...]
    refusal: Refusal
    nodes: bool  # any change of nodes may matter: members there dictate a domain, or a plan counts on them


class GroupCycle:
    def __init__(
        self,
        state: ClusterState,
        queue: Queue,
        members: Members,
        pod_lifecycle: PodLifecycle,
        unit_lifecycle: UnitLifecycle,
        binding: Binding,
        attempts: Attempts,
        searches: SlicedAttempts,
        evictions: Evictions,
        room: GroupReservations,
        waiting: Waiting,
        status: PodStatus,
        emit: Emit,
    ) -> None:
        self._cluster = state
        self._columns = state.columns
        self._queue = queue
        self._members = members
        self._pod_lifecycle = pod_lifecycle
        self._unit_lifecycle = unit_lifecycle
        self._binding = binding
        self._attempts = attempts
        self._searches = searches
        self._evictions = evictions
        self._room = room
        self._waiting = waiting
        self._status = status
        self._emit = emit
        self._said = members.conditions
        self._commits = members.commits

    def run(self, unit: SchedulingUnit, group: Group, scout_of: EquivalenceClass | None) -> None:
        """Leaves the root in a place of the queue, or without pods. `scout_of`: from where it was woken."""
        tree = self._members.tree(unit, group)
        # A plugin at a group point may tell groups apart that the engine cannot.
        alike = not group.composite and self._attempts.points(tree) is None
        key = _twins(unit, group) if alike else None
        equivalence_key = self._queue.sleeping(key) if alike else None
        if equivalence_key is not None:
            self._join(unit, group, equivalence_key)
            return
        representative = self._searches.representative(key) if alike and self._searches.unfinished else None
        if representative is not None and representative is not unit:
            self._queue.stand_by(unit, representative, key)
            return
        self._unit_lifecycle.drop_stale_plan(unit)
        answer = self._searches.answer(unit, tree, key)
        if answer is None:
            self._queue.put_aside(unit, scout_of)
            self._unit_lifecycle.tell(unit, "searching", "others are served before the search for a place goes on")
            return
        carry_out(answer, self._emit)
        if isinstance(answer, Placed):
            self._commit(unit, group, answer)
        elif isinstance(answer, NominatedAfterPreemption):
            self._evictions.carry_out_for_group(unit, tree, answer)
            self._room.keep(answer.expected_placements, self._room.beginning(group))
            self._refuse(unit, group, answer.refused)
        elif answer.cause is Cause.WHOLE or answer.again:
            # Room for the whole may come from anywhere: no event tells it, so it is tried again.
            self._tell(unit, group, Refusal(answer.text, None, {}))
            self._unit_lifecycle.back_off(unit)
        elif answer.built is None:
            if answer.cause is Cause.TORN:
                self._commits.release(group, unit.key)  # a gang that was never complete must not stay in the way
            self._error(unit, group, answer.message)
        else:
            if answer.releases:
                self._commits.release(group, unit.key)
            if answer.gives_up:
                self._give_up(unit, group)
            self._refuse(unit, group, answer)

    def _give_up(self, unit: SchedulingUnit, group: Group) -> None:
        """No plan, no promises: others may have the room."""
        for record in unit.records.values():
            if record.nominated:
                self._pod_lifecycle.nominate(record, "")
        self._room.follow(leaf.key for leaf in self._members.forest.leaves(group.key))

    # ---- success

    def _commit(self, unit: SchedulingUnit, group: Group, placed: Placed) -> None:
        """Reserve for everybody, Permit for everybody, then bind. One refusal, and nobody was ever assumed."""
        assignment = placed.assignment
        self._searches.spent += len(assignment) // SEATS
        beginning = self._room.beginning(group) if placed.expected_placements else frozenset()
        refused = rehearse(self._cluster, assignment, waiting_is_refusal=True)
        if refused is not None:
            self._turn_down(unit, group, *refused)
            return
        self._unit_lifecycle.commit(unit, len(assignment))
        self._pod_lifecycle.assume(unit, assignment)
        unit.refusal = None
        self._commits.begin(group.key)
        self._room.keep(placed.expected_placements, beginning)
        self._binding.together(unit, assignment)
        assert placed.built is not None
        self._rest(unit, placed.built, {group.key for group in placed.satisfied})

    def _turn_down(self, unit: SchedulingUnit, group: Group, refused: PodRecord, status: Status) -> None:
        text = messages.refused_pod(refused.key, status.message)
        self._unit_lifecycle.tell(unit, "taken back", text)
        reason = UNSCHEDULABLE if status.rejected else SCHEDULER_ERROR
        for record in unit.records.values():
            self._status.say(record, reason, text)
        self._conditions(group, reason, text)
        self._unit_lifecycle.back_off(unit)

    def _rest(self, unit: SchedulingUnit, built: Built, satisfied: set[GroupKey]) -> None:
        """Pods that did not get a place although their root did: try them on their own at once (bind first, preempt
        later); groups whose minimum was not met are told so."""
        if not unit.records:
            return
        for part, member in built.group_of.items():
            short = member.composite or bool(built.pending.get(part))
            if short and member.key not in satisfied:
                text = f"{messages.UNSCHEDULABLE}, its siblings were placed and left no room for {member.key}"
                self._say(member, UNSCHEDULABLE, text)
        self._unit_lifecycle.admit(unit)

    # ---- failure

    def _refuse(self, unit: SchedulingUnit, group: Group, refused: Refused) -> None:
        message = refused.text
        texts: dict[Shape, str] = {}
        for record in unit.records.values():
            if record.shape not in texts:
                texts[record.shape] = self._own_message(record, message)
        refusal = Refusal(message, refused.outcome, texts)
        self._tell(unit, group, refusal)
        if refused.releases:
            self._unit_lifecycle.back_off(unit)  # an eviction may be refused: look again
        else:
            assert refused.built is not None
            self._sleep(unit, group, refused.built, refusal)

    def _tell(self, unit: SchedulingUnit, group: Group, refusal: Refusal) -> None:
        unit.refusal = refusal
        self._unit_lifecycle.tell(unit, "refused", refusal.message)
        for record in unit.records.values():
            self._status.say(record, UNSCHEDULABLE, refusal.texts.get(record.shape, refusal.message))
        self._conditions(group, UNSCHEDULABLE, refusal.message)

    def _join(self, unit: SchedulingUnit, group: Group, equivalence_class: EquivalenceClass) -> None:
        """A gang like this one failed, and nothing happened since that could help: it need not be tried."""
        self._tell(unit, group, equivalence_class.waits_for.refusal)
        self._queue.join(unit, equivalence_class)

    def _own_message(self, record: PodRecord, group_message: str) -> str:
        """A pod that fits nowhere is told why; one that only lacks its fellows is told that."""
        evaluation = self._cluster.evaluation(record)
        if evaluation.best() >= 0 and evaluation.pre_filter() is None:
            return group_message
        return evaluation.diagnose().message

    def _conditions(self, group: Group, reason: str, message: str) -> None:
        for member in self._members.forest.tree(group.key):
            if member.spec is not None and not member.satisfied:
                self._say(member, reason, message)

    def _say(self, group: Group, reason: str, message: str) -> None:
        """To one group of a tree that was tried; one that could not be placed for want of members is told that."""
        if reason == UNSCHEDULABLE and (shortages := shortages_of(self._members.forest, group)):
            reason, message = messages.WAITING, messages.lacking(shortages)
        self._said.say(group, "False", reason, message)

    def _error(self, unit: SchedulingUnit, group: Group, message: str) -> None:
        self._unit_lifecycle.tell(unit, "error", message)
        for record in unit.records.values():
            self._status.say(record, SCHEDULER_ERROR, message)
        self._conditions(group, SCHEDULER_ERROR, message)
        self._unit_lifecycle.back_off(unit)

    # ---- waiting

    def _sleep(self, unit: SchedulingUnit, group: Group, built: Built, refusal: Refusal) -> None:
        wakes = Wake.NOTHING
        interests = []
        strict = True
        alive = self._columns.alive
        for shape, evaluation in zip(built.shapes, built.evaluations, strict=True):
            profile = evaluation.profile
            strict = strict and profile.fit_is_strict
            cross = []
            for plugin, tracker in evaluation.filters:
                if plugin in profile.row_filters or (not built.coupled and tracker.mask[alive].all()):
                    continue  # asked row by row, or not in the way
                cross.append(plugin)
                wakes |= traits_of(plugin).wakes_on
            if evaluation.pre_filter() is not None:
                wakes = Wake.ANY
            interest, more = self._waiting.interest(profile, shape, unit.priority, cross)
            wakes |= more
            interests.append(interest)
        planned = any(record.nominated for record in unit.records.values())
        running = any(member.seated for member in built.group_of.values())
        nodes = planned or (running and bool(built.problem.domains))
        if nodes:
            wakes |= Wake.NODE
        # A plan to make room is one root's own; everything else holds for all gangs like this one.
        own = built.coupled or planned or self._attempts.points(self._members.tree(unit, group)) is not None
        equivalence_class = self._queue.wait(
            unit,
            ("root", unit.key) if own else _twins(unit, group),
            wakes,
            self._worth,
            self._cluster.now,
            message=refusal.message,
            waits_for=Sleep(tuple(interests), refusal, nodes),
            needs=_least(built.shapes) if strict else (),
        )
        self._waiting.be_patient(equivalence_class, unit.priority)
        untold, equivalence_class.untold = equivalence_class.untold, []
        for twin in untold:
            if twin.equivalence_class is equivalence_class and (its := self._members.group_of(twin)):
                self._tell(twin, its, refusal)
        for shape in built.shapes:
            self._cluster.evaluations.rest(shape)
        if self._searches.missed != []:
            self._queue.missed(equivalence_class, self._searches.missed)

    def _worth(self, equivalence_class: EquivalenceClass, change: ClusterChange) -> bool:
        if self._unit_lifecycle.expects(equivalence_class.key[1], change):  # type: ignore[index]
            return False  # one of its victims: it is tried when the last one is gone
        sleep: Sleep = equivalence_class.waits_for
        if sleep.nodes and change.kind & Wake.NODE:
            return True
        return any(self._waiting.helps(interest, change) for interest in sleep.interests)


def _twins(unit: SchedulingUnit, group: Group) -> tuple[Any, ...]:
    """The bucket of gangs that no attempt can tell apart; the root's own where something sets it apart."""
    spec = group.spec
    if group.composite or spec is None or group.seated:
        return ("root", unit.key)
    demand: dict[int, int] = {}
    policy = ""
    for record in unit.records.values():
        if record.nominated:
            return ("root", unit.key)
        demand[record.shape.id] = demand.get(record.shape.id, 0) + 1
        policy = record.preemption_policy
    rules = (spec.minimum - group.placed, spec.topology_key, spec.preferred_key, spec.disrupt_all, policy)
    return ("gang", "", unit.priority, rules, tuple(sorted(demand.items())))


def _least(shapes: list[Shape]) -> tuple[tuple[int, float], ...]:
    """What a row must at least have free to take any member."""
    first, *others = (dict(shape.requests) for shape in shapes)
    for other in others:
        first = {rid: min(amount, other[rid]) for rid, amount in first.items() if rid in other}
    return tuple(sorted(first.items()))
