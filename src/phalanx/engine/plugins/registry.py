"""Register the built-in plugins by name, and the indexes that the plugins of all profiles share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from phalanx.engine.devices.cel import compile_selector
from phalanx.engine.devices.claim_tables import DEVICE_KINDS
from phalanx.engine.devices.state import DeviceState
from phalanx.engine.devices.uses import ClaimUses
from phalanx.engine.framework import Factory
from phalanx.engine.framework.settings import PluginUse, ProfileSettings
from phalanx.engine.plugins.balanced_allocation import NodeResourcesBalancedAllocation
from phalanx.engine.plugins.default_binder import DefaultBinder
from phalanx.engine.plugins.default_preemption import DefaultPreemption
from phalanx.engine.plugins.dynamic_resources import DynamicResources
from phalanx.engine.plugins.gpu_fragmentation import GPUFragmentation
from phalanx.engine.plugins.image_locality import ImageLocality
from phalanx.engine.plugins.inter_pod_affinity import InterPodAffinity
from phalanx.engine.plugins.node_affinity import NodeAffinityPlugin
from phalanx.engine.plugins.node_name import NodeName
from phalanx.engine.plugins.node_ports import NodePorts
from phalanx.engine.plugins.node_unschedulable import NodeUnschedulable
from phalanx.engine.plugins.node_volume_limits import NodeVolumeLimits
from phalanx.engine.plugins.pod_index import PodIndex
from phalanx.engine.plugins.priority_sort import PrioritySort
from phalanx.engine.plugins.resources_fit import NodeResourcesFit
from phalanx.engine.plugins.scheduling_gates import SchedulingGates
from phalanx.engine.plugins.taint_toleration import TaintToleration
from phalanx.engine.plugins.topology_spread import PodTopologySpread
from phalanx.engine.plugins.volume_binding import VolumeBinding
from phalanx.engine.plugins.volume_restrictions import VolumeRestrictions
from phalanx.engine.plugins.volume_state import STORAGE_KINDS, VolumeState
from phalanx.engine.plugins.volume_zone import VolumeZone
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.label_interest import LabelInterest
from phalanx.engine.state.objects import Objects
from phalanx.model.gates import Gates


class Indexes(msgspec.Struct, frozen=True):
    """Indexes that are created once per engine and passed to the plugins that need them."""

    pods: PodIndex
    volumes: VolumeState
    devices: DeviceState
    claims: ClaimUses

    @classmethod
    def of(cls, columns: Columns, objects: Objects, interest: LabelInterest, gates: Gates | None = None) -> Indexes:
        devices = DeviceState(columns, objects, compile_selector)
        uses = ClaimUses(devices, partial(columns.resource, own=True), gates or Gates())
        return cls(PodIndex(columns, interest), VolumeState(columns, objects), devices, uses)

    def observe(self, kind: str, old: Any | None, new: Any | None) -> None:
        """Record an object that was added (old None), changed, or removed (new None)."""
        if kind in STORAGE_KINDS:
            self.volumes.observe(kind, old, new)
        elif kind in DEVICE_KINDS:
            self.devices.observe(kind, old, new)


# By name, in kube-scheduler 1.37's default order: how a plugin's factory is made from the shared indexes.
_BUILTIN: dict[str, Callable[[Indexes], Factory]] = {
    "SchedulingGates": lambda _: SchedulingGates,
    "PrioritySort": lambda _: PrioritySort,
    "NodeName": lambda _: NodeName,
    "NodeUnschedulable": lambda _: NodeUnschedulable,
    "TaintToleration": lambda _: TaintToleration,
    "NodeAffinity": lambda _: NodeAffinityPlugin,
    "NodePorts": lambda _: NodePorts,
    "NodeResourcesFit": lambda _: NodeResourcesFit,
    "VolumeRestrictions": lambda indexes: partial(VolumeRestrictions, state=indexes.volumes),
    "NodeVolumeLimits": lambda indexes: partial(NodeVolumeLimits, state=indexes.volumes),
    "VolumeBinding": lambda indexes: partial(VolumeBinding, state=indexes.volumes),
    "VolumeZone": lambda indexes: partial(VolumeZone, state=indexes.volumes),
    "PodTopologySpread": lambda indexes: partial(PodTopologySpread, index=indexes.pods),
    "InterPodAffinity": lambda indexes: partial(InterPodAffinity, index=indexes.pods),
    "DynamicResources": lambda indexes: partial(DynamicResources, state=indexes.devices, uses=indexes.claims),
    "DefaultPreemption": lambda _: DefaultPreemption,
    "NodeResourcesBalancedAllocation": lambda _: NodeResourcesBalancedAllocation,
    "ImageLocality": lambda _: ImageLocality,
    "DefaultBinder": lambda _: DefaultBinder,
    "GPUFragmentation": lambda indexes: partial(GPUFragmentation, state=indexes.devices),
}
DEFAULT_PLUGINS: tuple[str, ...] = tuple(_BUILTIN)


def builtin(indexes: Indexes) -> dict[str, Factory]:
    return {name: make(indexes) for name, make in _BUILTIN.items()}


def plugins_of(settings: ProfileSettings) -> tuple[PluginUse, ...]:
    """Return the plugins of a profile: those of its settings, else the default plugins with their own weights."""
    return settings.plugins if settings.plugins is not None else tuple(map(PluginUse, DEFAULT_PLUGINS))
