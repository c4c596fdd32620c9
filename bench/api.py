"""How fast and how large the local API server is. Run: python bench/api.py [creates] [watch] [large] [up]

The server runs in a process of its own, the load in others, all on this machine: figures include both sides.
"""

from __future__ import annotations

import asyncio
import base64
import json
import multiprocessing
import os
import re
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import uvloop
import yaml

PODS = "/api/v1/namespaces/default/pods"


@dataclass(frozen=True)
class Target:
    url: str
    ca: str
    token: str
    pid: int = 0

    @classmethod
    def read(cls, kubeconfig: Path, pid: int) -> Target:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        ca = base64.b64decode(cluster["certificate-authority-data"]).decode()
        return cls(cluster["server"], ca, config["users"][0]["user"]["token"], pid)

    def session(self, connections: int) -> aiohttp.ClientSession:
        tls = ssl.create_default_context(cadata=self.ca)
        connector = aiohttp.TCPConnector(ssl=tls, limit=connections)
        timeout = aiohttp.ClientTimeout(total=None)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        return aiohttp.ClientSession(
            self.url, connector=connector, headers=headers, timeout=timeout, read_bufsize=1 << 20
        )

    def memory(self) -> float:
        """Resident MiB."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]

    def cpu(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def cluster(*arguments: str) -> Iterator[tuple[Target, str]]:
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "phalanx", *arguments, "--data", directory, "--listen", "127.0.0.1:0"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            yield Target.read(Path(directory) / "kubeconfig", process.pid), line.strip()
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def pod(name: str) -> bytes:
    """About the size of a pod that a job controller makes."""
    container = {
        "name": "main",
        "image": "registry.example.com/team/trainer:1.2.3",
        "command": ["python", "-m", "train", "--config", "/etc/train/config.yaml"],
        "resources": {"requests": {"cpu": "4", "memory": "16Gi"}, "limits": {"nvidia.com/gpu": "1"}},
        "env": [{"name": f"VARIABLE_{n}", "value": f"value-{n}"} for n in range(8)],
        "volumeMounts": [{"name": "config", "mountPath": "/etc/train"}],
    }
    spec = {"containers": [container], "volumes": [{"name": "config", "configMap": {"name": "train"}}]}
    metadata = {"name": name, "labels": {"app": "train", "job-name": "train", "index": name}}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}).encode()


class RawClient(asyncio.Protocol):
    """One keep-alive connection that posts bodies one after the other, at little cost of its own."""

    def __init__(self, head: bytes, bodies: Iterator[bytes]) -> None:
        self._head, self._bodies = head, bodies
        self._left = 0  # bytes of the present answer still to come
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._next()

    def _next(self) -> None:
        body = next(self._bodies, None)
        if body is None:
            self._transport.close()
            self.done.set_result(None)
        else:
            self._transport.write(self._head % len(body) + body)

    def data_received(self, data: bytes) -> None:
        if self._left:
            self._left -= len(data)
        else:
            head, _, rest = data.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 201"), data
            self._left = int(re.search(rb"content-length: (\d+)", head)[1]) - len(rest)  # type: ignore[index]
        if not self._left:
            self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionResetError())


async def create_pods(target: Target, prefix: str, count: int, clients: int) -> float:
    """Pods per second, each client waiting for its answer before the next."""
    bodies = iter([pod(f"{prefix}-{n:06d}") for n in range(count)])
    where = urlsplit(target.url)
    host, port = str(where.hostname), int(where.port or 443)
    head = (
        f"POST {PODS} HTTP/1.1\r\nHost: {where.netloc}\r\nAuthorization: Bearer {target.token}\r\n"
        "Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    ).encode()
    tls = ssl.create_default_context(cadata=target.ca)
    loop = asyncio.get_running_loop()
    started = time.perf_counter()
    made = [loop.create_connection(lambda: RawClient(head, bodies), host, port, ssl=tls) for _ in range(clients)]
    await asyncio.gather(*(protocol.done for _, protocol in await asyncio.gather(*made)))
    return count / (time.perf_counter() - started)


def in_process(function: Any, *arguments: Any) -> Any:
    """Run an async function in a process of its own and give back its result."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_run, (function, arguments))


