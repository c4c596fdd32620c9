"""Find the policy of each group: WorkloadPolicies by target, annotations, defaults. Never changes a group.

The nearest wins, field by field: a WorkloadPolicy before annotations before the scheduler's defaults; a policy for the
group itself before one for the groups above it, for its Workload, and for the object that owns it.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from phalanx.base.well_known import GROUP_APIS
from phalanx.model.groups.group import Group, GroupSpec
from phalanx.model.groups.keys import PART_OF, WORKLOAD, GroupKey
from phalanx.model.groups.links import Workloads
from phalanx.model.groups.policy import DEFAULT, NOTHING, FieldProblem, Parsed, Policy, parse_annotations, parse_spec
from phalanx.model.objects.groups import CompositePodGroup, PodGroup, Workload
from phalanx.model.objects.policy import WorkloadPolicy, WorkloadPolicySpec

Name = tuple[str, str]  # namespace and name of a WorkloadPolicy
Source = PodGroup | CompositePodGroup | Workload | None


class Target(NamedTuple):
    """An object that a policy may be about. Its API group is compared, not looked up: authors may leave it out."""

    namespace: str
    kind: str
    name: str


class PolicyEntry(msgspec.Struct, frozen=True):
    policy: WorkloadPolicy
    parsed: Parsed

    @property
    def name(self) -> Name:
        return (self.policy.metadata.namespace, self.policy.metadata.name)

    @property
    def target(self) -> Target:
        ref = self.policy.spec.target_ref
        return Target(self.policy.metadata.namespace, ref.kind, ref.name)

    @property
    def age(self) -> tuple[str, str]:
        return (self.policy.metadata.creation_timestamp or "", self.policy.metadata.name)

    def is_about(self, api_group: str) -> bool:
        wanted = self.policy.spec.target_ref.api_group
        return not wanted or wanted == api_group or (wanted in GROUP_APIS and api_group in GROUP_APIS)


class Effective(NamedTuple):
    """What is in effect for a group, and why."""

    policy: Policy
    object: Name | None = None  # the WorkloadPolicy that was chosen
    problems: tuple[FieldProblem, ...] = ()  # of annotations


class Policies:
    def __init__(self, defaults: Policy = DEFAULT) -> None:
        self.defaults = defaults
        self.entries: dict[Name, PolicyEntry] = {}
        self._by_target: dict[Target, list[PolicyEntry]] = {}  # the oldest first
        self._looked_up: dict[GroupKey, Effective] = {}  # groups since `take_looked_up`
        self.chosen: dict[GroupKey, Name] = {}  # group -> the WorkloadPolicy that is in effect for it

    # ---- objects

    def put(self, policy: WorkloadPolicy) -> frozenset[Target]:
        """Add or replace a policy; return the targets for which another policy is in effect now."""
        entry = PolicyEntry(policy, parse_spec(policy.spec))
        known = self.entries.get(entry.name)
        before = {each.target: self._in_effect(each.target) for each in (known, entry) if each is not None}
        self._remove(entry.name)
        self.entries[entry.name] = entry
        same = self._by_target.setdefault(entry.target, [])
        same.append(entry)
        same.sort(key=lambda each: each.age)
        return frozenset(target for target, was in before.items() if was != self._in_effect(target))

    def drop(self, namespace: str, name: str) -> frozenset[Target]:
        """Remove a policy; return its target if another policy, or none, is in effect for it now."""
        entry = self.entries.get((namespace, name))
        if entry is None:
            return frozenset()
        before = self._in_effect(entry.target)
        self._remove(entry.name)
        return frozenset({entry.target} if before != self._in_effect(entry.target) else ())

    def _remove(self, name: Name) -> None:
        entry = self.entries.pop(name, None)
        if entry is not None:
            same = self._by_target[entry.target]
            same.remove(entry)
            if not same:
                del self._by_target[entry.target]

    def _in_effect(self, target: Target) -> list[tuple[Name, WorkloadPolicySpec]]:
        """Return name and spec of the policies for a target that no older one shadows, the oldest first."""
        found: dict[str, tuple[Name, WorkloadPolicySpec]] = {}  # by API group
        for entry in self._by_target.get(target, ()):
            spec = entry.policy.spec
            group = GROUP_APIS[0] if spec.target_ref.api_group in GROUP_APIS else spec.target_ref.api_group
            found.setdefault(group, (entry.name, spec))
            if not group:
                break  # it is about objects of every API group
        return list(found.values())

    def with_target(self, entry: PolicyEntry) -> Sequence[PolicyEntry]:
        """Return the policies with the target of this one, the oldest first."""
        return self._by_target.get(entry.target, ())

    def older(self, entry: PolicyEntry) -> PolicyEntry | None:
        """Return the older policy for the same target that applies in place of this one; None if this applies."""
        group = entry.policy.spec.target_ref.api_group
        first = next(
            each for each in self._by_target[entry.target] if not group or each.is_about(group) or each is entry
        )
        return None if first is entry else first

    # ---- groups

    def apply(self, group: Group, spec: GroupSpec, above: Sequence[Group], workloads: Workloads) -> GroupSpec:
        """Look up the policy of a group, which carries it from now on; answers the spec with its minimum.

        `above`: the groups over it, the nearest first.
        """
        found = self._looked_up[group.key] = self._effective(group, spec, above, workloads)
        group.policy = found.policy
        self._choose(group.key, found.object)
        least = found.policy.min_count
        if least is None or not spec.gang or group.composite or least == spec.minimum:
            return spec
        return msgspec.structs.replace(spec, minimum=least)

    def forget(self, group: Group) -> None:
        """Reset the policy of a group whose object is gone."""
        group.policy = self.defaults
        self._looked_up[group.key] = Effective(self.defaults)
        self._choose(group.key, None)

    def _choose(self, key: GroupKey, name: Name | None) -> None:
        self.chosen.pop(key, None)
        if name is not None:
            self.chosen[key] = name

    def limited(self) -> dict[Name, int]:
        """Return the policies that limit how many replicas may be unavailable, with the limit."""
        field = "max_unavailable_replicas"
        return {
            name: entry.parsed.fields[field] for name, entry in self.entries.items() if field in entry.parsed.fields
        }

    def take_looked_up(self) -> dict[GroupKey, Effective]:
        """Return the groups whose policy may have changed since the last call, with what is in effect."""
        taken, self._looked_up = self._looked_up, {}
        return taken

    def _effective(self, group: Group, spec: GroupSpec, above: Sequence[Group], workloads: Workloads) -> Effective:
        specs = (spec, *(each.spec for each in above if each.spec is not None))
        named = next((each.workload for each in specs if each.workload is not None), None)
        workload = workloads.get(group.key.namespace, named)
        owners: list[Source] = [group.source, *(each.source for each in above)]
        if workload is not group.source:
            owners.append(workload)
        parsed = [parse_annotations(each.metadata.annotations) for each in owners if each is not None]
        annotated = [each for each in parsed if each is not NOTHING]
        entry = self._chosen(group.key, named, owners, above) if self._by_target else None
        if not annotated and entry is None:
            return Effective(self.defaults)
        policy = self.defaults
        for each in reversed(annotated):
            policy = policy.with_fields(each.fields)
        if entry is not None:
            policy = policy.with_fields(entry.parsed.fields)
        return Effective(
            policy,
            entry.name if entry is not None else None,
            tuple(problem for each in annotated[:1] for problem in each.problems),
        )

    def concern(self, group: Group, above: Sequence[Group], workloads: Workloads, targets: Container[Target]) -> bool:
        """Return True if a policy for one of these targets may be in effect for a group."""
        specs = [each.spec for each in (group, *above) if each.spec is not None]
        named = next((each.workload for each in specs if each.workload is not None), None)
        workload = workloads.get(group.key.namespace, named)
        owners = [group.source, *(each.source for each in above), workload]
        return any(target in targets for target, _ in _targets(group.key, named, owners, above))

    def _chosen(
        self, key: GroupKey, workload: str | None, owners: Sequence[Source], above: Sequence[Group]
    ) -> PolicyEntry | None:
        for target, api_group in _targets(key, workload, owners, above):
            same = self._by_target.get(target, ())
            if (found := next((entry for entry in same if entry.is_about(api_group)), None)) is not None:
                return found
        return None


def _targets(
    key: GroupKey, workload: str | None, owners: Sequence[Source], above: Sequence[Group]
) -> Iterator[tuple[Target, str]]:
    """Yield (target, API group) of the objects whose policies are for a group, the nearest first."""
    namespace = key.namespace
    for group in (key, *(each.key for each in above)):
        if group.kind != WORKLOAD:
            yield Target(namespace, group.kind, group.name), GROUP_APIS[0]
    if workload:
        yield Target(namespace, WORKLOAD, workload), GROUP_APIS[0]
    for owner in owners:
        for api_group, kind, name in _owners_of(owner):
            yield Target(namespace, kind, name), api_group


def _owners_of(source: Source) -> Iterator[tuple[str, str, str]]:
    """Yield (API group, kind, name) of the objects that an object belongs to, the nearest first."""
    if source is None:
        return
    for reference in source.metadata.owner_references:
        yield (reference.api_version.rpartition("/")[0], reference.kind, reference.name)
    if isinstance(source, Workload) and (about := source.spec.controller_ref) is not None:
        yield (about.api_group, about.kind, about.name)
    yield from part_of(source.metadata.annotations)


def part_of(annotations: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield (API group, kind, name) of the objects above the owner of a group.

    Our controllers write them into an annotation as KIND.GROUP/NAME, separated by commas.
    """
    for text in (annotations.get(PART_OF) or "").split(","):
        kind, _, name = text.strip().partition("/")
        if name:
            word, _, api_group = kind.partition(".")
            yield (api_group, word, name)
