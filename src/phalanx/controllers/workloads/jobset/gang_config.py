"""JobSet gangs as KEP-1068 writes them: `gangConfig`, one KEP-4671 Workload, pods with `workloadRef`.

Its replicas of a gang become replica keys: the index of the Job, counted from 0. A user's Workload with the expected
name is used and never changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phalanx.controllers.grouping.core import ADOPTED, MAX_TEMPLATES, Grouping, GroupingRefused, Json, Link
from phalanx.controllers.grouping.names import fitting
from phalanx.controllers.grouping.parts import first_workload, gang
from phalanx.controllers.grouping.user_workload import lower_count
from phalanx.controllers.workloads.jobset.shape import JobSetShape, turns

OFF, GANG, REPLICATED = "Off", "Gang", "ReplicatedGang"


def _mode(holder: Json) -> str:
    return str((holder.get("gangConfig") or {}).get("gangMode") or OFF)


def uses_gang_config(jobset: Json) -> bool:
    spec = jobset["spec"]
    return _mode(spec) != OFF or any(_mode(item) != OFF for item in spec.get("replicatedJobs") or ())


def workload_name(jobset: str) -> str:
    return f"w-{jobset}"[:253]


def by_gang_config(jobset: Json, shape: JobSetShape, related: Sequence[Json]) -> Grouping:
    links, counts = _groups(jobset, shape)
    if not counts:
        return Grouping()
    notes = _mixed_priorities(shape, links)
    if len(counts) > MAX_TEMPLATES:
        raise GroupingRefused(
            f"gangConfig asks for {len(counts)} groups and a Workload holds {MAX_TEMPLATES}; use one gang for the "
            f"whole JobSet (spec.gangConfig), or spec.scheduling.replicatedJobs with several targets in one entry",
            "TooManyGroups",
        )
    name = workload_name(shape.name)
    by_hand = next((found for found in related if _is_by_hand(found, name, jobset)), None)
    if by_hand is not None:
        check_fit(by_hand, {link.group: counts[link.group] for link in links.values()})
        return Grouping(links=links, notes=notes)
    workload = first_workload(jobset, name, {group: gang(count) for group, count in counts.items()})
    return Grouping(workload=workload, links=links, notes=notes)


def _mixed_priorities(shape: JobSetShape, links: Mapping[str, Link]) -> list[tuple[str, str]]:
    """Return (reason, message) per gang with mixed priorities. KEP-4671: it has the lowest priority of its pods."""
    classes: dict[str, dict[str, str]] = {}  # group -> replicated job -> class
    for part in shape.parts:
        for job in shape.jobs(part):
            if job in links:
                classes.setdefault(links[job].group, {})[part.name] = part.priority_class or "none"
    found = []
    for group, named in classes.items():
        if len(set(named.values())) > 1:
            shown = ", ".join(f"{part} ({name})" for part, name in named.items())
            text = (
                f"the pods of gang {group} have different priorityClassNames: {shown}; the gang has the lowest of "
                f"them, so give all the same"
            )
            found.append(("MixedPriorities", text))
    return found


def _groups(jobset: Json, shape: JobSetShape) -> tuple[dict[str, Link], dict[str, int]]:
    """Return links by Job, and the size of every group by name."""
    spec = jobset["spec"]
    whole = _mode(spec)
    modes = {item["name"]: _mode(item) for item in spec.get("replicatedJobs") or ()}
    if whole not in (OFF, GANG):
        raise GroupingRefused(f"spec.gangConfig.gangMode {whole!r} is not one of Gang, Off")
    for name, mode in modes.items():
        if mode not in (OFF, GANG, REPLICATED):
            raise GroupingRefused(f"gangMode {mode!r} of replicatedJob {name} is not one of Gang, Off, ReplicatedGang")
        if mode != OFF and whole != OFF:
            raise GroupingRefused(
                f"gangMode is set on the JobSet and on replicatedJob {name}; keep one of them and set the other to Off"
            )
    links: dict[str, Link] = {}
    counts: dict[str, int] = {}
    workload = workload_name(shape.name)
    free = [part for part in shape.parts if not part.linked and part.pods]
    # Parts that start one after another cannot wait for each other: those that start together are a gang.
    labels = {part.name: "-".join(each.name for each in turn) for turn in turns(free) for part in turn}
    for part in free:
        mode = whole if whole != OFF else modes[part.name]
        if mode == OFF:
            continue
        own = part.name if whole == OFF else labels[part.name] if shape.sequenced else shape.name
        group = fitting(f"pg-{own}")
        counts[group] = counts.get(group, 0) + (part.size if mode == REPLICATED else part.pods)
        for index, job in enumerate(shape.jobs(part)):
            key = str(index) if mode == REPLICATED else ""
            links[job] = Link(workload=workload, group=group, replica_key=key)
    return links, counts


def _is_by_hand(workload: Json, name: str, jobset: Json) -> bool:
    meta = workload["metadata"]
    if meta["name"] != name:
        return False
    owner = next((ref for ref in meta.get("ownerReferences") or () if ref.get("controller")), None)
    if owner is None:
        return True
    # Adopted earlier: it is deleted with its owner, and its author may still edit it.
    return bool(
        owner.get("uid") == jobset["metadata"].get("uid") and (meta.get("annotations") or {}).get(ADOPTED) == "true"
    )


def check_links(shape: JobSetShape, workloads: Sequence[Json]) -> None:
    """Check pod templates that name a group of a Workload themselves."""
    counts: dict[str, dict[str, int]] = {}
    for part in shape.parts:
        named = part.pod_spec.get("workloadRef")
        if named is not None and not named.get("podGroupReplicaKey"):
            groups = counts.setdefault(named["name"], {})
            groups[named["podGroup"]] = groups.get(named["podGroup"], 0) + part.pods
    for workload in workloads:
        if workload["metadata"]["name"] in counts:
            check_fit(workload, counts[workload["metadata"]["name"]])


def check_fit(workload: Json, counts: dict[str, int]) -> None:
    """Check that a user's Workload has the groups that pods name, with minimums that can be met."""
    name = workload["metadata"]["name"]
    groups = {t["name"]: t.get("schedulingPolicy") or {} for t in workload["spec"].get("podGroupTemplates") or ()}
    groups |= {g["name"]: g.get("policy") or {} for g in workload["spec"].get("podGroups") or ()}
    for group, pods in counts.items():
        if group not in groups:
            raise GroupingRefused(
                f"Workload {name} has no group {group!r}, and none can be added: delete the Workload to have it made "
                "for you",
                "WorkloadDoesNotFit",
            )
        wanted = int((groups[group].get("gang") or {}).get("minCount") or 0)
        if wanted > pods:
            raise GroupingRefused(
                f"group {group!r} of Workload {name} wants {wanted} pods and will only ever have {pods}; "
                f"{lower_count(workload, 'minCount')}",
                "WorkloadDoesNotFit",
            )
