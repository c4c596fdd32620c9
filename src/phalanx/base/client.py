"""The one protocol through which controllers, the scheduler and simulated nodes speak to an API server.

Implemented over HTTPS in `kube` and in process in `local`. Bodies are encoded JSON (bytes), so that the caller
chooses between plain dicts and typed structs and nobody decodes twice. Every failure is an `ApiProblem`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

PatchType = Literal[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
]
Propagation = Literal["Background", "Foreground", "Orphan"]


@dataclass(frozen=True, slots=True)
class Resource:
    """Where a kind lives in the REST grammar."""

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
    """A client in the API server's own process: it hands out the stored objects themselves, not copies of them."""

    async def snapshot(
        self, resource: Resource, namespace: str = "", *, labels: str = "", fields: str = ""
    ) -> tuple[Sequence[bytes], str]:
        """Every object, encoded, and the revision at which they are so."""
        ...


class Client(Protocol):
    async def get(self, resource: Resource, name: str, namespace: str = "", *, subresource: str = "") -> bytes: ...

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
        """The encoded List object; an empty namespace means all of them."""
        ...

    def watch(
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
        """Events after `resource_version`; raises Expired when that is beyond the server's window."""
        ...

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
        """POST. `name` and `subresource` together address pods/NAME/binding and the like."""
        ...

    async def update(
        self,
        resource: Resource,
        name: str,
        body: bytes | dict[str, Any],
        namespace: str = "",
        *,
        subresource: str = "",
        field_manager: str = "",
    ) -> bytes: ...

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
    ) -> bytes: ...

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
    ) -> bytes: ...
