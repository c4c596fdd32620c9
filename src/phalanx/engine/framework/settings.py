"""What an engine is told at birth: profiles and queue timings. `config` makes these from KubeSchedulerConfiguration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from phalanx.model.groups.policy import DEFAULT, Policy


@dataclass(frozen=True, slots=True)
class PluginUse:
    """A plugin in a profile. `points` None means every point it implements (multiPoint)."""

    name: str
    weight: int = 0  # 0 = the plugin's own default weight
    points: frozenset[str] | None = None  # names as in framework.POINTS


# kube-scheduler 1.37's default order. Weights of 0 take the plugin's own default.
DEFAULT_PLUGINS: tuple[str, ...] = (
    "SchedulingGates",
    "PrioritySort",
    "NodeName",
    "NodeUnschedulable",
    "TaintToleration",
    "NodeAffinity",
    "NodePorts",
    "NodeResourcesFit",
    "VolumeRestrictions",
    "NodeVolumeLimits",
    "VolumeBinding",
    "VolumeZone",
    "PodTopologySpread",
    "InterPodAffinity",
    "DynamicResources",
    "DefaultPreemption",
    "NodeResourcesBalancedAllocation",
    "ImageLocality",
    "DefaultBinder",
)


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    scheduler_name: str = "default-scheduler"
    plugins: tuple[PluginUse, ...] = tuple(PluginUse(name) for name in DEFAULT_PLUGINS)
    args: dict[str, dict[str, Any]] = field(default_factory=dict)  # plugin name -> pluginConfig args (camelCase)


@dataclass(frozen=True, slots=True)
class EngineSettings:
    profiles: tuple[ProfileSettings, ...] = (ProfileSettings(),)
    initial_backoff: float = 1.0  # seconds
    max_backoff: float = 10.0
    # A waiting root is looked at again after this long even if no event woke it. Costs one evaluation per shape.
    flush_after: float = 300.0
    search_budget: int = 20_000  # expansions of the bounded group search
    # Work after which an attempt of a group lets others go first, about ten microseconds each; 0: never.
    search_slice: int = 1_000
    # What holds for groups of which neither a WorkloadPolicy nor an annotation says otherwise.
    policy_defaults: Policy = DEFAULT
