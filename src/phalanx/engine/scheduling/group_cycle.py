"""What becomes of an attempt of a group root: all of it is bound or nothing, and a root that was refused waits."""

from __future__ import annotations

from typing import Any

import msgspec

from phalanx.engine.framework import ClusterChange, Emit, Status, Wake
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.framework.traits import traits_of
from phalanx.engine.groups import words
from phalanx.engine.groups.admission import shortages_of
from phalanx.engine.groups.build import Built
from phalanx.engine.scheduling.answers import Cause, Placed, PlacedAfter, Refusal, Refused, carry_out
from phalanx.engine.scheduling.attempt import Attempts
from phalanx.engine.scheduling.binding import Binding
from phalanx.engine.scheduling.evictions import Evictions
from phalanx.engine.scheduling.group_preemption import GroupPreemption
from phalanx.engine.scheduling.lifecycle import Lifecycle
from phalanx.engine.scheduling.members import Members
from phalanx.engine.scheduling.pod_status import SCHEDULER_ERROR, UNSCHEDULABLE, PodStatus
from phalanx.engine.scheduling.queue import Bucket, Queue
from phalanx.engine.scheduling.reservations import rehearse
from phalanx.engine.scheduling.room_to_come import RoomToCome
from phalanx.engine.scheduling.root_lives import RootLives
from phalanx.engine.scheduling.roots import Root
from phalanx.engine.scheduling.searches import Searches
from phalanx.engine.scheduling.waiting import Interest, Waiting
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
        life: Lifecycle,
        lives: RootLives,
        binding: Binding,
        attempts: Attempts,
        searches: Searches,
        preemption: GroupPreemption,
        evictions: Evictions,
        room: RoomToCome,
        waiting: Waiting,
        status: PodStatus,
        emit: Emit,
    ) -> None:
        self._cluster = state
        self._columns = state.columns
        self._queue = queue
        self._members = members
        self._life = life
        self._lives = lives
        self._binding = binding
        self._attempts = attempts
        self._searches = searches
        self._preemption = preemption
        self._evictions = evictions
        self._room = room
        self._waiting = waiting
        self._status = status
        self._emit = emit
        self._said = members.conditions
        self._commits = members.commits

    def run(self, root: Root, group: Group, scout_of: Bucket | None) -> None:
        """Leaves the root in a place of the queue, or without pods. `scout_of`: from where it was woken."""
        tree = self._members.tree(root, group)
        # A plugin at a group point may tell groups apart that the engine cannot.
        alike = not group.composite and self._attempts.points(tree) is None
        key = _twins(root, group) if alike else None
        twins = self._queue.sleeping(key) if alike else None
        if twins is not None:
            self._join(root, group, twins)
            return
        scout = self._searches.scout(key) if alike and self._searches.unfinished else None
        if scout is not None and scout is not root:
            self._queue.stand_by(root, scout, key)
            return
        self._evictions.look_again(root)
        answer = self._searches.answer(root, tree, key)
        if answer is None:
            self._queue.put_aside(root, scout_of)
            self._lives.tell(root, "searching", "others are served before the search for a place goes on")
            return
        carry_out(answer, self._emit)
        if isinstance(answer, Placed):
            self._commit(root, group, answer)
        elif isinstance(answer, PlacedAfter):
            self._preemption.carry_out(root, tree, answer)
            self._room.keep(answer.to_come, self._room.beginning(group))
            self._refuse(root, group, answer.refused)
        elif answer.cause is Cause.WHOLE or answer.again:
            # Room for the whole may come from anywhere: no event tells it, so it is tried again.
            self._tell(root, group, Refusal(answer.text, None, {}))
            self._lives.back_off(root)
        elif answer.built is None:
            if answer.cause is Cause.TORN:
                self._commits.release(group, root.key)  # a gang that was never complete must not stay in the way
            self._error(root, group, answer.message)
        else:
            if answer.releases:
                self._commits.release(group, root.key)
            if answer.gives_up:
                self._give_up(root, group)
            self._refuse(root, group, answer)

    def _give_up(self, root: Root, group: Group) -> None:
        """No plan, no promises: others may have the room."""
        for record in root.records.values():
            if record.nominated:
                self._status.nominate(record, "")
        self._room.follow(leaf.key for leaf in self._members.forest.leaves(group.key))

    # ---- success

    def _commit(self, root: Root, group: Group, placed: Placed) -> None:
        """Reserve for everybody, Permit for everybody, then bind. One refusal, and nobody was ever assumed."""
        seats = placed.seats
        self._searches.spent += len(seats) // SEATS
        beginning = self._room.beginning(group) if placed.to_come else frozenset()
        refused = rehearse(self._cluster, seats, waiting_is_refusal=True)
        if refused is not None:
            self._turn_down(root, group, *refused)
            return
        self._lives.commit(root, len(seats))
        self._life.assume(root, seats)
        root.refusal = None
        self._commits.begin(group.key)
        self._room.keep(placed.to_come, beginning)
        self._binding.together(root, seats)
        assert placed.built is not None
        self._rest(root, placed.built, {group.key for group in placed.satisfied})

    def _turn_down(self, root: Root, group: Group, refused: PodRecord, status: Status) -> None:
        text = words.refused_pod(refused.key, status.message)
        self._lives.tell(root, "taken back", text)
        reason = UNSCHEDULABLE if status.rejected else SCHEDULER_ERROR
        for record in root.records.values():
            self._status.say(record, reason, text)
        self._conditions(group, reason, text)
        self._lives.back_off(root)

    def _rest(self, root: Root, built: Built, satisfied: set[GroupKey]) -> None:
        """Pods that did not get a place although their root did: try them on their own at once (bind first, preempt
        later); groups whose minimum was not met are told so."""
        if not root.records:
            return
        for part, member in built.group_of.items():
            short = member.composite or bool(built.pending.get(part))
            if short and member.key not in satisfied:
                text = f"{words.UNSCHEDULABLE}, its siblings were placed and left no room for {member.key}"
                self._say(member, UNSCHEDULABLE, text)
        self._lives.admit(root)

    # ---- failure

    def _refuse(self, root: Root, group: Group, refused: Refused) -> None:
        message = refused.text
        texts: dict[Shape, str] = {}
        for record in root.records.values():
            if record.shape not in texts:
                texts[record.shape] = self._own_message(record, message)
        refusal = Refusal(message, refused.outcome, texts)
        self._tell(root, group, refusal)
        if refused.releases:
            self._lives.back_off(root)  # an eviction may be refused: look again
        else:
            assert refused.built is not None
            self._sleep(root, group, refused.built, refusal)

    def _tell(self, root: Root, group: Group, refusal: Refusal) -> None:
        root.refusal = refusal
        self._lives.tell(root, "refused", refusal.message)
        for record in root.records.values():
            self._status.say(record, UNSCHEDULABLE, refusal.texts.get(record.shape, refusal.message))
        self._conditions(group, UNSCHEDULABLE, refusal.message)

    def _join(self, root: Root, group: Group, bucket: Bucket) -> None:
        """A gang like this one failed, and nothing happened since that could help: it need not be tried."""
        self._tell(root, group, bucket.waits_for.refusal)
        self._queue.join(root, bucket)

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
            reason, message = words.WAITING, words.lacking(shortages)
        self._said.say(group, "False", reason, message)

    def _error(self, root: Root, group: Group, message: str) -> None:
        self._lives.tell(root, "error", message)
        for record in root.records.values():
            self._status.say(record, SCHEDULER_ERROR, message)
        self._conditions(group, SCHEDULER_ERROR, message)
        self._lives.back_off(root)

    # ---- waiting

    def _sleep(self, root: Root, group: Group, built: Built, refusal: Refusal) -> None:
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
            interest, more = self._waiting.interest(profile, shape, root.priority, cross)
            wakes |= more
            interests.append(interest)
        planned = any(record.nominated for record in root.records.values())
        running = any(member.seated for member in built.group_of.values())
        nodes = planned or (running and bool(built.problem.domains))
        if nodes:
            wakes |= Wake.NODE
        # A plan to make room is one root's own; everything else holds for all gangs like this one.
        own = built.coupled or planned or self._attempts.points(self._members.tree(root, group)) is not None
        bucket = self._queue.wait(
            root,
            ("root", root.key) if own else _twins(root, group),
            wakes,
            self._worth,
            self._cluster.now,
            message=refusal.message,
            waits_for=Sleep(tuple(interests), refusal, nodes),
            needs=_least(built.shapes) if strict else (),
        )
        self._waiting.be_patient(bucket, root.priority)
        untold, bucket.untold = bucket.untold, []
        for twin in untold:
            if twin.bucket is bucket and (its := self._members.group_of(twin)):
                self._tell(twin, its, refusal)
        for shape in built.shapes:
            self._cluster.evaluations.rest(shape)
        if self._searches.missed != []:
            self._queue.missed(bucket, self._searches.missed)

    def _worth(self, bucket: Bucket, change: ClusterChange) -> bool:
        if self._evictions.expected(bucket.key[1], change):  # type: ignore[index]
            return False  # one of its victims: it is tried when the last one is gone
        sleep: Sleep = bucket.waits_for
        if sleep.nodes and change.kind & Wake.NODE:
            return True
        return any(self._waiting.helps(interest, change) for interest in sleep.interests)


def _twins(root: Root, group: Group) -> tuple[Any, ...]:
    """The bucket of gangs that no attempt can tell apart; the root's own where something sets it apart."""
    spec = group.spec
    if group.composite or spec is None or group.seated:
        return ("root", root.key)
    demand: dict[int, int] = {}
    policy = ""
    for record in root.records.values():
        if record.nominated:
            return ("root", root.key)
        demand[record.shape.id] = demand.get(record.shape.id, 0) + 1
        policy = record.preemption_policy
    rules = (spec.minimum - group.placed, spec.topology_key, spec.preferred_key, spec.disrupt_all, policy)
    return ("gang", "", root.priority, rules, tuple(sorted(demand.items())))


def _least(shapes: list[Shape]) -> tuple[tuple[int, float], ...]:
    """What a row must at least have free to take any member."""
    first, *others = (dict(shape.requests) for shape in shapes)
    for other in others:
        first = {rid: min(amount, other[rid]) for rid, amount in first.items() if rid in other}
    return tuple(sorted(first.items()))
