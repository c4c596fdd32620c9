"""Columns of workloads: Deployment, ReplicaSet, StatefulSet, DaemonSet, Job, CronJob, JobSet, LeaderWorkerSet."""

from __future__ import annotations

from phalanx.base.clock import parse_rfc3339
from phalanx.model.kinds import Column, Json
from phalanx.model.printing.cells import (
    AGE,
    CONTAINERS,
    IMAGES,
    NAME,
    NONE,
    SELECTOR,
    column,
    condition,
    count,
    holds,
    human,
    meta,
    pairs,
    since,
    spec,
    status,
    text,
)

_WIDE = (CONTAINERS, IMAGES, SELECTOR)


def _of_replicas(field: str) -> Column:
    def cell(obj: Json, now: float) -> str:
        return f"{status(obj).get(field) or 0}/{spec(obj).get('replicas') or 0}"

    return column("Ready", cell)


DEPLOYMENT: tuple[Column, ...] = (
    NAME,
    _of_replicas("readyReplicas"),
    count("Up-to-date", "status.updatedReplicas"),
    count("Available", "status.availableReplicas"),
    AGE,
    *_WIDE,
)
REPLICA_SET: tuple[Column, ...] = (
    NAME,
    count("Desired", "spec.replicas"),
    count("Current", "status.replicas"),
    count("Ready", "status.readyReplicas"),
    AGE,
    *_WIDE,
)
STATEFUL_SET: tuple[Column, ...] = (NAME, _of_replicas("readyReplicas"), AGE, CONTAINERS, IMAGES)


def _template_selector(obj: Json, now: float) -> str:
    return pairs(spec(spec(obj).get("template") or {}).get("nodeSelector"))


DAEMON_SET: tuple[Column, ...] = (
    NAME,
    count("Desired", "status.desiredNumberScheduled"),
    count("Current", "status.currentNumberScheduled"),
    count("Ready", "status.numberReady"),
    count("Up-to-date", "status.updatedNumberScheduled"),
    count("Available", "status.numberAvailable"),
    column("Node Selector", _template_selector),
    AGE,
    *_WIDE,
)


def _job_status(obj: Json, now: float) -> str:
    for kind, word in (("Complete", "Complete"), ("Failed", "Failed")):
        if holds(obj, kind):
            return word
    if meta(obj).get("deletionTimestamp"):
        return "Terminating"
    for kind in ("Suspended", "FailureTarget", "SuccessCriteriaMet"):
        if holds(obj, kind):
            return kind
    return "Running"


def _job_completions(obj: Json, now: float) -> str:
    done = status(obj).get("succeeded") or 0
    wanted = spec(obj).get("completions")
    if wanted is not None:
        return f"{done}/{wanted}"
    parallelism = spec(obj).get("parallelism") or 0
    return f"{done}/1 of {parallelism}" if parallelism > 1 else f"{done}/1"


def _job_duration(obj: Json, now: float) -> str:
    started, ended = status(obj).get("startTime"), status(obj).get("completionTime")
    if not started:
        return ""
    return human((parse_rfc3339(ended) if ended else now) - parse_rfc3339(started))


JOB: tuple[Column, ...] = (
    NAME,
    column("Status", _job_status),
    column("Completions", _job_completions),
    column("Duration", _job_duration),
    AGE,
    *_WIDE,
)


def _last_schedule(obj: Json, now: float) -> str:
    found = status(obj).get("lastScheduleTime")
    return since(found, now) if found else NONE


CRON_JOB: tuple[Column, ...] = (
    NAME,
    column("Schedule", text("spec.schedule")),
    column("Timezone", text("spec.timeZone")),
    column("Suspend", lambda obj, now: str(bool(spec(obj).get("suspend"))), type="boolean"),
    column("Active", lambda obj, now: len(status(obj).get("active") or ()), type="integer"),
    column("Last Schedule", _last_schedule),
    AGE,
    CONTAINERS,
    IMAGES,
    column("Selector", lambda obj, now: NONE, wide=True),
)

JOB_SET: tuple[Column, ...] = (
    NAME,
    column("TerminalState", text("status.terminalState", "")),
    column("Restarts", text("status.restarts", "")),
    column("Completed", lambda obj, now: (condition(obj, "Completed") or {}).get("status", "")),
    column("Suspended", text("spec.suspend", "")),
    AGE,
)
LEADER_WORKER_SET: tuple[Column, ...] = (
    NAME,
    count("Ready", "status.readyReplicas"),
    count("Desired", "spec.replicas"),
    count("Up-to-date", "status.updatedReplicas"),
    AGE,
)

ROLE_SCALER: tuple[Column, ...] = (
    NAME,
    count("Desired", "spec.replicas"),
    count("Current", "status.replicas"),
    AGE,
)


def _pod_labels(obj: Json, now: float) -> str:
    return pairs(meta(obj.get("template") or {}).get("labels"))


POD_TEMPLATE: tuple[Column, ...] = (
    NAME,
    column("Containers", CONTAINERS.value),
    column("Images", IMAGES.value),
    column("Pod Labels", _pod_labels),
)


def _owner(obj: Json, now: float) -> str:
    for reference in meta(obj).get("ownerReferences") or ():
        if reference.get("controller"):
            group = str(reference.get("apiVersion") or "").rpartition("/")[0]
            kind = str(reference.get("kind") or "").lower()
            return f"{kind}.{group}/{reference.get('name')}" if group else f"{kind}/{reference.get('name')}"
    return NONE


CONTROLLER_REVISION: tuple[Column, ...] = (
    NAME,
    column("Controller", _owner),
    column("Revision", text("revision", 0), type="integer"),
    AGE,
)
