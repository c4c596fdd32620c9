"""Selectors, node selectors, tolerations and affinity terms: does this match that?"""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.model import objects as o
from phalanx.model.objects.cluster import Taint
from phalanx.model.objects.meta import LabelSelector
from phalanx.model.objects.pod import NodeSelector, NodeSelectorTerm, PodAffinityTerm, Toleration
from support.reference.cluster import Cluster

Labels = dict[str, str]


@dataclass(frozen=True)
class Requirement:
    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Labels) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value is not None and value in self.values
            case "NotIn":
                return value is None or value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                if value is None or len(self.values) != 1:
                    return False
                left, right = integer(value), integer(self.values[0])
                if left is None or right is None:
                    return False
                return left > right if self.operator == "Gt" else left < right
        return False


@dataclass(frozen=True)
class Selector:
    """None matches nothing; no requirements match everything."""

    requirements: tuple[Requirement, ...] | None

    def matches(self, labels: Labels) -> bool:
        return self.requirements is not None and all(r.matches(labels) for r in self.requirements)

    @property
    def everything(self) -> bool:
        return self.requirements == ()

    def plus(self, *more: Requirement) -> Selector:
        return self if self.requirements is None else Selector((*self.requirements, *more))


NOTHING = Selector(None)


def integer(text: str) -> int | None:
    digits = text[1:] if text[:1] in ("+", "-") else text
    return int(text) if digits.isascii() and digits.isdigit() else None


def selector_of(selector: LabelSelector | None) -> Selector:
    if selector is None:
        return NOTHING
    labels = [Requirement(k, "In", (v,)) for k, v in (selector.match_labels or {}).items()]
    rest = [Requirement(e.key, e.operator, tuple(e.values or ())) for e in selector.match_expressions or []]
    return Selector((*labels, *rest))


def term_matches_node(term: NodeSelectorTerm, node: o.Node) -> bool:
    """Match a term: an empty term matches no node; all expressions and fields of a term must match."""
    if not term.match_expressions and not term.match_fields:
        return False
    for e in term.match_expressions or []:
        if not Requirement(e.key, e.operator, tuple(e.values or ())).matches(node.metadata.labels):
            return False
    for f in term.match_fields or []:
        values = f.values or []
        if len(values) != 1 or f.operator not in ("In", "NotIn"):
            return False
        found = node.metadata.name if f.key == "metadata.name" else ""
        if (found == values[0]) != (f.operator == "In"):
            return False
    return True


def node_selector_matches(selector: NodeSelector, node: o.Node) -> bool:
    return any(term_matches_node(term, node) for term in selector.node_selector_terms)


def required_node_affinity_matches(pod: o.Pod, node: o.Node) -> bool:
    """Match spec.nodeSelector and the required node affinity."""
    for key, value in (pod.spec.node_selector or {}).items():
        if node.metadata.labels.get(key) != value:
            return False
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    return affinity is None or affinity.required is None or node_selector_matches(affinity.required, node)


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    match toleration.operator:
        case "" | "Equal":
            return toleration.value == taint.value
        case "Exists":
            return True
    return False


def tolerated(pod: o.Pod, taint: Taint) -> bool:
    return any(tolerates(t, taint) for t in pod.spec.tolerations or [])


def has_untolerated_taint(pod: o.Pod, node: o.Node) -> bool:
    """Return True for an untolerated taint with an effect that prevents scheduling: NoSchedule or NoExecute."""
    return any(t.effect in ("NoSchedule", "NoExecute") and not tolerated(pod, t) for t in node.spec.taints or [])


@dataclass(frozen=True)
class AffinityTerm:
    """A pod affinity term, resolved for its owner's namespace and labels."""

    key: str
    selector: Selector
    namespaces: tuple[str, ...]
    namespace_selector: Selector

    def selected_by_owner(self, other: o.Pod, cluster: Cluster) -> bool:
        """Match while the owner is being placed: a namespace selector picks from the namespaces that exist."""
        return self._in_namespace(other, cluster, absent=None) and self.selector.matches(other.metadata.labels)

    def selects_incoming(self, incoming: o.Pod, cluster: Cluster) -> bool:
        """Match while `incoming` is being placed and the owner runs: an unknown namespace has no labels."""
        return self._in_namespace(incoming, cluster, absent={}) and self.selector.matches(incoming.metadata.labels)

    def _in_namespace(self, pod: o.Pod, cluster: Cluster, absent: Labels | None) -> bool:
        if pod.metadata.namespace in self.namespaces or self.namespace_selector.everything:
            return True
        labels = cluster.namespace_labels(pod.metadata.namespace)
        if labels is None:
            labels = absent
        return labels is not None and self.namespace_selector.matches(labels)


def affinity_term(owner: o.Pod, term: PodAffinityTerm) -> AffinityTerm:
    selector = selector_of(term.label_selector)
    labels = owner.metadata.labels
    for key in term.match_label_keys or []:
        if key in labels:
            selector = selector.plus(Requirement(key, "In", (labels[key],)))
    for key in term.mismatch_label_keys or []:
        if key in labels:
            selector = selector.plus(Requirement(key, "NotIn", (labels[key],)))
    namespaces = tuple(term.namespaces or ())
    if not namespaces and term.namespace_selector is None:
        namespaces = (owner.metadata.namespace,)
    return AffinityTerm(term.topology_key, selector, namespaces, selector_of(term.namespace_selector))
