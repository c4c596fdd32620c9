"""The client interface through which controllers, the scheduler and simulated nodes call an API server.

Each verb becomes a `Call`; only this module knows query parameter names and DeleteOptions. `kube` sends calls over
HTTPS, `local` runs them in process. Answers are encoded JSON (bytes), so that the caller chooses between dicts and
typed structs and nothing is decoded twice. Every failure is an `ApiProblem`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

PatchType = Literal[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
]
Propagation = Literal["Background", "Foreground", "Orphan"]


@dataclass(frozen=True, slots=True)
class Resource:
    """Group, version, plural and kind of a resource, and the paths that follow from them."""

    group: str  # "" for the core group
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [root]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name:
            parts.append(name)
        if subresource:
            parts.append(subresource)
        return "/".join(parts)


class WatchEvent(NamedTuple):
    type: str  # ADDED, MODIFIED, DELETED, BOOKMARK; ERROR is raised as an ApiProblem instead
    object: bytes  # the encoded object


class Snapshots(Protocol):
    """A client in the API server's own process: it returns the stored objects themselves, not copies of them."""

    async def snapshot(
        self, resource: Resource, namespace: str = "", *, labels: str = "", fields: str = ""
    ) -> tuple[Sequence[bytes], str]:
        """Return every object, encoded, and the revision of this state."""
        ...


Verb = Literal["get", "list", "watch", "create", "update", "patch", "delete"]
Body = bytes | dict[str, Any] | Sequence[Any]
_JSON = "application/json"
_encode = msgspec.json.Encoder().encode


class Call(msgspec.Struct, frozen=True, gc=False):
    """One call to an API server, independent of the transport."""

    verb: Verb
    resource: Resource
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    query: dict[str, str] = {}
    body: Body = b""  # empty: no body is sent
    content_type: str = _JSON

    def encoded(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else _encode(self.body)


class Client(ABC):
    @abstractmethod
    async def call(self, call: Call) -> bytes:
        """Make any call except a watch and return the answer."""

    @abstractmethod
    def events(self, call: Call) -> AsyncIterator[WatchEvent]:
        """Make a watch call and yield its events."""

    async def served(self, resource: Resource) -> bool:
        """Return True if a resource that was not found may be served now.

        A client that cannot find out returns True.
        """
        return True

    async def get(self, resource: Resource, name: str, namespace: str = "", *, subresource: str = "") -> bytes:
        return await self.call(Call("get", resource, namespace, name, subresource))

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
        """Return the encoded List object; an empty namespace means all namespaces."""
        query = selecting(labels, fields, resource_version)
        query |= _without_empty(limit=str(limit or ""), **{"continue": continue_})
        return await self.call(Call("list", resource, namespace, query=query))

    def watch(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        labels: str = "",
        fields: str = "",
        resource_version: str = "",
        bookmarks: bool = True,
        initial: bool = False,
        timeout: float = 0.0,
    ) -> AsyncIterator[WatchEvent]:
        """Yield the events after `resource_version`. Raises Expired if the server no longer has them all.

        initial: the objects that exist come first, and after them a bookmark with the annotation
        `k8s.io/initial-events-end`.
        """
        query = selecting(labels, fields, resource_version)
        query |= _without_empty(
            sendInitialEvents="true" if initial else "",
            resourceVersionMatch="NotOlderThan" if initial else "",
            allowWatchBookmarks="true" if bookmarks else "",
            timeoutSeconds=str(max(1, round(timeout))) if timeout else "",
        )
        return self.events(Call("watch", resource, namespace, query=query))

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
        """Create an object (POST).

        `name` and `subresource` together address pods/NAME/binding and similar subresources.
        """
        query = _without_empty(fieldManager=field_manager)
        return await self.call(Call("create", resource, namespace, name, subresource, query, body))

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
        query = _without_empty(fieldManager=field_manager)
        return await self.call(Call("update", resource, namespace, name, subresource, query, body))

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: Body,
        namespace: str = "",
        *,
        patch_type: PatchType = "application/merge-patch+json",
        subresource: str = "",
        field_manager: str = "",
        force: bool = False,
    ) -> bytes:
        query = _without_empty(fieldManager=field_manager, force="true" if force else "")
        return await self.call(Call("patch", resource, namespace, name, subresource, query, body, patch_type))

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
            options["preconditions"] = _without_empty(uid=uid, resourceVersion=resource_version)
        body = {"kind": "DeleteOptions", "apiVersion": "v1", **options} if options else b""
        return await self.call(Call("delete", resource, namespace, name, body=body))


def selecting(labels: str, fields: str, resource_version: str = "") -> dict[str, str]:
    """Return the query parameters that select objects in a list or a watch."""
    return _without_empty(labelSelector=labels, fieldSelector=fields, resourceVersion=resource_version)


def _without_empty(**values: str) -> dict[str, str]:
    return {name: value for name, value in values.items() if value}
