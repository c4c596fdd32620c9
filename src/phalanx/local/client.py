"""The Client protocol inside the process: same handlers, same rules and answers, no HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from phalanx.base.client import PatchType, Propagation, Resource, WatchEvent
from phalanx.base.errors import NotFound, problem_from_status
from phalanx.local.api.handler import Api
from phalanx.local.api.request import Answer, Request, User
from phalanx.local.api.route import UNKNOWN

_encode = msgspec.json.Encoder().encode


class LocalClient:
    """One per component: `user_agent` names the field manager of its writes, `user` is who it acts as."""

    def __init__(self, api: Api, *, user_agent: str = "phalanx", user: User | None = None) -> None:
        self._api = api
        self._user_agent = user_agent
        self._user = user or User()

    def _request(self, verb: str, resource: Resource, namespace: str, name: str, subresource: str = "") -> Request:
        kind = self._api.ctx.registry.by_path(resource.group, resource.version, resource.plural)
        if kind is None or (subresource and subresource not in kind.subresources):
            raise NotFound(UNKNOWN, group=resource.group, kind=resource.plural, name=name)
        return Request(
            verb,
            kind,
            kind.version(resource.version),
            namespace if kind.namespaced else "",
            name,
            subresource,
            user_agent=self._user_agent,
            user=self._user,
        )

    async def get(self, resource: Resource, name: str, namespace: str = "", *, subresource: str = "") -> bytes:
        answer = await self._api.handle(self._request("get", resource, namespace, name, subresource))
        return answer.whole()

    async def list(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        labels: str = "",
        fields: str = "",
        resource_version: str = "",
        limit: int = 0,
        continue_: str = "",
    ) -> bytes:
        request = self._request("list", resource, namespace, "")
        request.query = _query(
            labelSelector=labels,
            fieldSelector=fields,
            resourceVersion=resource_version,
            limit=str(limit or ""),
            **{"continue": continue_},
        )
        return (await self._api.handle(request)).whole()

    async def snapshot(
        self, resource: Resource, namespace: str = "", *, labels: str = "", fields: str = ""
    ) -> tuple[Sequence[bytes], str]:
        request = self._request("list", resource, namespace, "")
        request.query = _query(labelSelector=labels, fieldSelector=fields)
        objects, revision = self._api.present(request)
        return objects, str(revision)

    async def watch(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        labels: str = "",
        fields: str = "",
        resource_version: str = "",
        bookmarks: bool = True,
        timeout: float = 0.0,
    ) -> AsyncIterator[WatchEvent]:
        request = self._request("watch", resource, namespace, "")
        request.query = _query(
            labelSelector=labels,
            fieldSelector=fields,
            resourceVersion=resource_version,
            allowWatchBookmarks="true" if bookmarks else "",
            timeoutSeconds=str(max(1, round(timeout))) if timeout else "",
        )
        async with aclosing(self._api.events(request)) as batches:
            async for batch in batches:
                for event, obj in batch:
                    yield WatchEvent(event, obj)

    async def create(
        self,
        resource: Resource,
        body: bytes | dict[str, Any],
        namespace: str = "",
        *,
        name: str = "",
        subresource: str = "",
        field_manager: str = "",
    ) -> bytes:
        return await self._write(
            "create", resource, namespace, name, subresource, body, _query(fieldManager=field_manager)
        )

    async def update(
        self,
        resource: Resource,
        name: str,
        body: bytes | dict[str, Any],
        namespace: str = "",
        *,
        subresource: str = "",
        field_manager: str = "",
    ) -> bytes:
        return await self._write(
            "update", resource, namespace, name, subresource, body, _query(fieldManager=field_manager)
        )

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: bytes | dict[str, Any] | Sequence[Any],
        namespace: str = "",
        *,
        patch_type: PatchType = "application/merge-patch+json",
        subresource: str = "",
        field_manager: str = "",
        force: bool = False,
    ) -> bytes:
        query = _query(fieldManager=field_manager, force="true" if force else "")
        return await self._write("patch", resource, namespace, name, subresource, body, query, patch_type)

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str = "",
        *,
        grace_seconds: int | None = None,
        propagation: Propagation | None = None,
        uid: str = "",
        resource_version: str = "",
    ) -> bytes:
        options: dict[str, Any] = {}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        if propagation is not None:
            options["propagationPolicy"] = propagation
        if uid or resource_version:
            options["preconditions"] = _query(uid=uid, resourceVersion=resource_version)
        body = {"kind": "DeleteOptions", "apiVersion": "v1", **options} if options else b""
        return await self._write("delete", resource, namespace, name, "", body, {})

    async def _write(
        self,
        verb: str,
        resource: Resource,
        namespace: str,
        name: str,
        subresource: str,
        body: bytes | dict[str, Any] | Sequence[Any],
        query: dict[str, str],
        content_type: str = "application/json",
    ) -> bytes:
        request = self._request(verb, resource, namespace, name, subresource)
        request.query = query
        request.content_type = content_type
        request.body = body if isinstance(body, bytes) else _encode(body)
        answer: Answer = await self._api.handle(request)
        if answer.code >= 400:
            raise problem_from_status(msgspec.json.decode(answer.whole()), answer.code)
        return answer.whole()


def _query(**values: str) -> dict[str, str]:
    return {name: value for name, value in values.items() if value}
