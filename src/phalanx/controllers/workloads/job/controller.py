"""Job: run pods until enough have succeeded, or too many have failed."""

from __future__ import annotations

from contextlib import suppress

from phalanx.base import resources as r
from phalanx.base.clock import Clock, parse_rfc3339, rfc3339
from phalanx.base.errors import ApiProblem, NotFound
from phalanx.base.well_known import JOB_NAME
from phalanx.controllers.grouping.core import BATCH, GROUP_TEMPLATE, TOO_MANY, GroupingRefused, check_pods
from phalanx.controllers.runtime.cache import MARKED
from phalanx.controllers.runtime.claiming import Claims, selector_of
from phalanx.controllers.runtime.controller import Caches, Controller, Json, Key
from phalanx.controllers.runtime.events import Events
from phalanx.controllers.runtime.groups import Groups
from phalanx.controllers.runtime.ownership import controller_of, deleting
from phalanx.controllers.runtime.pods import PodEvents, condition, ready, removal_rank
from phalanx.controllers.runtime.status import (
    conditions_of,
    follow_refusal,
    gather_results,
    set_condition,
    write_status,
)
from phalanx.controllers.workloads.job.grouping import vacant
from phalanx.controllers.workloads.job.groups import NAME, NOT_GROUPED, JobGroups, Membership, is_new
from phalanx.controllers.workloads.job.pods import PodMaker, complete_for_good, run_of, updates
from phalanx.controllers.workloads.job.policy import JobVerdict, verdict_of
from phalanx.controllers.workloads.job.tally import TRACKING, Tally, free_indexes, surplus, tally_of
from phalanx.model.groups.keys import COMPLETED_IN

CONTROLLER = "kubernetes.io/job-controller"
FIRST_BACKOFF, LONGEST_BACKOFF = 10.0, 600.0
GATHERING = 0.1  # seconds in which pod changes are batched into one reconcile; Kubernetes uses one second
GATHERING_PER_POD = 100e-6  # seconds more for each pod of the Job: a reconcile reads all of them


