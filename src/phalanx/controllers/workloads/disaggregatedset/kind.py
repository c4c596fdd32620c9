"""The descriptor of DisaggregatedSets: each role has the groups of its LeaderWorkerSets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from phalanx.base import resources as r
from phalanx.controllers.grouping.core import Grouping, Json
from phalanx.controllers.runtime.controller import Controller
from phalanx.controllers.workloads.disaggregatedset.sets import leader_worker_set, replicas_of, revision_of, roles_of
from phalanx.controllers.workloads.kind import ExpectedPod, Local, WorkloadKind
from phalanx.controllers.workloads.leaderworkerset.kind import LEADER_WORKER_SET


def _sets(owner: Json) -> Iterator[Json]:
    """Yield the LeaderWorkerSets of one slice; slices are equal."""
    meta = {"namespace": "default", "uid": "", **owner["metadata"]}
    named = {**owner, "metadata": meta}
    for role in roles_of(named):
        yield leader_worker_set(named, 0, revision_of(named), role, replicas_of(role))


def _pods(owner: Json, related: Sequence[Json], found: Grouping) -> Iterator[ExpectedPod]:
    for lws in _sets(owner):
        yield from LEADER_WORKER_SET.pods(lws, related, LEADER_WORKER_SET.group(lws, related))


def _templates(owner: Json) -> Iterator[Json]:
    for role in roles_of(owner):
        yield from LEADER_WORKER_SET.templates(role)


def _run(local: Local) -> Iterable[Controller]:
    from phalanx.controllers.workloads.disaggregatedset.controller import DisaggregatedSetController

    return [DisaggregatedSetController(local.caches, local.clock, local.events)]


DISAGGREGATED_SET = WorkloadKind(
    resource=r.DISAGGREGATED_SETS,
    pods=_pods,
    templates=_templates,
    grouped_in_cluster_mode=False,
    creates=r.LEADER_WORKER_SETS,
    run=_run,
)
