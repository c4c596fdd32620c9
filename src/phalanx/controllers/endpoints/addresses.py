"""Compute the addresses of a Service: its pods, their ports and readiness. Pure functions."""

from __future__ import annotations

from typing import Any, NamedTuple

from phalanx.controllers.runtime.controller import Key
from phalanx.controllers.runtime.ownership import deleting
from phalanx.controllers.runtime.pods import finished, ready
from phalanx.model.kinds import Json

SOON = 0.05  # seconds in which changes are combined
SERVICE_NAME = "kubernetes.io/service-name"
Ports = tuple[tuple[str, int, str, str], ...]  # name, number, protocol, application protocol


class EndpointAddress(NamedTuple):
    ip: str
    node: str
    namespace: str
    pod: str
    uid: str
    hostname: str
    ready: bool  # it may receive traffic
    serving: bool  # the pod is ready
    terminating: bool


def addresses_of(service: Json, pods: list[Json]) -> dict[Ports, list[EndpointAddress]]:
    """Return addresses by resolved ports: a named port may differ from pod to pod."""
    spec: Json = service["spec"]
    anyway = bool(spec.get("publishNotReadyAddresses"))
    found: dict[Ports, list[EndpointAddress]] = {}
    for pod in pods:
        ip = (pod.get("status") or {}).get("podIP")
        if not ip or finished(pod):
            continue
        meta, pod_spec = pod["metadata"], pod.get("spec") or {}
        serving, terminating = ready(pod), deleting(pod)
        named = pod_spec.get("subdomain") == service["metadata"]["name"]
        address = EndpointAddress(
            ip,
            pod_spec.get("nodeName") or "",
            meta["namespace"],
            meta["name"],
            meta["uid"],
            (pod_spec.get("hostname") or "") if named else "",
            anyway or (serving and not terminating),
            serving,
            terminating,
        )
        found.setdefault(_ports(spec.get("ports") or (), pod_spec), []).append(address)
    for addresses in found.values():
        addresses.sort()
    return found


def _ports(ports: Any, pod: Json) -> Ports:
    found = []
    for port in ports:
        protocol = port.get("protocol") or "TCP"
        number = port.get("targetPort") or port.get("port")
        if isinstance(number, str):
            number = _named(number, protocol, pod)
        if number:
            found.append((port.get("name") or "", int(number), protocol, port.get("appProtocol") or ""))
    return tuple(found)


def _named(name: str, protocol: str, pod: Json) -> int:
    for container in pod.get("containers") or ():
        for port in container.get("ports") or ():
            if port.get("name") == name and (port.get("protocol") or "TCP") == protocol:
                return int(port["containerPort"])
    return 0


def port_list(ports: Ports, *, unnamed: bool) -> list[Json]:
    """Return ports as written in an EndpointSlice (`unnamed`: with empty names) or in Endpoints."""
    found: list[Json] = []
    for name, number, protocol, application in ports:
        entry: Json = {"name": name} if name or unnamed else {}
        entry |= {"port": number, "protocol": protocol}
        found.append(entry | ({"appProtocol": application} if application else {}))
    return found


def _reference(address: EndpointAddress) -> Json:
    return {"kind": "Pod", "namespace": address.namespace, "name": address.pod, "uid": address.uid}


def slice_entry(address: EndpointAddress, zone: str) -> Json:
    entry: Json = {
        "addresses": [address.ip],
        "conditions": {
            "ready": address.ready,
            "serving": address.serving,
            "terminating": address.terminating,
        },
        "targetRef": _reference(address),
    }
    if address.hostname:
        entry["hostname"] = address.hostname
    if address.node:
        entry["nodeName"] = address.node
    if zone:
        entry["zone"] = zone
    return entry


def subsets(found: dict[Ports, list[EndpointAddress]], limit: int) -> tuple[list[Json], bool]:
    """Return the subsets of Endpoints, and whether addresses were omitted."""
    made: list[Json] = []
    left, truncated = limit, False
    for ports, addresses in sorted(found.items()):
        usable = [address for address in addresses if address.ready or not address.terminating]
        truncated = truncated or len(usable) > left
        usable = usable[:left]
        left -= len(usable)
        subset: Json = {}
        for field, wanted in (("addresses", True), ("notReadyAddresses", False)):
            entries = [_entry(address) for address in usable if address.ready is wanted]
            if entries:
                subset[field] = entries
        if subset:
            made.append(subset | ({"ports": port_list(ports, unnamed=False)} if ports else {}))
    return made, truncated


def _entry(address: EndpointAddress) -> Json:
    entry: Json = {"ip": address.ip, "targetRef": _reference(address)}
    if address.hostname:
        entry["hostname"] = address.hostname
    if address.node:
        entry["nodeName"] = address.node
    return entry


def by_service(manager: Json, entry: Json) -> list[str]:
    """Index a slice that a controller made by its Service. `manager`: the label of that controller."""
    labels: Json = entry["metadata"].get("labels") or {}
    mine = manager.items() <= labels.items() and labels.get(SERVICE_NAME)
    return [f"{entry['metadata']['namespace']}/{labels[SERVICE_NAME]}"] if mine else []


def services_of(manager: Json, *entries: Json | None) -> list[Key]:
    return [Key(*name.split("/")) for entry in entries if entry is not None for name in by_service(manager, entry)]
