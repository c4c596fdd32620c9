"""Somebody at kubectl: makes gangs, Jobs and urgent gangs, deletes some, and tries again after a bad answer."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from phalanx.base.client import Resource
from phalanx.base.errors import AlreadyExists, ApiProblem, NotFound
from phalanx.kube.client import HttpClient

Json = dict[str, Any]
PODS = Resource("", "v1", "pods", "Pod")
GROUPS = Resource("scheduling.k8s.io", "v1beta1", "podgroups", "PodGroup")
JOBS = Resource("batch", "v1", "jobs", "Job")
JOB_SETS = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
TRIES = 5


class User:
    def __init__(self, client: HttpClient, rng: random.Random) -> None:
        self._client, self._rng = client, rng
        self._number = 0
        self._made: list[tuple[Resource, str, list[str]]] = []

    async def prepare(self) -> None:
        body = {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "urgent"},
            "value": 1000,
        }
        await self._create(CLASSES, body, "")

    async def act(self) -> str:
        """One action; what it was."""
        choice = self._rng.random()
        self._number += 1
        name = f"w{self._number}"
        if choice < 0.30 or not self._made:
            return await self._gang(name, "")
        if choice < 0.42:
            return await self._gang(name, "urgent")
        if choice < 0.62:
            return await self._job(name)
        if choice < 0.72:
            return await self._job_set(name)
        if choice < 0.8:
            return await self._lose_a_pod()
        return await self._remove()

    async def clean(self) -> None:
        """Everything it made goes, so that rounds do not pile up."""
        while self._made:
            await self._remove()

    async def _gang(self, name: str, priority: str) -> str:
        size = self._rng.randrange(2, 7)
        cpu = self._rng.choice(("1", "2", "3"))
        group = {
            "apiVersion": "scheduling.k8s.io/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": name},
            "spec": {"schedulingPolicy": {"gang": {"minCount": size}}},
        }
        if priority:
            group["spec"]["priorityClassName"] = priority  # type: ignore[index]
        await self._create(GROUPS, group)
        pods = [f"{name}-{n}" for n in range(size)]
        for pod in pods:
            spec: Json = {**_spec(cpu), "schedulingGroup": {"podGroupName": name}}
            if priority:
                spec["priorityClassName"] = priority
            await self._create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod}, "spec": spec})
        self._made.append((GROUPS, name, pods))
        return f"makes the{' urgent' if priority else ''} gang {name} of {size} x {cpu} cpu"

    async def _job(self, name: str) -> str:
        size = self._rng.randrange(2, 5)
        body = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name},
            "spec": {
                "parallelism": size,
                "completions": size,
                "completionMode": "Indexed",
                "scheduling": {"schedulingPolicy": {"gang": {}}},
                "template": self._template(),
            },
        }
        await self._create(JOBS, body)
        self._made.append((JOBS, name, []))
        return f"makes the Job {name} of {size}"

    async def _job_set(self, name: str) -> str:
        job = {"parallelism": 2, "completions": 2, "template": self._template()}
        body = {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {"name": name},
            "spec": {
                "scheduling": {"schedulingPolicy": {"gang": {}}},
                "replicatedJobs": [{"name": "a", "replicas": 2, "template": {"spec": job}}],
            },
        }
        await self._create(JOB_SETS, body)
        self._made.append((JOB_SETS, name, []))
        return f"makes the JobSet {name}"

    def _template(self) -> Json:
        seconds = self._rng.choice(("5", "20", "600"))
        annotations = {"simulation.phalanx.dev/run-seconds": seconds}
        spec = {**_spec(self._rng.choice(("1", "2"))), "restartPolicy": "Never"}
        return {"metadata": {"annotations": annotations}, "spec": spec}

    async def _lose_a_pod(self) -> str:
        gangs = [pods for resource, _, pods in self._made if resource is GROUPS and pods]
        if not gangs:
            return "looks on"
        pods = self._rng.choice(gangs)
        name = pods.pop(self._rng.randrange(len(pods)))
        await self._delete(PODS, name)
        return f"deletes the pod {name}"

    async def _remove(self) -> str:
        resource, name, pods = self._made.pop(self._rng.randrange(len(self._made)))
        for pod in pods:
            await self._delete(PODS, pod)
        await self._delete(resource, name)
        return f"deletes {resource.kind} {name}"

    async def _create(self, resource: Resource, body: Json, namespace: str = "default") -> None:
        for attempt in range(TRIES):
            try:
                await self._client.create(resource, body, namespace)
                return
            except AlreadyExists:
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


def _spec(cpu: str) -> Json:
    return {"containers": [{"name": "main", "image": "x", "resources": {"requests": {"cpu": cpu}}}]}
