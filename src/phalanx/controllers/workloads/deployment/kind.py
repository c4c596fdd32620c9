"""The descriptor of Deployments: ReplicaSets create their pods."""

from __future__ import annotations

from collections.abc import Iterable

from phalanx.base import resources as r
from phalanx.base.well_known import POD_TEMPLATE_HASH
from phalanx.controllers.grouping.replicas import group_set
from phalanx.controllers.runtime.controller import Controller
from phalanx.controllers.workloads.kind import Local, WorkloadKind, its_template
from phalanx.controllers.workloads.member import PodView, WorkloadSlot
from phalanx.controllers.workloads.sets import pods_of_set


def _place(pod: PodView) -> WorkloadSlot | None:
    name, template = pod.made_by(r.REPLICA_SETS.kind), pod.labels.get(POD_TEMPLATE_HASH)
    if not template or not name.endswith(f"-{template}"):
        return None
    return WorkloadSlot(r.DEPLOYMENTS.kind, name.removesuffix(f"-{template}"), ("",))


def _controllers(local: Local) -> Iterable[Controller]:
    from phalanx.controllers.workloads.deployment.controller import DeploymentController
    from phalanx.controllers.workloads.sets import groups_of_sets

    return [DeploymentController(local.caches, local.clock, local.events), *groups_of_sets(local, r.DEPLOYMENTS)]


DEPLOYMENT = WorkloadKind(
    resource=r.DEPLOYMENTS,
    group=group_set,
    pods=pods_of_set,
    templates=its_template,
    place=_place,
    aliases=("deploy",),
    scaled=True,
    owner_is_certain=False,  # a ReplicaSet may have no Deployment
    run=_controllers,
)
