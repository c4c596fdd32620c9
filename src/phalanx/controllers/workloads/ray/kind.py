"""The descriptors of RayClusters and RayJobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from phalanx.base.client import Resource
from phalanx.controllers.grouping.core import Grouping, Json
from phalanx.controllers.grouping.roles import templates_of
from phalanx.controllers.workloads.kind import ExpectedPod, WorkloadKind, numbered
from phalanx.controllers.workloads.member import PodView, WorkloadSlot
from phalanx.controllers.workloads.ray.grouping import cluster_of, group_ray_cluster, group_ray_job, roles_of

RAY_CLUSTERS = Resource("ray.io", "v1", "rayclusters", "RayCluster")
RAY_JOBS = Resource("ray.io", "v1", "rayjobs", "RayJob")
GROUP = "ray.io/group"
GANG = "ray.io/gang-scheduling-enabled"  # KubeRay's own word, a label


def _pods(cluster: Json, related: Sequence[Json], found: Grouping) -> Iterator[ExpectedPod]:
    for role in roles_of(cluster):
        name = f"{cluster['metadata']['name']}-{role.name}"
        yield from numbered(name, role.template, role.count, found.links.get(role.name))


def _place(pod: PodView) -> WorkloadSlot | None:
    cluster, group = pod.made_by(RAY_CLUSTERS.kind), pod.labels.get(GROUP)
    return WorkloadSlot(RAY_CLUSTERS.kind, cluster, (group,)) if cluster and group else None


def _requests_gang(workload: Json) -> bool:
    return (workload["metadata"].get("labels") or {}).get(GANG) == "true"


RAY_CLUSTER = WorkloadKind(
    resource=RAY_CLUSTERS,
    group=group_ray_cluster,
    pods=_pods,
    templates=lambda cluster: templates_of(roles_of(cluster)),
    place=_place,
    requests_gang=_requests_gang,
)
RAY_JOB = WorkloadKind(
    resource=RAY_JOBS,
    group=group_ray_job,
    pods=lambda job, related, found: _pods(cluster_of(job), related, found),
    templates=lambda job: templates_of(roles_of(cluster_of(job))),
    place=lambda pod: None,
    requests_gang=_requests_gang,
    grouped_in_cluster_mode=False,
    creates=RAY_CLUSTERS,
)
