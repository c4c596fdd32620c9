"""A gang whose workload has pods outside of it: made while the API had no groups, they run on and never join.

A gang that waits for them would wait for ever. It asks for the rest, and for all again as soon as they are replaced.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from phalanx.controllers.grouping.core import Grouping, Json


def without_outsiders(grouping: Grouping, everybody: int, pods: Iterable[Json]) -> Grouping:
    """everybody: pods that are wanted at the same time; pods: those that are there and have not ended."""
    if len(grouping.groups) != 1 or "gang" not in grouping.groups[0]["spec"]["schedulingPolicy"]:
        return grouping
    group = grouping.groups[0]
    name, gang = group["metadata"]["name"], group["spec"]["schedulingPolicy"]["gang"]
    outside = sum(_group_of(pod) != name for pod in pods)
    most = max(1, everybody - outside)
    if not outside or int(gang["minCount"]) <= most:
        return grouping
    policy = {"gang": {**gang, "minCount": most}}
    return replace(grouping, groups=[{**group, "spec": {**group["spec"], "schedulingPolicy": policy}}])


def _group_of(pod: Json) -> str:
    return str(((pod.get("spec") or {}).get("schedulingGroup") or {}).get("podGroupName") or "")
