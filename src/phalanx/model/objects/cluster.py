"""The smaller kinds that placement reads: nodes, namespaces, priority classes, budgets, owners that spread."""

from __future__ import annotations

import msgspec

from phalanx.model.objects.meta import Condition, LabelSelector, ObjectMeta, Struct
from phalanx.model.objects.pod import Resources


class Namespace(Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


class PriorityClass(Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    value: int = 0
    global_default: bool = False
    preemption_policy: str | None = None


class PodDisruptionBudgetSpec(Struct, frozen=True):
    min_available: int | str | None = None
    max_unavailable: int | str | None = None
    selector: LabelSelector | None = None


class PodDisruptionBudgetStatus(Struct, frozen=True):
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    expected_pods: int = 0
    observed_generation: int | None = None
    disrupted_pods: dict[str, str] | None = None
    conditions: list[Condition] | None = None


class PodDisruptionBudget(Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()


class ScopeRequirement(Struct, frozen=True):
    scope_name: str = ""
    operator: str = ""
    values: list[str] | None = None


class ScopeSelector(Struct, frozen=True):
    match_expressions: list[ScopeRequirement] | None = None


class ResourceQuotaSpec(Struct, frozen=True):
    hard: Resources | None = None
    scopes: list[str] | None = None
    scope_selector: ScopeSelector | None = None


class ResourceQuotaStatus(Struct, frozen=True):
    used: Resources | None = None


class ResourceQuota(Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceQuotaSpec = ResourceQuotaSpec()
    status: ResourceQuotaStatus = ResourceQuotaStatus()


class ServiceSpec(Struct, frozen=True):
    selector: dict[str, str] | None = None


class Service(Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: ServiceSpec = ServiceSpec()


class SelectorSpec(Struct, frozen=True):
    """The part of a ReplicaSet's or StatefulSet's spec that default topology spreading reads."""

    selector: LabelSelector | None = None


class ReplicationControllerSpec(Struct, frozen=True):
    selector: dict[str, str] | None = None


class ReplicationController(Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: ReplicationControllerSpec = ReplicationControllerSpec()


class ReplicaSet(Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: SelectorSpec = SelectorSpec()


class StatefulSet(Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: SelectorSpec = SelectorSpec()


class Taint(Struct, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(Struct, frozen=True):
    unschedulable: bool = False
    taints: list[Taint] | None = None
    provider_id: str = msgspec.field(default="", name="providerID")


class ContainerImage(Struct, frozen=True):
    names: list[str] | None = None
    size_bytes: int = 0


class NodeStatus(Struct, frozen=True):
    allocatable: Resources = {}
    capacity: Resources = {}
    images: list[ContainerImage] | None = None


class Node(Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()
