"""JobSet `spec.scheduling` (KEP-969): groups for the whole set, for entries of ReplicatedJobs, or for single Jobs."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.controllers.grouping.core import MAX_TEMPLATES, Grouping, GroupingRefused, Json, Link
from phalanx.controllers.grouping.names import hashed, joined
from phalanx.controllers.grouping.parts import BASIC, LeafTemplate, gang, pod_group, workload
from phalanx.controllers.workloads.jobset.shape import JobSetShape, ReplicatedJobShape, turns

# A template with its PodGroups: (PodGroup name, Jobs whose pods are in it).
Plan = list[tuple[LeafTemplate, list[tuple[str, list[str]]]]]


def by_scheduling(jobset: Json, shape: JobSetShape, scheduling: Json) -> Grouping:
    _check_one_level(jobset, shape, scheduling)
    name = hashed(shape.name, "JobSet", shape.namespace, shape.name)
    plan = _plan(shape, scheduling, name)
    if not plan:
        return Grouping()
    groups, links = [], {}
    for leaf, instances in plan:
        for group_name, jobs in instances:
            groups.append(pod_group(jobset, group_name, name, leaf))
            links.update({job: Link(pod_group=group_name, template=leaf.name) for job in jobs})
    return Grouping(workload=workload(jobset, name, [leaf for leaf, _ in plan]), groups=groups, links=links)


def _check_one_level(jobset: Json, shape: JobSetShape, scheduling: Json) -> None:
    entries = scheduling.get("replicatedJobs") or []
    for item in jobset["spec"].get("replicatedJobs") or ():
        if ((item.get("template") or {}).get("spec") or {}).get("scheduling") is not None:
            raise GroupingRefused(
                f"replicatedJob {item['name']} has scheduling in its Job template and the JobSet has its own; keep one"
            )
    level = ("schedulingPolicy", "schedulingConstraints", "disruptionMode")
    if entries and any(scheduling.get(field) is not None for field in level):
        raise GroupingRefused("spec.scheduling describes the whole JobSet and its replicatedJobs; keep one of the two")
    seen: set[str] = set()
    for entry in entries:
        targets = [shape.part(target) for target in entry.get("targetReplicatedJobs") or ()]
        if not targets:
            raise GroupingRefused("an entry of spec.scheduling.replicatedJobs names no targetReplicatedJobs")
        for part in targets:
            if part.name in seen:
                raise GroupingRefused(
                    f"replicatedJob {part.name} is the target of two entries of spec.scheduling.replicatedJobs"
                )
            seen.add(part.name)
        if entry.get("job") is not None and len(targets) != 1:
            raise GroupingRefused("an entry of spec.scheduling.replicatedJobs with `job` needs exactly one target")
        if len(targets) > 1 and shape.sequenced and not _is_basic(entry):
            _check_turns(jobset, targets)
    if entries and len(seen) != len(shape.parts):
        missing = ", ".join(part.name for part in shape.parts if part.name not in seen)
        raise GroupingRefused(f"spec.scheduling.replicatedJobs must name every replicatedJob; missing: {missing}")


def _check_turns(jobset: Json, targets: Sequence[ReplicatedJobShape]) -> None:
    """Refuse a gang with members that are created only after others run: it would wait for ever."""
    in_order = (jobset["spec"].get("startupPolicy") or {}).get("startupPolicyOrder") == "InOrder"
    waiting = [part.name for part in targets if in_order or {t.name for t in targets} & _upstream(jobset, part.name)]
    if in_order:
        waiting = waiting[1:]
    if waiting:
        raise GroupingRefused(
            f"replicatedJob {waiting[0]} starts after another member of its gang, so the gang could never fill; "
            f"give it an entry of its own in spec.scheduling.replicatedJobs"
        )


def _upstream(jobset: Json, name: str) -> set[str]:
    """Return all direct and indirect dependencies of a ReplicatedJob."""
    direct = {
        item["name"]: [entry["name"] for entry in item.get("dependsOn") or ()]
        for item in jobset["spec"].get("replicatedJobs") or ()
    }
    found: set[str] = set()
    todo = list(direct.get(name, ()))
    while todo:
        one = todo.pop()
        if one not in found:
            found.add(one)
            todo += direct.get(one, ())
    return found


def _is_basic(level: Json) -> bool:
    return (level.get("schedulingPolicy") or {}).get("basic") is not None


def _plan(shape: JobSetShape, scheduling: Json, whole: str) -> Plan:
    entries = scheduling.get("replicatedJobs") or []
    free = [part for part in shape.parts if not part.linked and part.pods]
    if not entries and not _is_basic(scheduling) and not shape.sequenced:
        if not free:
            return []
        leaf = _leaf(whole, scheduling, free, sum(part.pods for part in free), "the JobSet")
        return [(leaf, [(whole, [job for part in free for job in shape.jobs(part)])])]
    plan: Plan = []
    done: set[str] = set()
    share = _jobs_alone(shape, entries) > MAX_TEMPLATES
    for entry in entries:
        targets = [shape.part(target) for target in entry["targetReplicatedJobs"]]
        done.update(part.name for part in targets)
        targets = [part for part in targets if not part.linked and part.pods]
        if not targets:
            continue
        if entry.get("job") is not None:
            plan += _job_by_job(shape, targets[0], entry["job"], share)
            continue
        label = "-".join(entry["targetReplicatedJobs"])
        name = hashed(label, "ReplicatedJobGroup", shape.namespace, f"{shape.name}/{label}")
        leaf = _leaf(name, entry, targets, sum(part.pods for part in targets), f"replicatedJobs {label}")
        plan.append((leaf, [(joined(shape.name, name), [job for part in targets for job in shape.jobs(part)])]))
    left = [part for part in free if part.name not in done]
    staged = shape.sequenced and not _is_basic(scheduling)
    for members in turns(left) if staged else [[part] for part in left]:
        label = "-".join(part.name for part in members)
        kind = "ReplicatedJob" if len(members) == 1 else "ReplicatedJobGroup"
        name = hashed(label, kind, shape.namespace, f"{shape.name}/{label}")
        level = dict(scheduling)
        if staged:
            level["schedulingPolicy"] = {"gang": {}}  # a count for the whole set cannot be divided
        leaf = _leaf(name, level, members, sum(part.pods for part in members), f"replicatedJobs {label}")
        plan.append((leaf, [(joined(shape.name, name), [job for part in members for job in shape.jobs(part)])]))
    return plan


def _jobs_alone(shape: JobSetShape, entries: Sequence[Json]) -> int:
    """Return the number of templates if every Job with its own group has its own template."""
    total = 0
    for entry in entries:
        one = entry.get("job") is not None
        total += shape.part(entry["targetReplicatedJobs"][0]).replicas if one else 1
    return total


def _job_by_job(shape: JobSetShape, part: ReplicatedJobShape, level: Json, share: bool) -> Plan:
    """Return a PodGroup per Job. KEP-969 also has a template per Job; if 8 are too few, they share one."""
    plan: Plan = []
    jobs = shape.jobs(part)
    own = [
        hashed(f"{part.name}-{i}", "Job", shape.namespace, f"{shape.name}/{part.name}/{i}")
        for i in range(part.replicas)
    ]
    where = f"a Job of replicatedJob {part.name}"
    if share:
        name = hashed(f"{part.name}-job", "JobTemplate", shape.namespace, f"{shape.name}/{part.name}")
        instances = [(joined(shape.name, own[i]), [job]) for i, job in enumerate(jobs)]
        return [(_leaf(name, level, [part], part.size, where, exclusive=part.exclusive), instances)]
    for i, job in enumerate(jobs):
        leaf = _leaf(own[i], level, [part], part.size, where, exclusive=part.exclusive)
        plan.append((leaf, [(joined(shape.name, own[i]), [job])]))
    return plan


def _leaf(
    name: str, level: Json, parts: Sequence[ReplicatedJobShape], pods: int, where: str, *, exclusive: str = ""
) -> LeafTemplate:
    classes = sorted({part.priority_class for part in parts})
    if len(classes) > 1:
        raise GroupingRefused(
            f"{where}: all pods of one group need the same priorityClassName, found {', '.join(classes)}"
        )
    policy = level.get("schedulingPolicy") or {}
    if policy.get("basic") is not None:
        chosen = BASIC
    else:
        count = int((policy.get("gang") or {}).get("minCount") or 0)  # 0 means unset, as in the typed field
        if count > pods:
            raise GroupingRefused(
                f"{where} has {pods} pods, and gang.minCount asks for {count}; lower it or leave it out"
            )
        chosen = gang(count or pods)
    constraints = level.get("schedulingConstraints")
    if constraints is None and exclusive:
        constraints = {"topology": [{"key": exclusive}]}
    return LeafTemplate(
        name=name,
        policy=chosen,
        constraints=constraints,
        disruption=level.get("disruptionMode"),
        claims=level.get("resourceClaims") or (),
        priority_class=classes[0],
    )
