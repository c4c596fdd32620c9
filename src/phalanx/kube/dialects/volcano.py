"""Volcano: PodGroup of scheduling.volcano.sh, named in an annotation of the pod."""

from __future__ import annotations

from collections.abc import Mapping

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
    priority_class,
    spec_of,
)
from phalanx.kube.dialects.hypernodes import tier_label, tier_name_label
from phalanx.model.objects.groups import CompositePodGroup, PodGroup

GROUP_NAMES = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
TASK = "volcano.sh/task-spec"
_REASONS = {UNSCHEDULABLE: "NotEnoughResources", "WaitingForMembers": "NotEnoughTasks"}


class VolcanoDialect:
    name = "volcano"
    resource = Resource("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup")
    status_paths: tuple[str, ...] = ("status", "")  # its definition has no subresource

    def group_of(self, labels: Mapping[str, str], annotations: Mapping[str, str]) -> tuple[str, str] | None:
        name = next((annotations[key] for key in GROUP_NAMES if annotations.get(key)), "")
        return (name, annotations.get(TASK) or labels.get(TASK) or "") if name else None

    def translate(self, group: ForeignGroup) -> Translation:
        spec, name = spec_of(group), group.metadata.name
        minimum = count(spec, "minMember", 0)
        tasks = _tasks(spec)
        topology, ignored = _topology(spec)
        named = priority_class(spec)
        if spec.get("subGroupPolicy"):
            ignored.append(
                "spec.subGroupPolicy is not supported: use minTaskMember, or a Workload with a composite group"
            )
        if not tasks or sum(tasks.values()) > minimum > 0:
            # As in Volcano: minTaskMember counts only if minMember is at least its sum.
            return Translation([leaf(group, name, minimum, topology=topology)], {"": name}, minimum, ignored, named)
        rest = f"{name}-rest"
        groups: list[PodGroup | CompositePodGroup] = [
            composite(group, name, len(tasks), topology=topology),
            *(leaf(group, f"{name}-{task}", least, parent=name) for task, least in tasks.items()),
            leaf(group, rest, 0),
        ]
        if minimum > sum(tasks.values()):
            ignored.append("spec.minMember above the sum of minTaskMember has no effect: raise minTaskMember instead")
        leaves = {"": rest, **{task: f"{name}-{task}" for task in tasks}}
        return Translation(groups, leaves, sum(tasks.values()), ignored, named)

    def status(self, progress: GroupProgress) -> Json:
        status: Json = {
            "phase": _phase(progress),
            "running": progress.running,
            "succeeded": progress.succeeded,
            "failed": progress.failed,
        }
        scheduled = progress.placed >= max(1, progress.minimum)
        why = progress.reason
        if scheduled or why:
            status["conditions"] = [
                {
                    "type": "Scheduled" if scheduled else "Unschedulable",
                    "status": "True",
                    "reason": "tasks in gang are ready to be scheduled" if scheduled else _REASONS.get(why, why),
                    "message": "pod group is ready" if scheduled else progress.message,
                    "lastTransitionTime": progress.since,
                }
            ]
        return status


def _tasks(spec: Json) -> dict[str, int]:
    tasks = spec.get("minTaskMember")
    if tasks is None:
        return {}
    if not isinstance(tasks, dict) or len(tasks) > MOST_SUBGROUPS:
        raise InvalidGroup(f"spec.minTaskMember: must be a map of at most {MOST_SUBGROUPS} tasks; correct it")
    return {task: least for task in sorted(tasks) if (least := count(tasks, task, 0, "spec.minTaskMember"))}


def _topology(spec: Json) -> tuple[WantedTopology, list[str]]:
    wanted = spec.get("networkTopology")
    if not isinstance(wanted, dict):
        return NOWHERE, []
    tier, by_name = wanted.get("highestTierAllowed"), wanted.get("highestTierName")
    if tier is not None:
        key = tier_label(count(wanted, "highestTierAllowed", 0, "spec.networkTopology"))
    elif by_name and isinstance(by_name, str):
        key = tier_name_label(by_name)
    else:
        return NOWHERE, ["spec.networkTopology has no effect without a tier: set highestTierAllowed or highestTierName"]
    return (WantedTopology(preferred=key) if wanted.get("mode") == "soft" else WantedTopology(key)), []


def _phase(progress: GroupProgress) -> str:
    minimum = max(1, progress.minimum)
    alive = progress.bound + progress.running
    if not alive and not progress.pending and progress.succeeded + progress.failed:
        return "Completed"
    if progress.running + progress.succeeded >= minimum:
        return "Running"
    if progress.running and progress.placed < minimum:
        return "Unknown"
    return "Inqueue" if progress.placed or progress.pending else "Pending"
