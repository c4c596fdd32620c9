"""JobSet as a tree of groups (KEP-6012): the set, its ReplicatedJobs, their Jobs.

Requested by the annotation `scheduling.phalanx.dev/group-tree: Job` (PodGroups are Jobs) or `ReplicatedJob`
(PodGroups are ReplicatedJobs). Each level is a gang unless annotations change that; see `grouping/annotations.py`.
Annotations are read from

* the JobSet: the whole set;
* a Job template, with the prefix `replicated-job-`: all Jobs of the ReplicatedJob together;
* a Job template: each of its Jobs.

Where ReplicatedJobs start one after another, the root is basic, and those that start together are below one gang.
"""

from __future__ import annotations

from phalanx.base.well_known import PHALANX_API
from phalanx.controllers.grouping.annotations import WorkloadAnnotations, workload_annotations
from phalanx.controllers.grouping.core import Grouping, GroupingRefused, Json, Link
from phalanx.controllers.grouping.names import fitting, hashed, joined
from phalanx.controllers.grouping.parts import (
    BASIC,
    LeafTemplate,
    TemplateNode,
    composite,
    disruption_of,
    gang,
    gang_of_groups,
    pod_group,
    workload,
)
from phalanx.controllers.workloads.jobset.shape import NOT_IN_SEQUENCE, JobSetShape, ReplicatedJobShape, turns

TREE = f"{PHALANX_API}/group-tree"
BY_JOB, BY_REPLICATED_JOB = "Job", "ReplicatedJob"
MIDDLE = "replicated-job-"
ROOT = "jobset-root"

Names = dict[tuple[str, str], str]  # (level, ReplicatedJob) -> name of the template


def by_tree(jobset: Json, shape: JobSetShape) -> Grouping:
    leaves = jobset["metadata"]["annotations"][TREE]
    if leaves not in (BY_JOB, BY_REPLICATED_JOB):
        raise GroupingRefused(f"annotation {TREE}: {leaves!r} is not one of {BY_JOB}, {BY_REPLICATED_JOB}")
    parts = [part for part in shape.parts if part.pods and not part.linked]
    if not parts:
        return Grouping()
    top = workload_annotations(jobset["metadata"].get("annotations"))
    if shape.sequenced and top.min_groups is not None:
        raise GroupingRefused(f"the JobSet: {PHALANX_API}/min-groups {NOT_IN_SEQUENCE}")
    policy = _group_policy(top, len(parts), "the JobSet", basic=shape.sequenced)
    mode = top.disruption or ("" if any(map(_one_by_one, parts)) else _mode(policy))
    names = _template_names(shape, parts, leaves)
    stages = turns(parts) if shape.sequenced and top.gang is not False else [[part] for part in parts]
    children: list[TemplateNode | LeafTemplate] = []
    for members in stages:
        if len(members) == 1:
            children.append(_node(members[0], names, mode))
        else:
            children.append(_turn(shape, members, top, names))
    root = TemplateNode(
        names["JobSet", ""],
        policy,
        children,
        top.constraints,
        {mode: {}} if mode else None,
        parts[0].priority_class,
    )
    return _objects(jobset, shape, stages, root)


def _objects(jobset: Json, shape: JobSetShape, stages: list[list[ReplicatedJobShape]], root: TemplateNode) -> Grouping:
    name = hashed(shape.name, "JobSet", shape.namespace, shape.name)
    result = Grouping(workload=workload(jobset, name, [root]), composites=[composite(jobset, shape.name, name, root)])
    for members, child in zip(stages, root.children, strict=True):
        if len(members) == 1:
            _add_part(result, jobset, shape, members[0], child, shape.name)
            continue
        assert isinstance(child, TemplateNode)
        turn = joined(shape.name, child.name)
        result.composites.append(composite(jobset, turn, name, child, parent=shape.name))
        for part, node in zip(members, child.children, strict=True):
            _add_part(result, jobset, shape, part, node, turn)
    return result


def _add_part(
    result: Grouping,
    jobset: Json,
    shape: JobSetShape,
    part: ReplicatedJobShape,
    node: TemplateNode | LeafTemplate,
    parent: str,
) -> None:
    """Add the groups of one ReplicatedJob."""
    name = hashed(shape.name, "JobSet", shape.namespace, shape.name)
    own = fitting(f"{shape.name}-{part.name}")
    if isinstance(node, LeafTemplate):
        result.groups.append(pod_group(jobset, own, name, node, parent=parent))
        link = Link(pod_group=own, template=node.name, parent=parent)
        result.links.update(dict.fromkeys(shape.jobs(part), link))
        return
    result.composites.append(composite(jobset, own, name, node, parent=parent))
    (leaf,) = node.children
    assert isinstance(leaf, LeafTemplate)
    for job in shape.jobs(part):
        result.groups.append(pod_group(jobset, job, name, leaf, parent=own))
        result.links[job] = Link(pod_group=job, template=leaf.name, parent=own)


