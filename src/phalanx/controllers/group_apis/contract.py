"""Define the SchedulerProvider interface of KEP-407, as pure functions.

A provider returns the PodGroup that a replica needs and the labels and annotations of its pods. Only `creation.py`
writes, so that a provider can be tested, printed and reviewed without a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import field

from phalanx.base.client import Resource

Json = dict[str, Any]


class ReplicaPart(msgspec.Struct, frozen=True):
    """Identical pods of a replica: its leader, its workers, a launcher, …"""

    name: str
    count: int
    pod_spec: Json


class Replica(msgspec.Struct, frozen=True):
    """One replica to schedule as a gang: what every provider needs to know about it."""

    name: str  # of the group
    namespace: str
    owner: Json  # owner reference: the leader pod, as in KEP-407, or the workload itself
    min_member: int
    parts: Sequence[ReplicaPart]
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)  # of the workload, for providers that inherit some
    priority_class: str = ""
    application: str = ""  # YuniKorn: what all replicas together are called

    @property
    def size(self) -> int:
        return sum(part.count for part in self.parts)


class SchedulerProvider(Protocol):
    name: str

    @property
    def resource(self) -> Resource | None:
        """Return the resource of its PodGroups; None if it has none."""
        ...

    def pod_group(self, replica: Replica) -> Json | None:
        """Return the object to create unless it exists. Existing ones are never changed: a resize is a new revision."""
        ...

    def inject_pod_group_metadata(self, pod: Json, replica: Replica, part: str) -> None:
        """Edit a pod, or a pod template, so that its scheduler finds the group."""
        ...


def put(pod: Json, where: str, values: Mapping[str, str]) -> None:
    """Set labels or annotations of a pod; values set by its author win."""
    known = pod.setdefault("metadata", {}).setdefault(where, {})
    for key, value in values.items():
        known.setdefault(key, value)


def metadata_of(replica: Replica, annotations: Mapping[str, str] | None = None) -> Json:
    meta: Json = {
        "name": replica.name,
        "namespace": replica.namespace,
        "labels": dict(replica.labels),
        "ownerReferences": [replica.owner],
    }
    if annotations:
        meta["annotations"] = dict(annotations)
    return meta
