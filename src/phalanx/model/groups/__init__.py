"""The group tree, from every dialect: PodGroup and CompositePodGroup objects, KEP-4671 Workloads, our pod label."""

from phalanx.model.groups.expected_pods import MIN_RESOURCES, TO_COME, announced
from phalanx.model.groups.forest import GroupForest
from phalanx.model.groups.group import KNOWN, ON_NODE, PLACED, Group, GroupSpec, Member, MemberState
from phalanx.model.groups.hierarchy import InvalidTree, Quorum, QuorumShortage, Resolution
from phalanx.model.groups.keys import (
    AFTER_GROUP,
    COMPLETED_IN,
    COMPOSITE,
    GROUP_LABEL,
    POD_GROUP,
    PREFERRED_TOPOLOGY,
    REPLACES,
    RUN,
    WORKLOAD,
    GroupKey,
    PodKey,
    group_of,
    implicit_key,
    pod_key,
    successor,
)

__all__ = [
    "AFTER_GROUP",
    "COMPLETED_IN",
    "COMPOSITE",
    "GROUP_LABEL",
    "KNOWN",
    "MIN_RESOURCES",
    "ON_NODE",
    "PLACED",
    "POD_GROUP",
    "PREFERRED_TOPOLOGY",
    "REPLACES",
    "RUN",
    "TO_COME",
    "WORKLOAD",
    "Group",
    "GroupForest",
    "GroupKey",
    "GroupSpec",
    "InvalidTree",
    "Member",
    "MemberState",
    "PodKey",
    "Quorum",
    "QuorumShortage",
    "Resolution",
    "announced",
    "group_of",
    "implicit_key",
    "pod_key",
    "successor",
]
