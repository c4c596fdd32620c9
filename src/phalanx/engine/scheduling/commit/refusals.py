"""Report why a unit was refused, and let it wait for a change that can help."""

from __future__ import annotations

from typing import Protocol

import msgspec

from phalanx.base.well_known import SCHEDULER_ERROR, UNSCHEDULABLE
from phalanx.engine.framework import ClusterChange, Wake
from phalanx.engine.framework.diagnosis import Diagnosis
from phalanx.engine.framework.traits import traits_of
from phalanx.engine.groups import messages
from phalanx.engine.groups.admission import shortages_of
from phalanx.engine.groups.build import Built
from phalanx.engine.scheduling.attempt.answers import Cause, PreemptionResult, Refused
from phalanx.engine.scheduling.attempt.attempt import Attempts
from phalanx.engine.scheduling.commit.event_texts import EventTexts
from phalanx.engine.scheduling.lifecycle.members import Members
from phalanx.engine.scheduling.lifecycle.pod_lifecycle import PodLifecycle
from phalanx.engine.scheduling.lifecycle.pod_status import PROMISED, PodStatusWriter
from phalanx.engine.scheduling.queue.units import AttemptUnit, EquivalenceClass, GroupTree, Refusal, SchedulingUnit
from phalanx.engine.scheduling.queue.waiting import QueueingHints, Waiting, group_equivalence_key, least_requests
from phalanx.engine.state.records import PodRecord
from phalanx.engine.state.shapes import Shape
from phalanx.model.groups import Group, GroupKey

NO_PREEMPTION = PreemptionResult()


class PromisedStarts(Protocol):
    """The methods of `StartReservations` that reports need. They return a message, empty if no start is promised."""

    def promise(self, unit: SchedulingUnit) -> str: ...
    def starts_within_patience(self, unit: SchedulingUnit) -> str: ...


class GroupWait(msgspec.Struct, frozen=True):
    """What an equivalence class of groups waits for."""

    hints: tuple[QueueingHints, ...]
    refusal: Refusal
    any_node_change: bool  # any change of nodes may help: members there determine a domain, or a plan uses them


class Refusals:
    def __init__(
        self,
        attempts: Attempts,
        pods: PodLifecycle,
        members: Members,
        waiting: Waiting,
        status: PodStatusWriter,
        starts: PromisedStarts,
    ) -> None:
        self._cluster = waiting.cluster
        self._columns = waiting.cluster.columns
        self._attempts = attempts
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

    def refuse_group(self, unit: SchedulingUnit, group: Group, refused: Refused) -> EquivalenceClass | None:
        """Report the refusal, and return the class in which the unit waits for a change; None: it is only retried."""
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
            return self._refuse(unit, group, refused, refused.built)
        return None

    def _report(self, unit: SchedulingUnit, group: Group, reason: str, message: str) -> None:
        for record in unit.records.values():
            self._status.report(record, reason, message, event=reason != PROMISED)
        self._conditions(group, UNSCHEDULABLE if reason == PROMISED else reason, message)
        self._units.back_off(unit)

    def _refuse(self, unit: SchedulingUnit, group: Group, refused: Refused, built: Built) -> EquivalenceClass | None:
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
            return None
        return self._wait_for_change(unit, group, built, refusal)

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

    def _wait_for_change(self, unit: SchedulingUnit, group: Group, built: Built, refusal: Refusal) -> EquivalenceClass:
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
        return equivalence_class

    def _may_help(self, equivalence_class: EquivalenceClass, change: ClusterChange) -> bool:
        if self._units.expects(equivalence_class.key[1], change):  # type: ignore[index]
            return False  # an own victim: the unit is tried after the last one
        waits: GroupWait = equivalence_class.waits_for
        if waits.any_node_change and change.kind & Wake.NODE:
            return True
        return any(self._waiting.helps(hints, change) for hints in waits.hints)
