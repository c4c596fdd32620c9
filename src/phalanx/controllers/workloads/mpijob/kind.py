"""The descriptor of MPIJobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from phalanx.base import resources as r
from phalanx.base.well_known import REPLICA_INDEX
from phalanx.controllers.grouping.core import Grouping, Json
from phalanx.controllers.runtime.controller import Controller
from phalanx.controllers.workloads.kind import ExpectedPod, Local, WorkloadKind, numbered
from phalanx.controllers.workloads.member import PodView, WorkloadSlot
from phalanx.controllers.workloads.mpijob.controller import JOB_NAME, JOB_ROLE, MPI_JOBS
from phalanx.controllers.workloads.mpijob.grouping import group_mpi_job, replica_of


def _pods(job: Json, related: Sequence[Json], found: Grouping) -> Iterator[ExpectedPod]:
    for part in replica_of(job, job).parts:
        name = f"{job['metadata']['name']}-{part.name}"
        labels, link = {JOB_ROLE: part.name}, found.links.get(part.name)
        yield from numbered(name, {"spec": part.pod_spec}, part.count, link, REPLICA_INDEX, labels)


def _templates(job: Json) -> Iterator[Json]:
    for role in ((job.get("spec") or {}).get("mpiReplicaSpecs") or {}).values():
        if role.get("template") is not None:
            yield role["template"]


def _place(pod: PodView) -> WorkloadSlot | None:
    """Return the slot of a pod: the launcher belongs to a Job of the MPIJob, workers to the MPIJob."""
    name = pod.labels.get(JOB_NAME)
    if name and pod.made_by(r.JOBS.kind) == f"{name}-launcher":
        return WorkloadSlot(MPI_JOBS.kind, name, ("launcher",))
    own = pod.made_by(MPI_JOBS.kind)
    return WorkloadSlot(MPI_JOBS.kind, own, (pod.labels.get(JOB_ROLE, "worker"),)) if own else None


def _run(local: Local) -> Iterable[Controller]:
    from phalanx.controllers.workloads.mpijob.controller import MPIJobController

    return [MPIJobController(local.caches, local.clock, local.events, local.groups)]


MPI_JOB = WorkloadKind(
    resource=MPI_JOBS,
    group=group_mpi_job,
    pods=_pods,
    templates=_templates,
    place=_place,
    final_conditions=("Succeeded", "Failed"),
    owns_user_workload=True,
    owner_is_certain=False,
    run=_run,
)
