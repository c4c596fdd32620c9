"""InterPodAffinity: near some pods, away from others, in both directions."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.model import objects as o
from phalanx.model.objects.pod import PodAffinity
from support.reference.cluster import Cluster
from support.reference.matching import AffinityTerm, affinity_term
from support.reference.plugin import Plugin, Rejection


def same_domain(key: str, a: o.Node, b: o.Node) -> bool:
    """Return True if both nodes carry the label, with one value."""
    return key in a.metadata.labels and a.metadata.labels[key] == b.metadata.labels.get(key)


def required_terms(pod: o.Pod, *, anti: bool) -> list[AffinityTerm]:
    affinity = affinity_of(pod, anti=anti)
    return [affinity_term(pod, t) for t in (affinity.required if affinity else None) or []]


def preferred_terms(pod: o.Pod) -> list[tuple[int, AffinityTerm]]:
    """Return preferred terms; weights of anti-affinity are negative."""
    terms = []
    for anti, sign in ((False, 1), (True, -1)):
        affinity = affinity_of(pod, anti=anti)
        for t in (affinity.preferred if affinity else None) or []:
            terms.append((sign * t.weight, affinity_term(pod, t.pod_affinity_term)))
    return terms


def affinity_of(pod: o.Pod, *, anti: bool) -> PodAffinity | None:
    if pod.spec.affinity is None:
        return None
    return pod.spec.affinity.pod_anti_affinity if anti else pod.spec.affinity.pod_affinity


@dataclass
class InterPodAffinity(Plugin):
    hard_weight: int = 1
    ignore_preferred_of_existing: bool = False
    name = "InterPodAffinity"
    weight = 2

    def filter(self, pod: o.Pod, node: o.Node, cluster: Cluster) -> Rejection | None:
        if not self.affinity_met(pod, node, cluster):
            return self.reject_for_good("node(s) didn't match pod affinity rules")
        for term in required_terms(pod, anti=True):
            for other, place in cluster.placed():
                if same_domain(term.key, node, place) and term.selected_by_owner(other, cluster):
                    return self.reject("node(s) didn't match pod anti-affinity rules")
        for other, place in cluster.placed():
            for term in required_terms(other, anti=True):
                if same_domain(term.key, node, place) and term.selects_incoming(pod, cluster):
                    return self.reject("node(s) didn't satisfy existing pods anti-affinity rules")
        return None

    def affinity_met(self, pod: o.Pod, node: o.Node, cluster: Cluster) -> bool:
        """Return True if for each term the domain holds a pod that matches all terms.

        The first pod of a group may match itself.
        """
        terms = required_terms(pod, anti=False)
        if not terms:
            return True
        if any(t.key not in node.metadata.labels for t in terms):
            return False
        matching = [
            place
            for other, place in cluster.placed()
            if all(t.selected_by_owner(other, cluster) for t in terms)
            and any(t.key in place.metadata.labels for t in terms)
        ]
        if not matching:
            return all(t.selected_by_owner(pod, cluster) for t in terms)
        return all(any(same_domain(t.key, node, place) for place in matching) for t in terms)

    def score(self, pod: o.Pod, node: o.Node, feasible: list[o.Node], cluster: Cluster) -> int:
        own = preferred_terms(pod)
        if self.ignore_preferred_of_existing and not own:
            return 0
        total = 0
        for other, place in cluster.placed():
            for weight, term in own:
                if same_domain(term.key, node, place) and term.selected_by_owner(other, cluster):
                    total += weight
            for weight, term in preferred_terms(other):
                if same_domain(term.key, node, place) and term.selects_incoming(pod, cluster):
                    total += weight
            for term in required_terms(other, anti=False):
                if same_domain(term.key, node, place) and term.selects_incoming(pod, cluster):
                    total += self.hard_weight
        return total

    def normalise(self, raw: dict[str, int], pod: o.Pod, feasible: list[o.Node], cluster: Cluster) -> dict[str, int]:
        most, least = max(raw.values(), default=0), min(raw.values(), default=0)
        if most == least:
            return dict.fromkeys(raw, 0)
        return {name: int(100 * ((value - least) / (most - least))) for name, value in raw.items()}
