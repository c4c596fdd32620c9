"""Find replicas with outdated policies. Pure functions.

Groups are immutable except for counts. A running replica is not restarted because its author requests another topology:
it keeps its groups until it is recreated.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import msgspec

from phalanx.controllers.grouping.compare import Difference, difference
from phalanx.controllers.grouping.core import Grouping
from phalanx.controllers.runtime.ownership import deleting
from phalanx.controllers.runtime.pods import phase
from phalanx.model.groups.policy import parse_spec
from phalanx.model.kinds import Json
from phalanx.model.leaderworkerset import names as n
from phalanx.model.leaderworkerset.names import RECREATE_AFTER_START, size_of
from phalanx.model.leaderworkerset.pods import is_grouped
from phalanx.model.objects.policy import WorkloadPolicySpec

Replica = tuple[str, str]  # index and revision, as in labels of its pods and groups
Name = tuple[str, str]  # kind and name of an object


def replica_of(obj: Json) -> Replica:
    return n.label(obj, n.GROUP_INDEX), n.label(obj, n.REVISION)


def outdated(wanted: Grouping, known: Iterable[Json], pods: Iterable[Json]) -> set[Replica]:
    """Return replicas with pods whose groups differ from the wanted ones and cannot be updated in place."""
    used = {replica_of(pod) for pod in pods if is_grouped(pod)}
    here, there = _by_replica(known), _by_replica([*wanted.composites, *wanted.groups])
    found = set()
    for replica in used & here.keys():
        is_, should = here[replica], there.get(replica, {})
        same = is_.keys() == should.keys() and all(
            difference(is_[name], should[name]) is not Difference.SHAPE for name in is_
        )
        if not same:
            found.add(replica)
    return found


def without(wanted: Grouping, replicas: Collection[Replica]) -> Grouping:
    return replace(
        wanted,
        composites=[obj for obj in wanted.composites if replica_of(obj) not in replicas],
        groups=[obj for obj in wanted.groups if replica_of(obj) not in replicas],
    )


def names_of(known: Iterable[Json], replicas: Collection[Replica]) -> set[Name]:
    return {(obj["kind"], obj["metadata"]["name"]) for obj in known if replica_of(obj) in replicas}


def _by_replica(objects: Iterable[Json]) -> dict[Replica, dict[Name, Json]]:
    found: dict[Replica, dict[Name, Json]] = {}
    for obj in objects:
        if n.label(obj, n.REVISION):
            found.setdefault(replica_of(obj), {})[obj["kind"], obj["metadata"]["name"]] = obj
    return found


def must_recreate(lws: Json, leader: Json, workers: Sequence[Json], lost: Sequence[Json] = ()) -> Json | None:
    """Return the pod that causes the recreation of the group; None if the group stays.

    `workers` are the pods of this leader's own StatefulSet, `lost` those deleted since the last reconcile. A worker of
    another revision than the leader's does not count: it goes because of its revision.
    """
    policy = lws["spec"]["leaderWorkerTemplate"].get("restartPolicy", "RecreateGroupOnPodRestart")
    if policy not in ("RecreateGroupOnPodRestart", "RecreateGroupAfterStart"):
        return None
    # Upstream's experimental annotation is effective with any value.
    annotated = RECREATE_AFTER_START in (lws["metadata"].get("annotations") or {})
    after_start = annotated or policy == "RecreateGroupAfterStart"
    if deleting(leader):
        return None
    lost, workers = ([pod for pod in pods if _same_revision(pod, leader)] for pods in (lost, workers))
    gone = {pod["metadata"].get("name") for pod in lost}
    pods = [leader, *(pod for pod in workers if pod["metadata"].get("name") not in gone), *lost]
    if after_start and (len(pods) < size_of(lws) or any(phase(pod) == "Pending" for pod in pods)):
        return None  # still starting: restarts while images and peers start are no failures
    if lost:
        return lost[0]
    for pod in pods:
        if _restarted(pod) or (pod is not leader and deleting(pod)):
            return pod
    return None


def _same_revision(pod: Json, leader: Json) -> bool:
    return n.label(pod, n.REVISION) == n.label(leader, n.REVISION)


def _restarted(pod: Json) -> bool:
    status = pod.get("status") or {}
    if phase(pod) not in ("Running", "Pending"):
        return phase(pod) == "Failed"
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return any(int(container.get("restartCount") or 0) > 0 for container in containers)


def unavailable_replicas(policies: Iterable[Json], owner: Json) -> int | None:
    """Return `disruption.maxUnavailableReplicas` of the oldest policy for this object; None: no limit.

    An invalid value is no limit; the scheduler reports it in the policy's status.
    """
    group = str(owner["apiVersion"]).rpartition("/")[0]
    found = [policy for policy in policies if _is_about(policy, owner, group)]
    if not found:
        return None
    oldest = min(found, key=lambda each: (each["metadata"].get("creationTimestamp") or "", each["metadata"]["name"]))
    try:
        spec = msgspec.convert(oldest["spec"], WorkloadPolicySpec)
    except msgspec.ValidationError:
        return None
    limit: int | None = parse_spec(spec).fields.get("max_unavailable_replicas")
    return limit


def _is_about(policy: Json, owner: Json, group: str) -> bool:
    target = (policy.get("spec") or {}).get("targetRef") or {}
    named = (target.get("kind"), target.get("name")) == (owner["kind"], owner["metadata"]["name"])
    return named and target.get("apiGroup") in (None, "", group)
