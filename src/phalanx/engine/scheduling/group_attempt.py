"""One attempt of one group root: build, search, check, then all of it or nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from phalanx.engine.framework import ClusterChange, Code, Status, Wake
from phalanx.engine.framework.adapters import PluginFailure
from phalanx.engine.groups import completion, words
from phalanx.engine.groups.build import Built, Unplaceable, build
from phalanx.engine.groups.outcomes import explained, seats_of
from phalanx.engine.groups.points import Points
from phalanx.engine.groups.trial import Assignment, Careful, holds, open_to_members
from phalanx.engine.placement import Outcome, Verdict, place
from phalanx.engine.scheduling.pod_status import SCHEDULER_ERROR, UNSCHEDULABLE
from phalanx.engine.scheduling.queue import Bucket
from phalanx.engine.scheduling.roots import Root
from phalanx.engine.scheduling.waiting import Interest
from phalanx.engine.state.records import PodRecord
from phalanx.engine.state.shapes import Shape
from phalanx.model.groups import Group, GroupKey
from phalanx.model.groups.group import ON_NODE

if TYPE_CHECKING:
    from phalanx.engine.scheduling.group_roots import Groups


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a root could not be placed."""

    message: str  # of the root group
    built: Built
    outcome: Outcome | None = None  # None: only leftovers were tried
    hopeless: bool = False  # a plugin says that no eviction can help


@dataclass(frozen=True, slots=True)
class Refusal:
    """What is kept of a failure: no arrays, there may be many."""

    message: str
    outcome: Outcome | None
    texts: dict[Shape, str]  # what pods of each shape were told


@dataclass(frozen=True, slots=True)
class Sleep:
    """What a bucket of group roots waits for."""

    interests: tuple[Interest, ...]
    refusal: Refusal
    nodes: bool  # any change of nodes may matter: members there dictate a domain, or a plan counts on them


