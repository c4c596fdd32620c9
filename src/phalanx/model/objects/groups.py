"""Workload, PodGroup and CompositePodGroup (scheduling.k8s.io v1beta1 / v1alpha3) and KEP-4671's v1alpha1 Workload."""

from __future__ import annotations

from typing import Any

import msgspec

from phalanx.model.objects.meta import Condition, ObjectMeta, Struct


class Empty(Struct, frozen=True):
    """A union member that says everything by being there."""


class TypedLocalObjectReference(Struct, frozen=True):
    api_group: str = ""
    kind: str = ""
    name: str = ""


class GroupReference(Struct, frozen=True):
    """spec.workloadRef of a PodGroup or CompositePodGroup."""

    workload_name: str = ""
    template_name: str = ""


class GangPolicy(Struct, frozen=True):
    min_count: int = 0


class CompositeGangPolicy(Struct, frozen=True):
    min_group_count: int = 0


class SchedulingPolicy(Struct, frozen=True):
    basic: Empty | None = None
    gang: GangPolicy | None = None


class CompositeSchedulingPolicy(Struct, frozen=True):
    basic: Empty | None = None
    gang: CompositeGangPolicy | None = None


class TopologyConstraint(Struct, frozen=True):
    key: str = ""


class SchedulingConstraints(Struct, frozen=True):
    topology: list[TopologyConstraint] | None = None


class DisruptionMode(Struct, frozen=True):
    single: Empty | None = None
    all: Empty | None = None


class GroupResourceClaim(Struct, frozen=True):
    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodGroupSpec(Struct, frozen=True):
    parent_composite_pod_group_name: str | None = None
    workload_ref: GroupReference | None = None
    scheduling_policy: SchedulingPolicy = SchedulingPolicy()
    scheduling_constraints: SchedulingConstraints | None = None
    disruption_mode: DisruptionMode | None = None
    resource_claims: list[GroupResourceClaim] | None = None
    priority_class_name: str = ""
    priority: int | None = None
    preemption_policy: str | None = None


class CompositePodGroupSpec(Struct, frozen=True):
    parent_composite_pod_group_name: str | None = None
    workload_ref: GroupReference | None = None
    scheduling_policy: CompositeSchedulingPolicy = CompositeSchedulingPolicy()
    scheduling_constraints: SchedulingConstraints | None = None
    disruption_mode: DisruptionMode | None = None
    priority_class_name: str = ""
    priority: int | None = None
    preemption_policy: str | None = None


class GroupStatus(Struct, frozen=True):
    conditions: list[Condition] | None = None
    restarts: int = 0
    last_restart_time: str | None = None


class OwnedMetadata(Struct, frozen=True):
    annotations: dict[str, Any] = msgspec.field(default_factory=dict, name="f:annotations")  # by "f:" and the key


class OwnedFields(Struct, frozen=True):
    metadata: OwnedMetadata = msgspec.field(default_factory=OwnedMetadata, name="f:metadata")


class ManagedFields(Struct, frozen=True):
    """One entry of metadata.managedFields, which the API server writes; of the fields only annotations are read."""

    manager: str = ""
    fields_v1: OwnedFields = msgspec.field(default_factory=OwnedFields, name="fieldsV1")


class PodGroupMeta(ObjectMeta, frozen=True):
    managed_fields: list[ManagedFields] | None = None


class PodGroup(Struct, frozen=True):
    metadata: PodGroupMeta = PodGroupMeta()
    spec: PodGroupSpec = PodGroupSpec()
    status: GroupStatus = GroupStatus()


class CompositePodGroup(Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: CompositePodGroupSpec = CompositePodGroupSpec()
    status: GroupStatus = GroupStatus()


class PodGroupTemplate(Struct, frozen=True):
    name: str = ""
    scheduling_policy: SchedulingPolicy = SchedulingPolicy()
    scheduling_constraints: SchedulingConstraints | None = None
    disruption_mode: DisruptionMode | None = None
    priority_class_name: str = ""
    priority: int | None = None
    preemption_policy: str | None = None


class CompositePodGroupTemplate(Struct, frozen=True):
    name: str = ""
    scheduling_policy: CompositeSchedulingPolicy = CompositeSchedulingPolicy()
    scheduling_constraints: SchedulingConstraints | None = None
    disruption_mode: DisruptionMode | None = None
    priority_class_name: str = ""
    priority: int | None = None
    preemption_policy: str | None = None
    pod_group_templates: list[PodGroupTemplate] | None = None
    composite_pod_group_templates: list[CompositePodGroupTemplate] | None = None


class WorkloadSpec(Struct, frozen=True):
    controller_ref: TypedLocalObjectReference | None = None
    pod_group_templates: list[PodGroupTemplate] | None = None
    composite_pod_group_templates: list[CompositePodGroupTemplate] | None = None


class WorkloadStatus(Struct, frozen=True):
    conditions: list[Condition] | None = None


class Workload(Struct, frozen=True):
    """The storage form (v1beta1). A v1alpha1 Workload is the same object seen through its own version."""

    metadata: ObjectMeta = ObjectMeta()
    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()
