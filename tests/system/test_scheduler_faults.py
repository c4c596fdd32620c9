"""`phalanx scheduler` when its API server dies under it, when it is not alone, and when connections go silent."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from phalanx.base import informer
from phalanx.base.client import Resource
from phalanx.base.errors import ApiProblem, Unreachable
from phalanx.base.informer import Informer, ObjectChange
from phalanx.base.retry import retrying
from phalanx.kube import client as http
from phalanx.kube.client import HttpClient
from phalanx.kube.config import load
from support.manifests import node, pod
from support.processes import Phalanx, Server, free_port
from support.waiting import eventually_async

PODS = Resource("", "v1", "pods", "Pod")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
Json = dict[str, Any]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[type[Any]], Any]]:
    running: list[Phalanx] = []

    def go(kind: type[Any]) -> Any:
        running.append(kind(tmp_path) if kind is Server else kind())
        return running[-1]

    yield go
    for process in reversed(running):
        process.close()


def schedule(scheduler: Phalanx, kubeconfig: Path) -> None:
    where = ("--kubeconfig", str(kubeconfig), "--no-leader-elect")
    scheduler.start("scheduler", *where, "--health", "127.0.0.1:0", "--log-level", "error")


async def pods_of(client: HttpClient) -> list[Json]:
    found: list[Json] = json.loads(await client.list(PODS, "default"))["items"]
    return found


async def until_bound(client: HttpClient, count: int) -> list[Json]:
    found: list[Json] = []
    try:
        async with asyncio.timeout(60):
            while True:
                try:
                    found = await pods_of(client)
                    if len(found) == count and all(item["spec"].get("nodeName") for item in found):
                        return found
                except ApiProblem:
                    pass
                await asyncio.sleep(0.05)
    except TimeoutError:
        lost = [item["metadata"]["name"] for item in found if not item["spec"].get("nodeName")]
        raise AssertionError(f"{len(found)} pods, without a node: {lost}") from None


def used(pods: list[Json]) -> Counter[str]:
    return Counter(item["spec"]["nodeName"] for item in pods)


def play(kubeconfig: Path, scenario: Callable[[HttpClient], Awaitable[None]]) -> None:
    async def main() -> None:
        async with HttpClient(load(kubeconfig), timeout=10) as client, asyncio.timeout(240):
            await scenario(client)

    asyncio.run(main())


async def create_surely(client: HttpClient, resource: Resource, body: Json, namespace: str = "") -> None:
    """Whatever happens to the server meanwhile; a repeat of a create that was done counts as done."""
    while True:
        try:
            await client.create(resource, body, namespace)
            return
        except Unreachable:
            await asyncio.sleep(0.02)
        except ApiProblem as problem:
            if problem.reason == "AlreadyExists":
                return
            raise


@pytest.mark.slow
def test_a_scheduler_survives_restarts_of_its_server_and_loses_no_pod(start: Callable[[type[Any]], Any]) -> None:
    server, scheduler = start(Server), start(Phalanx)
    server.live()
    schedule(scheduler, server.kubeconfig)

    async def scenario(client: HttpClient) -> None:
        for number in range(10):
            await client.create(NODES, node(f"n{number}", 16, pods=200))
        made = 0

        async def create() -> None:
            nonlocal made
            for number in range(150):
                await create_surely(client, PODS, pod(f"p{number:03d}", "1"), "default")
                made += 1

        creating = asyncio.create_task(create())
        for life in range(1, 6):  # each dies while pods are being made and others bound
            await eventually_async(lambda made_by=life * 25: made >= made_by, "more pods", 200)
            server.kill()
            await asyncio.to_thread(server.live)
        await creating
        pods = await until_bound(client, 150)
        assert max(used(pods).values()) <= 16

    play(server.kubeconfig, scenario)


@pytest.mark.slow
def test_two_schedulers_of_one_name_bind_each_pod_once_and_fill_no_node_twice(
    start: Callable[[type[Any]], Any],
) -> None:
    """They know nothing of each other: no lease. Both see all pods and race for every one of them."""
    server = start(Server)
    server.live()
    for _ in range(2):
        schedule(start(Phalanx), server.kubeconfig)

    async def scenario(client: HttpClient) -> None:
        for number in range(8):
            await client.create(NODES, node(f"n{number}", 16, pods=200))
        await asyncio.gather(*(client.create(PODS, pod(f"p{n:03d}", "1"), "default") for n in range(112)))
        pods = await until_bound(client, 112)
        assert max(used(pods).values()) <= 16
        again = {item["metadata"]["uid"]: item["spec"]["nodeName"] for item in await pods_of(client)}
        assert again == {item["metadata"]["uid"]: item["spec"]["nodeName"] for item in pods}

    play(server.kubeconfig, scenario)


class SilentProxy:
    """Passes bytes on to a port until asked to fall silent: connections stay open, nothing comes any more."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self._target = target
        self._silent = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> SilentProxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._target)
        generation = self._silent
        for pair in ((reader, up_writer), (up_reader, writer)):
            task = asyncio.create_task(self._pump(*pair, generation))
            self._tasks.add(task)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, silent: asyncio.Event) -> None:
        while data := await reader.read(65536):
            if silent.is_set():
                await asyncio.Event().wait()  # for ever: half open
            writer.write(data)
            await writer.drain()
        writer.close()

    def fall_silent(self) -> None:
        """The connections there are; new ones work."""
        self._silent.set()
        self._silent = asyncio.Event()


def test_watches_on_connections_that_fell_silent_are_given_up_and_resumed(
    start: Callable[[type[Any]], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(informer, "WATCH_SECONDS", 1.0)
    monkeypatch.setattr(http, "WATCH_GRACE", 0.5)
    server = start(Server)
    server.live()
    names: set[str] = set()

    def follow(change: ObjectChange[Json]) -> None:
        (names.add if change.object is not None else names.discard)(change.name)

    async def scenario(client: HttpClient) -> None:
        async with SilentProxy(server.port) as proxy:
            config = tmp_path / "through-proxy"
            config.write_text(server.kubeconfig.read_text().replace(f":{server.port}", f":{proxy.port}"))
            async with HttpClient(load(config), timeout=2) as through:
                task = asyncio.create_task(Informer(through, NODES, dict[str, Any], follow).run())
                await client.create(NODES, node("before", 16, pods=200))
                await eventually_async(lambda: "before" in names, "the first node")
                proxy.fall_silent()
                await client.create(NODES, node("after", 16, pods=200))
                await eventually_async(lambda: "after" in names, "the watch notices the silence", 200)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    play(server.kubeconfig, scenario)


def test_a_call_on_a_connection_that_fell_silent_ends_and_can_be_repeated(
    start: Callable[[type[Any]], Any], tmp_path: Path
) -> None:
    server = start(Server)
    server.live()

    async def scenario(client: HttpClient) -> None:
        async with SilentProxy(server.port) as proxy:
            config = tmp_path / "through-proxy"
            config.write_text(server.kubeconfig.read_text().replace(f":{server.port}", f":{proxy.port}"))
            async with HttpClient(load(config), timeout=1) as through:
                await through.create(NODES, node("first", 16, pods=200))
                proxy.fall_silent()
                found = json.loads(await retrying(lambda: through.get(NODES, "first"), random.Random(1)))
                assert found["metadata"]["name"] == "first"

    play(server.kubeconfig, scenario)
