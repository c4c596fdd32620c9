"""Decide whether a group tree may be tried: objects known and valid, quorum reached, no scheduling gates.

The functions only report; they do not hold any pod.
"""

from __future__ import annotations

import enum

import msgspec

from phalanx.engine.groups.build import Built
from phalanx.model.groups import Group, GroupForest, GroupKey, PodKey, QuorumShortage

KUEUE = "kueue.x-k8s.io/"  # prefix of the scheduling gates by which Kueue holds pods back


class HeldBy(enum.Enum):
    OBJECTS = "objects"  # an object of the tree has not been seen
    INVALID = "invalid"
    MEMBERS = "members"  # below its quorum
    MISMATCH = "mismatch"  # its members name different schedulers
    GATES = "gates"  # scheduling gates of members


class Hold(msgspec.Struct, frozen=True):
    by: HeldBy
    message: str
    groups: tuple[GroupKey, ...] = ()  # groups that the hold applies to


def hold_of(forest: GroupForest, key: GroupKey) -> Hold | None:
    """Return why the tree of a root must wait before it is tried, or None if it may be tried."""
    invalid = forest.invalid(key)
    if invalid is not None:
        return Hold(HeldBy.INVALID, invalid.message, tuple(invalid.groups))
    if forest.root_of(key) is None:
        return Hold(HeldBy.OBJECTS, forest.resolve(key).message)
    if not forest.ready(key):
        return Hold(HeldBy.MEMBERS, forest.quorum(key, 4).message)
    mismatch = forest.mismatch(key)
    if mismatch is not None:
        return Hold(HeldBy.MISMATCH, mismatch, (key, *(leaf.key for leaf in forest.leaves(key) if leaf.key != key)))
    gated = forest.gated(key)
    if gated:
        names = ", ".join(map(str, gated[:3])) + (f" and {len(gated) - 3} more" if len(gated) > 3 else "")
        # The last reported message may count missing members that exist by now.
        announced = {key: None} | {leaf: None for pod in gated[:3] if (leaf := forest.leaf_of(pod)) is not None}
        admits = "; Kueue has not admitted it" if _kueue_gates(forest, gated[0]) else ""
        return Hold(HeldBy.GATES, f"waiting for scheduling gates of {names}{admits}", tuple(announced))
    return None


def _kueue_gates(forest: GroupForest, pod: PodKey) -> bool:
    """Return True if a member has no other scheduling gates than Kueue's."""
    leaf = forest.leaf_of(pod)
    group = forest.group(leaf) if leaf is not None else None
    member = group.members.get(pod) if group is not None else None
    gates = (member.pod.spec.scheduling_gates or ()) if member is not None else ()
    return bool(gates) and all(gate.name.startswith(KUEUE) for gate in gates)


def shortages_of(forest: GroupForest, group: Group) -> tuple[QuorumShortage, ...]:
    """Return the missing members of the highest incomplete group, from this group upwards.

    The tree may run without that group.
    """
    short: Group | None = None
    at: Group | None = group
    while at is not None and at.spec is not None:
        if not at.ready:
            short = at
        at = forest.group(at.spec.parent) if at.spec.parent is not None else None
    return forest.quorum(short.key, 3).shortages if short is not None else ()


def all_short(forest: GroupForest, built: Built) -> list[QuorumShortage]:
    """Return the missing members if every group with pending pods lacks members; else an empty list."""
    found: dict[QuorumShortage, None] = {}
    for part, records in built.pending.items():
        if records:
            shortages = shortages_of(forest, built.group_of[part])
            if not shortages:
                return []
            found.update(dict.fromkeys(shortages))
    return list(found)[:3]
