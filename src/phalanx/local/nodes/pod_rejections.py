"""Return why a node rejects a pod, as (reason, message), or None for a pod that may start."""

from __future__ import annotations

from phalanx.local.nodes.node_capacity import Amounts, HostPort, NodeUsage
from phalanx.local.nodes.views import KubeletNode, KubeletPod

# Kubernetes 1.37: sysctls that are apart from node to pod, so that no pod can disturb another with them.
SAFE_SYSCTLS = frozenset({
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start", "net.ipv4.ip_local_reserved_ports", "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
})  # fmt: skip


def unsuitable(pod: KubeletPod, node: KubeletNode) -> tuple[str, str] | None:
    if pod.spec.os is not None and pod.spec.os.name != node.os:
        text = f"Pod is for the operating system {pod.spec.os.name}, and this node runs {node.os}"
        return "PodOSNotSupported", text
    context = pod.spec.security_context
    for sysctl in (context.sysctls if context is not None else None) or ():
        if sysctl.name.replace("/", ".") not in SAFE_SYSCTLS:
            return "SysctlForbidden", f'forbidden sysctl: "{sysctl.name}" not allowlisted'
    return None


def no_room(ledger: NodeUsage, requests: Amounts, ports: tuple[HostPort, ...]) -> tuple[str, str] | None:
    if shortage := ledger.shortage(requests):
        return shortage.reason, f"Pod was rejected: {shortage.message}"
    if ports and ledger.ports_taken(ports):
        why = "node(s) didn't have free ports for the requested pod ports"
        return "NodePorts", f"Pod was rejected: Predicate NodePorts failed: {why}"
    return None
