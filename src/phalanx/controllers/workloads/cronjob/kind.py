"""The descriptor of CronJobs: the groups of one run."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence

from phalanx.base import resources as r
from phalanx.base.well_known import COMPLETION_INDEX
from phalanx.controllers.grouping.core import Grouping, Json, reference_to
from phalanx.controllers.runtime.controller import Controller
from phalanx.controllers.workloads.job.grouping import group_job, size_of
from phalanx.controllers.workloads.kind import ExpectedPod, Local, WorkloadKind, numbered


def group_cron_job(cron_job: Json, related: Sequence[Json] = ()) -> Grouping:
    """Return the grouping of one run's Job; its name ends with the minute of the run, here 0."""
    meta, template = cron_job["metadata"], cron_job["spec"]["jobTemplate"]
    inner = template.get("metadata") or {}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": f"{meta['name']}-0",
            "namespace": meta.get("namespace", "default"),
            "uid": "",
            "annotations": dict(inner.get("annotations") or {}),
            "ownerReferences": [reference_to(cron_job)],
        },
        "spec": copy.deepcopy(template["spec"]),
    }
    return group_job(job, related)


def _pods(cron_job: Json, related: Sequence[Json], found: Grouping) -> Iterator[ExpectedPod]:
    run = cron_job["spec"]["jobTemplate"]["spec"]
    index = COMPLETION_INDEX if run.get("completionMode") == "Indexed" else ""
    return numbered(cron_job["metadata"]["name"], run["template"], size_of(run), found.links.get(""), index)


def _templates(cron_job: Json) -> Iterator[Json]:
    yield cron_job["spec"]["jobTemplate"]["spec"]["template"]


def _controllers(local: Local) -> Iterable[Controller]:
    from phalanx.controllers.workloads.cronjob.controller import CronJobController

    return [CronJobController(local.caches, local.clock, local.events)]


CRON_JOB = WorkloadKind(
    resource=r.CRON_JOBS,
    group=group_cron_job,
    pods=_pods,
    templates=_templates,
    aliases=("cj",),
    grouped_in_cluster_mode=False,
    creates=r.JOBS,
    run=_controllers,
)
