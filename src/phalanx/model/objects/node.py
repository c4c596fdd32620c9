"""Node, as far as placement depends on it."""

from __future__ import annotations

import msgspec

from phalanx.model.objects.meta import ObjectMeta, Struct
from phalanx.model.objects.pod import Resources


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
