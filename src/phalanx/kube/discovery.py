"""Read from the aggregated discovery document which resources an API server serves.

It shows when a resource that was not found appears. All callers share one request, and the server answers 304 (not
modified) while nothing changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from phalanx.base.client import Resource
from phalanx.base.errors import ApiProblem

ACCEPT = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
FRESH_SECONDS = 3.0  # for which an answer is used again


class _Meta(msgspec.Struct):
    name: str = ""


class _Resource(msgspec.Struct):
    resource: str = ""


class _Version(msgspec.Struct):
    version: str = ""
    resources: list[_Resource] = []


class _Group(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    versions: list[_Version] = []


class _Document(msgspec.Struct):
    kind: str = ""
    items: list[_Group] = []


_decode = msgspec.json.Decoder(_Document).decode


class DiscoveryClient:
    """Return True if the server does not say: a request for the resource itself then shows it."""

    def __init__(self, get_changed: Callable[[str, str, str], Awaitable[tuple[bytes, str]]]) -> None:
        self._get_changed = get_changed
        self._reading = asyncio.Lock()
        self._etag = ""
        self._read_at = float("-inf")
        self._served: set[tuple[str, str, str]] | None = None  # (group, version, plural)

    async def has(self, resource: Resource) -> bool:
        if not resource.group:
            return True
        async with self._reading:
            now = asyncio.get_running_loop().time()
            if now - self._read_at >= FRESH_SECONDS:
                try:
                    await self._read_groups()
                except (ApiProblem, msgspec.DecodeError):
                    self._served, self._etag = None, ""
                self._read_at = now
        return self._served is None or (resource.group, resource.version, resource.plural) in self._served

    async def _read_groups(self) -> None:
        body, self._etag = await self._get_changed("/apis", ACCEPT, self._etag)
        if not body:
            return
        document = _decode(body)
        if document.kind != "APIGroupDiscoveryList":  # a server before 1.27 lists groups only
            self._served = None
            return
        self._served = {
            (group.metadata.name, version.version, each.resource)
            for group in document.items
            for version in group.versions
            for each in version.resources
        }
