"""kill -9 of the whole API server in the middle of a storm of writes over HTTPS, fifty times."""

from __future__ import annotations

import asyncio
import json
import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from phalanx.base.client import Resource
from phalanx.base.errors import AlreadyExists, ApiProblem, NotFound, Unreachable
from phalanx.base.informer import Informer, ObjectChange
from phalanx.kube.client import HttpClient
from phalanx.kube.config import load
from support.processes import Server

CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
ROUNDS = 50
WRITERS = 8
Json = dict[str, Any]


@dataclass(frozen=True)
class State:
    """Of one object: which write made it what it is; gone: the write was its deletion."""

    number: int = 0
    gone: bool = True
    version: str = ""  # of an acknowledged write


@dataclass
class Ledger:
    """Per object: what was acknowledged last, and what was asked for since without an answer."""

    acknowledged: dict[str, State] = field(default_factory=dict)
    asked: dict[str, list[State]] = field(default_factory=dict)
    count: int = 0
    top: int = 0  # highest acknowledged revision

    def done(self, name: str, number: int, answer: bytes, gone: bool) -> None:
        # The answer of a deletion is a Status, or the object that went; its revision is not promised.
        version = "" if gone else str(json.loads(answer)["metadata"]["resourceVersion"])
        self.acknowledged[name] = State(number, gone, version)
        self.asked.pop(name, None)
        self.count += 1
        self.top = max(self.top, int(version or 0))


def body(name: str, number: int) -> Json:
    text = f"{name}:{number}:" * 100
    data = {"number": str(number), "text": text, "sum": str(zlib.crc32(text.encode()))}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


class Storm:
    def __init__(self, client: HttpClient) -> None:
        self.ledger = Ledger()
        self.up = asyncio.Event()
        self._client = client

    async def write(self, me: int) -> None:
        number = 0
        while True:
            await self.up.wait()
            number += 1
            name = f"w{me}-{number % 4}"
            gone = number % 7 == 0
            self.ledger.asked.setdefault(name, []).append(State(number, gone))
            try:
                answer = await self._one(name, number, gone)
            except Unreachable:
                self.up.clear()
                continue
            self.ledger.done(name, number, answer, gone)

    async def _one(self, name: str, number: int, gone: bool) -> bytes:
        client = self._client
        if gone:
            try:
                return await client.delete(CONFIG_MAPS, name, "default")
            except NotFound:
                return b""
        try:
            return await client.patch(CONFIG_MAPS, name, {"data": body(name, number)["data"]}, "default")
        except NotFound:
            pass
        try:
            return await client.create(CONFIG_MAPS, body(name, number), "default")
        except AlreadyExists as problem:
            raise AssertionError(f"{name} was not there a moment ago, and no other client writes it") from problem

    async def acknowledgements(self, more: int) -> None:
        wanted = self.ledger.count + more
        async with asyncio.timeout(90):
            while self.ledger.count < wanted:
                await asyncio.sleep(0.002)


async def listed(client: HttpClient) -> tuple[dict[str, Json], int]:
    while True:
        try:
            found = json.loads(await client.list(CONFIG_MAPS, "default"))
        except ApiProblem:
            await asyncio.sleep(0.02)
            continue
        return {item["metadata"]["name"]: item for item in found["items"]}, int(found["metadata"]["resourceVersion"])


def check(ledger: Ledger, objects: dict[str, Json], revision: int) -> None:
    assert revision >= ledger.top, "acknowledged revisions are missing"
    for name, last in ledger.acknowledged.items():
        possible = [last, *ledger.asked.get(name, ())]
        obj = objects.get(name)
        if obj is None:
            assert any(state.gone for state in possible), (name, possible)
            continue
        number, version = int(obj["data"]["number"]), obj["metadata"]["resourceVersion"]
        match = [state for state in possible if not state.gone and state.number == number]
        assert match, (name, number, possible)
        assert not match[0].version or match[0].version == version, (name, version, match)
    for name, obj in objects.items():
        if name.startswith("w"):
            data = obj["data"]
            assert zlib.crc32(data["text"].encode()) == int(data["sum"]), f"{name} is half there"
            assert data == body(name, int(data["number"]))["data"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.close()


@pytest.mark.slow
def test_every_acknowledged_object_survives_and_watches_go_on(server: Server) -> None:
    rng = random.Random(50)
    mirror: dict[str, Json] = {}

    def follow(change: ObjectChange[Json]) -> None:
        if change.object is None:
            del mirror[change.name]
        else:
            known = mirror.get(change.name, {"metadata": {"resourceVersion": "0"}})
            assert int(change.object["metadata"]["resourceVersion"]) > int(known["metadata"]["resourceVersion"])
            mirror[change.name] = change.object
            for name in ("apiVersion", "kind"):  # a watch says them, items of a list do not
                mirror[change.name].pop(name, None)

    async def scenario() -> None:
        await asyncio.to_thread(server.live)
        async with HttpClient(load(server.kubeconfig), timeout=5) as client, asyncio.timeout(240):
            storm = Storm(client)
            informer = Informer(client, CONFIG_MAPS, dict[str, Any], follow, namespace="default")
            tasks = [asyncio.create_task(storm.write(me)) for me in range(WRITERS)]
            tasks.append(asyncio.create_task(informer.run()))
            for _ in range(ROUNDS):
                storm.up.set()
                await storm.acknowledgements(rng.randrange(5, 60))
                server.kill()
                while storm.up.is_set():  # a writer has noticed
                    await asyncio.sleep(0.002)
                await asyncio.to_thread(server.live)
                objects, revision = await listed(client)
                check(storm.ledger, objects, revision)
                for task in tasks:
                    assert not task.done(), task
            objects, _ = await listed(client)
            while mirror != objects:  # ends in the timeout above if the watch had lost something
                await asyncio.sleep(0.02)
                objects, _ = await listed(client)
            assert len(storm.ledger.acknowledged) == WRITERS * 4
            assert informer.relists == 0, "the server forgot what a watch had not seen yet"
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(scenario())
