"""Commits of gangs, from the decision to the last confirmed bind, and the release of gangs after a failed bind.

A group is scheduled when the binds that make its minimum are confirmed, for every group up to the root. A gang that
cannot be completed is released: all members that we bound are evicted, also started ones, so that no partial gang
remains. Our binds carry an annotation, with which a new scheduler process distinguishes them from binds of others.
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


class GangCommits:
    def __init__(self, state: ClusterState, conditions: GroupConditions, emit: Emit) -> None:
        self._cluster = state
        self._forest = state.forest
        self._conditions = conditions
        self._emit = emit
        self._bound_here: set[GroupKey] = set()  # leaves of which this process bound a member
        self._released: set[str] = set()  # uids of pods whose eviction we requested

    # ---- binds under way

    def begin(self, key: GroupKey) -> None:
        """Record that members of a group are being bound."""
        self._bound_here.update(leaf.key for leaf in self._forest.leaves(key) if leaf.binding)

    def forget(self, key: GroupKey) -> None:
        """Forget a group that is gone."""
        self._bound_here.discard(key)

    def under_way(self, unit: GroupKey) -> bool:
        return any(leaf.binding for leaf in self._forest.leaves(unit))

    # ---- scheduled

    def commit_is_decided(self, leaf: Group) -> bool:
        """Return True if the confirmed members of a leaf are its minimum, or every bind has an outcome."""
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
        return UnitState.NONE  # too few members

    def notify(self, group: Group) -> bool:
        """Set the condition to True for every confirmed group whose ancestors are confirmed, if we bound pods of it."""
        if not self.confirmed(group):
            return False
        conditions = self._conditions
        ours = False
        for child in group.sorted_children():
            ours = self.notify(child) or ours
        if not group.composite:
            ours = group.key in self._bound_here or group.marked > 0
        if ours and not conditions.is_true(group.key):
            # After a restart only conditions that are not written yet are written; no event is repeated.
            updates = group.key in self._bound_here or any(
                leaf.key in self._bound_here for leaf in self._forest.leaves(group.key)
            )
            conditions.report(group, "True", "Scheduled", "", event=updates)
        return ours

    # ---- release

    def release(self, group: Group, root_key: str) -> bool:
        """Evict the members of a commit that cannot be completed; return True if there were any."""
        found = list(self._half_bound(group))
        for part, leaf, member in found:
            self._evict(part, leaf, member, root_key)
        return bool(found)

    def incomplete(self, group: Group) -> bool:
        """Return True if `release` would find members to evict."""
        return any(True for _ in self._half_bound(group))

    def _half_bound(self, group: Group) -> Iterator[tuple[Group, Group, Member]]:
        for part in self._failed_commits(group):
            started = self._was_never_complete(part)
            for leaf in self._forest.leaves(part.key):
                for member in self._releasable(leaf, started):
                    yield part, leaf, member

    def released(self, uid: str) -> None:
        """Record that a member is gone or its eviction was refused, so that it can be requested again."""
        self._released.discard(uid)

    def _failed_commits(self, group: Group) -> Iterator[Group]:
        """Return the highest groups below their minimum whose placed members were all bound by us: failed commits.

        A gang that lost a member later, or that has running members and waits for pods created after them, is repaired
        instead.
        """
        if group.spec is None:
            return
        if not group.satisfied and not self._conditions.is_true(group.key):
            placed, started = 0, self._was_never_complete(group)
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
            yield from self._failed_commits(child)

    def _was_never_complete(self, group: Group) -> bool:
        """Return True if no member was lost: the pending ones existed when the first member started, and together they
        make the minimum. An earlier process ended after it had bound a part of the gang."""
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
        """Return the members of a failed commit that may be evicted.

        They were bound by us for this group object and are not terminating. Started ones are included only with
        `started`. Pods that ran under an earlier object of the same name, and pods that another scheduler is placing,
        are not included.
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
