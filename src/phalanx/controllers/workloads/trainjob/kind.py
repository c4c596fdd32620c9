"""The descriptor of TrainJobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from phalanx.base import resources as r
from phalanx.base.well_known import COMPLETION_INDEX, JOB_GLOBAL_INDEX, JOB_SET_NAME
from phalanx.controllers.grouping.core import Grouping, Json
from phalanx.controllers.runtime.controller import Controller
from phalanx.controllers.workloads.jobset.kind import REPLICATED_JOB_NAME
from phalanx.controllers.workloads.kind import ExpectedPod, Local, WorkloadKind, numbered
from phalanx.controllers.workloads.member import PodView, WorkloadSlot
from phalanx.controllers.workloads.trainjob.controller import RUNTIMES, TRAIN_JOBS
from phalanx.controllers.workloads.trainjob.grouping import group_train_job, replica_of, runtime_named, runtime_of


def _pods(job: Json, related: Sequence[Json], found: Grouping) -> Iterator[ExpectedPod]:
    for number, part in enumerate(replica_of(job, runtime_of(job, related), job).parts):
        name = f"{job['metadata']['name']}-{part.name}"
        labels = {JOB_GLOBAL_INDEX: str(number)}  # each part is one Job of its JobSet
        yield from numbered(
            name, {"spec": part.pod_spec}, part.count, found.links.get(part.name), COMPLETION_INDEX, labels
        )


def _place(pod: PodView) -> WorkloadSlot | None:
    """Return the slot of a pod: the JobSet of a TrainJob has its name."""
    name, part = pod.labels.get(JOB_SET_NAME), pod.labels.get(REPLICATED_JOB_NAME)
    return WorkloadSlot(TRAIN_JOBS.kind, name, (part,)) if name and part and pod.made_by(r.JOBS.kind) else None


def _run(local: Local) -> Iterable[Controller]:
    from phalanx.controllers.workloads.trainjob.controller import TrainJobController

    return [TrainJobController(local.caches, local.clock, local.events, local.groups)]


TRAIN_JOB = WorkloadKind(
    resource=TRAIN_JOBS,
    group=group_train_job,
    pods=_pods,
    templates=lambda job: (),  # its pods are written in the runtime
    place=_place,
    final_conditions=("Complete", "Failed"),
    owner_is_certain=False,
    reads=RUNTIMES,
    referenced_object=runtime_named,
    run=_run,
)
