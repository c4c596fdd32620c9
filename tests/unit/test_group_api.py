"""Where the scheduling kinds are served is found out at the first list or watch of one of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from phalanx.base.client import Call, Client, Resource, WatchEvent
from phalanx.base.errors import Forbidden, NotFound
from phalanx.base.well_known import PHALANX_API, SCHEDULING_API
from phalanx.kube.group_api import GroupApi

GROUPS = Resource(SCHEDULING_API, "v1beta1", "podgroups", "PodGroup")
PODS = Resource("", "v1", "pods", "Pod")


class Server(Client):
    """Serves the scheduling kinds in one API group, or in none yet."""

    def __init__(self, group: str) -> None:
        self.group, self.watched = group, []

    async def call(self, call: Call) -> bytes:
        if call.resource.group != self.group:
            raise NotFound("the server could not find the requested resource")
        return b"{}"

    async def events(self, call: Call) -> AsyncIterator[WatchEvent]:
        self.watched.append(call.resource.group)
        yield WatchEvent("ADDED", b"{}")


async def first_event(api: GroupApi, resource: Resource) -> None:
    async for _ in api.watch(resource, initial=True):
        return


@pytest.mark.parametrize("group", [SCHEDULING_API, PHALANX_API])
def test_a_watch_without_a_list_before_it_goes_to_the_group_that_is_served(group: str) -> None:
    server = Server(group)
    asyncio.run(first_event(GroupApi(server), GROUPS))
    assert server.watched == [group]


def test_resources_installed_after_the_first_watch_are_found_by_the_next() -> None:
    server = Server("")
    api = GroupApi(server)
    asyncio.run(first_event(api, GROUPS))
    server.group = PHALANX_API
    asyncio.run(first_event(api, GROUPS))
    assert server.watched == [SCHEDULING_API, PHALANX_API]


def test_a_watch_of_another_kind_does_not_ask_where_groups_are_served() -> None:
    server = Server(PHALANX_API)
    api = GroupApi(server)
    asyncio.run(first_event(api, PODS))
    assert (server.watched, api.group) == ([""], "")


class OneNamespace(Server):
    """Answers a user who may read one namespace: every list of all namespaces is forbidden, served or not."""

    async def call(self, call: Call) -> bytes:
        if call.verb == "list" and not call.namespace:
            raise Forbidden("podgroups is forbidden")
        return await super().call(call)

    async def served(self, resource: Resource) -> bool:
        return resource.group == self.group


@pytest.mark.parametrize("group", [SCHEDULING_API, PHALANX_API])
def test_a_user_of_one_namespace_finds_out_by_discovery(group: str) -> None:
    api = GroupApi(OneNamespace(group))
    asyncio.run(api.list(GROUPS, "team-a"))
    assert api.group == group
