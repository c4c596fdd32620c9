"""Admission of units: the tree is valid, the quorum exists and no gate is closed; else the unit is held with a
reason."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import islice

from phalanx.base.clock import parse_rfc3339, rfc3339
from phalanx.base.well_known import SCHEDULER_ERROR, UNSCHEDULABLE
from phalanx.engine.groups import messages
from phalanx.engine.groups.admission import HeldBy, hold_of
from phalanx.engine.groups.messages import WAITING
from phalanx.engine.scheduling.lifecycle.members import Members
from phalanx.engine.scheduling.lifecycle.pod_lifecycle import PodLifecycle
from phalanx.engine.scheduling.lifecycle.pod_status import GATED, GATED_MESSAGE, PodStatusWriter
from phalanx.engine.scheduling.queue.units import QueueName, SchedulingUnit, UnitState
from phalanx.engine.state.records import PodRecord
from phalanx.model.groups import REPLACES, Group, GroupKey, Quorum
from phalanx.model.groups.expected_pods import written_by_controllers

GANG = "GangScheduling"  # the plugin that kube-scheduler names
PARENTLESS = "WaitingForParent"
INVALID = "Invalid"
RESTART = "RestartBackoff"
FEW_GROUPS = 64  # groups of a tree up to which each group reports what its siblings lack

_REASONS = {  # of the groups' conditions, and of their pods'
    HeldBy.OBJECTS: ("", WAITING),
    HeldBy.INVALID: (INVALID, SCHEDULER_ERROR),
    HeldBy.MISMATCH: (SCHEDULER_ERROR, SCHEDULER_ERROR),
    HeldBy.GATES: (WAITING, GATED),
}
Newcomers = dict[str, PodRecord]
AskGates = Callable[[SchedulingUnit, Iterable[PodRecord] | None], None]


class UnitAdmission:
    def __init__(
        self,
        members: Members,
        pod_lifecycle: PodLifecycle,
        status: PodStatusWriter,
        ask_gates: AskGates,
    ) -> None:
        """`ask_gates`: ask PreEnqueue plugins (`Pods.admit`)."""
        self._members = members
        self._forest = members.forest
        self._ask_gates = ask_gates
        self._pod_lifecycle = pod_lifecycle
        self._status = status
        self._unit_lifecycle = pod_lifecycle.units

    def wait_for_objects(self, unit: SchedulingUnit, leaf: GroupKey, newcomers: Newcomers | None) -> None:
        """Hold a unit whose root group is not known yet."""
        forest = self._forest
        invalid = forest.invalid(leaf)
        if invalid is not None:
            self._hold(unit, newcomers, invalid.groups, INVALID, SCHEDULER_ERROR, invalid.message)
        else:
            self._hold(unit, newcomers, (), "", WAITING, forest.resolve(leaf).message)
            self.without_parent(leaf)

    def without_parent(self, key: GroupKey) -> None:
        """Report the missing ancestor to every existing group above and below this one.

        A group that is too deep is reported as such: it will never be scheduled, whatever comes above it.
        """
        forest = self._forest
        missing = forest.resolve(key).missing
        if missing is None or missing == key:
            return
        for group in (*forest.tree(key), *forest.above(key)):
            if group.problem is not None:
                self._members.report(group.key, INVALID, group.problem)
            else:
                self._members.report(group.key, PARENTLESS, forest.resolve(group.key).message)

    def admit(
        self,
        unit: SchedulingUnit,
        group: Group,
        newcomers: Newcomers | None,
        changed: Collection[GroupKey] = (),
        *,
        helps: bool,
    ) -> bool:
        """Move a unit to the active queue unless it must be held; return False if the tree itself is not ready.

        `newcomers`: pending pods that did not exist at the last admission; None: check all of them. `changed`: leaf
        groups whose pods were added or deleted since then. `helps`: the change can make a unit fit that failed before
        (another pod of the failed shape cannot).
        """
        forest, key = self._forest, group.key
        before = (unit.priority, unit.queued_at)
        unit.priority = forest.priority(key)  # also of a held root: queries may try it
        if not self._in_order(unit, group, newcomers, changed):
            return False
        unit.queued_at = min(unit.queued_at, self._repair_since(group, unit.queued_at))
        place = unit.queue_name
        if place is QueueName.BACKOFF and not unit.gate[0]:
            return True  # it was just refused
        if place is QueueName.WAITING and not helps and self._reuse_refusal(unit, newcomers):
            return True
        if place is QueueName.ACTIVE and newcomers is not None and before == (unit.priority, unit.queued_at):
            self._ask_gates(unit, newcomers.values())
        else:
            self._ask_gates(unit, None)
        return True

    def _in_order(
        self, unit: SchedulingUnit, group: Group, newcomers: Newcomers | None, changed: Collection[GroupKey]
    ) -> bool:
        hold = hold_of(self._forest, group.key)
        if hold is None:
            until = self._members.restart_after.get(group.key)
            if until is None:
                return True
            text = f"waiting for the backoff of its restart, until {rfc3339(until)}"
            self._hold(unit, newcomers, (), "", RESTART, text)
            return False
        if hold.by is HeldBy.MEMBERS:
            self._below_quorum(unit, newcomers, changed, group.key)
        else:
            groups = {**dict.fromkeys(hold.groups), **dict.fromkeys(self._with_condition(group.key))}
            self._hold(unit, newcomers, groups, *_REASONS[hold.by], hold.message)
        return False

    def _with_condition(self, key: GroupKey) -> list[GroupKey]:
        """Return the groups of a small tree that have a condition, which may be about what was missing earlier."""
        tree = list(islice(self._forest.tree(key), FEW_GROUPS + 1))
        written = self._members.conditions.last_written
        return [each.key for each in tree if written(each.key) is not None] if len(tree) <= FEW_GROUPS else []

    def _reuse_refusal(self, unit: SchedulingUnit, newcomers: Newcomers | None) -> bool:
        """Report the known refusal to new pods of the shape that failed; the unit keeps waiting."""
        refusal = unit.refusal
        if refusal is None or unit.kind == "CompositePodGroup" or len(refusal.texts) != 1:
            return False
        shape, text = next(iter(refusal.texts.items()))
        newcomers = newcomers or {}
        if any(record.shape is not shape for record in newcomers.values()):
            return False
        for record in newcomers.values():
            self._status.report(record, refusal.reason, text, event=refusal.reason == UNSCHEDULABLE)
        return True

    def _repair_since(self, group: Group, otherwise: float) -> float:
        """Return the queue time of a gang that has lost members and is below its minimum: its creation; of one that
        replaces an older revision: the creation of its Workload.

        Replacements come before new work. Timestamps are whole seconds, so such a gang also precedes units of the same
        second.
        """
        for leaf in self._forest.leaves(group.key):
            if leaf.spec is None or leaf.placed >= leaf.spec.minimum:
                continue
            lost = leaf.placed or self._members.health.returns(leaf.key)
            since = leaf.spec.created if lost else self._rolled_since(leaf)
            if since:
                try:
                    return parse_rfc3339(since) - 0.5
                except ValueError:
                    return otherwise
        return otherwise

    def _rolled_since(self, leaf: Group) -> str | None:
        """Return the creation time of the Workload of a group that replaces an older revision, else None."""
        if leaf.spec is None or not written_by_controllers(leaf.source, REPLACES):
            return None  # a user's annotation would let a group go before those of others
        found = self._forest.workload(leaf.key.namespace, leaf.spec.workload or "")
        return found.metadata.creation_timestamp if found is not None else None

    def _below_quorum(
        self, unit: SchedulingUnit, newcomers: Newcomers | None, changed: Collection[GroupKey], key: GroupKey
    ) -> None:
        # The pods' message has no count: it would change for every pod whenever another one arrives.
        leaves = set(changed) if unit.state is UnitState.HELD and newcomers is not None else None
        text = self.short_of_members(key, leaves).message.partition(":")[0]
        self._hold(unit, newcomers, (), "", WAITING, text)

    def short_of_members(self, key: GroupKey, leaves: set[GroupKey] | None = None) -> Quorum:
        """Report to the root and to every group below it that waits for members.

        `leaves`: in a large tree only these and the groups above them.
        """
        forest = self._forest
        tree = list(islice(forest.tree(key), FEW_GROUPS + 1))
        few = len(tree) <= FEW_GROUPS
        if not few:
            tree = list(forest.tree(key) if leaves is None else self._with_ancestors(leaves))
        quorum = forest.quorum(key, 4)
        # In a large tree the counts of siblings are left out: updating them would visit the tree for every pod.
        waits_for = quorum.message if few else quorum.message.partition(":")[0]
        for each in tree:
            short = forest.quorum(each.key, 1).shortages
            if each.key == key:
                continue
            if short and short[0].group == each.key:
                self._members.report(each.key, WAITING, messages.lacking(short))
            elif self._members.conditions.last_written(each.key).status:
                self._members.report(each.key, WAITING, waits_for)  # its condition was about earlier counts
        self._members.report(key, WAITING, quorum.message)
        return quorum

    def _with_ancestors(self, leaves: Iterable[GroupKey]) -> Iterable[Group]:
        forest = self._forest
        found: dict[GroupKey, Group] = {}
        for leaf in leaves:
            at = forest.group(leaf)
            while at is not None and at.key not in found:
                found[at.key] = at
                at = forest.group(at.spec.parent) if at.spec is not None and at.spec.parent is not None else None
        return found.values()

    def hold_after_error(self, unit: SchedulingUnit, message: str) -> None:
        self._hold(
            unit, None, (unit.group,) if unit.group is not None else (), SCHEDULER_ERROR, SCHEDULER_ERROR, message
        )

    def _hold(
        self,
        unit: SchedulingUnit,
        newcomers: Newcomers | None,
        groups: Iterable[GroupKey],
        group_reason: str,
        pod_reason: str,
        message: str,
    ) -> None:
        """Keep a unit out of the queue, with the reason in the conditions of its groups and pods."""
        for key in groups:
            self._members.report(key, group_reason, message)
        records: Iterable[PodRecord] = unit.records.values()
        if unit.state is UnitState.HELD and unit.gate == (GANG, message) and newcomers is not None:
            records = newcomers.values()  # the other pods have the message already
        else:
            self._unit_lifecycle.hold(unit, GANG, message)
        quiet = pod_reason in (WAITING, GATED, RESTART)
        for record in records:
            if record.nominated and record.last_condition.startswith(UNSCHEDULABLE):
                # KEP-4671: clear nominations made by attempts. A pod that was never tried keeps the nomination of
                # another component.
                self._pod_lifecycle.nominate(record, "")
            if record.pod is not None and record.pod.spec.scheduling_gates:
                # The pod's own gate is its reason; a real API server has written that already.
                self._status.report(record, GATED, GATED_MESSAGE, event=False)
                continue
            self._status.report(record, pod_reason, message, event=not quiet)
