"""Gangs between the decision and the last confirmed bind, and what happens when a bind fails for good.

A group is called scheduled when the binds that make its minimum are confirmed, all the way up to its root. A gang that
can no longer be completed is released: members we bound are evicted, also those that have started without the others,
so that nothing half-placed stays behind. The mark on our binds (an annotation written with the Binding) lets a new
scheduler process distinguish such members from pods that another scheduler bound.
"""

from __future__ import annotations

from collections.abc import Iterator

from phalanx.base.clock import parse_rfc3339
from phalanx.engine import decisions as d
from phalanx.engine.framework import Emit
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.groups.conditions import GroupConditions
from phalanx.engine.scheduling.queue.units import UnitState
from phalanx.model.groups import Group, GroupKey, Member, MemberState
from phalanx.model.groups.keys import BOUND_IN_GROUP
from phalanx.model.objects import ObjectMeta


class Commits:
    def __init__(self, state: ClusterState, conditions: GroupConditions, emit: Emit) -> None:
        self._cluster = state
        self._forest = state.forest
        self._conditions = conditions
        self._emit = emit
        self._ours: set[GroupKey] = set()  # leaves of which we bound a member in this life
        self._released: set[str] = set()  # uids of pods we asked to go

    # ---- binds under way

    def begin(self, key: GroupKey) -> None:
        """Note that members of a group are being bound."""
        self._ours.update(leaf.key for leaf in self._forest.leaves(key) if leaf.binding)

    def forget(self, key: GroupKey) -> None:
        """Drop what is known of a group that is gone."""
        self._ours.discard(key)

    def under_way(self, unit: GroupKey) -> bool:
        return any(leaf.binding for leaf in self._forest.leaves(unit))

    # ---- scheduled

    def enough(self, leaf: Group) -> bool:
        """Return True if the confirmed members of a leaf are its minimum, or no answer is outstanding."""
        if leaf.spec is None:
            return False
        return not leaf.binding or leaf.placed - leaf.binding >= leaf.spec.minimum

    def confirmed(self, group: Group) -> bool:
        """Return True if answered binds satisfy the minimum of a group. Visits the whole subtree."""
        if group.spec is None:
            return False
        if not group.composite:
            return group.placed - group.binding >= group.spec.minimum
        return sum(self.confirmed(child) for child in group.children.values()) >= group.spec.minimum

    def state_of(self, group: Group) -> UnitState:
        """Return the state of a tree without pending pods."""
        if self.under_way(group.key):
            return UnitState.COMMITTING
        if self._conditions.is_true(group.key) or self.confirmed(group):
            return UnitState.SCHEDULED
        return UnitState.NONE  # too few are there

    def notify(self, group: Group) -> bool:
        """Set the condition to True for every confirmed group whose ancestors are confirmed, if we bound pods of it."""
        if not self.confirmed(group):
            return False
        conditions = self._conditions
        ours = False
        for child in group.sorted_children():
            ours = self.notify(child) or ours
        if not group.composite:
            ours = group.key in self._ours or group.marked > 0
        if ours and not conditions.is_true(group.key):
            # After a restart only what was not written before the crash is written; the event is not needed again.
            updates = group.key in self._ours or any(leaf.key in self._ours for leaf in self._forest.leaves(group.key))
            conditions.say(group, "True", "Scheduled", "", event=updates)
        return ours

    # ---- release

    def release(self, group: Group, root_key: str) -> bool:
        """Give back what a commit that cannot be completed left on nodes; True if members were asked to go."""
        found = list(self._half_bound(group))
        for part, leaf, member in found:
            self._evict(part, leaf, member, root_key)
        return bool(found)

    def incomplete(self, group: Group) -> bool:
        """Return True if `release` would find members to evict."""
        return any(True for _ in self._half_bound(group))

    def _half_bound(self, group: Group) -> Iterator[tuple[Group, Group, Member]]:
        for part in self._broken(group):
            started = self._never_whole(part)
            for leaf in self._forest.leaves(part.key):
                for member in self._releasable(leaf, started):
                    yield part, leaf, member

    def released(self, uid: str) -> None:
        """Note that a member is gone or its eviction was refused, so that it may be requested again."""
        self._released.discard(uid)

    def _broken(self, group: Group) -> Iterator[Group]:
        """Return the highest groups below their minimum whose placed members were all bound by us: failed commits.

        A gang that lost a member later was scheduled before, or has running members and waits for pods created after
        them: it is repaired, never released.
        """
        if group.spec is None:
            return
        if not group.satisfied and not self._conditions.is_true(group.key):
            placed, started = 0, self._never_whole(group)
            for leaf in self._forest.leaves(group.key):
                counts = leaf.counts
                if leaf.binding or counts[MemberState.CONFIRMED] or leaf.completed:
                    break
                running = counts[MemberState.RUNNING]
                if running and (self._conditions.is_true(leaf.key) or len(self._releasable(leaf, started)) < running):
                    break
                placed += running
            else:
                if placed:
                    yield group
                return
        for child in group.sorted_children():
            yield from self._broken(child)

    def _never_whole(self, group: Group) -> bool:
        """Return True if no member was lost: the pending ones existed when the first member started, and together they
        make the minimum. A process bound a part and ended before it bound the rest."""
        members = [member for leaf in self._forest.leaves(group.key) for member in leaf.members.values()]
        starts = [start for member in members if (start := member.pod.status.start_time) is not None]
        if not starts:
            return True
        first = min(parse_rfc3339(start) for start in starts)
        return self._enough_since(group, first)

    def _enough_since(self, group: Group, when: float) -> bool:
        if group.spec is None:
            return False
        if group.composite:
            return sum(self._enough_since(child, when) for child in group.children.values()) >= group.spec.minimum
        waiting = [member.pod for member in group.members.values() if member.state is MemberState.PENDING]
        made = [pod.metadata.creation_timestamp for pod in waiting]
        since = all(each is not None and parse_rfc3339(each) <= when for each in made)
        return since and group.placed + len(waiting) >= group.spec.minimum

    def _releasable(self, leaf: Group, started: bool) -> list[Member]:
        """Return the members of a broken gang that may be evicted.

        They were bound by us for this group object, are not terminating, and are not `started`, unless started ones may
        be evicted as well. Pods that ran under an earlier object of the same name are not touched, and pods that
        another scheduler is placing are left to that scheduler.
        """
        if leaf.spec is None:
            return []
        uid, ours = leaf.spec.uid, self._cluster.profiles
        return [
            member
            for member in leaf.members.values()
            if member.state is MemberState.RUNNING
            and (started or (member.pod.status.phase in ("", "Pending") and member.pod.status.start_time is None))
            and member.pod.metadata.annotations.get(BOUND_IN_GROUP) == uid
            and member.pod.spec.scheduler_name in ours
        ]

    def _evict(self, part: Group, leaf: Group, member: Member, root_key: str) -> None:
        meta = member.pod.metadata
        if meta.uid in self._released:
            return
        self._released.add(meta.uid)
        assert part.spec is not None
        what = "child groups" if part.composite else f"members, only {leaf.placed} could be bound"
        release(self._emit, meta, member.node, root_key, f"{part.key} needs {part.spec.minimum} {what}")


def release(emit: Emit, pod: ObjectMeta, node: str, root_key: str, why: str) -> None:
    """Evict a member of a gang that cannot be completed, so that the whole gang is tried again."""
    emit(
        d.Evict,
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        reason="GangIncomplete",
        message=f"{why}; released so that the whole gang can be tried again",
        event_reason="GangReleased",
        event_message=f"Released from node {node}: {why}",
        preemptor=root_key,
    )
