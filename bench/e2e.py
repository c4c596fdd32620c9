"""Pods bound per second through the whole chain: load over TLS → API server → informers → engine → binds → watch.

Run: python bench/e2e.py [up] [separate] [gangs] [kubelets] [memory] [--pods N] [--nodes N]
  up        `phalanx up`: everything in one process, nodes made through the API, no kubelets
  separate  `phalanx apiserver` and `phalanx scheduler`, two processes that speak TLS
  gangs     like up, pods in groups of three that start together or not at all
  kubelets  `phalanx up --nodes N`: pods are bound and then run by simulated kubelets
  memory    `phalanx up --nodes N` with 50,000 pods that run, and again after a restart on the same data

The load and the counting watcher are processes of their own on the same machine: figures include all sides.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import multiprocessing
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from api import PODS, RawClient, RawWatcher, Target, _run, cluster, connect, create, in_process
from progress import counted

CLIENTS = 64
GROUPS = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups"


def plain_pod(name: str, group: str = "") -> bytes:
    """scheduler_perf's default pod."""
    container = {
        "name": "pause",
        "image": "registry.example.com/pause:3.10",
        "ports": [{"containerPort": 80}],
        "resources": {
            "requests": {"cpu": "100m", "memory": "500Mi"},
            "limits": {"cpu": "100m", "memory": "500Mi"},
        },
    }
    spec: dict[str, object] = {"containers": [container]}
    if group:
        spec["schedulingGroup"] = {"podGroupName": group}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}).encode()


def pod_group(name: str, members: int) -> bytes:
    spec = {"schedulingPolicy": {"gang": {"minCount": members}}}
    body = {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": spec,
    }
    return json.dumps(body).encode()


async def post(target: Target, path: str, bodies: list[bytes]) -> float:
    """Objects per second, each of the connections waiting for its answer before the next."""
    left = iter(bodies)
    rest = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    started = time.perf_counter()
    made = await connect(target, lambda head: RawClient(head + rest, left), f"POST {path}", CLIENTS)
    await asyncio.gather(*(client.done for client in made))
    return len(bodies) / (time.perf_counter() - started)


async def count_bound(target: Target, pods: int, seconds: float) -> tuple[float, float, int]:
    """When the first and the last pod with a node appeared in a watch, and how many did."""
    request = f"GET {PODS}?watch=true&resourceVersion=0&fieldSelector=spec.nodeName!%3D"
    (watcher,) = await connect(target, lambda head: RawWatcher(head, pods), request, 1)
    await asyncio.wait([watcher.done], timeout=seconds)
    return watcher.first, watcher.last, watcher.count


def measure(title: str, target: Target, bodies: list[bytes], others: dict[str, int]) -> None:
    """`others`: further processes whose CPU time is printed, by name and process id."""
    limit = 20 + len(bodies) / 50
    seen = {"server": target} | {name: Target("", "", "", pid) for name, pid in others.items()}
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        counting = pool.apply_async(_run, (count_bound, (target, len(bodies), limit)))
        time.sleep(1)  # the watcher connects
        before = {name: process.cpu() for name, process in seen.items()}
        started = time.perf_counter()
        created = pool.apply(_run, (post, (target, PODS, bodies)))
        _, last, count = counting.get()
    cpu = ", ".join(
        f"{name} {(process.cpu() - before[name]) / max(count, 1) * 1e6:.0f} µs" for name, process in seen.items()
    )
    rate = count / (last - started) if count else 0.0
    memory = ", ".join(f"{name} {process.memory():,.0f} MiB" for name, process in seen.items())
    print(
        f"{title}: {count:,} of {len(bodies):,} pods bound at {rate:,.0f}/s "
        f"(created at {created:,.0f}/s; CPU per pod: {cpu}; {memory})",
        flush=True,
    )
    if count < len(bodies):
        raise SystemExit(f"{len(bodies) - count:,} pods were not bound after {limit:,.0f} s: the figures mean nothing")


def plain(pods: int) -> list[bytes]:
    return [plain_pod(f"pod-{n:06d}") for n in range(pods)]


def up(pods: int, nodes: int) -> None:
    with cluster("up", "--nodes", "0", "--no-nodes") as (target, _):
        in_process(create, target, "nodes", "node", nodes, CLIENTS)
        measure("up", target, plain(pods), {})


