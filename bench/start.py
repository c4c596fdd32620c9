"""How long a scheduler takes to start on a large cluster, and until it places its first gang.

    python bench/start.py [--nodes N] [--pods N] [--kubeconfig FILE]

Without --kubeconfig a `phalanx apiserver` is started. The cluster is filled through the API: nodes, and pods that are
bound to them (objects that exist are left as they are, so that a second run on one kubeconfig is short). Then the
scheduler starts as a process of its own: times count from its start to its `ready` line, when its caches are filled,
and until a gang of 8 that was pending before is bound.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from api import node, pod
from e2e import pod_group
from phalanx.base.errors import AlreadyExists
from phalanx.kube.client import HttpClient
from phalanx.kube.config import load

CALLERS = 64
MEMBERS = 8
PODS = "/api/v1/namespaces/default/pods"
GROUPS = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups"
NAME = "phalanx"


def bound_pod(number: int, nodes: int) -> bytes:
    """A pod of a size and shape as a job controller makes it, which runs on a node."""
    made = json.loads(pod(f"pod-{number:06d}"))
    made["spec"]["nodeName"] = f"node-{number % nodes:05d}"
    del made["spec"]["containers"][0]["resources"]["limits"]
    made["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "100m", "memory": "500Mi"}
    return json.dumps(made).encode()


def member(gang: str, number: int) -> bytes:
    made = json.loads(pod(f"{gang}-{number}"))
    made["spec"] |= {"schedulerName": NAME, "schedulingGroup": {"podGroupName": gang}}
    return json.dumps(made).encode()


async def create(client: HttpClient, path: str, bodies: Iterator[bytes]) -> None:
    async def caller() -> None:
        for body in bodies:
            try:
                await client.request("POST", path, body=body)
            except AlreadyExists:
                continue

    await asyncio.gather(*(caller() for _ in range(CALLERS)))


async def fill(kubeconfig: str, nodes: int, pods: int) -> None:
    began = time.perf_counter()
    async with HttpClient(load(kubeconfig), connections=CALLERS) as client:
        await create(client, "/api/v1/nodes", (node(f"node-{number:05d}") for number in range(nodes)))
        await create(client, PODS, (bound_pod(number, nodes) for number in range(pods)))
    print(f"{nodes:,} nodes and {pods:,} bound pods made in {time.perf_counter() - began:.0f} s", flush=True)


async def make_gang(kubeconfig: str, gang: str) -> None:
    async with HttpClient(load(kubeconfig)) as client:
        await create(client, GROUPS, iter([pod_group(gang, MEMBERS)]))
        await create(client, PODS, (member(gang, number) for number in range(MEMBERS)))


async def until_bound(kubeconfig: str, gang: str) -> None:
    async with HttpClient(load(kubeconfig)) as client:
        for number in range(MEMBERS):
            while not json.loads(await client.request("GET", f"{PODS}/{gang}-{number}"))["spec"].get("nodeName"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)


@contextmanager
def server() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "phalanx", "apiserver", "--data", directory, "--listen", "127.0.0.1:0"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield str(Path(directory) / "kubeconfig")
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def resident(pid: int) -> float:
    """MiB of memory."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def measure(kubeconfig: str) -> None:
    gang = f"gang-{time.time_ns() % 10**9}"
    asyncio.run(make_gang(kubeconfig, gang))
    command = [sys.executable, "-m", "phalanx", "scheduler", "--kubeconfig", kubeconfig, "--scheduler-name", NAME]
    began = time.perf_counter()
    process = subprocess.Popen(
        [*command, "--no-leader-elect", "--health", "127.0.0.1:0", "--log-level", "warning"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        if not process.stdout.readline().startswith("ready"):
            raise SystemExit("the scheduler did not start")
        ready, cpu = time.perf_counter() - began, cpu_seconds(process.pid)
        asyncio.run(until_bound(kubeconfig, gang))
        bound = time.perf_counter() - began
        memory = resident(process.pid)
        print(
            f"ready after {ready:.1f} s ({cpu:.1f} s of CPU time), first gang bound after {bound:.1f} s, "
            f"{memory:,.0f} MiB resident",
            flush=True,
        )
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=100_000)
    parser.add_argument("--kubeconfig", default="", help="a cluster that exists; its pods in `default` are added to")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()

    def rounds(kubeconfig: str) -> None:
        asyncio.run(fill(kubeconfig, options.nodes, options.pods))
        for _ in range(options.rounds):
            measure(kubeconfig)

    if options.kubeconfig:
        rounds(options.kubeconfig)
    else:
        with server() as kubeconfig:
            rounds(kubeconfig)


if __name__ == "__main__":
    main()
