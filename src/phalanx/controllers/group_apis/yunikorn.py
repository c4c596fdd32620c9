"""Support YuniKorn, which has no group object: pods name their application and task group.

The sizes of the task groups are an annotation. YuniKorn reserves capacity for all task groups with placeholder pods, so
a leader that starts first still has capacity for its workers: LeaderReady needs nothing special here.
"""

from __future__ import annotations

import json

from phalanx.controllers.group_apis.contract import Json, Replica, put
from phalanx.controllers.grouping.demand import total

APPLICATION = "applicationId"
QUEUE = "queue"
TASK_GROUP = "yunikorn.apache.org/task-group-name"
TASK_GROUPS = "yunikorn.apache.org/task-groups"
PARAMETERS = "yunikorn.apache.org/schedulingPolicyParameters"
_SHARED = ("nodeSelector", "tolerations", "affinity")  # placeholders go where the pods will go


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
