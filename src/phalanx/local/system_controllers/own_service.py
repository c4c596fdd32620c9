"""The Service `kubernetes` in `default`, its endpoints, and the ServiceCIDR with the range of Service addresses.

They are updated when the server starts, because its port may have changed, and created again if a client deletes one.
The endpoint is the address that the server listens on.
"""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import msgspec

from phalanx.base.client import Client, Resource
from phalanx.base.clock import Clock, rfc3339
from phalanx.base.errors import AlreadyExists, Forbidden, NotFound
from phalanx.base.resources import ENDPOINT_SLICES, ENDPOINTS, SERVICES
from phalanx.base.well_known import API_SERVER_ADDRESS
from phalanx.base.work import WorkQueue
from phalanx.local.system_controllers.metadata_feed import MetadataFeed, MetadataItem

NAMESPACE, NAME = "default", "kubernetes"
CIDR = "10.96.0.0/12"
PORT = 443
CIDRS = Resource("networking.k8s.io", "v1", "servicecidrs", "ServiceCIDR", namespaced=False)
_CIDR = "servicecidrs.networking.k8s.io"
_KEYS = {
    "services": SERVICES,
    "endpoints": ENDPOINTS,
    "endpointslices.discovery.k8s.io": ENDPOINT_SLICES,
    _CIDR: CIDRS,
}


class ServiceAddress(NamedTuple):
    """The address that the API server listens on."""

    host: str = "127.0.0.1"
    port: int = 6443


class OwnService:
    def __init__(self, client: Client, feed: MetadataFeed, place: ServiceAddress, clock: Clock) -> None:
        self._client, self._feed, self._clock = client, feed, clock
        self._bodies = _bodies(place)
        self._work: WorkQueue[str] = WorkQueue("own service")
        feed.listen(self._on_change)

    async def run(self) -> None:
        await self._feed.synced.wait()
        await self._work.run(self._ensure, workers=1)

    async def create_defaults(self) -> None:
        for key in _KEYS:
            await self._ensure(key)

    def _on_change(self, before: MetadataItem | None, after: MetadataItem | None) -> None:
        if before is None and after is not None and after.kind.key == _CIDR:
            self._work.add(f"{_CIDR}/{after.meta.name}")
        if after is not None or before is None or before.kind.key not in _KEYS:
            return
        if before.meta.name == NAME and before.meta.namespace == _namespace(_KEYS[before.kind.key]):
            self._work.add(before.kind.key)

    async def _ensure(self, key: str) -> None:
        added = key.partition("/")[2]
        if added:
            with contextlib.suppress(NotFound):
                await self._make_ready(added)
            return
        resource, body = _KEYS[key], self._bodies[key]
        try:
            await self._client.create(resource, body, _namespace(resource))
            if key == _CIDR:
                await self._client.patch(CIDRS, NAME, _ready(self._clock), subresource="status")
            return
        except AlreadyExists:
            pass
        except (Forbidden, NotFound):
            return
        if key == _CIDR:
            return
        current: dict[str, Any] = msgspec.json.decode(await self._client.get(resource, NAME, NAMESPACE))
        fields = [field for field in ("subsets", "endpoints", "ports", "addressType") if field in body]
        wrong = any(current.get(field) != body[field] for field in fields)
        if key == "services":
            wrong = (current.get("spec") or {}).get("ports") != body["spec"]["ports"]
            body = {**current, "spec": {**current["spec"], "ports": body["spec"]["ports"]}}
        if wrong:
            await self._client.update(resource, NAME, body, NAMESPACE)

    async def _make_ready(self, name: str) -> None:
        """Mark a ServiceCIDR as Ready, so that Services may use its addresses."""
        current: dict[str, Any] = msgspec.json.decode(await self._client.get(CIDRS, name))
        conditions = (current.get("status") or {}).get("conditions") or ()
        if not any(each.get("type") == "Ready" for each in conditions):
            await self._client.patch(CIDRS, name, _ready(self._clock), subresource="status")


def _namespace(resource: Resource) -> str:
    return NAMESPACE if resource.namespaced else ""


def _ready(clock: Clock) -> dict[str, Any]:
    condition = {"type": "Ready", "status": "True", "reason": "", "message": "Kubernetes Service CIDR is ready"}
    return {"status": {"conditions": [{**condition, "lastTransitionTime": rfc3339(clock.now())}]}}


def _bodies(place: ServiceAddress) -> dict[str, dict[str, Any]]:
    # If the server listens on all addresses, clients on this machine use the loopback address.
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "localhost": "127.0.0.1"}.get(place.host, place.host)
    labels = {"component": "apiserver", "provider": "kubernetes"}
    port = {"name": "https", "port": place.port, "protocol": "TCP"}
    outside = {"name": "https", "port": PORT, "protocol": "TCP", "targetPort": place.port}
    service: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME, "labels": labels},
        "spec": {"clusterIP": API_SERVER_ADDRESS, "ports": [outside], "type": "ClusterIP"},
    }
    endpoints: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": {"name": NAME, "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
        "subsets": [{"addresses": [{"ip": host}], "ports": [port]}],
    }
    piece: dict[str, Any] = {
        "apiVersion": ENDPOINT_SLICES.api_version,
        "kind": "EndpointSlice",
        "metadata": {"name": NAME, "labels": {"kubernetes.io/service-name": NAME}},
        "addressType": "IPv6" if ":" in host else "IPv4",
        "endpoints": [{"addresses": [host], "conditions": {"ready": True}}],
        "ports": [port],
    }
    cidr: dict[str, Any] = {
        "apiVersion": CIDRS.api_version,
        "kind": "ServiceCIDR",
        "metadata": {"name": NAME},
        "spec": {"cidrs": [CIDR]},
    }
    return {"services": service, "endpoints": endpoints, "endpointslices.discovery.k8s.io": piece, _CIDR: cidr}
