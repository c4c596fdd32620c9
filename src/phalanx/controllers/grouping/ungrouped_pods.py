"""Reduce a gang's count by the workload's pods outside the group, created before the API had groups.

Those pods keep running and never join, so a gang that required them would wait for ever. It requires the remaining
pods, and all again when those outside are replaced. Pods that succeeded and are not replaced are not required either,
even if they were deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from phalanx.controllers.grouping.core import Grouping, Json
from phalanx.controllers.runtime.pods import active
from phalanx.model.groups.keys import COMPLETED_IN


class Gang(NamedTuple):
    """The pods that belong into a group."""

    all_pods: int  # pods wanted at the same time
    pods: list[Json]  # existing pods
    gone: int = 0  # pods that succeeded, are not replaced, and were deleted

    def plus(self, all_pods: int, pods: Iterable[Json], gone: int) -> Gang:
        """Return the gang with the pods of another part."""
        return Gang(self.all_pods + all_pods, [*self.pods, *pods], self.gone + gone)


NO_PODS = Gang(0, [])


def without_ungrouped(grouping: Grouping, all_pods: int, pods: Iterable[Json], gone: int = 0) -> Grouping:
    """Reduce the count of a workload with one group."""
    if len(grouping.groups) != 1:
        return grouping
    return each_without_ungrouped(grouping, {grouping.groups[0]["metadata"]["name"]: Gang(all_pods, list(pods), gone)})


def each_without_ungrouped(grouping: Grouping, gangs: Mapping[str, Gang]) -> Grouping:
    """Reduce the counts of several gangs. gangs: by the name of their group."""
    groups = [_without(group, gangs.get(group["metadata"]["name"])) for group in grouping.groups]
    return grouping if groups == grouping.groups else replace(grouping, groups=groups)


def _without(group: Json, known: Gang | None) -> Json:
    gang = group["spec"]["schedulingPolicy"].get("gang")
    if known is None or gang is None:
        return group
    outside = (
        sum(counts_for_gang(pod) and outside_of(pod, group["metadata"]["name"]) for pod in known.pods) + known.gone
    )
    most = max(1, known.all_pods - outside)
    if not outside or int(gang["minCount"]) <= most:
        return group
    policy = {"gang": {**gang, "minCount": most}}
    return {**group, "spec": {**group["spec"], "schedulingPolicy": policy}}


def outside_of(pod: Json, name: str) -> bool:
    return bool(((pod.get("spec") or {}).get("schedulingGroup") or {}).get("podGroupName", "") != name)


def counts_for_gang(pod: Json) -> bool:
    """Return True if the pod is active, or completed and still counts as a member of its gang."""
    return active(pod) or COMPLETED_IN in (pod["metadata"].get("annotations") or {})
