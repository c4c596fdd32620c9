"""PyTorchJob: master and workers are one gang; an elastic one needs its master and `minReplicas` workers to start.

Parts are "master" and "worker". `runPolicy.schedulingPolicy.minAvailable` overrides the minimum, as in its operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from phalanx.base.client import Resource
from phalanx.base.well_known import REPLICA_INDEX
from phalanx.controllers.grouping.core import Grouping, Json
from phalanx.controllers.grouping.parts import Role, one_gang, templates_of
from phalanx.controllers.workloads.kind import ExpectedPod, WorkloadKind, numbered
from phalanx.controllers.workloads.member import PodView, WorkloadSlot

PYTORCH_JOBS = Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")
REPLICA_TYPE, REPLICA_INDEX = "training.kubeflow.org/replica-type", REPLICA_INDEX


def roles_of(job: Json) -> list[Role]:
    spec = job["spec"]
    elastic = (spec.get("elasticPolicy") or {}).get("minReplicas")
    found = []
    for type_, replicas in (spec.get("pytorchReplicaSpecs") or {}).items():
        count = 1 if replicas.get("replicas") is None else int(replicas["replicas"])
        least = min(count, int(elastic)) if elastic is not None and type_ == "Worker" else count
        found.append(Role(type_.lower(), count, least, replicas.get("template") or {}))
    return found


def group_pytorch_job(job: Json, related: Sequence[Json] = ()) -> Grouping:
    policy: Json = (job["spec"].get("runPolicy") or {}).get("schedulingPolicy") or {}
    priority = str(policy.get("priorityClass") or "")
    return one_gang(job, roles_of(job), related, minimum=policy.get("minAvailable"), priority_class=priority)


def _pods(job: Json, related: Sequence[Json], found: Grouping) -> Iterator[ExpectedPod]:
    for role in roles_of(job):
        name = f"{job['metadata']['name']}-{role.name}"
        labels, link = {REPLICA_TYPE: role.name}, found.links.get(role.name)
        yield from numbered(name, role.template, role.count, link, REPLICA_INDEX, labels)


def _place(pod: PodView) -> WorkloadSlot | None:
    name, role = pod.made_by(PYTORCH_JOBS.kind), pod.labels.get(REPLICA_TYPE)
    return WorkloadSlot(PYTORCH_JOBS.kind, name, (role.lower(),)) if name and role else None


PYTORCH_JOB = WorkloadKind(
    resource=PYTORCH_JOBS,
    group=group_pytorch_job,
    pods=_pods,
    templates=lambda job: templates_of(roles_of(job)),
    place=_place,
    aliases=("ptj",),
    final_conditions=("Succeeded", "Failed"),
    owns_user_workload=True,
)
