"""Define the events: everything the engine takes as input. They are plain values without behaviour, and every event can
be written as JSON.

`Changed` events are upserts: the first version of an object and every later one look alike, so a relist, a duplicate or
a reordered watch event needs no special form.
"""

from __future__ import annotations

from typing import Any, Union, cast

import msgspec

from phalanx.model import objects
from phalanx.model.objects import CompositePodGroup, DeviceClass, Node, Pod, PodGroup, ResourceClaim, ResourceSlice


class _Event(msgspec.Struct, frozen=True, tag_field="event", omit_defaults=True, gc=False):
    pass


class ObjectChanged(_Event, frozen=True):
    """The form of all events about a version of an object."""

    object: Any


class PodChanged(ObjectChanged, frozen=True, tag="PodChanged"):
    object: Pod


class NodeChanged(ObjectChanged, frozen=True, tag="NodeChanged"):
    object: Node


class PodGroupChanged(ObjectChanged, frozen=True, tag="PodGroupChanged"):
    object: PodGroup


class CompositePodGroupChanged(ObjectChanged, frozen=True, tag="CompositePodGroupChanged"):
    object: CompositePodGroup


class ResourceClaimChanged(ObjectChanged, frozen=True, tag="ResourceClaimChanged"):
    object: ResourceClaim


class ResourceSliceChanged(ObjectChanged, frozen=True, tag="ResourceSliceChanged"):
    object: ResourceSlice


class DeviceClassChanged(ObjectChanged, frozen=True, tag="DeviceClassChanged"):
    object: DeviceClass


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
    """Set the clock to `now` (seconds since the epoch). A step backwards is ignored.

    `jumped`: seconds of it that did not pass, because the clock was set forward: no time limit ends because of them.
    """

    now: float
    jumped: float = 0.0


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


Event = ObjectChanged | Gone | Outcome | TimePassed | PlaceRequested | PlaceReleased


def _changed(kind: str) -> type[ObjectChanged]:
    """Return the event of a kind that no code constructs by its name."""
    name = f"{kind}Changed"
    made = msgspec.defstruct(
        name, [("object", getattr(objects, kind))], bases=(ObjectChanged,), module=__name__, tag=name, frozen=True
    )
    return cast(type[ObjectChanged], made)


_NAMED = (
    PodChanged, NodeChanged, PodGroupChanged, CompositePodGroupChanged, ResourceClaimChanged, ResourceSliceChanged,
    DeviceClassChanged,
)  # fmt: skip
CHANGED_BY_KIND: dict[str, type[ObjectChanged]] = {each.__name__.removesuffix("Changed"): each for each in _NAMED}
CHANGED_BY_KIND |= {
    kind: _changed(kind)
    for kind in (
        "Workload", "WorkloadPolicy", "PersistentVolume", "PersistentVolumeClaim", "StorageClass", "CSINode",
        "CSIDriver", "CSIStorageCapacity", "Namespace", "PodDisruptionBudget", "ResourceQuota", "Service",
        "ReplicationController", "ReplicaSet", "StatefulSet", "PriorityClass", "DeviceTaintRule",
    )
}  # fmt: skip

_encoder = msgspec.json.Encoder()
_TAGGED: Any = Union[(*CHANGED_BY_KIND.values(), Gone, Outcome, TimePassed, PlaceRequested, PlaceReleased)]
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(_TAGGED)


def encode(event: Event) -> bytes:
    return _encoder.encode(event)


def decode(line: bytes | str) -> Event:
    return _decoder.decode(line)