class JobController(Controller):
    name = "job"
    workers = 16

    def __init__(self, caches: Caches, clock: Clock, events: Events, groups: Groups | None = None) -> None:
        """Create the controller. groups None: Jobs get no scheduling objects (gate WorkloadWithJob off)."""
        super().__init__()
        self._clock, self._events = clock, events
        self._announced = PodEvents(events, clock, NAME)
        self._jobs = caches.of(r.JOBS)
        self._pods = caches.of(r.PODS)
        self._claims = Claims(self._pods, r.JOBS, TRACKING)
        self._pods.index("job", _index_by_job)
        self._pods.index("held", _index_held)
        self._jobs.index("manual", _index_by_own_selector)
        self._groups = JobGroups(groups) if groups is not None else None
        self._streaks: dict[str, tuple[int, float]] = {}  # Job uid -> (consecutive failures, end of the last)
        self._jobs.on_change(self._job_changed)
        self.report_refusals(self._jobs, events)
        self._pods.on_change(self._pod_changed, of=MARKED)
        if groups is not None:
            groups.requeue_on_change("Job", self.queue)
            self._jobs.index("delegated", _index_by_parent)
            groups.workloads.on_change(self._workload_changed)

    def _job_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        if new is None or old is None or not new.get("status", {}).get("startTime") or not same_requests(new, old):
            self.queue.add(key)  # not for echoes of our own status writes
        elif vacant(new) != vacant(old):
            self.queue.add(key)  # its gang needs fewer pods

    def _pod_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        if new is not None and old is not None and updates(new) == updates(old):
            return
        for pod in (new, old):
            for name in self._may_have(pod) if pod is not None else ():
                job = Key(key.namespace, name)
                self.queue.add_after(job, GATHERING + GATHERING_PER_POD * self._pods.count("job", str(job)))

    def _may_have(self, pod: Json) -> list[str]:
        """Return the names of Jobs that created the pod, or may adopt it because no controller owns it."""
        name = _job_of(pod)
        if name or controller_of(pod) is not None:
            return [name] if name else []
        labels = pod["metadata"].get("labels")
        if not labels:
            return []
        manual = self._jobs.by_index("manual", pod["metadata"]["namespace"])
        found = [str(job["metadata"]["name"]) for job in manual if selector_of(job).matches(labels)]
        return [*found, labels[JOB_NAME]] if JOB_NAME in labels else found

    def _workload_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        about = ((new or old or {}).get("spec") or {}).get("controllerRef")
        if about:
            parent = f"{key.namespace}/{about.get('apiGroup') or ''}/{about['kind']}/{about['name']}"
            for job in self._jobs.by_index("delegated", parent):
                self.queue.add(Key(key.namespace, job["metadata"]["name"]))

    async def reconcile(self, key: Key) -> None:
        job = self._jobs.get(*key)
        uid = job["metadata"]["uid"] if job is not None else ""
        if job is not None and job["spec"].get("managedBy", CONTROLLER) != CONTROLLER:
            await self._free(key, self._pods_of_others(key, uid))
            return
        if job is None or is_finished(job):
            await self._free(key, self._pods.by_index("held", str(key), BATCH))
            if job is not None:
                self._streaks.pop(uid, None)
                await self._expire(job)
            return
        pods = await self._claims.of(job)  # adopts pods its selector matches, releases the others
        await self._free(key, self._pods_of_others(key, uid))
        tally = tally_of(job, pods)
        verdict = verdict_of(job, tally, self._clock.now())
        problem: ApiProblem | None = None
        refusal: GroupingRefused | None = None
        if not deleting(job):
            self._note_failures(job, tally)
            membership = NOT_GROUPED
            if self._groups is not None and verdict is None:
                membership = await self._groups.membership(job, pods)
                if membership.wait and is_new(job, pods):
                    return  # it has not started, and must remain startable
            if verdict is not None:
                await self._remove(tally.active[:BATCH])  # they count as failed; the Job ends after the last one
            elif job["spec"].get("suspend"):
                await self._withdraw(tally, tally.active[:BATCH])
            else:
                try:
                    await self._sync_pods(job, tally, membership)
                except ApiProblem as found:
                    problem = found
                except GroupingRefused as found:
                    refusal = found
        # Count finished pods even if new pods are blocked: the deletion of a namespace waits for that.
        await self._write_status(job, tally, verdict, complete_for_good(job, tally, pods), refusal)
        if problem is not None:
            raise problem

    # ---- pods

    def _pods_of_others(self, key: Key, uid: str) -> list[Json]:
        """Return pods of earlier Jobs of this name, which nothing counts. All pods are read only if there are any."""
        if self._pods.count("job", str(key)) == self._pods.count("controller", uid):
            return []
        pods = self._pods.by_index("job", str(key))
        return [pod for pod in pods if (controller_of(pod) or {}).get("uid") != uid]

    async def _free(self, key: Key, pods: list[Json]) -> None:
        """Remove our finalizer from pods that need not be counted, a limited number at once."""
        held = [pod for pod in pods if TRACKING in (pod["metadata"].get("finalizers") or ())]
        await self._remove_finalizers(held[:BATCH])
        if len(held) >= BATCH:
            self.queue.add(key)

    async def _sync_pods(self, job: Json, tally: Tally, membership: Membership) -> None:
        if tally.more:
            return  # a pod that is not counted yet must not be replaced
        spec = job["spec"]
        parallelism = int(spec.get("parallelism", 1))
        completions = spec.get("completions")
        if completions is None:
            wanted = min(parallelism, len(tally.active)) if tally.succeeded else parallelism
        else:
            wanted = min(parallelism, int(completions) - tally.succeeded - len(tally.failed_indexes))
        extra = surplus(job, tally, max(0, wanted), removal_rank)
        if extra:
            await self._withdraw(tally, extra[:BATCH])
            return
        check_pods("the Job", wanted)
        missing = wanted - len(tally.active)
        if spec.get("podReplacementPolicy") == "Failed":
            missing -= len(tally.terminating)
        if missing <= 0 or membership.wait:  # scaling down is always possible
            return
        wait = self._backoff(job)
        if wait > 0:
            self.queue.add_after(Key(job["metadata"]["namespace"], job["metadata"]["name"]), wait)
            return
        count = min(missing, BATCH)
        indexes: list[int | None] = list(free_indexes(job, tally, count)) if tally.indexed else [None] * count
        maker, batch = PodMaker(job, membership), 1
        while indexes:  # slow start: a rejected template costs one request, not hundreds
            now, indexes = indexes[:batch], indexes[batch:]
            try:
                tally.active += await gather_results(self._create(maker.body(index, tally)) for index in now)
            except ApiProblem as problem:
                self._announced.failed(job, problem)
                raise
            batch *= 2

    def _note_failures(self, job: Json, tally: Tally) -> None:
        uid = job["metadata"]["uid"]
        # A deleted or preempted pod did not crash: its replacement need not wait.
        ends = [_end_time(pod) for pod in [*tally.fresh_failures, *tally.waiting.values()] if not deleting(pod)]
        if tally.fresh_successes:
            self._streaks.pop(uid, None)
        if ends:
            count, last = self._streaks.get(uid, (0, 0.0))
            if max(ends) > last:
                self._streaks[uid] = (count + 1, max(ends))

    def _backoff(self, job: Json) -> float:
        """Return the seconds until a replacement for the last failure may be created."""
        count, last = self._streaks.get(job["metadata"]["uid"], (0, 0.0))
        if not count:
            return 0.0
        return last + min(LONGEST_BACKOFF, FIRST_BACKOFF * 2.0 ** min(count - 1, 10)) - self._clock.now()

    async def _create(self, body: Json) -> Json:
        made = await self._pods.create(body)
        self._announced.created(made)
        return made

    async def _withdraw(self, tally: Tally, pods: list[Json]) -> None:
        """Delete unwanted pods; without finalizer, so that they do not count as failures."""
        await self._remove_finalizers(pods)
        await self._remove(pods)
        gone = {pod["metadata"]["uid"] for pod in pods}
        tally.active = [pod for pod in tally.active if pod["metadata"]["uid"] not in gone]

    async def _remove(self, pods: list[Json]) -> None:
        await gather_results(self._remove_one(pod) for pod in pods)

    async def _remove_one(self, pod: Json) -> None:
        if await self._pods.delete(pod):
            self._announced.deleted(pod)

    async def _remove_finalizers(self, pods: list[Json], for_good: set[str] | None = None, run: str = "") -> None:
        """Remove our finalizer from counted pods; those in `for_good` still count as members of their gang."""
        await gather_results(
            self._remove_finalizer(pod, run if pod["metadata"]["uid"] in (for_good or ()) else "") for pod in pods
        )

    async def _remove_finalizer(self, pod: Json, completed_in: str = "") -> None:
        meta = pod["metadata"]
        finalizers = meta.get("finalizers") or []
        if TRACKING not in finalizers:
            return
        left = [f for f in finalizers if f != TRACKING]
        patch: Json = {"metadata": {"uid": meta["uid"], "finalizers": left or None}}
        if completed_in:
            patch["metadata"]["annotations"] = {COMPLETED_IN: completed_in}
        with suppress(NotFound):
            await self._pods.patch(pod, patch)

    # ---- status

    async def _write_status(
        self, job: Json, tally: Tally, verdict: JobVerdict | None, for_good: set[str], refusal: GroupingRefused | None
    ) -> None:
        before = job.get("status") or {}
        conditions = conditions_of(job)
        follow_refusal(conditions, TOO_MANY, refusal, self._clock)
        suspended = bool(job["spec"].get("suspend"))
        known = next((c for c in conditions if c["type"] == "Suspended"), None)
        if verdict is None:
            if suspended and (known is None or known["status"] != "True"):
                self._condition(conditions, "Suspended", "True", "JobSuspended", "Job suspended")
                self._events.normal(job, NAME, "Suspended", "Job suspended")
            elif not suspended and known is not None and known["status"] == "True":
                self._condition(conditions, "Suspended", "False", "JobResumed", "Job resumed")
                self._events.normal(job, NAME, "Resumed", "Job resumed")
        status: Json = {key: before[key] for key in ("startTime", "completionTime") if key in before}
        status |= tally.status()
        status |= {"active": len(tally.active) or None, "ready": sum(map(ready, tally.active))}
        if suspended:
            status.pop("startTime", None)
        else:
            status.setdefault("startTime", rfc3339(self._clock.now()))
        if verdict is not None:
            done = not tally.active and not tally.terminating and tally.settled
            self._conclude(status, conditions, verdict, done=done)
        status["conditions"] = conditions
        job = await write_status(self._jobs, job, status)
        await self._remove_finalizers(tally.release, for_good, run_of(job))
        if tally.release and not tally.settled:
            self.queue.add(Key(job["metadata"]["namespace"], job["metadata"]["name"]))
        if verdict is None:
            self._plan_deadline(job)
        elif is_finished(job):
            if verdict.type == "Complete":
                self._events.normal(job, NAME, "Completed", "Job completed")
            else:
                self._events.warning(job, NAME, verdict.reason, verdict.message)
            self.queue.add(Key(job["metadata"]["namespace"], job["metadata"]["name"]))  # remove other finalizers

    def _conclude(self, status: Json, conditions: list[Json], verdict: JobVerdict, *, done: bool) -> None:
        target = "SuccessCriteriaMet" if verdict.type == "Complete" else "FailureTarget"
        if not any(c["type"] == target and c["status"] == "True" for c in conditions):
            self._condition(conditions, target, "True", verdict.reason, verdict.message)
        if not done:
            return
        self._condition(conditions, verdict.type, "True", verdict.reason, verdict.message)
        if verdict.type == "Complete":
            status["completionTime"] = rfc3339(self._clock.now())

    def _condition(self, conditions: list[Json], type_: str, status: str, reason: str, message: str) -> None:
        probed = rfc3339(self._clock.now())
        set_condition(conditions, type_, status, reason, message, self._clock, lastProbeTime=probed)

    def _plan_deadline(self, job: Json) -> None:
        seconds = job["spec"].get("activeDeadlineSeconds")
        start = (job.get("status") or {}).get("startTime")
        if seconds is not None and start and not job["spec"].get("suspend"):
            left = parse_rfc3339(start) + int(seconds) - self._clock.now()
            self.queue.add_after(Key(job["metadata"]["namespace"], job["metadata"]["name"]), max(left, 0.0) + 0.05)

    async def _expire(self, job: Json) -> None:
        """Delete a finished Job when its ttlSecondsAfterFinished is over, or requeue it for then."""
        ttl, end, meta = job["spec"].get("ttlSecondsAfterFinished"), finish_time(job), job["metadata"]
        if ttl is None or end is None or deleting(job):
            return
        left = end + int(ttl) - self._clock.now()
        if left > 0:
            self.queue.add_after(Key(meta["namespace"], meta["name"]), left + 0.05)
            return
        await self._jobs.delete(job, "Foreground")


