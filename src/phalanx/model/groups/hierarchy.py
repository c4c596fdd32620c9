"""Check the rules of a group tree: parents, depth, one Workload, its templates, one priority; and its pods.

KEP-6012 leaves these to the scheduler because objects arrive one by one. Every rule reads only the ancestors of a
group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import msgspec

from phalanx.model.groups.group import PREEMPT_LOWER, Group, GroupSpec, Templates
from phalanx.model.groups.keys import COMPOSITE, POD_GROUP, WORKLOAD, GroupKey


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
        more = "; and more" if len(self.shortages) > 3 else ""  # not their number: that would visit the whole tree
        if self.root.kind == COMPOSITE:
            return f'waiting for composite pod group "{self.root.name}" tree to meet quorum: {detail}{more}'
        return f"waiting for minCount pods from a gang to appear in scheduling queue: {detail}{more}"


class InvalidTree(msgspec.Struct, frozen=True):
    """A tree that must not be scheduled; every group listed gets condition reason Invalid with the message."""

    groups: tuple[GroupKey, ...]
    message: str


MOST_NAMES = 8  # of groups in the message about a cycle


def cycle_text(cycle: tuple[GroupKey, ...]) -> str:
    if len(cycle) == 1:
        return f"cyclic parents: {cycle[0]} names itself as its parent"
    names = [key.name for key in (*cycle, cycle[0])]
    if len(names) > MOST_NAMES:
        left = len(names) - MOST_NAMES
        names[MOST_NAMES - 1 : -1] = [f"({left} more)"]
    return f"cyclic parents: {' -> '.join(names)} (CompositePodGroups)"


MAX_DEPTH = 4  # KEP-6012: levels of groups, leaf included
LEVELS_CHECKED = MAX_DEPTH + 2  # a check reads no more ancestors, so that long chains cost no more


def ancestry(groups: Mapping[GroupKey, Group], key: GroupKey | None) -> Iterator[Group]:
    """Yield the group, its parent and so on as far as they are known; each once, also in a cycle."""
    seen: set[GroupKey] = set()
    at = key
    while at is not None and at in groups and at not in seen:
        seen.add(at)
        group = groups[at]
        yield group
        at = group.spec.parent if group.spec is not None else None


def resolve(groups: Mapping[GroupKey, Group], key: GroupKey) -> Resolution:
    first = groups.get(key)
    if first is not None and first.spec is not None and first.spec.parent is None:
        return Resolution(key, root=key)
    path: dict[GroupKey, None] = {}
    at: GroupKey | None = key
    while at is not None:
        if at in path:
            cycle = list(path)[list(path).index(at) :]
            lowest = cycle.index(min(cycle))
            return Resolution(key, cycle=(*cycle[lowest:], *cycle[:lowest]))
        group = groups.get(at)
        if group is None or group.spec is None:
            return Resolution(key, missing=at)
        path[at] = None
        at = group.spec.parent
    return Resolution(key, root=next(reversed(path)))


def shortages(group: Group) -> Iterator[QuorumShortage]:
    """Yield the groups of a tree that have fewer members than they need."""
    if group.spec is None or group.ready:
        return
    known = group.ready_children if group.composite else group.known
    if not group.composite or len(group.children) < group.spec.minimum:
        yield QuorumShortage(group.key, len(group.children) if group.composite else known, group.spec.minimum)
    for child in group.sorted_children():
        if not child.ready:
            yield from shortages(child)


def check(groups: Mapping[GroupKey, Group], group: Group, templates: Templates | None) -> str | None:
    """Return what is wrong with one group, compared with its ancestors and templates; None if it is valid."""
    spec = group.spec
    if spec is None or spec.problem is not None:
        return spec.problem if spec is not None else None
    parent = None
    if spec.parent is not None:
        if (problem := _wrong_depth(groups, group.key)) is not None:
            return problem
        parent = groups.get(spec.parent)
    if parent is not None and parent.spec is not None:
        higher = parent.spec
        if spec.workload is not None and higher.workload is not None and spec.workload != higher.workload:
            return (
                f"{group.key} belongs to Workload {spec.workload}, its parent {parent.key} to Workload"
                f" {higher.workload}: all groups of a tree must belong to one Workload"
            )
        # KEP-6012 Beta: children of a Basic group may differ, since each is placed for itself.
        if higher.gang and (spec.priority or 0) != (higher.priority or 0):
            return (
                f"{group.key} has priority {spec.priority or 0}, its parent {parent.key} has priority"
                f" {higher.priority or 0}: a gang and the groups below it must have the same priority"
            )
        if higher.disrupt_all and not spec.disrupt_all:
            return (
                f"{group.key} has disruption mode Single below {parent.key} with mode All: what is only disrupted as a"
                " whole has no parts that go one by one; set All on both or Single on the parent"
            )
    if templates is not None:
        return _against_templates(group, spec, parent, templates)
    return None


def _wrong_depth(groups: Mapping[GroupKey, Group], key: GroupKey) -> str | None:
    """Return what is wrong with the chain of parents of a group: a cycle, or too many levels."""
    depth = sum(1 for _ in islice(ancestry(groups, key), LEVELS_CHECKED))
    if depth < LEVELS_CHECKED and (cycle := resolve(groups, key).cycle):
        return cycle_text(cycle)
    if depth <= MAX_DEPTH:
        return None
    level = f"level {depth}" if depth < LEVELS_CHECKED else f"level {depth} or below"
    return f"{key} is on {level}, the hierarchy must not be deeper than {MAX_DEPTH} levels"


def _against_templates(group: Group, spec: GroupSpec, parent: Group | None, templates: Templates) -> str | None:
    name = spec.template or ""
    if name not in templates.parents:
        return f"{group.key} refers to template {name}, which Workload {spec.workload} does not have"
    if templates.kinds[name] != group.key.kind:
        kind = "PodGroupTemplate" if templates.kinds[name] == POD_GROUP else "CompositePodGroupTemplate"
        return f"{group.key} refers to template {name} of Workload {spec.workload}, which is a {kind}"
    wanted = templates.parents[name]
    if spec.parent is None:
        if wanted is not None:
            return f"{group.key} has no parent, but its template {name} in Workload {spec.workload} is below {wanted}"
        return None
    if wanted is None:
        return f"{group.key} has a parent, but its template {name} in Workload {spec.workload} is at the top"
    if parent is not None and parent.spec is not None and parent.spec.template != wanted:
        return (
            f"the parent of {group.key} is made from template {parent.spec.template}, but Workload {spec.workload}"
            f" has template {name} below {wanted}"
        )
    return None


def tree_mismatch(root: Group, leaves: Sequence[Group], group_preemption_policy: bool) -> str | None:
    """Return what the member pods of a tree disagree about, with their root or with each other."""
    spec = root.spec
    traits = sorted({t for leaf in leaves for t in leaf.traits})
    if not traits:
        return None
    if root.composite and spec is not None and not spec.gang:
        # Below a Basic group priorities may differ; pods then agree with their own group.
        for leaf in leaves:
            if leaf.traits and (found := mismatch(sorted(leaf.traits), leaf.spec, group_preemption_policy)) is not None:
                return found
        traits = sorted({(name, spec.priority or 0, policy) for name, _, policy in traits})
    return mismatch(traits, spec, group_preemption_policy)


def mismatch(
    traits: Sequence[tuple[str, int, str]], root: GroupSpec | None, group_preemption_policy: bool
) -> str | None:
    """Return the text of the first trait in which members differ, as kube-scheduler words it; else None.

    traits: distinct (schedulerName, priority, preemptionPolicy) of members.
    """
    names = sorted({t[0] for t in traits})
    if len(names) > 1:
        return (
            "all pods in a single pod group should have the same .spec.schedulerName set,"
            f' got: "{names[1]}" and "{names[0]}"'
        )
    expected = None if root is None else root.priority  # None: not set, the lowest of the pods' counts
    other = sorted({t[1] for t in traits if t[1] != expected}) if expected is not None else []
    if other:
        return (
            "all pods in a single pod group should have the same priority as the pod group's priority,"
            f" got {other[0]} and {expected}"
        )
    policies = sorted({t[2] for t in traits})
    if group_preemption_policy and root is not None and root.preemption_policy is not None:
        wanted = root.preemption_policy or PREEMPT_LOWER
        differing = [p for p in policies if p != wanted]
        if differing:
            return (
                "all pods in a single pod group should have the same preemption policy as the pod group's preemption"
                f" policy, got {differing[0]} and {wanted}"
            )
    elif len(policies) > 1:
        return (
            "all pods in a single pod group should have the same preemption policy,"
            f" got {policies[1]} and {policies[0]}"
        )
    return None
