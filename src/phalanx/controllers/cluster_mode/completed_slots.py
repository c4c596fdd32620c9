"""Lower a gang's minCount by the pods that have completed and will not be replaced.

The last wave of a Job may be smaller than the others (parallelism 4, completions 6), and a pod that is recreated after
others of its gang succeeded has fewer running peers. Schedulers count running pods, so a gang that still required all
of them would keep the remaining pods pending for ever. A local cluster's Job controller records this on the pods; a
real cluster's does not, so the Jobs are read here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from phalanx.base.resources import JOBS
from phalanx.controllers.grouping.core import Grouping, Json
from phalanx.controllers.runtime.cache import Cache
from phalanx.controllers.runtime.ownership import index_by_controller
from phalanx.controllers.workloads.job.grouping import vacant


class CompletedSlots:
    def __init__(self, followed: Mapping[str, Cache]) -> None:
        self._jobs = followed[JOBS.kind]
        self._jobs.index("of", index_by_controller)

    def _of(self, owner: Json) -> dict[str, int]:
        """Return completed slots by name of the Jobs that create the workload's pods; one may be the workload
        itself."""
        if owner["kind"] == JOBS.kind:
            return {owner["metadata"]["name"]: vacant(owner)}
        return {job["metadata"]["name"]: vacant(job) for job in self._jobs.by_index("of", owner["metadata"]["uid"])}

    def shown(self, owner: Json) -> list[str]:
        """Return a value that changes with the number of pods that its groups require."""
        return [f"{name} {fewer}" for name, fewer in sorted(self._of(owner).items()) if fewer]

    def without_those(self, owner: Json, found: Grouping, jobs: Mapping[str, str]) -> Grouping:
        """Return the groups with minimums reduced to the remaining pods. jobs: part -> name of its Job."""
        fewer, by_group = self._of(owner), dict[str, int]()
        for part, job in jobs.items():
            link = found.links.get(part)
            if link is not None and fewer.get(job):
                by_group[link.pod_group] = by_group.get(link.pod_group, 0) + fewer[job]
        if not by_group:
            return found
        groups = [_reduced(group, by_group.get(group["metadata"]["name"], 0)) for group in found.groups]
        return replace(found, groups=groups)


def minimum_of(group: Json) -> int:
    """Return a group's minCount; 0 if it is not a gang."""
    return int((group["spec"]["schedulingPolicy"].get("gang") or {}).get("minCount") or 0)


def without_pods_elsewhere(found: Grouping, size: int, groups_of_pods: Sequence[str]) -> Grouping:
    """Return the group of a set with a minimum that pods outside of it, in the group of a predecessor, do not count
    for."""
    if len(found.groups) != 1:
        return found
    (group,) = found.groups
    outside = sum(name not in ("", group["metadata"]["name"]) for name in groups_of_pods)
    return replace(found, groups=[_reduced(group, max(0, minimum_of(group) - (size - outside)) if outside else 0)])


def _reduced(group: Json, fewer: int) -> Json:
    if not fewer or not minimum_of(group):
        return group
    policy = {"gang": {**group["spec"]["schedulingPolicy"]["gang"], "minCount": max(1, minimum_of(group) - fewer)}}
    return {**group, "spec": {**group["spec"], "schedulingPolicy": policy}}