class Attempt:
    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._cycle = groups.cycle
        self._columns = groups.cycle.columns
        self._plugins: dict[str, Points | None] = {}  # by scheduler name
        self.failures: dict[str, Refusal] = {}  # root key -> the last failure, for `why`

    def run(self, root: Root, group: Group) -> None:
        """Leaves the root in a place of the queue, or without pods."""
        # A plugin at a group point may tell groups apart that the engine cannot.
        alike = not group.composite and self._points(root) is None
        twins = self._groups.queue.sleeping(_twins(root, group)) if alike else None
        if twins is not None:
            self._join(root, group, twins)
            return
        try:
            cluster = self._cycle.cluster
            budget = cluster.settings.search_budget
            built = build(cluster, group, self._groups.waiting_pods, budget, root.priority)
            self._try(root, group, built)
        except PluginFailure as problem:
            self._error(root, group, str(problem))
        except Unplaceable as problem:
            self._groups.commits.release(group, root.key)  # a gang that was never complete must not stay in the way
            self._error(root, group, str(problem))

    def _try(self, root: Root, group: Group, built: Built) -> None:
        if not group.composite and (text := self._in_vain(group, built)) is not None:
            # Room for the whole may come from anywhere: no event tells it, so it is tried again.
            self._tell(root, group, Refusal(text, None, {}))
            self._groups.queue.back_off(root, self._cycle.now)
            return
        points = self._points(root)
        found = self._search(group, built, points)
        if isinstance(found, Status):
            self._refuse(root, group, _refused_by_plugin(found, built), points)
            return
        placement = self._placement(group, built, found, free=points is None or not points.generates)
        if isinstance(placement, Failure):
            self._refuse(root, group, placement, points)
            return
        assignment, parts = placement
        satisfied = [built.group_of[part] for part in built.group_of if part in parts]
        if not assignment:
            # Enough runs already; what is left over does not fit.
            self._refuse(root, group, Failure(words.leftovers(group, built), built), points)
            return
        refused = points.refused(satisfied, _counter(built, assignment)) if points else None
        if refused is not None:
            self._refuse(root, group, _refused_by_plugin(refused, built), points)
            return
        self._commit(root, group, built, assignment, satisfied)

    def _placement(
        self, group: Group, built: Built, outcome: Outcome, *, free: bool
    ) -> tuple[Assignment, set[int]] | Failure:
        """Who goes where, and the parts of the tree that have their minimum then. `free`: no plugin says where, which
        the careful way would not know."""
        careful = Careful(self._cycle.cluster, built)
        if not outcome.placed:
            found = careful.run() if free and open_to_members(self._cycle.cluster, built) else None
            if found:
                return found, careful.satisfied
            message = explained(group, built, outcome)
            if careful.exhausted and outcome.verdict is not Verdict.EXHAUSTED:
                message += words.used_up(careful.expansions)
            return Failure(message, built, outcome)
        seats = seats_of(built, outcome, row_of=self._columns.row_of)
        if not (seats and built.coupled) or holds(self._cycle.cluster, seats):
            return seats, outcome.satisfied
        found = careful.run() if free else None
        if found is None:
            used = careful.expansions if careful.exhausted else 0
            return Failure(words.coupled(group, used=used), built)
        return found, careful.satisfied

    def _points(self, root: Root) -> Points | None:
        """The group plugins of the pods' profile; None: there are none, which is the rule."""
        name = next(iter(root.records.values())).scheduler_name
        if name not in self._plugins:
            points = Points(self._cycle.profiles[name], self._columns)
            self._plugins[name] = points or None
        return self._plugins[name]

    def _search(self, group: Group, built: Built, points: Points | None) -> Outcome | Status:
        if points is None:
            return place(built.problem, explained=False)
        pending = sum(len(records) for records in built.pending.values())
        return points.hopeless(group, pending) or points.search(group, built)

    def _in_vain(self, group: Group, built: Built) -> str | None:
        if not completion.wanted(group):
            return None
        forest = self._groups.forest
        others = (leaf for key in forest.roots() for leaf in forest.leaves(key))
        return completion.in_vain(self._columns, group, others, built)

    # ---- success

    def _commit(self, root: Root, group: Group, built: Built, seats: Assignment, satisfied: list[Group]) -> None:
        """Reserve for everybody, Permit for everybody, then bind. One refusal takes everybody back."""
        cycle = self._cycle
        for record, row in seats:
            cycle.assume(root, record, row)
        refused = self._ask_everybody(seats)
        if refused is not None:
            self._take_back(root, group, seats, *refused)
            return
        self.failures.pop(root.key, None)
        self._groups.commits.begin([record for record, _ in seats])
        for record, row in seats:
            status = cycle.advance(root, record, row)
            if status is not None:
                cycle.refuse(root, record, status)
        self._rest(root, built, {g.key for g in satisfied})

    def _ask_everybody(self, seats: Assignment) -> tuple[PodRecord, Status] | None:
        """The first pod that Reserve or Permit refuses, and why."""
        cycle = self._cycle
        for question, asked in ((cycle.reserve, "reserve"), (self._permit, "permit")):
            if any(getattr(profile, asked) for profile in cycle.profiles.values()):
                for record, row in seats:
                    status = question(record, row)
                    if status is not None:
                        return record, status
        return None

    def _permit(self, record: PodRecord, row: int) -> Status | None:
        """Groups do not wait half-way: a plugin that is not ready now refuses the attempt and is asked again later."""
        status = self._cycle.permit(record, row)
        if status is not None and status.code is Code.WAIT:
            return Status(Code.UNSCHEDULABLE, (f"{status.plugin or 'Permit'} is not ready: {status.message}",))
        return status

    def _take_back(self, root: Root, group: Group, seats: Assignment, refused: PodRecord, status: Status) -> None:
        self._groups.adopt(root, group.key)
        for record, _ in reversed(seats):
            self._cycle.forget(record)
            self._cycle.root_of.pop(record.key, None)
            root.records[record.key] = record
            self._groups.pending(record)
        text = f"{words.UNSCHEDULABLE}, pod {refused.key}: {status.message}"
        reason = UNSCHEDULABLE if status.rejected else SCHEDULER_ERROR
        for record in root.records.values():
            self._cycle.say(record, reason, text)
        self._conditions(group, reason, text)
        self._groups.queue.back_off(root, self._cycle.now)

    def _rest(self, root: Root, built: Built, satisfied: set[GroupKey]) -> None:
        """Pods that did not get a place although their root did: try them on their own at once (bind first, preempt
        later); groups whose minimum was not met are told so."""
        if not root.records:
            return
        for part, member in built.group_of.items():
            short = member.composite or bool(built.pending.get(part))
            if short and member.key not in satisfied:
                text = f"{words.UNSCHEDULABLE}, its siblings were placed and left no room for {member.key}"
                self._groups.conditions.say(member, "False", UNSCHEDULABLE, text)
        self._groups.queue.activate(root)

    # ---- failure

    def _refuse(self, root: Root, group: Group, failure: Failure, points: Points | None) -> None:
        cycle = self._cycle
        message = failure.message
        released = self._groups.commits.release(group, root.key)
        helped = False
        if released:
            message += "; members bound in an attempt that could not be completed are released"
        elif points is not None:
            helped, notes = points.after_failure(group, list(root.records.values()), failure, cycle.emit)
            message += "".join(f", {note}" for note in notes)
        profile = cycle.profiles[next(iter(root.records.values())).scheduler_name]
        if not (released or helped or failure.hopeless) and profile.preempts:
            note = self._groups.preempt(root, group, failure.built)
            if note:
                message += f", pod group preemption: {note}"
        texts: dict[Shape, str] = {}
        for record in root.records.values():
            if record.shape not in texts:
                texts[record.shape] = self._own_message(record, message)
        refusal = Refusal(message, failure.outcome, texts)
        self._tell(root, group, refusal)
        if released:
            self._groups.queue.back_off(root, cycle.now)  # an eviction may be refused: look again
        else:
            self._sleep(root, group, failure.built, refusal)

    def _tell(self, root: Root, group: Group, refusal: Refusal) -> None:
        self.failures[root.key] = refusal
        for record in root.records.values():
            self._cycle.say(record, UNSCHEDULABLE, refusal.texts.get(record.shape, refusal.message))
        self._conditions(group, UNSCHEDULABLE, refusal.message)

    def _join(self, root: Root, group: Group, bucket: Bucket) -> None:
        """A gang like this one failed, and nothing happened since that could help: it need not be tried."""
        self._tell(root, group, bucket.waits_for.refusal)
        self._groups.queue.join(root, bucket)

    def _own_message(self, record: PodRecord, group_message: str) -> str:
        """A pod that fits nowhere is told why; one that only lacks its fellows is told that."""
        evaluation = self._cycle.evaluation(record)
        if evaluation.best() >= 0 and evaluation.pre_filter() is None:
            return group_message
        return evaluation.diagnose().message

    def _conditions(self, group: Group, reason: str, message: str) -> None:
        for member in self._groups.forest.tree(group.key):
            if member.spec is not None and not member.satisfied:
                self._groups.conditions.say(member, "False", reason, message)

    def _error(self, root: Root, group: Group, message: str) -> None:
        for record in root.records.values():
            self._cycle.say(record, SCHEDULER_ERROR, message)
        self._conditions(group, SCHEDULER_ERROR, message)
        self._groups.queue.back_off(root, self._cycle.now)

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
                wakes |= getattr(plugin, "wakes_on", Wake.ANY)
            if evaluation.pre_filter() is not None:
                wakes = Wake.ANY
            interest, more = self._cycle.waiting.interest(profile, shape, root.priority, cross)
            wakes |= more
            interests.append(interest)
        planned = any(record.nominated for record in root.records.values())
        running = any(member.counts[state] for member in built.group_of.values() for state in ON_NODE)
        nodes = planned or (running and bool(built.problem.domains))
        if nodes:
            wakes |= Wake.NODE
        # A plan to make room is one root's own; everything else holds for all gangs like this one.
        own = built.coupled or planned or self._points(root) is not None
        bucket = self._groups.queue.wait(
            root,
            ("root", root.key) if own else _twins(root, group),
            wakes,
            self._worth,
            self._cycle.now,
            message=refusal.message,
            waits_for=Sleep(tuple(interests), refusal, nodes),
            needs=_least(built.shapes) if strict else (),
        )
        self._cycle.waiting.be_patient(bucket, root.priority)

    def _worth(self, bucket: Bucket, change: ClusterChange) -> bool:
        if self._groups.preempt.expected(bucket.key[1], change):  # type: ignore[index]
            return False  # one of its victims: it is tried when the last one is gone
        sleep: Sleep = bucket.waits_for
        if sleep.nodes and change.kind & Wake.NODE:
            return True
        return any(self._cycle.waiting.helps(interest, change) for interest in sleep.interests)


def _twins(root: Root, group: Group) -> tuple[Any, ...]:
    """The bucket of gangs that no attempt can tell apart; the root's own where something sets it apart."""
    spec = group.spec
    if group.composite or spec is None or any(group.counts[state] for state in ON_NODE):
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


def _refused_by_plugin(status: Status, built: Built) -> Failure:
    text = f"{words.UNSCHEDULABLE}, {status.message or 'refused'} ({status.plugin})"
    return Failure(text, built, hopeless=status.code is Code.UNRESOLVABLE)


def _counter(built: Built, seats: Assignment) -> Callable[[Group], tuple[int, int]]:
    """(scheduled, remaining) of a group under a placement: pods of a leaf, child groups of a composite."""
    seated = {record.key for record, _ in seats}

    def count(group: Group) -> tuple[int, int]:
        if group.composite:
            good = sum(
                count(child)[0] >= (child.spec.minimum if child.spec else 1) for child in group.sorted_children()
            )
            return good, len(group.children) - good
        pods = built.pending.get(id(built.part_of[group.key]), [])
        placed = sum(record.key in seated for record in pods)
        return group.placed + placed, len(pods) - placed

    return count
