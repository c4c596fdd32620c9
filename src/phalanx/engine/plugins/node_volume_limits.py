"""NodeVolumeLimits: limit the attached volumes per CSI driver on a node, as its CSINode states."""

from __future__ import annotations

from typing import Any

import numpy as np

from phalanx.engine.framework import Bools, Traits, Wake
from phalanx.engine.plugins.volume_state import (
    Attachment,
    VolumeFilter,
    VolumePlugin,
    VolumeVerdict,
    claims_of,
    made_for,
    not_found,
    not_made_for,
)
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.shapes import Shape
from phalanx.model.objects import CSIDriver, CSINode

FULL = "node(s) exceed max volume count"


class NodeVolumeLimits(VolumePlugin):
    name = "NodeVolumeLimits"
    traits = Traits(wakes_on=Wake.POD_GONE | Wake.STORAGE | Wake.NODE_ADDED, relieved=True)

    def track(self, shape: Shape, columns: Columns) -> VolumeFilter | None:
        return LimitsFilter(self.state, shape, columns) if claims_of(shape) else None


class LimitsFilter(VolumeFilter):
    cares_for_pods = True

    def evaluate(self) -> list[VolumeVerdict]:
        everywhere: Bools = np.ones(self.columns.capacity, dtype=np.bool_)
        problem = self._unreadable()
        if problem:
            return [VolumeVerdict(everywhere, problem, True)]
        pod_name = self.shape.pod.metadata.name
        new = self.state.attachments(self.shape, pod_name)
        if not new:
            return []
        drivers = sorted({driver for driver, _ in new})
        installed, limits = self._limits(drivers)
        verdicts = []
        open_rows = everywhere.copy()
        for driver in drivers:
            known = self.state.objects.get(CSIDriver, "", driver)
            if known is not None and known.spec.prevent_pod_scheduling_if_missing:
                missing = open_rows & ~installed[driver]
                open_rows &= installed[driver]
                verdicts.append(VolumeVerdict(missing, f"{driver} CSI driver is not installed on the node", False))
        full: Bools = np.zeros(self.columns.capacity, dtype=np.bool_)
        for driver in drivers:
            if np.isfinite(limits[driver]).any():
                full |= self._full(driver, {a for a in new if a[0] == driver}, limits[driver])
        verdicts.append(VolumeVerdict(full & open_rows, FULL, False))
        return verdicts

    def _unreadable(self) -> str:
        """Return the reason why the pod's claims cannot be counted, if any."""
        pod_name = self.shape.pod.metadata.name
        for use in claims_of(self.shape):
            claim = self.state.claim(use.key)
            if claim is None:
                return f"looking up PVC {use.key[0]}/{use.key[1]}: {not_found(use.key[1])}"
            if use.ephemeral and not made_for(claim, pod_name):
                return not_made_for(use.key, pod_name)
        return ""

    def _limits(self, drivers: list[str]) -> tuple[dict[str, Bools], dict[str, Any]]:
        """Return per driver (capacity,) where it is installed, and (capacity,) float64 its limit; inf: no limit."""
        capacity = self.columns.capacity
        installed = {driver: np.zeros(capacity, dtype=np.bool_) for driver in drivers}
        limits = {driver: np.full(capacity, np.inf) for driver in drivers}
        for csi_node in self.state.objects.all(CSINode):
            row = self.columns.row_of.get(csi_node.metadata.name, -1)
            if row < 0:
                continue
            for entry in csi_node.spec.drivers:
                if entry.name in limits:
                    installed[entry.name][row] = True
                    if entry.allocatable is not None and entry.allocatable.count is not None:
                        limits[entry.name][row] = entry.allocatable.count
        return installed, limits

    def _full(self, driver: str, new: set[Attachment], limits: Any) -> Bools:
        """Do not count volumes that are already attached to the node."""
        attached = np.zeros(self.columns.capacity)
        needed = np.full(self.columns.capacity, float(len(new)))
        for row, volumes in self.state.attached():
            for attachment in volumes:
                if attachment[0] == driver:
                    attached[row] += 1
                    needed[row] -= attachment in new
        full: Bools = (attached + needed > limits) & (needed > 0)
        return full
