"""Group the replicas of a StatefulSet, Deployment or ReplicaSet whose author requests it by annotation.

As in the API design paper: a StatefulSet with parallel pods has a fixed world size and may be a gang. One with ordered
pods, and sets of interchangeable pods, may only be basic groups, for topology and status. The only part is "" (all
pods).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from phalanx.base.well_known import PHALANX_API
from phalanx.controllers.grouping.annotations import WorkloadAnnotations, workload_annotations
from phalanx.controllers.grouping.core import Grouping, GroupingRefused, Json, Link
from phalanx.controllers.grouping.names import by_uid, of_template
from phalanx.controllers.grouping.parts import (
    API,
    BASIC,
    ONLY_GROUP,
    LeafTemplate,
    disruption_of,
    first_workload,
    pod_group,
    workload,
)
from phalanx.controllers.grouping.user_workload import with_hand_made

TEMPLATE = "replicas"


Policy = Callable[[Json, WorkloadAnnotations], Json]  # of the requested gang; raises Refused


def interchangeable(obj: Json, requested: WorkloadAnnotations) -> Json:
    kind = obj["kind"]
    raise GroupingRefused(
        f"pods of a {kind} are replaced one by one and cannot be a gang; use a StatefulSet with "
        f"podManagementPolicy Parallel, a Job or a LeaderWorkerSet, or remove the annotation {PHALANX_API}/gang"
    )


def group_set(obj: Json, related: Sequence[Json] = (), *, policy: Policy = interchangeable) -> Grouping:
    """Return one group of all its pods."""
    requested = workload_annotations(obj["metadata"].get("annotations"))
    template = obj["spec"]["template"].get("spec") or {}
    named = template.get("schedulingGroup") is not None or template.get("workloadRef") is not None
    owned = any(ref.get("controller") for ref in obj["metadata"].get("ownerReferences") or ())
    if named or owned or not requested:
        return Grouping()
    chosen = policy(obj, requested) if requested.gang or requested.min_count is not None else BASIC
    mode = disruption_of(chosen, requested.mode)
    leaf = LeafTemplate(TEMPLATE, chosen, requested.constraints, mode, (), template.get("priorityClassName") or "")
    meta = obj["metadata"]
    if (meta.get("annotations") or {}).get(API) == "v1alpha1":
        return with_hand_made(obj, _first_version(obj, chosen), related)
    name = by_uid(meta["name"], meta.get("uid", ""))
    group = of_template(name, leaf.name)
    found = Grouping(
        workload=workload(obj, name, [leaf]),
        groups=[pod_group(obj, group, name, leaf)],
        links={"": Link(pod_group=group, template=leaf.name)},
    )
    return with_hand_made(obj, found, related)


def _first_version(obj: Json, policy: Json) -> Grouping:
    """Return the KEP-4671 form of the API design paper: `w-<name>` with the one group."""
    name = f"w-{obj['metadata']['name']}"
    body = first_workload(obj, name, {ONLY_GROUP: policy})
    return Grouping(workload=body, links={"": Link(workload=name, group=ONLY_GROUP)})
