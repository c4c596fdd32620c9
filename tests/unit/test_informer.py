"""Following a resource: complete, in order, and across whatever the server forgets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from phalanx.base.client import Resource, WatchEvent
from phalanx.base.errors import Expired, Forbidden, InternalError, Invalid, Unreachable
from phalanx.base.informer import Informer, ObjectChange
from phalanx.kube.client import HttpClient
from support.http_client import CONFIG_MAPS, config_map
from support.virtual_time import run as run_on_virtual_time
from support.waiting import eventually_async


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
        await eventually_async(lambda: "before" in mirror.objects, "the list")
        await client.create(CONFIG_MAPS, config_map("after"), namespace)
        await client.patch(CONFIG_MAPS, "after", {"data": {"x": "1"}}, namespace)
        await client.delete(CONFIG_MAPS, "before", namespace)
        await eventually_async(lambda: mirror.log[-1:] == ["-before"], "the deletion")
        assert mirror.log == ["+before", "+after", "+after", "-before"]
        assert mirror.objects["after"]["data"] == {"x": "1"}
        task.cancel()

    run(follow)


class Forgetful:
    """A client whose watch says 410 once, after things have happened that it never sent."""

    def __init__(self, inner: HttpClient, meanwhile: Any) -> None:
        self._inner, self._meanwhile, self.watches = inner, meanwhile, 0

    async def list(self, *args: Any, **kwargs: Any) -> bytes:
        return await self._inner.list(*args, **kwargs)

    async def watch(self, *args: Any, **kwargs: Any) -> AsyncIterator[WatchEvent]:
        if kwargs.pop("initial"):
            raise Invalid("sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled")
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
        await eventually_async(lambda: forgetful.watches == 2, "the second watch")
        later = sorted(mirror.log[3:])
        # An object made again under the same name is another object: gone first, then there.
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


class WithoutStreaming(HttpClient):
    """A server without WatchList."""

    def watch(self, *args: Any, **kwargs: Any) -> AsyncIterator[WatchEvent]:
        if kwargs.get("initial"):
            raise Invalid("sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled")
        return super().watch(*args, **kwargs)


def test_pages_are_put_together(run, namespace, monkeypatch):
    monkeypatch.setattr("phalanx.base.informer.PAGE", 3)
    monkeypatch.setattr(HttpClient, "watch", WithoutStreaming.watch)

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
    """A server that breaks off, comes back with the state of a backup, and has no answer for clients that ask for what
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

    async def watch(self, *_: Any, resource_version: str, initial: bool, **__: Any) -> AsyncIterator[WatchEvent]:
        if initial:
            raise Invalid("sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled")
        self.waiting_for.append(resource_version)
        if len(self.waiting_for) == 1:
            self.revision, self.objects = 80, {"stays": 60, "changed": 70, "deleted since": 65}
            raise Unreachable("connection reset by peer")
        await asyncio.Event().wait()
        yield WatchEvent("BOOKMARK", b"")


def test_a_server_that_was_put_back_to_an_earlier_state_is_read_again():
    async def follow() -> None:
        mirror, server = Mirror(), PutBack()
        task = asyncio.create_task(informer(server, mirror, "x").run())
        await eventually_async(lambda: len(server.waiting_for) == 2, "the second watch")
        assert server.waiting_for == ["100", "80"]
        assert sorted(mirror.objects) == ["changed", "deleted since", "stays"]
        assert mirror.objects["changed"]["metadata"]["resourceVersion"] == "70"
        # What was put back is another object than the one it was: no handler hears that a pod lost its node.
        assert mirror.log.index("-changed") == len(mirror.log) - 1 - mirror.log[::-1].index("+changed") - 1
        task.cancel()

    asyncio.run(follow())


def change(type_: str, name: str, revision: int) -> WatchEvent:
    meta = {"name": name, "namespace": "x", "uid": name, "resourceVersion": str(revision)}
    return WatchEvent(type_, msgspec.json.encode({"metadata": meta}))


def bookmark(revision: int, *, end: bool) -> WatchEvent:
    annotations = {"k8s.io/initial-events-end": "true"} if end else {}
    meta = {"resourceVersion": str(revision), "creationTimestamp": None, "annotations": annotations}
    return WatchEvent("BOOKMARK", msgspec.json.encode({"metadata": meta}))


