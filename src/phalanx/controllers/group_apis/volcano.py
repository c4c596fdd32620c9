"""Volcano: PodGroup of scheduling.volcano.sh, found through an annotation on the pod."""

from __future__ import annotations

from phalanx.base.client import Resource
from phalanx.controllers.group_apis.contract import Json, Replica, metadata_of, put
from phalanx.controllers.grouping.demand import total

QUEUE = "scheduling.volcano.sh/queue-name"
INHERITED = "volcano.sh/"  # annotations of the workload with this prefix go onto its PodGroups
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
