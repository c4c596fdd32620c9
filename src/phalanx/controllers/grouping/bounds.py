"""Limit how many pods and other objects one workload may request, and how many one reconcile creates.

Any user may write 2147483647 into a field. No reconciler does work in proportion to such a number: a request above the
limits is refused with a condition before anything is counted or listed, and one below is created in batches.
"""

from __future__ import annotations

from phalanx.controllers.grouping.core import GroupingRefused, Json

MOST_PODS = 100_000  # of one object, as kube-apiserver limits the parallelism of an Indexed Job
MOST_PARTS = 10_000  # Jobs of one JobSet, replicas of one LeaderWorkerSet: each is an object with groups of its own
BATCH = 500  # objects that one reconcile of a workload creates; the next one continues
TOO_MANY = "TooManyPods"  # reason of the condition and the event; also the type of the condition


def check_pods(what: str, count: int) -> None:
    """Raise Refused where a workload requests more pods than one object may have."""
    if count > MOST_PODS:
        raise GroupingRefused(
            f"{what} asks for {count} pods; one object may have {MOST_PODS}: no more are made", TOO_MANY
        )


def check_parts(what: str, count: int) -> None:
    """Raise Refused where a workload requests more Jobs or replicas than one object may have."""
    if count > MOST_PARTS:
        raise GroupingRefused(f"{what} asks for {count}; one object may have {MOST_PARTS}: no more are made", TOO_MANY)


def count_in(spec: Json, field: str, default: int = 1) -> int:
    found = spec.get(field)
    return default if found is None else int(found)
