"""Native groups: PodGroup of scheduling.k8s.io, for our scheduler and for kube-scheduler 1.37.

Such a PodGroup has no minResources. With fewer members required than there will be (LeaderReady), the resources of
the whole replica are written into an annotation that our scheduler honours.
"""

from __future__ import annotations

import json

from phalanx.controllers.group_apis.contract import Json, Replica, metadata_of
from phalanx.controllers.grouping.annotations import workload_annotations
from phalanx.controllers.grouping.core import POD_GROUPS, Link
from phalanx.controllers.grouping.demand import total
from phalanx.controllers.grouping.parts import disruption_of
from phalanx.model.groups import MIN_RESOURCES

# Of a template only what decides where its pods may go: annotations are short.
_POD = ("nodeSelector", "affinity", "tolerations", "topologySpreadConstraints", "overhead", "resources", "priority")
_CONTAINER = ("name", "resources", "ports", "restartPolicy")


def min_resources(replica: Replica) -> str:
    """Return the JSON of a resource list: the requests of the complete replica."""
    return json.dumps(total((part.count, part.pod_spec) for part in replica.parts), sort_keys=True)


def to_come(size: int, template: Json) -> str:
    """Return JSON: how many pods a group will have, and the requests of those created later."""
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
