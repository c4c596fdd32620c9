"""Binds of the scheduler on an API server, in turns with a plain loop that only binds: rates and process time per pod.

    python bench/binds.py --kubeconfig FILE [--servers PID,PID] [--pods N] [--nodes N] [--rounds N]

The loop has as many callers as the scheduler and the same client. All pods exist before a turn starts. A turn lasts
from its first bind to its last; process time is that of the caller and of the servers (kube-apiserver and etcd).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.request import urlopen

from api import node, pod
from phalanx.kube.client import HttpClient
from phalanx.kube.config import load
from phalanx.kube.executor import CALLS
from start import NAME, PODS, cpu_seconds, create

WRITES = re.compile(rb'phalanx_api_writes_total\{resource="([^"]+)",verb="([^"]+)"\} ([0-9.e+]+)')


@dataclass
class Turn:
    binds: int
    seconds: float
    caller: float  # seconds of process time
    servers: float
    others: str = ""  # writes of the same time

    @property
    def cost(self) -> float:
        """Seconds of process time per bind, of caller and servers."""
        return (self.caller + self.servers) / self.binds

    def __str__(self) -> str:
        each = 1e6 / self.binds
        return (
            f"{self.binds / self.seconds:6,.0f} binds/s; per bind {self.caller * each:5,.0f} µs caller, "
            f"{self.servers * each:5,.0f} µs servers{self.others}"
        )


def waiting(name: str, scheduler: str) -> bytes:
    made = json.loads(pod(name))
    made["spec"]["schedulerName"] = scheduler
    made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "100m", "memory": "500Mi"}}
    return json.dumps(made).encode()


async def make(kubeconfig: str, prefix: str, pods: int, scheduler: str) -> None:
    async with HttpClient(load(kubeconfig), connections=CALLS) as client:
        await create(client, PODS, (waiting(f"{prefix}-{n}", scheduler) for n in range(pods)))


def cost_of(servers: list[int]) -> float:
    return sum(map(cpu_seconds, servers))


async def loop(kubeconfig: str, prefix: str, pods: int, nodes: int, servers: list[int]) -> Turn:
    """Bind with nothing else to do."""
    await make(kubeconfig, prefix, pods, "nothing")
    numbers = iter(range(pods))

    async def caller(client: HttpClient) -> None:
        for number in numbers:
            name = f"{prefix}-{number}"
            target = {"apiVersion": "v1", "kind": "Node", "name": f"node-{number % nodes:05d}"}
            body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
            await client.request("POST", f"{PODS}/{name}/binding", body=json.dumps(body).encode())

    async with HttpClient(load(kubeconfig), connections=CALLS) as client:
        before, cpu, wall = cost_of(servers), time.process_time(), time.perf_counter()
        await asyncio.gather(*(caller(client) for _ in range(CALLS)))
        return Turn(pods, time.perf_counter() - wall, time.process_time() - cpu, cost_of(servers) - before)


@contextmanager
def scheduler(kubeconfig: str) -> Iterator[tuple[int, str]]:
    command = [sys.executable, "-m", "phalanx", "scheduler", "--kubeconfig", kubeconfig, "--scheduler-name", NAME]
    command += ["--no-leader-elect", "--no-dashboard", "--health", "127.0.0.1:0", "--log-level", "warning"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"health=(http\S+)", process.stdout.readline())
        assert found is not None
        yield process.pid, found[1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def writes(url: str) -> dict[str, int]:
    with urlopen(f"{url}/metrics", timeout=60) as answer:
        return {f"{v.decode()} {r.decode()}": int(float(n)) for r, v, n in WRITES.findall(answer.read())}


def wait_bound(kubeconfig: str, name: str) -> None:
    """Ask for one pod only: a scrape of all metrics would cost the scheduler some milliseconds each time."""

    async def bound() -> None:
        async with HttpClient(load(kubeconfig)) as client:
            while not json.loads(await client.request("GET", f"{PODS}/{name}"))["spec"].get("nodeName"):  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    asyncio.run(bound())


def scheduled(kubeconfig: str, prefix: str, pods: int, servers: list[int]) -> Turn:
    """Let the scheduler bind them; pods are tried in the order in which they were made."""
    asyncio.run(make(kubeconfig, prefix, pods, NAME))
    with scheduler(kubeconfig) as (pid, url):

        def look(name: str) -> tuple[float, float, float, dict[str, int]]:
            wait_bound(kubeconfig, name)
            found = time.perf_counter(), cpu_seconds(pid), cost_of(servers)
            return *found, writes(url)

        begin, end = look(f"{prefix}-0"), look(f"{prefix}-{pods - 1}")
    wall, caller, cost = end[0] - begin[0], end[1] - begin[1], end[2] - begin[2]
    made = {name: count - begin[3].get(name, 0) for name, count in end[3].items()}
    return Turn(made.pop("create pods/binding"), wall, caller, cost, f"; also {made}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--servers", default="", help="process ids of kube-apiserver and etcd")
    parser.add_argument("--pods", type=int, default=3000)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    servers = [int(pid) for pid in options.servers.split(",") if pid]

    async def fill() -> None:
        async with HttpClient(load(options.kubeconfig), connections=CALLS) as client:
            await create(client, "/api/v1/nodes", (node(f"node-{number:05d}") for number in range(options.nodes)))

    asyncio.run(fill())
    for number in range(options.rounds):
        prefix = f"round-{time.time_ns() % 10**9}-{number}"
        plain = asyncio.run(loop(options.kubeconfig, f"{prefix}-loop", options.pods, options.nodes, servers))
        ours = scheduled(options.kubeconfig, prefix, options.pods, servers)
        print(f"loop:      {plain}\nscheduler: {ours}")
        rate = ours.binds / ours.seconds / (plain.binds / plain.seconds)
        share = plain.servers / plain.binds / (ours.servers / ours.binds) if servers else 0.0
        whole = plain.cost / ours.cost
        print(f"of the loop: {rate:.0%} by wall time, {whole:.0%} by process time, {share:.0%} by that of the servers")


if __name__ == "__main__":
    main()
