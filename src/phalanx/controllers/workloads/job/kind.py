"""The descriptor of Jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from phalanx.base import resources as r
from phalanx.base.well_known import COMPLETION_INDEX
from phalanx.controllers.grouping.core import Grouping, Json
from phalanx.controllers.runtime.controller import Controller
from phalanx.controllers.workloads.job.grouping import group_job, size_of
from phalanx.controllers.workloads.kind import ExpectedPod, Local, WorkloadKind, its_template, numbered, owned_by


def _pods(job: Json, related: Sequence[Json], found: Grouping) -> Iterator[ExpectedPod]:
    spec = job["spec"]
    index = COMPLETION_INDEX if spec.get("completionMode") == "Indexed" else ""
    return numbered(job["metadata"]["name"], spec["template"], size_of(spec), found.links.get(""), index)


def _controllers(local: Local) -> Iterable[Controller]:
    from phalanx.controllers.workloads.job.controller import JobController

    groups = local.groups if local.gates(JOB.gate) else None
    return [JobController(local.caches, local.clock, local.events, groups)]


JOB = WorkloadKind(
    resource=r.JOBS,
    group=group_job,
    gate="WorkloadWithJob",
    pods=_pods,
    templates=its_template,
    place=owned_by(r.JOBS.kind),
    final_conditions=("Complete", "Failed"),
    owns_user_workload=True,
    jobs=lambda job, found: {"": job["metadata"]["name"]},
    run=_controllers,
)