def _job_of(pod: Json) -> str:
    """Return the Job that created the pod, also when the garbage collector has removed its owner reference."""
    meta = pod["metadata"]
    reference = controller_of(pod)
    if reference is not None:
        return str(reference["name"]) if reference["kind"] == "Job" else ""
    if TRACKING in (meta.get("finalizers") or ()):
        return str((meta.get("labels") or {}).get(JOB_NAME) or "")
    return ""


def same_requests(new: Json, old: Json) -> bool:
    """Return True if an update changed no field that its author sets."""

    def workload_annotations(obj: Json) -> tuple[object, ...]:
        meta = obj["metadata"]
        return meta["uid"], meta.get("generation"), meta.get("deletionTimestamp"), meta.get("annotations")

    return workload_annotations(new) == workload_annotations(old)


def _index_by_job(pod: Json) -> list[str]:
    name = _job_of(pod)
    return [f"{pod['metadata']['namespace']}/{name}"] if name else []


def _index_held(pod: Json) -> list[str]:
    """Cache index: pods that carry our finalizer, by Job."""
    return _index_by_job(pod) if TRACKING in (pod["metadata"].get("finalizers") or ()) else []


def _index_by_own_selector(job: Json) -> list[str]:
    """Cache index: Jobs with manualSelector, the only ones that may match pods without the Job's name label."""
    return [job["metadata"]["namespace"]] if job["spec"].get("manualSelector") else []


def _index_by_parent(job: Json) -> list[str]:
    """Cache index: Jobs whose parent promised a Workload, by the parent."""
    owner = controller_of(job)
    if owner is None or GROUP_TEMPLATE not in (job["metadata"].get("annotations") or {}):
        return []
    return [f"{job['metadata']['namespace']}/{owner['apiVersion'].rpartition('/')[0]}/{owner['kind']}/{owner['name']}"]


def is_finished(job: Json) -> bool:
    return outcome(job) is not None


def outcome(job: Json) -> Json | None:
    """Return the condition Complete or Failed, once it is true."""
    for type_ in ("Complete", "Failed"):
        entry = condition(job, type_)
        if entry is not None and entry["status"] == "True":
            return entry
    return None


def finish_time(job: Json) -> float | None:
    """Return when a Job ended; None while it runs, or if its condition has no time."""
    since = (outcome(job) or {}).get("lastTransitionTime")
    return parse_rfc3339(since) if since else None


def _end_time(pod: Json) -> float:
    times = [
        container["state"]["terminated"].get("finishedAt")
        for container in (pod.get("status") or {}).get("containerStatuses") or ()
        if "terminated" in (container.get("state") or {})
    ]
    return max((parse_rfc3339(time) for time in times if time), default=0.0)
