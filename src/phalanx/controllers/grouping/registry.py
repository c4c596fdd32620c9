"""Which function groups which kind."""

from __future__ import annotations

from phalanx.controllers.grouping.core import Grouper, Json
from phalanx.controllers.grouping.job import group_job
from phalanx.controllers.grouping.jobset import group_job_set
from phalanx.controllers.grouping.leaderworkerset import group_leader_worker_set

GROUPERS: dict[tuple[str, str], Grouper] = {
    ("batch", "Job"): group_job,
    ("jobset.x-k8s.io", "JobSet"): group_job_set,
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): group_leader_worker_set,
}


def grouper_of(obj: Json) -> Grouper | None:
    group = str(obj.get("apiVersion") or "").rpartition("/")[0]
    return GROUPERS.get((group, str(obj.get("kind") or "")))
