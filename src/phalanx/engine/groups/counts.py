"""Limit how many members of a group may be placed: min, desired and max of its policy."""

from __future__ import annotations

from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.model.groups import Group

UNLIMITED = 1 << 30


def limit(state: ClusterState, group: Group, priority: int) -> int:
    """Return how many more members of a pod group may get nodes now.

    Up to `desired`, as many as fit. Between `desired` and `max`, only while no pending unit of equal or higher priority
    could use the free room. Beyond `max`, none.
    """
    policy, spec = group.policy, group.spec
    if spec is None or not policy.has_counts or not _counts_apply(state, group):
        return UNLIMITED
    most = policy.max_count if policy.max_count is not None else UNLIMITED
    desired = policy.desired_count
    if desired is not None and desired < most:
        if group.placed < max(desired, spec.minimum):
            most = max(desired, spec.minimum)
        elif state.contested(group.key, priority):
            most = group.placed
    return max(0, most - group.placed)


def _counts_apply(state: ClusterState, group: Group) -> bool:
    """Return whether counts apply. KEP-4671: counts of groups with the Basic policy have their own feature gate."""
    assert group.spec is not None
    return group.spec.gang or state.gates("WorkloadBasicPolicyDesiredCount")


def surplus(state: ClusterState, group: Group, priority: int) -> str:
    """Return the message why no further member is placed; empty if counts are not the reason."""
    policy = group.policy
    if group.composite or limit(state, group, priority) > 0:
        return ""
    if policy.max_count is not None and group.placed >= policy.max_count:
        return f"{group.placed} pods of {group.key} are placed, and its policy allows {policy.max_count} (counts.max)"
    return (
        f"{group.placed} pods of {group.key} are placed, and its policy asks for {policy.desired_count}"
        " (counts.desired): more are placed when no waiting workload of equal or higher priority could use the room"
    )
