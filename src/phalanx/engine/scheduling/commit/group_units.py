"""Units of groups: handle noted changes of groups before units are popped, then admit and attempt their roots."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.groups.messages import WAITING
from phalanx.engine.scheduling.commit.admission import GANG, INVALID, UnitAdmission
from phalanx.engine.scheduling.commit.group_reservations import GroupReservations
from phalanx.engine.scheduling.lifecycle.isolation import Isolation
from phalanx.engine.scheduling.lifecycle.members import Members, Notes, root_key
from phalanx.engine.scheduling.lifecycle.unit_lifecycle import UnitLifecycle
from phalanx.engine.scheduling.queue.units import GroupTree, Refusal, SchedulingUnit, UnitState
from phalanx.engine.state.records import PodRecord
from phalanx.model.groups import Group, GroupKey, InvalidTree, MemberState


class ChangedUnit:
    """What happened to the groups of a unit since the last call of `settle`."""

    __slots__ = ("helps", "leaves", "newcomers")

    def __init__(self) -> None:
        self.helps = False  # it can help the unit
        self.leaves: list[GroupKey] = []  # leaf groups whose pods came or went
        self.newcomers: dict[str, PodRecord] = {}  # pods that were not in the unit before


ChangedUnits = defaultdict[str, ChangedUnit]  # by key


class GroupUnits:
    """Moves pods of groups to their root units and admits these units. One per engine."""

    def __init__(
        self,
        state: ClusterState,
        members: Members,
        unit_lifecycle: UnitLifecycle,
        admission: UnitAdmission,
        room: GroupReservations,
        isolation: Isolation,
    ) -> None:
        self.cluster = state
        self.members = members
        self.unit_lifecycle = unit_lifecycle
        self._admission = admission
        self.room = room
        self._isolation = isolation
        self.forest = state.forest
        self.conditions = members.conditions
        self.commits = members.commits
        self.waiting_pods = members.waiting_pods
        self._errors: dict[str, int] = {}  # root key -> failed commits in a row

    # ---- queries

    def root_of(self, key: GroupKey) -> SchedulingUnit | None:
        """Return the unit that holds the pending pods of a group or of those below it."""
        return self.members.root_of(key)

    def tree(self, unit: SchedulingUnit, group: Group) -> GroupTree:
        """Return a unit as an attempt sees it."""
        return self.members.tree(unit, group)

    def failure(self, unit: str) -> Refusal | None:
        """Return why the last attempt of a unit, given by its key, failed."""
        found = self.unit_lifecycle.waiting(unit)
        return found.refusal if found is not None else None

    def under_way(self, unit: GroupKey) -> bool:
        """Return True if binds of members have no outcome yet."""
        return self.commits.under_way(unit)

    @property
    def busy(self) -> bool:
        """Return True if there are changes that `settle` has not handled."""
        return self.members.busy or self.room.recheck

    # ---- settling

    def settle(self) -> None:
        """Handle the changes noted since the last call, before units are popped."""
        self.room.settle()
        if not self.members.busy:
            return
        notes = self.members.take()
        self.room.follow(notes.changed_leaves)
        for key, change in self._move_changed_to_roots(notes).items():
            unit = self.unit_lifecycle.waiting(key)
            if unit is None:
                continue
            if not unit.records:
                self.unit_lifecycle.leave(unit)
                continue
            held = unit.state is UnitState.HELD
            # Without new pods every pod has its condition already.
            if not self._admit_or_hold(unit, change) and (change.helps or not held):
                assert unit.group is not None
                notes.roots_of_changed_objects[unit.group] = None
        trees: dict[GroupKey, InvalidTree | None] = {}
        for root in {**notes.roots_of_changed_objects, **notes.roots_of_changed_members}:
            self._check_or_report(root, trees)
        for leaf in notes.changed_leaves:
            if leaf not in self.members.waiting_pods and (top := self.forest.root_of(leaf)) is not None:
                self.members.settle(top)

    def _move_changed_to_roots(self, notes: Notes) -> ChangedUnits:
        """Move the pods of changed groups to the units of their roots; return these units."""
        for top in {self._root_key(root): None for root in notes.roots_of_changed_objects}:
            for leaf in self.forest.leaves(top):
                notes.changed_leaves[leaf.key] = True
        units = ChangedUnits(ChangedUnit)
        for leaf_key, helps in notes.changed_leaves.items():
            old = self.members.unit_key_of.get(leaf_key)
            before = units[old] if old is not None else None
            new = self._move_to_root(leaf_key, notes.arrived.get(leaf_key, {}), units)
            for unit in (before, units[new] if new is not None else None):
                if unit is not None:
                    unit.leaves.append(leaf_key)
                    unit.helps = unit.helps or helps or old != new
        for root in notes.roots_of_changed_members:
            units[root_key(root)].helps = True
        return units

    def _move_to_root(self, leaf: GroupKey, arrived: dict[str, PodRecord], units: ChangedUnits) -> str | None:
        """Move the pending pods of a leaf to their present root; return the key of the root."""
        members = self.members
        pods = members.waiting_pods.get(leaf)
        old = members.unit_key_of.get(leaf)
        if not pods:
            members.unit_key_of.pop(leaf, None)
            members.groups_with_failed_binds.pop(leaf, None)  # that pod is gone; new pods are not affected
            return old
        target = self.forest.root_of(leaf)
        key = root_key(target) if target is not None else f"waiting/{root_key(leaf)}"
        if old != key:
            before = self.unit_lifecycle.waiting(old) if old is not None else None
            if before is not None:
                for name in pods:
                    before.records.pop(name, None)
            members.unit_key_of[leaf] = key
            arrived = pods
        unit = self.unit_lifecycle.waiting(key)
        if unit is None:
            first = min(pods.values(), key=lambda record: (record.created, record.order))
            kind = target.kind if target is not None else leaf.kind
            unit = self.unit_lifecycle.create(kind, key, first.created, first.order)
            unit.errors = self._errors.get(key, 0)
            arrived = pods
        unit.group = target if target is not None else leaf
        unit.records.update(arrived)
        units[key].newcomers.update(arrived)
        if leaf in members.groups_with_failed_binds:
            del members.groups_with_failed_binds[leaf]
            self.unit_lifecycle.back_off(unit)
            self._errors[key] = unit.errors
        return key

    def _admit_or_hold(self, unit: SchedulingUnit, change: ChangedUnit) -> bool:
        """Admit a unit; hold it after an exception, until its next event, so that other units are served."""
        try:
            return self._admit(unit, change.newcomers, change.leaves, helps=change.helps)
        except Exception as problem:
            if Isolation.strict:
                raise
            found = self._isolation.note(unit.kind, unit.key, problem)
            self._admission.hold_after_error(unit, f"it cannot be checked: {found}")
            return True

    def _root_key(self, key: GroupKey) -> GroupKey:
        """Return the root of a group's tree; while it is unknown the group itself, or one group for all of a cycle."""
        root = self.forest.root_of(key)
        if root is not None:
            return root
        found = self.forest.resolve(key)
        return min(found.cycle) if found.cycle else key

    def _check_or_report(self, root: GroupKey, trees: dict[GroupKey, InvalidTree | None]) -> None:
        try:
            self._check_tree(root, trees)
        except Exception as problem:
            if Isolation.strict:
                raise
            self._isolation.note(root.kind, f"{root.namespace}/{root.name}", problem)

    def _admit(
        self,
        unit: SchedulingUnit,
        newcomers: dict[str, PodRecord] | None,
        changed: Collection[GroupKey] = (),
        *,
        helps: bool,
    ) -> bool:
        """Admit a unit; return False if it is held, so that a partial commit cannot be completed now."""
        key, group = unit.group, self.members.group_of(unit)
        assert key is not None
        if unit.key.startswith("waiting/") or group is None:
            self._admission.wait_for_objects(unit, key, newcomers)
            return True
        return self._admission.admit(unit, group, newcomers, changed, helps=helps)

    def admit(self, unit: SchedulingUnit) -> None:
        """Admit a held unit again after its backoff, or after a PreEnqueue plugin changed its answer."""
        if not self._admit(unit, None, helps=True):
            assert unit.group is not None
            self.members.notes.roots_of_changed_members[unit.group] = None

    def _check_tree(self, root: GroupKey, trees: dict[GroupKey, InvalidTree | None]) -> None:
        """Check a tree and report its problems, whether or not it has pending pods.

        `trees`: known problems by root, so that each tree is checked once however many of its groups changed.
        """
        top = self._root_key(root)
        if top in trees:
            invalid = trees[top]
        else:
            invalid = trees[top] = self.forest.invalid(root)
            if invalid is not None:
                for key in invalid.groups:
                    self.members.report(key, INVALID, invalid.message)
        group, unit_key = self.forest.group(root), root_key(root)
        if group is None or group.spec is None or group.spec.parent is not None:
            if self.unit_lifecycle.waiting(unit_key) is None:
                self.unit_lifecycle.settle(unit_key, UnitState.NONE)
            if group is not None and group.spec is not None and invalid is None:
                self._admission.without_parent(root)
            return
        if self.conditions.targets:
            self._clear_disruption(root)
        if invalid is None:
            self.commits.notify(group)
            if self.conditions.is_true(root):
                self._errors.pop(unit_key, None)
            self.members.settle(root)
        unit = self.unit_lifecycle.waiting(unit_key)
        if invalid is None and (unit is None or (unit.state is UnitState.HELD and unit.gate[0] == GANG)):
            self.commits.release(group, unit_key)
            if unit is None and not self.forest.ready(root) and self._had_members(root):
                self._admission.short_of_members(root)

    def _had_members(self, root: GroupKey) -> bool:
        """Return whether a tree has pods, or its condition still reports missing ones."""
        reported = self.conditions.last_written(root).reason == WAITING
        return reported or any(leaf.members for leaf in self.forest.leaves(root))

    def _clear_disruption(self, root: GroupKey) -> None:
        """Clear DisruptionTarget of groups that were preempted and run again."""
        for part in self.forest.tree(root):
            since = self.conditions.targets.get(part.key)
            if since is not None and self.commits.confirmed(part) and self._made_since(part.key, since):
                self.conditions.spared(part)

    def _made_since(self, key: GroupKey, since: float) -> bool:
        members = [each for leaf in self.forest.leaves(key) for each in leaf.members.items()]
        for name, member in members:
            if member.state is MemberState.ENDING:
                return False
            if member.state is MemberState.RUNNING:
                record = self.cluster.records.get(str(name))
                if record is None or record.created < since or self.unit_lifecycle.is_victim(record.key):
                    return False
        return True
