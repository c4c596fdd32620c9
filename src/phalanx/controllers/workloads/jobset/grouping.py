"""JobSet: choose one of several ways to request groups, and build the groups.

Parts are child Jobs, with the names of the Jobs. In this order:

1. pod templates that name a group are not changed, whatever else is set;
2. `gangConfig` (KEP-1068): Workload `w-<jobset>` of KEP-4671, pods with `workloadRef`;
3. `spec.scheduling` (KEP-969): Workload and PodGroups of Kubernetes 1.37;
4. the annotation `scheduling.phalanx.dev/group-tree`: CompositePodGroups down to the Jobs;
5. the annotation `scheduling.phalanx.dev/gang: "true"`: as `spec.scheduling: {schedulingPolicy: {gang: {}}}`;
6. the annotation `alpha.jobset.sigs.k8s.io/exclusive-topology`: a gang for each Job, inside one domain;
7. otherwise no groups.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.base.well_known import PHALANX_API
from phalanx.controllers.grouping.annotations import workload_annotations
from phalanx.controllers.grouping.core import Grouping, GroupingRefused, Json
from phalanx.controllers.grouping.parts import disruption_of, gang
from phalanx.controllers.grouping.user_workload import with_hand_made
from phalanx.controllers.workloads.jobset.gang_config import by_gang_config, uses_gang_config
from phalanx.controllers.workloads.jobset.scheduling import by_scheduling
from phalanx.controllers.workloads.jobset.shape import NOT_IN_SEQUENCE, shape_of
from phalanx.controllers.workloads.jobset.tree import TREE, by_tree


def group_job_set(jobset: Json, related: Sequence[Json] = ()) -> Grouping:
    """Group a JobSet. `related`: its Workloads, of which one that its author created is used."""
    return with_hand_made(jobset, _group(jobset, related), related)


def _group(jobset: Json, related: Sequence[Json]) -> Grouping:
    shape = shape_of(jobset)
    scheduling = jobset["spec"].get("scheduling")
    annotations = jobset["metadata"].get("annotations") or {}
    asked = workload_annotations(annotations)
    tree = TREE in annotations
    if uses_gang_config(jobset):
        if tree or scheduling is not None:
            other = "spec.scheduling" if scheduling is not None else f"the annotation {TREE}"
            raise GroupingRefused(f"gangConfig and {other} cannot be used together; remove one of them")
        return by_gang_config(jobset, shape, related)
    if scheduling is not None:
        if tree:
            raise GroupingRefused(
                f"spec.scheduling and the annotation {TREE} cannot be used together; remove one of them"
            )
        return by_scheduling(jobset, shape, scheduling)
    if tree:
        return by_tree(jobset, shape)
    if asked.gang:
        if asked.min_count and shape.sequenced:
            raise GroupingRefused(f"the JobSet: {PHALANX_API}/min-count {NOT_IN_SEQUENCE}")
        whole: Json = {"gang": {"minCount": asked.min_count} if asked.min_count else {}}
        level: Json = {
            "schedulingPolicy": whole,
            "schedulingConstraints": asked.constraints,
            "disruptionMode": disruption_of(whole, asked.mode),
        }
        return by_scheduling(jobset, shape, {key: value for key, value in level.items() if value is not None})
    if asked.gang is None and any(part.exclusive for part in shape.parts):
        job: Json = {"disruptionMode": disruption_of(gang(1), asked.mode)}
        entries = [{"targetReplicatedJobs": [part.name], "job": job} for part in shape.parts]
        return by_scheduling(jobset, shape, {"replicatedJobs": entries})
    return Grouping()
