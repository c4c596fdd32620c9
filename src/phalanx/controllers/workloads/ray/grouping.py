"""RayCluster: the head and the smallest size of every worker group are one gang; workers added later join it.

Parts are the groups as KubeRay labels their pods: "headgroup" and the names of the worker groups. A RayJob makes a
RayCluster of its own and passes its annotations on, so that its groups are those of that RayCluster.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.controllers.grouping.core import Grouping, Json
from phalanx.controllers.grouping.roles import Role, one_gang

HEAD = "headgroup"


def roles_of(cluster: Json) -> list[Role]:
    spec = cluster["spec"]
    found = [Role(HEAD, 1, 1, (spec.get("headGroupSpec") or {}).get("template") or {})]
    for group in spec.get("workerGroupSpecs") or ():
        hosts = int(group.get("numOfHosts") or 1)
        wanted = _number(group.get("replicas"), _number(group.get("minReplicas"), 0))
        least = _number(group.get("minReplicas"), 0) if spec.get("enableInTreeAutoscaling") else wanted
        if group.get("suspend"):
            wanted = least = 0
        count = max(wanted, least) * hosts
        found.append(Role(str(group["groupName"]), count, min(least * hosts, count), group.get("template") or {}))
    return found


def _number(value: object, otherwise: int) -> int:
    return otherwise if value is None else int(str(value))


def group_ray_cluster(cluster: Json, related: Sequence[Json] = ()) -> Grouping:
    return one_gang(cluster, roles_of(cluster), related)


def cluster_of(job: Json) -> Json:
    """Return the RayCluster that a RayJob creates; five 0s stand for the random suffix of its name."""
    meta = job["metadata"]
    return {
        "apiVersion": job["apiVersion"],
        "kind": "RayCluster",
        "metadata": {**meta, "name": f"{meta['name']}-0"},
        "spec": job["spec"].get("rayClusterSpec") or {},
    }


def group_ray_job(job: Json, related: Sequence[Json] = ()) -> Grouping:
    if not job["spec"].get("rayClusterSpec"):
        return Grouping()  # it uses a RayCluster that is there already
    return group_ray_cluster(cluster_of(job), related)
