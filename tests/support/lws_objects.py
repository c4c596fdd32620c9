"""LeaderWorkerSets for tests, and what to look at in them and in their pods."""

from __future__ import annotations

from typing import Any

from support.controller_world import Json, World, condition
from support.manifests import container, leader_worker_set, template

P = "leaderworkerset.sigs.k8s.io/"


def lws(name: str, replicas: int, size: int, *, image: str = "v1", cpu: str = "100m", **spec: Any) -> Json:
    """template: more of leaderWorkerTemplate; the rest is of the spec."""
    more = {"metadata": {"annotations": spec.pop("annotations", {})}, "inner": spec.pop("template", {})}
    return leader_worker_set(name, replicas, size, template(cpu, app=name, image=image), **more, **spec)


def available(obj: Json) -> bool:
    status = obj.get("status") or {}
    return bool(
        status.get("observedGeneration") == obj["metadata"]["generation"]
        and condition(obj, "Available").get("status") == "True"
        and status.get("readyReplicas", 0) == status.get("replicas", 0) == obj["spec"]["replicas"]
        and status.get("updatedReplicas", 0) == obj["spec"]["replicas"]
    )


async def done(cluster: World, name: str) -> Json:
    return await cluster.until("LeaderWorkerSet", name, when=available)


def new_image(image: str) -> Json:
    spec = {"spec": {"containers": [container("100m") | {"image": image}]}}
    return {"spec": {"leaderWorkerTemplate": {"workerTemplate": spec}}}


def env(pod: Json) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in pod["spec"]["containers"][0]["env"]}


def group_of(pod: Json) -> str:
    return str((pod["spec"].get("schedulingGroup") or {}).get("podGroupName", ""))
