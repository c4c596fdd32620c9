"""Define the events: everything the engine takes as input. They are plain values without behaviour, and every event can
be written as JSON.

`Changed` events are upserts: the first version of an object and every later one look alike, so a relist, a duplicate or
a reordered watch event needs no special form.
"""

from __future__ import annotations

import msgspec

from phalanx.model.objects import (
    CompositePodGroup,
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    DeviceClass,
    DeviceTaintRule,
    Namespace,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    PodDisruptionBudget,
    PodGroup,
    PriorityClass,
    ReplicaSet,
    ReplicationController,
    ResourceClaim,
    ResourceQuota,
    ResourceSlice,
    Service,
    StatefulSet,
    StorageClass,
    Workload,
    WorkloadPolicy,
)


class _Event(msgspec.Struct, frozen=True, tag_field="event", omit_defaults=True, gc=False):
    pass


class PodChanged(_Event, frozen=True, tag="PodChanged"):
    object: Pod


class NodeChanged(_Event, frozen=True, tag="NodeChanged"):
    object: Node


class PodGroupChanged(_Event, frozen=True, tag="PodGroupChanged"):
    object: PodGroup


class CompositePodGroupChanged(_Event, frozen=True, tag="CompositePodGroupChanged"):
    object: CompositePodGroup


class WorkloadChanged(_Event, frozen=True, tag="WorkloadChanged"):
    object: Workload


class WorkloadPolicyChanged(_Event, frozen=True, tag="WorkloadPolicyChanged"):
    object: WorkloadPolicy


class PersistentVolumeChanged(_Event, frozen=True, tag="PersistentVolumeChanged"):
    object: PersistentVolume


class PersistentVolumeClaimChanged(_Event, frozen=True, tag="PersistentVolumeClaimChanged"):
    object: PersistentVolumeClaim


class StorageClassChanged(_Event, frozen=True, tag="StorageClassChanged"):
    object: StorageClass


class CSINodeChanged(_Event, frozen=True, tag="CSINodeChanged"):
    object: CSINode


class CSIDriverChanged(_Event, frozen=True, tag="CSIDriverChanged"):
    object: CSIDriver


class CSIStorageCapacityChanged(_Event, frozen=True, tag="CSIStorageCapacityChanged"):
    object: CSIStorageCapacity


class NamespaceChanged(_Event, frozen=True, tag="NamespaceChanged"):
    object: Namespace


class PodDisruptionBudgetChanged(_Event, frozen=True, tag="PodDisruptionBudgetChanged"):
    object: PodDisruptionBudget


class ResourceQuotaChanged(_Event, frozen=True, tag="ResourceQuotaChanged"):
    object: ResourceQuota


class ServiceChanged(_Event, frozen=True, tag="ServiceChanged"):
    object: Service


class ReplicationControllerChanged(_Event, frozen=True, tag="ReplicationControllerChanged"):
    object: ReplicationController


class ReplicaSetChanged(_Event, frozen=True, tag="ReplicaSetChanged"):
    object: ReplicaSet


class StatefulSetChanged(_Event, frozen=True, tag="StatefulSetChanged"):
    object: StatefulSet


class PriorityClassChanged(_Event, frozen=True, tag="PriorityClassChanged"):
    object: PriorityClass


class ResourceClaimChanged(_Event, frozen=True, tag="ResourceClaimChanged"):
    object: ResourceClaim


class ResourceSliceChanged(_Event, frozen=True, tag="ResourceSliceChanged"):
    object: ResourceSlice


class DeviceClassChanged(_Event, frozen=True, tag="DeviceClassChanged"):
    object: DeviceClass


class DeviceTaintRuleChanged(_Event, frozen=True, tag="DeviceTaintRuleChanged"):
    object: DeviceTaintRule


class Gone(_Event, frozen=True, tag="Gone"):
    """An object was deleted. `kind` is the Kind ("Pod"); a uid, when given, must match to have an effect."""

    kind: str
    name: str
    namespace: str = ""
    uid: str = ""


