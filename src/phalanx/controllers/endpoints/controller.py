"""Write Endpoints and EndpointSlices of every Service with a selector.

Nothing routes to these addresses in a local cluster, but programs that watch them (ingresses, meshes, clients with
load balancing) work as on any cluster. Endpoints of Services without a selector are left to their authors.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from phalanx.base import resources as r
from phalanx.controllers.endpoints.addresses import (
    SERVICE_NAME,
    SOON,
    EndpointAddress,
    Ports,
    addresses_of,
    by_service,
    port_list,
    services_of,
    slice_entry,
    subsets,
)
from phalanx.controllers.runtime.cache import MARKED, by_labels
from phalanx.controllers.runtime.controller import Caches, Controller, Json, Key
from phalanx.controllers.runtime.ownership import controller_reference, deleting
from phalanx.controllers.runtime.pods import ready
from phalanx.model.groups.keys import ZONE
from phalanx.model.selectors import from_selector

PER_SLICE, PER_ENDPOINTS = 100, 1000
MANAGED_BY = {"endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"}
ENDPOINTS_BY = {"endpoints.kubernetes.io/managed-by": "endpoint-controller"}
OVER_CAPACITY = "endpoints.kubernetes.io/over-capacity"
HEADLESS = "service.kubernetes.io/headless"


class EndpointsController(Controller):
    name = "endpoints"

    def __init__(self, caches: Caches) -> None:
        super().__init__()
        self._services = caches.of(r.SERVICES)
        self._pods = caches.of(r.PODS)
        self._nodes = caches.of(r.NODES)
        self._endpoints = caches.of(r.ENDPOINTS)
        self._slices = caches.of(r.ENDPOINT_SLICES)
        self._pods.index("labels", by_labels, of_marks=True)
        self._services.index("selects", _by_rarest_label)
        self._slices.index("service", partial(by_service, MANAGED_BY))
        self._services.on_change(self.requeue)
        self._pods.on_change(self._pod_changed, of=MARKED)
        self._endpoints.on_change(lambda key, new, old: self.queue.add_after(key, SOON))
        self._slices.on_change(self._slice_changed)

    def _pod_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        selecting: dict[Key, None] = {}
        for pod in (new, old):
            labels: Json = (pod["metadata"].get("labels") or {}) if pod is not None else {}
            for label in labels.items():
                for service in self._services.by_index("selects", _pair(key.namespace, *label)):
                    if service["spec"]["selector"].items() <= labels.items():
                        selecting[Key(key.namespace, service["metadata"]["name"])] = None
        if not selecting or (new is not None and old is not None and _summary(new) == _summary(old)):
            return
        for found in selecting:
            self.queue.add_after(found, SOON)

    def _slice_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        for found in services_of(MANAGED_BY, new, old):
            self.queue.add_after(found, SOON)

    async def reconcile(self, key: Key) -> None:
        service = self._services.get(*key)
        if service is None:
            await self._delete_endpoints(key)  # slices are deleted with their owner
            return
        selector = service["spec"].get("selector")
        if deleting(service) or not selector or service["spec"].get("type") == "ExternalName":
            return
        pods = self._pods.matching("labels", key.namespace, from_selector({"matchLabels": selector}))
        found = addresses_of(service, pods)
        await self._write_endpoints(key, service, found)
        await self._write_slices(key, service, found)

    async def _delete_endpoints(self, key: Key) -> None:
        endpoints = self._endpoints.get(*key)
        if endpoints is None or not ENDPOINTS_BY.items() <= (endpoints["metadata"].get("labels") or {}).items():
            return
        await self._endpoints.delete(endpoints)

    async def _write_endpoints(self, key: Key, service: Json, found: dict[Ports, list[EndpointAddress]]) -> None:
        made, truncated = subsets(found, PER_ENDPOINTS)
        metadata: Json = {"name": key.name, "namespace": key.namespace, "labels": _labels(service, ENDPOINTS_BY)}
        if truncated:
            metadata["annotations"] = {OVER_CAPACITY: "truncated"}
        body: Json = {"apiVersion": "v1", "kind": "Endpoints", "metadata": metadata}
        body |= {"subsets": made} if made else {}
        current = self._endpoints.get(*key)
        if current is None:
            await self._endpoints.create(body)
        elif _differs(current, body, "subsets"):
            metadata["resourceVersion"] = current["metadata"]["resourceVersion"]
            await self._endpoints.update(body)

    async def _write_slices(self, key: Key, service: Json, found: dict[Ports, list[EndpointAddress]]) -> None:
        mine = [
            entry for entry in self._slices.by_index("service", f"{key.namespace}/{key.name}") if not deleting(entry)
        ]
        mine.sort(key=lambda entry: str(entry["metadata"]["name"]))
        wanted: list[tuple[Json | None, list[Json], list[Json]]] = []  # (slice, ports, endpoints)
        for ports, addresses in sorted(found.items()) or [((), [])]:
            listed = port_list(ports, unnamed=True)
            room = [entry for entry in mine if (entry.get("ports") or []) == listed]
            mine = [entry for entry in mine if entry not in room]
            wanted += self._distributed(room, listed, addresses)
        if mine and wanted and wanted[0][0] is None and not wanted[0][2]:
            wanted[0] = (mine.pop(0), [], [])  # the only slice of a Service without pods had pods before
        for entry, listed, endpoints in wanted:
            await self._write_slice(key, service, entry, listed, endpoints)
        for entry in mine:
            await self._slices.delete(entry)

    def _distributed(
        self, room: list[Json], ports: list[Json], addresses: list[EndpointAddress]
    ) -> list[tuple[Json | None, list[Json], list[Json]]]:
        """Distribute addresses over slices. An address stays in its slice, so that a changed pod updates one slice."""
        new = {address.uid: slice_entry(address, self._zone(address.node)) for address in addresses}
        dealt: list[tuple[Json | None, list[Json], list[Json]]] = []
        for entry in room:
            uids = [(endpoint.get("targetRef") or {}).get("uid") for endpoint in entry.get("endpoints") or ()]
            dealt.append((entry, ports, [new.pop(uid) for uid in uids if uid in new]))
        rest = list(new.values())
        for _, _, endpoints in dealt:
            free = PER_SLICE - len(endpoints)
            endpoints += rest[:free]
            rest = rest[free:]
        for start in range(0, len(rest), PER_SLICE):
            dealt.append((None, ports, rest[start : start + PER_SLICE]))
        return dealt or [(None, ports, [])]

    async def _write_slice(
        self, key: Key, service: Json, current: Json | None, ports: list[Json], endpoints: list[Json]
    ) -> None:
        metadata: Json = {"labels": _labels(service, {**MANAGED_BY, SERVICE_NAME: key.name})}
        metadata |= {"namespace": key.namespace, "ownerReferences": [controller_reference(service, r.SERVICES)]}
        body: Json = {
            "apiVersion": r.ENDPOINT_SLICES.api_version,
            "kind": "EndpointSlice",
            "metadata": metadata,
            "addressType": "IPv4",
            "endpoints": endpoints,
            "ports": ports,
        }
        if current is None:
            metadata["generateName"] = f"{key.name}-"
            await self._slices.create(body)
        elif _differs(current, body, "endpoints", "ports"):
            metadata |= {name: current["metadata"][name] for name in ("name", "resourceVersion")}
            await self._slices.update(body)

    def _zone(self, node: str) -> str:
        found = self._nodes.get("", node) if node else None
        return str((found["metadata"].get("labels") or {}).get(ZONE, "")) if found is not None else ""


def _pair(namespace: str, key: str, value: str) -> str:
    return f"{namespace}/{key}={value}"


def _by_rarest_label(service: Json) -> list[str]:
    """Index a selector by one of its labels: a pod without that label is not selected."""
    selector = (service.get("spec") or {}).get("selector")
    return [_pair(service["metadata"]["namespace"], *max(selector.items()))] if selector else []


def _summary(pod: Json) -> tuple[Any, ...]:
    status, meta, spec = pod.get("status") or {}, pod["metadata"], pod.get("spec") or {}
    return (
        meta.get("labels"),
        status.get("podIP"),
        status.get("phase"),
        ready(pod),
        "deletionTimestamp" in meta,
        spec.get("nodeName"),
    )


def _labels(service: Json, own: Json) -> Json:
    labels = {**(service["metadata"].get("labels") or {}), **own}
    if service["spec"].get("clusterIP") == "None":
        labels[HEADLESS] = ""
    return labels


def _differs(current: Json, body: Json, *fields: str) -> bool:
    now, new = current["metadata"], body["metadata"]
    if now.get("labels") != new["labels"] or (now.get("annotations") or {}) != (new.get("annotations") or {}):
        return True
    return any((current.get(field) or []) != (body.get(field) or []) for field in fields)
