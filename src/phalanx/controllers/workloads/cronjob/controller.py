"""CronJob: create a Job at each scheduled time, and keep a limited number of finished ones."""

from __future__ import annotations

import copy
import logging

import msgspec

from phalanx.base import resources as r
from phalanx.base.clock import Clock, parse_rfc3339, rfc3339
from phalanx.base.errors import AlreadyExists, Forbidden, Invalid
from phalanx.controllers.runtime.controller import Caches, Controller, Json, Key
from phalanx.controllers.runtime.events import Events
from phalanx.controllers.runtime.ownership import controlled_by, controller_reference, deleting, index_by_controller
from phalanx.controllers.runtime.status import write_status
from phalanx.model import cron

log = logging.getLogger(__name__)
SCHEDULED_AT = "batch.kubernetes.io/cronjob-scheduled-timestamp"


class CronJobController(Controller):
    name = "cronjob"

    def __init__(self, caches: Caches, clock: Clock, events: Events) -> None:
        super().__init__()
        self._client, self._clock, self._events = caches.client, clock, events
        self._crons = caches.of(r.CRON_JOBS)
        self._jobs = caches.of(r.JOBS)
        self._jobs.index("controller", index_by_controller)
        self._crons.on_change(self.requeue)
        self.report_refusals(self._crons, events)
        self._jobs.on_change(self.requeue_owner("CronJob"))

    async def reconcile(self, key: Key) -> None:
        owner = self._crons.get(*key)
        if owner is None or deleting(owner):
            return
        jobs = self._jobs.by_index("controller", owner["metadata"]["uid"])
        running = [job for job in jobs if _outcome(job) == ""]
        status = {**(owner.get("status") or {})}
        self._report_ended(owner, jobs)
        successes = [job["status"].get("completionTime") for job in jobs if _outcome(job) == "Complete"]
        if any(successes):
            latest = max(time for time in successes if time)
            status["lastSuccessfulTime"] = max(latest, status.get("lastSuccessfulTime") or "")
        # A Job records its scheduled time, in case the status was not written.
        announced = [_scheduled_at(job) for job in jobs]
        latest_reported = max([status.get("lastScheduleTime") or "", *announced])
        if latest_reported:
            status["lastScheduleTime"] = latest_reported
        made = await self._start_due(owner, running, status)
        if made is not None:
            running = [*([] if owner["spec"].get("concurrencyPolicy") == "Replace" else running), made]
        known = {ref["uid"]: ref for ref in status.get("active") or ()}
        status["active"] = [known.get(job["metadata"]["uid"]) or _reference(job) for job in running]
        await self._trim(owner, jobs)
        await write_status(self._crons, owner, status)

    def _report_ended(self, owner: Json, jobs: list[Json]) -> None:
        """Record Jobs that are active in the status but finished or deleted."""
        known = {job["metadata"]["uid"]: job for job in jobs}
        for reference in (owner.get("status") or {}).get("active") or ():
            job = known.get(reference.get("uid"))
            if job is None:
                note = f"Active job went missing: {reference.get('name')}"
                self._events.normal(owner, self.name, "MissingJob", note)
            elif outcome := _outcome(job):
                note = f"Saw completed job: {reference.get('name')}, condition: {outcome}"
                self._events.normal(owner, self.name, "SawCompletedJob", note)

    async def _start_due(self, owner: Json, running: list[Json], status: Json) -> Json | None:
        spec, meta = owner["spec"], owner["metadata"]
        if spec.get("suspend"):
            return None
        try:
            schedule = cron.parse(spec["schedule"], spec.get("timeZone") or "")
        except cron.BadSchedule:
            return None  # an invalid schedule stored before validation is ignored
        now = self._clock.now()
        since = parse_rfc3339(status.get("lastScheduleTime") or meta["creationTimestamp"])
        due = schedule.latest_between(since, now)
        following = schedule.next_after((due or since) if schedule.every else now)
        if following is not None:
            self.queue.add_after(Key(meta["namespace"], meta["name"]), following - now + 0.05)
        if due is None:
            return None
        deadline = spec.get("startingDeadlineSeconds")
        if deadline is not None and now - due > int(deadline):
            return None
        policy = spec.get("concurrencyPolicy", "Allow")
        if running and policy == "Forbid":
            return None
        if policy == "Replace":
            for job in running:
                await self._jobs.delete(job, "Background")
        made = await self._create(owner, due)
        status["lastScheduleTime"] = rfc3339(due)
        return made

    async def _create(self, owner: Json, due: float) -> Json | None:
        meta, template = owner["metadata"], owner["spec"]["jobTemplate"]
        inner = template.get("metadata") or {}
        body = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "name": _name(owner, due),
                "namespace": meta["namespace"],
                "labels": dict(inner.get("labels") or {}),
                "annotations": {**(inner.get("annotations") or {}), SCHEDULED_AT: rfc3339(due)},
                "ownerReferences": [controller_reference(owner, r.CRON_JOBS)],
            },
            "spec": copy.deepcopy(template["spec"]),
        }
        try:
            made = await self._jobs.create(body)
        except AlreadyExists:  # created before a crash: its name contains its time
            made = msgspec.json.decode(await self._client.get(r.JOBS, _name(owner, due), meta["namespace"]))
            self._jobs.remember(made)
        except (Invalid, Forbidden) as problem:
            self._events.warning(owner, self.name, "FailedCreate", f"Error creating job: {problem}")
            problem.reported = True
            raise
        if controlled_by(made, meta["uid"]):
            self._events.normal(owner, self.name, "SuccessfulCreate", f"Created job {made['metadata']['name']}")
        if not controlled_by(made, meta["uid"]):
            log.warning(
                "CronJob %s: Job %s has another owner; this run is left out",
                meta["name"],
                made["metadata"]["name"],
            )
            return None
        return made

    async def _trim(self, owner: Json, jobs: list[Json]) -> None:
        for outcome, field, default in (
            ("Complete", "successfulJobsHistoryLimit", 3),
            ("Failed", "failedJobsHistoryLimit", 1),
        ):
            ended = [job for job in jobs if _outcome(job) == outcome and not deleting(job)]
            ended.sort(key=lambda job: ((job.get("status") or {}).get("startTime") or "", job["metadata"]["name"]))
            limit = int(owner["spec"].get(field, default))
            for job in ended[: max(0, len(ended) - limit)]:
                await self._jobs.delete(job, "Background")


def _name(owner: Json, due: float) -> str:
    """Name the Job by its minute, so that a run never starts twice."""
    return f"{owner['metadata']['name']}-{int(due // 60)}"


def _scheduled_at(job: Json) -> str:
    return str((job["metadata"].get("annotations") or {}).get(SCHEDULED_AT) or "")


def _outcome(job: Json) -> str:
    for entry in (job.get("status") or {}).get("conditions") or ():
        if entry["type"] in ("Complete", "Failed") and entry["status"] == "True":
            return str(entry["type"])
    return ""


def _reference(job: Json) -> Json:
    meta = job["metadata"]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": meta["name"],
        "namespace": meta["namespace"],
        "uid": meta["uid"],
        "resourceVersion": meta["resourceVersion"],
    }
