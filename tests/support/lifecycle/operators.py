"""Just enough of KubeRay and of Kubeflow's training operator: pods of the size that an object says."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

from phalanx.base import resources as r
from phalanx.base.client import Client, Resource
from phalanx.base.clock import Clock
from phalanx.base.errors import AlreadyExists, NotFound
from phalanx.base.tasks import run_all
from phalanx.controllers.runtime.controller import Caches, Controller, Key
from phalanx.controllers.runtime.ownership import controller_of, deleting, index_by_controller
from phalanx.controllers.runtime.pods import finished, from_template
from phalanx.controllers.workloads.pytorchjob.kind import PYTORCH_JOBS, REPLICA_TYPE
from phalanx.controllers.workloads.ray.kind import GROUP, RAY_CLUSTERS

Json = dict[str, Any]


class _Part(NamedTuple):
    role: str
    count: int
    template: Json


def _ray(cluster: Json) -> Iterator[_Part]:
    spec = cluster["spec"]
    if not spec.get("suspend"):
        yield _Part("headgroup", 1, spec["headGroupSpec"]["template"])
        for group in spec.get("workerGroupSpecs") or ():
            yield _Part(group["groupName"], group["replicas"], group["template"])


def _torch(job: Json) -> Iterator[_Part]:
    spec = job["spec"]
    if not (spec.get("runPolicy") or {}).get("suspend"):
        for role, replicas in spec["pytorchReplicaSpecs"].items():
            yield _Part(role.lower(), replicas["replicas"], replicas["template"])


class Operator(Controller):
    def __init__(self, caches: Caches, resource: Resource) -> None:
        self.name = f"operator-of-{resource.plural}"
        super().__init__()
        self._resource, self._client = resource, caches.client
        self._parts = _ray if resource is RAY_CLUSTERS else _torch
        self._label = GROUP if resource is RAY_CLUSTERS else REPLICA_TYPE
        self._owners = caches.of(resource, optional=True)
        self._pods = caches.of(r.PODS)
        self._pods.index("controller", index_by_controller)
        self._owners.on_change(lambda key, new, old: self.queue.add(key))
        self._pods.on_change(self._pod_changed)

    def _pod_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        reference = controller_of(new or old or {})
        if reference is not None and reference["kind"] == self._resource.kind:
            self.queue.add(Key(key.namespace, reference["name"]))

    async def reconcile(self, key: Key) -> None:
        owner = self._owners.get(*key)
        if owner is None or deleting(owner):
            return
        there = {pod["metadata"]["name"]: pod for pod in self._pods.by_index("controller", owner["metadata"]["uid"])}
        wanted = {
            f"{key.name}-{part.role}-{number}": part for part in self._parts(owner) for number in range(part.count)
        }
        for name, pod in there.items():
            if (name not in wanted or finished(pod)) and not deleting(pod):
                await self._delete(pod)
        for name, part in wanted.items():
            if name not in there:
                pod = from_template(copy.deepcopy(part.template), owner, self._resource, name=name)
                pod["metadata"]["labels"][self._label] = part.role
                try:
                    await self._client.create(r.PODS, pod, key.namespace)
                except AlreadyExists:
                    continue

    async def _delete(self, pod: Json) -> None:
        meta = pod["metadata"]
        try:
            await self._client.delete(r.PODS, meta["name"], meta["namespace"], uid=meta["uid"])
        except NotFound:
            return


class Operators:
    def __init__(self, client: Client, clock: Clock) -> None:
        self._caches = Caches(client)
        self._controllers = [Operator(self._caches, resource) for resource in (RAY_CLUSTERS, PYTORCH_JOBS)]
        self.ready = asyncio.Event()

    async def run(self) -> None:
        await self._caches.run(self._work)

    async def _work(self) -> None:
        self.ready.set()
        await run_all([(controller.name, controller.run()) for controller in self._controllers])
