"""Annotations by which a workload's author requests groups, for kinds without fields.

    scheduling.phalanx.dev/gang: "true" | "false"     all pods of the workload start together, or not
    scheduling.phalanx.dev/topology: KEY              they share one domain of this node label
    scheduling.phalanx.dev/disruption: all | single   they are preempted together, or one by one
    scheduling.phalanx.dev/min-count: "N"             as many as must start together (default: all of them)
    scheduling.phalanx.dev/min-groups: "N"            the same for groups of groups

A level between two objects (a ReplicatedJob, between JobSet and Job) has separate keys with a prefix.
"""

from __future__ import annotations

import msgspec

from phalanx.base.well_known import PHALANX_API
from phalanx.controllers.grouping.core import GroupingRefused, Json
from phalanx.model.annotation_values import MAX_INT32, BadValue, shortened, whole_number

GANG = f"{PHALANX_API}/gang"


class WorkloadAnnotations(msgspec.Struct, frozen=True):
    gang: bool | None = None
    topology: str = ""
    disruption: str = ""
    min_count: int | None = None
    min_groups: int | None = None

    @property
    def constraints(self) -> Json | None:
        return {"topology": [{"key": self.topology}]} if self.topology else None

    @property
    def mode(self) -> Json | None:
        return {self.disruption: {}} if self.disruption else None

    def __bool__(self) -> bool:
        return self != WorkloadAnnotations()


def workload_annotations(annotations: Json | None, prefix: str = "") -> WorkloadAnnotations:
    """Read `scheduling.phalanx.dev/<prefix><request>`. Raises Refused for invalid values."""
    found = annotations or {}

    def value(requested: str) -> str:
        return str(found.get(f"{PHALANX_API}/{prefix}{requested}") or "").strip()

    def choice(requested: str, *allowed: str) -> str:
        text = value(requested)
        if text and text not in allowed:
            raise GroupingRefused(
                f"annotation {PHALANX_API}/{prefix}{requested}: {shortened(text)!r} is not one of {', '.join(allowed)}"
            )
        return text

    def count(requested: str) -> int | None:
        text = value(requested)
        if not text:
            return None
        try:
            return whole_number(text, 1, MAX_INT32)
        except BadValue as problem:
            raise GroupingRefused(f"annotation {PHALANX_API}/{prefix}{requested}: {problem}") from None

    asked = choice("gang", "true", "false")
    return WorkloadAnnotations(
        gang=None if not asked else asked == "true",
        topology=value("topology"),
        disruption=choice("disruption", "all", "single"),
        min_count=count("min-count"),
        min_groups=count("min-groups"),
    )
