"""LeaderWorkerSet: a group per replica (KEP-407), created before its pods.

Requested by `spec.scheduling` (`{}` is a gang of the whole replica) or the annotation
`scheduling.phalanx.dev/gang: "true"`. Parts are replica indexes as text, "0", "1", …; for subgroups with their own
topology "0/leader", "0/0", "0/1", ….

* LeaderCreated: minCount is the size of the replica.
* LeaderReady: minCount is 1, because workers are created after their leader is ready; an annotation has the requests of
  the whole replica, so that the scheduler starts a leader only if its workers fit.
* exclusive-topology becomes the topology of the group; subgroup-exclusive-topology makes the replica a
  CompositePodGroup with a PodGroup per subgroup.
* `scheduling.phalanx.dev/api: v1alpha1` requests the first Workload version instead: one pod group in the Workload,
  one replica key per replica, no group objects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from phalanx.controllers.group_apis.contract import Replica, ReplicaPart
from phalanx.controllers.group_apis.registry import Native, min_resources, provider_of, to_come
from phalanx.controllers.grouping.annotations import workload_annotations
from phalanx.controllers.grouping.core import (
    GROUP_TEMPLATE,
    PARENT_COMPOSITE,
    Grouping,
    GroupingRefused,
    Json,
    Link,
    check_parts,
    check_pods,
    count_in,
    namespace_of,
)
from phalanx.controllers.grouping.parts import (
    API,
    BASIC,
    ONLY_GROUP,
    LeafTemplate,
    TemplateNode,
    composite,
    disruption_of,
    first_workload,
    gang,
    gang_of_groups,
    pod_group,
    workload,
)
from phalanx.controllers.grouping.user_workload import from_templates_of, with_hand_made, workload_above
from phalanx.controllers.workloads.leaderworkerset.revision import revision_data, revision_hash
from phalanx.model.groups import MIN_RESOURCES, REPLACES, TO_COME
from phalanx.model.leaderworkerset import names as n

TEMPLATE = "replica"
NATIVE = Native.name


def asked(lws: Json) -> bool:
    """Return True if the author requests groups. Pods that name a group are not changed."""
    requested = workload_annotations(lws["metadata"].get("annotations"))
    if requested.gang is False or n.annotation(lws, n.OPT_OUT) == "false":
        return False
    if pods_name_group(lws):
        return False
    delegated = bool(n.annotation(lws, GROUP_TEMPLATE))  # its groups use a template of its parent
    return lws["spec"].get("scheduling") is not None or requested.gang is True or delegated


def pods_name_group(lws: Json) -> bool:
    return any(names_group(template) for template in (n.leader_template(lws), n.worker_template(lws)))


def names_group(template: Json) -> bool:
    spec = template.get("spec") or {}
    return spec.get("schedulingGroup") is not None or spec.get("workloadRef") is not None


def leader_first(lws: Json) -> bool:
    return bool(lws["spec"].get("startupPolicy") == "LeaderReady")


def check_size(lws: Json) -> None:
    """Raise Refused if it exceeds the limits of one object."""
    replicas = count_in(lws["spec"], "replicas")
    check_parts("spec.replicas", replicas, "replicas")
    check_pods("the LeaderWorkerSet", replicas * n.size_of(lws))


def group_leader_worker_set(lws: Json, related: Sequence[Json] = ()) -> Grouping:
    """Group all replicas at their current revision, with the same hash as in a cluster."""
    check_size(lws)
    revision = revision_hash(revision_data(lws))
    return grouping(lws, [(index, revision, lws) for index in range(int(lws["spec"].get("replicas", 1)))], related)


def provider_groups(lws: Json) -> Grouping | None:
    """Return the groups for another scheduler's API; None if the provider is native.

    The owner is the leader pod, which has no uid before its creation.
    """
    provider = provider_of(lws)
    if provider.name == NATIVE or not asked(lws):
        return None
    check_size(lws)
    found, revision = Grouping(), revision_hash(revision_data(lws))
    for index in range(int(lws["spec"].get("replicas", 1))):
        owner = {"apiVersion": "v1", "kind": "Pod", "name": n.leader_name(lws, index), "uid": "", "controller": True}
        replica = replica_of(lws, index, revision, owner)
        group = provider.pod_group(replica)
        if group is not None:
            found.groups.append(group)
        for part in ("leader", "worker")[: n.size_of(lws)]:
            pod: Json = {}
            provider.inject_pod_group_metadata(pod, replica, part)
            found.links[f"{index}@{revision}/{part}"] = Link(metadata=pod.get("metadata") or {})
    return found


def grouping(lws: Json, replicas: Iterable[tuple[int, str, Json]], related: Sequence[Json] = ()) -> Grouping:
    """Group these replicas: (index, revision, the LeaderWorkerSet at that revision).

    `related`: Workloads of it or of its parent, and its parent CompositePodGroup.
    """
    if not asked(lws):
        return Grouping()
    check_size(lws)
    _check(lws)
    if n.annotation(lws, API) == "v1alpha1":
        return with_hand_made(lws, _first_version(lws, replicas), related)
    template = _template(lws)
    name = lws["metadata"]["name"]
    found = Grouping(workload=workload(lws, name, [template]))
    ordered = sorted(replicas, key=lambda replica: replica[:2])
    revisions: dict[int, list[str]] = {}
    for index, revision, _ in ordered:
        revisions.setdefault(index, []).append(revision)
    for index, revision, then in ordered:
        before = len(found.groups)
        _add_replica(found, lws, index, revision, then)
        others = [other for other in revisions[index] if other != revision]
        for group in found.groups[before:] if others else ():  # it is rolled; read when the group is created
            group["metadata"].setdefault("annotations", {})[REPLACES] = n.group_name(lws, index, others[-1])
    delegated = n.annotation(lws, GROUP_TEMPLATE)
    if delegated:
        return from_templates_of(workload_above(lws, related), found, only=delegated)
    return with_hand_made(lws, found, related)


def _add_replica(found: Grouping, lws: Json, index: int, revision: str, then: Json) -> None:
    template = _template(then)
    name = n.group_name(lws, index, revision)
    parent = n.annotation(lws, PARENT_COMPOSITE)
    owner_workload = lws["metadata"]["name"]
    labels = {n.NAME: lws["metadata"]["name"], n.GROUP_INDEX: str(index), n.REVISION: revision}
    part = f"{index}@{revision}"
    if isinstance(template, LeafTemplate):
        group = pod_group(lws, name, owner_workload, template, parent=parent, labels=labels)
        if leader_first(lws):
            whole = replica_of(then, index, revision, {})
            group["metadata"].setdefault("annotations", {})[MIN_RESOURCES] = min_resources(whole)
            if n.size_of(then) > 1:
                group["metadata"]["annotations"][TO_COME] = to_come(n.size_of(then), n.worker_template(then))
        found.groups.append(group)
        found.links[part] = Link(pod_group=name, template=template.name, parent=parent)
        return
    found.composites.append(composite(lws, name, owner_workload, template, parent=parent, labels=labels))
    for subgroup, leaf in _subgroups(lws, template):
        leaf_name = f"{name}-{subgroup}"
        found.groups.append(pod_group(lws, leaf_name, owner_workload, leaf, parent=name, labels=labels))
        found.links[f"{part}/{subgroup}"] = Link(pod_group=leaf_name, template=leaf.name, parent=name)


def part_of(pod: Json) -> list[str]:
    """Return the keys of a pod's link, finest first."""
    replica = f"{n.label(pod, n.GROUP_INDEX)}@{n.label(pod, n.REVISION)}"
    subgroup = n.label(pod, n.SUBGROUP_INDEX) or "leader"
    return [f"{replica}/{subgroup}", replica]


