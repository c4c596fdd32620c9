"""The numbers of a JobSet for grouping: Jobs, pods per Job, and start order."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from phalanx.controllers.grouping.core import GroupingRefused, Json, check_parts, check_pods, namespace_of
from phalanx.controllers.workloads.job.grouping import size_of
from phalanx.model.annotation_values import MAX_INT32

EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
NOT_IN_SEQUENCE = "may not be set when replicatedJobs start one after another"


class ReplicatedJobShape(msgspec.Struct, frozen=True):
    """One ReplicatedJob."""

    name: str
    replicas: int
    size: int  # pods of one Job that run together
    priority_class: str
    exclusive: str  # topology key of a domain for each Job alone
    annotations: Json  # of the Job template
    pod_spec: Json
    turn: tuple[str, ...]  # its dependencies; parts with equal dependencies start together

    @property
    def pods(self) -> int:
        return min(self.replicas * self.size, MAX_INT32)

    @property
    def names_workload(self) -> bool:
        return self.pod_spec.get("workloadRef") is not None

    @property
    def linked(self) -> bool:
        """Return True if the author assigned the pods to a group."""
        return self.pod_spec.get("schedulingGroup") is not None or self.pod_spec.get("workloadRef") is not None


class JobSetShape(msgspec.Struct, frozen=True):
    name: str
    namespace: str
    parts: tuple[ReplicatedJobShape, ...]
    sequenced: bool  # ReplicatedJobs start in order, so that one gang cannot contain them all

    def part(self, name: str) -> ReplicatedJobShape:
        for part in self.parts:
            if part.name == name:
                return part
        known = ", ".join(part.name for part in self.parts)
        raise GroupingRefused(f"there is no replicatedJob {name!r}; there are {known or 'none'}")

    def jobs(self, part: ReplicatedJobShape) -> list[str]:
        return [job_name(self.name, part.name, index) for index in range(part.replicas)]


def job_name(jobset: str, part: str, index: int) -> str:
    return f"{jobset}-{part}-{index}"


def sequenced(spec: Json) -> bool:
    in_order = (spec.get("startupPolicy") or {}).get("startupPolicyOrder") == "InOrder"
    return in_order or any(item.get("dependsOn") for item in spec.get("replicatedJobs") or ())


def _turn(item: Json) -> tuple[str, ...]:
    return tuple(sorted(f"{entry['name']}/{entry.get('status')}" for entry in item.get("dependsOn") or ()))


def turns(parts: Sequence[ReplicatedJobShape]) -> list[list[ReplicatedJobShape]]:
    """Return the parts that start together, in the order of the JobSet: only these can be one gang."""
    found: dict[tuple[str, ...], list[ReplicatedJobShape]] = {}
    for part in parts:
        found.setdefault(part.turn, []).append(part)
    return list(found.values())


def shape_of(jobset: Json) -> JobSetShape:
    meta, spec = jobset["metadata"], jobset["spec"]
    whole = (meta.get("annotations") or {}).get(EXCLUSIVE) or ""
    in_order = (spec.get("startupPolicy") or {}).get("startupPolicyOrder") == "InOrder"
    parts = []
    for item in spec.get("replicatedJobs") or ():
        template = item.get("template") or {}
        job_spec = template.get("spec") or {}
        annotations = (template.get("metadata") or {}).get("annotations") or {}
        pod_spec = (job_spec.get("template") or {}).get("spec") or {}
        replicas = item.get("replicas")
        parts.append(
            ReplicatedJobShape(
                name=item["name"],
                replicas=1 if replicas is None else int(replicas),
                size=size_of(job_spec),
                priority_class=pod_spec.get("priorityClassName") or "",
                exclusive=str(annotations.get(EXCLUSIVE) or whole),
                annotations=annotations,
                pod_spec=pod_spec,
                turn=(item["name"],) if in_order else _turn(item),
            )
        )
        if parts[-1].replicas < 0 or parts[-1].size < 0:
            raise GroupingRefused(
                f"replicatedJob {item['name']}: replicas, parallelism and completions must not be negative"
            )
    check_parts("the sum of its replicas", sum(part.replicas for part in parts), "Jobs")
    check_pods("the JobSet", sum(part.replicas * part.size for part in parts))
    return JobSetShape(meta["name"], namespace_of(jobset), tuple(parts), sequenced(spec))
