"""The kinds of workloads that stories are about, each in several variants: as their users write them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from support.lifecycle import manifests
from support.lifecycle.events import Happenings
from support.lifecycle.run import RUN_SECONDS, Json, Life, Variant

HAND_MADE = " of its author's Workload"


# What goes wrong goes wrong with few pods, too, and a story costs what its pods cost.
SIZES = (1, 2, 2, 2, 3, 3, 4)


def _sized(key: str) -> Callable[[random.Random], Json]:
    return lambda rng: {key: rng.choice(SIZES)}


def _with_priority(life: Life, obj: Json) -> Json:
    """In every pod template of the object."""
    if life.priority:
        for spec in manifests.pod_specs(obj):
            spec["priorityClassName"] = life.priority
    return obj


def _job(life: Life, link: Json | None = None) -> Json:
    made = manifests.job(life.name, life.sizes["parallelism"], str(life.cpu))
    if link is not None:
        del made["metadata"]["annotations"]
        made["spec"]["template"]["spec"] |= link
    if life.ttl is not None:
        made["spec"]["ttlSecondsAfterFinished"] = life.ttl
    return _with_priority(life, made)


def _pod_group(life: Life) -> list[Json]:
    meta, policy = {"name": "by-hand"}, {"gang": {"minCount": life.sizes["parallelism"]}}
    group = {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": meta,
        "spec": {"schedulingPolicy": policy},
    }
    return [group, _job(life, {"schedulingGroup": {"podGroupName": "by-hand"}})]


def _first_version(life: Life) -> list[Json]:
    pods = {"name": "pods", "policy": {"gang": {"minCount": life.sizes["parallelism"]}}}
    about = {"apiGroup": "batch", "kind": "Job", "name": life.name}
    workload = {
        "apiVersion": "scheduling.k8s.io/v1alpha1",
        "kind": "Workload",
        "metadata": {"name": "by-hand"},
        "spec": {"podGroups": [pods], "controllerRef": about},
    }
    return [workload, _job(life, {"workloadRef": {"name": "by-hand", "podGroup": "pods"}})]


def _cron_job(life: Life) -> list[Json]:
    inner = manifests.job(life.name, life.sizes["parallelism"], str(life.cpu), seconds=RUN_SECONDS)
    template = {"metadata": {"annotations": inner["metadata"]["annotations"]}, "spec": inner["spec"]}
    return [
        {
            "apiVersion": "batch/v1",
            "kind": "CronJob",
            "metadata": {"name": life.name},
            "spec": {"schedule": "*/30 * * * *", "concurrencyPolicy": "Allow", "jobTemplate": template},
        }
    ]


def _jobset(life: Life) -> list[Json]:
    made = manifests.jobset(life.name, life.sizes["jobs"], life.sizes["size"], str(life.cpu))
    if life.ttl is not None:
        made["spec"]["ttlSecondsAfterFinished"] = life.ttl
    return [_with_priority(life, made)]


def _of(make: Callable[..., Json], key: str, *more: Any) -> Callable[[Life], list[Json]]:
    return lambda life: [_with_priority(life, make(life.name, life.sizes[key], *more, str(life.cpu)))]


def _worker_template(pods: Json) -> Json:
    return {"spec": {"leaderWorkerTemplate": {"workerTemplate": pods}}}


def _run_policy(on: bool) -> Json:
    return {"spec": {"runPolicy": {"suspend": on}}}


ALWAYS = (
    "restart",
    "retry",
    "again",
    "group_deleted",
    "crash_controllers",
    "crash_mid_write",
    "crash_scheduler",
    "priority_changed",
    "policy",
    "squeeze",
    "relieve",
)
LOCAL = (*ALWAYS, "gates_off_and_on")
ENDS = ("suspend", "resume", "finish")
SETS = ("scale", "roll")


def _replicas(life: Life, count: int) -> Json:
    return {"spec": {"replicas": count}}


_JOB = Variant(
    "Job", lambda life: [_job(life)], lambda sizes: sizes["parallelism"], (*LOCAL, *ENDS, "scale", "adopt"),
    _sized("parallelism"), scale=lambda life, count: {"spec": {"parallelism": count}},
    fixed=True, goes_by_itself=True,
)  # fmt: skip
_CRON_JOB = replace(
    _JOB, kind="CronJob", make=_cron_job, wanted=lambda sizes: 0,
    events=(*LOCAL, "suspend", "resume", "tick", "tick", "tick"),
)  # fmt: skip
_JOB_SET = Variant(
    "JobSet", _jobset, lambda sizes: sizes["jobs"] * sizes["size"], (*LOCAL, *ENDS, "adopt"),
    lambda rng: {"jobs": rng.randint(1, 3), "size": rng.randint(1, 2)},
    fixed=True, restarts=True, goes_by_itself=True,
)  # fmt: skip
_STATEFUL_SET = Variant(
    "StatefulSet", _of(manifests.stateful_set, "replicas"), lambda sizes: sizes["replicas"], (*LOCAL, *SETS, "adopt"),
    _sized("replicas"), scale=_replicas,
)  # fmt: skip
_DEPLOYMENT = replace(
    _STATEFUL_SET, kind="Deployment", make=_of(manifests.deployment, "replicas")
)  # fmt: skip
_REPLICA_SET = replace(
    _STATEFUL_SET, kind="ReplicaSet", make=_of(manifests.replica_set, "replicas"), fixed=True,
    events=(*LOCAL, "scale", "adopt"),
)  # fmt: skip
_LEADER_WORKER_SET = Variant(
    "LeaderWorkerSet", _of(manifests.leader_worker_set, "replicas", 2), lambda sizes: sizes["replicas"] * 2,
    (*LOCAL, *SETS, "adopt"), lambda rng: {"replicas": rng.choice([1, 1, 2, 2, 3])}, scale=_replicas,
    template=_worker_template, restarts=True,
)  # fmt: skip
_MPI_JOB = Variant(
    "MPIJob", _of(manifests.mpi_job, "workers"), lambda sizes: sizes["workers"] + 1, (*LOCAL, *ENDS, "scale", "adopt"),
    _sized("workers"), suspend=_run_policy, fixed=True, definitions=("mpijob",),
    scale=lambda life, count: {"spec": {"mpiReplicaSpecs": {"Worker": {"replicas": count}}}},
)  # fmt: skip
_TRAIN_JOB = Variant(
    "TrainJob",
    lambda life: [
        _with_priority(life, obj) for obj in manifests.train_job(life.name, life.sizes["nodes"], str(life.cpu))
    ],
    lambda sizes: sizes["nodes"], (*LOCAL, *ENDS), _sized("nodes"), fixed=True, restarts=True, definitions=("trainer",),
)  # fmt: skip
_RAY_CLUSTER = Variant(
    "RayCluster", _of(manifests.ray_cluster, "workers"), lambda sizes: sizes["workers"] + 1,
    (*ALWAYS, "suspend", "resume", "scale", "adopt"), _sized("workers"), fixed=True, definitions=("ray",), beside=True,
    scale=lambda life, count: {"spec": {"workerGroupSpecs": [
        _with_priority(life, manifests.ray_workers(count, str(life.cpu)))]}},
)  # fmt: skip
_PYTORCH_JOB = Variant(
    "PyTorchJob", _of(manifests.pytorch_job, "workers"), lambda sizes: sizes["workers"] + 1,
    (*ALWAYS, "suspend", "resume", "scale", "adopt"), _sized("workers"), suspend=_run_policy, fixed=True,
    definitions=("pytorchjob",), beside=True,
    scale=lambda life, count: {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": count}}}},
)  # fmt: skip


def _hand_made(variant: Variant) -> Variant:
    def make(life: Life) -> list[Json]:
        assert isinstance(life, Happenings)
        return [*([life.workload()] if life.grouped else []), *variant.make(life)]

    return replace(variant, make=make)


def _with_others(variant: Variant) -> Variant:
    return replace(variant, events=tuple(event for event in variant.events if event != "gates_off_and_on"), beside=True)


VARIANTS: dict[str, Variant] = {
    "Job": _JOB,
    "Job in a PodGroup made by hand": replace(
        _JOB, make=_pod_group, events=(*LOCAL, "suspend", "resume"), own_group=True
    ),
    "Job of a v1alpha1 Workload": replace(
        _JOB, make=_first_version, events=(*LOCAL, "suspend", "resume"), own_group=True
    ),
    "CronJob": _CRON_JOB,
    "JobSet": _JOB_SET,
    "StatefulSet": _STATEFUL_SET,
    "Deployment": _DEPLOYMENT,
    "ReplicaSet": _REPLICA_SET,
    "LeaderWorkerSet": _LEADER_WORKER_SET,
    "MPIJob": _MPI_JOB,
    "TrainJob": _TRAIN_JOB,
    **{
        f"{variant.kind}{HAND_MADE}": _hand_made(variant)
        for variant in (_JOB, _JOB_SET, _STATEFUL_SET, _DEPLOYMENT, _LEADER_WORKER_SET, _MPI_JOB)
    },
    **{
        f"{variant.kind} beside its controller": _with_others(variant)
        for variant in (_JOB, _JOB_SET, _STATEFUL_SET, _DEPLOYMENT, _LEADER_WORKER_SET, _RAY_CLUSTER, _PYTORCH_JOB)
    },
}


def kinds() -> dict[str, list[str]]:
    """The names of the variants of each kind."""
    found: dict[str, list[str]] = {}
    for name, variant in VARIANTS.items():
        found.setdefault(variant.kind, []).append(name)
    return found
