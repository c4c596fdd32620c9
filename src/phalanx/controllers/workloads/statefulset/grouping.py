"""StatefulSet: one group of all replicas; a gang if its pods start in parallel."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.controllers.grouping.annotations import DOMAIN, WorkloadAnnotations
from phalanx.controllers.grouping.core import Grouping, GroupingRefused, Json
from phalanx.controllers.grouping.parts import gang
from phalanx.controllers.grouping.replicas import group_set


def group_stateful_set(obj: Json, related: Sequence[Json] = ()) -> Grouping:
    return group_set(obj, related, policy=_policy)


def _policy(obj: Json, requested: WorkloadAnnotations) -> Json:
    spec = obj["spec"]
    if spec.get("podManagementPolicy", "OrderedReady") != "Parallel":
        raise GroupingRefused(
            "podManagementPolicy OrderedReady starts one pod after the other, so a gang would wait for ever; "
            f'use podManagementPolicy Parallel, or {DOMAIN}/gang: "false" for a group without a gang'
        )
    replicas = int(spec.get("replicas", 1))
    count = requested.min_count or max(1, replicas)
    if count > max(1, replicas):
        raise GroupingRefused(f"annotation {DOMAIN}/min-count: {count} is more than the {replicas} replicas")
    return gang(count)
