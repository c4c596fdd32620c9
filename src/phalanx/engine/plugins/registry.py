"""Every plugin that ships, by name."""

from __future__ import annotations

from phalanx.engine.framework import Factory
from phalanx.engine.plugins.balanced_allocation import NodeResourcesBalancedAllocation
from phalanx.engine.plugins.default_binder import DefaultBinder
from phalanx.engine.plugins.default_preemption import DefaultPreemption
from phalanx.engine.plugins.dynamic_resources import DynamicResources
from phalanx.engine.plugins.image_locality import ImageLocality
from phalanx.engine.plugins.inter_pod_affinity import InterPodAffinity
from phalanx.engine.plugins.node_affinity import NodeAffinity
from phalanx.engine.plugins.node_name import NodeName
from phalanx.engine.plugins.node_ports import NodePorts
from phalanx.engine.plugins.node_unschedulable import NodeUnschedulable
from phalanx.engine.plugins.node_volume_limits import NodeVolumeLimits
from phalanx.engine.plugins.priority_sort import PrioritySort
from phalanx.engine.plugins.resources_fit import NodeResourcesFit
from phalanx.engine.plugins.scheduling_gates import SchedulingGates
from phalanx.engine.plugins.taint_toleration import TaintToleration
from phalanx.engine.plugins.topology_spread import PodTopologySpread
from phalanx.engine.plugins.volume_binding import VolumeBinding
from phalanx.engine.plugins.volume_restrictions import VolumeRestrictions
from phalanx.engine.plugins.volume_zone import VolumeZone

BUILTIN: dict[str, Factory] = {
    "SchedulingGates": SchedulingGates,
    "PrioritySort": PrioritySort,
    "NodeName": NodeName,
    "NodeUnschedulable": NodeUnschedulable,
    "TaintToleration": TaintToleration,
    "NodeAffinity": NodeAffinity,
    "NodePorts": NodePorts,
    "NodeResourcesFit": NodeResourcesFit,
    "VolumeRestrictions": VolumeRestrictions,
    "NodeVolumeLimits": NodeVolumeLimits,
    "VolumeBinding": VolumeBinding,
    "VolumeZone": VolumeZone,
    "PodTopologySpread": PodTopologySpread,
    "InterPodAffinity": InterPodAffinity,
    "DynamicResources": DynamicResources,
    "NodeResourcesBalancedAllocation": NodeResourcesBalancedAllocation,
    "ImageLocality": ImageLocality,
    "DefaultPreemption": DefaultPreemption,
    "DefaultBinder": DefaultBinder,
}
