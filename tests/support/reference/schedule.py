"""One scheduling attempt with the default profile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from phalanx.model import objects as o
from support.reference.cluster import Cluster
from support.reference.interpod import InterPodAffinity
from support.reference.node_plugins import (
    ImageLocality,
    NodeAffinityPlugin,
    NodeName,
    NodePorts,
    NodeResourcesBalancedAllocation,
    NodeResourcesFit,
    NodeUnschedulable,
    TaintToleration,
)
from support.reference.plugin import Plugin, Rejection
from support.reference.spread import PodTopologySpread
from support.reference.volumes import NodeVolumeLimits, VolumeBinding, VolumeRestrictions, VolumeZone

PLUGINS: tuple[Plugin, ...] = (
    NodeName(),
    NodeUnschedulable(),
    TaintToleration(),
    NodeAffinityPlugin(),
    NodePorts(),
    NodeResourcesFit(),
    VolumeRestrictions(),
    NodeVolumeLimits(),
    VolumeBinding(),
    VolumeZone(),
    PodTopologySpread(),
    InterPodAffinity(),
    NodeResourcesBalancedAllocation(),
    ImageLocality(),
)


@dataclass
class Outcome:
    """The result of an attempt. chosen is None when no node is feasible; message is then the Event's text."""

    chosen: str | None = None
    feasible: list[str] = field(default_factory=list)
    rejections: dict[str, Rejection] = field(default_factory=dict)  # by node
    pod_rejection: Rejection | None = None  # a PreFilter refused the pod everywhere
    scores: dict[str, dict[str, int]] = field(default_factory=dict)  # plugin -> node -> 0..100
    totals: dict[str, int] = field(default_factory=dict)  # node -> weighted sum
    message: str = ""


def schedule(pod: o.Pod, cluster: Cluster, plugins: Sequence[Plugin] = PLUGINS) -> Outcome:
    """Filter every node, score the ones that pass, take the best; equal totals go to the node listed first."""
    outcome = Outcome()
    for plugin in plugins:
        outcome.pod_rejection = plugin.pre_filter(pod, cluster)
        if outcome.pod_rejection is not None:
            outcome.message = fit_error(len(cluster.nodes), [], outcome.pod_rejection)
            return outcome
    feasible = []
    for node in cluster.nodes:
        for plugin in plugins:
            rejection = plugin.filter(pod, node, cluster)
            if rejection is not None:
                outcome.rejections[node.metadata.name] = rejection
                break
        else:
            feasible.append(node)
    outcome.feasible = [n.metadata.name for n in feasible]
    if not feasible:
        outcome.message = fit_error(len(cluster.nodes), list(outcome.rejections.values()))
        return outcome
    outcome.totals = dict.fromkeys(outcome.feasible, 0)
    for plugin in plugins:
        if plugin.weight:
            raw = {n.metadata.name: plugin.score(pod, n, feasible, cluster) for n in feasible}
            scores = plugin.normalise(raw, pod, feasible, cluster)
            outcome.scores[plugin.name] = scores
            for name, value in scores.items():
                outcome.totals[name] += plugin.weight * value
    best = max(outcome.totals.values())
    outcome.chosen = next(name for name in outcome.feasible if outcome.totals[name] == best)
    return outcome


def fit_error(nodes: int, rejections: list[Rejection], pod_rejection: Rejection | None = None) -> str:
    """Return `0/3 nodes are available: 1 Insufficient cpu, 2 node(s) were unschedulable.`"""
    if nodes == 0:
        return "no nodes available to schedule pods"
    text = f"0/{nodes} nodes are available:"
    if pod_rejection is not None:
        return f"{text} {', '.join(pod_rejection.reasons)}."
    counts = Counter(reason for r in rejections for reason in r.reasons)
    listed = sorted(f"{count} {reason}" for reason, count in counts.items())
    return f"{text} {', '.join(listed)}." if listed else text
