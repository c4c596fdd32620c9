"""The descriptor of StatefulSets."""

from __future__ import annotations

from collections.abc import Iterable

from phalanx.controllers import resources as r
from phalanx.controllers.runtime.controller import Controller
from phalanx.controllers.workloads.kind import Local, WorkloadKind, its_template, owned_by
from phalanx.controllers.workloads.sets import pods_of_set
from phalanx.controllers.workloads.statefulset.grouping import group_stateful_set


def _run(local: Local) -> Iterable[Controller]:
    from phalanx.controllers.workloads.sets import groups_of_sets
    from phalanx.controllers.workloads.statefulset.controller import StatefulSetController

    groups = groups_of_sets(local, r.STATEFUL_SETS, group_stateful_set)
    sets = StatefulSetController(local.caches, local.clock, local.events, local.admission)
    local.makers[r.STATEFUL_SETS.kind] = sets.queue
    return [sets, *groups]


STATEFUL_SET = WorkloadKind(
    resource=r.STATEFUL_SETS,
    group=group_stateful_set,
    pods=pods_of_set,
    templates=its_template,
    place=owned_by(r.STATEFUL_SETS.kind),
    aliases=("sts",),
    scaled=True,
    run=_run,
)