def kubelets(pods: int, nodes: int) -> None:
    with cluster("up", "--nodes", str(nodes)) as (target, _):
        measure("up with kubelets", target, plain(pods), {})


def gangs(pods: int, nodes: int, members: int = 3) -> None:
    with cluster("up", "--nodes", "0", "--no-nodes") as (target, _):
        in_process(create, target, "nodes", "node", nodes, CLIENTS)
        count = pods // members
        in_process(post, target, GROUPS, [pod_group(f"group-{n:05d}", members) for n in range(count)])
        bodies = [
            plain_pod(f"group-{n:05d}-{member}", f"group-{n:05d}")
            for n, member in itertools.product(range(count), range(members))
        ]
        measure(f"gangs of {members}", target, bodies, {})


@contextmanager
def scheduler(target: Target) -> Iterator[int]:
    with tempfile.TemporaryDirectory() as directory:
        import base64

        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "bench",
            "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
            "clusters": [
                {
                    "name": "bench",
                    "cluster": {
                        "server": target.url,
                        "certificate-authority-data": base64.b64encode(target.ca.encode()).decode(),
                    },
                }
            ],
            "users": [{"name": "bench", "user": {"token": target.token}}],
        }
        path = Path(directory) / "kubeconfig"
        path.write_text(json.dumps(config))
        command = [sys.executable, "-m", "phalanx", "scheduler", "--kubeconfig", str(path), "--no-leader-elect"]
        process = subprocess.Popen(
            [*command, "--health", "127.0.0.1:0", "--log-level", "warning"], stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("ready")
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def separate(pods: int, nodes: int) -> None:
    with cluster("apiserver") as (target, _):
        in_process(create, target, "nodes", "node", nodes, CLIENTS)
        with scheduler(target) as pid:
            measure("scheduler apart", target, plain(pods), {"scheduler": pid})


def memory(_: int, nodes: int, pods: int = 50_000) -> None:
    with tempfile.TemporaryDirectory() as directory:
        with cluster("up", "--nodes", str(nodes), data=directory) as (target, _line):
            print(f"up with {nodes:,} nodes: {target.memory():,.0f} MiB", flush=True)
            measure(f"and {pods:,} pods", target, plain(pods), {})
            until_running(target, pods)
            settle(target)
            print(f"all of them running: {target.memory():,.0f} MiB", flush=True)
        started = time.perf_counter()
        with cluster("up", "--nodes", str(nodes), data=directory) as (target, _line):
            print(f"restarted, ready after {time.perf_counter() - started:.1f} s: {target.memory():,.0f} MiB")


async def count_running(target: Target) -> int:
    """Names only, in pages: looking must not change what is looked at."""
    accept = {"Accept": "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"}
    count, following = 0, ""
    async with target.session(1) as session:
        while True:
            query = {"fieldSelector": "status.phase=Running", "limit": "500", "continue": following}
            async with session.get(PODS, params=query, headers=accept) as reply:
                assert reply.status == 200, await reply.text()
                page = await reply.json()
            count += len(page["items"])
            following = page["metadata"].get("continue") or ""
            if not following:
                return count


def until_running(target: Target, pods: int, seconds: float = 900.0) -> None:
    """Raises SystemExit when they do not all run in time, or when one that ran no longer does."""
    deadline, most = time.monotonic() + seconds, 0
    while (running := in_process(count_running, target)) < pods:
        if running < most or time.monotonic() > deadline:
            why = f"{most:,} ran before" if running < most else f"after {seconds:,.0f} s"
            raise SystemExit(f"{running:,} of {pods:,} pods run ({why}): the figures mean nothing")
        most = running
        time.sleep(5)


def settle(target: Target) -> None:
    """Until the process has next to nothing left to do: less than a sixth of a core, as long as it can have one."""
    before = target.cpu()
    while True:
        time.sleep(2)
        if target.cpu() - before < 0.3:
            return
        before = target.cpu()


SUITES: dict[str, Callable[[int, int], None]] = {
    "up": up,
    "separate": separate,
    "gangs": gangs,
    "kubelets": kubelets,
    "memory": memory,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("suites", nargs="*", default=list(SUITES), metavar="SUITE")
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=5_000)
    arguments = parser.parse_args()
    for chosen in counted(arguments.suites):
        SUITES[chosen](arguments.pods, arguments.nodes)
