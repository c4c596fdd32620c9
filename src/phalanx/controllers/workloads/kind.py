"""The descriptor of a kind of workload, with everything that other modules need.

Cluster mode, the linking webhook, what-if, the command line, disruption budgets and the test of RBAC rules iterate the
registry of descriptors; nothing outside a kind's folder names the kind. A new kind is a folder with a `kind.py` and one
entry in `registry.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from phalanx.base.client import Resource
from phalanx.base.clock import Clock
from phalanx.base.work import WorkQueue
from phalanx.controllers.grouping.core import Grouper, Grouping, Json, Link
from phalanx.controllers.runtime.controller import Caches, Controller, Key
from phalanx.controllers.runtime.events import Events
from phalanx.controllers.runtime.groups import Groups
from phalanx.controllers.workloads.member import PodView, WorkloadSlot
from phalanx.model.gates import Gates

Admit = Callable[[Json, Json], Awaitable[None]]  # (pod before its creation, its creator); raises to refuse it for now


class ExpectedPod(NamedTuple):
    """A pod that a workload will have, before it exists."""

    name: str
    template: Json
    link: Link | None
    labels: Mapping[str, str] = MappingProxyType({})  # added by its controller, such as its index


class Replicated(msgspec.Struct, frozen=True):
    """A kind whose groups are named by replica and revision, which cluster mode reads from its parts and pods."""

    made_of: Resource  # the object with the workload's name and its number of replicas
    present: Callable[[Json, Json | None, Iterable[PodView]], list[str]]  # (workload, that object, its pods) -> parts
    group: Callable[[Json, Sequence[str], Sequence[Json]], Grouping]  # (workload, parts, related objects) -> grouping


class Local(msgspec.Struct):
    """Inputs of the reconcilers of a local cluster."""

    caches: Caches
    clock: Clock
    events: Events
    groups: Groups | None  # None: the API has no groups
    gates: Gates
    admission: list[Admit] = msgspec.field(default_factory=list)  # called in order for every pod of a set
    makers: dict[str, WorkQueue[Key]] = msgspec.field(default_factory=dict)  # kind -> queue of the pods' controller


def _no_groups(workload: Json, related: Sequence[Json]) -> Grouping:
    return Grouping()


def _no_pods(workload: Json, related: Sequence[Json], found: Grouping) -> Iterator[ExpectedPod]:
    return iter(())


def _no_slot(pod: PodView) -> WorkloadSlot | None:
    return None


def _nothing(workload: Json) -> bool:
    return False


def _no_jobs(workload: Json, found: Grouping) -> dict[str, str]:
    return {}


def _no_match(workload: Json) -> tuple[str, str]:
    return ("", "")


class WorkloadKind(msgspec.Struct, frozen=True):
    resource: Resource
    # -- groups, links, templates: pure functions of the object
    templates: Callable[[Json], Iterable[Json]]  # the pod templates written in it
    group: Grouper = _no_groups
    # (workload, related objects, its groups) -> its pods, if their number is known
    pods: Callable[[Json, Sequence[Json], Grouping], Iterator[ExpectedPod]] = _no_pods
    place: Callable[[PodView], WorkloadSlot | None] = _no_slot  # the slot of a pod that its controller made
    requests_gang: Callable[[Json], bool] = _nothing  # requests groups by fields, in addition to the annotations
    gate: str = ""  # the feature gate of its groups, besides GenericWorkload
    reports_gates: bool = False  # its controller reports groups that a gate switched off
    # Groups for another scheduler whose API the author chose; None: ours. Read by `phalanx group`.
    provider_groups: Callable[[Json], Grouping | None] | None = None
    # -- names
    aliases: tuple[str, ...] = ()  # short names on the command line
    final_conditions: tuple[str, ...] = ()  # conditions of a final state
    scaled: bool = False  # spec.replicas is the number of its pods
    # -- cluster mode
    grouped_in_cluster_mode: bool = True  # its groups are created there; False: its children have groups
    creates: Resource | None = None  # the kind of these children
    owner_is_certain: bool = True  # a pod's slot proves that the workload exists
    reads: tuple[Resource, ...] = ()  # other objects its groups depend on
    referenced_object: Callable[[Json], tuple[str, str]] = _no_match  # (kind, name) of the referenced object
    workload_name: Callable[[str], str] | None = None  # name of a Workload that its author may have created
    replicated: Replicated | None = None
    jobs: Callable[[Json, Grouping], Mapping[str, str]] = _no_jobs  # part -> name of the Job that makes its pods
    owns_user_workload: bool = False  # a user's Workload for it is deleted with it
    # -- reconcilers in a local cluster; imported on call, because the command line reads descriptors too.
    run: Callable[[Local], Iterable[Controller]] | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.resource.group, self.resource.kind

    @property
    def grouped(self) -> bool:
        """Return True if groups are ever created for this kind."""
        return self.group is not _no_groups

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names on the command line."""
        return (self.resource.kind.lower(), self.resource.plural, *self.aliases)

    @property
    def rights(self) -> tuple[tuple[str, Resource], ...]:
        """Return the permissions that our controllers need in cluster mode: (verb, resource). Nothing is written."""
        found = [(verb, resource) for resource in (self.resource, *self.reads) for verb in ("list", "watch")]
        return tuple(found) if self.grouped_in_cluster_mode else ()


def numbered(
    base: str, template: Json, count: int, link: Link | None, index: str = "", labels: Mapping[str, str] | None = None
) -> Iterator[ExpectedPod]:
    """Return this many pods of one template: `<base>-0`, `<base>-1`, …

    `index`: label with their number; `labels`: labels of all of them.
    """
    for number in range(count):
        own = {**(labels or {}), index: str(number)} if index else labels or {}
        yield ExpectedPod(f"{base}-{number}", template, link, own)


def owned_by(kind: str) -> Callable[[PodView], WorkloadSlot | None]:
    """Return the slot of pods that such a workload creates itself, in one part."""

    def place(pod: PodView) -> WorkloadSlot | None:
        name = pod.made_by(kind)
        return WorkloadSlot(kind, name, ("",)) if name else None

    return place


def its_template(workload: Json) -> Iterator[Json]:
    """Return the pod template in `spec.template`."""
    template = (workload.get("spec") or {}).get("template")
    if isinstance(template, dict):
        yield template


def replicas_of(workload: Json) -> int:
    replicas = workload["spec"].get("replicas")
    return 1 if replicas is None else int(replicas)
