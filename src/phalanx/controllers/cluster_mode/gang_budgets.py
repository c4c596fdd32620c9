"""Create a PodDisruptionBudget for every gang that is disrupted only as a whole, so that drains are refused.

The API server of a real cluster evicts pods one by one. The budget of a gang requires all its pods, so that none can be
evicted alone. Pods get the label of their group, which the budget selects. The scheduler ignores these budgets in
preemption, which evicts gangs as a whole.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from phalanx.base import resources as r
from phalanx.base.errors import AlreadyExists, Conflict, NotFound
from phalanx.controllers.cluster_mode.directory import MANAGED_BY, MANAGER, is_ours
from phalanx.controllers.grouping.names import LABEL
from phalanx.controllers.runtime.cache import Cache, Caches, Json, Key
from phalanx.controllers.runtime.controller import Controller
from phalanx.controllers.runtime.groups import Groups
from phalanx.controllers.runtime.ownership import deleting
from phalanx.controllers.workloads.member import PodView
from phalanx.model.groups import POD_GROUP, GroupForest, GroupKey
from phalanx.model.groups.keys import GROUP_LABEL
from phalanx.model.groups.whole_groups import IMPLIED_BY, whole_group
from phalanx.model.objects import CompositePodGroup, PodGroup, Workload, WorkloadPolicy

T = TypeVar("T")
PREFIX = "gang-"  # of budget names


class GangBudgets(Controller):
    name = "gang-budgets"

    def __init__(self, caches: Caches, groups: Groups) -> None:
        super().__init__()
        self._client, self._groups = caches.client, groups
        self._budgets = caches.of(r.DISRUPTION_BUDGETS)
        self._policies = caches.of(r.WORKLOAD_POLICIES, optional=True)
        self._pods: dict[Key, dict[str, PodView]] = {}  # group -> pods by name
        groups.pod_groups.on_change(self.requeue)
        self._budgets.on_change(self._budget_changed)
        for cache in (groups.composites, groups.workloads, self._policies):
            cache.on_change(lambda key, new, old: self._all(key.namespace))

    def pod_changed(self, old: PodView | None, new: PodView | None) -> None:
        for pod in (old, new):
            if pod is None or not pod.group:
                continue
            key = Key(pod.metadata.namespace, pod.group)
            members = self._pods.setdefault(key, {})
            members.pop(pod.metadata.name, None)
            if pod is new and pod.metadata.deletion_timestamp is None:
                members[pod.metadata.name] = pod
            if not members:
                del self._pods[key]
            self.queue.add(key)

    def _budget_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        if key.name.startswith(PREFIX):
            self.queue.add(Key(key.namespace, key.name.removeprefix(PREFIX)))

    def _all(self, namespace: str) -> None:
        for group in self._groups.pod_groups:
            if group["metadata"]["namespace"] == namespace:
                self.queue.add(Key(namespace, group["metadata"]["name"]))

    async def reconcile(self, key: Key) -> None:
        known = self._budgets.get(key.namespace, f"{PREFIX}{key.name}")
        if known is not None and not is_ours(known):
            return  # created by a user
        group, members = self._groups.pod_groups.get(*key), self._pods.get(key, {})
        stays = group is not None and not deleting(group) and len(key.name) <= LABEL and bool(members)
        leaf = GroupKey(POD_GROUP, key.namespace, key.name)
        found = whole_group(self._forest(key.namespace), leaf) if stays else None
        if found is None:
            if known is not None and not deleting(known):
                await self._delete(known)
            return
        for pod in list(members.values()):
            if pod.labels.get(GROUP_LABEL) != key.name:
                await self._label(pod, key.name)
        wanted = _budget(key, f"{found.key}: {found.why}", len(members))
        if known is None:
            await self._create(wanted)
        elif (known["spec"].get("minAvailable"), _why(known)) != (len(members), _why(wanted)):
            await self._update({**known, "spec": wanted["spec"], "metadata": _annotated(known, wanted)})

    def _forest(self, namespace: str) -> GroupForest:
        forest = GroupForest()
        for workload in _of(self._groups.workloads, namespace, Workload):
            forest.put_workload(workload)
        for composite in _of(self._groups.composites, namespace, CompositePodGroup):
            forest.put_composite(composite)
        for group in _of(self._groups.pod_groups, namespace, PodGroup):
            forest.put_pod_group(group)
        for policy in _of(self._policies, namespace, WorkloadPolicy):
            forest.put_policy(policy)
        return forest

    # ---- writes

    async def _label(self, pod: PodView, group: str) -> None:
        meta = pod.metadata
        patch: Json = {"metadata": {"uid": meta.uid, "labels": {GROUP_LABEL: group}}}
        try:
            await self._client.patch(r.PODS, meta.name, patch, meta.namespace)
        except (NotFound, Conflict):  # deleted, or replaced by a pod with the same name
            return

    async def _create(self, budget: Json) -> None:
        try:
            await self._client.create(r.DISRUPTION_BUDGETS, budget, budget["metadata"]["namespace"])
        except AlreadyExists:
            return  # its watch event requeues the group

    async def _update(self, budget: Json) -> None:
        meta = budget["metadata"]
        try:
            await self._client.update(r.DISRUPTION_BUDGETS, meta["name"], budget, meta["namespace"])
        except (NotFound, Conflict):
            return  # its watch event requeues the group

    async def _delete(self, budget: Json) -> None:
        meta = budget["metadata"]
        try:
            await self._client.delete(r.DISRUPTION_BUDGETS, meta["name"], meta["namespace"])
        except NotFound:
            return


def _of(cache: Cache, namespace: str, kind: type[T]) -> list[T]:
    return [msgspec.convert(obj, kind) for obj in cache if obj["metadata"]["namespace"] == namespace]


def _budget(group: Key, why: str, pods: int) -> Json:
    return {
        "apiVersion": r.DISRUPTION_BUDGETS.api_version,
        "kind": r.DISRUPTION_BUDGETS.kind,
        "metadata": {
            "name": f"{PREFIX}{group.name}",
            "namespace": group.namespace,
            "labels": {MANAGED_BY: MANAGER},
            "annotations": {IMPLIED_BY: why},
        },
        "spec": {"minAvailable": pods, "selector": {"matchLabels": {GROUP_LABEL: group.name}}},
    }


def _why(budget: Json) -> str:
    return str((budget["metadata"].get("annotations") or {}).get(IMPLIED_BY) or "")


def _annotated(known: Json, wanted: Json) -> Json:
    meta = known["metadata"]
    return {**meta, "annotations": {**(meta.get("annotations") or {}), **wanted["metadata"]["annotations"]}}
