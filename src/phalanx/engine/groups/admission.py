"""Whether a tree may be tried at all: its objects in order, its quorum there, nobody gated. Says; holds nobody."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from phalanx.model.groups import GroupForest, GroupKey


class Held(enum.Enum):
    OBJECTS = "objects"  # an object of the tree has not been seen
    INVALID = "invalid"
    MEMBERS = "members"  # below its quorum
    MISMATCH = "mismatch"  # its members want different schedulers
    GATES = "gates"  # scheduling gates of members


@dataclass(frozen=True, slots=True)
class Hold:
    by: Held
    message: str
    groups: tuple[GroupKey, ...] = ()  # whom it concerns


def hold_of(forest: GroupForest, key: GroupKey) -> Hold | None:
    """Why the tree of a root must wait before it is tried; None: it may be."""
    invalid = forest.invalid(key)
    if invalid is not None:
        return Hold(Held.INVALID, invalid.message, tuple(invalid.groups))
    resolution = forest.resolve(key)
    if resolution.root is None:
        return Hold(Held.OBJECTS, resolution.message)
    if not forest.ready(key):
        return Hold(Held.MEMBERS, forest.quorum(key, 4).message)
    mismatch = forest.mismatch(key)
    if mismatch is not None:
        return Hold(Held.MISMATCH, mismatch, (key, *(leaf.key for leaf in forest.leaves(key) if leaf.key != key)))
    gated = forest.gated(key)
    if gated:
        names = ", ".join(map(str, gated[:3])) + (f" and {len(gated) - 3} more" if len(gated) > 3 else "")
        # What the groups were told last may be a number of missing members that are there by now.
        told = {key: None} | {leaf: None for pod in gated[:3] if (leaf := forest.leaf_of(pod)) is not None}
        return Hold(Held.GATES, f"waiting for scheduling gates of {names}", tuple(told))
    return None
