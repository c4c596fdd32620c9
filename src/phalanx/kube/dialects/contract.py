"""The interface of a dialect, which translates one kind of foreign PodGroup with pure functions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

import msgspec

from phalanx.base.client import Resource
from phalanx.model.groups.keys import PREFERRED_TOPOLOGY, UNUSABLE
from phalanx.model.groups.policy import SCHEDULE_TIMEOUT
from phalanx.model.kinds import Json as Json
from phalanx.model.objects.groups import (
    CompositeGangPolicy,
    CompositePodGroup,
    CompositePodGroupSpec,
    CompositeSchedulingPolicy,
    DisruptionMode,
    Empty,
    GangPolicy,
    PodGroup,
    PodGroupMeta,
    PodGroupSpec,
    SchedulingConstraints,
    SchedulingPolicy,
    TopologyConstraint,
)
from phalanx.model.objects.meta import ObjectMeta, Struct

MOST_MEMBERS = 100_000  # the same limit as for workloads of Phalanx's own controllers
MOST_SUBGROUPS = 256


class ForeignGroup(Struct, frozen=True):
    """A PodGroup of another API group; its spec is read field by field, because nothing has validated it."""

    metadata: ObjectMeta = ObjectMeta()
    spec: Any = None


class Translation(msgspec.Struct, frozen=True):
    """The groups of the engine that represent one foreign PodGroup, parents first."""

    groups: list[PodGroup | CompositePodGroup]
    leaves: dict[str, str]  # subgroup of a pod -> name of its PodGroup; key "": all other pods
    minimum: int
    ignored: list[str] = []  # fields that have no effect here, each with what to do
    priority_class: str = ""  # of the PodGroup; has no effect, because the priority is that of the pods

    def ignored_with(self, classes: Collection[str]) -> list[str]:
        """Return the fields that have no effect, if its pods have these priority classes."""
        named = self.priority_class
        if not named or all(name == named for name in classes):
            return self.ignored
        text = f"spec.priorityClassName {named} has no effect, as the priority is that of the pods: set it there"
        return [*self.ignored, text]


class WantedTopology(msgspec.Struct, frozen=True):
    """Node label keys: all pods in one domain of `required`, and in one of `preferred` if possible."""

    required: str = ""
    preferred: str = ""


NOWHERE = WantedTopology()


class InvalidGroup(ValueError):
    """A foreign PodGroup that cannot be used; the message names the field and what to do."""


class GroupProgress(msgspec.Struct, frozen=True):
    """Pod counts and scheduling state of one foreign PodGroup."""

    minimum: int
    pending: int = 0  # without a node
    bound: int = 0  # with a node, not running yet
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    reason: str = ""  # why the group is not scheduled; "": it is scheduled, or was not tried yet
    message: str = ""
    since: str = ""  # time of the last transition

    @property
    def placed(self) -> int:
        return self.bound + self.running + self.succeeded


class Dialect(Protocol):
    name: str
    resource: Resource
    status_paths: tuple[str, ...]  # where its status may be written: the subresource, or "" for the object itself

    def group_of(self, labels: Mapping[str, str], annotations: Mapping[str, str]) -> tuple[str, str] | None:
        """Return the names of a pod's PodGroup and subgroup ("" without one); None if the pod is in none."""
        ...

    def translate(self, group: ForeignGroup) -> Translation:
        """Translate a foreign group to Phalanx's groups. Raises InvalidGroup."""
        ...

    def status(self, progress: GroupProgress) -> Json:
        """Return the status to write. List fields are replaced as a whole."""
        ...


def count(spec: Mapping[str, Any], field: str, default: int, where: str = "spec") -> int:
    """Read a number of pods; absent or null gives the default. where: path of the map that has the field."""
    value = spec.get(field)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_MEMBERS:
        raise InvalidGroup(f"{where}.{field}: {str(value)[:40]!r} is no number from 0 to {MOST_MEMBERS}; correct it")
    return value


def spec_of(group: ForeignGroup) -> Json:
    if not isinstance(group.spec, dict):
        raise InvalidGroup("spec: must be an object; write it as the API of this PodGroup describes")
    return group.spec


def priority_class(spec: Mapping[str, Any]) -> str:
    named = spec.get("priorityClassName")
    return named[:63] if isinstance(named, str) else ""


def gang(minimum: int) -> SchedulingPolicy:
    return SchedulingPolicy(gang=GangPolicy(minimum)) if minimum else SchedulingPolicy(basic=Empty())


def leaf(
    group: ForeignGroup,
    name: str,
    minimum: int,
    *,
    parent: str = "",
    topology: WantedTopology = NOWHERE,
    timeout: int = 0,
) -> PodGroup:
    """Return the PodGroup of a leaf of a foreign group.

    timeout: seconds in which the gang should be placed; 0: no limit.
    """
    extra = {SCHEDULE_TIMEOUT: str(timeout)} if timeout else {}
    return PodGroup(
        metadata=PodGroupMeta(**_metadata(group, name, topology, extra)),
        spec=PodGroupSpec(
            parent_composite_pod_group_name=parent or None,
            scheduling_policy=gang(minimum),
            scheduling_constraints=_constraints(topology),
            disruption_mode=DisruptionMode(all=Empty()) if minimum else None,
        ),
    )


def unusable(group: ForeignGroup, dialect: str, problem: str) -> Translation:
    """Return a group that is never placed, so that its pods wait and say why."""
    name = group.metadata.name
    extra = {UNUSABLE: f"PodGroup {name} of {dialect} cannot be used: {problem}"}
    metadata = PodGroupMeta(**_metadata(group, name, NOWHERE, extra))
    return Translation([PodGroup(metadata, PodGroupSpec(scheduling_policy=gang(0)))], {"": name}, 0)


def composite(
    group: ForeignGroup, name: str, minimum: int, *, parent: str = "", topology: WantedTopology = NOWHERE
) -> CompositePodGroup:
    """Return a group of groups. minimum: how many of them start together; 0: each starts alone."""
    basic = CompositeSchedulingPolicy(basic=Empty())
    return CompositePodGroup(
        metadata=ObjectMeta(**_metadata(group, name, topology, {})),
        spec=CompositePodGroupSpec(
            parent_composite_pod_group_name=parent or None,
            scheduling_policy=CompositeSchedulingPolicy(gang=CompositeGangPolicy(minimum)) if minimum else basic,
            scheduling_constraints=_constraints(topology),
            disruption_mode=DisruptionMode(all=Empty()) if minimum else None,
        ),
    )


def _constraints(topology: WantedTopology) -> SchedulingConstraints | None:
    return SchedulingConstraints([TopologyConstraint(topology.required)]) if topology.required else None


def _metadata(group: ForeignGroup, name: str, topology: WantedTopology, extra: dict[str, str]) -> Json:
    meta = group.metadata
    preferred = {PREFERRED_TOPOLOGY: topology.preferred} if topology.preferred else {}
    return {
        "name": name,
        "namespace": meta.namespace,
        "uid": meta.uid if name == meta.name else f"{meta.uid}/{name}",
        "generation": meta.generation,
        "creation_timestamp": meta.creation_timestamp,
        "labels": meta.labels,
        "annotations": {**meta.annotations, **preferred, **extra},
    }
