"""Resources that are not served: one cheap request for all of them, until they appear."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from phalanx.base import informer
from phalanx.base.client import Resource
from phalanx.base.errors import NotFound, Unreachable
from phalanx.base.informer import Informer
from phalanx.kube import discovery
from phalanx.kube.client import HttpClient
from phalanx.kube.discovery import DiscoveryClient
from phalanx.kube.group_api import GroupApi
from support.waiting import eventually_async

DEFINITIONS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False)
KITES = Resource("toys.example.com", "v1", "kites", "Kite")
BOATS = Resource("toys.example.com", "v1", "boats", "Boat")


def document(*resources: Resource) -> bytes:
    def group(each: Resource) -> dict[str, Any]:
        versions = [{"version": each.version, "resources": [{"resource": each.plural}]}]
        return {"metadata": {"name": each.group}, "versions": versions}

    items = [group(each) for each in resources]
    return json.dumps({"kind": "APIGroupDiscoveryList", "items": items}).encode()


class Documents:
    """Answers, one for every request; an exception is raised."""

    def __init__(self, *answers: bytes | Exception) -> None:
        self.answers, self.etags = list(answers), list[str]()

    async def get_changed(self, path: str, accept: str, etag: str) -> tuple[bytes, str]:
        assert path == "/apis" and accept == discovery.ACCEPT
        self.etags.append(etag)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer, etag or "e1"


def ask(server: Documents, *resources: Resource) -> list[bool]:
    async def go() -> list[bool]:
        found = DiscoveryClient(server.get_changed)
        return [await found.has(resource) for resource in resources]

    return asyncio.run(go())


def test_all_waiting_callers_share_one_request():
    server = Documents(document(KITES))
    assert ask(server, KITES, BOATS, BOATS) == [True, False, False]
    assert server.etags == [""]


def test_a_document_that_did_not_change_is_kept(monkeypatch):
    monkeypatch.setattr(discovery, "FRESH_SECONDS", 0.0)
    server = Documents(document(KITES), b"", document(BOATS))
    assert ask(server, KITES, KITES, KITES) == [True, True, False]
    assert server.etags == ["", "e1", "e1"]


@pytest.mark.parametrize("answer", [b'{"kind":"APIGroupList","groups":[]}', b"<html>", Unreachable("x"), NotFound("x")])
def test_a_server_that_does_not_say_is_asked_for_the_resource_itself(answer):
    assert ask(Documents(answer), KITES) == [True]


def definition(resource: Resource) -> dict[str, Any]:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "metadata": {"name": f"{resource.plural}.{resource.group}"},
        "spec": {
            "group": resource.group,
            "scope": "Namespaced",
            "names": {"plural": resource.plural, "singular": resource.kind.lower(), "kind": resource.kind},
            "versions": [{"name": resource.version, "served": True, "storage": True, "schema": schema}],
        },
    }


class Counting(HttpClient):
    """Remembers which resources were asked for."""

    watched: list[str]

    def events(self, call):  # type: ignore[no-untyped-def]
        self.__dict__.setdefault("watched", []).append(call.resource.plural)
        return super().events(call)


def test_a_custom_resource_is_followed_soon_after_it_appears(run, monkeypatch):
    """Until then discovery is asked, and the resource itself only once."""
    monkeypatch.setattr(informer, "ABSENT_SECONDS", 0.02)
    monkeypatch.setattr(discovery, "FRESH_SECONDS", 0.01)

    async def follow(client: HttpClient) -> None:
        client.__class__ = Counting
        asked: list[Resource] = []
        served = client.served

        async def noted(resource: Resource) -> bool:
            asked.append(resource)
            return await served(resource)

        client.served = noted  # type: ignore[method-assign]
        seen: list[str] = []
        follower = Informer(client, KITES, dict[str, Any], lambda change: seen.append(change.name), optional=True)
        task = asyncio.create_task(follower.run())
        await follower.synced.wait()
        await eventually_async(lambda: len(asked) >= 5, "discovery is asked")
        assert client.watched == ["kites"] and not follower.served  # type: ignore[attr-defined]
        await client.create(DEFINITIONS, definition(KITES))
        await eventually_async(lambda: follower.served, "the resource is served")
        await client.create(
            KITES, {"apiVersion": "toys.example.com/v1", "kind": "Kite", "metadata": {"name": "red"}}, "default"
        )
        await eventually_async(lambda: seen == ["red"], "the object")
        task.cancel()
        await client.delete(DEFINITIONS, "kites.toys.example.com")

    run(follow)


def test_who_cannot_wait_has_an_absent_resource_asked_for_again(run, monkeypatch):
    """A webhook that sees the pod of a kind whose definition is a moment old."""
    monkeypatch.setattr(informer, "ABSENT_SECONDS", 3600.0)

    async def follow(client: HttpClient) -> None:
        seen: list[str] = []
        follower = Informer(client, KITES, dict[str, Any], lambda change: seen.append(change.name), optional=True)
        task = asyncio.create_task(follower.run())
        await follower.synced.wait()
        assert not any(await asyncio.gather(follower.check_served(), follower.check_served()))
        await client.create(DEFINITIONS, definition(KITES))
        kite = {"apiVersion": "toys.example.com/v1", "kind": "Kite", "metadata": {"name": "red"}}
        await client.create(KITES, kite, "default")
        assert not seen
        assert all(await asyncio.gather(follower.check_served(), follower.check_served()))
        assert seen == ["red"]
        task.cancel()
        await client.delete(DEFINITIONS, "kites.toys.example.com")

    run(follow)


def test_scheduling_kinds_as_custom_resources_are_found_by_a_watch():
    """The first state comes through a watch, and no list is needed to decide where the kinds are."""
    asked: list[tuple[str, str]] = []

    class Server(HttpClient):
        def __init__(self) -> None: ...

        async def call(self, call):  # type: ignore[no-untyped-def]
            asked.append((call.verb, call.resource.group))
            if call.resource.group == "scheduling.k8s.io":
                raise NotFound("the server could not find the requested resource")
            return b'{"kind":"PodGroupList","items":[],"metadata":{"resourceVersion":"1"}}'

        async def events(self, call):  # type: ignore[no-untyped-def]
            asked.append((call.verb, call.resource.group))
            return
            yield

    async def go() -> None:
        groups = GroupApi(Server())
        async for _ in groups.watch(Resource("scheduling.k8s.io", "v1beta1", "workloads", "Workload"), initial=True):
            raise AssertionError("there is no event")
        assert groups.group == "scheduling.phalanx.dev"

    asyncio.run(go())
    assert asked == [
        ("list", "scheduling.k8s.io"),
        ("list", "scheduling.phalanx.dev"),
        ("watch", "scheduling.phalanx.dev"),
    ]


def test_the_local_server_answers_304_while_nothing_changes(run):
    async def ask_twice(client: HttpClient) -> None:
        body, etag = await client.get_changed("/apis", discovery.ACCEPT, "")
        assert json.loads(body)["kind"] == "APIGroupDiscoveryList" and etag
        assert await client.get_changed("/apis", discovery.ACCEPT, etag) == (b"", etag)
        again, other = await client.get_changed("/api", discovery.ACCEPT, etag)
        assert again and other != etag

    run(ask_twice)
