"""The descriptor of JobSets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count

from phalanx.base import resources as r
from phalanx.base.well_known import COMPLETION_INDEX, JOB_GLOBAL_INDEX, JOB_SET_NAME
from phalanx.controllers.grouping.core import Grouping, Json
from phalanx.controllers.runtime.controller import Controller
from phalanx.controllers.workloads.jobset.gang_config import uses_gang_config, workload_name
from phalanx.controllers.workloads.jobset.grouping import group_job_set
from phalanx.controllers.workloads.jobset.shape import EXCLUSIVE, shape_of
from phalanx.controllers.workloads.kind import ExpectedPod, Local, WorkloadKind, numbered
from phalanx.controllers.workloads.member import PodView, WorkloadSlot

REPLICATED_JOB_NAME = "jobset.sigs.k8s.io/replicatedjob-name"


def _items(jobset: Json) -> list[Json]:
    return list((jobset.get("spec") or {}).get("replicatedJobs") or ())


def _pods(jobset: Json, related: Sequence[Json], found: Grouping) -> Iterator[ExpectedPod]:
    shape = shape_of(jobset)
    items = {item["name"]: item for item in _items(jobset)}
    jobs = count()
    for part in shape.parts:
        template = items[part.name]["template"]["spec"]["template"]
        for job in shape.jobs(part):
            labels = {JOB_GLOBAL_INDEX: str(next(jobs))}
            yield from numbered(job, template, part.size, found.links.get(job), COMPLETION_INDEX, labels)


def _templates(jobset: Json) -> Iterator[Json]:
    for item in _items(jobset):
        template = ((item.get("template") or {}).get("spec") or {}).get("template")
        if template is not None:
            yield template


def _place(pod: PodView) -> WorkloadSlot | None:
    job, name = pod.made_by(r.JOBS.kind), pod.labels.get(JOB_SET_NAME)
    return WorkloadSlot(r.JOB_SETS.kind, name, (job,)) if job and name else None


def _requests_gang(jobset: Json) -> bool:
    holders = [jobset, *(item.get("template") or {} for item in _items(jobset))]
    return uses_gang_config(jobset) or any(
        EXCLUSIVE in ((holder.get("metadata") or {}).get("annotations") or {}) for holder in holders
    )


def _controllers(local: Local) -> Iterable[Controller]:
    from phalanx.controllers.workloads.jobset.controller import JobSetController

    groups = local.groups if local.gates("JobSetGang") else None
    return [JobSetController(local.caches, local.clock, local.events, groups)]


JOB_SET = WorkloadKind(
    resource=r.JOB_SETS,
    group=group_job_set,
    reports_gates=True,
    pods=_pods,
    templates=_templates,
    place=_place,
    requests_gang=_requests_gang,
    aliases=("js",),
    final_conditions=("Completed", "Failed"),
    owns_user_workload=True,
    workload_name=workload_name,
    jobs=lambda jobset, found: {job: job for job in found.links},
    run=_controllers,
)
