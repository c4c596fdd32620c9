"""Builders of volumes, claims, storage classes and CSI objects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from phalanx.model import objects as o
from phalanx.testing.builders.base import Builder, Expression, Json, Selector, node_term_json, selector_json


class PersistentVolumeBuilder(Builder[o.PersistentVolume]):
    """Without calls: 1Gi, ReadWriteOnce, no class, available everywhere."""

    kind = "PersistentVolume"
    namespaced = False
    view = o.PersistentVolume

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.capacity("1Gi").modes("ReadWriteOnce")
        self.status["phase"] = "Available"

    def capacity(self, quantity: str) -> Self:
        return self._spec(capacity={"storage": quantity})

    def modes(self, *modes: str) -> Self:
        return self._spec(accessModes=list(modes))

    def storage_class(self, name: str) -> Self:
        return self._spec(storageClassName=name)

    def volume_mode(self, mode: str) -> Self:
        return self._spec(volumeMode=mode)

    def csi(self, driver: str, handle: str = "") -> Self:
        return self._spec(csi={"driver": driver, "volumeHandle": handle or self.metadata["name"]})

    def node_affinity(self, *expressions: Expression) -> Self:
        """Add a required node selector term."""
        affinity = self.spec.setdefault("nodeAffinity", {"required": {"nodeSelectorTerms": []}})
        affinity["required"]["nodeSelectorTerms"].append(node_term_json(expressions))
        return self

    def claimed_by(self, claim: str, namespace: str = "default", uid: str | None = None) -> Self:
        """Set spec.claimRef.

        The uid defaults to the one that pvc(claim).build() gets; "" leaves it out (pre-bound).
        """
        made_uid = f"persistentvolumeclaim:{namespace}/{claim}" if uid is None else uid
        reference = {"kind": "PersistentVolumeClaim", "namespace": namespace, "name": claim, "uid": made_uid}
        self.spec["claimRef"] = {k: v for k, v in reference.items() if v}
        return self._status(phase="Bound")

    def phase(self, phase: str) -> Self:
        return self._status(phase=phase)


class PersistentVolumeClaimBuilder(Builder[o.PersistentVolumeClaim]):
    """Without calls: asks 1Gi ReadWriteOnce of the class named ""."""

    kind = "PersistentVolumeClaim"
    view = o.PersistentVolumeClaim

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.ask("1Gi").modes("ReadWriteOnce").storage_class("")
        self.status["phase"] = "Pending"

    def ask(self, quantity: str) -> Self:
        return self._spec(resources={"requests": {"storage": quantity}})

    def modes(self, *modes: str) -> Self:
        return self._spec(accessModes=list(modes))

    def storage_class(self, name: str | None) -> Self:
        return self._spec(storageClassName=name)

    def volume_mode(self, mode: str) -> Self:
        return self._spec(volumeMode=mode)

    def select(self, selector: Selector) -> Self:
        return self._spec(selector=selector_json(selector))

    def bound(self, volume: str) -> Self:
        """Bind the claim fully: spec.volumeName, the bind-completed annotation and phase Bound."""
        self.spec["volumeName"] = volume
        self.status["phase"] = "Bound"
        return self.annotate("pv.kubernetes.io/bind-completed", "yes")

    def volume_name(self, volume: str) -> Self:
        """Set spec.volumeName only: pre-bound by its user, not yet by the controller."""
        return self._spec(volumeName=volume)

    def selected_node(self, node: str) -> Self:
        return self.annotate("volume.kubernetes.io/selected-node", node)

    def phase(self, phase: str) -> Self:
        return self._status(phase=phase)


class StorageClassBuilder(Builder[o.StorageClass]):
    api_version = "storage.k8s.io/v1"
    kind = "StorageClass"
    namespaced = False
    view = o.StorageClass

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.provisioner("kubernetes.io/no-provisioner")

    def provisioner(self, name: str) -> Self:
        self.body["provisioner"] = name
        return self

    def wait(self) -> Self:
        """Set volumeBindingMode to WaitForFirstConsumer."""
        self.body["volumeBindingMode"] = "WaitForFirstConsumer"
        return self

    def immediate(self) -> Self:
        self.body["volumeBindingMode"] = "Immediate"
        return self

    def allow(self, key: str, *values: str) -> Self:
        """Add an allowedTopologies term."""
        term = {"matchLabelExpressions": [{"key": key, "values": list(values)}]}
        self.body.setdefault("allowedTopologies", []).append(term)
        return self


class CSINodeBuilder(Builder[o.CSINode]):
    api_version = "storage.k8s.io/v1"
    kind = "CSINode"
    namespaced = False
    view = o.CSINode

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.spec["drivers"] = []

    def driver(self, name: str, count: int | None = None, topology_keys: Iterable[str] = ()) -> Self:
        made: Json = {"name": name, "nodeID": self.metadata["name"], "topologyKeys": list(topology_keys)}
        if count is not None:
            made["allocatable"] = {"count": count}
        self.spec["drivers"].append(made)
        return self


class CSIDriverBuilder(Builder[o.CSIDriver]):
    api_version = "storage.k8s.io/v1"
    kind = "CSIDriver"
    namespaced = False
    view = o.CSIDriver

    def storage_capacity(self, used: bool = True) -> Self:
        return self._spec(storageCapacity=used)


class CSIStorageCapacityBuilder(Builder[o.CSIStorageCapacity]):
    api_version = "storage.k8s.io/v1"
    kind = "CSIStorageCapacity"
    view = o.CSIStorageCapacity

    def of(self, storage_class: str, capacity: str | None, maximum: str | None = None) -> Self:
        self.body["storageClassName"] = storage_class
        self.body.update({k: v for k, v in (("capacity", capacity), ("maximumVolumeSize", maximum)) if v is not None})
        return self

    def on(self, selector: Selector) -> Self:
        self.body["nodeTopology"] = selector_json(selector)
        return self
