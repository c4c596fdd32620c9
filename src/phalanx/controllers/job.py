"""Job: runs pods until enough have succeeded, or too many have failed.

Each pod carries a finalizer until it has been counted, so that a pod deleted behind our back is neither lost nor
counted twice. Counting and releasing are two writes: `status.uncountedTerminatedPods` bridges a crash between them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import msgspec

from phalanx.base.clock import Clock, parse_rfc3339, rfc3339
from phalanx.base.errors import NotFound
from phalanx.controllers import resources as r
from phalanx.controllers.expectations import Expectations
from phalanx.controllers.indexes import format_indexes, parse_indexes
from phalanx.controllers.job_policy import Verdict, judge_failures
from phalanx.controllers.ownership import controller_of, deleting, index_by_controller
from phalanx.controllers.pods import active, finished, from_template, phase, ready, removal_rank
from phalanx.controllers.runtime import Caches, Controller, Json, Key
from phalanx.controllers.status import conditions_of, set_condition, write_status

TRACKING = "batch.kubernetes.io/job-tracking"
INDEX = "batch.kubernetes.io/job-completion-index"
CONTROLLER = "kubernetes.io/job-controller"
BURST = 500
FIRST_BACKOFF, LONGEST_BACKOFF = 10.0, 600.0


@dataclass(slots=True)
class Tally:
    """What the pods of a Job say, together with what was counted before."""

    active: list[Json] = field(default_factory=list)
    terminating: list[Json] = field(default_factory=list)
    new_succeeded: list[Json] = field(default_factory=list)
    new_failed: list[Json] = field(default_factory=list)
    succeeded: int = 0
    failed: int = 0
    completed_indexes: set[int] = field(default_factory=set)


class JobController(Controller):
    name = "job"
    workers = 8

    def __init__(self, caches: Caches, clock: Clock) -> None:
        super().__init__()
        self._client, self._clock = caches.client, clock
        self._jobs = caches.of(r.JOBS)
        self._pods = caches.of(r.PODS)
        self._pods.index("controller", index_by_controller)
        self._expected = Expectations(clock)
        self._last_failure: dict[str, float] = {}  # by Job uid; a restart forgets it and is merely less patient
        self._jobs.on_change(lambda key, new, old: self.queue.add(key))
        self._pods.on_change(self._pod_changed)

    def _pod_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        for pod in (new, old):
            reference = controller_of(pod) if pod is not None else None
            if pod is not None and reference is not None and reference["kind"] == "Job":
                self._expected.seen(reference["uid"], pod["metadata"]["name"])
                self.queue.add(Key(key.namespace, reference["name"]))

    async def reconcile(self, key: Key) -> None:
        job = self._jobs.get(*key)
        if job is None:
            await self._release_orphans(key)
            return
        if job["spec"].get("managedBy", CONTROLLER) != CONTROLLER:
            return
        pods = self._pods.by_index("controller", job["metadata"]["uid"])
        if _finished(job):
            await self._let_go(pods)
            self._plan_expiry(job)
            await self._expire(job)
            return
        tally = self._tally(job, pods)
        verdict = self._verdict(job, tally)
        if deleting(job):
            await self._finish_counting(job, tally, None)
            return
        if verdict is not None:
            await self._end(job, tally, verdict)
            return
        if job["spec"].get("suspend"):
            await self._remove(tally.active)
        elif self._expected.fulfilled(job["metadata"]["uid"]):
            await self._arrange(job, tally)
        await self._finish_counting(job, tally, None)

    # ---- counting

    def _tally(self, job: Json, pods: list[Json]) -> Tally:
        status = job.get("status") or {}
        tally = Tally(succeeded=int(status.get("succeeded") or 0), failed=int(status.get("failed") or 0))
        indexed = _indexed(job)
        tally.completed_indexes = parse_indexes(status.get("completedIndexes", "")) if indexed else set()
        for pod in pods:
            if active(pod):
                tally.active.append(pod)
                continue
            if deleting(pod) and not finished(pod):
                tally.terminating.append(pod)
                if job["spec"].get("podReplacementPolicy", "TerminatingOrFailed") == "Failed":
                    continue  # counts as failed only when it really has
                # A pod that is going away without having succeeded counts as failed, once.
            if TRACKING not in (pod["metadata"].get("finalizers") or ()):
                continue  # counted before
            (tally.new_succeeded if phase(pod) == "Succeeded" else tally.new_failed).append(pod)
        if indexed:
            completions = int(job["spec"].get("completions") or 0)
            for pod in tally.new_succeeded:
                index = _index_of(pod)
                if index is not None and index < completions:
                    tally.completed_indexes.add(index)
            tally.succeeded = len(tally.completed_indexes)
        else:
            tally.succeeded += len(tally.new_succeeded)
        tally.failed += len(tally.new_failed)
        return tally

    def _verdict(self, job: Json, tally: Tally) -> Verdict | None:
        """How the Job ends now, or None when it goes on."""
        spec = job["spec"]
        failed = judge_failures(job, tally.new_failed, tally.failed, tally.active, self._clock.now())
        if failed is not None:
            return failed
        completions = spec.get("completions")
        if completions is None:
            if tally.succeeded and not tally.active and not tally.terminating:
                return Verdict("Complete", "CompletionsReached", "Reached expected number of succeeded pods")
            return None
        if tally.succeeded >= int(completions):
            return Verdict("Complete", "CompletionsReached", "Reached expected number of succeeded pods")
        return None

    # ---- pods

    async def _arrange(self, job: Json, tally: Tally) -> None:
        spec = job["spec"]
        parallelism = int(spec.get("parallelism", 1))
        completions = spec.get("completions")
        if completions is None:
            wanted = min(parallelism, len(tally.active)) if tally.succeeded else parallelism
        else:
            wanted = min(parallelism, int(completions) - tally.succeeded)
        surplus = self._surplus(job, tally, max(0, wanted))
        if surplus:
            await self._remove(surplus[:BURST])
            return
        missing = wanted - len(tally.active)
        if spec.get("podReplacementPolicy") == "Failed":
            missing -= len(tally.terminating)
        if missing <= 0:
            return
        wait = self._backoff(job, tally)
        if wait > 0:
            self.queue.add_after(Key(job["metadata"]["namespace"], job["metadata"]["name"]), wait)
            return
        await self._create(job, tally, min(missing, BURST))

    def _surplus(self, job: Json, tally: Tally, wanted: int) -> list[Json]:
        if not _indexed(job):
            return sorted(tally.active, key=removal_rank)[: max(0, len(tally.active) - wanted)]
        completions = int(job["spec"].get("completions") or 0)
        seen: set[int] = set()
        extra = []
        for pod in sorted(tally.active, key=removal_rank, reverse=True):
            index = _index_of(pod)
            if index is None or index >= completions or index in seen or index in tally.completed_indexes:
                extra.append(pod)
            else:
                seen.add(index)
        kept = [pod for pod in tally.active if pod not in extra]
        # Lower indexes stay: a smaller gang is the first part of the larger one.
        kept.sort(key=lambda pod: _index_of(pod) or 0)
        return extra + kept[wanted:][::-1]

    def _backoff(self, job: Json, tally: Tally) -> float:
        """Seconds until a replacement for the last failure may be made."""
        if not tally.failed:
            return 0.0
        uid = job["metadata"]["uid"]
        ends = [_end_time(pod) for pod in tally.new_failed if not deleting(pod)]
        last = self._last_failure[uid] = max([self._last_failure.get(uid, 0.0), *ends])
        if not last:
            return 0.0
        streak = min(tally.failed, 10)
        return last + min(LONGEST_BACKOFF, FIRST_BACKOFF * 2.0 ** (streak - 1)) - self._clock.now()

    async def _create(self, job: Json, tally: Tally, count: int) -> None:
        if _indexed(job):
            busy = {_index_of(pod) for pod in [*tally.active, *tally.terminating]} | tally.completed_indexes
            indexes: list[int | None] = []
            for index in range(int(job["spec"].get("completions") or 0)):
                if len(indexes) == count:
                    break
                if index not in busy:
                    indexes.append(index)
        else:
            indexes = [None] * count
        batch = 1
        while indexes:
            now, indexes = indexes[:batch], indexes[batch:]
            await asyncio.gather(*(self._create_one(job, index) for index in now))
            batch *= 2

    async def _create_one(self, job: Json, index: int | None) -> None:
        name = job["metadata"]["name"]
        prefix = f"{name}-" if index is None else f"{name}-{index}-"
        pod = from_template(job["spec"]["template"], job, r.JOBS, prefix=prefix)
        pod["metadata"]["finalizers"] = [*pod["metadata"].get("finalizers", []), TRACKING]
        if index is not None:
            pod["metadata"]["labels"][INDEX] = str(index)
            pod["metadata"]["annotations"][INDEX] = str(index)
            pod["spec"]["hostname"] = f"{name}-{index}"[:63]
            for container in [*pod["spec"].get("containers", []), *(pod["spec"].get("initContainers") or [])]:
                env = [e for e in container.get("env") or () if e["name"] != "JOB_COMPLETION_INDEX"]
                source = {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX}']"}}
                container["env"] = [*env, {"name": "JOB_COMPLETION_INDEX", "valueFrom": source}]
        made: Json = msgspec.json.decode(await self._client.create(r.PODS, pod, job["metadata"]["namespace"]))
        if self._pods.get(made["metadata"]["namespace"], made["metadata"]["name"]) is None:
            self._expected.expect(job["metadata"]["uid"], made["metadata"]["name"])

    async def _remove(self, pods: list[Json]) -> None:
        await asyncio.gather(*(self._remove_one(pod) for pod in pods))

    async def _remove_one(self, pod: Json) -> None:
        meta = pod["metadata"]
        try:
            await self._client.delete(r.PODS, meta["name"], meta["namespace"], uid=meta["uid"])
        except NotFound:
            return

    async def _let_go(self, pods: list[Json]) -> None:
        """Take our finalizer off pods that are counted."""
        await asyncio.gather(*(self._let_go_one(pod) for pod in pods))

    async def _let_go_one(self, pod: Json) -> None:
        meta = pod["metadata"]
        finalizers = meta.get("finalizers") or []
        if TRACKING not in finalizers:
            return
        left = [f for f in finalizers if f != TRACKING]
        patch = {"metadata": {"uid": meta["uid"], "finalizers": left or None}}
        try:
            answer: Json = msgspec.json.decode(await self._client.patch(r.PODS, meta["name"], patch, meta["namespace"]))
            self._pods.remember(answer)
        except NotFound:
            return

    async def _release_orphans(self, key: Key) -> None:
        """A Job deleted with orphaned or background dependents must not hold its pods for ever."""
        for pod in self._pods:
            reference = controller_of(pod)
            if (
                reference is not None
                and reference["kind"] == "Job"
                and reference["name"] == key.name
                and pod["metadata"]["namespace"] == key.namespace
            ):
                await self._let_go_one(pod)

    # ---- status

    async def _end(self, job: Json, tally: Tally, verdict: Verdict) -> None:
        """Stop what runs; the terminal condition comes when every pod has ended."""
        await self._remove(tally.active)
        await self._finish_counting(job, tally, verdict)
        self._last_failure.pop(job["metadata"]["uid"], None)

    async def _finish_counting(self, job: Json, tally: Tally, verdict: Verdict | None) -> Json:
        spec, before = job["spec"], job.get("status") or {}
        counted = [*tally.new_succeeded, *tally.new_failed]
        conditions = conditions_of(job)
        now = rfc3339(self._clock.now())
        suspended = bool(spec.get("suspend"))
        known = next((c for c in conditions if c["type"] == "Suspended"), None)
        if suspended and (known is None or known["status"] != "True"):
            set_condition(
                conditions, "Suspended", "True", "JobSuspended", "Job suspended", self._clock, lastProbeTime=now
            )
        elif not suspended and known is not None and known["status"] == "True":
            set_condition(conditions, "Suspended", "False", "JobResumed", "Job resumed", self._clock, lastProbeTime=now)
        running = [] if suspended else tally.active
        status: Json = {
            **{k: v for k, v in before.items() if k in ("startTime", "completionTime", "failedIndexes")},
            "active": len(running) or None,
            "ready": sum(map(ready, running)),
            "terminating": len(tally.terminating) or None,
            "succeeded": tally.succeeded or None,
            "failed": tally.failed or None,
            "completedIndexes": format_indexes(tally.completed_indexes) or None if _indexed(job) else None,
            "uncountedTerminatedPods": {},
        }
        if suspended:
            status.pop("startTime", None)
        else:
            status.setdefault("startTime", now)
        if verdict is not None:
            self._conclude(status, conditions, verdict, done=not tally.active and not tally.terminating, now=now)
        status["conditions"] = conditions
        job = await write_status(self._jobs, job, status)
        await self._let_go(counted)
        if verdict is None:
            self._plan_deadline(job)
        elif _finished(job):
            self._plan_expiry(job)
        return job

    def _conclude(self, status: Json, conditions: list[Json], verdict: Verdict, *, done: bool, now: str) -> None:
        target = "SuccessCriteriaMet" if verdict.type == "Complete" else "FailureTarget"
        if not any(c["type"] == target and c["status"] == "True" for c in conditions):
            self._condition(conditions, target, "True", verdict.reason, verdict.message)
        if done:
            status["active"] = None
            self._condition(conditions, verdict.type, "True", verdict.reason, verdict.message)
            if verdict.type == "Complete":
                status["completionTime"] = now

    def _condition(self, conditions: list[Json], type_: str, status: str, reason: str, message: str) -> None:
        probed = rfc3339(self._clock.now())
        set_condition(conditions, type_, status, reason, message, self._clock, lastProbeTime=probed)

    def _plan_deadline(self, job: Json) -> None:
        seconds = job["spec"].get("activeDeadlineSeconds")
        start = (job.get("status") or {}).get("startTime")
        if seconds is not None and start and not job["spec"].get("suspend"):
            left = parse_rfc3339(start) + int(seconds) - self._clock.now()
            self.queue.add_after(Key(job["metadata"]["namespace"], job["metadata"]["name"]), max(left, 0.0) + 0.05)

    def _plan_expiry(self, job: Json) -> None:
        ttl = job["spec"].get("ttlSecondsAfterFinished")
        end = _finish_time(job)
        if ttl is not None and end is not None and not deleting(job):
            left = end + int(ttl) - self._clock.now()
            if left > 0:
                self.queue.add_after(Key(job["metadata"]["namespace"], job["metadata"]["name"]), left + 0.05)

    async def _expire(self, job: Json) -> None:
        ttl, end, meta = job["spec"].get("ttlSecondsAfterFinished"), _finish_time(job), job["metadata"]
        if ttl is None or end is None or deleting(job) or end + int(ttl) > self._clock.now():
            return
        try:
            await self._client.delete(
                r.JOBS, meta["name"], meta["namespace"], propagation="Foreground", uid=meta["uid"]
            )
        except NotFound:
            return


def _finished(job: Json) -> bool:
    return _finish_time(job) is not None


def _finish_time(job: Json) -> float | None:
    for entry in (job.get("status") or {}).get("conditions") or ():
        if entry["type"] in ("Complete", "Failed") and entry["status"] == "True":
            return parse_rfc3339(entry["lastTransitionTime"])
    return None


def _indexed(job: Json) -> bool:
    return bool(job["spec"].get("completionMode") == "Indexed")


def _index_of(pod: Json) -> int | None:
    text = (pod["metadata"].get("annotations") or {}).get(INDEX, "")
    return int(text) if text.isdecimal() else None


def _end_time(pod: Json) -> float:
    times = [
        container["state"]["terminated"].get("finishedAt")
        for container in (pod.get("status") or {}).get("containerStatuses") or ()
        if "terminated" in (container.get("state") or {})
    ]
    return max((parse_rfc3339(time) for time in times if time), default=0.0)
