"""The descriptors of ReplicaSets and of ReplicationControllers, their predecessor, which have no groups."""

from __future__ import annotations

from collections.abc import Iterable

from phalanx.base import resources as r
from phalanx.controllers.grouping.replicas import group_set
from phalanx.controllers.runtime.controller import Controller
from phalanx.controllers.workloads.kind import Local, WorkloadKind, its_template, owned_by
from phalanx.controllers.workloads.sets import pods_of_set


def _controllers(local: Local) -> Iterable[Controller]:
    from phalanx.controllers.workloads.replicaset.controller import ReplicaSetController
    from phalanx.controllers.workloads.sets import groups_of_sets

    groups = groups_of_sets(local, r.REPLICA_SETS)
    sets = ReplicaSetController(local.caches, local.clock, local.events, local.admission)
    local.makers[r.REPLICA_SETS.kind] = sets.queue
    return [sets, *groups]


def _run_replication_controllers(local: Local) -> Iterable[Controller]:
    from phalanx.controllers.workloads.replicaset.controller import ReplicationControllers

    return [ReplicationControllers(local.caches, local.clock, local.events)]


REPLICA_SET = WorkloadKind(
    resource=r.REPLICA_SETS,
    group=group_set,
    pods=pods_of_set,
    templates=its_template,
    place=owned_by(r.REPLICA_SETS.kind),
    aliases=("rs",),
    scaled=True,
    grouped_in_cluster_mode=False,  # most belong to a Deployment
    run=_controllers,
)
REPLICATION_CONTROLLER = WorkloadKind(
    resource=r.REPLICATION_CONTROLLERS,
    pods=pods_of_set,
    templates=its_template,
    aliases=("rc",),
    scaled=True,
    grouped_in_cluster_mode=False,
    run=_run_replication_controllers,
)
