"""The demo of `make up`: three workloads on 32 nodes, with running gangs and one that waits for room.

* `training`: a JobSet of eight whole nodes that must share one rack; it runs until it is deleted.
* `inference`: a LeaderWorkerSet of two replicas, each a gang of a leader and three workers.
* `evaluation`: a Job of 24 whole nodes. While `training` runs only 20 are free, so it waits and holds no nodes. `GUIDE`
  shows how to make room.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from phalanx.base import resources as r
from phalanx.base.client import Client, Resource
from phalanx.base.errors import AlreadyExists, ApiProblem, NotFound
from phalanx.base.well_known import DISRUPTION_TARGET, GPU
from phalanx.local.nodes.topology import RACK
from phalanx.model.kinds import Json
from phalanx.serve.settings import packaged_text

NODES = 32
TOPOLOGY = "blocks=2,racks=4"  # eight nodes of eight GPUs in each rack
OURS = ("training-", "inference-", "evaluation", "incident")  # prefixes of the names of its pods and Jobs

MANIFEST = "examples/urgent.yaml"  # an installed package has no folder of examples

# Next commands for the user, in a useful order; each line with its command fits 80 columns.
GUIDE = (
    ("evaluation waits and holds nothing", "kubectl get podgroups"),
    ("why, and what would help", "phalanx why job/evaluation"),
    ("make room: all 24 pods start", "kubectl delete jobset training"),
    ("which pods this one would preempt", f"phalanx whatif -f {MANIFEST}"),
    ("apply it", f"kubectl apply -f {MANIFEST}"),
)


def write_manifest() -> None:
    """Write the manifest that `GUIDE` names below the current directory, if it is missing there."""
    path = Path(MANIFEST)
    if not path.exists():
        with suppress(OSError):  # a read-only directory: the other commands of the guide work without it
            path.parent.mkdir(exist_ok=True)
            path.write_text(packaged_text("urgent.yaml", MANIFEST))


def workloads() -> list[tuple[Resource, Json]]:
    """Return the workloads of the demo in the order of their creation."""
    return [(r.JOB_SETS, _training()), (r.LEADER_WORKER_SETS, _inference()), (r.JOBS, _evaluation())]


async def apply_demo(client: Client, namespace: str = "default") -> list[str]:
    """Create missing workloads of the demo; return the names of the created ones as kubectl prints them."""
    created: list[str] = []
    for resource, body in workloads():
        if resource is r.JOBS and created:
            await _until(client, r.PODS, namespace, _others_run)  # the Job must arrive last
        try:
            await client.create(resource, copy.deepcopy(body), namespace)
        except AlreadyExists:
            continue
        created.append(f"{resource.kind.lower()}/{body['metadata']['name']}")
    return created


def _others_run(nodes: Mapping[str, str]) -> bool:
    return sum(bool(node) for name, node in nodes.items() if name.startswith(("training-", "inference-"))) >= 16


async def start_over(client: Client, namespace: str = "default") -> bool:
    """Delete the workloads of an earlier demo; return whether there were any."""
    if not await _is_outdated(client, namespace):
        return False
    await remove_demo(client, namespace)
    for resource in (r.PODS, r.JOBS):
        await _until(client, resource, namespace, lambda names: not any(name.startswith(OURS) for name in names))
    return True


async def _is_outdated(client: Client, namespace: str) -> bool:
    """Return True if the evaluation no longer waits, or the workload it waited for is gone."""
    try:
        await client.get(r.JOBS, "evaluation", namespace)
    except NotFound:
        return False
    try:
        await client.get(r.JOB_SETS, "training", namespace)
    except NotFound:
        return True
    pods: Json = msgspec.json.decode(await client.list(r.PODS, namespace))
    return any(p["metadata"]["name"].startswith("evaluation-") and p["spec"].get("nodeName") for p in pods["items"])


async def _until(
    client: Client,
    resource: Resource,
    namespace: str,
    holds: Callable[[Mapping[str, str]], bool],
    patience: float = 20.0,
) -> None:
    """Wait for a limited time until `holds` is true for the objects (name -> node)."""
    try:
        async with asyncio.timeout(patience):
            found: Json = msgspec.json.decode(await client.list(resource, namespace))
            nodes = {each["metadata"]["name"]: each["spec"].get("nodeName") or "" for each in found["items"]}
            events = client.watch(resource, namespace, resource_version=found["metadata"]["resourceVersion"])
            while not holds(nodes):
                event = await anext(events)
                each = msgspec.json.decode(event.object)
                if event.type == "DELETED":
                    nodes.pop(each["metadata"]["name"], None)
                elif event.type != "BOOKMARK":
                    nodes[each["metadata"]["name"]] = each["spec"].get("nodeName") or ""
    except (TimeoutError, StopAsyncIteration, ApiProblem):
        return


async def remove_demo(client: Client, namespace: str = "default") -> None:
    """Delete all objects of the demo and of its guide."""
    there = [(resource, body["metadata"]["name"], namespace) for resource, body in workloads()]
    for resource, name, where in (*there, (r.JOBS, "incident", namespace), (r.PRIORITY_CLASSES, "urgent", "")):
        with suppress(NotFound):
            await client.delete(resource, name, where, propagation="Background")


def _pod(name: str, gpus: int, *, restart: str = "Always") -> Json:
    container = {"name": name, "image": f"example/{name}:1", "resources": {"limits": {GPU: str(gpus)}}}
    return {"spec": {"restartPolicy": restart, "containers": [container]}}


def _training() -> Json:
    job = {"parallelism": 8, "completions": 8, "template": _pod("trainer", 8, restart="Never")}
    return {
        "apiVersion": r.JOB_SETS.api_version,
        "kind": r.JOB_SETS.kind,
        "metadata": {"name": "training"},
        "spec": {
            "scheduling": {
                "schedulingPolicy": {"gang": {}},
                "schedulingConstraints": {"topology": [{"key": RACK}]},
            },
            "replicatedJobs": [{"name": "workers", "replicas": 1, "template": {"spec": job}}],
        },
    }


def _inference() -> Json:
    return {
        "apiVersion": r.LEADER_WORKER_SETS.api_version,
        "kind": r.LEADER_WORKER_SETS.kind,
        "metadata": {"name": "inference"},
        "spec": {
            "replicas": 2,
            "scheduling": {"schedulingConstraints": {"topology": [{"key": RACK}]}},
            "leaderWorkerTemplate": {"size": 4, "workerTemplate": _pod("server", 4)},
        },
    }


def _evaluation() -> Json:
    return {
        "apiVersion": r.JOBS.api_version,
        "kind": r.JOBS.kind,
        "metadata": {"name": "evaluation"},
        "spec": {
            "parallelism": 24,
            "completions": 24,
            "completionMode": "Indexed",
            # preempted pods do not count for backoffLimit: the Job waits again instead of failing
            "podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": [{"type": DISRUPTION_TARGET}]}]},
            "scheduling": {"schedulingPolicy": {"gang": {}}, "disruptionMode": {"all": {}}},
            "template": _pod("evaluator", 8, restart="Never"),
        },
    }
