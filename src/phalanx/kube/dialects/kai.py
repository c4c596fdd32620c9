"""KAI Scheduler: PodGroup of scheduling.run.ai with subgroups, named in an annotation of the pod."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.base.client import Resource
from phalanx.base.well_known import UNSCHEDULABLE
from phalanx.kube.dialects.contract import (
    MOST_SUBGROUPS,
    NOWHERE,
    ForeignGroup,
    GroupProgress,
    InvalidGroup,
    Json,
    Translation,
    WantedTopology,
    composite,
    count,
    leaf,
    spec_of,
)
from phalanx.model.objects.groups import CompositePodGroup, PodGroup

GROUP_NAME = "pod-group-name"
SUBGROUP = "kai.scheduler/subgroup-name"


class KaiDialect:
    name = "kai"
    resource = Resource("scheduling.run.ai", "v2alpha2", "podgroups", "PodGroup")
    status_paths: tuple[str, ...] = ("status",)

    def group_of(self, labels: Mapping[str, str], annotations: Mapping[str, str]) -> tuple[str, str] | None:
        name = annotations.get(GROUP_NAME)
        return (name, labels.get(SUBGROUP, "")) if name else None

    def translate(self, group: ForeignGroup) -> Translation:
        spec, name = spec_of(group), group.metadata.name
        minimum = count(spec, "minMember", 0)
        ignored: list[str] = []
        topology = _topology(spec, "spec")
        if spec.get("preemptibility") == "non-preemptible":
            ignored.append("spec.preemptibility has no effect: give the pods a priority that no other workload exceeds")
        subgroups = _subgroups(spec)
        if not subgroups:
            return Translation([leaf(group, name, minimum, topology=topology)], {"": name}, minimum, ignored)
        children: dict[str, list[str]] = {}
        for sub, fields in subgroups.items():
            children.setdefault(fields.get("parent") or "", []).append(sub)
        rest = f"{name}-rest"
        groups: list[PodGroup | CompositePodGroup] = [
            composite(group, name, len(children.get("", ())), topology=topology)
        ]
        leaves, total = {"": rest}, 0
        todo = [(sub, name) for sub in children.get("", ())]
        while todo:
            sub, parent = todo.pop(0)
            fields, made = subgroups[sub], f"{name}-{sub}"
            key = _topology(fields, f"spec.subGroups[{sub}]")
            if below := children.get(sub):
                groups.append(composite(group, made, len(below), parent=parent, topology=key))
                todo += [(child, made) for child in below]
            else:
                least = count(fields, "minMember", 1, f"spec.subGroups[{sub}]")
                groups.append(leaf(group, made, least, parent=parent, topology=key))
                leaves[sub] = made
                total += least
        if len(groups) <= len(subgroups):
            raise InvalidGroup("spec.subGroups: a parent is its own descendant; remove the cycle")
        return Translation([*groups, leaf(group, rest, 0)], leaves, total, ignored)

    def status(self, progress: GroupProgress) -> Json:
        status: Json = {
            "phase": _phase(progress),
            "running": progress.running,
            "succeeded": progress.succeeded,
            "failed": progress.failed,
            "pending": progress.pending,
            "schedulingConditions": [],
        }
        if progress.reason and progress.placed < max(1, progress.minimum):
            status["schedulingConditions"] = [
                {
                    "type": "UnschedulableOnNodePool",
                    "nodePool": "default",
                    "status": "True",
                    "reason": UNSCHEDULABLE,
                    "message": progress.message,
                    "lastTransitionTime": progress.since,
                }
            ]
        return status


def _subgroups(spec: Json) -> dict[str, Json]:
    listed: Any = spec.get("subGroups") or []
    if not isinstance(listed, list) or len(listed) > MOST_SUBGROUPS:
        raise InvalidGroup(f"spec.subGroups: must be a list of at most {MOST_SUBGROUPS}; correct it")
    found: dict[str, Json] = {}
    for item in listed:
        name = item.get("name") if isinstance(item, dict) else None
        if not isinstance(name, str) or not name:
            raise InvalidGroup("spec.subGroups: every subgroup needs a name")
        if name in found:
            raise InvalidGroup(f"spec.subGroups: {name} occurs twice; rename one")
        found[name] = item
    for name, item in found.items():
        if item.get("parent") and item["parent"] not in found:
            raise InvalidGroup(f"spec.subGroups[{name}].parent: {str(item['parent'])[:63]} does not exist; correct it")
    return found


def _topology(fields: Json, where: str) -> WantedTopology:
    wanted = fields.get("topologyConstraint")
    if not isinstance(wanted, dict):
        return NOWHERE
    keys = [wanted.get(field) or "" for field in ("requiredTopologyLevel", "preferredTopologyLevel")]
    if not all(isinstance(key, str) for key in keys):
        raise InvalidGroup(f"{where}.topologyConstraint: a level must be the key of a node label; correct it")
    return WantedTopology(*keys)


def _phase(progress: GroupProgress) -> str:
    minimum = max(1, progress.minimum)
    if not progress.pending and not progress.bound and not progress.running and progress.succeeded + progress.failed:
        return "Failed" if progress.failed else "Succeeded"
    return "Running" if progress.running + progress.succeeded >= minimum else "Pending"
