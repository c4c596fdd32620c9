"""CronJob: nothing of its own. Each of its Jobs gets a Workload (the templated lifecycle of the API design paper)."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from phalanx.controllers.grouping.core import Grouping, Json, reference_to
from phalanx.controllers.workloads.job.grouping import group_job


def group_cron_job(cron_job: Json, related: Sequence[Json] = ()) -> Grouping:
    """Return the grouping of one run's Job; its name ends in the minute of the run, here in 0."""
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
