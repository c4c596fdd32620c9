"""Members of groups: the group of each pod, the root unit of its pending pods, and noted changes.

Changes are only noted here; `GroupUnits.settle` handles them before units are popped, once for all pods of a gang.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from phalanx.engine import decisions as d
from phalanx.engine import events as e
from phalanx.engine.framework import ClusterChange, Wake
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.groups.conditions import GroupConditions
from phalanx.engine.groups.losses import LOST, Loss
from phalanx.engine.groups.policy_status import KIND as POLICY
from phalanx.engine.groups.statuses import Statuses
from phalanx.engine.scheduling.lifecycle.gang_commits import GangCommits
from phalanx.engine.scheduling.lifecycle.pod_status import PendingWrites
from phalanx.engine.scheduling.lifecycle.unit_lifecycle import UnitLifecycle
from phalanx.engine.scheduling.queue.units import ATTEMPT, GATED, NOWHERE, GroupTree, QueueName, SchedulingUnit
from phalanx.engine.state.records import PodRecord, PodState
from phalanx.model.groups import (
    AFTER_GROUP,
    COMPLETED_IN,
    COMPOSITE,
    POD_GROUP,
    WORKLOAD,
    Group,
    GroupKey,
    Member,
    MemberState,
    PodKey,
    group_of,
    pod_key,
    successor,
)
from phalanx.model.groups.expected_pods import unusable
from phalanx.model.groups.group import OURS
from phalanx.model.objects import Pod

PENDING, ASSUMED, RUNNING = MemberState.PENDING, MemberState.ASSUMED, MemberState.RUNNING


class Notes(msgspec.Struct):
    """Changes since the last `settle`."""

    arrived: dict[GroupKey, dict[str, PodRecord]]  # leaf -> arrived pods
    changed_leaves: dict[GroupKey, bool]  # leaf -> whether anything but arrivals and deletions of pods happened
    roots_of_changed_objects: dict[GroupKey, None]  # roots of trees whose objects changed
    roots_of_changed_members: dict[GroupKey, None]  # roots of trees whose members changed


class Members:
    def __init__(
        self,
        state: ClusterState,
        unit_lifecycle: UnitLifecycle,
        conditions: GroupConditions,
        statuses: Statuses,
        commits: GangCommits,
        status_writes: PendingWrites,
    ) -> None:
        self._cluster, self.forest = state, state.forest
        self._queue = unit_lifecycle.queue
        self._unit_lifecycle = unit_lifecycle
        self.conditions = conditions
        self.statuses = statuses
        self.health = statuses.health
        self.commits = commits
        self._status_writes = status_writes
        self.waiting_pods: dict[GroupKey, dict[str, PodRecord]] = {}  # leaf -> its pending pods
        self.unit_key_of: dict[GroupKey, str] = {}  # leaf -> key of the unit with its pending pods
        self.groups_with_failed_binds: dict[GroupKey, None] = {}  # leaves with failed binds
        self.notes = Notes({}, {}, {}, {})
        self.lost_members: list[tuple[GroupKey, Loss, Pod]] = []  # since the last step of `Maintenance`
        self.restart_after: dict[GroupKey, float] = {}  # root -> until when it is held, seconds
        self._after: dict[GroupKey, dict[PodKey, None]] = {}  # terminating group -> pods that wait for its successor

    def take(self) -> Notes:
        """Return the noted changes and start empty notes."""
        taken, self.notes = self.notes, Notes({}, {}, {}, {})
        return taken

    def rewrite(self, decision: d.SetGroupCondition) -> None:
        """Check a tree again whose condition could not be written: no other event may come."""
        self.statuses.rewrite(decision)
        key = GroupKey(decision.kind, decision.namespace, decision.name)
        if (root := self.forest.root_of(key)) is not None:
            self.notes.roots_of_changed_members[root] = None

    # ---- events

    def pod_seen(self, pod: Pod) -> None:
        """Process a version of a pod, before the engine creates its record."""
        if not self._cluster.grouping:
            return
        key, forest = pod_key(pod), self.forest
        before = forest.leaf_of(key)
        leaf = group_of(pod)
        if leaf is not None and AFTER_GROUP in pod.metadata.annotations:
            leaf = self._leaf(leaf, pod, key)
        if before is None and leaf is None:
            return
        name = f"{key.namespace}/{key.name}"
        found = self._cluster.records.get(name)
        known = found if found is not None and found.uid == pod.metadata.uid else None  # not an earlier pod's
        if known is not None and known.node_name and not known.assumed and not pod.spec.node_name:
            return  # an unbound version of a bound pod is outdated
        roots, old, new = forest.put_member(key, leaf, pod)
        if before is not None and leaf != before:
            self._leave_group(name, before, leaf)
        elif before is None and known is not None and known.assumed:
            self._count_placed(key, known, pod)
            new = self._member(leaf, key)
        group = forest.group(leaf) if leaf is not None else None
        if leaf == before and pod.spec.node_name and old is not None and old.state is ASSUMED:
            self._bind_answered(group)
        if old is not None and (leaf != before or new is None or new.state in LOST):
            self.note_loss(before, old, new if leaf == before else None)
        if group is not None and old is not None and new is not None:
            self.health.readiness(group, old.pod, new.pod)
        if (leaf == before and self._as_before(old, new, group)) or _is_queued_next(old, new):
            return
        for root in roots:
            self.notes.roots_of_changed_members[root] = None
        self._mark((leaf, before), helps=True)

    def note_loss(self, leaf: GroupKey | None, old: Member | None, new: Member | None) -> None:
        """Record the loss of a member, if it is one. `new` None: deleted."""
        if leaf is not None and self.conditions.is_true(leaf):
            state = self._cluster
            if old and (loss := self.health.losses.note(leaf, old, new, state.now, state.evicting_taints)):
                self.lost_members.append((leaf, loss, old.pod))

    def _as_before(self, old: Member | None, new: Member | None, leaf: Group | None) -> bool:
        """Return True if a new version of a member changes nothing: a status update, or an expected bind."""
        if old is None or new is None or old.pod.metadata.uid != new.pod.metadata.uid:
            return False
        if old.state is new.state and old.node == new.node and completed_in(old) == completed_in(new):
            return True
        return old.state in OURS and new.state is RUNNING and self._as_expected(leaf)

    def _leaf(self, leaf: GroupKey, pod: Pod, key: PodKey) -> GroupKey:
        """Return the group of a pod, or its successor if that group was terminating when the pod was created."""
        group = self.forest.group(leaf)
        going = pod.metadata.annotations[AFTER_GROUP]
        if pod.spec.node_name or group is None or group.spec is None or group.spec.uid != going:
            return leaf
        self._after.setdefault(leaf, {})[key] = None
        return successor(leaf)

    def _assign_to_successor(self, key: GroupKey) -> None:
        """Assign waiting pods to a group or its successor after the group was created, deleted or created again."""
        named = self.forest.named(key)
        members = named.members.items() if named is not None else ()
        late = [name for name, member in members if AFTER_GROUP in member.pod.metadata.annotations]
        for pod in (*self._after.pop(key, ()), *late):
            member = self._member(self.forest.leaf_of(pod), pod)
            if member is None or member.state is not PENDING:
                continue
            before = self.forest.leaf_of(pod)
            self.pod_seen(member.pod)
            record = self._cluster.records.get(str(pod))
            if record is not None and self.forest.leaf_of(pod) != before:
                self.pending(record)

    def _as_expected(self, group: Group | None) -> bool:
        """Return True if a confirmed bind needs no action because the gang is complete."""
        if group is None or group.spec is None or group.placed < group.spec.minimum:
            return group is None
        if group.spec.parent is None:
            return True
        root = self.forest.root_of(group.key)
        above = self.forest.group(root) if root is not None else None
        return above is None or above.satisfied

    def _member(self, leaf: GroupKey | None, key: PodKey) -> Member | None:
        group = self.forest.named(leaf) if leaf is not None else None
        return group.members.get(key) if group is not None else None

    def _leave_group(self, name: str, before: GroupKey, leaf: GroupKey | None) -> None:
        """Remove a pod from its old group after the label that names the group changed."""
        if leaf is not None:
            self.commits.begin(leaf)
        self._unlist(before, (name,))
        self._mark((before,), helps=True)

    def _count_placed(self, key: PodKey, record: PodRecord, pod: Pod) -> None:
        """Count a placed pod that got a group afterwards."""
        if pod.spec.node_name:
            return  # and bound: the object shows it
        self.forest.assume(key, record.node_name)
        leaf = self.forest.leaf_of(key)
        if leaf is not None and record.state is not PodState.CONFIRMED:
            self.commits.begin(leaf)
        else:
            self.forest.confirm(key)

    def lost(self, namespace: str, name: str) -> None:
        """Handle a deleted pod, after the engine has dropped its record."""
        key = PodKey(namespace, name)
        if str(key) in self._cluster.records:
            return  # another pod of the same name exists
        leaf = self.forest.leaf_of(key)
        if leaf is None:
            return
        member = self._member(leaf, key)
        self.note_loss(leaf, member, None)
        roots = self.forest.drop_pod(namespace, name)
        placed = member is not None and member.state is not PENDING
        if member is not None:
            self.commits.released(member.pod.metadata.uid)
        for root in roots:
            self.notes.roots_of_changed_members[root] = None
        self._mark((leaf,), helps=placed)

    def observe(self, kind: str, old: Any | None, new: Any | None) -> None:
        if kind not in (POD_GROUP, COMPOSITE, WORKLOAD, POLICY) or not self._cluster.grouping:
            return
        meta = (new if new is not None else old).metadata  # type: ignore[union-attr]
        if kind == WORKLOAD:
            roots = self._workload_changed(meta.namespace, meta.name, old, new)
        elif kind == POLICY:
            roots = self._policy_changed(meta.namespace, meta.name, old, new)
        else:
            roots = self._group_changed(GroupKey(kind, meta.namespace, meta.name), old, new)
        for root in roots:
            self.notes.roots_of_changed_objects[root] = None

    def _workload_changed(self, namespace: str, name: str, old: Any | None, new: Any | None) -> Iterable[GroupKey]:
        """Return the roots of the trees affected by a changed Workload."""
        self.statuses.workloads.seen((namespace, name), new)
        if _same(old, new):
            return ()  # only its status changed, probably written by us
        forest = self.forest
        roots = forest.put_workload(new) if new is not None else forest.drop_workload(namespace, name)
        # Without the Workload its implicit groups have no root.
        below = dict.fromkeys(forest.of_workload(namespace, name))
        self._mark(below, helps=True)
        if old is not None and _is_another_object(old, new):
            self.conditions.forget_implicit(namespace, name)
            for leaf in below:
                self.commits.forget(leaf)
        if old is None or new is None or old.spec != new.spec:
            self._note_evictable(below)
        return roots

    def _policy_changed(self, namespace: str, name: str, old: Any | None, new: Any | None) -> Iterable[GroupKey]:
        """Return the roots of the trees affected by a changed WorkloadPolicy."""
        forest, changed = self.forest, list[GroupKey]()
        if not _same(old, new):
            changed = forest.put_policy(new) if new is not None else forest.drop_policy(namespace, name)
            self._mark([key for key in changed if key.kind != COMPOSITE], helps=True)
            self.health.touch(*changed)
        self.statuses.policies.seen((namespace, name), new)
        return dict.fromkeys(root for key in changed if (root := forest.root_of(key)) is not None)

    def _group_changed(self, key: GroupKey, old: Any | None, new: Any | None) -> Iterable[GroupKey]:
        """Return the roots of the trees affected by a changed PodGroup or CompositePodGroup."""
        forest = self.forest
        below = {leaf.key: None for leaf in forest.leaves(key)}
        if new is None:
            roots = forest.drop(key)
            self.conditions.forget(key)
            self.health.forget(key)
            self.commits.forget(key)
        else:
            roots = forest.put(key, new)
            self.conditions.seen(key, new)
            self.health.seen(key, new)
            parent = new.spec.parent_composite_pod_group_name
            if parent and not forest.parents_count and _is_another_object(old, new):
                self.conditions.parent_ignored(key, new.metadata.uid, parent)
            if _same(old, new):
                return ()  # only its status changed, probably written by us
            for problem in unusable(new):
                self.conditions.annotation_ignored(key, new.metadata.uid, problem)
        if _is_another_object(old, new):
            self._assign_to_successor(key)
        below |= {leaf.key: None for leaf in forest.leaves(key)}
        self.notes.roots_of_changed_objects[key] = None
        if _disrupted_as(old) != _disrupted_as(new):
            self._note_evictable(below)
        self._mark(below, helps=True)
        return roots

    def _note_evictable(self, leaves: Iterable[GroupKey]) -> None:
        """Record that other units than before may evict placed members."""
        for key in leaves:
            leaf = self.forest.group(key) or self.forest.named(key)
            for member in leaf.members if leaf is not None else ():
                record = self._cluster.records.get(str(member))
                if record is not None and record.row >= 0:
                    self._queue.wake(ClusterChange(Wake.POD_PLACED, record.row, record))

    def failed(self, decision: d.Decision, event: e.Outcome) -> None:
        """Handle a failed write about a group, or a failed eviction."""
        if isinstance(decision, d.Evict):
            self.commits.released(decision.uid)
        elif isinstance(decision, d.SetGroupCondition):
            self.statuses.write_failed(decision)
            key = GroupKey(decision.kind, decision.namespace, decision.name)
            group = self.forest.group(key)
            self.conditions.write_failed(key, decision, group.source if group is not None else None)
            # A 404 may be wrong, and a deleted group is in no tree. Clusters without our API have no Workload status.
            final = (e.NOT_FOUND, e.PERMANENT) if decision.kind in (WORKLOAD, POLICY) else (e.PERMANENT,)
            if event.problem not in final:
                self._status_writes.add(decision)

    def _mark(self, leaves: Iterable[GroupKey | None], *, helps: bool) -> None:
        for leaf in leaves:
            if leaf is not None:
                self.notes.changed_leaves[leaf] = helps or self.notes.changed_leaves.get(leaf, False)

    # ---- transitions of pods

    def claims(self, record: PodRecord) -> bool:
        """Return True if this pod is scheduled as a group member; then it is never queued alone."""
        return self.forest.leaf_of_pod(record.namespace, record.name) is not None

    def pending(self, record: PodRecord, *, failed: bool = False) -> None:
        """Add a pending pod to its unit, and queue the unit when it is complete.

        The pod is new, changed, or pending again after its bind `failed`.
        """
        key = PodKey(record.namespace, record.name)
        leaf = self.forest.leaf_of(key)
        if leaf is None:
            return
        back = bool(self.forest.forget(key))
        self.waiting_pods.setdefault(leaf, {})[record.key] = record
        self.notes.arrived.setdefault(leaf, {})[record.key] = record
        if (unit_key := self.unit_key_of.get(leaf)) is not None:
            unit = self._unit_lifecycle.waiting(unit_key)
            if unit is not None and record.key in unit.records:
                unit.records[record.key] = record
                back = True  # changed, not new
        if failed:
            self.groups_with_failed_binds[leaf] = None
        self._mark((leaf,), helps=back)

    def assumed(self, assignment: Iterable[tuple[PodRecord, int]]) -> None:
        """Remove placed pods from their units."""
        leaf_of, by_leaf = self.forest.leaf_of_pod, dict[GroupKey, list[PodRecord]]()
        for record, _ in assignment:
            leaf = leaf_of(record.namespace, record.name)
            if leaf is not None:
                by_leaf.setdefault(leaf, []).append(record)
        for leaf, records in by_leaf.items():
            self._unlist(leaf, [record.key for record in records])
            nodes = {PodKey(record.namespace, record.name): record.node_name for record in records}
            self.forest.assume_all(leaf, nodes)

    def found(self, record: PodRecord) -> None:
        """Handle a member that another scheduler placed."""
        self._leave(record)

    def bound(self, record: PodRecord) -> None:
        """Handle a Bind of a member that the API server has acknowledged."""
        leaf = self.forest.confirm(PodKey(record.namespace, record.name))
        if leaf is not None:
            self._bind_answered(leaf)

    def gone(self, record: PodRecord, *, finished: bool) -> None:
        """Handle a deleted or `finished` member (Succeeded or Failed: it may still count for its gang)."""
        leaf = self._leave(record)
        if leaf is not None:
            self._mark((leaf,), helps=finished)

    def _leave(self, record: PodRecord) -> GroupKey | None:
        """Remove a pod from its unit."""
        leaf = self.forest.leaf_of_pod(record.namespace, record.name)
        if leaf is not None:
            self._unlist(leaf, (record.key,))
        return leaf

    def _unlist(self, leaf: GroupKey, names: Collection[str]) -> None:
        for table in (self.waiting_pods, self.notes.arrived):
            pods = table.get(leaf)
            if pods is None:
                continue
            for name in names:
                pods.pop(name, None)
            if not pods:
                del table[leaf]
        unit = self._unit_lifecycle.waiting(self.unit_key_of.get(leaf, ""))
        if unit is not None:
            for name in names:
                unit.records.pop(name, None)
            if not unit.records and unit.queue_name is not ATTEMPT:
                self._unit_lifecycle.leave(unit)

    def queue_of(self, record: PodRecord) -> QueueName:
        """Return the queue of a pending member, for validation; NOWHERE: it was lost."""
        leaf = self.forest.leaf_of(PodKey(record.namespace, record.name))
        if leaf is None or record.key not in self.waiting_pods.get(leaf, {}):
            return NOWHERE
        if leaf in self.notes.changed_leaves:
            return GATED  # arrived since the last step
        unit = self._unit_lifecycle.waiting(self.unit_key_of.get(leaf, ""))
        return unit.queue_name if unit is not None and record.key in unit.records else NOWHERE

    def settle(self, root: GroupKey) -> None:
        """Set the state of a tree without pending pods."""
        key, group = root_key(root), self.forest.group(root)
        if group is not None and self._unit_lifecycle.waiting(key) is None:
            self._unit_lifecycle.settle(key, self.commits.state_of(group))

    # ---- queries

    def gang_is_satisfied(self, record: PodRecord) -> bool:
        """Return True if the pod has no group, or placed pods satisfy the minimum of its group and of all above it."""
        leaf = self.forest.leaf_of_pod(record.namespace, record.name)
        if leaf is None:
            return True
        group = self.forest.group(leaf)
        return group is not None and group.satisfied and all(above.satisfied for above in self.forest.above(leaf))

    def root_of(self, key: GroupKey) -> SchedulingUnit | None:
        """Return the unit that holds the pending pods of a group or of those below it."""
        target = self.forest.root_of(key)
        return self._unit_lifecycle.waiting(root_key(target) if target is not None else f"waiting/{root_key(key)}")

    def group_of(self, unit: SchedulingUnit) -> Group | None:
        return self.forest.group(unit.group) if unit.group is not None else None

    def tree(self, unit: SchedulingUnit, group: Group) -> GroupTree:
        """Return the tree of a unit for an attempt."""
        return GroupTree(unit.key, group, self.forest, self.waiting_pods, unit.priority, list(unit.records.values()))

    @property
    def busy(self) -> bool:
        """Return True if `settle` has changes to handle."""
        notes = self.notes
        return bool(notes.changed_leaves or notes.roots_of_changed_objects or notes.roots_of_changed_members)

    def report(self, key: GroupKey, reason: str, message: str) -> None:
        if (group := self.forest.group(key)) is not None:
            self.conditions.report(group, "False", reason, message)

    def _bind_answered(self, leaf: Group | None) -> None:
        """Handle an acknowledged bind of a member, reported by its outcome or by the informer."""
        if leaf is None:
            return
        if not leaf.binding:
            self.health.touch(leaf.key)
        scheduled = self.conditions.is_true(leaf.key) and not self.conditions.targets
        if leaf.binding if scheduled else not self.commits.commit_is_decided(leaf):
            return
        if (root := self.forest.root_of(leaf.key)) is None:
            return
        if scheduled:
            self.settle(root)  # every condition is written
        else:
            self.notes.roots_of_changed_members[root] = None


def _is_another_object(old: Any | None, new: Any | None) -> bool:
    """Return True if an object was created, deleted or created again."""
    return old is None or new is None or old.metadata.uid != new.metadata.uid


def _same(old: Any | None, new: Any | None) -> bool:
    """Return True if everything but the status is unchanged."""
    return bool(
        old is not None
        and new is not None
        and old.spec == new.spec
        and old.metadata.annotations == new.metadata.annotations
        and old.metadata.uid == new.metadata.uid
    )


def _is_queued_next(old: Member | None, new: Member | None) -> bool:
    """Return True if a member is pending and was not placed before: `Members.pending` follows."""
    return new is not None and new.state is PENDING and (old is None or old.state is new.state)


def _disrupted_as(group: Any | None) -> Any:
    """Return the fields that decide which units may evict the pods of a group, and whether one by one."""
    if group is None:
        return None
    spec = group.spec
    return (spec.priority, spec.disruption_mode, spec.parent_composite_pod_group_name)


def completed_in(member: Member) -> str | None:
    return member.pod.metadata.annotations.get(COMPLETED_IN)


def root_key(key: GroupKey) -> str:
    """Return the key of a unit in queue, metrics and decisions: "podgroup/ns/name"."""
    return f"{key.kind.lower()}/{key.namespace}/{key.name}"
