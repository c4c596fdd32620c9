"""Define and check the arguments of the default plugins (`pluginConfig`) as frozen dataclasses.

Each class parses camelCase JSON with `read`; defaults are those of kube-scheduler 1.37.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import msgspec

from phalanx.base.errors import ConfigProblem
from phalanx.engine.framework.config_reader import Fields
from phalanx.model import names
from phalanx.model.groups.keys import HOSTNAME, ZONE
from phalanx.model.objects.pod import NodeAffinity, TopologySpreadConstraint
from phalanx.model.selectors import BadSelector, node_selector, node_term

API = "kubescheduler.config.k8s.io/v1"
LEAST, MOST, RATIO = "LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"
Point = tuple[int, int]  # (utilization 0..100, score 0..10)


@dataclass(frozen=True, slots=True)
class PluginArgs:
    kind: ClassVar[str] = ""

    @classmethod
    def read(cls, raw: Mapping[str, Any] | None = None, path: str = "args") -> Self:
        fields = Fields(dict(raw) if raw is not None else None, path)
        fields.text("apiVersion", API, (API,))
        fields.text("kind", cls.kind, (cls.kind,))
        made = cls._from(fields)
        fields.done()
        return made

    @classmethod
    def _from(cls, fields: Fields) -> Self:
        return cls()


@dataclass(frozen=True, slots=True)
class NodeAffinityArgs(PluginArgs):
    added_affinity: NodeAffinity | None = None
    kind: ClassVar[str] = "NodeAffinityArgs"

    @classmethod
    def _from(cls, fields: Fields) -> Self:
        added = fields.typed("addedAffinity", NodeAffinity)
        path = fields.at("addedAffinity")
        if added is not None:
            try:
                if added.required is not None:
                    node_selector(added.required)
                for preferred in added.preferred or ():
                    node_term(preferred.preference)
            except BadSelector as problem:
                raise ConfigProblem(path, str(problem)) from None
        return cls(added)


class ResourceSpec(msgspec.Struct, frozen=True):
    name: str
    weight: int = 1


def _resources(fields: Fields, high: int) -> tuple[ResourceSpec, ...]:
    found: list[ResourceSpec] = []
    for path, item in fields.items("resources"):
        entry = Fields(item, path)
        name = entry.text("name")
        if not name:
            raise ConfigProblem(entry.at("name"), "Required value")
        if any(known.name == name for known in found):
            raise ConfigProblem(entry.at("name"), f'Duplicate value: "{name}"')
        weight = entry.integer("weight", 1)
        weight = 1 if weight == 0 else weight  # a missing weight and 0 are the same on the wire
        if not 0 < weight <= high:
            what = "must be 1" if high == 1 else f"resource weight of {name} not in valid range (0, {high}]"
            raise ConfigProblem(entry.at("weight"), f"Invalid value: {weight}: {what}")
        entry.done()
        found.append(ResourceSpec(name, weight))
    return tuple(found) or (ResourceSpec("cpu"), ResourceSpec("memory"))


def _shape(fields: Fields) -> tuple[Point, ...]:
    points: list[Point] = []
    for path, item in fields.items("shape"):
        entry = Fields(item, path)
        point = (entry.integer("utilization", 0, 0, 100), entry.integer("score", 0, 0, 10))
        if points and points[-1][0] >= point[0]:
            raise ConfigProblem(entry.at("utilization"), "values must be sorted in increasing order")
        entry.done()
        points.append(point)
    return tuple(points)


@dataclass(frozen=True, slots=True)
class NodeResourcesFitArgs(PluginArgs):
    ignored_resources: tuple[str, ...] = ()
    ignored_resource_groups: tuple[str, ...] = ()
    strategy: str = LEAST
    resources: tuple[ResourceSpec, ...] = (ResourceSpec("cpu"), ResourceSpec("memory"))
    shape: tuple[Point, ...] = ()  # of RequestedToCapacityRatio
    kind: ClassVar[str] = "NodeResourcesFitArgs"

    @classmethod
    def _from(cls, fields: Fields) -> Self:
        ignored = fields.texts("ignoredResources")
        groups = fields.texts("ignoredResourceGroups")
        for index, name in enumerate(ignored):
            for problem in names.label_key(name):
                raise ConfigProblem(f"{fields.at('ignoredResources')}[{index}]", f'Invalid value: "{name}": {problem}')
        for index, group in enumerate(groups):
            path = f"{fields.at('ignoredResourceGroups')}[{index}]"
            if "/" in group:
                raise ConfigProblem(path, f"Invalid value: \"{group}\": resource group name can't contain '/'")
            for problem in names.label_key(group):
                raise ConfigProblem(path, f'Invalid value: "{group}": {problem}')
        strategy = fields.object("scoringStrategy")
        kind = strategy.text("type", LEAST, (LEAST, MOST, RATIO))
        resources = _resources(strategy, 100)
        raw_ratio = strategy.take("requestedToCapacityRatio")
        ratio_path = strategy.at("requestedToCapacityRatio")
        strategy.done()
        points: tuple[Point, ...] = ()
        if kind == RATIO:
            if raw_ratio is None:
                raise ConfigProblem(ratio_path, f"Required value: must be specified when type is {RATIO}")
            ratio = Fields(raw_ratio, ratio_path)
            points = _shape(ratio)
            if not points:
                raise ConfigProblem(ratio.at("shape"), "Required value: at least one point must be specified")
            ratio.done()
        elif raw_ratio is not None:
            raise ConfigProblem(ratio_path, f"Forbidden: must be nil when type is not {RATIO}")
        return cls(ignored, groups, kind, resources, points)


@dataclass(frozen=True, slots=True)
class NodeResourcesBalancedAllocationArgs(PluginArgs):
    resources: tuple[ResourceSpec, ...] = (ResourceSpec("cpu"), ResourceSpec("memory"))
    kind: ClassVar[str] = "NodeResourcesBalancedAllocationArgs"

    @classmethod
    def _from(cls, fields: Fields) -> Self:
        return cls(_resources(fields, 1))


SYSTEM_DEFAULT_CONSTRAINTS = (
    TopologySpreadConstraint(max_skew=3, topology_key=HOSTNAME, when_unsatisfiable="ScheduleAnyway"),
    TopologySpreadConstraint(max_skew=5, topology_key=ZONE, when_unsatisfiable="ScheduleAnyway"),
)


@dataclass(frozen=True, slots=True)
class PodTopologySpreadArgs(PluginArgs):
    default_constraints: tuple[TopologySpreadConstraint, ...] = SYSTEM_DEFAULT_CONSTRAINTS
    system_defaulted: bool = True
    kind: ClassVar[str] = "PodTopologySpreadArgs"

    @classmethod
    def _from(cls, fields: Fields) -> Self:
        kind = fields.text("defaultingType", "System", ("System", "List"))
        constraints = fields.typed("defaultConstraints", list[TopologySpreadConstraint]) or []
        path = fields.at("defaultConstraints")
        if kind == "System":
            if constraints:
                problem = 'Invalid value: "System": when .defaultConstraints are not empty'
                raise ConfigProblem(fields.at("defaultingType"), problem)
            return cls()
        seen = set()
        for index, c in enumerate(constraints):
            here = f"{path}[{index}]"
            if c.max_skew <= 0:
                raise ConfigProblem(f"{here}.maxSkew", f"Invalid value: {c.max_skew}: not in valid range (0, inf)")
            if not c.topology_key:
                raise ConfigProblem(f"{here}.topologyKey", "Required value: can not be empty")
            for text in names.label_key(c.topology_key):
                raise ConfigProblem(f"{here}.topologyKey", f'Invalid value: "{c.topology_key}": {text}')
            if c.when_unsatisfiable not in ("DoNotSchedule", "ScheduleAnyway"):
                problem = f'Unsupported value: "{c.when_unsatisfiable}"'
                raise ConfigProblem(f"{here}.whenUnsatisfiable", problem)
            if c.label_selector is not None:
                problem = "Forbidden: constraint must not define a selector, as they deduced for each pod"
                raise ConfigProblem(f"{here}.labelSelector", problem)
            pair = (c.topology_key, c.when_unsatisfiable)
            if pair in seen:
                raise ConfigProblem(here, f'Duplicate value: "{{{pair[0]}, {pair[1]}}}"')
            seen.add(pair)
        return cls(tuple(constraints), False)


@dataclass(frozen=True, slots=True)
class InterPodAffinityArgs(PluginArgs):
    hard_pod_affinity_weight: int = 1
    ignore_preferred_terms_of_existing_pods: bool = False
    kind: ClassVar[str] = "InterPodAffinityArgs"

    @classmethod
    def _from(cls, fields: Fields) -> Self:
        return cls(
            fields.integer("hardPodAffinityWeight", 1, 0, 100),
            fields.boolean("ignorePreferredTermsOfExistingPods"),
        )


@dataclass(frozen=True, slots=True)
class VolumeBindingArgs(PluginArgs):
    bind_timeout: float = 600.0  # seconds
    shape: tuple[Point, ...] = ((0, 10), (100, 0))
    kind: ClassVar[str] = "VolumeBindingArgs"

    @classmethod
    def _from(cls, fields: Fields) -> Self:
        timeout = fields.integer("bindTimeoutSeconds", 600, 0)
        return cls(float(timeout), _shape(fields) or ((0, 10), (100, 0)))


@dataclass(frozen=True, slots=True)
class DefaultPreemptionArgs(PluginArgs):
    """Accepted for compatibility: all nodes are candidates, none are sampled."""

    min_candidate_nodes_percentage: int = 10
    min_candidate_nodes_absolute: int = 100
    kind: ClassVar[str] = "DefaultPreemptionArgs"

    @classmethod
    def _from(cls, fields: Fields) -> Self:
        percentage = fields.integer("minCandidateNodesPercentage", 10, 0, 100)
        absolute = fields.integer("minCandidateNodesAbsolute", 100, 0)
        if percentage == 0 and absolute == 0:
            problem = "Invalid value: 0: cannot be zero at the same time as minCandidateNodesAbsolute"
            raise ConfigProblem(fields.at("minCandidateNodesPercentage"), problem)
        return cls(percentage, absolute)


@dataclass(frozen=True, slots=True)
class DynamicResourcesArgs(PluginArgs):
    filter_timeout: float = 10.0  # seconds
    binding_timeout: float = 600.0
    kind: ClassVar[str] = "DynamicResourcesArgs"

    @classmethod
    def _from(cls, fields: Fields) -> Self:
        filter_timeout = fields.seconds("filterTimeout", 10.0)
        if filter_timeout < 0:
            raise ConfigProblem(fields.at("filterTimeout"), "must be zero or positive")
        binding_timeout = fields.seconds("bindingTimeout", 600.0)
        if binding_timeout < 1:
            raise ConfigProblem(fields.at("bindingTimeout"), "must be at least 1 second")
        return cls(filter_timeout, binding_timeout)


@dataclass(frozen=True, slots=True)
class GPUFragmentationArgs(PluginArgs):
    only_shared_devices: bool = True  # apply only while a device of the cluster can be divided among claims
    kind: ClassVar[str] = "GPUFragmentationArgs"

    @classmethod
    def _from(cls, fields: Fields) -> Self:
        return cls(fields.boolean("onlySharedDevices", True))


ARGS: dict[str, type[PluginArgs]] = {
    "NodeAffinity": NodeAffinityArgs,
    "NodeResourcesFit": NodeResourcesFitArgs,
    "NodeResourcesBalancedAllocation": NodeResourcesBalancedAllocationArgs,
    "PodTopologySpread": PodTopologySpreadArgs,
    "InterPodAffinity": InterPodAffinityArgs,
    "VolumeBinding": VolumeBindingArgs,
    "DefaultPreemption": DefaultPreemptionArgs,
    "DynamicResources": DynamicResourcesArgs,
    "GPUFragmentation": GPUFragmentationArgs,
}


def resource_weights(value: Any, path: str) -> list[tuple[str, int]]:
    """Return [(name, weight)]; cpu and memory with weight 1 by default."""
    if value is None:
        return [("cpu", 1), ("memory", 1)]
    if not isinstance(value, list):
        raise ConfigProblem(path, "must be a list")
    found: list[tuple[str, int]] = []
    for at, item in enumerate(value):
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            raise ConfigProblem(f"{path}[{at}].name", "required")
        weight = item.get("weight", 1) or 1
        if not isinstance(weight, int) or not 1 <= weight <= 100:
            raise ConfigProblem(f"{path}[{at}].weight", "must be between 1 and 100")
        if any(name == item["name"] for name, _ in found):
            raise ConfigProblem(f"{path}[{at}].name", f"{item['name']!r} is listed twice")
        found.append((item["name"], weight))
    return found
