"""What every namespace contains by itself: the service account `default`, and the certificate to trust the server by.

Made when a namespace appears and again after they are deleted, as in Kubernetes; an edited certificate is put back.
"""

from __future__ import annotations

from typing import Any

import msgspec

from phalanx.base.client import Client, Resource
from phalanx.base.errors import AlreadyExists, Forbidden, NotFound
from phalanx.base.resources import CONFIG_MAPS
from phalanx.base.work import WorkQueue
from phalanx.local.system_controllers.metadata_feed import MetadataFeed, MetadataItem

SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
ACCOUNT = "default"
CERTIFICATE = "kube-root-ca.crt"
_FURNITURE = {("serviceaccounts", ACCOUNT), ("configmaps", CERTIFICATE)}


class NamespaceDefaults:
    def __init__(self, client: Client, feed: MetadataFeed, ca: bytes | None = None) -> None:
        """ca: the certificate of the server's authority, PEM; None: served without TLS, nothing to trust."""
        self._client = client
        self._feed = feed
        self._ca = ca
        self._work: WorkQueue[str] = WorkQueue("namespace furnishing")
        feed.listen(self._on_change)

    async def run(self) -> None:
        await self._feed.synced.wait()
        await self._work.run(self.furnish, workers=2)

    def _on_change(self, before: MetadataItem | None, after: MetadataItem | None) -> None:
        if after is not None:
            if before is None and after.kind.key == "namespaces":
                self._work.add(after.meta.name)
            elif before is not None and (after.kind.key, after.meta.name) == ("configmaps", CERTIFICATE):
                self._work.add(after.meta.namespace)
        elif before is not None and (before.kind.key, before.meta.name) in _FURNITURE:
            self._work.add(before.meta.namespace)

    async def furnish(self, namespace: str) -> None:
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT}}
        await self._ensure(SERVICE_ACCOUNTS, account, namespace)
        if self._ca is not None:
            why = "The certificate that signs this API server's, for clients inside the cluster."
            metadata = {"name": CERTIFICATE, "annotations": {"kubernetes.io/description": why}}
            data = {"ca.crt": self._ca.decode()}
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
            await self._ensure(CONFIG_MAPS, body, namespace)
            try:
                current: dict[str, Any] = msgspec.json.decode(
                    await self._client.get(CONFIG_MAPS, CERTIFICATE, namespace)
                )
                if current.get("data") != data:
                    await self._client.update(CONFIG_MAPS, CERTIFICATE, {**current, "data": data}, namespace)
            except (NotFound, Forbidden):
                return

    async def _ensure(self, resource: Resource, body: dict[str, Any], namespace: str) -> None:
        try:
            await self._client.create(resource, body, namespace)
        except (AlreadyExists, Forbidden, NotFound):
            return  # there already, or the namespace is on its way out
