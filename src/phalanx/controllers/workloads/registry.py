"""Register every kind of workload, outermost first: a JobSet's settings for its Jobs precede a Job's own.

Also warns authors about unknown annotations with our prefix: a misspelt one has no effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from phalanx.controllers.grouping.core import Grouping
from phalanx.controllers.runtime.controller import Json, Key
from phalanx.controllers.workloads.cronjob.kind import CRON_JOB
from phalanx.controllers.workloads.daemonset.kind import DAEMON_SET
from phalanx.controllers.workloads.deployment.kind import DEPLOYMENT
from phalanx.controllers.workloads.disaggregatedset.kind import DISAGGREGATED_SET
from phalanx.controllers.workloads.job.kind import JOB
from phalanx.controllers.workloads.jobset.kind import JOB_SET
from phalanx.controllers.workloads.kind import Local, WorkloadKind
from phalanx.controllers.workloads.leaderworkerset.kind import LEADER_WORKER_SET
from phalanx.controllers.workloads.member import PodView, WorkloadSlot
from phalanx.controllers.workloads.mpijob.kind import MPI_JOB
from phalanx.controllers.workloads.pytorchjob.kind import PYTORCH_JOB
from phalanx.controllers.workloads.ray.kind import RAY_CLUSTER, RAY_JOB
from phalanx.controllers.workloads.replicaset.kind import REPLICA_SET, REPLICATION_CONTROLLER
from phalanx.controllers.workloads.statefulset.kind import STATEFUL_SET
from phalanx.controllers.workloads.trainjob.kind import TRAIN_JOB
from phalanx.model.annotation_values import unknown

KINDS: tuple[WorkloadKind, ...] = (
    TRAIN_JOB,
    MPI_JOB,
    PYTORCH_JOB,
    RAY_JOB,
    RAY_CLUSTER,
    JOB_SET,
    DISAGGREGATED_SET,
    LEADER_WORKER_SET,
    CRON_JOB,
    JOB,
    DEPLOYMENT,
    REPLICA_SET,
    REPLICATION_CONTROLLER,
    STATEFUL_SET,
    DAEMON_SET,
)
BY_KEY = {kind.key: kind for kind in KINDS}  # (API group, kind)
BY_KIND = {kind.resource.kind: kind for kind in KINDS}
BY_NAME = {name: kind for kind in KINDS for name in kind.names}  # command line names
FOLLOWED = tuple(kind for kind in KINDS if kind.grouped_in_cluster_mode)
READ = tuple(resource for kind in KINDS for resource in kind.reads)  # other objects that groups depend on


def kind_of(obj: Json) -> WorkloadKind | None:
    group = str(obj.get("apiVersion") or "").rpartition("/")[0]
    return BY_KEY.get((group, str(obj.get("kind") or "")))


def group(obj: Json, related: Sequence[Json] = ()) -> Grouping | None:
    """Return the generated groups of a workload; None for kinds without groups. Raises Refused for invalid input."""
    kind = kind_of(obj)
    return kind.group(obj, related) if kind is not None else None


def places(pod: PodView) -> Iterator[WorkloadSlot]:
    """Return the workloads that a pod may belong to, outermost first."""
    if pod.controller is None:
        return
    for kind in KINDS:
        place = kind.place(pod)
        if place is not None:
            yield place


CONTROLLER = "workload-annotations"


def report_unknown_annotations(local: Local) -> None:
    """Watch every local kind that may request groups; report unknown annotations as Events on the object."""
    from phalanx.controllers.workloads.registry import KINDS

    def warn_of_unknown(key: Key, new: Json | None, old: Json | None) -> None:
        if new is None:
            return
        annotations = new["metadata"].get("annotations")
        if old is not None and old["metadata"].get("annotations") == annotations:
            return
        for text in unknown(annotations):
            local.events.warning(new, CONTROLLER, "UnknownAnnotation", text)

    for kind in KINDS:
        if kind.run is not None:
            local.caches.of(kind.resource, optional=True).on_change(warn_of_unknown)
