"""MPIJob (kubeflow.org/v2beta1): all ranks are one gang, the launcher included. Parts are "launcher" and "worker".

A launcher that is created only when all workers are ready would block the gang, so it has its own group.
`runPolicy.schedulingPolicy.minAvailable` overrides the minimum, as in mpi-operator.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.controllers.group_apis.contract import Replica, ReplicaPart
from phalanx.controllers.grouping.annotations import workload_annotations
from phalanx.controllers.grouping.core import Grouping, GroupingRefused, Json, Link, namespace_of
from phalanx.controllers.grouping.parts import LeafTemplate, disruption_of, gang, pod_group, workload
from phalanx.controllers.grouping.user_workload import with_hand_made


def group_mpi_job(job: Json, related: Sequence[Json] = ()) -> Grouping:
    requested = workload_annotations(job["metadata"].get("annotations"))
    if requested.gang is False:
        return Grouping()
    name = job["metadata"]["name"]
    workers, minimum = _workers(job), _minimum(job)
    priority, mode = _priority(job), disruption_of(gang(minimum), requested.mode)
    if waits_for_workers(job):
        leaves = [
            LeafTemplate("worker", gang(minimum), requested.constraints, mode, (), priority),
            LeafTemplate("launcher", gang(1), None, mode, (), priority),
        ]
        if not workers:
            leaves = leaves[1:]
        groups = {leaf.name: f"{name}-{leaf.name}" for leaf in leaves}
        apart = Grouping(
            workload=workload(job, name, leaves),
            groups=[pod_group(job, groups[leaf.name], name, leaf) for leaf in leaves],
            links={part: Link(pod_group=groups[part], template=part) for part in groups},
        )
        return with_hand_made(job, apart, related)
    leaf = LeafTemplate("launcher-worker", gang(minimum), requested.constraints, mode, (), priority)
    link = Link(pod_group=name, template=leaf.name)
    together = Grouping(
        workload=workload(job, name, [leaf]),
        groups=[pod_group(job, name, name, leaf)],
        links={"launcher": link, "worker": link},
    )
    return with_hand_made(job, together, related)


def replica_of(job: Json, owner: Json) -> Replica:
    """Return, for other schedulers' providers, one PodGroup with the MPIJob's name, as mpi-operator creates it."""
    specs = job["spec"]["mpiReplicaSpecs"]
    parts = [
        ReplicaPart(role.lower(), count, ((specs.get(role) or {}).get("template") or {}).get("spec") or {})
        for role, count in (("Launcher", 1), ("Worker", _workers(job)))
    ]
    annotations = dict(job["metadata"].get("annotations") or {})
    queue = _policy(job).get("queue")
    if queue:
        annotations["scheduling.volcano.sh/queue-name"] = queue
    return Replica(
        name=job["metadata"]["name"],
        namespace=namespace_of(job),
        owner=owner,
        min_member=_minimum(job),
        parts=parts,
        annotations=annotations,
        priority_class=_priority(job),
    )


def waits_for_workers(job: Json) -> bool:
    return bool(job["spec"].get("launcherCreationPolicy") == "WaitForWorkersReady")


def all_pods(job: Json) -> int:
    """Return the number of pods that start together."""
    return _workers(job) + (0 if waits_for_workers(job) else 1)


def _workers(job: Json) -> int:
    found = (job["spec"].get("mpiReplicaSpecs") or {}).get("Worker") or {}
    count = found.get("replicas")
    return 0 if not found else 1 if count is None else int(count)


def _policy(job: Json) -> Json:
    found: Json = (job["spec"].get("runPolicy") or {}).get("schedulingPolicy") or {}
    return found


def _minimum(job: Json) -> int:
    total = all_pods(job)
    asked = _policy(job).get("minAvailable")
    requested = workload_annotations(job["metadata"].get("annotations")).min_count
    count = int(asked) if asked is not None else requested or max(1, total)
    if count > max(1, total):
        raise GroupingRefused(f"a gang of {count} can never form: only {total} pods start together; lower minAvailable")
    return count


def _priority(job: Json) -> str:
    specs = job["spec"].get("mpiReplicaSpecs") or {}
    named = [
        (((specs.get(role) or {}).get("template") or {}).get("spec") or {}).get("priorityClassName")
        for role in ("Launcher", "Worker")
    ]
    return _policy(job).get("priorityClass") or next((name for name in named if name), "")
