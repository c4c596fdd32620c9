"""Gangs through one and through two schedulers on the same nodes: throughput, whole gangs, over-committed nodes.

Run: python bench/schedulers.py [--gangs N] [--members N] [--nodes N] [--turns N] [--no-lease]
All objects exist before the schedulers start; the time is from the first bind to the last.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from api import PODS, RawWatcher, Target, _run, cluster, connect
from e2e import GROUPS, pod_group, post
from phalanx.model.quantity import milli

LIMIT = 180.0  # seconds


def member(name: str, group: str, scheduler: str) -> bytes:
    resources = {"requests": {"cpu": "4", "memory": "4Gi"}}
    spec = {
        "schedulerName": scheduler,
        "schedulingGroup": {"podGroupName": group},
        "containers": [{"name": "c", "image": "registry.example.com/train:1", "resources": resources}],
    }
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}).encode()


@contextmanager
def scheduler(kubeconfig: Path, name: str, *options: str) -> Iterator[None]:
    command = [sys.executable, "-m", "phalanx", "scheduler", "--kubeconfig", str(kubeconfig), "--scheduler-name", name]
    command += ["--no-leader-elect", "--no-dashboard", "--health", "127.0.0.1:0", "--log-level", "warning", *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


async def watch(target: Target, pods: int, path: str, names: list[str], options: list[str]) -> tuple[float, float, int]:
    """Start the schedulers and return when the first and the last pod got its node, and how many did."""
    request = f"GET {PODS}?watch=true&resourceVersion=0&fieldSelector=spec.nodeName!%3D"
    (watcher,) = await connect(target, lambda head: RawWatcher(head, pods), request, 1)
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(scheduler(Path(path), name, *options))
        await asyncio.wait([watcher.done], timeout=LIMIT)
        await asyncio.sleep(3)  # kubelets that reject do so now
    return watcher.first, watcher.last, watcher.count


def judge(kubeconfig: Path, members: int) -> str:
    def read(kind: str) -> list[dict]:
        command = ["kubectl", "--kubeconfig", str(kubeconfig), "get", kind, "-A", "-o", "json"]
        return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["items"]

    room = {node["metadata"]["name"]: milli(node["status"]["allocatable"]["cpu"]) for node in read("nodes")}
    sizes: Counter[str] = Counter()
    rejected = 0
    for pod in read("pods"):
        if pod["status"].get("phase") == "Failed":
            rejected += 1
        elif pod["spec"].get("nodeName"):
            sizes[pod["spec"]["schedulingGroup"]["podGroupName"]] += 1
            room[pod["spec"]["nodeName"]] -= milli(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"])
    partial = sum(size < members for size in sizes.values())
    over = sum(left < 0 for left in room.values())
    return f"{len(sizes) - partial} gangs whole, {partial} partial, {over} nodes over-committed, {rejected} rejected"


def measure(names: list[str], gangs: int, members: int, nodes: int, options: list[str]) -> float:
    with tempfile.TemporaryDirectory() as data, cluster("up", "--nodes", str(nodes), data=data) as (target, _):
        _run(post, (target, GROUPS, [pod_group(f"g{n:04d}", members) for n in range(gangs)]))
        bodies = [
            member(f"g{n:04d}-{m}", f"g{n:04d}", names[n % len(names)])
            for n, m in itertools.product(range(gangs), range(members))
        ]
        _run(post, (target, PODS, bodies))
        time.sleep(1)
        kubeconfig = Path(data) / "kubeconfig"
        first, last, count = _run(watch, (target, len(bodies), str(kubeconfig), names, options))
        rate = count / (last - first) if count else 0.0
        print(f"{len(names)} scheduler(s): {count} of {len(bodies)} pods bound at {rate:,.0f}/s;", end=" ")
        print(judge(kubeconfig, members), flush=True)
    return rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gangs", type=int, default=200)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--turns", type=int, default=1, help="repetitions")
    parser.add_argument("--no-lease", action="store_true", help="two schedulers that do not know of each other")
    given = parser.parse_args()
    options = ["--placement-lease", ""] if given.no_lease else []
    for _ in range(given.turns):
        one = measure(["one"], given.gangs, given.members, given.nodes, options)
        two = measure(["one", "two"], given.gangs, given.members, given.nodes, options)
        print(f"two together reach {two / one:.0%} of one", flush=True)


if __name__ == "__main__":
    main()
