"""Plugins that look at one node: name, cordon, taints, affinity, ports, resources, images."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction

from phalanx.model import objects as o
from phalanx.model.objects.cluster import Taint
from phalanx.model.objects.pod import ContainerPort, NodeAffinity
from support.reference import quantity
from support.reference.cluster import Cluster
from support.reference.matching import (
    has_untolerated_taint,
    node_selector_matches,
    required_node_affinity_matches,
    term_matches_node,
    tolerated,
)
from support.reference.plugin import Plugin, Rejection, scale_to_100


class NodeName(Plugin):
    name = "NodeName"

    def filter(self, pod: o.Pod, node: o.Node, cluster: Cluster) -> Rejection | None:
        if pod.spec.node_name and pod.spec.node_name != node.metadata.name:
            return self.reject_for_good("node(s) didn't match the requested node name")
        return None


class NodeUnschedulable(Plugin):
    name = "NodeUnschedulable"

    def filter(self, pod: o.Pod, node: o.Node, cluster: Cluster) -> Rejection | None:
        cordon = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
        if node.spec.unschedulable and not tolerated(pod, cordon):
            return self.reject_for_good("node(s) were unschedulable")
        return None


class TaintToleration(Plugin):
    name = "TaintToleration"
    weight = 3

    def filter(self, pod: o.Pod, node: o.Node, cluster: Cluster) -> Rejection | None:
        if has_untolerated_taint(pod, node):
            return self.reject_for_good("node(s) had untolerated taint(s)")
        return None

    def score(self, pod: o.Pod, node: o.Node, feasible: list[o.Node], cluster: Cluster) -> int:
        return sum(t.effect == "PreferNoSchedule" and not tolerated(pod, t) for t in node.spec.taints or [])

    def normalise(self, raw: dict[str, int], pod: o.Pod, feasible: list[o.Node], cluster: Cluster) -> dict[str, int]:
        return scale_to_100(raw, reverse=True)


@dataclass
class NodeAffinityPlugin(Plugin):
    added: NodeAffinity | None = None
    name = "NodeAffinity"
    weight = 2

    def filter(self, pod: o.Pod, node: o.Node, cluster: Cluster) -> Rejection | None:
        if self.added and self.added.required and not node_selector_matches(self.added.required, node):
            return self.reject_for_good("node(s) didn't match scheduler-enforced node affinity")
        if not required_node_affinity_matches(pod, node):
            return self.reject_for_good("node(s) didn't match Pod's node affinity/selector")
        return None

    def score(self, pod: o.Pod, node: o.Node, feasible: list[o.Node], cluster: Cluster) -> int:
        own = pod.spec.affinity.node_affinity if pod.spec.affinity else None
        terms = [t for affinity in (self.added, own) if affinity for t in affinity.preferred or []]
        return sum(t.weight for t in terms if term_matches_node(t.preference, node))

    def normalise(self, raw: dict[str, int], pod: o.Pod, feasible: list[o.Node], cluster: Cluster) -> dict[str, int]:
        return scale_to_100(raw, reverse=False)


class NodePorts(Plugin):
    name = "NodePorts"

    def filter(self, pod: o.Pod, node: o.Node, cluster: Cluster) -> Rejection | None:
        taken = [port for other in cluster.pods_on(node) for port in host_ports(other)]
        if any(ports_collide(mine, theirs) for mine in host_ports(pod) for theirs in taken):
            return self.reject("node(s) didn't have free ports for the requested pod ports")
        return None


def host_ports(pod: o.Pod) -> list[ContainerPort]:
    """Return ports of containers and of sidecars; ordinary init containers end before the pod runs."""
    sidecars = [c for c in pod.spec.init_containers or [] if c.restart_policy == "Always"]
    return [p for c in [*sidecars, *pod.spec.containers] for p in c.ports or [] if p.host_port > 0]


def ports_collide(a: ContainerPort, b: ContainerPort) -> bool:
    if (a.protocol or "TCP", a.host_port) != (b.protocol or "TCP", b.host_port):
        return False
    ips = {a.host_ip or "0.0.0.0", b.host_ip or "0.0.0.0"}
    return len(ips) == 1 or "0.0.0.0" in ips


@dataclass
class NodeResourcesFit(Plugin):
    strategy: str = "LeastAllocated"
    resources: dict[str, int] = field(default_factory=lambda: {"cpu": 1, "memory": 1})  # name -> weight
    shape: list[tuple[int, int]] = field(default_factory=list)  # (utilization, score 0..10)
    ignored: tuple[str, ...] = ()
    ignored_groups: tuple[str, ...] = ()
    name = "NodeResourcesFit"
    weight = 1

    def filter(self, pod: o.Pod, node: o.Node, cluster: Cluster) -> Rejection | None:
        here = cluster.pods_on(node)
        reasons = []
        unresolvable = False
        if len(here) + 1 > quantity.allocatable(node, "pods"):
            reasons.append("Too many pods")
        asked = {n: q for n, q in quantity.pod_requests(pod).items() if q > 0 and not self._ignores(n)}
        first = [n for n in ("cpu", "memory", "ephemeral-storage") if n in asked]
        for name in [*first, *sorted(n for n in asked if n not in first)]:
            capacity = quantity.allocatable(node, name)
            used = sum(quantity.pod_requests(p).get(name, 0) for p in here)
            if asked[name] > capacity - used:
                reasons.append(f"Insufficient {name}")
                unresolvable = unresolvable or asked[name] > capacity
        return Rejection(self.name, tuple(reasons), unresolvable) if reasons else None

    def _ignores(self, name: str) -> bool:
        extended = "/" in name and not name.startswith("kubernetes.io/")
        return extended and (name in self.ignored or name.split("/")[0] in self.ignored_groups)

    def score(self, pod: o.Pod, node: o.Node, feasible: list[o.Node], cluster: Cluster) -> int:
        total = weights = 0
        for name, weight in self.resources.items():
            capacity = quantity.allocatable(node, name)
            mine = quantity.nonzero_requests(pod).get(name, 0)
            if capacity == 0 or (mine == 0 and is_scalar(name)):
                continue
            used = sum(quantity.nonzero_requests(p).get(name, 0) for p in cluster.pods_on(node)) + mine
            points = self._points(used, capacity)
            if self.strategy == "RequestedToCapacityRatio" and points <= 0:
                continue
            total += points * weight
            weights += weight
        if weights == 0:
            return 0
        if self.strategy == "RequestedToCapacityRatio":
            return round_half_up(Fraction(total, weights))
        return int(Fraction(total, weights))

    def _points(self, used: int, capacity: int) -> int:
        match self.strategy:
            case "LeastAllocated":
                return 0 if used > capacity else (capacity - used) * 100 // capacity
            case "MostAllocated":
                return min(used, capacity) * 100 // capacity
        utilization = 100 if used > capacity else used * 100 // capacity
        return broken_line([(u, s * 10) for u, s in self.shape], utilization)


def is_scalar(name: str) -> bool:
    """Return True for extended resources, huge pages and attachable volumes: scored only when the pod requests them."""
    return name not in ("cpu", "memory", "ephemeral-storage", "pods")


def round_half_up(value: Fraction) -> int:
    return math.floor(value + Fraction(1, 2))


def broken_line(points: list[tuple[int, int]], x: int) -> int:
    """Interpolate linearly between the points, constant outside; whole numbers, truncated towards zero."""
    for i, (right, high) in enumerate(points):
        if x <= right:
            if i == 0:
                return high
            left, low = points[i - 1]
            return low + int(Fraction((high - low) * (x - left), right - left))
    return points[-1][1]


@dataclass
class NodeResourcesBalancedAllocation(Plugin):
    resources: tuple[str, ...] = ("cpu", "memory")
    name = "NodeResourcesBalancedAllocation"
    weight = 1

    def score(self, pod: o.Pod, node: o.Node, feasible: list[o.Node], cluster: Cluster) -> int:
        asked = quantity.pod_requests(pod)
        if all(asked.get(name, 0) == 0 for name in self.resources):
            return 0
        with_pod, without_pod = [], []
        for name in self.resources:
            capacity = quantity.allocatable(node, name)
            mine = asked.get(name, 0)
            if capacity == 0 or (mine == 0 and is_scalar(name)):
                continue
            used = sum(quantity.pod_requests(p).get(name, 0) for p in cluster.pods_on(node))
            with_pod.append(min(1.0, (used + mine) / capacity))
            without_pod.append(min(1.0, used / capacity))
        return 50 + int((50 + balance(with_pod) - balance(without_pod)) / 2)


def balance(fractions: list[float]) -> int:
    """Return 100 when all resources are used alike, less the more they differ."""
    deviation = 0.0
    if len(fractions) == 2:
        deviation = abs((fractions[0] - fractions[1]) / 2)
    elif len(fractions) > 2:
        mean = sum(fractions) / len(fractions)
        deviation = math.sqrt(sum((f - mean) * (f - mean) for f in fractions) / len(fractions))
    return int((1 - deviation) * 100)


class ImageLocality(Plugin):
    name = "ImageLocality"
    weight = 1
    low = 23 * 1024 * 1024
    high_per_image = 1000 * 1024 * 1024

    def score(self, pod: o.Pod, node: o.Node, feasible: list[o.Node], cluster: Cluster) -> int:
        wanted = [c.image for c in [*(pod.spec.init_containers or []), *pod.spec.containers]]
        wanted += [v.image.reference for v in pod.spec.volumes or [] if v.image is not None]
        total = 0
        for image in map(tagged, wanted):
            size = image_size(node, image)
            if size is not None:
                holders = sum(image_size(n, image) is not None for n in cluster.nodes)
                total += int(size * (holders / len(cluster.nodes)))
        high = self.high_per_image * len(wanted)
        if high <= self.low:
            return 0
        return 100 * (min(max(total, self.low), high) - self.low) // (high - self.low)


def tagged(image: str) -> str:
    return image if image.rfind(":") > image.rfind("/") else image + ":latest"


def image_size(node: o.Node, image: str) -> int | None:
    found = None
    for held in node.status.images or []:
        if image in (held.names or []):
            found = held.size_bytes  # the last entry counts when a name appears twice
    return found
