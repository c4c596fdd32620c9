"""Builders of the smaller kinds: namespaces, priority classes, budgets, services and pod owners."""

from __future__ import annotations

from typing import Self

from phalanx.model import objects as o
from phalanx.testing.builders.base import Builder, Selector, T, selector_json


class SelectingBuilder(Builder[T]):
    """Of objects with a label selector in their spec."""

    def select(self, selector: Selector) -> Self:
        return self._spec(selector=selector_json(selector))


class PodDisruptionBudgetBuilder(SelectingBuilder[o.PodDisruptionBudget]):
    api_version = "policy/v1"
    kind = "PodDisruptionBudget"
    view = o.PodDisruptionBudget

    def min_available(self, count: int | str) -> Self:
        return self._spec(minAvailable=count)

    def max_unavailable(self, count: int | str) -> Self:
        return self._spec(maxUnavailable=count)

    def allowed(self, count: int) -> Self:
        """Set status.disruptionsAllowed."""
        return self._status(disruptionsAllowed=count)


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
        return self._spec(selector=dict(labels))


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
