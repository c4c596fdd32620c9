"""The descriptor of ReplicationControllers, the predecessor of ReplicaSets; they have no groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from phalanx.base import resources as r
from phalanx.controllers.grouping.core import Grouping, Json
from phalanx.controllers.runtime.controller import Controller
from phalanx.controllers.workloads.kind import Local, WorkloadKind, its_template
from phalanx.controllers.workloads.sets import pods_of_set


def _group(workload: Json, related: Sequence[Json]) -> Grouping:
    return Grouping()


def _run(local: Local) -> Iterable[Controller]:
    from phalanx.controllers.workloads.replicaset.controller import ReplicationControllers

    return [ReplicationControllers(local.caches, local.clock, local.events)]


REPLICATION_CONTROLLER = WorkloadKind(
    resource=r.REPLICATION_CONTROLLERS,
    group=_group,
    pods=pods_of_set,
    templates=its_template,
    place=lambda pod: None,
    aliases=("rc",),
    scaled=True,
    grouped_in_cluster_mode=False,
    run=_run,
)
