"""JobSet as a tree of groups (KEP-6012): the set, its ReplicatedJobs, their Jobs.

Asked for with the annotation `scheduling.phalanx.dev/group-tree: Job` (PodGroups are Jobs) or `ReplicatedJob`
(PodGroups are ReplicatedJobs). Each level is a gang unless the annotations say otherwise; see
`grouping/annotations.py`. They are read from

* the JobSet: the whole set;
* a Job template, with the prefix `replicated-job-`: all Jobs of the ReplicatedJob together;
* a Job template: each of its Jobs.
"""

from __future__ import annotations

from phalanx.controllers.grouping.annotations import DOMAIN, WorkloadAnnotations, workload_annotations
from phalanx.controllers.grouping.core import Grouping, Json, Link, Refused
from phalanx.controllers.grouping.names import fitting, hashed
from phalanx.controllers.grouping.parts import (
    BASIC,
    Leaf,
    Node,
    composite,
    disruption_of,
    gang,
    gang_of_groups,
    pod_group,
    workload,
)
from phalanx.controllers.workloads.jobset.shape import Part, Shape

TREE = f"{DOMAIN}/group-tree"
BY_JOB, BY_REPLICATED_JOB = "Job", "ReplicatedJob"
MIDDLE = "replicated-job-"
ROOT = "jobset-root"

Names = dict[tuple[str, str], str]  # (level, ReplicatedJob) -> name of the template


def by_tree(jobset: Json, shape: Shape) -> Grouping:
    leaves = jobset["metadata"]["annotations"][TREE]
    if leaves not in (BY_JOB, BY_REPLICATED_JOB):
        raise Refused(f"annotation {TREE}: {leaves!r} is not one of {BY_JOB}, {BY_REPLICATED_JOB}")
    parts = [part for part in shape.parts if part.pods and not part.linked]
    if not parts:
        return Grouping()
    top = workload_annotations(jobset["metadata"].get("annotations"))
    policy = _group_policy(top, len(parts), "the JobSet", basic=shape.sequenced)
    mode = top.disruption or ("" if any(map(_one_by_one, parts)) else _mode(policy))
    names = _template_names(shape, parts, leaves)
    children: list[Node | Leaf] = []
    for part in parts:
        if leaves == BY_JOB:
            children.append(_part_node(part, names, mode))
        else:
            wish = workload_annotations(part.annotations, MIDDLE)
            children.append(_leaf(names["ReplicatedJob", part.name], part, part.pods, wish, mode))
    root = Node(
        names["JobSet", ""],
        policy,
        children,
        top.constraints,
        {mode: {}} if mode else None,
        parts[0].priority_class,
    )
    return _objects(jobset, shape, parts, root)


def _objects(jobset: Json, shape: Shape, parts: list[Part], root: Node) -> Grouping:
    name = hashed(shape.name, "JobSet", shape.namespace, shape.name)
    result = Grouping(workload=workload(jobset, name, [root]))
    top = shape.name
    result.composites.append(composite(jobset, top, name, root))
    for part, child in zip(parts, root.children, strict=True):
        own = fitting(f"{shape.name}-{part.name}")
        if isinstance(child, Leaf):
            result.groups.append(pod_group(jobset, own, name, child, parent=top))
            link = Link(pod_group=own, template=child.name, parent=top)
            result.links.update(dict.fromkeys(shape.jobs(part), link))
            continue
        result.composites.append(composite(jobset, own, name, child, parent=top))
        (leaf,) = child.children
        assert isinstance(leaf, Leaf)
        for job in shape.jobs(part):
            result.groups.append(pod_group(jobset, job, name, leaf, parent=own))
            result.links[job] = Link(pod_group=job, template=leaf.name, parent=own)
    return result


def _part_node(part: Part, names: Names, above: str) -> Node:
    wish = workload_annotations(part.annotations, MIDDLE)
    policy = _group_policy(wish, part.replicas, f"replicatedJob {part.name}")
    disruption = _disruption(part, wish, policy, above)
    leaf = _leaf(
        names["Job", part.name], part, part.size, workload_annotations(part.annotations), disruption, part.exclusive
    )
    return Node(
        names["ReplicatedJob", part.name],
        policy,
        [leaf],
        wish.constraints,
        {disruption: {}} if disruption else None,
        part.priority_class,
    )


def _leaf(name: str, part: Part, pods: int, wish: WorkloadAnnotations, above: str, exclusive: str = "") -> Leaf:
    policy = BASIC if wish.gang is False else gang(wish.min_count or pods)
    disruption = _disruption(part, wish, policy, above)
    if wish.min_count is not None and wish.min_count > pods:
        raise Refused(f"replicatedJob {part.name}: min-count {wish.min_count} is more than its {pods} pods")
    constraints = wish.constraints
    if constraints is None and exclusive:
        constraints = {"topology": [{"key": exclusive}]}
    return Leaf(
        name,
        policy,
        constraints,
        {disruption: {}} if disruption else None,
        (),
        part.priority_class,
    )


def _mode(policy: Json) -> str:
    return next(iter(disruption_of(policy, None) or {}), "")


def _one_by_one(part: Part) -> bool:
    """Return True if its author wants its pods evicted one by one, so that no group above is evicted as a whole."""
    return any(workload_annotations(part.annotations, prefix).disruption == "single" for prefix in ("", MIDDLE))


def _disruption(part: Part, wish: WorkloadAnnotations, policy: Json, above: str) -> str:
    """Return the disruptionMode. KEP-6012: children of a group that is disrupted as a whole are, too."""
    if above == "all" and wish.disruption not in ("", "all"):
        raise Refused(f"replicatedJob {part.name}: what contains it is disrupted as one, so it must be as well")
    if above == "all":
        return "all"
    return wish.disruption or ("" if _one_by_one(part) else _mode(policy))


def _group_policy(wish: WorkloadAnnotations, groups: int, where: str, *, basic: bool = False) -> Json:
    if basic or wish.gang is False:
        return BASIC
    if wish.min_groups is not None and wish.min_groups > groups:
        raise Refused(f"{where}: min-groups {wish.min_groups} is more than its {groups} groups")
    return gang_of_groups(wish.min_groups or groups)


def _template_names(shape: Shape, parts: list[Part], leaves: str) -> Names:
    """Return plain names where they are unique over the tree, hashed ones otherwise."""
    wanted = {("JobSet", ""): ROOT} | {("ReplicatedJob", part.name): part.name for part in parts}
    if leaves == BY_JOB:
        wanted |= {("Job", part.name): f"{part.name}-job" for part in parts}
    if len(set(wanted.values())) == len(wanted):
        return {key: fitting(name) for key, name in wanted.items()}
    return {key: hashed(name, key[0], shape.namespace, f"{shape.name}/{key[1]}") for key, name in wanted.items()}
