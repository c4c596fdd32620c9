"""All groups and their pods, added object by object in any order: roots, missing objects, and invalid trees.

Every event costs the depth of a tree, not its size: a leaf counts its members (`roster`), a composite counts its ready
and its faulty children (`links`). Never decides where a pod goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

import msgspec

from phalanx.model.groups import hierarchy
from phalanx.model.groups.expected_pods import expected
from phalanx.model.groups.group import PREEMPT_LOWER, Group, GroupSpec, Member, spec_of_object, with_topology_of_pods
from phalanx.model.groups.hierarchy import InvalidTree, Quorum, Resolution
from phalanx.model.groups.keys import COMPOSITE, POD_GROUP, WORKLOAD, GroupKey, PodKey, group_of, pod_key
from phalanx.model.groups.links import GroupLinks, Name, Workloads
from phalanx.model.groups.policies import Policies, Target
from phalanx.model.groups.policy import DEFAULT, Policy
from phalanx.model.groups.roster import MemberIndex
from phalanx.model.objects.groups import CompositePodGroup, PodGroup, Workload
from phalanx.model.objects.pod import Pod
from phalanx.model.objects.policy import WorkloadPolicy

Roots = tuple[GroupKey, ...]


class GroupForest:
    """Mutations return the heads they touched: the root, or the highest known ancestor where the root is missing."""

    def __init__(
        self,
        ours: Callable[[str], bool] = lambda name: True,
        *,
        group_preemption_policy: bool = False,
        topology: bool = True,
        composites: bool = True,
        policy_defaults: Policy = DEFAULT,
    ) -> None:
        self._group_preemption_policy = group_preemption_policy  # gate PodGroupPreemptionPolicy
        self._topology = topology  # gate TopologyAwareWorkloadScheduling; off: keys are as if not written
        self._composites = composites  # gate CompositePodGroup; off: parents are as if not written
        self._groups: dict[GroupKey, Group] = {}
        self._workloads = Workloads()
        self._links = GroupLinks(self._groups, self._workloads)
        self.policies = Policies(policy_defaults)
        self._expected: dict[GroupKey, int] = {}  # groups that say how many pods they will have
        self._begun: dict[GroupKey, None] = {}  # those of `_expected` of which some pods are placed, and not all
        self._roster = MemberIndex(ours)
        self._leaf_of = self._roster.leaf_of
        self.priority_version = 0  # +1 when members gave a group of other members another priority

    # ---- events ----------------------------------------------------------------------------------------------

    def put_pod_group(self, group: PodGroup) -> Roots:
        return self.put(GroupKey(POD_GROUP, group.metadata.namespace, group.metadata.name), group)

    def put_composite(self, group: CompositePodGroup) -> Roots:
        return self.put(GroupKey(COMPOSITE, group.metadata.namespace, group.metadata.name), group)

    def put_workload(self, workload: Workload) -> Roots:
        return self._refresh_workload(self._workloads.put(workload))

    def drop_workload(self, namespace: str, name: str) -> Roots:
        return self._refresh_workload(self._workloads.drop(namespace, name))

    def put_policy(self, policy: WorkloadPolicy) -> list[GroupKey]:
        """Add or replace a policy; return the groups for which another one is in effect now."""
        return self._policies_changed(policy.metadata.namespace, self.policies.put(policy))

    def drop_policy(self, namespace: str, name: str) -> list[GroupKey]:
        return self._policies_changed(namespace, self.policies.drop(namespace, name))

    def _policies_changed(self, namespace: str, targets: frozenset[Target]) -> list[GroupKey]:
        if not targets:
            return []
        groups = [
            group
            for group in self._groups.values()
            if group.key.namespace == namespace
            and self.policies.concern(group, self._above(group.spec), self._workloads, targets)
        ]
        groups.sort(key=lambda group: group.key)
        before = [(group.key, group.policy) for group in groups]
        self._look_up_policies(groups)
        return [key for key, policy in before if (now := self.group(key)) is not None and now.policy != policy]

    def _above(self, spec: GroupSpec | None) -> list[Group]:
        """Return the groups above a group with this spec, the nearest first."""
        if spec is None or spec.parent is None:
            return []
        return list(hierarchy.ancestry(self._groups, spec.parent))

    def put_pod(self, pod: Pod) -> Roots:
        return self.put_member(pod_key(pod), group_of(pod), pod)[0]

    def put_member(self, key: PodKey, leaf: GroupKey | None, pod: Pod) -> tuple[Roots, Member | None, Member | None]:
        """Do what `put_pod` does, with the pod's key and group known. Return the member before and after as well."""
        before = self._leaf_of.get(key)
        roots: Roots = ()
        old: Member | None = None
        if before is not None:
            old = self._groups[before].members[key]
            if old.pod.metadata.uid != pod.metadata.uid or pod.spec.node_name:
                self._roster.placements.pop(key, None)
            if before != leaf:
                roots = self._forget_member(key)
        if leaf is None:
            self._roster.placements.pop(key, None)  # it must not count for the next pod of this name
            return roots, old, None
        group = self._set_member(leaf, key, pod)
        if group.spec is not None and len(group.members) == 1:  # its first pod may request a topology
            group.spec = self._gate(with_topology_of_pods(group.spec, group.members.values()))
        set_ = self._roots_of(group)
        return (_union(roots, set_) if roots else set_), old, group.members[key]

    def drop_pod(self, namespace: str, name: str) -> Roots:
        key = PodKey(namespace, name)
        self._roster.placements.pop(key, None)
        return self._forget_member(key)

    def assume(self, pod: PodKey, node: str) -> Roots:
        """Record that this scheduler has placed the pod; its object does not say so yet."""
        leaf = self._leaf_of.get(pod)
        return self.assume_all(leaf, {pod: node}) if leaf is not None else ()

    def assume_all(self, leaf: GroupKey, nodes: Mapping[PodKey, str]) -> Roots:
        """Record that this scheduler has placed these members of one leaf."""
        group = self._groups[leaf]
        alone = group.spec is None or group.spec.parent is None
        was = (False, False) if alone else (group.ready, group.bad)
        self._roster.assume(group, nodes)
        if leaf in self._expected:
            self._begin(group)
        if not alone:
            self._links.update_ancestors(group, *was)
        return self._roots_of(group)

    def confirm(self, pod: PodKey) -> Group | None:
        """Record that the API server has acknowledged the placement; return the leaf if this was not known."""
        leaf = self._leaf_of.get(pod)
        group = self._groups[leaf] if leaf is not None else None
        return group if group is not None and self._roster.confirm(group, pod) else None

    def forget(self, pod: PodKey) -> Roots:
        """Forget the assumed placement of a pod."""
        if self._roster.placements.pop(pod, None) is None or pod not in self._leaf_of:
            return ()
        leaf = self._leaf_of[pod]
        return self._roots_of(self._set_member(leaf, pod, self._groups[leaf].members[pod].pod))

    # ---- questions -------------------------------------------------------------------------------------------

    @property
    def parents_count(self) -> bool:
        """Return True if groups can have parents (gate CompositePodGroup)."""
        return self._composites

    def group(self, key: GroupKey) -> Group | None:
        """Return the group if its object, or its Workload's template, exists."""
        found = self._groups.get(key)
        return found if found is not None and found.spec is not None else None

    def named(self, key: GroupKey) -> Group | None:
        """Return the group, also if only pods or children name it so far."""
        return self._groups.get(key)

    def same_name_elsewhere(self, key: GroupKey) -> list[Group]:
        """Return the groups of the same kind and name in other namespaces, by namespace.

        It reads all groups, so it is only for diagnostics.
        """
        found = [group for other, group in self._groups.items() if other != key and other[::2] == key[::2]]
        return sorted(found, key=lambda group: group.key)

    def in_namespace(self, namespace: str) -> list[Group]:
        """Return the groups of a namespace, by key.

        It reads all groups, so it is only for diagnostics.
        """
        return sorted((g for g in self._groups.values() if g.key.namespace == namespace), key=lambda g: g.key)

    def take_changed(self) -> dict[GroupKey, None]:
        """Return the leaves whose counts have changed since the last call."""
        return self._roster.take_changed()

    def begun(self) -> list[Group]:
        """Return the groups with placed pods and, as their objects say, more pods to come; by key."""
        return [self._groups[key] for key in sorted(self._begun)]

    def leaf_templates(self, namespace: str, name: str) -> list[str]:
        """Return the names of a Workload's leaf templates, of which pods are members."""
        return self._workloads.leaf_templates(namespace, name)

    def of_workload(self, namespace: str, name: str) -> list[GroupKey]:
        """Return the groups made from a Workload, including its implicit groups."""
        return self._workloads.groups((namespace, name))

    def leaf_of(self, pod: PodKey) -> GroupKey | None:
        return self._leaf_of.get(pod)

    def leaf_of_pod(self, namespace: str, name: str) -> GroupKey | None:
        """Return the leaf of a pod by namespace and name, without making a PodKey."""
        return self._leaf_of.get((namespace, name))  # type: ignore[call-overload,no-any-return]

    def workload(self, namespace: str, name: str) -> Workload | None:
        return self._workloads.get(namespace, name)

    def resolve(self, key: GroupKey) -> Resolution:
        """Follow the parents of a group to its root."""
        return hierarchy.resolve(self._groups, key)

    def root_of(self, key: GroupKey) -> GroupKey | None:
        """Return the root of a group; None if one of its ancestors is unknown."""
        group = self._groups.get(key)
        if group is not None and group.spec is not None and group.spec.parent is None:
            return key
        return hierarchy.resolve(self._groups, key).root

    def above(self, key: GroupKey) -> Sequence[Group]:
        """Return the known ancestors of a group, nearest first."""
        group = self._groups.get(key)
        if group is None or group.spec is None or group.spec.parent is None:
            return ()
        return [above for above in hierarchy.ancestry(self._groups, group.spec.parent) if above.key != key]

    def roots(self) -> list[GroupKey]:
        """Return every root whose object exists, sorted by key."""
        return sorted(k for k, g in self._groups.items() if g.spec is not None and g.spec.parent is None)

    def groups(self) -> list[Group]:
        """Return every group whose object exists, by key."""
        return sorted((group for group in self._groups.values() if group.spec is not None), key=lambda group: group.key)

    def tree(self, root: GroupKey) -> Iterator[Group]:
        """Yield the group and all known groups below it, parents first, siblings by age. Safe on cycles."""
        seen: set[GroupKey] = set()
        stack = [self._groups[root]] if root in self._groups else []
        while stack:
            group = stack.pop()
            if group.key not in seen:
                seen.add(group.key)
                yield group
                stack.extend(reversed(group.sorted_children()))

    def leaves(self, root: GroupKey) -> Sequence[Group]:
        group = self._groups.get(root)
        if group is None or not group.children:
            return () if group is None or group.composite else (group,)
        return [below for below in self.tree(root) if not below.composite]

    def ready(self, root: GroupKey) -> bool:
        """Return True if a scheduling attempt is worthwhile: known members reach the minimums, recursively.

        The answer is kept up to date, so it can be asked for after every event.
        """
        return self._groups[root].ready

    def quorum(self, root: GroupKey, most: int | None = None) -> Quorum:
        """Return whether the tree is ready, and the groups that lack members, for a message.

        While the tree is not ready this visits all of it. `most` limits the number of groups.
        """
        group = self._groups[root]
        if group.ready:
            return Quorum(root, True)
        return Quorum(root, False, tuple(islice(hierarchy.shortages(group), most)))

    def invalid(self, key: GroupKey) -> InvalidTree | None:
        """Return what is wrong with the tree of this group; None if it is valid."""
        alone = self._groups.get(key)
        if alone is not None and alone.spec is not None and alone.spec.parent is None and not alone.bad:
            return None
        resolution = self.resolve(key)
        if resolution.cycle:
            groups = sorted(g.key for g in self.tree(resolution.cycle[0]) if g.spec is not None)  # it is below itself
            return InvalidTree(tuple(groups), resolution.message)
        if resolution.root is None or not self._groups[resolution.root].bad:
            return None
        tree = [g for g in self.tree(resolution.root) if g.spec is not None]
        problems = sorted({g.problem for g in tree if g.problem is not None})
        more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
        return InvalidTree(tuple(g.key for g in tree), "; ".join(problems[:3]) + more)

    def gated(self, root: GroupKey) -> list[PodKey]:
        """Return the pending members with scheduling gates, by name; one is enough to hold the group."""
        return sorted(key for leaf in self.leaves(root) for key in leaf.gated)

    def priority(self, root: GroupKey) -> int:
        spec = self._groups[root].spec
        if spec is not None and spec.priority is not None:
            return spec.priority
        # KEP-4671: a group without a priority of its own has the lowest of its pods'.
        return min((t[1] for leaf in self.leaves(root) for t in leaf.traits), default=0)

    def preemption_policy(self, root: GroupKey) -> str:
        """Return the preemption policy of a tree.

        If the gate is on and the root sets one, it is the root's; otherwise it is Never if any pod says Never.
        """
        spec = self._groups[root].spec
        if self._group_preemption_policy and spec is not None and spec.preemption_policy is not None:
            return spec.preemption_policy
        policies = {t[2] for leaf in self.leaves(root) for t in leaf.traits}
        return "Never" if "Never" in policies else PREEMPT_LOWER

    def mismatch(self, root: GroupKey) -> str | None:
        """Return a SchedulerError text if member pods disagree with their root or with each other."""
        return hierarchy.tree_mismatch(self._groups[root], self.leaves(root), self._group_preemption_policy)

    def disruption_unit(self, leaf: GroupKey) -> GroupKey | None:
        """Return the highest ancestor, or the leaf, that is only disrupted as a whole; None: single pods."""
        unit = None
        for group in hierarchy.ancestry(self._groups, leaf):
            if group.spec is not None and group.spec.disrupt_all:
                unit = group.key
        return unit

    # ---- groups ----------------------------------------------------------------------------------------------

    def put(self, key: GroupKey, source: PodGroup | CompositePodGroup) -> Roots:
        return self._replace_spec(key, spec_of_object(source), source)

    def _replace_spec(
        self, key: GroupKey, spec: GroupSpec | None, source: PodGroup | CompositePodGroup | Workload | None
    ) -> Roots:
        """Replace the spec and source of a group, and update links, policies and counts; return the roots it
        affects."""
        group = self._links.node(key)
        old = group.spec
        before = self._roots_of(group)
        group.source = source
        policy = group.policy
        if spec is not None:
            spec = self._gate(with_topology_of_pods(spec, group.members.values()))
            spec = self.policies.apply(group, spec, self._above(spec), self._workloads)
        else:
            self.policies.forget(group)
        self._expect(group)
        if group.children and policy != group.policy:
            before = _union(before, self._look_up_policies(group.children.values()))
        if old == spec:
            return before
        if not group.composite:
            self._roster.changed[key] = None
        was_ready, was_bad = group.ready, group.bad
        parent_before = old.parent if old is not None else None
        parent_after = spec.parent if spec is not None else None
        group.spec = spec
        if key.kind == WORKLOAD and spec is not None and (old is None or old.uid != spec.uid):
            self._roster.recount(group)
            self._expect(group)
        self._workloads.follow(key, old, spec)
        if parent_before != parent_after:
            if parent_before is not None:
                self._links.unlink(group, parent_before, was_ready, was_bad)
            if parent_after is not None:
                self._links.link(group, parent_after)
        else:
            self._links.update_ancestors(group, was_ready, was_bad)
            if parent_after is not None:
                self._groups[parent_after].resort()
        self._links.recheck(group, deep=old is None or spec is None or parent_before != parent_after)
        roots = _union(before, self._roots_of(group))
        self._links.prune(group)
        return roots

    def _look_up_policies(self, groups: Iterable[Group]) -> Roots:
        """Look at groups again whose policies, or those of the groups above them, may have changed."""
        roots: Roots = ()
        for group in list(groups):
            source = group.source
            if isinstance(source, PodGroup | CompositePodGroup):
                roots = _union(roots, self._replace_spec(group.key, spec_of_object(source), source))
            elif source is not None:
                roots = _union(roots, self._replace_spec(group.key, *self._workloads.implicit(group.key)))
        return roots

    def _expect(self, group: Group) -> None:
        size = expected(group.source)
        if size:
            self._expected[group.key] = size
        elif self._expected.pop(group.key, None) is None:
            return
        self._begin(group)

    def _begin(self, group: Group) -> None:
        """Update whether the group has placed pods and more to come, after either may have changed."""
        self._begun.pop(group.key, None)
        if 0 < group.placed < self._expected.get(group.key, 0):
            self._begun[group.key] = None

    def _gate(self, spec: GroupSpec) -> GroupSpec:
        if not self._topology and (spec.topology_key or spec.preferred_key):
            spec = msgspec.structs.replace(spec, topology_key=None, preferred_key=None)
        return spec if self._composites or spec.parent is None else msgspec.structs.replace(spec, parent=None)

    def drop(self, key: GroupKey) -> Roots:
        if key not in self._groups:
            return ()
        children = list(self._groups[key].children.values())
        roots = self._replace_spec(key, None, None)
        for child in children:
            roots = _union(roots, self._roots_of(child))
        return roots

    def _roots_of(self, group: Group) -> Roots:
        if group.spec is None:
            return ()
        if group.spec.parent is None:
            return (group.key,)
        resolution = hierarchy.resolve(self._groups, group.key)
        if resolution.root is not None:
            return (resolution.root,)
        if resolution.cycle:
            return (min(resolution.cycle),)
        highest = None
        for above in hierarchy.ancestry(self._groups, group.key):
            if above.spec is not None:
                highest = above.key
        return (highest,) if highest is not None else ()

    # ---- workloads -------------------------------------------------------------------------------------------

    def _refresh_workload(self, name: Name) -> Roots:
        roots: Roots = ()
        for key in self._workloads.groups(name):
            group = self._groups[key]
            if key.kind == WORKLOAD:
                roots = _union(roots, self._replace_spec(key, *self._workloads.implicit(key)))
            else:
                roots = _union(roots, self._look_up_policies((group,)))
                self._links.recheck(group, deep=False)
                roots = _union(roots, self._roots_of(group))
        return roots

    # ---- pods ------------------------------------------------------------------------------------------------

    def _set_member(self, leaf: GroupKey, key: PodKey, pod: Pod) -> Group:
        group = self._groups.get(leaf) or self._links.node(leaf)
        if leaf.kind == WORKLOAD and not group.members:
            self._workloads.enter(leaf, leaf.name.split("/")[0])
            self._replace_spec(leaf, *self._workloads.implicit(leaf))
            group = self._links.node(leaf)
        alone = group.spec is None or group.spec.parent is None
        was = (False, False) if alone else (group.ready, group.bad)
        before = tuple(group.traits)
        self._roster.put(group, key, pod)
        self._note_priorities(group, before)
        if leaf in self._expected:
            self._begin(group)
        if not alone:
            self._links.update_ancestors(group, *was)
        return group

    def _forget_member(self, key: PodKey) -> Roots:
        leaf = self._leaf_of.get(key)
        if leaf is None:
            return ()
        group = self._groups[leaf]
        was = (group.ready, group.bad)
        before = tuple(group.traits)
        self._roster.remove(group, key)
        self._note_priorities(group, before)
        if leaf in self._expected:
            self._begin(group)
        self._links.update_ancestors(group, *was)
        roots = self._roots_of(group)
        if leaf.kind == WORKLOAD and not group.members:
            self._workloads.leave(leaf, leaf.name.split("/")[0])
            self._replace_spec(leaf, None, None)
        self._links.prune(group)
        return roots

    def _note_priorities(self, group: Group, before: tuple[tuple[str, int, str], ...]) -> None:
        """Count a change of the lowest priority; the usual first and last pod of a group change nothing for others."""
        after = tuple(group.traits)
        if after == before:
            return
        parents = self.above(group.key)
        siblings = self.leaves(parents[-1].key) if parents else ()
        others = {t[1] for leaf in siblings if leaf is not group for t in leaf.traits}
        old, new = {t[1] for t in before}, {t[1] for t in after}
        if (old and new and min(old) != min(new)) or (others and (old | new) - others):
            self.priority_version += 1


def _union(a: Roots, b: Roots) -> Roots:
    return (*a, *(key for key in b if key not in a))
