"""Count the finished pods of a Job: each once, despite deletions and crashes.

Pods carry a finalizer until they are counted. A finished pod's uid first goes into `status.uncountedTerminatedPods`,
then the finalizer is removed, then the uid becomes a number in `succeeded` or `failed`. Successes of Indexed Jobs need
no such list: adding an index to the set of completed indexes twice is harmless.
"""

from __future__ import annotations

from typing import Any

import msgspec

from phalanx.base.well_known import COMPLETION_INDEX, DISRUPTION_TARGET
from phalanx.controllers.runtime.ownership import deleting
from phalanx.controllers.runtime.pods import active, finished, phase
from phalanx.controllers.workloads.job.grouping import vacant
from phalanx.controllers.workloads.job.policy import format_indexes, match_policy, parse_indexes
from phalanx.model.annotation_values import MAX_INT32, natural
from phalanx.model.groups.keys import BOUND_IN_GROUP, COMPLETED_IN
from phalanx.model.kinds import Json
from phalanx.model.objects.pod import KUBELET_REJECTIONS

TRACKING = "batch.kubernetes.io/job-tracking"
INDEX_FAILURES = "batch.kubernetes.io/job-index-failure-count"
INDEX_IGNORED = "batch.kubernetes.io/job-index-ignored-failure-count"
MOST_AT_ONCE = 500  # pods that one reconcile counts; the status names them until then


class Tally(msgspec.Struct):
    active: list[Json] = msgspec.field(default_factory=list)
    terminating: list[Json] = msgspec.field(default_factory=list)
    release: list[Json] = msgspec.field(default_factory=list)  # finalizer is removed after the status write
    fresh_failures: list[Json] = msgspec.field(default_factory=list)  # seen for the first time
    fresh_successes: int = 0
    waiting: dict[int, Json] = msgspec.field(default_factory=dict)  # index -> failed pod that waits for its replacement
    counted_succeeded: int = 0
    counted_failed: int = 0
    uncounted_succeeded: list[str] = msgspec.field(default_factory=list)  # uids
    uncounted_failed: list[str] = msgspec.field(default_factory=list)
    completed_indexes: set[int] = msgspec.field(default_factory=set)
    failed_indexes: set[int] = msgspec.field(default_factory=set)
    fail_job: str = ""  # message of the pod failure policy's rule that ends the Job
    indexed: bool = False
    more: bool = False  # some finished pods are left for the next reconcile

    @property
    def succeeded(self) -> int:
        return len(self.completed_indexes) if self.indexed else self.counted_succeeded + len(self.uncounted_succeeded)

    @property
    def failed(self) -> int:
        return self.counted_failed + len(self.uncounted_failed)

    @property
    def settled(self) -> bool:
        """Return True if every finished pod has been counted."""
        return not self.uncounted_succeeded and not self.uncounted_failed and not self.more

    def status(self) -> Json:
        uncounted: Json = {}
        if self.uncounted_succeeded:
            uncounted["succeeded"] = self.uncounted_succeeded
        if self.uncounted_failed:
            uncounted["failed"] = self.uncounted_failed
        return {
            "terminating": len(self.terminating),
            "succeeded": (len(self.completed_indexes) if self.indexed else min(self.counted_succeeded, MAX_INT32))
            or None,
            "failed": min(self.counted_failed, MAX_INT32) or None,
            "completedIndexes": format_indexes(self.completed_indexes) or None if self.indexed else None,
            "failedIndexes": format_indexes(self.failed_indexes) or None,
            "uncountedTerminatedPods": uncounted,
        }


def tally_of(job: Json, pods: list[Json]) -> Tally:
    spec, status = job["spec"], job.get("status") or {}
    indexed = is_indexed(job)
    completions = int(spec.get("completions") or 0)
    tally = Tally(
        counted_succeeded=int(status.get("succeeded") or 0),
        counted_failed=int(status.get("failed") or 0),
        indexed=indexed,
    )
    if indexed:
        tally.completed_indexes = {i for i in parse_indexes(status.get("completedIndexes", "")) if i < completions}
        tally.failed_indexes = {i for i in parse_indexes(status.get("failedIndexes", "")) if i < completions}
    _count_uncounted(tally, status, pods)
    known = {*tally.uncounted_succeeded, *tally.uncounted_failed}
    only_failed = spec.get("podReplacementPolicy") == "Failed"
    ended = []
    for pod in pods:
        if active(pod):
            tally.active.append(pod)
            continue
        if deleting(pod) and not finished(pod):
            tally.terminating.append(pod)
            if only_failed:
                continue  # counts as failed when it has ended
        if TRACKING not in (pod["metadata"].get("finalizers") or ()):
            continue  # counted already, or deleted by us and not counted
        if pod["metadata"]["uid"] in known:
            tally.release.append(pod)
        else:
            ended.append(pod)
    attempts = _attempts(pods) if spec.get("backoffLimitPerIndex") is not None and ended else {}
    for pod in ended:
        if len(tally.release) >= MOST_AT_ONCE:
            tally.more = True
            break
        if phase(pod) == "Succeeded":
            _success(tally, pod, completions)
        else:
            _failure(tally, job, pod, attempts, completions)
    return tally


