"""Build the pods of a Job. Their shared parts are built once and never changed afterwards."""

from __future__ import annotations

from typing import Any

from phalanx.base import resources as r
from phalanx.base.well_known import COMPLETION_INDEX
from phalanx.controllers.runtime.ownership import controller_of, deleting
from phalanx.controllers.runtime.pods import from_template, phase, ready
from phalanx.controllers.workloads.job.groups import Membership
from phalanx.controllers.workloads.job.policy import match_policy
from phalanx.controllers.workloads.job.tally import INDEX_FAILURES, INDEX_IGNORED, TRACKING, Tally, count_of, is_indexed
from phalanx.model.groups.keys import COMPLETED_IN, GROUP_LABEL, RUN
from phalanx.model.kinds import Json

_SOURCE = {"fieldRef": {"fieldPath": f"metadata.labels['{COMPLETION_INDEX}']"}}


class PodMaker:
    def __init__(self, job: Json, membership: Membership) -> None:
        self._job, self._name = job, job["metadata"]["name"]
        self._pod = from_template(job["spec"]["template"], job, r.JOBS, prefix=f"{self._name}-")
        meta, spec = self._pod["metadata"], self._pod["spec"]
        meta["finalizers"] = [*meta.get("finalizers", []), TRACKING]
        if membership.link is not None:
            membership.link.put_on(spec)
            meta["ownerReferences"].append(membership.reference)
        if grouped(self._pod):
            meta["annotations"] = {**meta["annotations"], RUN: run_of(job)}
        if is_indexed(job):
            for container in [*spec.get("containers", []), *(spec.get("initContainers") or [])]:
                env = container.get("env") or []
                if not any(entry["name"] == "JOB_COMPLETION_INDEX" for entry in env):
                    container["env"] = [*env, {"name": "JOB_COMPLETION_INDEX", "valueFrom": _SOURCE}]

    def body(self, index: int | None, tally: Tally) -> Json:
        if index is None:
            return self._pod
        meta, spec = self._pod["metadata"], self._pod["spec"]
        number = str(index)
        metadata = {
            **meta,
            "generateName": f"{self._name}-{number}-",
            "labels": {**meta["labels"], COMPLETION_INDEX: number},
            "annotations": {**meta["annotations"], COMPLETION_INDEX: number, **self._failures(index, tally)},
        }
        return {**self._pod, "metadata": metadata, "spec": {**spec, "hostname": f"{self._name}-{number}"[:63]}}

    def _failures(self, index: int, tally: Tally) -> dict[str, str]:
        """Return how often the index has failed; a replacement inherits the counts of its pod."""
        spec = self._job["spec"]
        if spec.get("backoffLimitPerIndex") is None:
            return {}
        before = tally.waiting.get(index)
        if before is None:
            return {INDEX_FAILURES: "0"}
        spared = match_policy(spec.get("podFailurePolicy"), before)[0] == "Ignore"
        found = {INDEX_FAILURES: str(count_of(before, INDEX_FAILURES) + (not spared))}
        ignored = count_of(before, INDEX_IGNORED) + spared
        return {**found, INDEX_IGNORED: str(ignored)} if ignored else found


def grouped(pod: Json) -> bool:
    """Return True if a pod names a group by any of the supported fields, labels or annotations."""
    spec, labels = pod["spec"], pod["metadata"].get("labels") or {}
    return bool(spec.get("schedulingGroup") or spec.get("workloadRef") or GROUP_LABEL in labels)


def run_of(job: Json) -> str:
    """Return the run of its pods: Jobs of one JobSet are one run, those of a CronJob are not."""
    owner = controller_of(job)
    together = owner is not None and not owner["apiVersion"].startswith("batch/")
    return str(owner["uid"] if owner is not None and together else job["metadata"]["uid"])


def complete_for_good(job: Json, tally: Tally, pods: list[Json]) -> set[str]:
    """Return uids of pods about to be counted that will not be replaced.

    Their number is `parallelism` minus the pods that still run at the same time. They still count as members of their
    gang (its last wave may be small); other pods are replaced by the next wave.
    """
    spec = job["spec"]
    # Including pods outside the group, created while the gates were off: their gang requires fewer pods.
    gang = any(grouped(pod) for pod in pods) or run_of(job) != job["metadata"]["uid"]
    ended = [pod for pod in tally.release if phase(pod) == "Succeeded" and gang]
    places = len(ended)
    if spec.get("completions") is not None:
        parallelism = int(spec.get("parallelism", 1))
        left = int(spec["completions"]) - tally.succeeded - len(tally.failed_indexes)
        announced = sum(COMPLETED_IN in (pod["metadata"].get("annotations") or {}) for pod in pods)
        places = parallelism - min(parallelism, left) - announced
    return {pod["metadata"]["uid"] for pod in ended[: max(0, places)]}


def updates(pod: Json) -> tuple[Any, ...]:
    """Return the pod fields that a Job depends on: only their changes requeue it."""
    meta, status = pod["metadata"], pod.get("status") or {}
    restarts = sum(int(c.get("restartCount") or 0) for c in status.get("containerStatuses") or ())
    held = TRACKING in (meta.get("finalizers") or ())
    owners = len(meta.get("ownerReferences") or ())
    return meta["uid"], phase(pod), ready(pod), deleting(pod), held, restarts, meta.get("labels"), owners
