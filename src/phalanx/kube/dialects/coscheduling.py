"""The coscheduling plugin of scheduler-plugins: PodGroup of scheduling.x-k8s.io, named in a label of the pod."""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.base.client import Resource
from phalanx.base.well_known import COSCHEDULING_POD_GROUP
from phalanx.kube.dialects.contract import ForeignGroup, GroupProgress, Json, Translation, count, leaf, spec_of

OLD_LABEL = "pod-group.scheduling.sigs.k8s.io"


class CoschedulingDialect:
    name = "coscheduling"
    resource = Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup")
    status_paths: tuple[str, ...] = ("status",)

    def group_of(self, labels: Mapping[str, str], annotations: Mapping[str, str]) -> tuple[str, str] | None:
        name = labels.get(COSCHEDULING_POD_GROUP) or labels.get(OLD_LABEL)
        return (name, "") if name else None

    def translate(self, group: ForeignGroup) -> Translation:
        spec = spec_of(group)
        minimum = count(spec, "minMember", 0)
        timeout = count(spec, "scheduleTimeoutSeconds", 0)
        name = group.metadata.name
        return Translation([leaf(group, name, minimum, timeout=timeout)], {"": name}, minimum)

    def status(self, progress: GroupProgress) -> Json:
        return {
            "phase": _phase(progress),
            "running": progress.running,
            "succeeded": progress.succeeded,
            "failed": progress.failed,
        }


def _phase(progress: GroupProgress) -> str:
    minimum = max(1, progress.minimum)
    if progress.failed and progress.failed + progress.running + progress.succeeded >= minimum and not progress.running:
        return "Failed"
    if progress.succeeded >= minimum and not progress.running:
        return "Finished"
    if progress.running + progress.succeeded >= minimum:
        return "Running"
    if progress.placed >= minimum:
        return "Scheduled"
    if progress.placed:
        return "Scheduling"
    return "Pending" if progress.pending < minimum else "PreScheduling"