def replica_of(lws: Json, index: int, revision: str, owner: Json) -> Replica:
    """Return the input of providers; `lws`: at that revision."""
    size = n.size_of(lws)
    leader, worker = n.leader_template(lws), n.worker_template(lws)
    return Replica(
        name=n.group_name(lws, index, revision),
        namespace=namespace_of(lws),
        owner=owner,
        min_member=1 if leader_first(lws) else size,
        parts=[
            ReplicaPart("leader", 1, leader.get("spec") or {}),
            ReplicaPart("worker", size - 1, worker.get("spec") or {}),
        ],
        labels={n.NAME: lws["metadata"]["name"], n.GROUP_INDEX: str(index), n.REVISION: revision},
        annotations=lws["metadata"].get("annotations") or {},
        priority_class=(leader.get("spec") or {}).get("priorityClassName") or "",
    )


# -- templates -------------------------------------------------------------------------------------------------------


def _template(lws: Json) -> LeafTemplate | TemplateNode:
    wanted: Json = lws["spec"].get("scheduling") or {}
    requested = workload_annotations(lws["metadata"].get("annotations"))
    size = n.size_of(lws)
    policy: Json = wanted.get("schedulingPolicy") or {}
    count = (policy.get("gang") or {}).get("minCount") or requested.min_count or size
    chosen = BASIC if policy.get("basic") is not None else gang(1 if leader_first(lws) else int(count))
    exclusive = n.annotation(lws, n.EXCLUSIVE) or requested.topology
    constraints = wanted.get("schedulingConstraints") or ({"topology": [{"key": exclusive}]} if exclusive else None)
    disruption = disruption_of(chosen, wanted.get("disruptionMode") or requested.mode)
    priority = (n.leader_template(lws).get("spec") or {}).get("priorityClassName") or ""
    claims = wanted.get("resourceClaims") or ()
    inner = subgroup_topology(lws)
    if not inner or leader_first(lws) or "basic" in chosen:
        return LeafTemplate(TEMPLATE, chosen, constraints, disruption, claims, priority)
    sizes = subgroup_sizes(lws)
    leaves = [
        LeafTemplate(
            _leaf_name(count, part == "leader"),
            gang(count),
            None if part == "leader" else {"topology": [{"key": inner}]},
            disruption,
            claims,
            priority,
        )
        for part, count in sizes.items()
    ]
    distinct = list({leaf.name: leaf for leaf in leaves}.values())
    return TemplateNode(TEMPLATE, gang_of_groups(len(sizes)), distinct, constraints, disruption, priority)


