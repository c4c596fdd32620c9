"""Cached knowledge about workloads of a real cluster and the groups of their pods.

It sends no request to the API server, because the webhook runs before every pod creation. A workload is *enrolled* if
its groups exist or it has not started. One that started without groups is ignored until it restarts: a gang that counts
pods outside of it would never be complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from phalanx.base.informer import ObjectChange
from phalanx.base.resources import POD_GROUPS
from phalanx.controllers.cluster_mode.completed_slots import CompletedSlots, minimum_of, without_pods_elsewhere
from phalanx.controllers.cluster_mode.linking import (
    Abilities,
    Priority,
    fit_labels,
    link_of,
    pod_patch,
    requests_gang,
    scheduler_for,
)
from phalanx.controllers.grouping.compare import Difference, difference
from phalanx.controllers.grouping.core import Grouping, GroupingRefused, Json, Link
from phalanx.controllers.grouping.names import LABEL, SUBDOMAIN
from phalanx.controllers.grouping.priorities import policy_of, value_of
from phalanx.controllers.grouping.replacement import with_successor
from phalanx.controllers.runtime.cache import Cache, Handler, Key
from phalanx.controllers.runtime.groups import Groups, of_namesake
from phalanx.controllers.runtime.ownership import controlled_by, deleting
from phalanx.controllers.workloads.member import PodView, WorkloadSlot
from phalanx.controllers.workloads.registry import BY_KIND, places

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "phalanx-controllers"
Wanted = Grouping | GroupingRefused | None  # None: not requested, or not enrolled


class PodMembership(NamedTuple):
    """The group that a pod belongs to."""

    owner: Json
    place: WorkloadSlot
    link: Link


class UnfinishedPods:
    """Index of unfinished pods by the workloads they may belong to."""

    def __init__(self) -> None:
        self._pods: dict[Key, PodView] = {}
        self._by_place: dict[tuple[str, str, str], dict[Key, None]] = {}  # (kind, namespace, name)

    def take(self, change: ObjectChange[PodView]) -> tuple[PodView | None, PodView | None]:
        """Apply a watch event; return the present version, unless deleted or finished, and the previous one."""
        key = Key(change.namespace, change.name)
        old = self._pods.pop(key, None)
        if old is not None:
            for place in places(old):
                index = (place.kind, key.namespace, place.name)
                members = self._by_place.get(index, {})
                members.pop(key, None)
                if not members:
                    self._by_place.pop(index, None)
        pod = change.object
        if pod is None or pod.finished:
            return None, old
        self._pods[key] = pod
        for place in places(pod):
            self._by_place.setdefault((place.kind, key.namespace, place.name), {})[key] = None
        return pod, old

    def of(self, kind: str, namespace: str, name: str) -> list[PodView]:
        return [self._pods[key] for key in self._by_place.get((kind, namespace, name), ())]


class Directory:
    def __init__(
        self, groups: Groups, followed: dict[str, Cache], pods: UnfinishedPods, read: dict[str, Cache], classes: Cache
    ) -> None:
        """Caches by kind. followed: of workloads; read: of objects they refer to; classes: PriorityClasses."""
        self._classes = classes
        self.abilities = Abilities()
        self.scheduler = ""  # the schedulerName of grouped pods unless their workload sets one
        self._groups, self._followed, self._pods, self._read = groups, followed, pods, read
        self._managed: set[str] = set()  # uids
        self._memo: dict[str, tuple[tuple[str, ...], Wanted]] = {}  # uid -> (inputs, result)
        self._waiting: dict[tuple[str, str, str], list[asyncio.Future[None]]] = {}
        self._vacancies = CompletedSlots(followed)
        for kind, cache in followed.items():
            cache.on_change(self._watcher(kind))
        groups.pod_groups.on_change(self._watcher(POD_GROUPS.kind))

    # ---- workloads

    def wanted(self, owner: Json) -> Wanted:
        """Return the groups of a workload."""
        uid = owner["metadata"]["uid"]
        if not requests_gang(owner) or finished(owner) or deleting(owner) or not self.is_managed(owner):
            return None
        replicas = self._replicas(owner)
        related = self._related(owner)
        made_of = (
            owner["metadata"]["resourceVersion"],
            *self._vacancies.shown(owner),
            *replicas,
            *self._predecessors(owner),
            *(other["metadata"]["resourceVersion"] for other in related),
        )
        known = self._memo.get(uid)
        if known is None or known[0] != made_of:
            known = self._memo[uid] = (made_of, self._compute(owner, replicas, related))
        return known[1]

    def _predecessors(self, owner: Json) -> list[str]:
        """Return the values that decide whether a set's group can take new pods (see grouping.replacement)."""
        if not BY_KIND[owner["kind"]].scaled:
            return []
        pods = owner["spec"]["template"].get("spec") or {}
        known = self._groups.pod_groups.by_index("controller", owner["metadata"]["uid"])
        return [
            str(value_of(str(pods.get("priorityClassName") or ""), self._classes)),
            *(f"{found['metadata']['name']} {deleting(found)} {found['spec'].get('priority')}" for found in known),
            *self._promised(owner),
            *self._groups_of_pods(owner),
        ]

    def _compute(self, owner: Json, replicas: Sequence[str], related: list[Json]) -> Wanted:
        kind = BY_KIND[owner["kind"]]
        try:
            if kind.replicated is not None:
                found = kind.replicated.group(owner, replicas, related)
            else:
                found = kind.group(owner, related)
            if not found:
                return None
            if any(link.workload for link in found.links.values()) and not self.abilities.workload_ref:
                raise GroupingRefused(
                    "this cluster drops spec.workloadRef from pods, so groups of the first Workload version cannot "
                    "be used; ask with the annotation scheduling.phalanx.dev/gang instead",
                    "UnsupportedByCluster",
                )
        except GroupingRefused as refused:
            return refused
        found = self._vacancies.without_those(owner, found, kind.jobs(owner, found))
        if not self.abilities.scheduling_group:
            found = fit_labels(found)
        if not kind.scaled:
            return found
        found = without_pods_elsewhere(found, int(owner["spec"].get("replicas", 1)), self._groups_of_pods(owner))
        known = partial(self._groups.pod_groups.get, owner["metadata"]["namespace"])
        longest = SUBDOMAIN if self.abilities.scheduling_group else LABEL
        priority_of = partial(value_of, classes=self._classes)
        promised = self._promised(owner)
        return with_successor(found, owner["metadata"]["uid"], known, priority_of, longest, promised)

    def _promised(self, owner: Json) -> list[str]:
        """Return the groups that the webhook assigned to pods without a node."""
        meta = owner["metadata"]
        pods = self._pods.of(owner["kind"], meta["namespace"], meta["name"])
        return sorted({pod.group for pod in pods if pod.group and not pod.spec.node_name})

    def _groups_of_pods(self, owner: Json) -> list[str]:
        meta = owner["metadata"]
        return sorted(pod.group for pod in self._pods.of(owner["kind"], meta["namespace"], meta["name"]))

    def is_managed(self, owner: Json) -> bool:
        meta = owner["metadata"]
        if meta["uid"] in self._managed:
            return True
        pods = self._pods.of(owner["kind"], meta["namespace"], meta["name"])
        begun = any(pod.spec.node_name and not pod.linked for pod in pods)
        # A linked pod was enrolled by an earlier process of ours, and waits for its group.
        if begun and not any(pod.linked for pod in pods) and not any(is_ours(obj) for obj in self._groups.owned(owner)):
            return False
        self._managed.add(meta["uid"])
        return True

    def has_groups_when_started(self, owner: Json) -> bool:
        """Return True if the workload would have groups if it started now.

        False for a StatefulSet of a LeaderWorkerSet: it has that set's annotations, but its groups belong to the set.
        """
        return self._compute(owner, self._replicas(owner), self._related(owner)) is not None

    def handed_over(self, owner: Json) -> Json | None:
        """Return a scheduling object of the workload that its own controller created."""
        return next((obj for obj in self._groups.owned(owner) if not is_ours(obj)), None)

    def _related(self, owner: Json) -> list[Json]:
        """Return the objects its groups depend on: its parent's Workloads, a user's Workload, a referenced object."""
        meta, kind = owner["metadata"], BY_KIND[owner["kind"]]
        found: list[Json] = []
        if kind.workload_name is not None:
            by_hand = self._groups.workloads.get(meta["namespace"], kind.workload_name(meta["name"]))
            found += [by_hand] if by_hand is not None else []
        named, name = kind.referenced_object(owner)
        cache = self._read.get(named)
        if cache is not None:
            other = cache.get(meta["namespace"] if cache.resource.namespaced else "", name)
            found += [other] if other is not None else []
        return [*found, *self._groups.related(owner)]

    def _replicas(self, owner: Json) -> list[str]:
        meta, rules = owner["metadata"], BY_KIND[owner["kind"]].replicated
        if rules is None:
            return []
        made_of = self._followed[rules.made_of.kind].get(meta["namespace"], meta["name"])
        return rules.present(owner, made_of, self._pods.of(owner["kind"], meta["namespace"], meta["name"]))

    # ---- pods

    def member(self, pod: PodView, namespace: str = "") -> PodMembership | None:
        """Return the group of a pod, as far as the caches are current."""
        namespace = pod.metadata.namespace or namespace
        for place in places(pod):
            cache = self._followed.get(place.kind)
            owner = cache.get(namespace, place.name) if cache is not None else None
            if owner is None or self.handed_over(owner) is not None:
                continue
            wanted = self.wanted(owner)
            if isinstance(wanted, Grouping):
                link = link_of(wanted.links, place)
                if link is None and BY_KIND[place.kind].replicated is not None:
                    link = link_of(self._late_replica(owner, place), place)
                if link is not None:
                    return PodMembership(owner, place, link)
        return None

    def _late_replica(self, owner: Json, place: WorkloadSlot) -> Mapping[str, Link]:
        """Return the links of a replica whose first pod is being created."""
        found = self._compute(owner, [place.parts[-1]], self._related(owner))
        return found.links if isinstance(found, Grouping) else {}

    def patch(self, pod: PodView, namespace: str) -> list[Json]:
        """Return the JSON patch for a pod that is being created."""
        found = self.member(pod, namespace)
        if found is None:
            return []
        scheduler = scheduler_for(found.owner, self.scheduler)
        early = self._count_is_outdated(found, namespace)
        after, priority = self.replaced_group_uid(found), self._kept_priority(pod, found, namespace)
        return pod_patch(pod, found.link, self.abilities, scheduler, after=after, early=early, priority=priority)

    def _kept_priority(self, pod: PodView, member: PodMembership, namespace: str) -> Priority | None:
        """Return the gang's priority for its pods.

        A priority requested later takes effect when no pod is in the gang, as in a local cluster; otherwise the first
        pod of a rollout would wait for ever.
        """
        group = self._groups.pod_groups.get(namespace, member.link.pod_group) if member.link.pod_group else None
        if group is None or deleting(group) or "gang" not in group["spec"]["schedulingPolicy"]:
            return None
        theirs = str(group["spec"].get("priorityClassName") or "")
        value = int(group["spec"].get("priority") or 0)
        if pod.spec.priority_class_name == theirs or value_of(theirs, self._classes) != value:
            return None
        return Priority(theirs, value, policy_of(theirs, self._classes))

    def early(self, pod: PodView) -> bool:
        """Return True if the pod was created before its group's count follows the size of its workload."""
        found = self.member(pod)
        return found is not None and self._count_is_outdated(found, pod.metadata.namespace)

    def replaced_group_uid(self, member: PodMembership) -> str:
        """Return the uid of the pod's group if that is terminating or belongs to an earlier workload of the same
        name."""
        known = self._groups.pod_groups.get(member.owner["metadata"]["namespace"], member.link.pod_group)
        if known is None or not (deleting(known) or of_namesake(known, member.owner)):
            return ""
        own = controlled_by(known, member.owner["metadata"]["uid"]) and not deleting(known)
        return "" if own else str(known["metadata"]["uid"])

    async def wait_for_owner(self, pod: PodView, namespace: str, seconds: float) -> None:
        """Wait a short time for the watch events of a workload and its size, which may arrive after its pods."""
        try:
            async with asyncio.timeout(seconds):
                await self._owners_seen(pod, namespace)
                await self._counted(pod, namespace)
        except TimeoutError:
            return

    async def _owners_seen(self, pod: PodView, namespace: str) -> None:
        for place in places(pod):
            cache = self._followed.get(place.kind)
            if cache is None or not BY_KIND[place.kind].owner_is_certain:
                continue
            if await cache.check_served():  # its kind may be served since a moment ago
                while cache.get(namespace, place.name) is None:
                    await self._updates((place.kind, namespace, place.name))

    async def _counted(self, pod: PodView, namespace: str) -> None:
        """Wait until the group's count includes the new pods of a grown workload: otherwise the first ones start
        alone."""
        found = self.member(pod, namespace)
        while found is not None and self._count_is_outdated(found, namespace):
            await self._updates((POD_GROUPS.kind, namespace, found.link.pod_group))

    def _count_is_outdated(self, member: PodMembership, namespace: str) -> bool:
        known = self._groups.pod_groups.get(namespace, member.link.pod_group)
        wanted = self.wanted(member.owner)
        if known is None or deleting(known) or not isinstance(wanted, Grouping):
            return False
        group = next((obj for obj in wanted.groups if obj["metadata"]["name"] == member.link.pod_group), None)
        if group is None or not is_ours(known) or difference(known, group) is not Difference.COUNTS:
            return False
        return minimum_of(known) < minimum_of(group)

    async def _updates(self, key: tuple[str, str, str]) -> None:
        """Wait for the next watch event of one object: (kind, namespace, name)."""
        future = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(key, [])
        waiting.append(future)
        try:
            await future
        finally:
            if future in waiting:
                waiting.remove(future)
            if not waiting:
                self._waiting.pop(key, None)

    def _watcher(self, kind: str) -> Handler:
        def changed(key: Key, new: Json | None, old: Json | None) -> None:
            if old is not None and (new is None or old["metadata"]["uid"] != new["metadata"]["uid"]):
                self._managed.discard(old["metadata"]["uid"])
                self._memo.pop(old["metadata"]["uid"], None)
            if new is not None:
                for future in list(self._waiting.get((kind, key.namespace, key.name), ())):
                    if not future.done():
                        future.set_result(None)

        return changed


def is_ours(obj: Json) -> bool:
    return (obj["metadata"].get("labels") or {}).get(MANAGED_BY) == MANAGER


def finished(workload: Json) -> bool:
    """Return True if no more pods will be created for it. StatefulSets and ReplicaSets never finish."""
    conditions = (workload.get("status") or {}).get("conditions") or ()
    ends = BY_KIND[workload["kind"]].final_conditions
    return any(entry.get("type") in ends and entry.get("status") == "True" for entry in conditions)
