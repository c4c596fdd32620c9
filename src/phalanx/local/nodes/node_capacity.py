"""The admission check of a kubelet: does a pod fit on its node?"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from phalanx.local.nodes.views import KubeletContainer, KubeletNode, KubeletPod
from phalanx.model.objects.pod import ResourceRequirements, Resources
from phalanx.model.pod_amounts import add, effective
from phalanx.model.quantity import NANO, BadQuantity, parse

Amounts = dict[str, int]  # resource -> nano-units
MOST_SHAPES = 1024

_shapes: dict[tuple[tuple[str, int], ...], Amounts] = {}  # one table per distinct set of requests


def _shared(found: Amounts) -> Amounts:
    """Return the shared table of these requests; it must not be changed."""
    shape = tuple(found.items())
    known = _shapes.get(shape)
    if known is None:
        if len(_shapes) >= MOST_SHAPES:
            _shapes.clear()
        known = _shapes[shape] = found
    return known


def amounts(resources: Resources | None) -> Amounts:
    found: Amounts = {}
    for name, text in (resources or {}).items():
        try:
            found[name] = parse(text).nanos
        except BadQuantity:
            continue  # another API server may not validate quantities
    return found


def _requests(resources: ResourceRequirements) -> Amounts:
    # A limit without a request is the request.
    return {**amounts(resources.limits), **amounts(resources.requests)}


def pod_requests(pod: KubeletPod) -> Amounts:
    """Return what a pod requests: the larger of all containers and the peak during initialization, plus overhead.

    Resources that a claim of the pod serves (KEP-5004) are not those of the node.
    """
    claim = pod.status.extended_resource_claim_status
    by_claim = {(each.container_name, each.resource_name) for each in claim.request_mappings} if claim else ()

    def of(container: KubeletContainer) -> Amounts:
        found = _requests(container.resources)
        return {n: amount for n, amount in found.items() if (container.name, n) not in by_claim} if by_claim else found

    total = effective(
        (of(container) for container in pod.spec.containers),
        ((each.restart_policy == "Always", of(each)) for each in pod.spec.init_containers or ()),
    )
    if pod.spec.resources is not None:
        total |= _requests(pod.spec.resources)  # pod-level amounts replace the sum of the containers
    add(total, amounts(pod.spec.overhead))
    return _shared({name: amount for name, amount in total.items() if amount})


HostPort = tuple[str, str, int]  # address ("" for any), protocol, number


def host_ports(pod: KubeletPod) -> tuple[HostPort, ...]:
    found = [
        ("" if port.host_ip in ("", "0.0.0.0", "::") else port.host_ip, port.protocol or "TCP", port.host_port)
        for container in (*pod.spec.containers, *(pod.spec.init_containers or ()))
        for port in container.ports or ()
        if port.host_port
    ]
    return tuple(found)


class NodeShortage(msgspec.Struct, frozen=True):
    resource: str
    requested: int
    used: int
    capacity: int

    @property
    def reason(self) -> str:
        return f"OutOf{self.resource}"

    @property
    def message(self) -> str:
        unit = NANO // 1000 if self.resource == "cpu" else NANO  # cpu is reported in thousandths
        figures = (-(-self.requested // unit), -(-self.used // unit), self.capacity // unit)
        return f"{self.short}, requested: {figures[0]}, used: {figures[1]}, capacity: {figures[2]}"

    @property
    def short(self) -> str:
        return f"Node didn't have enough resource: {self.resource}"


class NodeUsage(msgspec.Struct):
    """The resources that the pods of one node use."""

    allocatable: Amounts
    used: Amounts = msgspec.field(default_factory=dict)
    pods: dict[str, Amounts] = msgspec.field(default_factory=dict)  # uid -> requests
    ports: dict[str, tuple[HostPort, ...]] = msgspec.field(default_factory=dict)  # uid -> host ports, if any

    def shortage(self, requests: Amounts) -> NodeShortage | None:
        if not self.allocatable:
            return None  # a node without allocatable has no limits
        slots = self.allocatable.get("pods", 0)
        if (len(self.pods) + 1) * NANO > slots:
            return NodeShortage("pods", NANO, len(self.pods) * NANO, slots)
        for name in _in_order(requests):
            capacity, used = self.allocatable.get(name, 0), self.used.get(name, 0)
            if requests[name] > capacity - used:
                return NodeShortage(name, requests[name], used, capacity)
        return None

    def shortage_for(self, uid: str, requests: Amounts) -> NodeShortage | None:
        """Return the resource that a pod on this node lacks to grow to `requests`; None if it fits.

        `used` of the answer is what the other pods use.
        """
        held = self.pods.get(uid, {})
        for name in _in_order(requests) if self.allocatable else ():
            capacity, used = self.allocatable.get(name, 0), self.used.get(name, 0) - held.get(name, 0)
            if requests[name] > max(capacity - used, held.get(name, 0)):
                return NodeShortage(name, requests[name], used, capacity)
        return None

    def ports_taken(self, wanted: tuple[HostPort, ...]) -> bool:
        return any(
            protocol == other and number == taken and (not address or not where or address == where)
            for address, protocol, number in wanted
            for held in self.ports.values()
            for where, other, taken in held
        )

    def take(self, uid: str, requests: Amounts, ports: tuple[HostPort, ...] = ()) -> None:
        """Count a pod's requests and host ports on the node."""
        if uid not in self.pods:
            self.pods[uid] = requests
            add(self.used, requests)
            if ports:
                self.ports[uid] = ports

    def release(self, uid: str) -> None:
        self.ports.pop(uid, None)
        for name, amount in self.pods.pop(uid, {}).items():
            self.used[name] -= amount


def _in_order(requests: Amounts) -> Iterable[str]:
    first = [name for name in ("cpu", "memory", "ephemeral-storage") if name in requests]
    return first + sorted(name for name in requests if name not in first)


# Kubernetes 1.37: namespaced sysctls, with which no pod can affect another.
SAFE_SYSCTLS = frozenset({
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start", "net.ipv4.ip_local_reserved_ports", "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
})  # fmt: skip


def unsupported(pod: KubeletPod, node: KubeletNode) -> tuple[str, str] | None:
    if pod.spec.os is not None and pod.spec.os.name != node.os:
        text = f"Pod is for the operating system {pod.spec.os.name}, and this node runs {node.os}"
        return "PodOSNotSupported", text
    context = pod.spec.security_context
    for sysctl in (context.sysctls if context is not None else None) or ():
        if sysctl.name.replace("/", ".") not in SAFE_SYSCTLS:
            return "SysctlForbidden", f'forbidden sysctl: "{sysctl.name}" not allowlisted'
    return None


def insufficient(ledger: NodeUsage, requests: Amounts, ports: tuple[HostPort, ...]) -> tuple[str, str] | None:
    if shortage := ledger.shortage(requests):
        return shortage.reason, f"Pod was rejected: {shortage.message}"
    if ports and ledger.ports_taken(ports):
        why = "node(s) didn't have free ports for the requested pod ports"
        return "NodePorts", f"Pod was rejected: Predicate NodePorts failed: {why}"
    return None