# Problem kinds of a failed decision. The executor has already retried what a retry alone can fix.
CONFLICT = "conflict"  # the object changed or is already bound; the informer will deliver its new state
NOT_FOUND = "not found"
TRANSIENT = "transient"  # server unreachable, overloaded, timed out; nothing was written
PERMANENT = "permanent"  # forbidden, invalid: the same call will fail again


class Outcome(_Event, frozen=True, tag="Outcome"):
    """Report the result of a decision. An empty `problem` means that the API server acknowledged the write."""

    decision: int
    problem: str = ""  # one of the constants above
    message: str = ""


class TimePassed(_Event, frozen=True, tag="TimePassed"):
    """Set the clock to `now` (seconds since the epoch). A step backwards is ignored."""

    now: float


class PlaceRequested(_Event, frozen=True, tag="PlaceRequested"):
    """Reserve room for a workload whose pods do not exist yet, if all of them fit now; answered by `PlaceAnswered`.

    The pods of the workload are recognised by the uid of their owner, or by the name of their owner in a label.
    """

    namespace: str
    name: str
    uid: str
    until: float  # seconds since the epoch: end of the reservation
    pods: list[Pod]
    pod_groups: list[PodGroup] = []
    composites: list[CompositePodGroup] = []
    owner_uids: list[str] = []
    owners: list[str] = []


class PlaceReleased(_Event, frozen=True, tag="PlaceReleased"):
    """End the reservation of a workload."""

    namespace: str
    name: str


ObjectChanged = (
    PodChanged
    | NodeChanged
    | PodGroupChanged
    | CompositePodGroupChanged
    | WorkloadChanged
    | WorkloadPolicyChanged
    | PersistentVolumeChanged
    | PersistentVolumeClaimChanged
    | StorageClassChanged
    | CSINodeChanged
    | CSIDriverChanged
    | CSIStorageCapacityChanged
    | NamespaceChanged
    | PodDisruptionBudgetChanged
    | ResourceQuotaChanged
    | ServiceChanged
    | ReplicationControllerChanged
    | ReplicaSetChanged
    | StatefulSetChanged
    | PriorityClassChanged
    | ResourceClaimChanged
    | ResourceSliceChanged
    | DeviceClassChanged
    | DeviceTaintRuleChanged
)
Event = ObjectChanged | Gone | Outcome | TimePassed | PlaceRequested | PlaceReleased

CHANGED_BY_KIND: dict[str, type[_Event]] = {
    "Pod": PodChanged,
    "Node": NodeChanged,
    "PodGroup": PodGroupChanged,
    "CompositePodGroup": CompositePodGroupChanged,
    "Workload": WorkloadChanged,
    "WorkloadPolicy": WorkloadPolicyChanged,
    "PersistentVolume": PersistentVolumeChanged,
    "PersistentVolumeClaim": PersistentVolumeClaimChanged,
    "StorageClass": StorageClassChanged,
    "CSINode": CSINodeChanged,
    "CSIDriver": CSIDriverChanged,
    "CSIStorageCapacity": CSIStorageCapacityChanged,
    "Namespace": NamespaceChanged,
    "PodDisruptionBudget": PodDisruptionBudgetChanged,
    "ResourceQuota": ResourceQuotaChanged,
    "Service": ServiceChanged,
    "ReplicationController": ReplicationControllerChanged,
    "ReplicaSet": ReplicaSetChanged,
    "StatefulSet": StatefulSetChanged,
    "PriorityClass": PriorityClassChanged,
    "ResourceClaim": ResourceClaimChanged,
    "ResourceSlice": ResourceSliceChanged,
    "DeviceClass": DeviceClassChanged,
    "DeviceTaintRule": DeviceTaintRuleChanged,
}

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def encode(event: Event) -> bytes:
    return _encoder.encode(event)


def decode(line: bytes | str) -> Event:
    return _decoder.decode(line)
