"""The descriptor of StatefulSets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from phalanx.base import resources as r
from phalanx.base.well_known import PHALANX_API, POD_INDEX
from phalanx.controllers.grouping.annotations import WorkloadAnnotations
from phalanx.controllers.grouping.core import Grouping, GroupingRefused, Json
from phalanx.controllers.grouping.parts import gang
from phalanx.controllers.grouping.replicas import group_set
from phalanx.controllers.runtime.controller import Controller
from phalanx.controllers.workloads.kind import Local, WorkloadKind, its_template, owned_by
from phalanx.controllers.workloads.sets import pods_of_set


def group_stateful_set(obj: Json, related: Sequence[Json] = ()) -> Grouping:
    return group_set(obj, related, policy=_policy)


def _policy(obj: Json, requested: WorkloadAnnotations) -> Json:
    spec = obj["spec"]
    if spec.get("podManagementPolicy", "OrderedReady") != "Parallel":
        raise GroupingRefused(
            "podManagementPolicy OrderedReady starts one pod after the other, so a gang would wait for ever; "
            f'use podManagementPolicy Parallel, or {PHALANX_API}/gang: "false" for a group without a gang'
        )
    replicas = int(spec.get("replicas", 1))
    count = requested.min_count or max(1, replicas)
    if count > max(1, replicas):
        raise GroupingRefused(f"annotation {PHALANX_API}/min-count: {count} is more than the {replicas} replicas")
    return gang(count)


def _controllers(local: Local) -> Iterable[Controller]:
    from phalanx.controllers.workloads.sets import groups_of_sets
    from phalanx.controllers.workloads.statefulset.controller import StatefulSetController

    groups = groups_of_sets(local, r.STATEFUL_SETS, group_stateful_set)
    sets = StatefulSetController(local.caches, local.clock, local.events, local.admission)
    local.makers[r.STATEFUL_SETS.kind] = sets.queue
    return [sets, *groups]


STATEFUL_SET = WorkloadKind(
    resource=r.STATEFUL_SETS,
    group=group_stateful_set,
    pods=partial(pods_of_set, index=POD_INDEX),
    templates=its_template,
    place=owned_by(r.STATEFUL_SETS.kind),
    aliases=("sts",),
    scaled=True,
    run=_controllers,
)
