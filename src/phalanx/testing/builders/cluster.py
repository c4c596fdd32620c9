"""Builders of the smaller kinds: namespaces, priority classes, budgets, services and pod owners."""

from __future__ import annotations

from typing import Self

from phalanx.model import objects as o
from phalanx.testing.builders.base import (
    Builder,
    Selector,
    T,
    selector_json,
)


class SelectingBuilder(Builder[T]):
    """Of objects with a label selector in their spec."""

    def select(self, selector: Selector) -> Self:
        self.spec["selector"] = selector_json(selector)
        return self


class PodDisruptionBudgetBuilder(SelectingBuilder[o.PodDisruptionBudget]):
    api_version = "policy/v1"
    kind = "PodDisruptionBudget"
    view = o.PodDisruptionBudget

    def min_available(self, count: int | str) -> Self:
        self.spec["minAvailable"] = count
        return self

    def max_unavailable(self, count: int | str) -> Self:
        self.spec["maxUnavailable"] = count
        return self

    def allowed(self, count: int) -> Self:
        """Set status.disruptionsAllowed."""
        self.status["disruptionsAllowed"] = count
        return self


class NamespaceBuilder(Builder[o.Namespace]):
    kind = "Namespace"
    namespaced = False
    view = o.Namespace


class PriorityClassBuilder(Builder[o.PriorityClass]):
    api_version = "scheduling.k8s.io/v1"
    kind = "PriorityClass"
    namespaced = False
    view = o.PriorityClass

    def value(self, value: int) -> Self:
        self.body["value"] = value
        return self


class LabelsBuilder(Builder[T]):
    """Of objects whose selector is a map of labels."""

    def select(self, labels: dict[str, str]) -> Self:
        self.spec["selector"] = dict(labels)
        return self


class ServiceBuilder(LabelsBuilder[o.Service]):
    kind = "Service"
    view = o.Service


class ReplicationControllerBuilder(LabelsBuilder[o.ReplicationController]):
    kind = "ReplicationController"
    view = o.ReplicationController


class ReplicaSetBuilder(SelectingBuilder[o.ReplicaSet]):
    api_version = "apps/v1"
    kind = "ReplicaSet"
    view = o.ReplicaSet


class StatefulSetBuilder(SelectingBuilder[o.StatefulSet]):
    api_version = "apps/v1"
    kind = "StatefulSet"
    view = o.StatefulSet
