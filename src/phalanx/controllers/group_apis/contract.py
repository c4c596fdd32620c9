"""Define the SchedulerProvider interface of KEP-407, as pure functions.

A provider returns the PodGroup that a replica needs and the labels and annotations of its pods. Only `creation.py`
writes, so that a provider can be tested, printed and reviewed without a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec
from msgspec import field

from phalanx.base.client import Client, Resource
from phalanx.base.errors import AlreadyExists, NotFound
from phalanx.controllers.grouping.core import GroupingRefused
from phalanx.model.kinds import Json as Json


class ReplicaPart(msgspec.Struct, frozen=True):
    """Identical pods of a replica: its leader, its workers, a launcher, …"""

    name: str
    count: int
    pod_spec: Json


class Replica(msgspec.Struct, frozen=True):
    """One replica to schedule as a gang: the input of every provider."""

    name: str  # of the group
    namespace: str
    owner: Json  # owner reference: the leader pod, as in KEP-407, or the workload itself
    min_member: int
    parts: Sequence[ReplicaPart]
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)  # of the workload; some providers copy them
    priority_class: str = ""
    application: str = ""  # YuniKorn: name of all replicas together

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
        """Return the object to create if missing. Existing ones are never changed: a resize is a new revision."""
        ...

    def inject_pod_group_metadata(self, pod: Json, replica: Replica, part: str) -> None:
        """Edit a pod, or a pod template, so that its scheduler finds its group."""
        ...


def put(pod: Json, where: str, values: Mapping[str, str]) -> None:
    """Set labels or annotations of a pod, except those set by its author."""
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


async def create_pod_group_if_not_exists(client: Client, provider: SchedulerProvider, replica: Replica) -> None:
    """Create the PodGroup if missing. Raises Refused if the kind is not installed."""
    wanted = provider.pod_group(replica)
    if wanted is None or provider.resource is None:
        return
    try:
        await client.get(provider.resource, replica.name, replica.namespace)
        return
    except NotFound:
        pass
    try:
        await client.create(provider.resource, wanted, replica.namespace)
    except AlreadyExists:
        return
    except NotFound as problem:
        kind = f"{provider.resource.kind} of {provider.resource.api_version}"
        raise GroupingRefused(
            f"{kind} is not installed in this cluster; install {provider.name} or choose another provider",
            "APINotAvailable",
        ) from problem
