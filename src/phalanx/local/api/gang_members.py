"""Find the pods that go together when one of them is evicted: those of the largest group that goes as a whole."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from phalanx.local.store.contract import Entry, StoreProtocol
from phalanx.model.groups import GroupForest, GroupKey, group_of
from phalanx.model.groups.whole_groups import whole_group
from phalanx.model.objects import CompositePodGroup, Pod, PodGroup, Workload, WorkloadPolicy

T = TypeVar("T")
_KINDS: dict[type[Any], str] = {
    PodGroup: "podgroups.scheduling.k8s.io",
    CompositePodGroup: "compositepodgroups.scheduling.k8s.io",
    Workload: "workloads.scheduling.k8s.io",
    WorkloadPolicy: "workloadpolicies.scheduling.phalanx.dev",
}


class EvictedGang(msgspec.Struct, frozen=True):
    """A group that goes as a whole, with its other members that still run or wait on a node."""

    group: GroupKey
    why: str  # the reason, in words
    others: list[Entry]


class GangMembers:
    def __init__(self, store: StoreProtocol) -> None:
        self._store = store

    def over_budget(self, pod: Pod) -> str:
        """Return why the eviction would exceed `disruption.maxUnavailableReplicas`; empty if it does not.

        A replica is a tree of groups that the same WorkloadPolicy is in effect for; it is unavailable while one of its
        pod groups has fewer pods on nodes than its minimum.
        """
        leaf = group_of(pod)
        if leaf is None or not self._store.list(_KINDS[WorkloadPolicy], leaf.namespace):
            return ""
        forest = self._forest(leaf.namespace)
        if not forest.policies.limited():
            return ""
        for entry in self._store.list(
            "pods", leaf.namespace
        ):  # the groups of a v1alpha1 Workload exist with their pods
            forest.put_pod(msgspec.json.decode(entry.value, type=Pod))
        chosen = {key: found.object for key, found in forest.policies.take_looked_up().items()}
        group = forest.group(leaf)
        allowed = group.policy.max_unavailable_replicas if group is not None else None
        if group is None or allowed is None or chosen.get(leaf) is None:
            return ""
        own = forest.root_of(leaf)
        roots = {forest.root_of(key) for key, name in chosen.items() if name == chosen[leaf]} - {own, None}
        down = sum(any(not each.satisfied for each in forest.leaves(root)) for root in roots if root is not None)
        if group.spec is not None and group.placed - 1 >= group.spec.minimum and not group.spec.disrupt_all:
            return ""  # the replica stays available
        if own is not None and any(not each.satisfied for each in forest.leaves(own)):
            return ""  # it is disrupted already
        if down < allowed:
            return ""
        return (
            f"WorkloadPolicy {chosen[leaf][1]} allows {allowed} unavailable replicas"  # type: ignore[index]
            f" (disruption.maxUnavailableReplicas), and {down} are unavailable"
        )

    def of(self, pod: Pod) -> EvictedGang | None:
        """Return the gang that must be evicted together with the pod; None if the pod goes alone."""
        leaf = group_of(pod)
        if leaf is None or self._store.latest((_KINDS[PodGroup], leaf.namespace, leaf.name)) is None:
            return None
        forest = self._forest(leaf.namespace)
        found = whole_group(forest, leaf)
        if found is None:
            return None
        leaves = {below.key for below in forest.leaves(found.key)}
        return EvictedGang(found.key, found.why, self._members(leaves, pod))

    def _forest(self, namespace: str) -> GroupForest:
        forest = GroupForest()
        for workload in self._all(Workload, namespace):
            forest.put_workload(workload)
        for composite in self._all(CompositePodGroup, namespace):
            forest.put_composite(composite)
        for group in self._all(PodGroup, namespace):
            forest.put_pod_group(group)
        for policy in self._all(WorkloadPolicy, namespace):
            forest.put_policy(policy)
        return forest

    def _all(self, kind: type[T], namespace: str) -> list[T]:
        return [msgspec.json.decode(entry.value, type=kind) for entry in self._store.list(_KINDS[kind], namespace)]

    def _members(self, leaves: set[GroupKey], but: Pod) -> list[Entry]:
        found = []
        for entry in self._store.list("pods", but.metadata.namespace):
            pod = msgspec.json.decode(entry.value, type=Pod)
            ended = pod.status.phase in ("Succeeded", "Failed") or pod.metadata.deletion_timestamp is not None
            if ended or not pod.spec.node_name or pod.metadata.uid == but.metadata.uid:
                continue
            if group_of(pod) in leaves:
                found.append(entry)
        return found
