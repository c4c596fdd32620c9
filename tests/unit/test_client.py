"""The HTTP client against the real server: every verb, every failure as its own class."""

from __future__ import annotations

import json

import pytest

from phalanx.base.errors import AlreadyExists, Conflict, Invalid, NotFound, Unauthorized, Unreachable
from phalanx.kube.client import HttpClient
from phalanx.kube.config import Connection, load
from support.http_client import CONFIG_MAPS, PODS, config_map
from support.manifests import pod


def test_an_object_lives_its_life(run, namespace):
    async def life(client: HttpClient) -> None:
        made = json.loads(await client.create(CONFIG_MAPS, config_map("a", x="1"), namespace))
        made["data"]["x"] = "2"
        updated = json.loads(await client.update(CONFIG_MAPS, "a", made, namespace))
        assert updated["data"] == {"x": "2"}
        patched = json.loads(await client.patch(CONFIG_MAPS, "a", {"data": {"y": "3"}}, namespace))
        assert patched["data"] == {"x": "2", "y": "3"}
        assert json.loads(await client.get(CONFIG_MAPS, "a", namespace)) == patched
        listed = json.loads(await client.list(CONFIG_MAPS, namespace, fields="metadata.name=a"))
        assert [item["metadata"]["name"] for item in listed["items"]] == ["a"]
        await client.delete(CONFIG_MAPS, "a", namespace, uid=made["metadata"]["uid"])
        with pytest.raises(NotFound, match='configmaps "a" not found'):
            await client.get(CONFIG_MAPS, "a", namespace)

    run(life)


def test_failures_have_their_own_classes(run, namespace):
    async def fail(client: HttpClient) -> None:
        made = json.loads(await client.create(CONFIG_MAPS, config_map("a"), namespace))
        with pytest.raises(AlreadyExists):
            await client.create(CONFIG_MAPS, config_map("a"), namespace)
        with pytest.raises(Invalid) as invalid:
            await client.create(CONFIG_MAPS, config_map("Not_A_Name"), namespace)
        assert invalid.value.causes[0]["field"] == "metadata.name"
        await client.patch(CONFIG_MAPS, "a", {"data": {"x": "1"}}, namespace)
        with pytest.raises(Conflict):
            await client.update(CONFIG_MAPS, "a", made, namespace)
        with pytest.raises(Conflict):
            await client.delete(CONFIG_MAPS, "a", namespace, uid="somebody-else")

    run(fail)


def test_a_watch_gives_what_happens_after_the_list(run, namespace):
    async def watch(client: HttpClient) -> list[tuple[str, str]]:
        revision = json.loads(await client.list(PODS, namespace))["metadata"]["resourceVersion"]
        await client.create(PODS, pod("a"), namespace)
        await client.delete(PODS, "a", namespace)
        seen = []
        async for event in client.watch(PODS, namespace, resource_version=revision):
            seen.append((event.type, json.loads(event.object)["metadata"]["name"]))
            if event.type == "DELETED":
                break
        return seen

    # As in kube-apiserver: a pod gets its deletionTimestamp before it is removed, whatever its grace period.
    assert run(watch) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]


def test_a_wrong_token_is_unauthorized(server, run):
    async def ask(_: HttpClient) -> None:
        connection = load(server.kubeconfig)
        connection.token = "wrong"
        async with HttpClient(connection) as client:
            with pytest.raises(Unauthorized):
                await client.list(PODS)

    run(ask)


def test_no_server_there_is_unreachable(run):
    async def ask(_: HttpClient) -> None:
        async with HttpClient(Connection("http://127.0.0.1:9", None), timeout=5) as client:
            with pytest.raises(Unreachable):
                await client.list(PODS)

    run(ask)
