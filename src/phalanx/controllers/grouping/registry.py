"""Which function groups which kind."""

from __future__ import annotations

from phalanx.controllers.grouping.core import Grouper, Json
from phalanx.controllers.grouping.cronjob import group_cron_job
from phalanx.controllers.grouping.job import group_job
from phalanx.controllers.grouping.jobset import group_job_set
from phalanx.controllers.grouping.leaderworkerset import group_leader_worker_set
from phalanx.controllers.grouping.mpijob import group_mpi_job
from phalanx.controllers.grouping.statefulset import group_set
from phalanx.controllers.grouping.trainjob import group_train_job

GROUPERS: dict[tuple[str, str], Grouper] = {
    ("apps", "Deployment"): group_set,
    ("apps", "ReplicaSet"): group_set,
    ("apps", "StatefulSet"): group_set,
    ("batch", "CronJob"): group_cron_job,
    ("batch", "Job"): group_job,
    ("jobset.x-k8s.io", "JobSet"): group_job_set,
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): group_leader_worker_set,
    ("kubeflow.org", "MPIJob"): group_mpi_job,
    ("trainer.kubeflow.org", "TrainJob"): group_train_job,
}


def grouper_of(obj: Json) -> Grouper | None:
    group = str(obj.get("apiVersion") or "").rpartition("/")[0]
    return GROUPERS.get((group, str(obj.get("kind") or "")))
