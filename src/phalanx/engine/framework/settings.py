"""Settings of an engine: profiles and queue timings. `config` makes these from KubeSchedulerConfiguration."""

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
class ReservationSettings:
    """How far younger units may overtake an older one, and how much room may be reserved for those that wait."""

    backfill: str = "Conservative"  # which waiting units with a known start are protected: see BACKFILLS
    starvation_seconds: float = 300.0  # overtaken for longer, a unit gets a reservation; 0: never
    max_overtaken: int = 100  # passed by more younger units, a unit gets a reservation; 0: not counted
    max_reserved_fraction: float = 0.5  # of the cluster that reservations of waiting units may hold
    strict_fifo: bool = False  # no unit overtakes an older one of equal or higher priority
    preemption_patience_seconds: float = 0.0  # nothing is evicted for a unit that is promised to start this soon
    size_exponent: float = 0.5  # how much large units are preferred among those of equal priority that wait
    duration_exponent: float = 0.3  # how much short ones are


BACKFILLS = ("Conservative", "Easy", "None")


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    scheduler_name: str = "default-scheduler"
    plugins: tuple[PluginUse, ...] = tuple(PluginUse(name) for name in DEFAULT_PLUGINS)
    args: dict[str, dict[str, Any]] = field(default_factory=dict)  # plugin name -> pluginConfig args (camelCase)
    reservations: ReservationSettings = ReservationSettings()


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
    # For tests: an illegal transition of a pod or unit raises; otherwise it is counted and logged.
    strict_transitions: bool = False
    # What holds for groups of which neither a WorkloadPolicy nor an annotation says otherwise.
    policy_defaults: Policy = DEFAULT
