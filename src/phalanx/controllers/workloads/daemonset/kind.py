"""The descriptor of DaemonSets: one pod for each node, scheduled independently of the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from phalanx.base import resources as r
from phalanx.controllers.grouping.core import Grouping, Json
from phalanx.controllers.runtime.controller import Controller
from phalanx.controllers.workloads.kind import ExpectedPod, Local, WorkloadKind, its_template


def _group(daemon_set: Json, related: Sequence[Json]) -> Grouping:
    return Grouping()


def _pods(daemon_set: Json, related: Sequence[Json], found: Grouping) -> Iterator[ExpectedPod]:
    return iter(())  # one per node: the number is not in the manifest


def _run(local: Local) -> Iterable[Controller]:
    from phalanx.controllers.workloads.daemonset.controller import DaemonSetController

    return [DaemonSetController(local.caches, local.clock, local.events)]


DAEMON_SET = WorkloadKind(
    resource=r.DAEMON_SETS,
    group=_group,
    pods=_pods,
    templates=its_template,
    place=lambda pod: None,
    aliases=("ds",),
    grouped_in_cluster_mode=False,
    run=_run,
)
