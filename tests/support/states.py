"""What pods and workloads look like when they have got somewhere; waiting is by `cluster.until` and `eventually`."""

from __future__ import annotations

from typing import Any

from support.controller_world import World, condition
from support.manifests import EXIT, RUN, container

Json = dict[str, Any]
P = "jobset.sigs.k8s.io/"


def live(pods: list[Json], app: str = "") -> list[Json]:
    return [
        p
        for p in pods
        if p["status"].get("phase") == "Running"
        and "deletionTimestamp" not in p["metadata"]
        and (p["metadata"].get("labels") or {}).get(f"{P}replicatedjob-name", "").startswith(app)
    ]


async def running(cluster: World, count: int, app: str = "") -> list[Json]:
    return live(await cluster.eventually("Pod", lambda pods: len(live(pods, app)) == count), app)


async def end(cluster: World, pods: list[Json], code: int = 0) -> None:
    for pod in pods:
        patch = {"metadata": {"annotations": {RUN: "0", EXIT: str(code)}}}
        await cluster.patch("Pod", pod["metadata"]["name"], patch)


async def nothing_left(cluster: World) -> None:
    for kind in ("Pod", "Job", "PodGroup", "CompositePodGroup", "Workload", "Service"):
        await cluster.eventually(kind, lambda found: not found)


def rolled_out(obj: Json) -> bool:
    """What `kubectl rollout status` waits for."""
    status, wanted = obj.get("status") or {}, obj["spec"]["replicas"]
    return bool(
        status.get("observedGeneration") == obj["metadata"]["generation"]
        and status.get("updatedReplicas", 0) == status.get("replicas", 0) == wanted
        and status.get("availableReplicas", 0) == wanted
    )


def new_image(image: str) -> Json:
    return {"spec": {"template": {"spec": {"containers": [container("100m", image=image)]}}}}


def placed(pods: list[Json]) -> list[str]:
    return sorted(pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName"))


def serves(obj: Json) -> bool:
    return bool(condition(obj, "Available").get("status") == "True")


def finished(obj: Json) -> bool:
    """A Job or JobSet that is over."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return any(c["type"] in ("Complete", "Completed", "Failed") and c["status"] == "True" for c in conditions)


def set_rolled_out(obj: Json) -> bool:
    """The same of a StatefulSet."""
    status, wanted = obj.get("status") or {}, obj["spec"]["replicas"]
    return bool(
        status.get("observedGeneration") == obj["metadata"]["generation"]
        and status.get("readyReplicas", 0) == status.get("replicas", 0) == wanted
        and status.get("currentRevision") == status.get("updateRevision")
    )


async def set_done(cluster: World, name: str) -> Json:
    return await cluster.until("StatefulSet", name, when=set_rolled_out)


async def job_done(cluster: World, name: str) -> Json:
    return await cluster.until("Job", name, when=finished)
