"""Simulate a kubectl user who creates, scales and deletes workloads of every kind.

The user also deletes pods, groups and nodes, and tries again after a bad answer.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from phalanx.base.client import Resource
from phalanx.base.errors import AlreadyExists, ApiProblem, NotFound
from phalanx.kube.client import HttpClient
from support.simulation import workloads as w

Json = dict[str, Any]
CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
TRIES = 5
URGENT = "urgent"


@dataclass(slots=True)
class Made:
    """The objects one action created: deleting it deletes its parts, the last first."""

    parts: list[tuple[Resource, str]]
    pods: list[str] = field(default_factory=list)  # made by hand

    @property
    def resource(self) -> Resource:
        return self.parts[0][0]

    @property
    def name(self) -> str:
        return self.parts[0][1]


class User:
    def __init__(self, client: HttpClient, rng: random.Random, nodes: int, *, devices: bool = False) -> None:
        self._client, self._rng = client, rng
        self._nodes = [f"node-{number:05d}" for number in range(nodes)]
        self._cordoned = ""
        self._number = 0
        self._made: list[Made] = []
        self._actions: dict[Callable[[], Awaitable[str]], int] = {
            self._gang: 24,
            self._urgent_gang: 11,
            self._job: 15,
            self._job_set: 8,
            self._set: 6,
            self._leader_worker_set: 6,
            self._tree: 5,
            self._lose_a_pod: 6,
            self._lose_a_group: 2,
            self._scale: 5,
            self._cordon: 2,
            self._group_with_bad_annotation: 4,
            self._remove: 20,
        }
        self._devices = devices
        if devices:
            self._actions[self._device_gang] = 24

    async def prepare(self) -> None:
        version = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
        await self._create(CLASSES, {**version, "metadata": {"name": URGENT}, "value": 1000}, "")
        if self._devices:
            await self._create(w.TEMPLATES, w.claim_template())

    async def act(self) -> str:
        """Perform one action; return its description."""
        self._number += 1
        if not self._made:
            return await self._gang()
        chosen = self._rng.choices(tuple(self._actions), tuple(self._actions.values()))[0]
        return await chosen()

    async def clean(self) -> None:
        """Delete everything this user created, so that rounds do not accumulate objects."""
        if self._cordoned:
            await self._cordon()
        while self._made:
            await self._remove()

    # -- making

    @property
    def _name(self) -> str:
        return f"w{self._number}"

    async def _urgent_gang(self) -> str:
        return await self._gang(URGENT)

    async def _gang(self, priority: str = "") -> str:
        size, cpu, name = self._rng.randrange(2, 7), self._rng.choice(("1", "2", "3")), self._name
        await self._create(w.GROUPS, w.group(name, size, self._rng, priority=priority))
        pods = await self._members(name, size, cpu, priority)
        self._made.append(Made([(w.GROUPS, name)], pods))
        return f"makes the{' urgent' if priority else ''} gang {name} of {size} x {cpu} cpu"

    async def _members(self, group: str, size: int, cpu: str, priority: str = "") -> list[str]:
        pods = [f"{group}-{number}" for number in range(size)]
        for pod in pods:
            await self._create(w.PODS, w.member(pod, group, cpu, priority))
        return pods

    async def _device_gang(self) -> str:
        size, priority, name = self._rng.randrange(1, 5), self._rng.choice(("", URGENT)), self._name
        await self._create(w.GROUPS, w.group(name, size, self._rng, priority=priority))
        pods = [f"{name}-{number}" for number in range(size)]
        for pod in pods:
            await self._create(w.PODS, w.with_devices(w.member(pod, name, "1", priority)))
        self._made.append(Made([(w.GROUPS, name)], pods))
        return f"makes the{' urgent' if priority else ''} gang {name} of {size} with devices"

    async def _group_with_bad_annotation(self) -> str:
        """Create a gang whose object carries an annotation that no program of ours would write."""
        name, key, value = self._name, self._rng.choice(w.READ_ANNOTATIONS), self._rng.choice(w.INVALID_VALUES)
        group = w.group(name, 1, self._rng)
        group["metadata"]["annotations"] = {key: value}
        await self._create(w.GROUPS, group)
        pods = await self._members(name, 1, "1")
        self._made.append(Made([(w.GROUPS, name)], pods))
        return f"makes the gang {name} with an invalid {key}"

    async def _tree(self) -> str:
        name, cpu = self._name, self._rng.choice(("1", "2"))
        made = Made([(w.COMPOSITES, name)])
        await self._create(w.COMPOSITES, w.composite(name, 2))
        for half in "ab":
            group = f"{name}-{half}"
            await self._create(w.GROUPS, w.group(group, 2, self._rng, parent=name))
            made.parts.append((w.GROUPS, group))
            made.pods += await self._members(group, 2, cpu)
        self._made.append(made)
        return f"makes the tree {name} of 2 x 2 x {cpu} cpu"

    async def _job(self) -> str:
        size = self._rng.randrange(2, 5)
        return await self._workload(w.JOBS, w.job(self._name, size, self._rng), f" of {size}")

    async def _job_set(self) -> str:
        return await self._workload(w.JOB_SETS, w.job_set(self._name, self._rng))

    async def _set(self) -> str:
        size = self._rng.randrange(2, 5)
        return await self._workload(
            w.SETS, w.stateful_set(self._name, size, self._rng.choice(("1", "2"))), f" of {size}"
        )

    async def _leader_worker_set(self) -> str:
        replicas, startup = self._rng.randrange(1, 3), self._rng.choice(("LeaderCreated", "LeaderReady"))
        made = w.leader_worker_set(self._name, replicas, startup)
        return await self._workload(w.LEADER_WORKER_SETS, made, f" of {replicas}, {startup}")

    async def _workload(self, resource: Resource, body: Json, more: str = "") -> str:
        await self._create(resource, body)
        self._made.append(Made([(resource, self._name)]))
        return f"makes the {resource.kind} {self._name}{more}"

    # -- changing and deleting

    def _one(self, *resources: Resource) -> Made | None:
        found = [made for made in self._made if made.resource in resources]
        return self._rng.choice(found) if found else None

    async def _lose_a_pod(self) -> str:
        made = self._one(w.GROUPS, w.COMPOSITES)
        if made is None or not made.pods:
            return "looks on"
        name = made.pods.pop(self._rng.randrange(len(made.pods)))
        await self._delete(w.PODS, name)
        return f"deletes the pod {name}"

    async def _lose_a_group(self) -> str:
        """Delete a group of a workload whose controller must create it again."""
        made = self._one(w.JOBS, w.JOB_SETS, w.SETS, w.LEADER_WORKER_SETS)
        found = await self._groups_of(made) if made is not None else []
        if not found:
            return "looks on"
        name = self._rng.choice(found)
        await self._delete(w.GROUPS, name)
        return f"deletes the group {name}"

    async def _groups_of(self, made: Made) -> list[str]:
        try:
            listed = msgspec.json.decode(await self._client.list(w.GROUPS, "default"))["items"]
        except ApiProblem:
            return []
        names = [item["metadata"]["name"] for item in listed]
        return sorted(name for name in names if name.startswith(f"{made.name}-"))

    async def _scale(self) -> str:
        made = self._one(w.SETS, w.LEADER_WORKER_SETS)
        if made is None:
            return "looks on"
        replicas = self._rng.randrange(0, 5 if made.resource is w.SETS else 3)
        await self._patch(made.resource, made.name, {"spec": {"replicas": replicas}})
        return f"scales {made.resource.kind} {made.name} to {replicas}"

    async def _cordon(self) -> str:
        """Cordon one node, or uncordon the cordoned one."""
        name, closed = self._cordoned or self._rng.choice(self._nodes), not self._cordoned
        await self._patch(NODES, name, {"spec": {"unschedulable": closed}}, "")
        self._cordoned = name if closed else ""
        return f"{'cordons' if closed else 'gives back'} {name}"

    async def _remove(self) -> str:
        made = self._made.pop(self._rng.randrange(len(self._made)))
        for pod in made.pods:
            await self._delete(w.PODS, pod)
        for resource, name in reversed(made.parts):
            await self._delete(resource, name)
        return f"deletes {made.resource.kind} {made.name}"

    # -- over a bad line

    async def _create(self, resource: Resource, body: Json, namespace: str = "default") -> None:
        for attempt in range(TRIES):
            try:
                await self._client.create(resource, body, namespace)
                return
            except AlreadyExists:
                return
            except ApiProblem:
                await asyncio.sleep(0.5 * (attempt + 1))

    async def _patch(self, resource: Resource, name: str, patch: Json, namespace: str = "default") -> None:
        for attempt in range(TRIES * 4):
            try:
                await self._client.patch(resource, name, patch, namespace)
                return
            except NotFound:
                return
            except ApiProblem:
                await asyncio.sleep(0.5 * (attempt + 1))

    async def _delete(self, resource: Resource, name: str) -> None:
        for attempt in range(TRIES * 4):
            try:
                await self._client.delete(resource, name, "default", propagation="Background")
                return
            except NotFound:
                return
            except ApiProblem:
                await asyncio.sleep(0.5 * (attempt + 1))
