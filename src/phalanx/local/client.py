"""The Client inside the server's process: the same handlers, rules and answers as over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

import msgspec

from phalanx.base.client import Call, Client, Resource, WatchEvent, selecting
from phalanx.base.errors import NotFound, problem_from_status
from phalanx.local.api.handler import Api
from phalanx.local.api.request import Request, User
from phalanx.local.api.route import UNKNOWN


class LocalClient(Client):
    """One per component. user_agent: names the field manager of its writes. user: the identity it acts as."""

    def __init__(self, api: Api, *, user_agent: str = "phalanx", user: User | None = None) -> None:
        self._api = api
        self._user_agent = user_agent
        self._user = user or User()

    def _request(self, call: Call) -> Request:
        resource = call.resource
        kind = self._api.ctx.registry.by_path(resource.group, resource.version, resource.plural)
        if kind is None or (call.subresource and call.subresource not in kind.subresources):
            raise NotFound(UNKNOWN, group=resource.group, kind=resource.plural, name=call.name)
        return Request(
            call.verb,
            kind,
            kind.version(resource.version),
            call.namespace if kind.namespaced else "",
            call.name,
            call.subresource,
            query=call.query,
            content_type=call.content_type,
            body=call.encoded(),
            user_agent=self._user_agent,
            user=self._user,
        )

    async def served(self, resource: Resource) -> bool:
        return self._api.ctx.registry.by_path(resource.group, resource.version, resource.plural) is not None

    async def call(self, call: Call) -> bytes:
        answer = await self._api.handle(self._request(call))
        if answer.code >= 400:
            raise problem_from_status(msgspec.json.decode(answer.whole()), answer.code)
        return answer.whole()

    async def events(self, call: Call) -> AsyncIterator[WatchEvent]:
        async with aclosing(self._api.events(self._request(call))) as batches:
            async for batch in batches:
                for event, obj in batch:
                    yield WatchEvent(event, obj)

    async def snapshot(
        self, resource: Resource, namespace: str = "", *, labels: str = "", fields: str = ""
    ) -> tuple[Sequence[bytes], str]:
        call = Call("list", resource, namespace, query=selecting(labels, fields))
        objects, revision = await self._api.present(self._request(call))
        return objects, str(revision)
