"""Write the pod templates and counts of a Workload's groups to its status, before pods exist (`status.podSets`).

Other programs can then evaluate a suspended workload (EqGroups of the API design).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import islice

import msgspec

from phalanx.base.client import Resource
from phalanx.base.errors import Conflict, NotFound
from phalanx.controllers.grouping.core import GroupingRefused
from phalanx.controllers.runtime.controller import MALFORMED, Cache, Caches, Controller, Json, Key
from phalanx.controllers.runtime.groups import Groups
from phalanx.controllers.workloads.kind import ExpectedPod, WorkloadKind

MOST_PODS = 10_000  # per Workload; a larger one gets no list


class PodSetsController(Controller):
    name = "podsets"

    def __init__(self, caches: Caches, groups: Groups, kinds: Iterable[WorkloadKind]) -> None:
        super().__init__()
        self._groups, self._workloads = groups, groups.workloads
        self._kinds = {kind.key: kind for kind in kinds}
        self._owners: dict[tuple[str, str], Cache] = {}
        self._read = {
            resource.kind: caches.of(resource, optional=True)
            for kind in self._kinds.values()
            for resource in kind.reads
        }
        self._workloads.on_change(self._workload_changed)
        for key, kind in self._kinds.items():
            cache = self._owners[key] = caches.of(kind.resource, optional=True)
            cache.on_change(partial(self._owner_changed, kind.resource))

    def _workload_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        if new is not None and (old is None or old["spec"] != new["spec"]):
            self.queue.add(key)

    def _owner_changed(self, resource: Resource, key: Key, new: Json | None, old: Json | None) -> None:
        if new is None or old is None or new.get("spec") == old.get("spec"):
            return
        owner = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": new["metadata"]}
        for workload in self._groups.for_owner(owner):
            self.queue.add(Key(key.namespace, workload["metadata"]["name"]))

    async def reconcile(self, key: Key) -> None:
        workload = self._workloads.get(*key)
        about = (workload or {}).get("spec", {}).get("controllerRef") or {}
        kind = self._kinds.get((str(about.get("apiGroup") or ""), str(about.get("kind"))))
        owner = self._owners[kind.key].get(key.namespace, str(about.get("name"))) if kind is not None else None
        if workload is None or kind is None or owner is None:
            return
        owner = {**owner, "apiVersion": kind.resource.api_version, "kind": kind.resource.kind}
        related = [*self._referenced(kind, owner), *self._groups.related(owner)]
        try:
            pods = list(islice(kind.pods(owner, related, kind.group(owner, related)), MOST_PODS + 1))
        except (GroupingRefused, *MALFORMED):
            return  # the controller of the kind reports it
        sets = pod_sets(pods) if len(pods) <= MOST_PODS else []
        if sets == ((workload.get("status") or {}).get("podSets") or []):
            return
        try:
            await self._workloads.client.patch(
                self._workloads.resource, key.name, {"status": {"podSets": sets}}, key.namespace, subresource="status"
            )
        except (NotFound, Conflict):
            return  # deleted or changed: its event requeues it

    def _referenced(self, kind: WorkloadKind, owner: Json) -> list[Json]:
        """Return the object that has the pod templates of an owner, such as the runtime of a TrainJob."""
        named, name = kind.referenced_object(owner)
        cache = self._read.get(named)
        if cache is None:
            return []
        found = cache.get(owner["metadata"]["namespace"] if cache.resource.namespaced else "", name)
        return [{**found, "kind": named}] if found is not None else []


def pod_sets(pods: Iterable[ExpectedPod]) -> list[Json]:
    """Return how many equal pods the groups of each template have."""
    found: dict[tuple[str, bytes], tuple[dict[str, int], Json]] = {}
    for pod in pods:
        if pod.link is None:
            continue
        group = pod.link.pod_group or f"{pod.link.group}/{pod.link.replica_key}"
        key = (pod.link.template or pod.link.group, msgspec.json.encode(pod.template, order="sorted"))
        counts, _ = found.setdefault(key, ({}, pod.template))
        counts[group] = counts.get(group, 0) + 1
    sets: list[Json] = []
    for (template, _), (counts, pod_template) in sorted(found.items()):
        for size in sorted(set(counts.values())):
            sets.append(
                {
                    "podGroupTemplateName": template,
                    "groups": sum(count == size for count in counts.values()),
                    "podsPerGroup": size,
                    "template": pod_template,
                }
            )
    return sets
