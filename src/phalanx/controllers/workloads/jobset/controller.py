"""JobSet: create its Jobs in order, group their pods, restart them together, and report its status.

Each reconcile ends with one status write; after a crash the next one finishes the work.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import islice

import msgspec

from phalanx.base import resources as r
from phalanx.base.clock import Clock
from phalanx.base.errors import AlreadyExists, Forbidden, Invalid, NotFound
from phalanx.controllers.grouping.core import BATCH, Grouping, GroupingRefused
from phalanx.controllers.grouping.ungrouped_pods import NO_PODS, Gang, counts_for_gang, each_without_ungrouped
from phalanx.controllers.grouping.user_workload import ignored_note, made_by_hand
from phalanx.controllers.runtime.cache import MARKED
from phalanx.controllers.runtime.controller import Cache, Caches, Controller, Json, Key
from phalanx.controllers.runtime.events import Events
from phalanx.controllers.runtime.groups import GroupPhase, Groups
from phalanx.controllers.runtime.ownership import controlled_by, controller_of, deleting, index_by_controller
from phalanx.controllers.runtime.pods import group_of, phase
from phalanx.controllers.runtime.status import conditions_of, gather_results, write_status
from phalanx.controllers.workloads.job.controller import same_requests
from phalanx.controllers.workloads.job.tally import deleted_for_good
from phalanx.controllers.workloads.jobset import policy as policy
from phalanx.controllers.workloads.jobset.gang_config import check_links, uses_gang_config, workload_name
from phalanx.controllers.workloads.jobset.grouping import group_job_set
from phalanx.controllers.workloads.jobset.in_place_restart import reported, restart_in_place, restarts_in_place
from phalanx.controllers.workloads.jobset.jobs import (
    JOB_INDEX,
    build,
    claims,
    has_host_names,
    jobset_of,
    link_of,
    replicas_of,
    service,
    template_patch,
)
from phalanx.controllers.workloads.jobset.observed_state import ObservedJobSet
from phalanx.controllers.workloads.jobset.shape import JobSetShape, job_name, shape_of
from phalanx.controllers.workloads.jobset.status import children_of, counters, number_of

NAME = "jobset-controller"
MANAGED_BY = "jobset.sigs.k8s.io/jobset-controller"
GATES_OFF = "Groups need the feature gates GenericWorkload and JobSetGang; its pods start one by one"
GATHERING = 0.1  # seconds in which Job changes are batched into one reconcile
_CREATION_FAILED = {"PersistentVolumeClaim": "PVCCreationFailed", "Service": "HeadlessServiceCreationFailed"}
RETRY = 10.0  # seconds until a name taken by another owner is tried again


class JobSetController(Controller):
    name = "jobset"
    workers = 16

    def __init__(self, caches: Caches, clock: Clock, events: Events, groups: Groups | None = None) -> None:
        """Create the controller. groups None: pods are not grouped (gate GenericWorkload off)."""
        super().__init__()
        self._client, self._clock, self._events, self._groups = caches.client, clock, events, groups
        self._sets = caches.of(r.JOB_SETS, optional=True)
        self._jobs = caches.of(r.JOBS)
        self._services = caches.of(r.SERVICES)
        self._claims = caches.of(r.PERSISTENT_VOLUME_CLAIMS)
        self._pods = caches.of(r.PODS)
        self._jobs.index("controller", index_by_controller)
        self._pods.index("controller", index_by_controller, of_marks=True)
        self._sets.on_change(self._set_changed)
        self.report_refusals(self._sets, events)
        self._jobs.on_change(self._job_changed)
        self._services.on_change(self._service_changed)
        if groups is not None:
            groups.requeue_on_change("JobSet", self.queue)
            groups.workloads.on_change(self._workload_changed)
        self._pods.on_change(self._pod_changed, of=MARKED)

    def _set_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        if new is None or old is None or not new.get("status") or not same_requests(new, old):
            self.queue.add(key)  # not for echoes of our own status writes

    def _service_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        if new is None:
            self._job_changed(key, new, old)

    def _job_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        if new is not None and old is not None and same_requests(new, old) and new.get("status") == old.get("status"):
            return
        for obj in (new, old):
            reference = controller_of(obj) if obj is not None else None
            if reference is not None and reference["kind"] == "JobSet":
                self.queue.add_after(Key(key.namespace, reference["name"]), GATHERING)

    def _pod_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        """Requeue the set for restarts in place and for pods that its gang does not require: outside its groups, or
        deleted after completion."""
        name = jobset_of(new or old or {})
        if not name:
            return
        outside = self._groups is not None and not group_of(new or old or {})
        gone = self._groups is not None and new is None and old is not None and phase(old) == "Succeeded"
        if gone or (outside and (old is None or new is None or counts_for_gang(old) != counts_for_gang(new))):
            self.queue.add_after(Key(key.namespace, name), GATHERING)
        elif old is None or new is None or reported(old) != reported(new):
            jobset = self._sets.get(key.namespace, name)
            if jobset is not None and restarts_in_place(jobset):
                self.queue.add_after(Key(key.namespace, name), GATHERING)

    def _workload_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        """Requeue a JobSet that may wait for a Workload created by a user."""
        about = ((new or old or {}).get("spec") or {}).get("controllerRef")
        if about and about["kind"] == "JobSet":
            self.queue.add(Key(key.namespace, about["name"]))

    async def reconcile(self, key: Key) -> None:
        jobset = self._sets.get(*key)
        if jobset is None or deleting(jobset) or jobset["spec"].get("managedBy", MANAGED_BY) != MANAGED_BY:
            return
        children = children_of(jobset, self._jobs.by_index("controller", jobset["metadata"]["uid"]))
        status = {"restarts": 0, **(jobset.get("status") or {}), "conditions": conditions_of(jobset)}
        status["replicatedJobsStatus"] = counters(jobset, children)
        look = ObservedJobSet(jobset, children, status, self._clock)
        if look.finished:
            await self._delete_jobs(children.active)  # its groups stay as long as it does, as a record
            await self._expire(look)
        else:
            await self._advance(look)
            if look.finished:
                self.queue.add(key)  # to clean up
        await write_status(self._sets, jobset, status)
        for type_, reason, note in look.updates:
            (self._events.normal if type_ == "Normal" else self._events.warning)(jobset, NAME, reason, note)

    async def _advance(self, look: ObservedJobSet) -> None:
        jobset, children = look.jobset, look.children
        try:
            shape_of(jobset)
        except GroupingRefused as refusal:  # the request exceeds the limits
            look.refuse(refusal)
            return
        await self._delete_jobs(children.previous)
        look.note_ready()
        if children.failed:
            self._react(look)
            return
        if children.successful and policy.success(jobset, children.successful):
            look.finish("Completed", "AllJobsCompleted", "jobset completed successfully")
            return
        try:
            grouping = await self._group(look)
        except (GroupingRefused, Invalid, Forbidden) as problem:
            look.refuse(
                problem
                if isinstance(problem, GroupingRefused)
                else GroupingRefused(str(problem), "GroupCreationFailed")
            )
            self.queue.add_after(look.key, RETRY)
            if jobset["spec"].get("suspend"):
                await self._suspend_or_resume(look, Grouping())  # stopping is always possible
            return
        await self._serve(look)
        if grouping is not None:
            await self._create_jobs(look, grouping)
            await self._suspend_or_resume(look, grouping)
        if restarts_in_place(jobset):
            jobs = (*children.active, *children.successful)
            pods = [pod for job in jobs for pod in self._pods.by_index("controller", job["metadata"]["uid"])]
            restart_in_place(look, pods, sum(part.pods for part in shape_of(jobset).parts))

    # ---- groups

    async def _group(self, look: ObservedJobSet) -> Grouping | None:
        """Return the grouping if its objects exist; None while they cannot be created."""
        if self._groups is None:
            if group_job_set(look.jobset):
                look.refuse(GroupingRefused(GATES_OFF, "APINotAvailable"))
            return Grouping()
        jobset = look.jobset
        meta = jobset["metadata"]
        shape = shape_of(jobset)
        named: set[str] = {str(part.pod_spec["workloadRef"]["name"]) for part in shape.parts if part.names_workload}
        if uses_gang_config(jobset):
            named.add(workload_name(shape.name))
        by_name = [found for name in sorted(named) if (found := self._groups.workloads.get(meta["namespace"], name))]
        check_links(shape, by_name)
        about = self._groups.for_owner(jobset)
        grouping = group_job_set(jobset, [*by_name, *(found for found in about if found not in by_name)])
        by_hand = made_by_hand(jobset, about) if grouping.workload is None else None
        if by_hand is not None and (grouping or by_hand in by_name):
            await self._groups.adopt(jobset, by_hand)
        elif by_hand is not None and not any(part.linked for part in shape.parts):
            note = ignored_note(jobset, by_hand, "spec.gangConfig or spec.scheduling")
            self._events.warning(jobset, NAME, "WorkloadIgnored", note)
        # Also for a suspended set: a capacity planner needs its requests (API design paper).
        idle = all(job["spec"].get("suspend") for job in look.children.active)
        grouping = each_without_ungrouped(grouping, self._gangs(look, shape, grouping))
        if idle and self._groups.any_deleting(jobset, grouping):
            # Objects of an earlier run are deleted, down to the last pod; nothing is created meanwhile.
            await self._groups.remove(jobset, plans=False)
            return None
        state = await self._groups.ensure(jobset, grouping, NAME, idle=idle, in_use=not idle)
        if grouping:
            look.grouped()
        for reason, text in grouping.notes:
            self._events.warning(jobset, NAME, reason, text)
        return None if state is GroupPhase.REPLACING else grouping

    def _gangs(self, look: ObservedJobSet, shape: JobSetShape, grouping: Grouping) -> dict[str, Gang]:
        """Return the pods that should be in the groups of its Jobs."""
        found: dict[str, Gang] = {}
        begun = (*look.children.active, *look.children.successful)
        there = {job["metadata"]["name"]: job for job in begun}
        for part in shape.parts:
            for job in shape.jobs(part):
                link = grouping.links.get(job)
                if link is None or not link.pod_group:
                    continue
                begun_job = there.get(job)
                pods = list(self._pods.by_index("controller", begun_job["metadata"]["uid"])) if begun_job else []
                gone = deleted_for_good(begun_job, pods) if begun_job else 0
                found[link.pod_group] = found.get(link.pod_group, NO_PODS).plus(part.size, pods, gone)
        return found

    # ---- children

    async def _serve(self, look: ObservedJobSet) -> None:
        """Create the Service and the shared claims; a failure is reported and blocks nothing else."""
        jobset = look.jobset
        wanted = [(self._claims, claim) for claim in claims(jobset)]
        if has_host_names(jobset):
            wanted.append((self._services, service(jobset)))
        for cache, body in wanted:
            try:
                await self._ensure(cache, body)
            except (Invalid, Forbidden) as problem:
                kind = cache.resource.kind
                text = f"{kind} {body['metadata']['name']} cannot be created: {problem}"
                look.updates.append(("Warning", _CREATION_FAILED[kind], text))
                self.queue.add_after(look.key, RETRY)

    async def _ensure(self, cache: Cache, body: Json) -> None:
        meta = body["metadata"]
        if cache.get(meta["namespace"], meta["name"]) is not None:
            return
        with suppress(AlreadyExists):
            await cache.create(body)

    async def _create_jobs(self, look: ObservedJobSet, grouping: Grouping) -> None:
        jobset, children = look.jobset, look.children
        failure = jobset["spec"].get("failurePolicy") or {}
        if failure.get("restartStrategy") == "BlockingRecreate" and children.previous:
            return
        there = children.names
        made: list[Json] = []
        for item in look.turns():
            missing = (
                index
                for index in range(replicas_of(item))
                if job_name(jobset["metadata"]["name"], item["name"], index) not in there
            )
            bodies = [self._body(look, item, index, grouping) for index in islice(missing, BATCH - len(made))]
            made += [job for job in await gather_results(self._create_job(look, body) for body in bodies) if job]
            if len(made) >= BATCH:
                self.queue.add(look.key)  # the next reconcile creates the others
                break
        children.active += made
        if made:
            look.status["replicatedJobsStatus"] = counters(jobset, children)

    def _body(self, look: ObservedJobSet, item: Json, index: int, grouping: Grouping) -> Json:
        name = job_name(look.jobset["metadata"]["name"], item["name"], index)
        link = grouping.links.get(name)
        return build(
            look.jobset,
            item,
            index,
            look.attempt,
            job_attempt=look.job_attempt(item["name"], index),
            link=link,
            own_domain=link is not None and _bound(grouping, link.pod_group, look.exclusive(item)),
        )

    async def _create_job(self, look: ObservedJobSet, body: Json) -> Json | None:
        meta = body["metadata"]
        known = self._jobs.get(meta["namespace"], meta["name"])
        if known is None:
            try:
                return await self._jobs.create(body)
            except (Invalid, Forbidden) as problem:
                text = f"Job {meta['name']} cannot be created: {problem}"
                self._events.warning(look.jobset, NAME, "JobCreationFailed", text)
                problem.reported = True
                raise
            except AlreadyExists:
                known = msgspec.json.decode(await self._client.get(r.JOBS, meta["name"], meta["namespace"]))
        if controlled_by(known, look.jobset["metadata"]["uid"]):
            return None
        owner = controller_of(known)
        if not deleting(known) and (owner is None or owner["name"] != look.jobset["metadata"]["name"]):
            text = f"Job {meta['name']} already exists and is not part of this JobSet; delete it or rename the JobSet"
            look.updates.append(("Warning", "JobCreationFailed", text))
        self.queue.add_after(look.key, RETRY)
        return None

    async def _suspend_or_resume(self, look: ObservedJobSet, grouping: Grouping) -> None:
        jobset = look.jobset
        if jobset["spec"].get("suspend"):
            running = [job for job in look.children.active if not job["spec"].get("suspend")]
            await gather_results(self._patch_job(job, {"spec": {"suspend": True}}) for job in running)
            look.condition("Suspended", "True", "SuspendedJobs", "jobset is suspended", updates=True)
            look.not_restarting("JobSetSuspended", "jobset is suspended")
            return
        for item in look.turns():
            for job in look.children.of(item["name"]):
                await self._bring_up_to_date(look, item, job, grouping)
        if look.known("Suspended") == "True":
            look.condition("Suspended", "False", "ResumeJobs", "jobset is resumed", updates=True)
        look.note_order()

    async def _bring_up_to_date(self, look: ObservedJobSet, item: Json, job: Json, grouping: Grouping) -> None:
        """Resume a suspended Job with the JobSet's current template; update the size of a running one."""
        if deleting(job):
            return
        if job["spec"].get("suspend"):
            index = number_of(job, JOB_INDEX)
            wanted = self._body(look, item, index, grouping)
            if link_of(job) != link_of(wanted):
                await self._delete_jobs([job])  # a template's group is immutable; nothing runs, so recreate the Job
                return
            patch = template_patch(job, wanted)
            if patch is not None:
                job = await self._patch_job(job, patch)
            await self._patch_job(job, {"spec": {"suspend": False}})
            return
        sizes = {key: item["template"]["spec"].get(key) for key in ("parallelism", "completions")}
        if any(value is not None and value != job["spec"].get(key) for key, value in sizes.items()):
            await self._patch_job(job, {"spec": sizes})

    async def _patch_job(self, job: Json, patch: Json) -> Json:
        try:
            patched = await self._jobs.patch(job, patch)
        except NotFound:
            return job
        # The watch event contains no further change, but the status has to be written.
        reference = controller_of(job)
        if reference is not None:
            self.queue.add_after(Key(job["metadata"]["namespace"], reference["name"]), GATHERING)
        return patched

    async def _delete_jobs(self, jobs: list[Json]) -> None:
        leaving = [job for job in jobs if not deleting(job)]
        await gather_results(self._jobs.delete(job, "Foreground") for job in leaving)

    # ---- ends

    def _react(self, look: ObservedJobSet) -> None:
        found = policy.reaction(look.jobset, look.children.failed)
        failure, name = look.jobset["spec"].get("failurePolicy") or {}, found.job["metadata"]["name"]
        if found.action == policy.FAIL:
            text = f"jobset failed due to one or more job failures (first failed job: {name})"
            look.finish("Failed", "FailedJobs" if not found.rule else "FailJobSetFailurePolicyAction", text)
            return
        free = found.action in (policy.RESTART_FREE, policy.RESTART_JOB_FREE)
        if not free and look.restarts_counted() >= int(failure.get("maxRestarts") or 0):
            text = f"jobset failed due to reaching max number of restarts (first failed job: {name})"
            look.finish("Failed", "ReachedMaxRestarts", text)
            return
        if found.action in (policy.RESTART_JOB, policy.RESTART_JOB_FREE):
            look.restart_job(found.job, counts=not free)
            look.updates.append(("Warning", found.event, f"restarting job {name}"))
        else:
            look.restart(counts=not free)
            text = f"restarting jobset (first failed job: {name})"
            reason = f"FailurePolicy_{found.rule}" if found.rule else "DefaultFailurePolicy"
            look.condition("RestartingJobSet", "True", reason, text)
            look.updates.append(("Warning", found.event, f"{text}, attempt {look.attempt + 1}"))
        self.queue.add_after(look.key, GATHERING)

    async def _expire(self, look: ObservedJobSet) -> None:
        ttl, end = look.jobset["spec"].get("ttlSecondsAfterFinished"), look.ended_at
        if ttl is None or end is None:
            return
        left = end + int(ttl) - self._clock.now()
        if left > 0:
            self.queue.add_after(look.key, left + 0.05)
            return
        await self._sets.delete(look.jobset, "Foreground")


def _bound(grouping: Grouping, group: str, key: str) -> bool:
    """Return True if a group requires one domain of a topology key."""
    for obj in grouping.groups:
        if obj["metadata"]["name"] == group:
            topology = (obj["spec"].get("schedulingConstraints") or {}).get("topology") or ()
            return any(entry["key"] == key for entry in topology)
    return False
