"""Define the engine's settings: profiles and queue timings. `config` reads them from KubeSchedulerConfiguration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from phalanx.model.groups.policy import DEFAULT, Policy


@dataclass(frozen=True, slots=True)
class PluginUse:
    """Use of a plugin in a profile. `points` None means every point it implements (multiPoint)."""

    name: str
    weight: int = 0  # 0 = the plugin's own default weight
    points: frozenset[str] | None = None  # names as in framework.POINTS


@dataclass(frozen=True, slots=True)
class ReservationSettings:
    """Limit how far younger units may overtake an older one, and how much may be reserved for waiting units."""

    backfill: str = "Easy"  # which waiting units with a known start are protected: see BACKFILLS
    starvation_seconds: float = 300.0  # a unit overtaken for longer gets a reservation; 0: never
    max_overtaken: int = 100  # a unit overtaken by more younger units gets a reservation; 0: not counted
    max_reserved_fraction: float = 0.5  # maximum fraction of the cluster that reservations of waiting units may hold
    max_reserved_fraction_per_namespace: float = 0.25  # the same for units of one namespace
    nodes_to_come_seconds: float = 300.0  # how long arriving nodes are held for a gang; 0: not at all
    strict_fifo: bool = False  # no unit overtakes an older one of equal or higher priority
    preemption_patience_seconds: float = 0.0  # no preemption for a unit that is expected to start this soon
    defer_evictions: bool = True  # evict victims with shorter grace periods later, so that all end together
    size_exponent: float = 0.5  # preference for large units among waiting units of equal priority
    duration_exponent: float = 0.3  # preference for short units among them
    promise_slack: float = 2.0  # share of the planned wait that is added to the promise of a small unit


BACKFILLS = ("Conservative", "Easy", "None")


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    scheduler_name: str = "default-scheduler"
    plugins: tuple[PluginUse, ...] | None = None  # None: the default plugins (`plugins.registry`)
    args: dict[str, dict[str, Any]] = field(default_factory=dict)  # plugin name -> pluginConfig args (camelCase)
    reservations: ReservationSettings = ReservationSettings()


@dataclass(frozen=True, slots=True)
class EngineSettings:
    profiles: tuple[ProfileSettings, ...] = (ProfileSettings(),)
    initial_backoff: float = 1.0  # seconds
    max_backoff: float = 10.0
    # Seconds after which a waiting unit is retried even if no event woke it. Costs one evaluation per shape.
    flush_after: float = 300.0
    # Seconds that a start may be later than promised before the promise moves: pods start with a delay.
    start_drift: float = 10.0
    search_budget: int = 20_000  # expansions of the bounded group search
    # Work after which a group's attempt yields to other units, in units of about ten microseconds; 0: never.
    search_slice: int = 1_000
    # For tests: raise on an illegal transition of a pod or unit; otherwise it is counted and logged.
    strict_transitions: bool = False
    # Defaults for groups for which neither a WorkloadPolicy nor an annotation sets a value.
    policy_defaults: Policy = DEFAULT
