"""Delete the content of a terminating namespace, then its finalizer; create the default objects of a new namespace.

The default objects are the service account `default` and a ConfigMap with the server's CA certificate. They are created
again if they are deleted, and an edited certificate is restored, as in Kubernetes.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from phalanx.base.client import Client, Resource
from phalanx.base.clock import Clock, rfc3339
from phalanx.base.errors import AlreadyExists, Conflict, Forbidden, NotFound
from phalanx.base.resources import CONFIG_MAPS, NAMESPACES
from phalanx.base.well_known import ROOT_CA
from phalanx.base.work import WorkQueue
from phalanx.local.system_controllers.metadata_feed import MetadataBody, MetadataFeed, MetadataItem, ObjectMetadata
from phalanx.model.kinds import Kind, Registry

FINALIZER = "kubernetes"
RELIST_SECONDS = 2.0  # seconds until the content is listed again, for kinds that the feed leaves out
AT_ONCE = 32


class _List(msgspec.Struct):
    items: list[MetadataBody] = []


_decode_list = msgspec.json.Decoder(_List).decode


PODS = "pods"
POD_DELETE_DELAY = 0.05  # seconds for which deleted pods are collected before the content is listed
# Conditions for errors that cannot happen here.
_NO_ERRORS = (
    ("NamespaceDeletionDiscoveryFailure", "ResourcesDiscovered", "All resources successfully discovered"),
    (
        "NamespaceDeletionGroupVersionParsingFailure",
        "ParsedGroupVersions",
        "All legacy kube types successfully parsed",
    ),
    (
        "NamespaceDeletionContentFailure",
        "ContentDeleted",
        "All content successfully deleted, may be waiting on finalization",
    ),
)


class NamespaceDeleter:
    def __init__(self, client: Client, registry: Registry, feed: MetadataFeed, clock: Clock) -> None:
        self._client = client
        self._registry = registry
        self._feed = feed
        self._clock = clock
        self._terminating: set[str] = set()
        self._work: WorkQueue[str] = WorkQueue("namespace deletion")
        feed.listen(self._on_change)

    async def run(self) -> None:
        await self._feed.synced.wait()
        await self._work.run(self._reconcile, workers=4)

    def _on_change(self, before: MetadataItem | None, after: MetadataItem | None) -> None:
        item = after or before
        assert item is not None
        if item.kind.key == "namespaces":
            if after is not None and after.meta.deleting:
                self._terminating.add(after.meta.name)
                self._work.add(after.meta.name)
            else:
                self._terminating.discard(item.meta.name)
        elif after is None and self._emptied(item.meta.namespace):
            self._work.add(item.meta.namespace)
        elif after is None and item.kind.key == PODS and item.meta.namespace in self._terminating:
            self._work.add_after(item.meta.namespace, POD_DELETE_DELAY)  # it may have been the last one

    def _emptied(self, namespace: str) -> bool:
        return namespace in self._terminating and not self._feed.by_namespace[namespace]

    async def _reconcile(self, name: str) -> None:
        """Delete the content of a terminating namespace, then remove its finalizer."""
        try:
            namespace = msgspec.json.decode(await self._client.get(NAMESPACES, name))
        except NotFound:
            return
        if not namespace["metadata"].get("deletionTimestamp"):
            return
        if (namespace.get("status") or {}).get("phase") != "Terminating":
            namespace = await self._set_status(namespace, phase="Terminating")
        finalizers = (namespace.get("spec") or {}).get("finalizers") or []
        if FINALIZER not in finalizers:
            return
        remaining = await self._delete_content(name)
        if remaining:
            await self._explain(namespace, remaining)
            self._work.add_after(name, RELIST_SECONDS)
            return
        namespace["spec"]["finalizers"] = [finalizer for finalizer in finalizers if finalizer != FINALIZER]
        try:
            await self._client.update(NAMESPACES, name, namespace, subresource="finalize")
        except NotFound:
            return

    async def _delete_content(self, namespace: str) -> dict[str, list[ObjectMetadata]]:
        """Delete everything in a namespace; return what remains, by kind.

        Pods are deleted first, and other kinds only when no pod remains: pods may mount them or be protected by them.
        """
        remaining: dict[str, list[ObjectMetadata]] = {}
        for kind in sorted(self._registry.all(), key=lambda kind: kind.key != PODS):
            if not kind.namespaced or not kind.stored or kind.stored_as or "list" not in kind.verbs:
                continue
            if PODS in remaining:
                break
            found = await self._list(kind, namespace)
            fresh = [meta for meta in found if not meta.deleting]
            for start in range(0, len(fresh), AT_ONCE):
                await asyncio.gather(*(self._delete(kind, meta) for meta in fresh[start : start + AT_ONCE]))
            left = await self._list(kind, namespace) if found else []
            if left:
                remaining[kind.key] = left
        return remaining

    async def _list(self, kind: Kind, namespace: str) -> list[ObjectMetadata]:
        try:
            return [body.metadata for body in _decode_list(await self._client.list(kind.resource(), namespace)).items]
        except NotFound:  # the kind was removed with its definition
            return []

    async def _delete(self, kind: Kind, meta: ObjectMetadata) -> None:
        try:
            await self._client.delete(
                kind.resource(), meta.name, meta.namespace, propagation="Background", uid=meta.uid
            )
        except (NotFound, Conflict):
            return  # deleted or replaced: the next list shows it

    async def _explain(self, namespace: dict[str, Any], remaining: dict[str, list[ObjectMetadata]]) -> None:
        """Write the conditions that show what a namespace still waits for."""
        counts = ", ".join(
            f"{key if '.' in key else key + '.'} has {len(left)} resource instances"
            for key, left in sorted(remaining.items())
        )
        finalizers: dict[str, int] = {}
        for left in remaining.values():
            for meta in left:
                for finalizer in meta.finalizers or ():
                    finalizers[finalizer] = finalizers.get(finalizer, 0) + 1
        waits = ", ".join(f"{name} in {count} resource instances" for name, count in sorted(finalizers.items()))
        conditions = [
            *(self._condition(type_, False, reason, message) for type_, reason, message in _NO_ERRORS),
            self._condition(
                "NamespaceContentRemaining", True, "SomeResourcesRemain", f"Some resources are remaining: {counts}"
            ),
            self._condition(
                "NamespaceFinalizersRemaining",
                bool(waits),
                "SomeFinalizersRemain" if waits else "ContentHasNoFinalizers",
                f"Some content in the namespace has finalizers remaining: {waits}"
                if waits
                else "All content-preserving finalizers finished",
            ),
        ]
        known = (namespace.get("status") or {}).get("conditions") or []
        reported = {(c.get("type"), c.get("status"), c.get("message")) for c in known}
        if any((c["type"], c["status"], c["message"]) not in reported for c in conditions):
            await self._set_status(namespace, conditions=conditions)

    def _condition(self, type_: str, status: bool, reason: str, message: str) -> dict[str, str]:
        return {
            "type": type_,
            "status": "True" if status else "False",
            "reason": reason,
            "message": message,
            "lastTransitionTime": rfc3339(self._clock.now()),
        }

    async def _set_status(self, namespace: dict[str, Any], **fields: Any) -> dict[str, Any]:
        namespace["status"] = {**(namespace.get("status") or {}), **fields}
        name = namespace["metadata"]["name"]
        answer = await self._client.patch(NAMESPACES, name, {"status": fields}, subresource="status")
        updated: dict[str, Any] = msgspec.json.decode(answer)
        return updated


SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
ACCOUNT = "default"
_DEFAULTS = {("serviceaccounts", ACCOUNT), ("configmaps", ROOT_CA)}


class NamespaceDefaults:
    def __init__(self, client: Client, feed: MetadataFeed, ca: bytes | None = None) -> None:
        """ca: PEM of the authority that signed the server's certificate; None: the server has no TLS."""
        self._client = client
        self._feed = feed
        self._ca = ca
        self._work: WorkQueue[str] = WorkQueue("namespace defaults")
        feed.listen(self._on_change)

    async def run(self) -> None:
        await self._feed.synced.wait()
        await self._work.run(self.create_defaults, workers=2)

    def _on_change(self, before: MetadataItem | None, after: MetadataItem | None) -> None:
        if after is not None:
            if before is None and after.kind.key == "namespaces":
                self._work.add(after.meta.name)
            elif before is not None and (after.kind.key, after.meta.name) == ("configmaps", ROOT_CA):
                self._work.add(after.meta.namespace)
        elif before is not None and (before.kind.key, before.meta.name) in _DEFAULTS:
            self._work.add(before.meta.namespace)

    async def create_defaults(self, namespace: str) -> None:
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT}}
        await self._ensure(SERVICE_ACCOUNTS, account, namespace)
        if self._ca is not None:
            why = "The certificate that signs this API server's, for clients inside the cluster."
            metadata = {"name": ROOT_CA, "annotations": {"kubernetes.io/description": why}}
            data = {"ca.crt": self._ca.decode()}
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
            await self._ensure(CONFIG_MAPS, body, namespace)
            try:
                current: dict[str, Any] = msgspec.json.decode(await self._client.get(CONFIG_MAPS, ROOT_CA, namespace))
                if current.get("data") != data:
                    await self._client.update(CONFIG_MAPS, ROOT_CA, {**current, "data": data}, namespace)
            except (NotFound, Forbidden):
                return

    async def _ensure(self, resource: Resource, body: dict[str, Any], namespace: str) -> None:
        try:
            await self._client.create(resource, body, namespace)
        except (AlreadyExists, Forbidden, NotFound):
            return  # exists already, or the namespace is terminating
