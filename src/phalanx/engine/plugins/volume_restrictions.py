"""VolumeRestrictions: disks that two pods on a node cannot share, and claims that only one pod may use."""

from __future__ import annotations

import numpy as np

from phalanx.engine.framework import Bools, ClusterChange, Code, Status, Traits, Wake
from phalanx.engine.plugins.volume_state import (
    ClaimKey,
    VolumeFilter,
    VolumePlugin,
    VolumeVerdict,
    claims_of,
    disks_of,
    has_volumes,
    not_found,
)
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.shapes import Shape
from phalanx.model.objects.pod import Volume

DISK = "node(s) had no available disk"
ONE_POD = (
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
)


class VolumeRestrictions(VolumePlugin):
    name = "VolumeRestrictions"
    traits = Traits(wakes_on=Wake.POD_GONE | Wake.STORAGE | Wake.NODE_ADDED, handles=has_volumes, relieved=True)

    def pre_filter(self, shape: Shape) -> Status | None:
        for use in claims_of(shape):
            if not use.ephemeral and self.state.claim(use.key) is None:
                return Status(Code.UNRESOLVABLE, (not_found(use.key[1]),), self.name)
        return None

    def track(self, shape: Shape, columns: Columns) -> VolumeFilter | None:
        return RestrictionsFilter(self.state, shape, columns) if shape.volumes else None

    def queueing_hint(self, shape: Shape, change: ClusterChange) -> bool:
        """Return True if a removed pod used a disk or claim of the shape."""
        record = change.record
        if record is None or not change.kind & Wake.POD_GONE:
            return True
        mine = {use.key for use in claims_of(shape)}
        if any(use.key in mine for use in claims_of(record.shape)):
            return True
        return any(conflict(a, b) for a in disks_of(shape) for b in disks_of(record.shape))


class RestrictionsFilter(VolumeFilter):
    cares_for_pods = True

    def evaluate(self) -> list[VolumeVerdict]:
        verdicts = []
        capacity = self.columns.capacity
        mine = disks_of(self.shape)
        if mine:
            taken: Bools = np.zeros(capacity, dtype=np.bool_)
            for row, records in self.state.disk_rows.items():
                taken[row] = any(
                    conflict(a, b) for record in records.values() for b in disks_of(record.shape) for a in mine
                )
            verdicts.append(VolumeVerdict(taken, DISK, False))
        if any(self._in_use(use.key) for use in claims_of(self.shape) if not use.ephemeral):
            free = ~verdicts[0].rows if verdicts else np.ones(capacity, dtype=np.bool_)
            verdicts.append(VolumeVerdict(free, ONE_POD, False))
        return verdicts

    def _in_use(self, key: ClaimKey) -> bool:
        """Return True if the claim is ReadWriteOncePod and a placed pod uses it."""
        claim = self.state.claim(key)
        if claim is None or "ReadWriteOncePod" not in (claim.spec.access_modes or ()):
            return False
        for record in self.state.users.get(key, {}).values():
            if any(use.key == key and not use.ephemeral for use in claims_of(record.shape)):
                return True
        return False


def conflict(a: Volume, b: Volume) -> bool:
    """Return True if both volumes are the same disk, unless both are read-only (EBS: no exception)."""
    if a.gce_persistent_disk and b.gce_persistent_disk:
        x, y = a.gce_persistent_disk, b.gce_persistent_disk
        if x.pd_name == y.pd_name and not (x.read_only and y.read_only):
            return True
    if a.aws_elastic_block_store and b.aws_elastic_block_store:
        ebs, other = a.aws_elastic_block_store, b.aws_elastic_block_store
        if ebs.volume_id == other.volume_id:
            return True
    if a.iscsi and b.iscsi and a.iscsi.iqn == b.iscsi.iqn and not (a.iscsi.read_only and b.iscsi.read_only):
        return True
    if a.rbd and b.rbd:
        same = (a.rbd.pool, a.rbd.image) == (b.rbd.pool, b.rbd.image)
        shared = not set(a.rbd.monitors).isdisjoint(b.rbd.monitors)
        return same and shared and not (a.rbd.read_only and b.rbd.read_only)
    return False
