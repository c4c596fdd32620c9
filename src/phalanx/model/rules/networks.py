"""Endpoints, EndpointSlice, Ingress, IngressClass, NetworkPolicy, IPAddress, ServiceCIDR: validation.

Nothing routes here; what is refused is what a client could not have meant.
"""

from __future__ import annotations

import ipaddress

from phalanx.model import names
from phalanx.model.fieldpath import all_invalid, invalid, not_supported, required
from phalanx.model.gates import Gates
from phalanx.model.kinds import FieldError, Json
from phalanx.model.rules import placement
from phalanx.model.rules.assembly import OwnRules

_PATH_TYPES = ("Exact", "ImplementationSpecific", "Prefix")
_MANY = 100  # of the addresses of one endpoint


def _ip(value: str, path: str) -> list[FieldError]:
    return all_invalid(path, value, names.ip_address(value))


def endpoints(gates: Gates) -> OwnRules:
    def default(obj: Json) -> None:
        for subset in obj.get("subsets") or ():
            for port in subset.get("ports") or ():
                if not port.get("protocol"):
                    port["protocol"] = "TCP"

    def errors_of(obj: Json) -> list[FieldError]:
        errors: list[FieldError] = []
        for index, subset in enumerate(obj.get("subsets") or ()):
            at = f"subsets[{index}]"
            if not subset.get("addresses") and not subset.get("notReadyAddresses"):
                errors.append(required(at, "must specify `addresses` or `notReadyAddresses`"))
            for field in ("addresses", "notReadyAddresses"):
                for place, address in enumerate(subset.get(field) or ()):
                    errors += _ip(address.get("ip") or "", f"{at}.{field}[{place}].ip")
            for place, port in enumerate(subset.get("ports") or ()):
                number = port.get("port") or 0
                errors += all_invalid(f"{at}.ports[{place}].port", number, names.port_number(number))
        return errors

    return OwnRules(default=default, errors=errors_of)


def endpoint_slice(gates: Gates) -> OwnRules:
    def default(obj: Json) -> None:
        for port in obj.get("ports") or ():
            port.setdefault("name", "")
        for endpoint in obj.get("endpoints") or ():
            endpoint.setdefault("conditions", {})

    return OwnRules(default=default, errors=_slice_errors, shows_fixed=False)


def _slice_errors(obj: Json) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, port in enumerate(obj.get("ports") or ()):
        name = port.get("name") or ""
        errors += all_invalid(f"ports[{index}].name", name, names.dns_label(name) if name else [])
    for index, endpoint in enumerate(obj.get("endpoints") or ()):
        at = f"endpoints[{index}].addresses"
        addresses = endpoint.get("addresses") or []
        if not addresses:
            errors.append(required(at, "must contain at least 1 address"))
        elif len(addresses) > _MANY:
            errors.append(invalid(at, len(addresses), f"must have at most {_MANY} items"))
        elif obj.get("addressType") in ("IPv4", "IPv6"):
            for place, address in enumerate(addresses):
                errors += _ip(address, f"{at}[{place}]")
    return errors


def ingress(gates: Gates) -> OwnRules:
    def backend(found: Json, path: str) -> list[FieldError]:
        if found.get("service") is None and found.get("resource") is None:
            return [required(path, "a default backend must specify either service or resource")]
        service = found.get("service")
        if service is not None and not service.get("name"):
            return [required(f"{path}.service.name")]
        return []

    def errors_of(obj: Json) -> list[FieldError]:
        spec: Json = obj.get("spec") or {}
        if not spec.get("rules") and spec.get("defaultBackend") is None:
            return [invalid("spec", None, "either `defaultBackend` or `rules` must be specified")]
        errors = backend(spec["defaultBackend"], "spec.defaultBackend") if spec.get("defaultBackend") else []
        for index, rule in enumerate(spec.get("rules") or ()):
            for place, path in enumerate((rule.get("http") or {}).get("paths") or ()):
                at = f"spec.rules[{index}].http.paths[{place}]"
                kind = path.get("pathType")
                if not kind:
                    errors.append(required(f"{at}.pathType", "pathType must be specified"))
                elif kind not in _PATH_TYPES:
                    errors.append(not_supported(f"{at}.pathType", kind, _PATH_TYPES))
                elif kind != "ImplementationSpecific" and not str(path.get("path") or "").startswith("/"):
                    errors.append(invalid(f"{at}.path", path.get("path") or "", "must be an absolute path"))
                errors += backend(path.get("backend") or {}, f"{at}.backend")
        return errors

    return OwnRules(errors=errors_of)


def network_policy(gates: Gates) -> OwnRules:
    def default(obj: Json) -> None:
        spec: Json = obj.setdefault("spec", {})
        spec.setdefault("podSelector", {})
        if not spec.get("policyTypes"):
            spec["policyTypes"] = ["Ingress", "Egress"] if spec.get("egress") else ["Ingress"]

    return OwnRules(default=default, errors=_policy_errors)


def _policy_errors(obj: Json) -> list[FieldError]:
    spec: Json = obj.get("spec") or {}
    errors = placement.label_selector(spec.get("podSelector"), "spec.podSelector")
    for side, field in (("ingress", "from"), ("egress", "to")):
        for index, rule in enumerate(spec.get(side) or ()):
            for place, peer in enumerate(rule.get(field) or ()):
                if not any(value is not None for value in peer.values()):
                    errors.append(required(f"spec.{side}[{index}].{field}[{place}]", "must specify a peer"))
            for place, port in enumerate(rule.get("ports") or ()):
                errors += _last_port(port, f"spec.{side}[{index}].ports[{place}]")
    return errors


def _last_port(port: Json, at: str) -> list[FieldError]:
    first, last = port.get("port"), port.get("endPort")
    if last is None:
        return []
    if first is None:
        return [required(f"{at}.port", "must be specified when endPort is")]
    if isinstance(first, str):
        return [invalid(f"{at}.endPort", last, "may not be specified when `port` is non-numeric")]
    if last < first:
        return [invalid(f"{at}.endPort", last, "must be greater than or equal to `port`")]
    return all_invalid(f"{at}.endPort", last, names.port_number(last))


def ip_address(gates: Gates) -> OwnRules:
    return OwnRules(name=names.ip_address)


def service_cidr(gates: Gates) -> OwnRules:
    def create(obj: Json) -> list[FieldError]:
        ranges = (obj.get("spec") or {}).get("cidrs") or []
        if not ranges:
            return [required("spec.cidrs", "at least one CIDR required")]
        errors: list[FieldError] = []
        for index, value in enumerate(ranges):
            try:
                ipaddress.ip_network(value)
            except ValueError:
                text = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
                errors.append(invalid(f"spec.cidrs[{index}]", value, text))
        return errors

    return OwnRules(create=create)