def _count_uncounted(tally: Tally, status: Json, pods: list[Json]) -> None:
    """Convert uids of pods without the finalizer to counts."""
    uncounted = status.get("uncountedTerminatedPods") or {}
    held = {pod["metadata"]["uid"] for pod in pods if TRACKING in (pod["metadata"].get("finalizers") or ())}
    for uid in uncounted.get("succeeded") or ():
        if uid in held:
            tally.uncounted_succeeded.append(uid)
        else:
            tally.counted_succeeded += 1
    for uid in uncounted.get("failed") or ():
        if uid in held:
            tally.uncounted_failed.append(uid)
        else:
            tally.counted_failed += 1


def _success(tally: Tally, pod: Json, completions: int) -> None:
    tally.release.append(pod)
    tally.fresh_successes += 1
    if not tally.indexed:
        tally.uncounted_succeeded.append(pod["metadata"]["uid"])
        return
    index = index_of(pod)
    if index is not None and index < completions:
        tally.completed_indexes.add(index)


def _failure(tally: Tally, job: Json, pod: Json, attempts: dict[int, int], completions: int) -> None:
    action, message = match_policy(job["spec"].get("podFailurePolicy"), pod)
    if (action, message) == ("Count", "") and _returned(pod):
        action = "Ignore"
    if action == "FailJob" and not tally.fail_job:
        tally.fail_job = message
    limit, index = job["spec"].get("backoffLimitPerIndex"), index_of(pod)
    over = index in tally.completed_indexes or index in tally.failed_indexes
    if limit is not None and index is not None and index < completions and not over:
        failures = count_of(pod, INDEX_FAILURES) + (action != "Ignore")
        if action == "FailIndex" or (action != "Ignore" and failures > int(limit)):
            tally.failed_indexes.add(index)
        elif attempts[index] <= _attempt(pod):
            # Its replacement reads the failures of the index from it, so it must stay until then.
            tally.waiting[index] = pod
            return
    tally.release.append(pod)
    if action == "Ignore":
        return
    tally.uncounted_failed.append(pod["metadata"]["uid"])
    tally.fresh_failures.append(pod)


def _returned(pod: Json) -> bool:
    """Return True if a kubelet rejected a gang member, or the scheduler released it from an incomplete gang.

    That is no failure of the Job.
    """
    if BOUND_IN_GROUP not in (pod["metadata"].get("annotations") or {}):
        return False
    status: Json = pod.get("status") or {}
    if str(status.get("reason") or "").startswith(KUBELET_REJECTIONS) and not status.get("containerStatuses"):
        return True
    conditions = status.get("conditions") or ()
    return any(each["type"] == DISRUPTION_TARGET and each.get("reason") == "GangIncomplete" for each in conditions)


def is_indexed(job: Json) -> bool:
    return bool(job["spec"].get("completionMode") == "Indexed")


def index_of(pod: Json) -> int | None:
    return natural((pod["metadata"].get("annotations") or {}).get(COMPLETION_INDEX, ""), MAX_INT32)


def count_of(pod: Json, annotation: str) -> int:
    return natural((pod["metadata"].get("annotations") or {}).get(annotation, ""), MAX_INT32) or 0


def _attempts(pods: list[Json]) -> dict[int, int]:
    """Return the number of the last attempt at each index."""
    found: dict[int, int] = {}
    for pod in pods:
        if (index := index_of(pod)) is not None:
            found[index] = max(found.get(index, 0), _attempt(pod))
    return found


def _attempt(pod: Json) -> int:
    return count_of(pod, INDEX_FAILURES) + count_of(pod, INDEX_IGNORED)


def surplus(job: Json, tally: Tally, wanted: int, rank: Any) -> list[Json]:
    """Return active pods beyond the wanted number, in the order of deletion."""
    if not tally.indexed:
        return sorted(tally.active, key=rank)[: max(0, len(tally.active) - wanted)]
    completions = int(job["spec"].get("completions") or 0)
    taken = set(tally.completed_indexes | tally.failed_indexes)
    kept, extra = [], []
    for pod in sorted(tally.active, key=rank, reverse=True):
        index = index_of(pod)
        if index is None or index >= completions or index in taken:
            extra.append(pod)
        else:
            taken.add(index)
            kept.append(pod)
    # Keep lower indexes: a smaller gang is the first part of a larger one.
    kept.sort(key=lambda pod: index_of(pod) or 0)
    return extra + kept[wanted:][::-1]


def free_indexes(job: Json, tally: Tally, count: int) -> list[int]:
    """Return the lowest indexes without a pod."""
    only_failed = job["spec"].get("podReplacementPolicy") == "Failed"
    busy = {index_of(pod) for pod in [*tally.active, *(tally.terminating if only_failed else ())]}
    busy |= tally.completed_indexes | tally.failed_indexes
    found: list[int] = []
    for index in range(int(job["spec"].get("completions") or 0)):
        if len(found) == count:
            break
        if index not in busy:
            found.append(index)
    return found


def deleted_for_good(job: Json, pods: list[Json]) -> int:
    """Return how many completed pods of a Job were deleted and are not replaced. pods: the existing ones."""
    there = sum(_completed_for_good(pod) for pod in pods)
    return max(0, vacant(job) - there)


def _completed_for_good(pod: Json) -> bool:
    """Return True for a completed pod that its gang counts, or that the Job controller is about to count."""
    meta = pod["metadata"]
    counted = COMPLETED_IN in (meta.get("annotations") or {})
    return counted or (phase(pod) == "Succeeded" and TRACKING in (meta.get("finalizers") or ()))
