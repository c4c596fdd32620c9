"""How long a small get takes while others do their worst: watchers, idle connections and one client that floods.

    python bench/fairness.py [--watchers 1000] [--idle 1000] [--flood 64] [--seconds 10]

Starts an API server in a process of its own and plays the clients in this one. Prints the percentiles of a small get
alone and under load; nothing is judged here.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import resource
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import yaml

from progress import announced

PODS = 200  # what the flood lists again and again


class Client:
    """HTTP/1.1 on one connection, as little work as possible."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext, token: str, agent: str) -> None:
        self._where = (host, port, tls)
        self._head = f"Host: x\r\nAuthorization: Bearer {token}\r\nUser-Agent: {agent}/1\r\n"

    async def open(self) -> Client:
        host, port, tls = self._where
        self._reader, self._writer = await asyncio.open_connection(host, port, ssl=tls, server_hostname=host)
        return self

    async def send(self, method: str, path: str, body: bytes = b"") -> None:
        length = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
        self._writer.write(f"{method} {path} HTTP/1.1\r\n{self._head}{length}\r\n".encode() + body)
        await self._writer.drain()

    async def ask(self, method: str, path: str, body: bytes = b"") -> int:
        await self.send(method, path, body)
        head = await self._reader.readuntil(b"\r\n\r\n")
        if b"content-length: " in head:
            await self._reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
        else:
            while size := int(await self._reader.readline(), 16):
                await self._reader.readexactly(size + 2)
            await self._reader.readline()
        return int(head.split(b" ", 2)[1])

    async def swallow(self) -> None:
        with contextlib.suppress(OSError):
            while await self._reader.read(1 << 16):
                pass


def start(directory: str) -> tuple[subprocess.Popen[str], Path]:
    kubeconfig = Path(directory) / "kubeconfig"
    command = [sys.executable, "-m", "phalanx", "apiserver", "--data", f"{directory}/data", "--listen", "127.0.0.1:0"]
    server = subprocess.Popen([*command, "--kubeconfig", str(kubeconfig)], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    while not (line := server.stdout.readline()).startswith("ready"):
        assert line, "the server did not start"
    return server, kubeconfig


def percentiles(times: list[float]) -> str:
    ordered = sorted(times)
    at = {share: ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in (0.5, 0.99)}
    half, most, worst = (each * 1e3 for each in (at[0.5], at[0.99], ordered[-1]))
    return f"p50 {half:6.1f} ms  p99 {most:6.1f} ms  worst {worst:6.1f} ms  n={len(ordered)}"


async def gets(client: Client, seconds: float) -> list[float]:
    times = []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        assert await client.ask("GET", "/api/v1/namespaces/default") == 200
        times.append(time.perf_counter() - began)
        await asyncio.sleep(0.005)
    return times


async def flood(client: Client, counts: dict[int, int]) -> None:
    while True:
        code = await client.ask("GET", "/api/v1/namespaces/default/configmaps")
        counts[code] = counts.get(code, 0) + 1


def clients_of(kubeconfig: Path) -> Callable[[str], Client]:
    config = yaml.safe_load(kubeconfig.read_text())
    where = config["clusters"][0]["cluster"]["server"].removeprefix("https://")
    host, _, port = where.rpartition(":")
    token = config["users"][0]["user"]["token"]
    ca = base64.b64decode(config["clusters"][0]["cluster"]["certificate-authority-data"]).decode()
    tls = ssl.create_default_context(cadata=ca)

    def client(agent: str) -> Client:
        return Client(host, int(port), tls, token, agent)

    return client


async def main(options: argparse.Namespace, kubeconfig: Path) -> None:
    client = clients_of(kubeconfig)
    small = await client("small").open()
    for index in range(PODS):
        body = b'{"metadata":{"name":"c%d"},"data":{"text":"%s"}}' % (index, b"x" * 500)
        await small.ask("POST", "/api/v1/namespaces/default/configmaps", body)
    announced(0, 3)
    print(f"alone:      {percentiles(await gets(small, options.seconds / 2))}", flush=True)
    announced(1, 3)
    tasks = []
    for _ in range(options.watchers):
        watcher = await client("watcher").open()
        await watcher.send("GET", "/api/v1/namespaces?watch=true")
        tasks.append(asyncio.ensure_future(watcher.swallow()))
    idle = [await client("idle").open() for _ in range(options.idle)]
    for each in idle:
        await each.ask("GET", "/version")
    print(f"{options.watchers} watchers and {options.idle} idle connections:", flush=True)
    print(f"            {percentiles(await gets(small, options.seconds / 2))}", flush=True)
    announced(2, 3)
    # In a process of its own: the time it takes to read its answers is not the time the small get waits for.
    command = [sys.executable, __file__, "--play", str(kubeconfig), "--flood", str(options.flood)]
    command += ["--seconds", str(options.seconds + 4)]
    flooding = await asyncio.to_thread(lambda: subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    assert flooding.stdout is not None
    await asyncio.to_thread(flooding.stdout.readline)
    print(f"and a flood of lists on {options.flood} connections:", flush=True)
    print(f"            {percentiles(await gets(small, options.seconds))}", flush=True)
    print(f"            answers to the flood: {(await asyncio.to_thread(flooding.communicate))[0].strip()}")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def play(options: argparse.Namespace) -> None:
    client = clients_of(Path(options.play))
    counts: dict[int, int] = {}
    floods = [asyncio.ensure_future(flood(await client("flood").open(), counts)) for _ in range(options.flood)]
    print("flooding", flush=True)
    await asyncio.wait(floods, timeout=options.seconds)
    print(counts)
    for each in floods:
        each.cancel()
    await asyncio.gather(*floods, return_exceptions=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--watchers", type=int, default=1000)
    parser.add_argument("--idle", type=int, default=1000)
    parser.add_argument("--flood", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--play", default="", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.play:
        asyncio.run(play(chosen))
        raise SystemExit
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 16384), hard))
    with tempfile.TemporaryDirectory() as place:
        process, path = start(place)
        try:
            asyncio.run(main(chosen, path))
        finally:
            process.terminate()
            process.wait()
