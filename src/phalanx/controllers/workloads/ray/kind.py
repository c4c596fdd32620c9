"""The descriptors of RayClusters and RayJobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from phalanx.base.client import Resource
from phalanx.controllers.grouping.core import Grouping, Json
from phalanx.controllers.grouping.parts import Role, one_gang, templates_of
from phalanx.controllers.workloads.kind import ExpectedPod, WorkloadKind, numbered
from phalanx.controllers.workloads.member import PodView, WorkloadSlot

# RayCluster: the head and the minimum size of every worker group are one gang; workers added later join it.
#
# Parts are the groups as KubeRay labels their pods: "headgroup" and the names of the worker groups. A RayJob creates a
# RayCluster and passes its annotations on, so its groups are those of the RayCluster.

HEAD = "headgroup"
MAX_REPLICAS = 2**31 - 1
# The container that KubeRay adds to the head of a cluster with an autoscaler, unless its options say otherwise.
_AMOUNTS = {"cpu": "500m", "memory": "512Mi"}
AUTOSCALER: Json = {"name": "autoscaler", "resources": {"limits": _AMOUNTS, "requests": _AMOUNTS}}


def roles_of(cluster: Json) -> list[Role]:
    spec = cluster["spec"]
    found = [Role(HEAD, 1, 1, _head(spec))]
    for group in spec.get("workerGroupSpecs") or ():
        hosts = int(group.get("numOfHosts") or 1)
        wanted, least = _replicas(group)
        if not spec.get("enableInTreeAutoscaling"):
            least = wanted
        found.append(Role(str(group["groupName"]), wanted * hosts, least * hosts, group.get("template") or {}))
    return found


def _head(spec: Json) -> Json:
    """Return the template of the head's pod, with the autoscaler if there is one."""
    template: Json = (spec.get("headGroupSpec") or {}).get("template") or {}
    if not spec.get("enableInTreeAutoscaling"):
        return template
    resources = (spec.get("autoscalerOptions") or {}).get("resources")
    pod: Json = template.get("spec") or {}
    image = next(
        (each.get("image") for each in pod.get("containers") or ()), None
    )  # KubeRay uses the image of the head
    added = {**AUTOSCALER, "image": image, **({"resources": resources} if resources else {})}
    return {**template, "spec": {**pod, "containers": [*(pod.get("containers") or ()), added]}}


def _replicas(group: Json) -> tuple[int, int]:
    """Return the replicas that KubeRay creates, and how few the autoscaler may leave."""
    if group.get("suspend"):
        return 0, 0
    most = _number(group.get("maxReplicas"), MAX_REPLICAS)
    least = min(_number(group.get("minReplicas"), 0), most)
    return min(max(_number(group.get("replicas"), least), least), most), least


def _number(value: object, otherwise: int) -> int:
    return otherwise if value is None else int(str(value))


def group_ray_cluster(cluster: Json, related: Sequence[Json] = ()) -> Grouping:
    return one_gang(cluster, roles_of(cluster), related)


def cluster_of(job: Json) -> Json:
    """Return the RayCluster that a RayJob creates; 00000 replaces the random suffix of its name."""
    meta = job["metadata"]
    return {
        "apiVersion": job["apiVersion"],
        "kind": "RayCluster",
        "metadata": {**meta, "name": f"{meta['name']}-0"},
        "spec": job["spec"].get("rayClusterSpec") or {},
    }


def group_ray_job(job: Json, related: Sequence[Json] = ()) -> Grouping:
    if not job["spec"].get("rayClusterSpec"):
        return Grouping()  # it uses an existing RayCluster
    return group_ray_cluster(cluster_of(job), related)


RAY_CLUSTERS = Resource("ray.io", "v1", "rayclusters", "RayCluster")
RAY_JOBS = Resource("ray.io", "v1", "rayjobs", "RayJob")
GROUP = "ray.io/group"
GANG = "ray.io/gang-scheduling-enabled"  # KubeRay's label


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
    requests_gang=_requests_gang,
    grouped_in_cluster_mode=False,
    creates=RAY_CLUSTERS,
)
