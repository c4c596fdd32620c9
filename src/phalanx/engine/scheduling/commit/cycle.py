"""The scheduling cycle: try one unit, then bind it, preempt for it, or let it wait.

`Cycle.attempt` reads from top to bottom. A single pod and a tree of groups take the same steps; a group is bound as a
whole or not at all.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from phalanx.engine.framework import ClusterChange, Wake
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.framework.diagnosis import Diagnosis
from phalanx.engine.framework.traits import traits_of
from phalanx.engine.groups import messages
from phalanx.engine.groups.admission import shortages_of
from phalanx.engine.groups.build import Built
from phalanx.engine.groups.rank_order import NO_RANKS
from phalanx.engine.preemption.single_pod import MoreRows
from phalanx.engine.scheduling.attempt.answers import (
    Answer,
    Cause,
    NominatedAfterPreemption,
    Placed,
    PreemptionResult,
    Refused,
    carry_out,
)
from phalanx.engine.scheduling.attempt.attempt import AttemptOptions
from phalanx.engine.scheduling.attempt.sliced_attempts import SlicedAttempts
from phalanx.engine.scheduling.commit.binding import Binding
from phalanx.engine.scheduling.commit.event_texts import EventTexts
from phalanx.engine.scheduling.commit.evictions import Evictions
from phalanx.engine.scheduling.commit.group_reservations import GroupReservations
from phalanx.engine.scheduling.commit.held_starts import HeldStarts
from phalanx.engine.scheduling.lifecycle.members import Members
from phalanx.engine.scheduling.lifecycle.pod_lifecycle import PodLifecycle
from phalanx.engine.scheduling.lifecycle.pod_status import PROMISED, SCHEDULER_ERROR, UNSCHEDULABLE, PodStatusWriter
from phalanx.engine.scheduling.lifecycle.rejections import Rejections
from phalanx.engine.scheduling.queue.units import (
    ATTEMPT,
    AttemptUnit,
    EquivalenceClass,
    GroupTree,
    Refusal,
    SchedulingUnit,
    SinglePod,
)
from phalanx.engine.scheduling.queue.waiting import (
    QueueingHints,
    Waiting,
    equivalence_key,
    group_equivalence_key,
    least_requests,
)
from phalanx.engine.state.records import PodRecord
from phalanx.engine.state.shapes import Shape
from phalanx.model.groups import Group, GroupKey
from phalanx.model.groups.policy import FieldProblem

PODS_PER_WORK_UNIT = 2  # pods of a group that are committed with one unit of work
ROW_WORK = 8  # units of work to search victims of a single pod on one row
MOST_TURNS = 4  # interrupted preemptions of a single pod, as a multiple of the slices needed without changes
NO_PREEMPTION = PreemptionResult()


class GroupWait(msgspec.Struct, frozen=True):
    """What an equivalence class of groups waits for."""

    hints: tuple[QueueingHints, ...]
    refusal: Refusal
    any_node_change: bool  # any change of nodes may help: members there determine a domain, or a plan uses them


class Cycle:
    def __init__(
        self,
        searches: SlicedAttempts,
        refusals: Refusals,
        binding: Binding,
        evictions: Evictions,
        reservations: GroupReservations,
        rejections: Rejections,
    ) -> None:
        self._searches = searches
        self._attempts = searches.attempts
        self._cluster = searches.cluster
        self._refusals = refusals
        self._members = refusals.members
        self._pods = refusals.pods
        self._units = refusals.pods.units
        self._queue = refusals.queue
        self._binding = binding
        self._evictions = evictions
        self._reservations = reservations
        self._rejections = rejections
        self._interruptions: dict[
            str, int
        ] = {}  # key of a single-pod unit -> number of times its preemption was interrupted

    def attempt(self, unit: SchedulingUnit) -> None:
        """Try a unit that was popped from the queue, and put it back or remove it."""
        came_from, unit.equivalence_class = unit.equivalence_class, None
        group = self._members.group_of(unit)
        if not unit.records or (group is None and unit.kind != "Pod"):
            self._units.leave(unit)
        else:
            # 1. An equal unit failed, and no event since then can help.
            target = self._members.tree(unit, group) if group is not None else SinglePod(unit.record)
            # Most units arrive when none waits: skip the key.
            others_wait = self._queue.has_classes or self._searches.unfinished
            key = self._equivalence_key(unit, target) if others_wait else None
            known = self._queue.waiting_class(key) if key is not None else None
            if known is not None:
                self._refusals.join(unit, group, known)
            elif not (self._searches.unfinished and self._waits_for_representative(unit, key)):
                # 2. The attempt.  3. Act on its answer.
                if unit.plan is not None:
                    self._units.drop_stale_plan(unit)
                answer = self._answer(unit, target)
                if answer is None:
                    self._queue.suspend(unit, came_from)
                    return  # suspended: equal units keep waiting for its answer
                if not isinstance(answer, Placed):
                    carry_out(answer, self._evictions.emit)
                self._act(unit, target, answer)
            if not unit.records and unit.queue_name is ATTEMPT:
                self._units.leave(unit)
        self._queue.attempted(unit, came_from)

    def _equivalence_key(self, unit: SchedulingUnit, target: AttemptUnit) -> tuple[Any, ...] | None:
        """Return the key of units that no attempt can tell apart; None: no other unit is equal."""
        if isinstance(target, SinglePod):
            return None if target.record.nominated else equivalence_key(target.record)
        # A group plugin may distinguish groups that the engine treats as equal.
        comparable = not target.group.composite and self._attempts.group_plugins(target) is None
        return group_equivalence_key(unit, target.group) if comparable else None

    def _waits_for_representative(self, unit: SchedulingUnit, key: tuple[Any, ...] | None) -> bool:
        representative = self._searches.representative(key) if key is not None else None
        if representative is None or representative is unit:
            return False
        self._queue.wait_for_representative(unit, representative, key)
        return True

    # ---- the attempt

    def _answer(self, unit: SchedulingUnit, target: AttemptUnit) -> Answer | None:
        """Return None if the search is not finished; it continues after other units were served."""
        if isinstance(target, GroupTree):
            key_of = partial(self._equivalence_key, unit, target)
            answer = self._attempts.attempt(
                target, AttemptOptions(search=partial(self._searches.answer, unit, target, key_of))
            )
            if answer is None:
                self._units.notify(
                    unit, "searching", "other units are served before the search for a placement continues"
                )
            return answer
        try:
            answer = self._attempts.attempt(target, AttemptOptions(rows=self._rows(unit)))
        except MoreRows:
            self._interruptions[unit.key] = self._interruptions.get(unit.key, 0) + 1
            return None
        if self._interruptions:
            self._interruptions.pop(unit.key, None)
        return answer

    def _rows(self, unit: SchedulingUnit) -> int | None:
        """Return how many rows preemption may examine before other units are served; None: all rows.

        Victims change all the time: a unit that was interrupted too often is not interrupted again.
        """
        limit = self._cluster.settings.search_slice
        if not limit:
            return None
        few = max(1, limit // ROW_WORK)
        often = self._interruptions.get(unit.key, 0) > MOST_TURNS * (1 + self._cluster.columns.n // few)
        return None if often else few

    # ---- what follows

    def _act(self, unit: SchedulingUnit, target: AttemptUnit, answer: Answer) -> None:
        if isinstance(answer, Placed):
            if isinstance(target, GroupTree):
                self._commit(unit, target.group, answer)
            else:
                self._binding.commit(unit, answer)
        elif isinstance(answer, NominatedAfterPreemption):
            if not self._refusals.starts_soon(unit, target):
                self._preempt(unit, target, answer)
        elif isinstance(target, SinglePod):
            if answer.preemption is not None and answer.preemption.leaving:
                self._evictions.wait_for_terminating(unit, answer.preemption.leaving)
            self._refusals.refuse_pod(unit, target.record, answer)
        else:
            if answer.nominate == "":
                self._clear_nominations(unit, target.group)
            self._refusals.refuse_group(unit, target.group, answer)

    def _preempt(self, unit: SchedulingUnit, target: AttemptUnit, answer: NominatedAfterPreemption) -> None:
        self._evictions.carry_out(unit, target, answer)
        if isinstance(target, SinglePod):
            self._refusals.refuse_pod(unit, target.record, answer.refused, victims_leave=True)
            return
        self._reservations.keep(answer.expected_placements, self._reservations.beginning(target.group))
        self._refusals.refuse_group(unit, target.group, answer.refused)

    def _report_ranks(self, built: Built) -> None:
        """Report ranks that cannot be used, and clear earlier reports for ranks that can be used now."""
        if not built.ranks and not self._members.statuses.policies.has_reports:
            return
        for group in filter(None, map(built.group_of.get, built.pending)):
            problems = built.ranks.get(group.key, NO_RANKS).problems
            path = "spec.ranks.key" if group.policy.rank_key else "spec.ranks"
            self._members.statuses.policies.report(group, [FieldProblem(path, text) for text in problems])
            if problems:
                uid = group.spec.uid if group.spec is not None else ""
                self._members.conditions.ranks_ignored(group.key, uid, problems)

    def _commit(self, unit: SchedulingUnit, group: Group, placed: Placed) -> None:
        """Assume and bind every pod of the assignment; Reserve and Permit have passed for all of them."""
        assert placed.built is not None
        assignment, expected = placed.assignment, placed.expected_placements
        self._searches.spent += len(assignment) // PODS_PER_WORK_UNIT
        beginning = self._reservations.beginning(group) if expected else frozenset()
        self._units.commit(unit, len(assignment))
        whole = not any(leaf.placed for leaf in self._members.forest.leaves(group.key))
        self._rejections.committed(group, [record for record, _ in assignment], whole=whole)
        self._pods.assume(unit, assignment)
        self._report_ranks(placed.built)
        unit.refusal = None
        self._members.commits.begin(group.key)
        if expected:
            self._reservations.keep(expected, beginning)
        self._binding.bind_gang(unit, assignment)
        if unit.records:
            self._try_unplaced(unit, placed.built, {group.key for group in placed.satisfied})

    def _try_unplaced(self, unit: SchedulingUnit, built: Built, satisfied: set[GroupKey]) -> None:
        """Try the pods left without a place in a placed unit: bind first, preempt later. Report groups below their
        minimum."""
        for part, member in built.group_of.items():
            short = member.composite or bool(built.pending.get(part))
            if short and member.key not in satisfied:
                text = f"{messages.UNSCHEDULABLE}, its siblings were placed and left no room for {member.key}"
                self._refusals.report(member, UNSCHEDULABLE, text)
        self._units.admit(unit)

    def _clear_nominations(self, unit: SchedulingUnit, group: Group) -> None:
        """Clear the nominations of a unit without a plan, so that other units may use the nodes."""
        for record in unit.records.values():
            if record.nominated:
                self._pods.nominate(record, "")
        self._reservations.follow(leaf.key for leaf in self._members.forest.leaves(group.key))


class Refusals:
    """Report why a unit was refused, and let it wait for an event that can help."""

    def __init__(
        self,
        searches: SlicedAttempts,
        pods: PodLifecycle,
        members: Members,
        waiting: Waiting,
        status: PodStatusWriter,
        starts: HeldStarts,
    ) -> None:
        self._cluster: ClusterState = searches.cluster
        self._columns = searches.cluster.columns
        self._searches = searches
        self._attempts = searches.attempts
        self.pods = pods
        self.members = members
        self._waiting = waiting
        self._status = status
        self._starts = starts
        self._texts = EventTexts(self._cluster)
        self._units = pods.units
        self.queue = waiting.queue

    def join(self, unit: SchedulingUnit, group: Group | None, known: EquivalenceClass) -> None:
        """Refuse a unit without an attempt, with the result of its class."""
        if group is not None:
            self._notify(unit, group, known.waits_for.refusal)
            self.queue.join(unit, known)
        else:
            self.queue.join(unit, known)
            text = self._texts.of_pod(unit.record.shape, known.counts, known.message)
            self._report_pod(unit, unit.record, known.message, headline=text)

    def _report_pod(
        self, unit: SchedulingUnit, record: PodRecord, message: str, reason: str = UNSCHEDULABLE, headline: str = ""
    ) -> None:
        """Report why a pod waits. Use Unschedulable only for pods that lack room: autoscalers create nodes for
        these."""
        if promise := self._starts.promise(unit):
            self._status.report(record, PROMISED, promise, event=False)
        else:
            self._status.report(record, reason, message, headline=headline, event=reason == UNSCHEDULABLE)

    def starts_soon(self, unit: SchedulingUnit, target: AttemptUnit) -> bool:
        """Return True if a unit waits without evictions because it starts within `preemptionPatienceSeconds`."""
        message = self._starts.starts_within_patience(unit)
        if not message:
            return False
        self._units.notify(unit, "refused", message)
        if isinstance(target, GroupTree):
            self._report(unit, target.group, PROMISED, message)
        else:
            self._status.report(target.record, PROMISED, message, event=False)
            self._units.back_off(unit)
        return True

    # ---- single pods

    def refuse_pod(
        self, unit: SchedulingUnit, record: PodRecord, refused: Refused, *, victims_leave: bool = False
    ) -> None:
        """Record the rejection of a single pod. `victims_leave`: pods are terminating to make room for it."""
        diagnosis, profile = refused.diagnosis, self._cluster.profiles[record.scheduler_name]
        if diagnosis is None:
            self._refuse_after_filters(unit, record, refused)
            return
        if refused.nominate is not None:
            self.pods.nominate(record, refused.nominate)
        text = self._texts.of_pod(record.shape, diagnosis.counts(), refused.message)
        self._report_pod(unit, record, refused.message, headline=text)
        preemption = refused.preemption or NO_PREEMPTION
        only_rows = all(profile.plugins.get(name) in profile.row_filters for name in diagnosis.plugins)
        if (victims_leave or preemption.waits) and only_rows:
            self._waiting.wait_for_victims(unit, diagnosis, refused.message)
            return
        shared = refused.same_for_class and not record.nominated
        self._waiting.wait(
            unit,
            record,
            profile,
            diagnosis,
            refused.message,
            self._cluster.now,
            shared=shared,
            helpful_changes=preemption.helpful_changes,
        )

    def _refuse_after_filters(self, unit: SchedulingUnit, record: PodRecord, refused: Refused) -> None:
        """Retry a unit later after a plugin failed, or after Reserve or Permit rejected it."""
        if refused.cause is Cause.PERMIT:
            self._units.history.note(record.key, "taken back", refused.message)
            self.pods.nominate(record, "", write=False)
        self._status.report(
            record, UNSCHEDULABLE if refused.cause is Cause.PERMIT else SCHEDULER_ERROR, refused.message
        )
        self._units.back_off(unit)

    # ---- groups

    def refuse_group(self, unit: SchedulingUnit, group: Group, refused: Refused) -> None:
        commits = self.members.commits
        if refused.cause is Cause.WHOLE or refused.again:
            # No event announces room for all expected pods: retry.
            self._notify(unit, group, Refusal(refused.text, None, {}, at=self._cluster.now))
            self._units.back_off(unit)
        elif refused.cause is Cause.PERMIT:
            self._units.notify(unit, "taken back", refused.message)
            self._report(unit, group, UNSCHEDULABLE, refused.message)
        elif refused.cause is Cause.ERROR or refused.built is None:
            if refused.cause is Cause.PARTIAL:
                commits.release(group, unit.key)  # an incomplete gang must not keep nodes
            self._units.notify(unit, "error", refused.message)
            self._report(unit, group, SCHEDULER_ERROR, refused.message)
        else:
            if refused.releases:
                commits.release(group, unit.key)
            self._refuse(unit, group, refused, refused.built)

    def _report(self, unit: SchedulingUnit, group: Group, reason: str, message: str) -> None:
        for record in unit.records.values():
            self._status.report(record, reason, message, event=reason != PROMISED)
        self._conditions(group, UNSCHEDULABLE if reason == PROMISED else reason, message)
        self._units.back_off(unit)

    def _refuse(self, unit: SchedulingUnit, group: Group, refused: Refused, built: Built) -> None:
        message = refused.text
        texts: dict[Shape, str] = {}
        for record in unit.records.values():
            if record.shape not in texts:
                texts[record.shape] = self._own_message(record, message)
        refusal = Refusal(
            message,
            refused.outcome,
            texts,
            refused.reason or UNSCHEDULABLE,
            self._cluster.now,
            refused.reserved,
            refused.cause is Cause.RULES,
        )
        self._notify(unit, group, refusal)
        if refused.releases:
            self._units.back_off(unit)  # the eviction may be refused: retry
        else:
            self._wait_for_change(unit, group, built, refusal)

    def _notify(self, unit: SchedulingUnit, group: Group, refusal: Refusal) -> None:
        unit.refusal = refusal
        self._units.notify(unit, "refused", refusal.message)
        headline = self._texts.of_group(refusal, unit.records.values())
        # Late children of a running tree are Unschedulable, as in kube-scheduler 1.37.
        short = self._short_leaves(group) if group.composite and not group.satisfied else {}
        for record in unit.records.values():
            leaf = self.members.forest.leaf_of_pod(record.namespace, record.name) if short else None
            if leaf in short:
                self._status.report(record, messages.WAITING, short[leaf], event=False)
            else:
                text = refusal.texts.get(record.shape, refusal.message)
                own = f". {text}" if headline and text != refusal.message else ""
                self._report_pod(unit, record, text, refusal.reason, headline + own)
        self._conditions(group, UNSCHEDULABLE, refusal.message, headline)

    def _short_leaves(self, group: Group) -> dict[GroupKey | None, str]:
        """Return the leaves of a tree whose pods wait for members and not for room, with the reason."""
        forest = self.members.forest
        leaves = ((leaf, shortages_of(forest, leaf)) for leaf in forest.leaves(group.key))
        return {leaf.key: messages.lacking(shortages) for leaf, shortages in leaves if shortages}

    def _own_message(self, record: PodRecord, group_message: str) -> str:
        """Use the pod's own diagnosis if it fits no node, else the group's."""
        evaluation = self._cluster.evaluation(record)
        if (status := evaluation.pre_filter()) is not None:
            return Diagnosis(self._columns.count, pre_filter=status).message
        return group_message if evaluation.best() >= 0 else evaluation.diagnose().message

    def _conditions(self, group: Group, reason: str, message: str, headline: str = "") -> None:
        for member in self.members.forest.tree(group.key):
            if member.spec is not None and not member.satisfied:
                self.report(member, reason, message, headline)

    def report(self, group: Group, reason: str, message: str, headline: str = "") -> None:
        """Set the condition of one group of a tree that was tried; a group that lacks members reports that instead."""
        if reason == UNSCHEDULABLE and (shortages := shortages_of(self.members.forest, group)):
            reason, message, headline = messages.WAITING, messages.lacking(shortages), ""
        self.members.conditions.report(group, "False", reason, message, headline=headline)

    def _wait_for_change(self, unit: SchedulingUnit, group: Group, built: Built, refusal: Refusal) -> None:
        wakes = Wake.NOTHING
        hints = []
        strict = True
        alive, tree = self._columns.alive, self.members.tree(unit, group)
        priority = tree.priorities[0]
        for shape, evaluation in zip(built.shapes, built.evaluations, strict=True):
            profile = evaluation.profile
            strict = strict and profile.fit_is_strict
            cross = []
            for plugin, tracker in evaluation.filters:
                if plugin in profile.row_filters or (not built.coupled and tracker.mask[alive].all()):
                    continue  # checked per row, or not rejecting
                cross.append(plugin)
                wakes |= traits_of(plugin).wakes_on
            if evaluation.pre_filter() is not None:
                wakes = Wake.ANY
            its_hints, more = self._waiting.hints_of(profile, shape, priority, cross)
            wakes |= more
            hints.append(its_hints)
        planned = any(record.nominated for record in unit.records.values())
        running = any(member.members_on_nodes for member in built.group_of.values())
        nodes = planned or (running and bool(built.problem.domains))
        if nodes:
            wakes |= Wake.NODE
        # A plan to make room belongs to one root; everything else is shared by equal gangs.
        own = built.coupled or planned or self._attempts.group_plugins(tree) is not None
        equivalence_class = self.queue.wait(
            unit,
            ("root", unit.key) if own else group_equivalence_key(unit, group),
            wakes,
            self._may_help,
            self._cluster.now,
            message=refusal.message,
            waits_for=GroupWait(tuple(hints), refusal, nodes),
            needs=least_requests(built.shapes) if strict else (),
        )
        self._waiting.await_lower_priority(equivalence_class, priority)
        unreported, equivalence_class.unreported = equivalence_class.unreported, []
        for other in unreported:
            if other.equivalence_class is equivalence_class and (its := self.members.group_of(other)):
                self._notify(other, its, refusal)
        for shape in built.shapes:
            self._cluster.evaluations.rest(shape)
        if self._searches.missed != []:
            self.queue.check_missed(equivalence_class, self._searches.missed)

    def _may_help(self, equivalence_class: EquivalenceClass, change: ClusterChange) -> bool:
        if self._units.expects(equivalence_class.key[1], change):  # type: ignore[index]
            return False  # an own victim: the unit is tried after the last one
        waits: GroupWait = equivalence_class.waits_for
        if waits.any_node_change and change.kind & Wake.NODE:
            return True
        return any(self._waiting.helps(hints, change) for hints in waits.hints)
