"""The descriptor of CronJobs: one run stands for all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from phalanx.controllers import resources as r
from phalanx.controllers.grouping.core import Grouping, Json
from phalanx.controllers.runtime.controller import Controller
from phalanx.controllers.workloads.cronjob.grouping import group_cron_job
from phalanx.controllers.workloads.job.grouping import size_of
from phalanx.controllers.workloads.kind import ExpectedPod, Local, WorkloadKind, numbered


def _pods(cron_job: Json, related: Sequence[Json], found: Grouping) -> Iterator[ExpectedPod]:
    run = cron_job["spec"]["jobTemplate"]["spec"]
    return numbered(cron_job["metadata"]["name"], run["template"], size_of(run), found.links.get(""))


def _templates(cron_job: Json) -> Iterator[Json]:
    yield cron_job["spec"]["jobTemplate"]["spec"]["template"]


def _run(local: Local) -> Iterable[Controller]:
    from phalanx.controllers.workloads.cronjob.controller import CronJobController

    return [CronJobController(local.caches, local.clock, local.events)]


CRON_JOB = WorkloadKind(
    resource=r.CRON_JOBS,
    group=group_cron_job,
    pods=_pods,
    templates=_templates,
    place=lambda pod: None,  # its pods are those of its Jobs
    aliases=("cj",),
    grouped_in_cluster_mode=False,
    creates=r.JOBS,
    run=_run,
)
