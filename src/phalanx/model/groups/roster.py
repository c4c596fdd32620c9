"""Keep the members of leaves and count them by state, without the tree above them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from phalanx.model.groups.group import (
    ASSUMED,
    CONFIRMED,
    KNOWN,
    OURS,
    PENDING,
    PLACED,
    PREEMPT_LOWER,
    RUNNING,
    SUCCEEDED,
    Group,
    Member,
    MemberState,
    Placement,
    member_state,
)
from phalanx.model.groups.keys import BOUND_IN_GROUP, COMPLETED_IN, RUN, WORKLOAD, GroupKey, PodKey
from phalanx.model.objects.pod import Pod


class MemberIndex:
    def __init__(self, ours: Callable[[str], bool]) -> None:
        self._ours = ours  # schedulerName -> is it one of this scheduler's profiles
        self.leaf_of: dict[PodKey, GroupKey] = {}
        # Pods that this scheduler has placed, as long as their objects do not show it.
        self.placements: dict[PodKey, Placement] = {}
        self.changed: dict[GroupKey, None] = {}  # leaves whose members or rules changed since `take_changed`

    def take_changed(self) -> dict[GroupKey, None]:
        changed, self.changed = self.changed, {}
        return changed

    def put(self, group: Group, key: PodKey, pod: Pod) -> None:
        """Add a member, or replace it by a later version."""
        old = group.members.get(key)
        member = Member(pod, *self._state(group, key, pod))
        group.members[key] = member
        if old is None:
            self._count(group, key, member, +1)
            self.leaf_of[key] = group.key  # one for all, not the pod's own
        elif old.state in KNOWN and member.state in KNOWN and _alike(old.pod, pod):
            # The usual changes of a pod, pending to assumed to running, change neither quorum nor traits.
            if old.state in OURS and member.state is RUNNING:
                self._count_bound(group, old, member)
            else:
                self._count_state(group, key, old, -1)
                self._count_state(group, key, member, +1)
        else:
            self._count(group, key, old, -1)
            self._count(group, key, member, +1)

    def assume(self, group: Group, nodes: Mapping[PodKey, str]) -> None:
        """Record that this scheduler has placed members of a leaf; their objects do not say so yet."""
        members, placements, moved = group.members, self.placements, 0
        for key, node in nodes.items():
            old = members[key]
            placements[key] = (node, False)
            if old.state is PENDING and not group.gated:  # the common case: nothing is counted but the state
                members[key] = Member(old.pod, ASSUMED, node)
                moved += 1
            else:
                self.put(group, key, old.pod)
        if moved:
            group.counts[PENDING] -= moved
            group.counts[ASSUMED] += moved
            group.on_nodes += moved
            self.changed[group.key] = None

    def confirm(self, group: Group, key: PodKey) -> bool:
        """Record that the bind of a member is acknowledged; return False if this was known.

        No count of the tree changes.
        """
        old = group.members[key]
        if old.state is not ASSUMED:
            return False
        self.placements[key] = (old.node, True)
        group.members[key] = Member(old.pod, CONFIRMED, old.node)
        group.counts[ASSUMED] -= 1
        group.counts[CONFIRMED] += 1
        return True

    def remove(self, group: Group, key: PodKey) -> None:
        del self.leaf_of[key]
        self._count(group, key, group.members.pop(key), -1)

    def recount(self, group: Group) -> None:
        """Count all members again, after the object of the group was recreated."""
        for key, old in list(group.members.items()):
            self._count(group, key, old, -1)
            group.members[key] = member = Member(old.pod, *self._state(group, key, old.pod))
            self._count(group, key, member, +1)

    def _state(self, group: Group, key: PodKey, pod: Pod) -> tuple[MemberState, str]:
        uid = group.spec.uid if group.key.kind == WORKLOAD and group.spec is not None else ""
        ours = bool(pod.spec.node_name) or self._ours(pod.spec.scheduler_name)  # read for pending pods only
        return member_state(pod, self.placements.get(key), ours=ours, uid=uid)

    def _count(self, group: Group, key: PodKey, member: Member, sign: int) -> None:
        """Add a member to the counts of its group, or remove it (`sign` -1)."""
        self._count_state(group, key, member, sign)
        annotations = member.pod.metadata.annotations
        if member.state in KNOWN:
            group.present += sign
            spec = member.pod.spec
            traits = (spec.scheduler_name, spec.priority or 0, spec.preemption_policy or PREEMPT_LOWER)
            _tally(group.traits, traits, sign)
            if RUN in annotations:
                _tally(group.runs, annotations[RUN], sign)
        elif member.state is SUCCEEDED and COMPLETED_IN in annotations:
            _tally(group.ended, annotations[COMPLETED_IN], sign)
        group.complete()

    def _count_bound(self, group: Group, old: Member, member: Member) -> None:
        """Count a member that the informer shows on a node after this scheduler placed it."""
        group.counts[old.state] -= 1
        group.counts[RUNNING] += 1
        self.changed[group.key] = None
        if BOUND_IN_GROUP in member.pod.metadata.annotations:
            group.marked += 1

    def _count_state(self, group: Group, key: PodKey, member: Member, sign: int) -> None:
        state = member.state
        group.counts[state] += sign
        self.changed[group.key] = None
        if state is PENDING:
            if member.pod.spec.scheduling_gates:
                if sign > 0:
                    group.gated[key] = None
                else:
                    group.gated.pop(key, None)
        elif state in PLACED:
            group.on_nodes += sign
            if state is RUNNING and BOUND_IN_GROUP in member.pod.metadata.annotations:
                group.marked += sign


def _alike(before: Pod, after: Pod) -> bool:
    """Return True if both versions of a pod count the same."""
    if before is after:
        return True
    old, new = before.spec, after.spec
    return (
        old.scheduler_name == new.scheduler_name
        and old.priority == new.priority
        and old.preemption_policy == new.preemption_policy
        and before.metadata.annotations.get(RUN) == after.metadata.annotations.get(RUN)
    )


def _tally(counts: dict[Any, int], what: Any, sign: int) -> None:
    """Add `sign` to the count of `what`; a count of zero is removed."""
    count = counts.get(what, 0) + sign
    if count:
        counts[what] = count
    else:
        del counts[what]
