"""Native groups: PodGroup of scheduling.k8s.io, for our scheduler and for kube-scheduler 1.37.

Such a PodGroup has no minResources. With fewer members required than there will be (LeaderReady), the resources of
the whole replica are written into an annotation that our scheduler honours.
"""

from __future__ import annotations

import json

from phalanx.controllers.grouping.core import POD_GROUPS, Link
from phalanx.controllers.grouping.demand import total
from phalanx.controllers.providers.contract import Json, Replica, metadata_of

MIN_RESOURCES = "scheduling.phalanx.dev/min-resources"


def min_resources(replica: Replica) -> str:
    """JSON of a resource list: what the replica needs once it is complete."""
    return json.dumps(total((part.count, part.pod_spec) for part in replica.parts), sort_keys=True)


class Native:
    name = "native"
    resource = POD_GROUPS

    def pod_group(self, replica: Replica) -> Json:
        extra = {MIN_RESOURCES: min_resources(replica)} if replica.min_member < replica.size else {}
        spec: Json = {"schedulingPolicy": {"gang": {"minCount": replica.min_member}}}
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
