"""Define the result of grouping: scheduling objects to write, and how each pod joins its group.

Everything in this package is a pure function of the workload object: no client, no clock, no randomness. The same
object always gives the same names, so that a controller killed between two writes continues where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from phalanx.base.client import Resource
from phalanx.base.well_known import SCHEDULING_API
from phalanx.model.groups.keys import PART_OF
from phalanx.model.groups.policy import SHORT_FORMS
from phalanx.model.kinds import Json as Json

WORKLOADS_V1ALPHA1 = Resource(SCHEDULING_API, "v1alpha1", "workloads", "Workload")  # KEP-4671: spec.podGroups

# Downward annotations of Kubernetes 1.37: a parent names the template that a child controller's pods use.
GROUP_TEMPLATE = f"{SCHEDULING_API}/group-template-name"
PARENT_COMPOSITE = f"{SCHEDULING_API}/parent-compositepodgroup"

GENERATED = "scheduling.phalanx.dev/generated"  # on a Workload that our controllers made
ADOPTED = "scheduling.phalanx.dev/adopted"  # on a user's Workload that is deleted with its owner

MAX_TEMPLATES = 8  # per list of a Workload


class GroupingRefused(Exception):
    """The request of a workload is invalid. `message`: what its author must change."""

    def __init__(self, message: str, reason: str = "InvalidSchedulingConfiguration") -> None:
        super().__init__(message)
        self.reason, self.message = reason, message


@dataclass(frozen=True, slots=True)
class Link:
    """The link of one part's pods to their group, by one of two pod fields."""

    pod_group: str = ""  # spec.schedulingGroup.podGroupName
    workload: str = ""  # spec.workloadRef (KEP-4671), with the two below
    group: str = ""
    replica_key: str = ""
    template: str = ""  # the Workload's template behind the group, for child controllers
    parent: str = ""  # the CompositePodGroup above the PodGroup
    metadata: Json = field(default_factory=dict)  # labels and annotations instead, of other schedulers' groups

    def put_on(self, pod_spec: Json) -> None:
        """Edit the spec of a pod or of a pod template. Fields set by its author are kept."""
        if pod_spec.get("schedulingGroup") is not None or pod_spec.get("workloadRef") is not None:
            return
        if self.pod_group:
            pod_spec["schedulingGroup"] = {"podGroupName": self.pod_group}
        elif self.workload:
            reference = {"name": self.workload, "podGroup": self.group}
            if self.replica_key:
                reference["podGroupReplicaKey"] = self.replica_key
            pod_spec["workloadRef"] = reference


@dataclass(slots=True)
class Grouping:
    """Objects in creation order. The module of a kind names the parts of its workloads."""

    workload: Json | None = None
    composites: list[Json] = field(default_factory=list)  # parents before children
    groups: list[Json] = field(default_factory=list)
    links: dict[str, Link] = field(default_factory=dict)  # part -> link; a part without one is not grouped
    notes: list[tuple[str, str]] = field(default_factory=list)  # (reason, text) for the author; not refused
    may_be_flat: bool = False  # its CompositePodGroup is optional; see `flat`
    owned_by_workload: bool = False  # PodGroups also have the Workload as an owner, as for Jobs

    @property
    def objects(self) -> list[Json]:
        return [*([self.workload] if self.workload is not None else []), *self.composites, *self.groups]

    def __bool__(self) -> bool:
        return self.workload is not None or bool(self.links)


def flat(grouping: Grouping) -> Grouping:
    """Return the grouping without its basic CompositePodGroup, for API servers that have no such kind."""
    if not grouping.may_be_flat or grouping.workload is None:
        return grouping
    spec = {key: value for key, value in grouping.workload["spec"].items() if key != "compositePodGroupTemplates"}
    (root,) = grouping.workload["spec"]["compositePodGroupTemplates"]
    plan = {**grouping.workload, "spec": {**spec, "podGroupTemplates": root["podGroupTemplates"]}}
    groups = []
    for group in grouping.groups:
        own = {key: value for key, value in group["spec"].items() if key != "parentCompositePodGroupName"}
        groups.append({**group, "spec": own})
    links = {part: replace(link, parent="") for part, link in grouping.links.items()}
    return replace(grouping, workload=plan, composites=[], groups=groups, links=links, may_be_flat=False)


# A grouper may read other objects, such as the runtime of a TrainJob.
Grouper = Callable[[Json, Sequence[Json]], Grouping]


def reference_to(owner: Json, *, controller: bool = True) -> Json:
    """Return an owner reference. Only a controller's blocks foreground deletion: children are deleted before
    parents."""
    meta = owner["metadata"]
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": meta["name"],
        "uid": meta.get("uid", ""),
    }
    return {**reference, "controller": True, "blockOwnerDeletion": True} if controller else reference


def controller_ref(owner: Json) -> Json:
    """Return Workload.spec.controllerRef."""
    group = owner["apiVersion"].rpartition("/")[0]
    reference = {"kind": owner["kind"], "name": owner["metadata"]["name"]}
    return {"apiGroup": group, **reference} if group else reference


def carried_annotations(owner: Json) -> dict[str, str]:
    """Return the annotations that scheduling objects copy from their owner."""
    meta = owner["metadata"]
    annotations = meta.get("annotations") or {}
    found = {key: str(annotations[key]) for key in SHORT_FORMS if key in annotations}
    for reference in meta.get("ownerReferences") or ():
        if reference.get("controller"):
            group = str(reference["apiVersion"]).rpartition("/")[0]
            kind = f"{reference['kind']}.{group}" if group else str(reference["kind"])
            found[PART_OF] = f"{kind}/{reference['name']}"
    return found


def namespace_of(owner: Json) -> str:
    return str(owner["metadata"].get("namespace") or "default")


# Limits of pods and other objects per workload, and of creations per reconcile.
#
# Any user may write 2147483647 into a field, so no reconciler does work in proportion to such a number: a request above
# the limits is refused before anything is counted or listed; other requests are created in batches.

MOST_PODS = 100_000  # of one object, as kube-apiserver limits the parallelism of an Indexed Job
MOST_PARTS = 10_000  # Jobs of a JobSet, replicas of a LeaderWorkerSet: each is an object with groups
BATCH = 500  # objects that one reconcile of a workload creates; the next one continues
TOO_MANY = "TooManyPods"  # reason of the condition and the event; also the type of the condition


def check_pods(what: str, count: int) -> None:
    """Raise Refused if a workload requests more pods than allowed."""
    if count > MOST_PODS:
        raise GroupingRefused(
            f"{what} asks for {count} pods; one object may have {MOST_PODS}: no more are made", TOO_MANY
        )


def check_parts(what: str, count: int, parts: str) -> None:
    """Raise Refused if a workload requests more parts ("Jobs", "replicas") than allowed."""
    if count > MOST_PARTS:
        raise GroupingRefused(
            f"{what} asks for {count} {parts}; one object may have {MOST_PARTS}: no more are made", TOO_MANY
        )


def count_in(spec: Json, field: str, default: int = 1) -> int:
    found = spec.get(field)
    return default if found is None else int(found)