class Streaming:
    """A server that answers each watch with the next of the given streams, and stays silent after the last."""

    def __init__(self, *streams: list[WatchEvent | Exception]) -> None:
        self._streams = list(streams)
        self.asked: list[str] = []

    async def list(self, *_: Any, limit: int = 0, **__: Any) -> bytes:
        self.asked.append("list")
        items = [msgspec.json.decode(change("", name, 3).object) for name in ("a", "b", "c")]
        return msgspec.json.encode({"metadata": {"resourceVersion": "9"}, "items": items})

    async def watch(self, *_: Any, resource_version: str, initial: bool, **__: Any) -> AsyncIterator[WatchEvent]:
        self.asked.append("initial" if initial else resource_version)
        for event in self._streams.pop(0) if self._streams else ():
            if isinstance(event, Exception):
                raise event
            yield event
        if not self._streams:
            await asyncio.Event().wait()


def follow_streams(server: Streaming, asked: int) -> tuple[Mirror, Informer[dict[str, Any]]]:
    mirror = Mirror()
    follower = informer(server, mirror, "x")

    async def follow() -> None:
        task = asyncio.create_task(follower.run())
        await eventually_async(lambda: len(server.asked) >= asked, f"{asked} requests; there were {server.asked}")
        await follower.synced.wait()
        task.cancel()

    asyncio.run(follow())
    return mirror, follower


def test_the_state_comes_through_the_watch_and_no_list_is_read():
    """Changes before the bookmark belong to the state; a bookmark without the annotation does not end it."""
    first = [
        *(change("ADDED", "a", 3), change("ADDED", "b", 4), bookmark(4, end=False)),
        *(change("MODIFIED", "a", 5), change("DELETED", "b", 6), bookmark(6, end=True), change("ADDED", "c", 7)),
    ]
    server = Streaming([*first], [])
    mirror, follower = follow_streams(server, 2)
    assert server.asked == ["initial", "7"]
    assert sorted(mirror.objects) == ["a", "c"] and mirror.objects["a"]["metadata"]["resourceVersion"] == "5"
    assert follower.newest == 7


def test_a_later_state_is_passed_on_as_differences():
    before = [change("ADDED", "a", 3), change("ADDED", "b", 4), bookmark(6, end=True)]
    after = [change("ADDED", "a", 3), change("ADDED", "c", 8), bookmark(9, end=True)]
    server = Streaming([*before, Expired("too old")], [*after, Unreachable("reset")], [])
    mirror, _ = follow_streams(server, 4)
    assert server.asked[:2] == ["initial", "initial"]
    assert mirror.log == ["+a", "+b", "-b", "+c"]


def test_a_stream_that_ends_or_breaks_before_its_bookmark_is_read_in_pages():
    for broken in ([change("ADDED", "a", 3)], [change("ADDED", "a", 3), Unreachable("reset")], [Expired("too old")]):
        server = Streaming(broken, [])
        mirror, _ = follow_streams(server, 3)
        assert server.asked == ["initial", "list", "9"]
        assert sorted(mirror.objects) == ["a", "b", "c"] and len(mirror.log) == 3


def test_a_server_that_never_marks_the_end_is_read_in_pages(monkeypatch):
    monkeypatch.setattr("phalanx.base.informer.INITIAL_SILENCE", 0.05)

    class Silent(Streaming):
        async def watch(self, *args: Any, initial: bool, **kwargs: Any) -> AsyncIterator[WatchEvent]:
            async for event in super().watch(*args, initial=initial, **kwargs):
                yield event
            if initial:
                await asyncio.Event().wait()

    server = Silent([change("ADDED", "a", 3)], [])
    mirror, _ = follow_streams(server, 3)
    assert server.asked == ["initial", "list", "9"] and sorted(mirror.objects) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "refusal",
    [
        Invalid("gate WatchList"),
        # kube-apiserver 1.37 with etcd 3.4.23:
        InternalError(
            "a watch stream was requested … but the required storage feature RequestWatchProgress is disabled"
        ),
    ],
)
def test_a_server_without_streaming_is_asked_once_and_nothing_is_logged(refusal, caplog):
    server = Streaming([refusal], [Expired("too old")], [])
    follow_streams(server, 5)
    assert server.asked == ["initial", "list", "9", "list", "9"]
    assert not caplog.records


class Refusing:
    """A client without the right to read anything."""

    async def list(self, *args: Any, **kwargs: Any) -> bytes:
        raise Forbidden("configmaps is forbidden")

    async def watch(self, *args: Any, **kwargs: Any) -> AsyncIterator[WatchEvent]:
        raise Forbidden("configmaps is forbidden")
        yield


def test_a_missing_right_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def follow(_: object) -> None:
        task = asyncio.create_task(informer(Refusing(), Mirror(), "ns").run())
        await asyncio.sleep(300)
        task.cancel()

    with caplog.at_level(logging.INFO, logger="phalanx.base.informer"):
        run_on_virtual_time(follow)
    assert [record.levelno for record in caplog.records] == [logging.INFO]
