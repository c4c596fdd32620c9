"""Fluent builders of Kubernetes objects for tests and examples: `pod("a").cpu("2").label("app", "web").build()`.

Every builder collects plain API JSON. `.dict()` gives that JSON (apiVersion and kind included, ready for a client or a
YAML file); `.build()` gives the typed view of `phalanx.model.objects`. Methods change the builder and return it; use
`.copy()` to branch. Builders never check what they build: tests need wrong objects too.

Arguments that stand for a selector take a dict (matchLabels), a list of `(key, operator, values)` (matchExpressions),
or None (the field is left out, which matches nothing).
"""

from phalanx.testing.builders.base import Builder, timestamp
from phalanx.testing.builders.cluster import (
    NamespaceBuilder,
    PodDisruptionBudgetBuilder,
    PriorityClassBuilder,
    ReplicaSetBuilder,
    ReplicationControllerBuilder,
    ServiceBuilder,
    StatefulSetBuilder,
)
from phalanx.testing.builders.groups import (
    CompositePodGroupBuilder,
    PodGroupBuilder,
    WorkloadBuilder,
    WorkloadPolicyBuilder,
    gang,
)
from phalanx.testing.builders.node import NodeBuilder
from phalanx.testing.builders.pod import PodBuilder
from phalanx.testing.builders.storage import (
    CSIDriverBuilder,
    CSINodeBuilder,
    CSIStorageCapacityBuilder,
    PersistentVolumeBuilder,
    PersistentVolumeClaimBuilder,
    StorageClassBuilder,
)

__all__ = [
    "Builder",
    "CSIDriverBuilder",
    "CSINodeBuilder",
    "CSIStorageCapacityBuilder",
    "CompositePodGroupBuilder",
    "NamespaceBuilder",
    "NodeBuilder",
    "PersistentVolumeBuilder",
    "PersistentVolumeClaimBuilder",
    "PodBuilder",
    "PodDisruptionBudgetBuilder",
    "PodGroupBuilder",
    "PriorityClassBuilder",
    "ReplicaSetBuilder",
    "ReplicationControllerBuilder",
    "ServiceBuilder",
    "StatefulSetBuilder",
    "StorageClassBuilder",
    "WorkloadBuilder",
    "WorkloadPolicyBuilder",
    "composite",
    "csi_driver",
    "csi_node",
    "gang",
    "namespace",
    "node",
    "pdb",
    "pod",
    "pod_group",
    "priority_class",
    "pv",
    "pvc",
    "replica_set",
    "replication_controller",
    "service",
    "stateful_set",
    "storage_capacity",
    "storage_class",
    "timestamp",
    "workload",
    "workload_policy",
]


def node(name: str) -> NodeBuilder:
    return NodeBuilder(name)


def pod(name: str) -> PodBuilder:
    return PodBuilder(name)


def pod_group(name: str) -> PodGroupBuilder:
    return PodGroupBuilder(name)


def composite(name: str) -> CompositePodGroupBuilder:
    return CompositePodGroupBuilder(name)


def workload(name: str) -> WorkloadBuilder:
    return WorkloadBuilder(name)


def workload_policy(name: str) -> WorkloadPolicyBuilder:
    return WorkloadPolicyBuilder(name)


def pv(name: str) -> PersistentVolumeBuilder:
    return PersistentVolumeBuilder(name)


def pvc(name: str) -> PersistentVolumeClaimBuilder:
    return PersistentVolumeClaimBuilder(name)


def storage_class(name: str) -> StorageClassBuilder:
    return StorageClassBuilder(name)


def csi_node(name: str) -> CSINodeBuilder:
    return CSINodeBuilder(name)


def csi_driver(name: str) -> CSIDriverBuilder:
    return CSIDriverBuilder(name)


def storage_capacity(name: str) -> CSIStorageCapacityBuilder:
    return CSIStorageCapacityBuilder(name)


def pdb(name: str) -> PodDisruptionBudgetBuilder:
    return PodDisruptionBudgetBuilder(name)


def namespace(name: str) -> NamespaceBuilder:
    return NamespaceBuilder(name)


def priority_class(name: str) -> PriorityClassBuilder:
    return PriorityClassBuilder(name)


def service(name: str) -> ServiceBuilder:
    return ServiceBuilder(name)


def replication_controller(name: str) -> ReplicationControllerBuilder:
    return ReplicationControllerBuilder(name)


def replica_set(name: str) -> ReplicaSetBuilder:
    return ReplicaSetBuilder(name)


def stateful_set(name: str) -> StatefulSetBuilder:
    return StatefulSetBuilder(name)
