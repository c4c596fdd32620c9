"""ConfigMap, Secret and Service: keys, sizes, immutability; ports and addresses."""

from __future__ import annotations

import base64
import hashlib

from phalanx.model import names
from phalanx.model.fieldpath import (
    all_invalid,
    duplicate,
    forbidden,
    immutable,
    invalid,
    not_supported,
    required,
    too_long,
)
from phalanx.model.gates import Gates
from phalanx.model.kinds import FieldError, Json
from phalanx.model.rules.assembly import OwnRules
from phalanx.model.rules.meta import label_errors

MAX_SIZE = 1024 * 1024  # bytes of all values together
_STICKY_SECONDS = 10_800  # default session affinity of a client to its pod
_SEALED = "field is immutable when `immutable` is set"


def _keys(obj: Json, *fields: str) -> list[FieldError]:
    errors: list[FieldError] = []
    seen: set[str] = set()
    size = 0
    for field in fields:
        for key, value in (obj.get(field) or {}).items():
            path = f"{field}[{key}]"
            errors += all_invalid(path, key, names.config_key(key))
            if key in seen:
                errors.append(invalid(path, key, f"duplicate of key present in {fields[0]}"))
            seen.add(key)
            size += len(value) if field == "data" and len(fields) > 1 else len(value) * 3 // 4
    if size > MAX_SIZE:
        errors.append(too_long("", MAX_SIZE))
    return errors


def _sealed(new: Json, old: Json, *fields: str) -> list[FieldError]:
    if not old.get("immutable"):
        return []
    errors: list[FieldError] = []
    if not new.get("immutable"):
        errors.append(forbidden("immutable", _SEALED))
    return errors + [forbidden(field, _SEALED) for field in fields if (new.get(field) or {}) != (old.get(field) or {})]


def config_map(gates: Gates) -> OwnRules:
    return OwnRules(
        errors=lambda obj: _keys(obj, "data", "binaryData"),
        update=lambda new, old: _sealed(new, old, "data", "binaryData"),
    )


_NEEDED_KEYS = {
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
}


def secret(gates: Gates) -> OwnRules:
    def default(obj: Json) -> None:
        if not obj.get("type"):
            obj["type"] = "Opaque"
        plain = obj.pop("stringData", None)  # write-only: it is stored as data
        if plain:
            data = obj.get("data")
            if data is None:
                data = obj["data"] = {}
            for key, value in plain.items():
                data[key] = base64.b64encode(value.encode()).decode()

    def errors_of(obj: Json) -> list[FieldError]:
        errors = _keys(obj, "data")
        for key in _NEEDED_KEYS.get(obj.get("type") or "", ()):
            if key not in (obj.get("data") or {}):
                errors.append(required(f"data[{key}]"))
        return errors

    def update(new: Json, old: Json) -> list[FieldError]:
        errors: list[FieldError] = []
        if new.get("type") != old.get("type"):
            errors.append(immutable("type", new.get("type") or ""))
        return errors + _sealed(new, old, "data")

    return OwnRules(default=default, errors=errors_of, update=update)


# -- Service ---------------------------------------------------------------------------------------------------------

_TYPES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")


def _service_default(obj: Json) -> None:
    spec: Json = obj.setdefault("spec", {})
    spec.setdefault("sessionAffinity", "None")
    if spec["sessionAffinity"] == "ClientIP":
        client = spec.setdefault("sessionAffinityConfig", {}).setdefault("clientIP", {})
        client.setdefault("timeoutSeconds", _STICKY_SECONDS)
    if not spec.get("type"):
        spec["type"] = "ClusterIP"
    for port in spec.get("ports") or ():
        if not port.get("protocol"):
            port["protocol"] = "TCP"
        if not port.get("targetPort"):
            port["targetPort"] = port.get("port")
    if spec["type"] == "ExternalName":
        return
    spec.setdefault("internalTrafficPolicy", "Cluster")
    if spec["type"] in ("NodePort", "LoadBalancer"):
        spec.setdefault("externalTrafficPolicy", "Cluster")
    if spec["type"] == "LoadBalancer":
        spec.setdefault("allocateLoadBalancerNodePorts", True)


