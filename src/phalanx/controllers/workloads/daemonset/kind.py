"""The descriptor of DaemonSets: one pod for each node, scheduled independently of the others."""

from __future__ import annotations

from collections.abc import Iterable

from phalanx.base import resources as r
from phalanx.controllers.runtime.controller import Controller
from phalanx.controllers.workloads.kind import Local, WorkloadKind, its_template


def _controllers(local: Local) -> Iterable[Controller]:
    from phalanx.controllers.workloads.daemonset.controller import DaemonSetController

    return [DaemonSetController(local.caches, local.clock, local.events)]


DAEMON_SET = WorkloadKind(
    resource=r.DAEMON_SETS,
    templates=its_template,
    aliases=("ds",),
    grouped_in_cluster_mode=False,
    run=_controllers,
)
