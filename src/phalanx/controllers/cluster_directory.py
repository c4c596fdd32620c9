"""What is known, without asking anybody, of the workloads of a real cluster and of the links of their pods.

Answers come from caches alone: the webhook stands between every pod and its creation. A workload is *enrolled* when its
groups exist or when it has not begun; one that began without groups is left alone until it starts over, since a gang
that counts pods outside of it would never be complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from phalanx.base.informer import Change
from phalanx.controllers import grouping as library
from phalanx.controllers import leaderworkerset_names as lws_names
from phalanx.controllers.cache import Cache, Handler, Key
from phalanx.controllers.grouping.core import Grouping, Json, Link, Refused
from phalanx.controllers.grouping.jobset_gang_config import workload_name
from phalanx.controllers.grouping.leaderworkerset import asked
from phalanx.controllers.grouping.leaderworkerset import grouping as group_replicas
from phalanx.controllers.groups import Groups
from phalanx.controllers.linking import (
    Abilities,
    Place,
    PodView,
    asks,
    fit_labels,
    link_of,
    places,
    pod_patch,
    scheduler_for,
)
from phalanx.controllers.ownership import controlled_by, controller_of, deleting

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "phalanx-controllers"
_LAST = ("Complete", "Completed", "Failed", "Succeeded")
# A pod with such a place has such a workload; a ReplicaSet, in contrast, may have no Deployment.
_CERTAIN = ("JobSet", "Job", "LeaderWorkerSet", "StatefulSet")
Wanted = Grouping | Refused | None  # None: does not ask, or is not enrolled


class Member(NamedTuple):
    """Where a pod belongs."""

    owner: Json
    place: Place
    link: Link


class Pods:
    """Pods that have not finished, by the workloads they may be part of."""

    def __init__(self) -> None:
        self._pods: dict[Key, PodView] = {}
        self._by_place: dict[tuple[str, str, str], dict[Key, None]] = {}  # (kind, namespace, name)

    def take(self, change: Change[PodView]) -> tuple[PodView | None, PodView | None]:
        """Follow a change. The pod as it is, unless gone or over, and as it was."""
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
    def __init__(self, groups: Groups, followed: dict[str, Cache], pods: Pods, runtimes: dict[str, Cache]) -> None:
        """followed: caches of workloads by kind; runtimes: what TrainJobs refer to, by kind."""
        self.abilities = Abilities()
        self.scheduler = ""  # where grouped pods go unless their workload says otherwise
        self._groups, self._followed, self._pods, self._runtimes = groups, followed, pods, runtimes
        self._enrolled: set[str] = set()  # uids
        self._memo: dict[str, tuple[tuple[str, ...], Wanted]] = {}  # uid -> (what it was made of, answer)
        self._waiting: dict[tuple[str, str, str], list[asyncio.Future[None]]] = {}
        for kind, cache in followed.items():
            cache.on_change(self._watcher(kind))

    # ---- workloads

    def wanted(self, owner: Json) -> Wanted:
        """The groups of a workload."""
        uid = owner["metadata"]["uid"]
        if not asks(owner) or finished(owner) or deleting(owner) or not self.enrolled(owner):
            return None
        replicas = self._replicas(owner) if owner["kind"] == "LeaderWorkerSet" else []
        related = self._related(owner)
        made_of = (
            owner["metadata"]["resourceVersion"],
            *(f"{index}@{revision}" for index, revision in replicas),
            *(other["metadata"]["resourceVersion"] for other in related),
        )
        known = self._memo.get(uid)
        if known is None or known[0] != made_of:
            known = self._memo[uid] = (made_of, self._compute(owner, replicas, related))
        return known[1]

    def _compute(self, owner: Json, replicas: Iterable[tuple[int, str]], related: list[Json]) -> Wanted:
        try:
            if owner["kind"] == "LeaderWorkerSet":
                if not asked(owner):
                    return None
                found: Grouping | None = group_replicas(owner, [(index, rev, owner) for index, rev in replicas])
            else:
                found = library.group(owner, related) or None
            if found is None:
                return None
            if any(link.workload for link in found.links.values()) and not self.abilities.workload_ref:
                raise Refused(
                    "this cluster drops spec.workloadRef from pods, so groups of the first Workload version cannot "
                    "be used; ask with the annotation scheduling.phalanx.dev/gang instead",
                    "UnsupportedByCluster",
                )
        except Refused as refused:
            return refused
        return found if self.abilities.scheduling_group else fit_labels(found)

    def enrolled(self, owner: Json) -> bool:
        meta = owner["metadata"]
        if meta["uid"] in self._enrolled:
            return True
        pods = self._pods.of(owner["kind"], meta["namespace"], meta["name"])
        begun = any(pod.spec.node_name and not pod.linked for pod in pods)
        if begun and not any(is_ours(obj) for obj in self._groups.owned(owner)):
            return False
        self._enrolled.add(meta["uid"])
        return True

    def handed_over(self, owner: Json) -> Json | None:
        """A scheduling object that somebody else made and this workload controls: its own controller makes them."""
        return next((obj for obj in self._groups.owned(owner) if not is_ours(obj)), None)

    def _related(self, owner: Json) -> list[Json]:
        """Workloads that the groups of this one hang on: its parent's, or one that its author made by hand."""
        meta = owner["metadata"]
        if owner["kind"] == "JobSet":
            by_hand = self._groups.workloads.get(meta["namespace"], workload_name(meta["name"]))
            return [by_hand] if by_hand is not None else []
        if owner["kind"] == "TrainJob":
            return self._runtime(owner)
        parent = controller_of(owner)
        if parent is None:
            return []
        about = {**parent, "metadata": {"namespace": meta["namespace"], "name": parent["name"]}}
        return self._groups.for_owner(about)

    def _runtime(self, train_job: Json) -> list[Json]:
        reference = train_job["spec"].get("runtimeRef") or {}
        cache = self._runtimes.get(reference.get("kind") or "ClusterTrainingRuntime")
        if cache is None:
            return []
        namespace = train_job["metadata"]["namespace"] if cache.resource.namespaced else ""
        found = cache.get(namespace, str(reference.get("name")))
        return [found] if found is not None else []

    def _replicas(self, lws: Json) -> list[tuple[int, str]]:
        """Replicas to come, at the revision of the leaders' StatefulSet, and those that have pods at any revision."""
        meta = lws["metadata"]
        found: set[tuple[int, str]] = set()
        leaders = self._followed["StatefulSet"].get(meta["namespace"], meta["name"])
        if leaders is not None and controlled_by(leaders, meta["uid"]):
            revision = lws_names.label(leaders, lws_names.REVISION)
            count = max(int(leaders["spec"].get("replicas", 1)), int(lws["spec"].get("replicas", 1)))
            if revision:
                found.update((index, revision) for index in range(count))
        for pod in self._pods.of("LeaderWorkerSet", meta["namespace"], meta["name"]):
            found.update(_replica_of(place) for place in places(pod) if place.kind == "LeaderWorkerSet")
        return sorted(found)

    # ---- pods

    def member(self, pod: PodView, namespace: str = "") -> Member | None:
        """Where a pod belongs, as far as is known now."""
        namespace = pod.metadata.namespace or namespace
        for place in places(pod):
            cache = self._followed.get(place.kind)
            owner = cache.get(namespace, place.name) if cache is not None else None
            if owner is None or self.handed_over(owner) is not None:
                continue
            wanted = self.wanted(owner)
            if isinstance(wanted, Grouping):
                link = link_of(wanted.links, place)
                if link is None and place.kind == "LeaderWorkerSet":
                    link = link_of(self._late_replica(owner, place), place)
                if link is not None:
                    return Member(owner, place, link)
        return None

    def _late_replica(self, lws: Json, place: Place) -> Mapping[str, Link]:
        """A replica whose first pod is being made."""
        found = self._compute(lws, [_replica_of(place)], [])
        return found.links if isinstance(found, Grouping) else {}

    def patch(self, pod: PodView, namespace: str) -> list[Json]:
        """What a pod that is being created needs, as a JSON patch."""
        found = self.member(pod, namespace)
        if found is None:
            return []
        return pod_patch(pod, found.link, self.abilities, scheduler_for(found.owner, self.scheduler))

    async def wait_for_owner(self, pod: PodView, namespace: str, seconds: float) -> None:
        """News of a new workload may come a little later than its first pods: wait for it, but not for long."""
        try:
            async with asyncio.timeout(seconds):
                for place in places(pod):
                    cache = self._followed.get(place.kind)
                    if place.kind in _CERTAIN and cache is not None and cache.served:
                        await self._seen(cache, place.kind, namespace, place.name)
        except TimeoutError:
            return

    async def _seen(self, cache: Cache, kind: str, namespace: str, name: str) -> None:
        key = (kind, namespace, name)
        while cache.get(namespace, name) is None:
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
                self._enrolled.discard(old["metadata"]["uid"])
                self._memo.pop(old["metadata"]["uid"], None)
            if new is not None:
                for future in list(self._waiting.get((kind, key.namespace, key.name), ())):
                    if not future.done():
                        future.set_result(None)

        return changed


def is_ours(obj: Json) -> bool:
    return (obj["metadata"].get("labels") or {}).get(MANAGED_BY) == MANAGER


def finished(workload: Json) -> bool:
    """Over for good: nobody makes pods of it any more. Sets and replicas never are."""
    conditions = (workload.get("status") or {}).get("conditions") or ()
    return any(entry.get("type") in _LAST and entry.get("status") == "True" for entry in conditions)


def _replica_of(place: Place) -> tuple[int, str]:
    index, _, revision = place.parts[-1].partition("@")
    return int(index), revision
