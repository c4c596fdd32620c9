"""Gates off and on again with real processes on the same data: no pod that runs is replaced (KEP-4671, rollback)."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from phalanx.base.client import Resource
from phalanx.kube.client import HttpClient
from phalanx.kube.config import load
from phalanx.serve.remote import connected
from support.lifecycle.manifests import deployment, job, jobset, leader_worker_set, stateful_set

Json = dict[str, Any]
OFF = ",".join(
    f"{gate}=false"
    for gate in (
        "GenericWorkload",
        "GangScheduling",
        "TopologyAwareWorkloadScheduling",
        "CompositePodGroup",
        "WorkloadWithJob",
    )
)
PODS = Resource("", "v1", "pods", "Pod")
KINDS = {
    "Job": Resource("batch", "v1", "jobs", "Job"),
    "JobSet": Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet"),
    "StatefulSet": Resource("apps", "v1", "statefulsets", "StatefulSet"),
    "Deployment": Resource("apps", "v1", "deployments", "Deployment"),
    "LeaderWorkerSet": Resource("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "LeaderWorkerSet"),
}
SCALED = ("StatefulSet", "Deployment", "LeaderWorkerSet")


@contextmanager
def up(data: Path, gates: str) -> Iterator[Path]:
    """`phalanx up`, until the block ends; its kubeconfig."""
    command = [sys.executable, "-c", "from phalanx.cli.main import main; main()", "up", "--data", str(data)]
    command += ["--listen", "127.0.0.1:0", "--nodes", "8", *(["--feature-gates", gates] if gates else [])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("ready"):
                break
        else:
            raise AssertionError("phalanx up ended before it was ready")
        yield data / "kubeconfig"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        process.stdout.close()


async def running(client: HttpClient, count: int) -> dict[str, str]:
    """uid -> name of all pods, once so many of them run and none does anything else."""
    pods: dict[str, Json] = {}
    try:
        async with asyncio.timeout(120):
            async for event in client.watch(PODS, "default"):
                pod = json.loads(event.object)
                if event.type == "DELETED":
                    pods.pop(pod["metadata"]["name"], None)
                elif event.type != "BOOKMARK":
                    pods[pod["metadata"]["name"]] = pod
                if [pod["status"].get("phase") for pod in pods.values()] == ["Running"] * count:
                    return {pod["metadata"]["uid"]: name for name, pod in pods.items()}
    except TimeoutError:
        pass
    raise AssertionError(f"not {count} pods that run: {[(name, pod['status']) for name, pod in pods.items()]}")


async def live_on(kubeconfig: Path, life: int, count: int) -> dict[str, str]:
    """Something is asked of every controller, so that each of them has looked at everything; the pods then."""
    client = await connected(load(str(kubeconfig)), "test")
    try:
        for make in (job, jobset):
            body = make(f"w{life}", 2) if make is job else make(f"w{life}", 1, 2)
            await client.create(KINDS[body["kind"]], body, "default")
        for number, make in enumerate((stateful_set, deployment, leader_worker_set)):
            name, resource = f"s{number}", KINDS[SCALED[number]]
            if not life:
                body = make(name, 2)
                await client.create(resource, _own_label(body, name), "default")
            else:
                await client.patch(resource, name, {"spec": {"replicas": 2 + life}}, "default")
        return await running(client, count)
    finally:
        await client.__aexit__()


def _own_label(body: Json, name: str) -> Json:
    """Two sets of one namespace must not choose each other's pods."""
    if "selector" in body["spec"]:
        body["spec"]["selector"]["matchLabels"] = {"app": name}
        body["spec"]["template"]["metadata"]["labels"] = {"app": name}
    return body


def test_switching_gates_off_and_on_replaces_no_pod(tmp_path: Path) -> None:
    before: dict[str, str] = {}
    # A Job and a JobSet of two each are made in every life; StatefulSet, Deployment and LeaderWorkerSet grow.
    for life, (gates, count) in enumerate((("", 12), (OFF, 20), ("", 28))):
        with up(tmp_path, gates) as kubeconfig:
            now = asyncio.run(live_on(kubeconfig, life, count))
        replaced = [name for uid, name in before.items() if uid not in now]
        assert not replaced, f"start {life} with gates {gates or 'on'} replaced {', '.join(replaced)}"
        before = now
