"""Printed columns of Services, Endpoints, Ingresses and network policies, and of kinds that are only stored."""

from __future__ import annotations

from typing import Any

from phalanx.model.kinds import Column, Json
from phalanx.model.printing.cells import (
    AGE,
    CONTAINERS,
    IMAGES,
    NAME,
    NONE,
    column,
    condition,
    count,
    human,
    pairs,
    selector_text,
    spec,
    status,
    text,
)

_SHOWN = 3  # of a list of addresses or ports; the rest is counted


def _some(items: list[str]) -> str:
    if not items:
        return NONE
    more = f" + {len(items) - _SHOWN} more..." if len(items) > _SHOWN else ""
    return ",".join(items[:_SHOWN]) + more


REPLICATION_CONTROLLER: tuple[Column, ...] = (
    NAME,
    count("Desired", "spec.replicas"),
    count("Current", "status.replicas"),
    count("Ready", "status.readyReplicas"),
    AGE,
    CONTAINERS,
    IMAGES,
    column("Selector", lambda obj, now: pairs(spec(obj).get("selector")), wide=True),
)


def _addresses(obj: Json, now: float) -> str:
    found: list[str] = []
    for subset in obj.get("subsets") or ():
        ports = [port.get("port") for port in subset.get("ports") or ()]
        for address in subset.get("addresses") or ():
            ip = address.get("ip") or ""
            found += [f"{ip}:{port}" for port in ports] if ports else [ip]
    return _some(found)


def _slice_ports(obj: Json, now: float) -> str:
    numbers = [str(port["port"]) if port.get("port") is not None else "*" for port in obj.get("ports") or ()]
    return _some(numbers) if numbers else "<unset>"


def _slice_addresses(obj: Json, now: float) -> str:
    found = [address for endpoint in obj.get("endpoints") or () for address in endpoint.get("addresses") or ()]
    return _some(found) if found else "<unset>"


ENDPOINTS: tuple[Column, ...] = (NAME, column("Endpoints", _addresses), AGE)
ENDPOINT_SLICE: tuple[Column, ...] = (
    NAME,
    column("AddressType", text("addressType", "")),
    column("Ports", _slice_ports),
    column("Endpoints", _slice_addresses),
    AGE,
)


def _hosts(obj: Json, now: float) -> str:
    hosts = [rule.get("host") for rule in spec(obj).get("rules") or () if rule.get("host")]
    return _some(hosts) if hosts else "*"


def _balancers(obj: Json, now: float) -> str:
    found = (status(obj).get("loadBalancer") or {}).get("ingress") or ()
    return ",".join(entry.get("ip") or entry.get("hostname") or "" for entry in found)


def _class_parameters(obj: Json, now: float) -> str:
    found: Json | None = spec(obj).get("parameters")
    if not found:
        return NONE
    kind = f"{found.get('kind')}.{found['apiGroup']}" if found.get("apiGroup") else str(found.get("kind"))
    return f"{kind}/{found.get('name')}"


def _parent(obj: Json, now: float) -> str:
    found: Json | None = spec(obj).get("parentRef")
    if not found:
        return NONE
    kind = f"{found.get('resource', '')}.{found['group']}" if found.get("group") else str(found.get("resource") or "")
    return "/".join(part for part in (kind.lower(), found.get("namespace"), found.get("name")) if part)


INGRESS: tuple[Column, ...] = (
    NAME,
    column("Class", text("spec.ingressClassName")),
    column("Hosts", _hosts),
    column("Address", _balancers),
    column("Ports", lambda obj, now: "80, 443" if spec(obj).get("tls") else "80"),
    AGE,
)
INGRESS_CLASS: tuple[Column, ...] = (
    NAME,
    column("Controller", text("spec.controller", "")),
    column("Parameters", _class_parameters),
    AGE,
)
NETWORK_POLICY: tuple[Column, ...] = (
    NAME,
    column("Pod-Selector", lambda obj, now: selector_text(spec(obj).get("podSelector"))),
    AGE,
)
IP_ADDRESS: tuple[Column, ...] = (NAME, column("ParentRef", _parent), AGE)
SERVICE_CIDR: tuple[Column, ...] = (
    NAME,
    column("CIDRs", lambda obj, now: ",".join(spec(obj).get("cidrs") or ())),
    AGE,
)


# -- kinds kept for others -------------------------------------------------------------------------------------------


def _scaled(obj: Json, now: float) -> str:
    target: Json = spec(obj).get("scaleTargetRef") or {}
    return f"{target.get('kind', '')}/{target.get('name', '')}"


def _measure(found: Json | None) -> str:
    found = found or {}
    if found.get("averageUtilization") is not None:
        return f"{found['averageUtilization']}%"
    return str(found.get("averageValue") or found.get("value") or "<unknown>")