def subgroup_topology(lws: Json) -> str:
    if not (lws["spec"]["leaderWorkerTemplate"].get("subGroupPolicy") or {}).get("subGroupSize"):
        return ""
    requested = workload_annotations(lws["metadata"].get("annotations"), "subgroup-")
    return n.annotation(lws, n.SUBGROUP_EXCLUSIVE) or requested.topology


def subgroup_sizes(lws: Json) -> dict[str, int]:
    """Return the pods of each subgroup; "leader" if the leader is in none."""
    policy = lws["spec"]["leaderWorkerTemplate"]["subGroupPolicy"]
    size, part = n.size_of(lws), int(policy["subGroupSize"])
    counts: Counter[str] = Counter()
    excluded = policy.get("subGroupPolicyType") == "LeaderExcluded"
    counts["leader" if excluded else "0"] += 1
    for index in range(1, size):
        counts[str(n.subgroup_index(size, part, index))] += 1
    return dict(counts)


def _subgroups(lws: Json, template: TemplateNode) -> Iterable[tuple[str, LeafTemplate]]:
    leaves = {leaf.name: leaf for leaf in template.children if isinstance(leaf, LeafTemplate)}
    for part, count in subgroup_sizes(lws).items():
        yield part, leaves[_leaf_name(count, part == "leader")]


def _leaf_name(count: int, leader: bool) -> str:
    return "leader" if leader else f"subgroup-of-{count}"


def _first_version(lws: Json, replicas: Iterable[tuple[int, str, Json]]) -> Grouping:
    """Return the KEP-4671 form (API design paper): the Workload has the policy, pods name it and their replica."""
    name = f"w-{lws['metadata']['name']}"
    count = 1 if leader_first(lws) else n.size_of(lws)
    body = first_workload(lws, name, {ONLY_GROUP: gang(count)})
    links = {
        f"{index}@{revision}": Link(workload=name, group=ONLY_GROUP, replica_key=str(index))
        for index, revision, _ in replicas
    }
    return Grouping(workload=body, links=links)


def _check(lws: Json) -> None:
    """Refuse groups that would wait for ever, before anything is created."""
    size = n.size_of(lws)
    wanted: Json = lws["spec"].get("scheduling") or {}
    count = ((wanted.get("schedulingPolicy") or {}).get("gang") or {}).get("minCount")
    requested = workload_annotations(lws["metadata"].get("annotations"))
    for asked_for in (count, requested.min_count):
        if asked_for is not None and int(asked_for) > size:
            raise GroupingRefused(
                f"a gang of {asked_for} pods can never form in replicas of size {size}; lower minCount"
            )
    leader, worker = (
        (template.get("spec") or {}).get("priorityClassName") or ""
        for template in (n.leader_template(lws), n.worker_template(lws))
    )
    if leader != worker:
        raise GroupingRefused(
            f"leader and workers of one group need the same priorityClassName, found {leader!r} and {worker!r}"
        )
    if n.annotation(lws, API) not in ("", "v1alpha1", "v1beta1"):
        raise GroupingRefused(f"annotation {API}: {n.annotation(lws, API)!r} is not one of v1alpha1, v1beta1")
