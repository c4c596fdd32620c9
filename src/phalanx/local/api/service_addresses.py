"""Allocate addresses and node ports of Services, each to one Service at a time.

The first allocation reads the existing Services from the store. No traffic is routed to these addresses, but a manifest
that requests an address or a port of another Service is refused as on a real cluster.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
from collections.abc import Iterator

from phalanx.base.well_known import API_SERVER_ADDRESS
from phalanx.local.api.view import decode
from phalanx.local.store.contract import StoreProtocol
from phalanx.model.fieldpath import invalid
from phalanx.model.kinds import FieldError, Json

RANGE = ipaddress.ip_network("10.96.0.0/12")
FIRST_PORT, LAST_PORT = 30000, 32767
_SERVICES, _CIDRS = "services", "servicecidrs.networking.k8s.io"
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Holder = tuple[str, str]  # namespace, name
PORTED = ("NodePort", "LoadBalancer")


class ServiceAddresses:
    def __init__(self, store: StoreProtocol) -> None:
        self._store = store
        self._ips: dict[str, Holder] = {}
        self._ports: dict[int, Holder] = {}
        self._known = False

    def assign(self, service: Json, namespace: str, old: Json | None) -> list[FieldError]:
        """Assign the address and node ports that a Service lacks.

        Return an error for each requested address that another Service has.
        """
        if not self._known:
            self._read_existing()
        spec: Json = service.setdefault("spec", {})
        holder = (namespace, str((service.get("metadata") or {}).get("name") or ""))
        errors: list[FieldError] = []
        if spec.get("type") != "ExternalName":
            errors += self._address(spec, holder, ((old or {}).get("spec")) or {})
        errors += self._node_ports(spec, holder, ((old or {}).get("spec")) or {})
        return errors

    def _read_existing(self) -> None:
        for entry in self._store.list(_SERVICES):
            self._add(decode(entry.value).get("spec") or {}, (entry.key[1], entry.key[2]))
        self._known = True

    def _add(self, spec: Json, holder: Holder) -> None:
        """Record the addresses and node ports of one Service."""
        if spec.get("clusterIP") not in (None, "", "None"):
            self._ips[spec["clusterIP"]] = holder
        for port in spec.get("ports") or ():
            if port.get("nodePort"):
                self._ports[port["nodePort"]] = holder

    def _taken(self, known: Holder | None, holder: Holder, what: str, value: object) -> bool:
        """Return True if the store confirms that another Service, the known holder, still has the value."""
        if known is None or known == holder:
            return False
        entry = self._store.latest((_SERVICES, *known))
        if entry is None:
            return False
        spec: Json = decode(entry.value).get("spec") or {}
        if what == "ip":
            return bool(spec.get("clusterIP") == value)
        return any(port.get("nodePort") == value for port in spec.get("ports") or ())

    def _address(self, spec: Json, holder: Holder, before: Json) -> list[FieldError]:
        wanted = spec.get("clusterIP") or before.get("clusterIP")
        if wanted == "None":
            return []
        if not wanted:
            wanted = next(ip for ip in _addresses(holder) if not self._taken(self._ips.get(ip), holder, "ip", ip))
            spec["clusterIP"] = wanted
        elif wanted != before.get("clusterIP"):
            ranges = self._ranges()
            try:
                inside = any(ipaddress.ip_address(wanted) in each for each in ranges)
            except ValueError:
                text = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
                return [invalid("spec.clusterIPs[0]", wanted, text)]
            if not inside:
                text = f"failed to allocate IP {wanted}: the provided IP ({wanted}) is not in the valid range. "
                text += f"The range of valid IPs is {', '.join(map(str, ranges))}"
                return [invalid("spec.clusterIPs", [wanted], text)]
            if self._taken(self._ips.get(wanted), holder, "ip", wanted):
                text = f"failed to allocate IP {wanted}: provided IP is already allocated"
                return [invalid("spec.clusterIPs", [wanted], text)]
        self._ips[wanted] = holder
        return []

    def _ranges(self) -> list[Network]:
        """Return the default range, and those of ServiceCIDRs that are not being deleted."""
        found: dict[Network, None] = {RANGE: None}
        for entry in self._store.list(_CIDRS):
            body = decode(entry.value)
            if not body["metadata"].get("deletionTimestamp"):
                for text in (body.get("spec") or {}).get("cidrs") or ():
                    with contextlib.suppress(ValueError):
                        found[ipaddress.ip_network(text)] = None
        return list(found)

    def _node_ports(self, spec: Json, holder: Holder, before: Json) -> list[FieldError]:
        ports = spec.get("ports") or []
        opened = spec.get("type") == "NodePort" or (
            spec.get("type") == "LoadBalancer" and spec.get("allocateLoadBalancerNodePorts") is not False
        )
        if spec.get("type") not in PORTED:
            if before.get("type") in PORTED:
                for port in ports:  # released, unless requested explicitly, which validation reports
                    port.pop("nodePort", None)
            return []
        had = {(port.get("port"), port.get("protocol")): port.get("nodePort") for port in before.get("ports") or ()}
        errors: list[FieldError] = []
        for index, port in enumerate(ports):
            wanted = port.get("nodePort") or had.get((port.get("port"), port.get("protocol")))
            if not wanted:
                if not opened:
                    continue
                wanted = next((p for p in _free_ports(holder, index) if not self._port_taken(p, holder)), None)
                if wanted is None:
                    return [invalid(f"spec.ports[{index}].nodePort", 0, "failed to allocate a nodePort: range is full")]
            elif not FIRST_PORT <= wanted <= LAST_PORT:
                text = f"provided port is not in the valid range. The range of valid ports is {FIRST_PORT}-{LAST_PORT}"
                errors.append(invalid(f"spec.ports[{index}].nodePort", wanted, text))
                continue
            elif self._port_taken(wanted, holder):
                errors.append(invalid(f"spec.ports[{index}].nodePort", wanted, "provided port is already allocated"))
                continue
            port["nodePort"] = wanted
            self._ports[wanted] = holder
        return errors

    def _port_taken(self, port: int, holder: Holder) -> bool:
        return self._taken(self._ports.get(port), holder, "port", port)


def _start(holder: Holder, salt: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{salt}{holder[0]}/{holder[1]}".encode()).digest()[:8], "big")


def _addresses(holder: Holder) -> Iterator[str]:
    """Yield all addresses of the range, from a start that depends on the Service.

    The same Service gets the same address every time.
    """
    size, start = RANGE.num_addresses - 2, _start(holder, "")
    for step in range(size):
        found = str(RANGE[1 + (start + step) % size])
        if found != API_SERVER_ADDRESS:
            yield found


def _free_ports(holder: Holder, index: int) -> Iterator[int]:
    size, start = LAST_PORT - FIRST_PORT + 1, _start(holder, str(index))
    return (FIRST_PORT + (start + step) % size for step in range(size))
