"""What a forest says about a group: where its root is, what is missing, what is wrong. Values with their messages."""

from __future__ import annotations

import msgspec

from phalanx.model.groups.keys import COMPOSITE, WORKLOAD, GroupKey


class Resolution(msgspec.Struct, frozen=True):
    """The root of a group, or why there is none (yet)."""

    group: GroupKey
    root: GroupKey | None = None
    missing: GroupKey | None = None  # this object has not been seen
    cycle: tuple[GroupKey, ...] = ()

    @property
    def message(self) -> str:
        if self.cycle:
            return cycle_text(self.cycle)
        if self.missing is None:
            return ""
        if self.missing == self.group:
            if self.missing.kind == WORKLOAD:
                workload, name, _ = self.missing.name.split("/", 2)
                return f"waiting for Workload {workload} with pod group {name} to appear"
            return f"waiting for {self.missing} to appear"
        return f"waiting for {self.missing}, an ancestor of {self.group}, to appear"


class QuorumShortage(msgspec.Struct, frozen=True):
    """A group below its quorum."""

    group: GroupKey
    known: int
    needed: int

    def __str__(self) -> str:
        what = "child group" if self.group.kind == COMPOSITE else "pod"
        missing = self.needed - self.known
        return f"{self.group} has {self.known} of {self.needed} {what}s, {missing} missing"


class Quorum(msgspec.Struct, frozen=True):
    """Whether enough members are known to try at all. Shortages name the groups that keep the root waiting."""

    root: GroupKey
    ready: bool
    shortages: tuple[QuorumShortage, ...] = ()

    @property
    def message(self) -> str:
        if self.ready:
            return ""
        detail = "; ".join(map(str, self.shortages[:3]))
        more = "; and more" if len(self.shortages) > 3 else ""  # not how many: counting them costs the tree
        if self.root.kind == COMPOSITE:
            return f'waiting for composite pod group "{self.root.name}" tree to meet quorum: {detail}{more}'
        return f"waiting for minCount pods from a gang to appear in scheduling queue: {detail}{more}"


class InvalidTree(msgspec.Struct, frozen=True):
    """A tree that must not be scheduled; every group listed gets condition reason Invalid with the message."""

    groups: tuple[GroupKey, ...]
    message: str


def cycle_text(cycle: tuple[GroupKey, ...]) -> str:
    if len(cycle) == 1:
        return f"cyclic parents: {cycle[0]} names itself as its parent"
    return f"cyclic parents: {' -> '.join(k.name for k in (*cycle, cycle[0]))} (CompositePodGroups)"
