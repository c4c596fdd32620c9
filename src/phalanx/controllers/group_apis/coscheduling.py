"""Coscheduling of scheduler-plugins: PodGroup of scheduling.x-k8s.io, found through a label on the pod."""

from __future__ import annotations

from phalanx.base.client import Resource
from phalanx.controllers.group_apis.contract import Json, Replica, metadata_of, put
from phalanx.controllers.grouping.demand import total

POD_GROUP = "scheduling.x-k8s.io/pod-group"
TIMEOUT = "scheduling.phalanx.dev/schedule-timeout-seconds"  # of the workload; the plugin's own default otherwise


class Coscheduling:
    name = "coscheduling"
    resource = Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup")

    def pod_group(self, replica: Replica) -> Json:
        spec: Json = {
            "minMember": replica.min_member,
            "minResources": total((part.count, part.pod_spec) for part in replica.parts),
        }
        timeout = replica.annotations.get(TIMEOUT, "")
        if timeout.isdecimal():
            spec["scheduleTimeoutSeconds"] = int(timeout)
        return {
            "apiVersion": self.resource.api_version,
            "kind": self.resource.kind,
            "metadata": metadata_of(replica),
            "spec": spec,
        }

    def inject_pod_group_metadata(self, pod: Json, replica: Replica, part: str) -> None:
        put(pod, "labels", {POD_GROUP: replica.name})
