"""Find the group of a workload's pod, and build the JSON patch that links the pod to it. Pure functions.

On a real cluster other controllers create the pods, so a pod is recognised by its controller reference and labels
(see `place` of each kind). These functions read no caches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from phalanx.base.well_known import DEFAULT_SCHEDULER, PHALANX_API
from phalanx.controllers.grouping.core import GROUP_TEMPLATE, Grouping, Json, Link
from phalanx.controllers.grouping.names import LABEL, fitting
from phalanx.controllers.workloads.member import PodView, WorkloadSlot
from phalanx.controllers.workloads.registry import kind_of
from phalanx.model.groups.keys import AFTER_GROUP, GROUP_LABEL, SIZE_GATE

SCHEDULER_NAME = f"{PHALANX_API}/scheduler-name"  # on a workload: scheduler of its grouped pods


def link_of(links: Mapping[str, Link], place: WorkloadSlot) -> Link | None:
    return next((links[part] for part in place.parts if part in links), None)


# -- requests for groups ---------------------------------------------------------------------------------------------


def requests_gang(workload: Json) -> bool:
    """Return True if the author requested groups. On a shared cluster nothing is created without a request.

    The grouping library decides the rest; it would also give a plain Job a group without a gang, as in Kubernetes 1.37.
    """
    kind = kind_of(workload)
    annotations = workload["metadata"].get("annotations") or {}
    if kind is None or any(names_group(template) for template in kind.templates(workload)):
        return False
    if any(key.startswith(f"{PHALANX_API}/") and key != SCHEDULER_NAME for key in annotations):
        return True
    spec = workload.get("spec") or {}
    return GROUP_TEMPLATE in annotations or spec.get("scheduling") is not None or kind.requests_gang(workload)


def names_group(template: Json) -> bool:
    """Return True if the author assigned these pods to a group with our label. (The library knows the two fields.)"""
    return GROUP_LABEL in ((template.get("metadata") or {}).get("labels") or {})


def scheduler_for(workload: Json, otherwise: str) -> str:
    """Return the schedulerName for grouped pods of a workload; "" leaves it unchanged."""
    asked = (workload["metadata"].get("annotations") or {}).get(SCHEDULER_NAME)
    return str(asked) if asked else otherwise


# -- names that fit into labels --------------------------------------------------------------------------------------


def fit_labels(grouping: Grouping) -> Grouping:
    """Return the same groups with names of at most 63 characters: longer ones do not fit into a pod label."""
    names = {group["metadata"]["name"]: fitting(group["metadata"]["name"]) for group in grouping.groups}
    if all(old == new for old, new in names.items()):
        return grouping
    groups = [
        {**group, "metadata": {**group["metadata"], "name": names[group["metadata"]["name"]]}}
        for group in grouping.groups
    ]
    links = {
        part: replace(link, pod_group=names.get(link.pod_group, link.pod_group))
        for part, link in grouping.links.items()
    }
    return replace(grouping, groups=groups, links=links)


# -- patches ---------------------------------------------------------------------------------------------------------


class Abilities(NamedTuple):
    """Fields of a pod that the API server stores; without either, a label is used."""

    scheduling_group: bool = False  # Kubernetes 1.36 and later, with the gate GenericWorkload
    workload_ref: bool = False  # Kubernetes 1.35


class Priority(NamedTuple):
    """A priority for a pod spec: the API server compares value and policy with the class."""

    class_name: str
    value: int
    policy: str


def pod_patch(
    pod: PodView,
    link: Link,
    abilities: Abilities,
    scheduler: str = "",
    *,
    after: str = "",
    early: bool = False,
    priority: Priority | None = None,
) -> list[Json]:
    """Return the JSON patch of a pod that is being created. Fields set by its author are kept.

    after: uid of a terminating group with the wanted name. The pod waits for its successor and is linked by label,
    because the field would block the deletion. early: the group's count does not include this pod yet; it is gated
    until then. priority: of the gang, if the pod's template has a different one now.
    """
    if pod.linked or pod.spec.node_name:
        return []
    patch: list[Json] = []
    if after:
        patch += _add(pod.metadata.annotations, "annotations", AFTER_GROUP, after)
    if link.pod_group and abilities.scheduling_group and not after:
        patch.append({"op": "add", "path": "/spec/schedulingGroup", "value": {"podGroupName": link.pod_group}})
    elif link.pod_group and len(link.pod_group) <= LABEL:
        patch += _add(pod.metadata.labels, "labels", GROUP_LABEL, link.pod_group)
    elif link.workload and abilities.workload_ref:
        reference = {"name": link.workload, "podGroup": link.group}
        if link.replica_key:
            reference["podGroupReplicaKey"] = link.replica_key
        patch.append({"op": "add", "path": "/spec/workloadRef", "value": reference})
    if patch and early:
        gates = [{"name": name} for name in (*pod.gates, SIZE_GATE)]
        patch.append({"op": "add", "path": "/spec/schedulingGates", "value": gates})
    if patch and scheduler and pod.spec.scheduler_name in ("", DEFAULT_SCHEDULER) and scheduler != DEFAULT_SCHEDULER:
        patch.append({"op": "add", "path": "/spec/schedulerName", "value": scheduler})
    return [*patch, *_with_priority(pod, priority)] if patch and priority is not None else patch


def _with_priority(pod: PodView, priority: Priority) -> list[Json]:
    patch: list[Json] = []
    if priority.class_name:
        patch.append({"op": "add", "path": "/spec/priorityClassName", "value": priority.class_name})
    elif pod.spec.priority_class_name:
        patch.append({"op": "remove", "path": "/spec/priorityClassName"})
    patch.append({"op": "add", "path": "/spec/priority", "value": priority.value})
    patch.append({"op": "add", "path": "/spec/preemptionPolicy", "value": priority.policy})
    return patch


def _add(known: Mapping[str, str] | None, field: str, key: str, value: str) -> list[Json]:
    if known is None:
        return [{"op": "add", "path": f"/metadata/{field}", "value": {key: value}}]
    return [{"op": "add", "path": f"/metadata/{field}/" + key.replace("~", "~0").replace("/", "~1"), "value": value}]
