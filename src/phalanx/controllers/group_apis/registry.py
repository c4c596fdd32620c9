"""Providers of group APIs: a workload chooses its scheduler by an annotation; the default is native."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from phalanx.base.client import Resource
from phalanx.base.resources import POD_GROUPS
from phalanx.base.well_known import COSCHEDULING_POD_GROUP
from phalanx.controllers.group_apis.contract import Replica, SchedulerProvider, metadata_of, put
from phalanx.controllers.grouping.annotations import workload_annotations
from phalanx.controllers.grouping.core import GroupingRefused, Link
from phalanx.controllers.grouping.parts import disruption_of
from phalanx.model.annotation_values import MAX_INT32, natural
from phalanx.model.groups import MIN_RESOURCES
from phalanx.model.kinds import Json
from phalanx.model.quantity import Quantity, parse

Demand = dict[str, Quantity]


def of_pod(pod_spec: Json) -> Demand:
    """Return effective requests of one pod: containers and sidecars together, or the peak of init containers."""
    total: Demand = {}
    sidecars: Demand = {}
    peak: Demand = {}
    for container in pod_spec.get("containers") or ():
        _add(total, _requests(container))
    for container in pod_spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            _add(total, _requests(container))
            _add(sidecars, _requests(container))
            _raise_to(peak, sidecars)
        else:
            step = dict(sidecars)
            _add(step, _requests(container))
            _raise_to(peak, step)
    _raise_to(total, peak)
    total |= _parsed((pod_spec.get("resources") or {}).get("requests"))  # requests at pod level replace the sum
    _add(total, _parsed(pod_spec.get("overhead")))
    return total


def total(parts: Iterable[tuple[int, Json]]) -> dict[str, str]:
    """Return the sum of requests as a resource list; `parts`: (number of pods, pod spec)."""
    found: Demand = {}
    for count, pod_spec in parts:
        one = of_pod(pod_spec)
        _add(found, {name: Quantity(amount.nanos * count, amount.format) for name, amount in one.items()})
    return {name: str(found[name]) for name in sorted(found)}


def _requests(container: Json) -> Demand:
    resources = container.get("resources") or {}
    limits = resources.get("limits") or {}  # a limit without a request counts as the request
    return _parsed({**limits, **(resources.get("requests") or {})})


def _parsed(amounts: Json | None) -> Demand:
    return {name: parse(text) for name, text in (amounts or {}).items()}


def _add(to: Demand, more: Demand) -> None:
    for name, amount in more.items():
        known = to.get(name)
        to[name] = amount if known is None else Quantity(known.nanos + amount.nanos, known.format)


def _raise_to(to: Demand, floor: Demand) -> None:
    for name, amount in floor.items():
        if name not in to or to[name].nanos < amount.nanos:
            to[name] = amount


# Native groups: PodGroup of scheduling.k8s.io, for our scheduler and for kube-scheduler 1.37.
#
# Such a PodGroup has no minResources. If fewer members are required than there will be (LeaderReady), an annotation for
# our scheduler has the resources of the whole replica.

# Template fields that decide where pods may be placed; others are omitted to keep annotations short.
_POD = ("nodeSelector", "affinity", "tolerations", "topologySpreadConstraints", "overhead", "resources", "priority")
_CONTAINER = ("name", "resources", "ports", "restartPolicy")


def min_resources(replica: Replica) -> str:
    """Return the JSON of a resource list: the requests of the complete replica."""
    return json.dumps(total((part.count, part.pod_spec) for part in replica.parts), sort_keys=True)


def to_come(size: int, template: Json) -> str:
    """Return JSON: the number of pods of a group, and the requests of later ones."""
    source = template.get("spec") or {}
    spec = {key: source[key] for key in _POD if source.get(key)}
    for field in ("containers", "initContainers"):
        if source.get(field):
            spec[field] = [{key: one[key] for key in _CONTAINER if one.get(key)} for one in source[field]]
    labels = dict((template.get("metadata") or {}).get("labels") or {})
    return json.dumps({"size": size, "template": {"metadata": {"labels": labels}, "spec": spec}}, sort_keys=True)


class Native:
    name = "native"
    resource = POD_GROUPS

    def pod_group(self, replica: Replica) -> Json:
        extra = {MIN_RESOURCES: min_resources(replica)} if replica.min_member < replica.size else {}
        spec: Json = {"schedulingPolicy": {"gang": {"minCount": replica.min_member}}}
        if mode := disruption_of(spec["schedulingPolicy"], workload_annotations(dict(replica.annotations)).mode):
            spec["disruptionMode"] = mode
        if replica.priority_class:
            spec["priorityClassName"] = replica.priority_class
        return {
            "apiVersion": POD_GROUPS.api_version,
            "kind": POD_GROUPS.kind,
            "metadata": metadata_of(replica, extra),
            "spec": spec,
        }

    def inject_pod_group_metadata(self, pod: Json, replica: Replica, part: str) -> None:
        Link(pod_group=replica.name).put_on(pod.setdefault("spec", {}))


# YuniKorn has no group object: pods name their application and task group.
#
# The sizes of the task groups are in an annotation. YuniKorn reserves capacity for all task groups with placeholder
# pods, so a leader that starts first has capacity for its workers: LeaderReady needs nothing special.

APPLICATION = "applicationId"
QUEUE = "queue"
TASK_GROUP = "yunikorn.apache.org/task-group-name"
TASK_GROUPS = "yunikorn.apache.org/task-groups"
PARAMETERS = "yunikorn.apache.org/schedulingPolicyParameters"
_SHARED = ("nodeSelector", "tolerations", "affinity")  # placeholders are placed like the pods


class YuniKorn:
    name = "yunikorn"
    resource = None

    def pod_group(self, replica: Replica) -> None:
        return None

    def inject_pod_group_metadata(self, pod: Json, replica: Replica, part: str) -> None:
        labels = {APPLICATION: f"{replica.namespace}-{replica.name}"}
        if queue := replica.annotations.get(f"yunikorn.apache.org/{QUEUE}"):
            labels[QUEUE] = queue
        put(pod, "labels", labels)
        put(
            pod,
            "annotations",
            {
                TASK_GROUP: part,
                TASK_GROUPS: json.dumps(self.task_groups(replica), sort_keys=True),
                PARAMETERS: replica.annotations.get(PARAMETERS, "gangSchedulingStyle=Hard"),
            },
        )

    def task_groups(self, replica: Replica) -> list[Json]:
        groups = []
        for part in replica.parts:
            if part.count:
                shared = {key: part.pod_spec[key] for key in _SHARED if part.pod_spec.get(key)}
                groups.append(
                    {"name": part.name, "minMember": part.count, "minResource": total([(1, part.pod_spec)]), **shared}
                )
        return groups


QUEUE = "scheduling.volcano.sh/queue-name"
INHERITED = "volcano.sh/"  # prefix of workload annotations that are copied to PodGroups
GROUP_NAME = "scheduling.k8s.io/group-name"


class Volcano:
    name = "volcano"
    resource = Resource("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup")

    def pod_group(self, replica: Replica) -> Json:
        inherited = {key: value for key, value in replica.annotations.items() if key.startswith(INHERITED)}
        spec: Json = {
            "minMember": replica.min_member,
            "minResources": total((part.count, part.pod_spec) for part in replica.parts),
        }
        if queue := replica.annotations.get(QUEUE):
            spec["queue"] = queue
        if replica.priority_class:
            spec["priorityClassName"] = replica.priority_class
        return {
            "apiVersion": self.resource.api_version,
            "kind": self.resource.kind,
            "metadata": metadata_of(replica, inherited),
            "spec": spec,
        }

    def inject_pod_group_metadata(self, pod: Json, replica: Replica, part: str) -> None:
        put(pod, "annotations", {GROUP_NAME: replica.name})


TIMEOUT = "scheduling.phalanx.dev/schedule-timeout-seconds"  # of the workload; default: the plugin's own


class Coscheduling:
    name = "coscheduling"
    resource = Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup")

    def pod_group(self, replica: Replica) -> Json:
        spec: Json = {
            "minMember": replica.min_member,
            "minResources": total((part.count, part.pod_spec) for part in replica.parts),
        }
        timeout = natural(replica.annotations.get(TIMEOUT, ""), MAX_INT32)
        if timeout is not None:
            spec["scheduleTimeoutSeconds"] = timeout
        return {
            "apiVersion": self.resource.api_version,
            "kind": self.resource.kind,
            "metadata": metadata_of(replica),
            "spec": spec,
        }

    def inject_pod_group_metadata(self, pod: Json, replica: Replica, part: str) -> None:
        put(pod, "labels", {COSCHEDULING_POD_GROUP: replica.name})


PROVIDER = "scheduling.phalanx.dev/provider"
PROVIDERS: dict[str, SchedulerProvider] = {
    provider.name: provider for provider in (Native(), Volcano(), Coscheduling(), YuniKorn())
}


def provider_of(workload: dict[str, Any]) -> SchedulerProvider:
    """Return the provider of a workload. Raises Refused for an unknown name."""
    name = str((workload["metadata"].get("annotations") or {}).get(PROVIDER) or "native")
    if name not in PROVIDERS:
        raise GroupingRefused(f"annotation {PROVIDER}: {name!r} is not one of {', '.join(sorted(PROVIDERS))}")
    return PROVIDERS[name]