def _turn(
    shape: JobSetShape, members: list[ReplicatedJobShape], top: WorkloadAnnotations, names: Names
) -> TemplateNode:
    """Return the gang of ReplicatedJobs that start together in a set whose parts start one after another."""
    label = "-".join(part.name for part in members)
    policy = gang_of_groups(len(members))
    mode = top.disruption or ("" if any(map(_one_by_one, members)) else _mode(policy))
    return TemplateNode(
        hashed(label, "ReplicatedJobGroup", shape.namespace, f"{shape.name}/{label}"),
        policy,
        [_node(part, names, mode) for part in members],
        None,
        {mode: {}} if mode else None,
        members[0].priority_class,
    )


def _node(part: ReplicatedJobShape, names: Names, above: str) -> TemplateNode | LeafTemplate:
    if ("Job", part.name) in names:
        return _part_node(part, names, above)
    requested = workload_annotations(part.annotations, MIDDLE)
    return _leaf(names["ReplicatedJob", part.name], part, part.pods, requested, above)


def _part_node(part: ReplicatedJobShape, names: Names, above: str) -> TemplateNode:
    requested = workload_annotations(part.annotations, MIDDLE)
    policy = _group_policy(requested, part.replicas, f"replicatedJob {part.name}")
    disruption = _disruption(part, requested, policy, above)
    leaf = _leaf(
        names["Job", part.name], part, part.size, workload_annotations(part.annotations), disruption, part.exclusive
    )
    return TemplateNode(
        names["ReplicatedJob", part.name],
        policy,
        [leaf],
        requested.constraints,
        {disruption: {}} if disruption else None,
        part.priority_class,
    )


def _leaf(
    name: str, part: ReplicatedJobShape, pods: int, requested: WorkloadAnnotations, above: str, exclusive: str = ""
) -> LeafTemplate:
    policy = BASIC if requested.gang is False else gang(requested.min_count or pods)
    disruption = _disruption(part, requested, policy, above)
    if requested.min_count is not None and requested.min_count > pods:
        raise GroupingRefused(
            f"replicatedJob {part.name}: min-count {requested.min_count} is more than its {pods} pods"
        )
    constraints = requested.constraints
    if constraints is None and exclusive:
        constraints = {"topology": [{"key": exclusive}]}
    return LeafTemplate(
        name,
        policy,
        constraints,
        {disruption: {}} if disruption else None,
        (),
        part.priority_class,
    )


def _mode(policy: Json) -> str:
    return next(iter(disruption_of(policy, None) or {}), "")


def _one_by_one(part: ReplicatedJobShape) -> bool:
    """Return True if its pods are evicted one by one, so that no group above can be evicted as a whole."""
    return any(workload_annotations(part.annotations, prefix).disruption == "single" for prefix in ("", MIDDLE))


def _disruption(part: ReplicatedJobShape, requested: WorkloadAnnotations, policy: Json, above: str) -> str:
    """Return the disruptionMode. KEP-6012: children of a group disrupted as a whole are too."""
    if above == "all" and requested.disruption not in ("", "all"):
        raise GroupingRefused(f"replicatedJob {part.name}: what contains it is disrupted as one, so it must be as well")
    if above == "all":
        return "all"
    return requested.disruption or ("" if _one_by_one(part) else _mode(policy))


def _group_policy(requested: WorkloadAnnotations, groups: int, where: str, *, basic: bool = False) -> Json:
    if basic or requested.gang is False:
        return BASIC
    if requested.min_groups is not None and requested.min_groups > groups:
        raise GroupingRefused(f"{where}: min-groups {requested.min_groups} is more than its {groups} groups")
    return gang_of_groups(requested.min_groups or groups)


def _template_names(shape: JobSetShape, parts: list[ReplicatedJobShape], leaves: str) -> Names:
    """Return plain names if they are unique in the tree, else hashed ones."""
    wanted = {("JobSet", ""): ROOT} | {("ReplicatedJob", part.name): part.name for part in parts}
    if leaves == BY_JOB:
        wanted |= {("Job", part.name): f"{part.name}-job" for part in parts}
    if len(set(wanted.values())) == len(wanted):
        return {key: fitting(name) for key, name in wanted.items()}
    return {key: hashed(name, key[0], shape.namespace, f"{shape.name}/{key[1]}") for key, name in wanted.items()}