def _targets(obj: Json, now: float) -> str:
    shown = []
    for metric in spec(obj).get("metrics") or ():
        source: Json = metric.get(str(metric.get("type") or "")[:1].lower() + str(metric.get("type") or "")[1:]) or {}
        name = f"{source['name']}: " if source.get("name") else ""
        shown.append(f"{name}<unknown>/{_measure(source.get('target'))}")
    return _some(shown)


HORIZONTAL_POD_AUTOSCALER: tuple[Column, ...] = (
    NAME,
    column("Reference", _scaled),
    column("Targets", _targets),
    column("MinPods", text("spec.minReplicas", "<unset>")),
    count("MaxPods", "spec.maxReplicas"),
    count("Replicas", "status.currentReplicas"),
    AGE,
)


def _asked_for(obj: Json, now: float) -> str:
    seconds = spec(obj).get("expirationSeconds")
    return NONE if seconds is None else human(seconds)


def _decision(obj: Json, now: float) -> str:
    found = [entry.get("type") for entry in status(obj).get("conditions") or ()]
    words = [word for word in ("Denied", "Approved") if word in found] or ["Pending"]
    words += ["Failed"] if "Failed" in found else []
    return ",".join(words + (["Issued"] if status(obj).get("certificate") else []))


CERTIFICATE_SIGNING_REQUEST: tuple[Column, ...] = (
    NAME,
    AGE,
    column("SignerName", text("spec.signerName", "")),
    column("Requestor", text("spec.username", "")),
    column("RequestedDuration", _asked_for),
    column("Condition", _decision),
)
FLOW_SCHEMA: tuple[Column, ...] = (
    NAME,
    column("PriorityLevel", text("spec.priorityLevelConfiguration.name", "")),
    count("MatchingPrecedence", "spec.matchingPrecedence"),
    column("DistinguisherMethod", text("spec.distinguisherMethod.type")),
    AGE,
    column("MissingPL", lambda obj, now: (condition(obj, "Dangling") or {}).get("status") or "?"),
)
PRIORITY_LEVEL: tuple[Column, ...] = (
    NAME,
    column("Type", text("spec.type", "")),
    column("NominalConcurrencyShares", text("spec.limited.nominalConcurrencyShares")),
    column("Queues", text("spec.limited.limitResponse.queuing.queues")),
    column("HandSize", text("spec.limited.limitResponse.queuing.handSize")),
    column("QueueLengthLimit", text("spec.limited.limitResponse.queuing.queueLengthLimit")),
    AGE,
)


def _migrated(obj: Json, now: float) -> str:
    found: Json = spec(obj).get("resource") or {}
    return ".".join(part for part in (found.get("resource"), found.get("group")) if part)


def _migration(obj: Json, now: float) -> Any:
    for word in ("Succeeded", "Failed", "Running"):
        if (condition(obj, word) or {}).get("status") == "True":
            return word
    return "Pending"


STORAGE_VERSION_MIGRATION: tuple[Column, ...] = (
    NAME,
    column("Resource", _migrated),
    column("Status", _migration),
)


def _server(obj: Json, now: float) -> str:
    service: Json | None = spec(obj).get("service")
    return f"{service.get('namespace', '')}/{service.get('name', '')}" if service else "Local"


def _available(obj: Json, now: float) -> str:
    found = condition(obj, "Available") or {}
    state, reason = found.get("status") or "Unknown", found.get("reason")
    return state if state == "True" or not reason else f"{state} ({reason})"


API_SERVICE: tuple[Column, ...] = (NAME, column("Service", _server), column("Available", _available), AGE)
RUNTIME_CLASS: tuple[Column, ...] = (NAME, column("Handler", text("handler", "")), AGE)
VOLUME_ATTACHMENT: tuple[Column, ...] = (
    NAME,
    column("Attacher", text("spec.attacher", "")),
    column("PV", text("spec.source.persistentVolumeName", "")),
    column("Node", text("spec.nodeName", "")),
    column("Attached", text("status.attached", False), type="boolean"),
    AGE,
)
VOLUME_ATTRIBUTES_CLASS: tuple[Column, ...] = (NAME, column("DriverName", text("driverName", "")), AGE)
DEVICE_TAINT_RULE: tuple[Column, ...] = (
    NAME,
    column("Driver", text("spec.deviceSelector.driver", "")),
    column("Pool", text("spec.deviceSelector.pool", "")),
    column("Device", text("spec.deviceSelector.device", "")),
    column("Key", text("spec.taint.key", "")),
    column("Value", text("spec.taint.value", "")),
    column("Effect", text("spec.taint.effect", "")),
    column("TimeAdded", text("spec.taint.timeAdded", "")),
)
