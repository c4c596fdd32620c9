"""Interpret a pod's affinity terms and topology spread constraints: which pods they select, in which topology.

Plain values. Plugins evaluate them over the cluster; the group search reads them to know which members are related.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from phalanx.engine.state.objects import Objects
from phalanx.engine.state.shapes import Shape
from phalanx.model.objects import Namespace
from phalanx.model.objects.meta import LabelSelector
from phalanx.model.objects.pod import PodAffinity, PodAffinityTerm, TopologySpreadConstraint
from phalanx.model.selectors import NOTHING, BadSelector, LabelMatcher, Requirement, from_selector

REQUIRED, ANTI, PREFERRED = "required affinity", "required anti-affinity", "preferred"
HARD, SOFT = "DoNotSchedule", "ScheduleAnyway"


def matcher_of(selector: LabelSelector | None, *more: Requirement) -> LabelMatcher:
    """Return the matcher of a selector. None and a selector that cannot be parsed match nothing."""
    try:
        found = from_selector(selector)
    except BadSelector:
        return NOTHING
    if found.nothing or not more:
        return found
    return LabelMatcher((*found.requirements, *more))


class AffinityTerm:
    """A pod affinity term, resolved for its owner. `weight` is negative for preferred anti-affinity."""

    __slots__ = ("key", "kind", "matcher", "namespace_matcher", "namespaces", "weight")

    def __init__(
        self, term: PodAffinityTerm, kind: str, weight: int, namespace: str, labels: Mapping[str, str]
    ) -> None:
        self.kind = kind
        self.weight = weight
        self.key = term.topology_key
        same = [Requirement(k, "In", (labels[k],)) for k in term.match_label_keys or () if k in labels]
        other = [Requirement(k, "NotIn", (labels[k],)) for k in term.mismatch_label_keys or () if k in labels]
        self.matcher = matcher_of(term.label_selector, *same, *other)
        own = not term.namespaces and term.namespace_selector is None
        self.namespaces = frozenset((namespace,) if own else term.namespaces or ())
        self.namespace_matcher = matcher_of(term.namespace_selector)

    def selects(self, namespace: str, labels: Mapping[str, str], objects: Objects) -> bool:
        """Match while the owner is being placed: a namespace selector selects only namespaces that exist."""
        return self._covers(namespace, objects, False) and self.matcher.matches(labels)

    def selects_incoming(self, namespace: str, labels: Mapping[str, str], objects: Objects) -> bool:
        """Match while another pod is being placed: an unknown namespace has no labels but may still be selected."""
        return self._covers(namespace, objects, True) and self.matcher.matches(labels)

    def _covers(self, namespace: str, objects: Objects, unknown_too: bool) -> bool:
        if namespace in self.namespaces or self.namespace_matcher.everything:
            return True
        if self.namespace_matcher.nothing:
            return False
        known = objects.get(Namespace, "", namespace)
        if known is None and not unknown_too:
            return False
        return self.namespace_matcher.matches(known.metadata.labels if known is not None else {})


def terms_of(
    affinity: PodAffinity | None, anti: PodAffinity | None, namespace: str, labels: Mapping[str, str]
) -> tuple[AffinityTerm, ...]:
    found: list[AffinityTerm] = []
    for part, kind, sign in ((affinity, REQUIRED, 1), (anti, ANTI, -1)):
        if part is None:
            continue
        found += [AffinityTerm(term, kind, 0, namespace, labels) for term in part.required or ()]
        for weighted in part.preferred or ():
            found.append(AffinityTerm(weighted.pod_affinity_term, PREFERRED, sign * weighted.weight, namespace, labels))
    return tuple(found)


def terms_of_shape(shape: Shape) -> tuple[AffinityTerm, ...]:
    return terms_of(shape.affinity, shape.anti_affinity, shape.namespace, shape.labels)


class LabelledPods(Protocol):
    """Pods of one namespace with the same labels."""

    @property
    def namespace(self) -> str: ...
    @property
    def labels(self) -> Mapping[str, str]: ...
    @property
    def terminating(self) -> bool: ...


class PodsOfShape(msgspec.Struct, frozen=True):
    """Present the unplaced pods of a shape as LabelledPods."""

    shape: Shape
    terminating: bool = False

    @property
    def namespace(self) -> str:
        return self.shape.namespace

    @property
    def labels(self) -> Mapping[str, str]:
        return self.shape.labels


class SpreadConstraint(msgspec.Struct, frozen=True):
    key: str
    max_skew: int
    matcher: LabelMatcher
    min_domains: int
    honor_affinity: bool
    honor_taints: bool

    def counts(self, namespace: str, pods: LabelledPods) -> bool:
        """Return True if these pods count. An empty selector counts none (but matches the pod itself); pods that are
        being deleted do not count."""
        if pods.terminating or pods.namespace != namespace or self.matcher.everything:
            return False
        return self.matcher.matches(pods.labels)


def own_constraints(shape: Shape, action: str) -> tuple[SpreadConstraint, ...]:
    labels = shape.labels
    return tuple(
        spread_constraint(
            c,
            matcher_of(
                c.label_selector,
                *(Requirement(k, "In", (labels[k],)) for k in c.match_label_keys or () if k in labels),
            ),
        )
        for c in shape.spread
        if c.when_unsatisfiable == action
    )


def spread_constraint(c: TopologySpreadConstraint, matcher: LabelMatcher) -> SpreadConstraint:
    return SpreadConstraint(
        key=c.topology_key,
        max_skew=c.max_skew,
        matcher=matcher,
        min_domains=1 if c.min_domains is None else c.min_domains,
        honor_affinity=c.node_affinity_policy != "Ignore",
        honor_taints=c.node_taints_policy == "Honor",
    )
