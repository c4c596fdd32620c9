"""What a scheduling attempt may look at, as plain lists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from phalanx.model import objects as o


@dataclass
class Cluster:
    """Every assigned pod names its node in spec.nodeName; pods without one do not exist for placement."""

    nodes: list[o.Node] = field(default_factory=list)
    pods: list[o.Pod] = field(default_factory=list)
    namespaces: list[o.Namespace] = field(default_factory=list)
    services: list[o.Service] = field(default_factory=list)
    replication_controllers: list[o.ReplicationController] = field(default_factory=list)
    replica_sets: list[o.ReplicaSet] = field(default_factory=list)
    stateful_sets: list[o.StatefulSet] = field(default_factory=list)
    volumes: list[o.PersistentVolume] = field(default_factory=list)
    claims: list[o.PersistentVolumeClaim] = field(default_factory=list)
    classes: list[o.StorageClass] = field(default_factory=list)
    csi_nodes: list[o.CSINode] = field(default_factory=list)
    csi_drivers: list[o.CSIDriver] = field(default_factory=list)
    capacities: list[o.CSIStorageCapacity] = field(default_factory=list)

    def pods_on(self, node: o.Node) -> list[o.Pod]:
        return [p for p in self.pods if p.spec.node_name == node.metadata.name]

    def placed(self) -> Iterator[tuple[o.Pod, o.Node]]:
        """Return every pod together with its node; pods on unknown nodes are left out."""
        for node in self.nodes:
            for pod in self.pods_on(node):
                yield pod, node

    def namespace_labels(self, name: str) -> dict[str, str] | None:
        return next((n.metadata.labels for n in self.namespaces if n.metadata.name == name), None)

    def claim(self, namespace: str, name: str) -> o.PersistentVolumeClaim | None:
        for claim in self.claims:
            if claim.metadata.namespace == namespace and claim.metadata.name == name:
                return claim
        return None

    def volume(self, name: str) -> o.PersistentVolume | None:
        return next((v for v in self.volumes if v.metadata.name == name), None)

    def storage_class(self, name: str) -> o.StorageClass | None:
        return next((c for c in self.classes if c.metadata.name == name), None)

    def csi_node(self, name: str) -> o.CSINode | None:
        return next((c for c in self.csi_nodes if c.metadata.name == name), None)

    def csi_driver(self, name: str) -> o.CSIDriver | None:
        return next((d for d in self.csi_drivers if d.metadata.name == name), None)
