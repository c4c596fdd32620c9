"""How fast and how large the local API server is. Run: python bench/api.py [creates] [watch] [large] [up]

The server runs in a process of its own, the load in others, all on this machine: figures include both sides.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
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

from progress import counted

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
def cluster(*arguments: str, data: str = "") -> Iterator[tuple[Target, str]]:
    with tempfile.TemporaryDirectory() as temporary:
        directory = data or temporary
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


def node(name: str) -> bytes:
    amounts = {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "8", "pods": "110"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"}
    metadata = {"name": name, "labels": {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": "a"}}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
    return json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status}).encode()


class RawClient(asyncio.Protocol):
    """One keep-alive connection that posts bodies one after the other, at little cost of its own."""

    def __init__(self, head: bytes, bodies: Iterator[bytes], wait: Callable[[], float] | None = None) -> None:
        self._head, self._bodies, self._wait = head, bodies, wait
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
            wait = self._wait() if self._wait is not None else 0.0
            if wait > 0:
                asyncio.get_running_loop().call_later(wait, self._next)
            else:
                self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionResetError())


async def connect(target: Target, make: Callable[[bytes], asyncio.Protocol], request: str, clients: int) -> list[Any]:
    """Protocols of as many connections; `request` is the request line."""
    where = urlsplit(target.url)
    head = f"{request} HTTP/1.1\r\nHost: {where.netloc}\r\nAuthorization: Bearer {target.token}\r\n".encode()
    tls = ssl.create_default_context(cadata=target.ca)
    loop = asyncio.get_running_loop()
    host, port = str(where.hostname), int(where.port or 443)
    made = [loop.create_connection(lambda: make(head), host, port, ssl=tls) for _ in range(clients)]
    return [protocol for _, protocol in await asyncio.gather(*made)]


async def create(target: Target, what: str, prefix: str, count: int, clients: int, rate: int = 0) -> float:
    """Objects per second, each client waiting for its answer before the next; `rate` is the most they may reach."""
    path, body = {"pods": (PODS, pod), "nodes": ("/api/v1/nodes", node)}[what]
    bodies = iter([body(f"{prefix}-{n:06d}") for n in range(count)])
    rest = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    started = time.perf_counter()
    turns = itertools.count(1)

    def wait() -> float:
        return started + next(turns) / rate - time.perf_counter() if rate else 0.0

    made = await connect(target, lambda head: RawClient(head + rest, bodies, wait), f"POST {path}", clients)
    await asyncio.gather(*(client.done for client in made))
    return count / (time.perf_counter() - started)


def in_process(function: Any, *arguments: Any) -> Any:
    """Run an async function in a process of its own and give back its result."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_run, (function, arguments))


def _run(function: Any, arguments: tuple[Any, ...]) -> Any:
    return uvloop.run(function(*arguments))


def creates(count: int = 10_000) -> None:
    with cluster("apiserver") as (target, _):
        in_process(create, target, "pods", "warm", 500, 64)
        before = target.cpu()
        rate = in_process(create, target, "pods", "pod", count, 64)
        busy = (target.cpu() - before) / count * 1e6
        print(f"durable creates, 64 clients over TLS: {rate:,.0f}/s (server CPU {busy:.0f} µs each)")


MARK = b'{"type":"ADDED"'


class RawWatcher(asyncio.Protocol):
    def __init__(self, head: bytes, events: int) -> None:
        self._head, self._events = head, events
        self.first = self.last = 0.0
        self.count = 0
        self._tail = b""
        self.done = asyncio.get_running_loop().create_future()

    def expect(self, events: int) -> None:
        """`done` when so many more have come."""
        self._events = self.count + events
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        transport.write(self._head + b"\r\n")

    def data_received(self, data: bytes) -> None:
        data = self._tail + data  # a mark may be cut in two
        self.count += data.count(MARK)
        self._tail = data[-len(MARK) + 1 :]
        self.last = time.perf_counter()
        self.first = self.first or (self.last if self.count else 0.0)
        if self.count >= self._events and not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


async def follow(target: Target, watchers: int, events: int) -> tuple[float, int]:
    """Seconds from the first to the last event, and the fewest events any watcher saw."""
    request = f"GET {PODS}?watch=true&resourceVersion=0"
    made = await connect(target, lambda head: RawWatcher(head, events), request, watchers)
    await asyncio.wait([watcher.done for watcher in made], timeout=25)
    first, last = min(watcher.first for watcher in made), max(watcher.last for watcher in made)
    return last - first, min(watcher.count for watcher in made)


def watch(watchers: int = 100, rate: int = 1000, seconds: int = 10) -> None:
    with cluster("apiserver") as (target, _), multiprocessing.get_context("spawn").Pool(2) as pool:
        following = pool.apply_async(_run, (follow, (target, watchers, rate * seconds)))
        time.sleep(2)  # the watchers connect
        before = target.cpu()
        reached = pool.apply(_run, (create, (target, "pods", "steady", rate * seconds, 32, rate)))
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
    with cluster("apiserver") as (target, _):
        in_process(create, target, "nodes", "node", nodes, 64)
        print(f"{nodes:,} nodes: {target.memory():,.0f} MiB")
        for part in range(5):
            rate = in_process(create, target, "pods", f"pod-{part}", pods // 5, 64)
            print(f"{pods // 5 * (part + 1):,} pods, the last at {rate:,.0f}/s: {target.memory():,.0f} MiB")
        took, size = in_process(list_once, target)
        print(f"list of {pods:,} pods: {took:.2f} s, {size / 1e6:,.0f} MB; then {target.memory():,.0f} MiB")


def up(nodes: int = 5_000) -> None:
    started = time.perf_counter()
    with cluster("up", "--nodes", str(nodes), "--topology", "zones=2,blocks=10,racks=100"):
        print(f"phalanx up --nodes {nodes}: ready in {time.perf_counter() - started:.1f} s")


SUITES: dict[str, Callable[[], None]] = {"creates": creates, "watch": watch, "large": large, "up": up}

if __name__ == "__main__":
    for chosen in counted(sys.argv[1:] or SUITES):
        SUITES[chosen]()
