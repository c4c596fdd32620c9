"""PodTopologySpread: keep matching pods evenly over topology domains."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from phalanx.model import objects as o
from phalanx.model.objects.pod import TopologySpreadConstraint
from support.reference.cluster import Cluster
from support.reference.matching import (
    NOTHING,
    Requirement,
    Selector,
    has_untolerated_taint,
    required_node_affinity_matches,
    selector_of,
)
from support.reference.plugin import Plugin, Rejection

HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
SYSTEM_DEFAULTS = [
    TopologySpreadConstraint(max_skew=3, topology_key=HOSTNAME, when_unsatisfiable="ScheduleAnyway"),
    TopologySpreadConstraint(max_skew=5, topology_key=ZONE, when_unsatisfiable="ScheduleAnyway"),
]


@dataclass(frozen=True)
class Constraint:
    key: str
    max_skew: int
    selector: Selector
    min_domains: int
    honor_affinity: bool
    honor_taints: bool

    def counts_node(self, pod: o.Pod, node: o.Node) -> bool:
        """Apply the node inclusion policies: return True if this node counts."""
        if self.honor_affinity and not required_node_affinity_matches(pod, node):
            return False
        return not (self.honor_taints and has_untolerated_taint(pod, node))

    def matching_pods(self, pod: o.Pod, node: o.Node, cluster: Cluster) -> int:
        """Return pods on the node that count; an empty selector counts none, pods being deleted do not count."""
        if self.selector.everything:
            return 0
        return sum(
            p.metadata.namespace == pod.metadata.namespace
            and p.metadata.deletion_timestamp is None
            and self.selector.matches(p.metadata.labels)
            for p in cluster.pods_on(node)
        )


@dataclass
class PodTopologySpread(Plugin):
    defaults: list[TopologySpreadConstraint] = field(default_factory=lambda: list(SYSTEM_DEFAULTS))
    system_defaults: bool = True
    name = "PodTopologySpread"
    weight = 2

    def filter(self, pod: o.Pod, node: o.Node, cluster: Cluster) -> Rejection | None:
        constraints = self.constraints(pod, cluster, "DoNotSchedule")
        message = "node(s) didn't match pod topology spread constraints"
        for constraint in constraints:
            if constraint.key not in node.metadata.labels:
                return self.reject_for_good(message + " (missing required label)")
            counts: dict[str, int] = {}
            for other in cluster.nodes:
                if has_all_keys(other, constraints) and constraint.counts_node(pod, other):
                    domain = other.metadata.labels[constraint.key]
                    counts[domain] = counts.get(domain, 0) + constraint.matching_pods(pod, other, cluster)
            fewest = 0 if len(counts) < constraint.min_domains else min(counts.values(), default=0)
            here = counts.get(node.metadata.labels[constraint.key], 0)
            self_match = 1 if constraint.selector.matches(pod.metadata.labels) else 0
            if here + self_match - fewest > constraint.max_skew:
                return self.reject(message)
        return None

    def score(self, pod: o.Pod, node: o.Node, feasible: list[o.Node], cluster: Cluster) -> int:
        constraints = self.constraints(pod, cluster, "ScheduleAnyway")
        if self.ignored(pod, node, constraints):
            return 0
        scored = [n for n in feasible if not self.ignored(pod, n, constraints)]
        total = 0.0
        for constraint in constraints:
            domain = node.metadata.labels.get(constraint.key)
            if domain is None:
                continue
            if constraint.key == HOSTNAME:
                size = len(scored)
                count = constraint.matching_pods(pod, node, cluster)
            else:
                # Without the requirement of all keys, nodes that lack the key make up one more domain.
                size = len({n.metadata.labels.get(constraint.key, "") for n in scored})
                count = sum(
                    constraint.matching_pods(pod, other, cluster)
                    for other in cluster.nodes
                    if other.metadata.labels.get(constraint.key) == domain
                    and not self.ignored(pod, other, constraints)
                    and constraint.counts_node(pod, other)
                )
            total += count * math.log(size + 2) + (constraint.max_skew - 1)
        return math.floor(total) + (1 if total - math.floor(total) >= 0.5 else 0)

    def normalise(self, raw: dict[str, int], pod: o.Pod, feasible: list[o.Node], cluster: Cluster) -> dict[str, int]:
        constraints = self.constraints(pod, cluster, "ScheduleAnyway")
        if not constraints:
            return dict.fromkeys(raw, 0)
        by_name = {n.metadata.name: n for n in feasible}
        scored = {name: value for name, value in raw.items() if not self.ignored(pod, by_name[name], constraints)}
        most, least = max(scored.values(), default=0), min(scored.values(), default=0)
        result = {}
        for name in raw:
            if name not in scored:
                result[name] = 0
            else:
                result[name] = 100 if most == 0 else 100 * (most + least - scored[name]) // most
        return result

    def ignored(self, pod: o.Pod, node: o.Node, constraints: list[Constraint]) -> bool:
        """Return True if the node lacks a key and is not scored; with only the built-in defaults it is."""
        needs_all = bool(pod.spec.topology_spread_constraints) or not self.system_defaults
        return needs_all and not has_all_keys(node, constraints)

    def constraints(self, pod: o.Pod, cluster: Cluster, action: str) -> list[Constraint]:
        own = pod.spec.topology_spread_constraints
        if own:
            return [constraint(c, pod) for c in own if c.when_unsatisfiable == action]
        defaults = [c for c in self.defaults if c.when_unsatisfiable == action]
        selector = default_selector(pod, cluster)
        if selector.everything:
            return []
        return [constraint(c, pod, selector) for c in defaults]


def has_all_keys(node: o.Node, constraints: list[Constraint]) -> bool:
    return all(c.key in node.metadata.labels for c in constraints)


def constraint(c: TopologySpreadConstraint, pod: o.Pod, selector: Selector | None = None) -> Constraint:
    if selector is None:
        selector = selector_of(c.label_selector)
        labels = pod.metadata.labels
        selector = selector.plus(*(Requirement(k, "In", (labels[k],)) for k in c.match_label_keys or [] if k in labels))
    return Constraint(
        key=c.topology_key,
        max_skew=c.max_skew,
        selector=selector,
        min_domains=1 if c.min_domains is None else c.min_domains,
        honor_affinity=c.node_affinity_policy != "Ignore",
        honor_taints=c.node_taints_policy == "Honor",
    )


def default_selector(pod: o.Pod, cluster: Cluster) -> Selector:
    """Return what services and the pod's controller select; empty when there are none."""
    labels: dict[str, str] = {}
    for service in cluster.services:
        wanted = service.spec.selector
        if service.metadata.namespace != pod.metadata.namespace or wanted is None:
            continue
        if all(pod.metadata.labels.get(k) == v for k, v in wanted.items()):
            labels.update(wanted)
    owner = next((r for r in pod.metadata.owner_references if r.controller), None)
    if owner is not None and (owner.api_version, owner.kind) == ("v1", "ReplicationController"):
        for controller in cluster.replication_controllers:
            if (controller.metadata.namespace, controller.metadata.name) == (pod.metadata.namespace, owner.name):
                labels.update(controller.spec.selector or {})
    selector = Selector(tuple(Requirement(k, "In", (v,)) for k, v in labels.items()))
    if owner is None or owner.api_version != "apps/v1":
        return selector
    kinds: dict[str, list[o.ReplicaSet] | list[o.StatefulSet]] = {
        "ReplicaSet": cluster.replica_sets,
        "StatefulSet": cluster.stateful_sets,
    }
    for candidate in kinds.get(owner.kind, []):
        if (candidate.metadata.namespace, candidate.metadata.name) == (pod.metadata.namespace, owner.name):
            other = selector_of(candidate.spec.selector)
            if other is not NOTHING and other.requirements is not None:
                selector = selector.plus(*other.requirements)
    return selector
