"""A gang between the decision and the last confirmed bind, and what happens when a bind fails for good.

A group is called scheduled only when the binds that make its minimum are confirmed. A gang that can no longer be
completed is released: members we bound that have not started are evicted, so that nothing half-placed stays behind.
The mark on our binds (an annotation written with the Binding) lets a new scheduler process tell such members from
pods that somebody else placed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from phalanx.engine.roots import BOUND_IN_GROUP
from phalanx.model.groups import Group, GroupKey, Member, MemberState


@dataclass(slots=True)
class Commit:
    """Binds of one attempt that are under way."""

    groups: list[GroupKey]  # whose minimum the attempt met, parents first
    outstanding: set[str] = field(default_factory=set)  # pod keys
    failed: bool = False


def releasable(leaf: Group) -> list[Member]:
    """Members of a broken gang that may be taken back: bound by us, not started, not leaving already."""
    return [
        member
        for member in leaf.members.values()
        if member.state is MemberState.RUNNING
        and member.pod.metadata.deletion_timestamp is None
        and member.pod.status.phase in ("", "Pending")
        and member.pod.status.start_time is None
        and BOUND_IN_GROUP in member.pod.metadata.annotations
    ]


def broken(leaf: Group) -> bool:
    """A gang below its minimum of which every placed member is ours and has not started: a commit that did not end
    well. A gang that lost a member later has members that run, and is repaired, never released."""
    spec = leaf.spec
    if spec is None or not spec.gang or leaf.composite or not 0 < leaf.placed < spec.minimum:
        return False
    if initially_scheduled(leaf) or leaf.counts[MemberState.ASSUMED] or leaf.counts[MemberState.SUCCEEDED]:
        return False
    return len(releasable(leaf)) == leaf.counts[MemberState.RUNNING]


def initially_scheduled(group: Group) -> bool:
    """What the object itself says: True is terminal."""
    source = group.source
    status = getattr(source, "status", None)
    for condition in (status.conditions or ()) if status is not None else ():
        if condition.type.endswith("PodGroupInitiallyScheduled") and condition.status == "True":
            return True
    return False
