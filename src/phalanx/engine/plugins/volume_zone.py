"""VolumeZone: a bound volume with zone or region labels can only be used on nodes with the same labels."""

from __future__ import annotations

import numpy as np

from phalanx.engine.framework import Bools, Code, Status, Traits, Wake
from phalanx.engine.plugins.volume_state import (
    VolumeFilter,
    VolumePlugin,
    VolumeVerdict,
    claims_of,
    class_of,
    has_volumes,
    not_found,
)
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.shapes import Shape
from phalanx.model.groups.keys import REGION, ZONE
from phalanx.model.objects import PersistentVolume

CONFLICT = "node(s) had no available volume zone"
# Label of the volume -> the label that a node may have instead.
_STABLE = {
    "failure-domain.beta.kubernetes.io/zone": ZONE,
    "failure-domain.beta.kubernetes.io/region": REGION,
    ZONE: ZONE,
    REGION: REGION,
}


class VolumeZone(VolumePlugin):
    name = "VolumeZone"
    traits = Traits(wakes_on=Wake.STORAGE | Wake.NODE, handles=has_volumes, relieved=True)

    def pre_filter(self, shape: Shape) -> Status | None:
        for use in claims_of(shape):
            if use.ephemeral:
                continue
            problem = self._problem(use.key)
            if problem:
                return Status(Code.UNRESOLVABLE, (problem,), self.name)
        return None

    def _problem(self, key: tuple[str, str]) -> str:
        if not key[1]:
            return "PersistentVolumeClaim had no name"
        claim = self.state.claim(key)
        if claim is None:
            return not_found(key[1])
        if claim.spec.volume_name:
            if self.state.volume(claim.spec.volume_name) is None:
                return f'persistentvolume "{claim.spec.volume_name}" not found'
            return ""
        name = class_of(claim)
        if not name:
            return "PersistentVolumeClaim had no pv name and storageClass name"
        storage_class = self.state.storage_class(name)
        if storage_class is None:
            return f'storageclass.storage.k8s.io "{name}" not found'
        if storage_class.volume_binding_mode is None:
            return f'VolumeBindingMode not set for StorageClass "{name}"'
        if storage_class.volume_binding_mode != "WaitForFirstConsumer":
            return "PersistentVolume had no name"
        return ""

    def track(self, shape: Shape, columns: Columns) -> VolumeFilter | None:
        return ZoneFilter(self.state, shape, columns) if claims_of(shape) else None


class ZoneFilter(VolumeFilter):
    def evaluate(self) -> list[VolumeVerdict]:
        wrong: Bools = np.zeros(self.columns.capacity, dtype=np.bool_)
        found = False
        for use in claims_of(self.shape):
            claim = None if use.ephemeral else self.state.claim(use.key)
            volume = self.state.volume(claim.spec.volume_name) if claim and claim.spec.volume_name else None
            if volume is not None:
                for key, zones in zones_of(volume):
                    wrong |= ~self._in(key, zones)
                    found = True
        if not found:
            return []
        # Nodes without any zone or region label belong to a cluster with one zone and always pass.
        speaking: Bools = np.zeros(self.columns.capacity, dtype=np.bool_)
        for key in _STABLE:
            speaking |= self.columns.label(key).ids > 0
        return [VolumeVerdict(wrong & speaking, CONFLICT, True)]

    def _in(self, key: str, zones: frozenset[str]) -> Bools:
        column = self.columns.label(key)
        inside = np.array([False, *(value in zones for value in column.values[1:])], dtype=np.bool_)
        found: Bools = inside[column.ids]
        if _STABLE[key] != key:
            stable = self.columns.label(_STABLE[key])
            instead = np.array([False, *(value in zones for value in stable.values[1:])], dtype=np.bool_)
            found = np.where(column.ids > 0, found, instead[stable.ids])
        return found


def zones_of(volume: PersistentVolume) -> list[tuple[str, frozenset[str]]]:
    """Return the zones per label. A value may join several zones by "__"; a value with an empty part is ignored."""
    found = []
    for key in _STABLE:
        zones = volume.metadata.labels.get(key, "").split("__")
        if "" not in zones:
            found.append((key, frozenset(zones)))
    return found
