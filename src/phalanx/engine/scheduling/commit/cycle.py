"""The scheduling cycle: try one unit, then bind it, preempt for it, or let it wait.

`Cycle.attempt` reads from top to bottom. A single pod and a tree of groups take the same steps; a group is bound as a
whole or not at all.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from phalanx.base.well_known import UNSCHEDULABLE
from phalanx.engine.groups import messages
from phalanx.engine.groups.build import Built
from phalanx.engine.groups.rank_order import NO_RANKS
from phalanx.engine.preemption.single_pod import MoreRows
from phalanx.engine.scheduling.attempt.answers import Answer, NominatedAfterPreemption, Placed, Refused, carry_out
from phalanx.engine.scheduling.attempt.attempt import AttemptOptions
from phalanx.engine.scheduling.attempt.sliced_attempts import SlicedAttempts
from phalanx.engine.scheduling.commit.binding import Binding
from phalanx.engine.scheduling.commit.evictions import Evictions
from phalanx.engine.scheduling.commit.group_reservations import GroupReservations
from phalanx.engine.scheduling.commit.refusals import Refusals
from phalanx.engine.scheduling.lifecycle.rejections import Rejections
from phalanx.engine.scheduling.queue.units import ATTEMPT, AttemptUnit, GroupTree, SchedulingUnit, SinglePod
from phalanx.engine.scheduling.queue.waiting import equivalence_key, group_equivalence_key
from phalanx.model.groups import Group, GroupKey
from phalanx.model.groups.policy import FieldProblem

PODS_PER_WORK_UNIT = 2  # pods of a group that are committed with one unit of work
ROW_WORK = 8  # units of work to search victims of a single pod on one row
MOST_TURNS = 4  # interrupted preemptions of a single pod, as a multiple of the slices needed without changes


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
            self._refuse_group(unit, target.group, answer)

    def _preempt(self, unit: SchedulingUnit, target: AttemptUnit, answer: NominatedAfterPreemption) -> None:
        self._evictions.carry_out(unit, target, answer)
        if isinstance(target, SinglePod):
            self._refusals.refuse_pod(unit, target.record, answer.refused, victims_leave=True)
            return
        self._reservations.keep(answer.expected_placements, self._reservations.beginning(target.group))
        self._refuse_group(unit, target.group, answer.refused)

    def _refuse_group(self, unit: SchedulingUnit, group: Group, refused: Refused) -> None:
        waits_in = self._refusals.refuse_group(unit, group, refused)
        if waits_in is not None and self._searches.missed != []:
            self._queue.check_missed(waits_in, self._searches.missed)

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