def _addresses(new: Json, old: Json | None) -> None:
    """Set the cluster IPs and IP families of a Service.

    No traffic is routed to these addresses; users and clients expect to see one.
    """
    spec: Json = new.setdefault("spec", {})
    if spec.get("type") == "ExternalName":
        return
    before: Json = (old or {}).get("spec") or {}
    if not spec.get("clusterIP"):
        spec["clusterIP"] = before.get("clusterIP") or _address(new.get("metadata") or {})
    if not spec.get("clusterIPs"):
        spec["clusterIPs"] = [spec["clusterIP"]]
    spec.setdefault("ipFamilies", before.get("ipFamilies") or ["IPv4"])
    spec.setdefault("ipFamilyPolicy", before.get("ipFamilyPolicy") or "SingleStack")


def _address(meta: Json) -> str:
    digest = hashlib.sha256(f"{meta.get('namespace')}/{meta.get('name')}".encode()).digest()
    return f"10.{96 + digest[0] % 16}.{digest[1]}.{1 + digest[2] % 254}"


def _service_errors(obj: Json) -> list[FieldError]:
    spec: Json = obj.get("spec") or {}
    kind, ports = spec.get("type"), spec.get("ports") or []
    errors: list[FieldError] = []
    if not ports and kind != "ExternalName" and spec.get("clusterIP") != "None":
        errors.append(required("spec.ports"))
    errors += _service_ports(ports, kind)
    if kind not in _TYPES:
        errors.append(not_supported("spec.type", kind or "", _TYPES))
    errors += label_errors(spec.get("selector"), "spec.selector")
    if spec.get("sessionAffinity") not in (None, "ClientIP", "None"):
        errors.append(not_supported("spec.sessionAffinity", spec["sessionAffinity"], ("ClientIP", "None")))
    for index, address in enumerate(spec.get("externalIPs") or ()):
        errors += all_invalid(f"spec.externalIPs[{index}]", address, names.ip_address(address))
    for field in ("externalTrafficPolicy", "internalTrafficPolicy"):
        if spec.get(field) not in (None, "", "Cluster", "Local"):
            errors.append(not_supported(f"spec.{field}", spec[field], ("Cluster", "Local")))
    if kind == "ExternalName":
        name = (spec.get("externalName") or "").rstrip(".")
        if not name:
            errors.append(required("spec.externalName"))
        else:
            errors += all_invalid("spec.externalName", spec["externalName"], names.dns_subdomain(name))
    elif kind in ("NodePort", "LoadBalancer") and spec.get("clusterIP") == "None":
        errors.append(invalid("spec.clusterIPs[0]", "None", f"may not be set to 'None' for {kind} services"))
    return errors


def _service_ports(ports: list[Json], kind: str | None) -> list[FieldError]:
    errors: list[FieldError] = []
    seen: set[str] = set()
    places: set[tuple[str | None, int | None]] = set()
    for index, port in enumerate(ports):
        at = f"spec.ports[{index}]"
        name = port.get("name") or ""
        if name:
            errors += all_invalid(f"{at}.name", name, names.dns_label(name))
            if name in seen:
                errors.append(duplicate(f"{at}.name", name))
        elif len(ports) > 1:
            errors.append(required(f"{at}.name"))
        seen.add(name)
        errors += all_invalid(f"{at}.port", port.get("port") or 0, names.port_number(port.get("port") or 0))
        if port.get("protocol") not in ("TCP", "UDP", "SCTP"):
            errors.append(not_supported(f"{at}.protocol", port.get("protocol") or "", ("SCTP", "TCP", "UDP")))
        errors += all_invalid(f"{at}.targetPort", port.get("targetPort") or 0, names.port(port.get("targetPort")))
        if port.get("nodePort") and kind not in ("NodePort", "LoadBalancer"):
            errors.append(forbidden(f"{at}.nodePort", "may not be used when `type` is 'ClusterIP'"))
        place = (port.get("protocol"), port.get("port"))
        if place in places:
            shown = {field: port[field] for field in ("protocol", "port") if port.get(field)}
            errors.append(duplicate(at, shown))
        places.add(place)
    return errors


def service(gates: Gates) -> OwnRules:
    def update(new: Json, old: Json) -> list[FieldError]:
        errors = _service_errors(new)
        spec, before = new.get("spec") or {}, old.get("spec") or {}
        routed = "ExternalName" not in (spec.get("type"), before.get("type"))
        if routed and before.get("clusterIP") and spec.get("clusterIP") != before["clusterIP"]:
            errors.append(invalid("spec.clusterIPs[0]", spec.get("clusterIPs") or [], "may not change once set"))
        return errors

    return OwnRules(
        default=_service_default, create=_service_errors, update=update, prepare=_addresses, name=names.dns_label
    )
