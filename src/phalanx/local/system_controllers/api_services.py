"""Create an APIService for each served group and version, so that `kubectl get apiservices` shows it as Local.

APIServices of built-in groups are created at the start; those of custom resources are created and deleted with their
definitions. APIServices that a user created for another server are left alone.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from phalanx.base.client import Client, Resource
from phalanx.base.errors import AlreadyExists, Conflict, Forbidden, NotFound
from phalanx.base.work import WorkQueue
from phalanx.local.system_controllers.metadata_feed import MetadataFeed, MetadataItem
from phalanx.model.kinds import Registry

API_SERVICES = Resource("apiregistration.k8s.io", "v1", "apiservices", "APIService", namespaced=False)
MANAGED = "kube-aggregator.kubernetes.io/automanaged"
_KEY = "apiservices.apiregistration.k8s.io"
_ALL = ""
_CUSTOM = (1000, 100)  # Kubernetes' priorities for custom resources
# Kubernetes' group priorities. They order groups in discovery there; here they are only shown.
_GROUPS = {
    "": 18000,
    "apps": 17800,
    "events.k8s.io": 17750,
    "authentication.k8s.io": 17700,
    "authorization.k8s.io": 17600,
    "autoscaling": 17500,
    "batch": 17400,
    "certificates.k8s.io": 17300,
    "networking.k8s.io": 17200,
    "policy": 17100,
    "rbac.authorization.k8s.io": 17000,
    "storage.k8s.io": 16800,
    "admissionregistration.k8s.io": 16700,
    "apiextensions.k8s.io": 16700,
    "scheduling.k8s.io": 16600,
    "coordination.k8s.io": 16500,
    "node.k8s.io": 16300,
    "discovery.k8s.io": 16200,
    "resource.k8s.io": 16200,
    "flowcontrol.apiserver.k8s.io": 16100,
    "storagemigration.k8s.io": 15800,
}
_VERSIONS = {"v2": 30, "v1": 15, "v1beta1": 9, "v1alpha3": 3, "v1alpha2": 2, "v1alpha1": 1}


class ApiServices:
    def __init__(self, client: Client, registry: Registry, feed: MetadataFeed) -> None:
        self._client, self._registry, self._feed = client, registry, feed
        self._work: WorkQueue[str] = WorkQueue("api services")
        feed.listen(self._on_change, self._on_kinds)

    async def run(self) -> None:
        await self._feed.synced.wait()
        await self._work.run(self.settle, workers=1)

    def _on_kinds(self) -> None:
        self._work.add(_ALL)

    def _on_change(self, before: MetadataItem | None, after: MetadataItem | None) -> None:
        if after is None and before is not None and before.kind.key == _KEY:
            self._work.add(_ALL)

    async def settle(self, _: str = _ALL) -> None:
        wanted = self.wanted()
        found: dict[str, Any] = {
            body["metadata"]["name"]: body
            for body in msgspec.json.decode(await self._client.list(API_SERVICES))["items"]
        }
        await asyncio.gather(*(self._make(body) for name, body in wanted.items() if name not in found))
        for name, body in found.items():
            if name not in wanted and MANAGED in (body["metadata"].get("labels") or {}):
                try:
                    await self._client.delete(API_SERVICES, name, uid=body["metadata"]["uid"])
                except (NotFound, Conflict):
                    continue

    async def _make(self, body: dict[str, Any]) -> None:
        try:
            await self._client.create(API_SERVICES, body)
        except (AlreadyExists, Forbidden):
            return

    def wanted(self) -> dict[str, dict[str, Any]]:
        custom = {
            (kind.group, version.name): version.openapi is not None
            for kind in self._registry.all()
            for version in kind.versions
        }
        return {
            f"{version}.{group}": _body(group, version, custom[group, version])
            for group, version in self._registry.group_versions()
            if group != API_SERVICES.group  # as in kube-aggregator, its own group has no APIService
        }


def _body(group: str, version: str, custom: bool) -> dict[str, Any]:
    order = _CUSTOM if custom or group not in _GROUPS else (_GROUPS[group], _VERSIONS.get(version, 1) if group else 1)
    spec: dict[str, Any] = {"version": version, "groupPriorityMinimum": order[0], "versionPriority": order[1]}
    return {
        "apiVersion": API_SERVICES.api_version,
        "kind": API_SERVICES.kind,
        "metadata": {"name": f"{version}.{group}", "labels": {MANAGED: "true" if custom else "onstart"}},
        "spec": {"group": group, **spec} if group else spec,
    }
