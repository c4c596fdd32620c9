"""Mirror Endpoints written by users into EndpointSlices, for Services that select no pods.

Services with a selector have slices of their pods. Endpoints that disable mirroring, and those used as leader election
locks, are skipped.
"""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from phalanx.base import resources as r
from phalanx.base.errors import NotFound
from phalanx.base.well_known import LAST_APPLIED
from phalanx.controllers.endpoints.addresses import SERVICE_NAME, SOON, by_service, services_of
from phalanx.controllers.runtime.controller import Caches, Controller, Json, Key
from phalanx.controllers.runtime.ownership import controller_reference, deleting

PER_SUBSET = 1000
MIRRORED_BY = {"endpointslice.kubernetes.io/managed-by": "endpointslicemirroring-controller.k8s.io"}
SKIP = "endpointslice.kubernetes.io/skip-mirror"
LEADER = "control-plane.alpha.kubernetes.io/leader"
_NOT_COPIED = (LAST_APPLIED, "endpoints.kubernetes.io/last-change-trigger-time")


class MirroringController(Controller):
    name = "endpointslice mirroring"

    def __init__(self, caches: Caches) -> None:
        super().__init__()
        self._services = caches.of(r.SERVICES)
        self._endpoints = caches.of(r.ENDPOINTS)
        self._slices = caches.of(r.ENDPOINT_SLICES)
        self._slices.index("mirrored", partial(by_service, MIRRORED_BY))
        self._services.on_change(lambda key, new, old: self.queue.add_after(key, SOON))
        self._endpoints.on_change(lambda key, new, old: self.queue.add_after(key, SOON))
        self._slices.on_change(self._slice_changed)

    def _slice_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        for found in services_of(MIRRORED_BY, new, old):
            self.queue.add_after(found, SOON)

    async def reconcile(self, key: Key) -> None:
        there = [
            entry for entry in self._slices.by_index("mirrored", f"{key.namespace}/{key.name}") if not deleting(entry)
        ]
        there.sort(key=lambda entry: str(entry["metadata"]["name"]))
        service, endpoints = self._services.get(*key), self._endpoints.get(*key)
        wanted: dict[tuple[str, str], Json] = {}
        if service is not None and endpoints is not None and _mirrored(service, endpoints):
            wanted = slices_of(endpoints)
        for entry in there:
            body = wanted.pop(_kind_of(entry), None)
            if body is None:
                await self._slices.delete(entry)
            elif _differs(entry, body):
                body["metadata"] |= {name: entry["metadata"][name] for name in ("name", "namespace", "resourceVersion")}
                with suppress(NotFound):
                    await self._slices.update(body)
        for body in wanted.values():
            body["metadata"] |= {"generateName": f"{key.name}-", "namespace": key.namespace}
            await self._slices.create(body)


def slices_of(endpoints: Json) -> dict[tuple[str, str], Json]:
    """Return (ports, address type) -> slice."""
    found: dict[tuple[str, str], Json] = {}
    for subset in endpoints.get("subsets") or ():
        ports = [_port(port) for port in subset.get("ports") or ()]
        listed = [(address, True) for address in subset.get("addresses") or ()]
        listed += [(address, False) for address in subset.get("notReadyAddresses") or ()]
        for address, ready in listed[:PER_SUBSET]:
            family = _family(address.get("ip") or "")
            if not family:
                continue
            body = found.setdefault((_text(ports), family), _slice(endpoints, ports, family))
            body["endpoints"].append(_endpoint(address, ready))
    return found


def _slice(endpoints: Json, ports: list[Json], family: str) -> Json:
    meta: Json = endpoints["metadata"]
    copied = {key: value for key, value in (meta.get("annotations") or {}).items() if key not in _NOT_COPIED}
    metadata: Json = {
        "labels": {**(meta.get("labels") or {}), SERVICE_NAME: meta["name"], **MIRRORED_BY},
        "ownerReferences": [controller_reference(endpoints, r.ENDPOINTS)],
    }
    if copied:
        metadata["annotations"] = copied
    return {
        "apiVersion": r.ENDPOINT_SLICES.api_version,
        "kind": "EndpointSlice",
        "metadata": metadata,
        "addressType": family,
        "endpoints": [],
        "ports": ports,
    }


def _port(port: Json) -> Json:
    made: Json = {"name": port.get("name") or "", "port": port.get("port"), "protocol": port.get("protocol") or "TCP"}
    if port.get("appProtocol"):
        made["appProtocol"] = port["appProtocol"]
    return made


def _endpoint(address: Json, ready: bool) -> Json:
    made: Json = {"addresses": [address["ip"]], "conditions": {"ready": ready}}
    for field in ("hostname", "nodeName", "targetRef"):
        if address.get(field):
            made[field] = address[field]
    return made


def _family(ip: str) -> str:
    try:
        return f"IPv{ipaddress.ip_address(ip).version}"
    except ValueError:
        return ""


def _text(ports: Any) -> str:
    return msgspec.json.encode(ports or [], order="deterministic").decode()


def _kind_of(entry: Json) -> tuple[str, str]:
    return _text(entry.get("ports")), entry.get("addressType") or ""


def _mirrored(service: Json, endpoints: Json) -> bool:
    meta: Json = endpoints["metadata"]
    if deleting(service) or deleting(endpoints) or service["spec"].get("selector"):
        return False
    return (meta.get("labels") or {}).get(SKIP) != "true" and LEADER not in (meta.get("annotations") or {})


def _differs(current: Json, body: Json) -> bool:
    now, new = current["metadata"], body["metadata"]
    if any((now.get(field) or {}) != (new.get(field) or {}) for field in ("labels", "annotations")):
        return True
    return bool((current.get("endpoints") or []) != body["endpoints"])
