"""Following a resource: complete, in order, and across whatever the server forgets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from phalanx.base.client import Resource, WatchEvent
from phalanx.base.errors import Expired, Unreachable
from phalanx.base.informer import Informer, ObjectChange
from phalanx.kube.client import HttpClient
from support.http_client import CONFIG_MAPS, config_map, eventually


class Mirror:
    """What an informer's sink makes of the changes."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.log: list[str] = []

    def take(self, change: ObjectChange[dict[str, Any]]) -> None:
        if change.name == "kube-root-ca.crt":
            return  # every namespace has it
        if change.object is None:
            del self.objects[change.name]
            self.log.append(f"-{change.name}")
        else:
            self.objects[change.name] = change.object
            self.log.append(f"+{change.name}")


def informer(client: Any, mirror: Mirror, namespace: str, **options: Any) -> Informer[dict[str, Any]]:
    return Informer(client, CONFIG_MAPS, dict[str, Any], mirror.take, namespace=namespace, **options)


def test_the_mirror_follows_the_server(run, namespace):
    async def follow(client: HttpClient) -> None:
        await client.create(CONFIG_MAPS, config_map("before"), namespace)
        mirror = Mirror()
        task = asyncio.create_task(informer(client, mirror, namespace).run())
        await eventually(lambda: "before" in mirror.objects, "the list")
        await client.create(CONFIG_MAPS, config_map("after"), namespace)
        await client.patch(CONFIG_MAPS, "after", {"data": {"x": "1"}}, namespace)
        await client.delete(CONFIG_MAPS, "before", namespace)
        await eventually(lambda: mirror.log[-1:] == ["-before"], "the deletion")
        assert mirror.log == ["+before", "+after", "+after", "-before"]
        assert mirror.objects["after"]["data"] == {"x": "1"}
        task.cancel()

    run(follow)


class Forgetful:
    """A client whose watch says 410 once, after things have happened that it never told."""

    def __init__(self, inner: HttpClient, meanwhile: Any) -> None:
        self._inner, self._meanwhile, self.watches = inner, meanwhile, 0

    async def list(self, *args: Any, **kwargs: Any) -> bytes:
        return await self._inner.list(*args, **kwargs)

    async def watch(self, *args: Any, **kwargs: Any) -> AsyncIterator[WatchEvent]:
        self.watches += 1
        if self.watches == 1:
            await self._meanwhile()
            raise Expired("too old resource version")
        async for event in self._inner.watch(*args, **kwargs):
            yield event


def test_after_410_only_the_differences_are_passed_on(run, namespace):
    async def follow(client: HttpClient) -> None:
        for name in ("stays", "goes", "replaced"):
            await client.create(CONFIG_MAPS, config_map(name), namespace)

        async def meanwhile() -> None:
            await client.delete(CONFIG_MAPS, "goes", namespace)
            await client.delete(CONFIG_MAPS, "replaced", namespace)
            await client.create(CONFIG_MAPS, config_map("replaced", new="yes"), namespace)
            await client.create(CONFIG_MAPS, config_map("comes"), namespace)

        mirror, forgetful = Mirror(), Forgetful(client, meanwhile)
        follower = informer(forgetful, mirror, namespace)
        task = asyncio.create_task(follower.run())
        await eventually(lambda: forgetful.watches == 2, "the second watch")
        later = sorted(mirror.log[3:])
        # An object made anew under the same name is another object: gone first, then there.
        assert later == sorted(["-goes", "-replaced", "+replaced", "+comes"])
        assert mirror.log.index("-replaced") < len(mirror.log) - 1
        assert follower.relists == 1
        task.cancel()

    run(follow)


def test_an_absent_optional_resource_counts_as_empty(run):
    async def follow(client: HttpClient) -> None:
        mirror = Mirror()
        nowhere = Resource("no.such.group", "v1", "things", "Thing")
        follower: Informer[dict[str, Any]] = Informer(client, nowhere, dict[str, Any], mirror.take, optional=True)
        task = asyncio.create_task(follower.run())
        await follower.synced.wait()
        assert mirror.objects == {}
        task.cancel()

    run(follow)


def test_an_unreadable_object_does_not_stop_the_others(run, namespace):
    View = msgspec.defstruct("View", [("data", dict[str, int], msgspec.field(default_factory=dict))])

    async def follow(client: HttpClient) -> None:
        await client.create(CONFIG_MAPS, config_map("bad", x="text"), namespace)
        await client.create(CONFIG_MAPS, config_map("good"), namespace)
        seen: list[str] = []
        follower = Informer(client, CONFIG_MAPS, View, lambda change: seen.append(change.name), namespace=namespace)
        task = asyncio.create_task(follower.run())
        await follower.synced.wait()
        assert seen == ["good"]
        task.cancel()

    run(follow)


def test_pages_are_put_together(run, namespace, monkeypatch):
    monkeypatch.setattr("phalanx.base.informer.PAGE", 3)

    async def follow(client: HttpClient) -> None:
        for number in range(8):
            await client.create(CONFIG_MAPS, config_map(f"c{number}"), namespace)
        mirror = Mirror()
        follower = informer(client, mirror, namespace)
        task = asyncio.create_task(follower.run())
        await follower.synced.wait()
        assert sorted(mirror.objects) == [f"c{number}" for number in range(8)]
        task.cancel()

    run(follow)


class PutBack:
    """A server that breaks off, comes back with the state of a backup, and has nothing to say to whoever asks for what
    comes after a revision that it has yet to reach (as kube-apiserver)."""

    def __init__(self) -> None:
        self.revision = 100
        self.objects = {"stays": 60, "changed": 95, "made": 97}
        self.waiting_for: list[str] = []

    async def list(self, *_: Any, **__: Any) -> bytes:
        items = [
            {"metadata": {"name": name, "namespace": "x", "uid": name, "resourceVersion": str(version)}}
            for name, version in self.objects.items()
        ]
        return msgspec.json.encode({"metadata": {"resourceVersion": str(self.revision)}, "items": items})

    async def watch(self, *_: Any, resource_version: str, **__: Any) -> AsyncIterator[WatchEvent]:
        self.waiting_for.append(resource_version)
        if len(self.waiting_for) == 1:
            self.revision, self.objects = 80, {"stays": 60, "changed": 70, "deleted since": 65}
            raise Unreachable("connection reset by peer")
        await asyncio.Event().wait()
        yield WatchEvent("BOOKMARK", b"")


def test_a_server_that_was_put_back_to_an_earlier_state_is_read_anew():
    async def follow() -> None:
        mirror, server = Mirror(), PutBack()
        task = asyncio.create_task(informer(server, mirror, "x").run())
        await eventually(lambda: len(server.waiting_for) == 2, "the second watch")
        assert server.waiting_for == ["100", "80"]
        assert sorted(mirror.objects) == ["changed", "deleted since", "stays"]
        assert mirror.objects["changed"]["metadata"]["resourceVersion"] == "70"
        # What was put back is another object than the one it was: nobody is told that a pod lost its node.
        assert mirror.log.index("-changed") == len(mirror.log) - 1 - mirror.log[::-1].index("+changed") - 1
        task.cancel()

    asyncio.run(follow())