def _run(function: Any, arguments: tuple[Any, ...]) -> Any:
    return uvloop.run(function(*arguments))


def creates(count: int = 10_000) -> None:
    with cluster("apiserver") as (target, _):
        in_process(create_pods, target, "warm", 500, 64)
        before = target.cpu()
        rate = in_process(create_pods, target, "pod", count, 64)
        busy = (target.cpu() - before) / count * 1e6
        print(f"durable creates, 64 clients over TLS: {rate:,.0f}/s (server CPU {busy:.0f} µs each)")


async def follow(target: Target, watchers: int, events: int) -> tuple[float, int]:
    """Seconds from the first to the last event, and the fewest events any watcher saw."""
    async with target.session(watchers) as session:
        counts = [0] * watchers
        first = [0.0]

        async def one(index: int) -> None:
            async with session.get(PODS, params={"watch": "true", "resourceVersion": "0"}) as reply:
                async for piece in reply.content.iter_any():
                    first[0] = first[0] or time.perf_counter()
                    counts[index] += piece.count(b'{"type":"')
                    if counts[index] >= events:
                        return

        await asyncio.gather(*(one(index) for index in range(watchers)))
        return time.perf_counter() - first[0], min(counts)


async def create_steadily(target: Target, rate: int, seconds: int) -> float:
    """Creates at a given rate; the rate reached."""
    async with target.session(64) as session:
        started = time.perf_counter()
        pending: set[asyncio.Task[None]] = set()

        async def one(number: int) -> None:
            async with session.post(PODS, data=pod(f"steady-{number:06d}")) as reply:
                await reply.read()

        for number in range(rate * seconds):
            task = asyncio.create_task(one(number))
            pending.add(task)
            task.add_done_callback(pending.discard)
            ahead = number / rate - (time.perf_counter() - started)
            if ahead > 0:
                await asyncio.sleep(ahead)
        await asyncio.gather(*pending)
        return rate * seconds / (time.perf_counter() - started)


def watch(watchers: int = 100, rate: int = 1000, seconds: int = 10) -> None:
    with cluster("apiserver") as (target, _), multiprocessing.get_context("spawn").Pool(2) as pool:
        before = target.cpu()
        following = pool.apply_async(_run, (follow, (target, watchers, rate * seconds)))
        time.sleep(2)  # the watchers connect
        reached = pool.apply(_run, (create_steadily, (target, rate, seconds)))
        took, fewest = following.get(120)
        share = (target.cpu() - before) / took
        print(
            f"{watchers} watchers: each saw {fewest:,} of {rate * seconds:,} changes in {took:.1f} s, "
            f"creates at {reached:,.0f}/s (server CPU {share:.0%} of a core)"
        )


async def list_once(target: Target) -> tuple[float, int]:
    async with target.session(1) as session:
        started = time.perf_counter()
        size = 0
        async with session.get(PODS) as reply:
            async for piece in reply.content.iter_any():
                size += len(piece)
        return time.perf_counter() - started, size


def large(pods: int = 50_000, nodes: int = 5_000) -> None:
    with cluster("up", "--nodes", str(nodes), "--no-controllers") as (target, line):
        print(line)
        print(f"{nodes:,} nodes: {target.memory():,.0f} MiB")
        rate = in_process(create_pods, target, "pod", pods, 64)
        print(f"{pods:,} pods created at {rate:,.0f}/s; with {nodes:,} nodes: {target.memory():,.0f} MiB")
        took, size = in_process(list_once, target)
        print(f"list of {pods:,} pods: {took:.2f} s, {size / 1e6:,.0f} MB; then {target.memory():,.0f} MiB")
        last = in_process(create_pods, target, "last", 2000, 64)
        print(f"creates with {pods:,} pods there: {last:,.0f}/s")


def up(nodes: int = 5_000) -> None:
    started = time.perf_counter()
    with cluster("up", "--nodes", str(nodes), "--topology", "zones=2,blocks=10,racks=100"):
        print(f"phalanx up --nodes {nodes}: ready in {time.perf_counter() - started:.1f} s")


SUITES: dict[str, Callable[[], None]] = {"creates": creates, "watch": watch, "large": large, "up": up}

if __name__ == "__main__":
    for chosen in sys.argv[1:] or SUITES:
        SUITES[chosen]()
