"""Typed views of objects for readers (engine, controllers, kubelets). The server works on plain JSON."""

from phalanx.model.objects.cluster import (
    Namespace,
    Node,
    PodDisruptionBudget,
    PriorityClass,
    ReplicaSet,
    ReplicationController,
    ResourceQuota,
    Service,
    StatefulSet,
)
from phalanx.model.objects.devices import (
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from phalanx.model.objects.groups import CompositePodGroup, PodGroup, Workload
from phalanx.model.objects.meta import Condition, LabelSelector, ObjectMeta, OwnerReference
from phalanx.model.objects.pod import Pod
from phalanx.model.objects.policy import WorkloadPolicy
from phalanx.model.objects.storage import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)

__all__ = [
    "CSIDriver",
    "CSINode",
    "CSIStorageCapacity",
    "CompositePodGroup",
    "Condition",
    "DeviceClass",
    "DeviceTaintRule",
    "LabelSelector",
    "Namespace",
    "Node",
    "ObjectMeta",
    "OwnerReference",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "Pod",
    "PodDisruptionBudget",
    "PodGroup",
    "PriorityClass",
    "ReplicaSet",
    "ReplicationController",
    "ResourceClaim",
    "ResourceClaimTemplate",
    "ResourceQuota",
    "ResourceSlice",
    "Service",
    "StatefulSet",
    "StorageClass",
    "Workload",
    "WorkloadPolicy",
]
