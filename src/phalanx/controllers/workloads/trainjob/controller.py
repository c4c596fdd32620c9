"""TrainJob in a local cluster: a JobSet of its runtime, sized by the TrainJob, which ends with the JobSet.

`template.py` builds its pods; host files and ssh keys of MPI runtimes are not created.
"""

from __future__ import annotations

from contextlib import suppress

from phalanx.base import resources as r
from phalanx.base.client import Resource
from phalanx.base.clock import Clock, parse_rfc3339
from phalanx.base.errors import AlreadyExists, Forbidden, Invalid, NotFound
from phalanx.controllers.grouping.core import TOO_MANY, Grouping, GroupingRefused, check_pods, count_in
from phalanx.controllers.grouping.ungrouped_pods import NO_PODS, Gang, each_without_ungrouped
from phalanx.controllers.runtime.cache import MARKED
from phalanx.controllers.runtime.controller import Caches, CustomController, Json, Key
from phalanx.controllers.runtime.events import Events
from phalanx.controllers.runtime.groups import GroupPhase, Groups
from phalanx.controllers.runtime.ownership import controlled_by, controller_reference, deleting
from phalanx.controllers.runtime.pods import condition, group_of, phase
from phalanx.controllers.runtime.status import conditions_of, follow_refusal, set_condition, write_status
from phalanx.controllers.workloads.job.grouping import vacant
from phalanx.controllers.workloads.job.tally import deleted_for_good
from phalanx.controllers.workloads.jobset.jobs import PART, jobset_of
from phalanx.controllers.workloads.trainjob.grouping import (
    as_made,
    group_train_job,
    runtime_named,
    runtime_of,
    steps_of,
)
from phalanx.controllers.workloads.trainjob.template import resolved

GROUP, VERSION = "trainer.kubeflow.org", "v1alpha1"
TRAIN_JOBS = Resource(GROUP, VERSION, "trainjobs", "TrainJob")
RUNTIMES = (
    Resource(GROUP, VERSION, "trainingruntimes", "TrainingRuntime"),
    Resource(GROUP, VERSION, "clustertrainingruntimes", "ClusterTrainingRuntime", namespaced=False),
)


NAME = "trainjob"
_COUNTED = ("ready", "succeeded", "failed", "active", "suspended")  # of a ReplicatedJob
MANAGED_BY = "trainer.kubeflow.org/trainjob-controller"


class TrainJobController(CustomController):
    name = NAME

    def __init__(self, caches: Caches, clock: Clock, events: Events, groups: Groups | None) -> None:
        super().__init__(events)
        self._clock, self._events, self._groups = clock, events, groups
        self._owners = caches.of(TRAIN_JOBS, optional=True)
        self._sets = caches.of(r.JOB_SETS, optional=True)
        self._runtimes = {resource.kind: caches.of(resource, optional=True) for resource in RUNTIMES}
        self._owners.on_change(self.requeue)
        self.report_refusals(self._owners, events)
        self._sets.on_change(self.requeue_owner(TRAIN_JOBS.kind))
        for cache in self._runtimes.values():
            cache.on_change(self._runtime_changed)
        self._pods = caches.of(r.PODS)
        self._pods.index("jobset", _index_by_set, of_marks=True)
        self._jobs = caches.of(r.JOBS)
        self._jobs.index("jobset", _index_by_set)
        if groups is not None:
            groups.requeue_on_change(TRAIN_JOBS.kind, self.queue)
            self._pods.on_change(self._pod_changed, of=MARKED)
            self._jobs.on_change(self._job_changed)

    def _pod_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        """Requeue for pods that the gang does not require: outside the groups, or deleted after completion."""
        pod = new or old or {}
        name = jobset_of(pod)
        gone = new is None and phase(pod) == "Succeeded"
        if name and (gone or not group_of(pod)) and self._owners.get(key.namespace, name) is not None:
            self.queue.add(Key(key.namespace, name))

    def _job_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        """Requeue when pods of a Job completed permanently: their gang does not require them after deletion."""
        name = jobset_of(new or old or {})
        if name and (vacant(new) if new is not None else 0) != (vacant(old) if old is not None else 0):
            self.queue.add(Key(key.namespace, name))

    def _runtime_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        for owner in self._owners:
            if runtime_named(owner)[1] == key.name:
                self.queue.add(Key(owner["metadata"]["namespace"], owner["metadata"]["name"]))

    def object_of(self, key: Key) -> Json | None:
        return self._owners.get(*key)

    async def reconcile_object(self, key: Key) -> None:
        owner = self._owners.get(*key)
        if owner is None or deleting(owner):
            return
        owner = {**owner, "spec": owner.get("spec") or {}}
        conditions = conditions_of(owner)
        if (owner["spec"].get("managedBy") or MANAGED_BY) != MANAGED_BY:
            return
        if any(entry["type"] in ("Complete", "Failed") and entry["status"] == "True" for entry in conditions):
            return
        found = self._sets.get(*key)
        try:
            if found is not None and not controlled_by(found, owner["metadata"]["uid"]):
                raise GroupingRefused(
                    f"JobSet {key.name} belongs to another owner; delete or rename it", "NameConflict"
                )
            found = await self._sync_children(owner, found)
        except GroupingRefused as refused:
            self._events.warning(owner, NAME, refused.reason, refused.message)
            if refused.reason == TOO_MANY:
                follow_refusal(conditions, TOO_MANY, refused, self._clock)
                await write_status(self._owners, owner, {**(owner.get("status") or {}), "conditions": conditions})
            return
        follow_refusal(conditions, TOO_MANY, None, self._clock)
        self._note_suspension(owner, conditions)
        if found is not None:
            self._note_end(found, conditions)
        await self._note_deadline(owner, found, conditions)
        status = {**(owner.get("status") or {}), "conditions": conditions}
        if found is not None:
            status["jobsStatus"] = [
                {field: entry.get(field, 0) for field in _COUNTED} | {"name": entry["name"]}
                for entry in (found.get("status") or {}).get("replicatedJobsStatus") or ()
            ]
        await write_status(self._owners, owner, status)

    def _note_suspension(self, owner: Json, conditions: list[Json]) -> None:
        if owner["spec"].get("suspend"):
            set_condition(conditions, "Suspended", "True", "Suspended", "TrainJob is suspended", self._clock)
        elif any(entry["type"] == "Suspended" for entry in conditions):
            set_condition(conditions, "Suspended", "False", "Resumed", "TrainJob is resumed", self._clock)

    def _note_end(self, found: Json, conditions: list[Json]) -> None:
        """Copy the JobSet's final condition, reason and message."""
        for type_, known in (("Complete", "Completed"), ("Failed", "Failed")):
            entry = condition(found, known) or {}
            if entry.get("status") == "True":
                reason, text = entry.get("reason") or known, entry.get("message") or ""
                set_condition(conditions, type_, "True", reason, text, self._clock)

    async def _note_deadline(self, owner: Json, found: Json | None, conditions: list[Json]) -> None:
        """Fail a TrainJob that was active longer than activeDeadlineSeconds since its creation or resumption."""
        seconds, meta = owner["spec"].get("activeDeadlineSeconds"), owner["metadata"]
        ended = any(entry["type"] in ("Complete", "Failed") and entry["status"] == "True" for entry in conditions)
        if not isinstance(seconds, int) or seconds < 1 or owner["spec"].get("suspend") or ended:
            return
        resumed = [c.get("lastTransitionTime") for c in conditions if c["type"] == "Suspended"]
        start = parse_rfc3339((resumed[0] if resumed else None) or meta["creationTimestamp"])
        left = start + seconds - self._clock.now()
        if left > 0:
            self.queue.add_after(Key(meta["namespace"], meta["name"]), left + 0.05)
            return
        text = f"TrainJob was active for more than {seconds} s"
        set_condition(conditions, "Failed", "True", "DeadlineExceeded", text, self._clock)
        if found is not None:
            await self._sets.delete(found, "Background")

    async def _sync_children(self, owner: Json, found: Json | None) -> Json | None:
        """Create the groups and the JobSet; return the JobSet, None while it cannot be created."""
        trainer = owner["spec"].get("trainer")
        check_pods("spec.trainer.numNodes", count_in(trainer if isinstance(trainer, dict) else {}, "numNodes"))
        related = [*self._related(owner), *([found] if found is not None else [])]
        grouping = group_train_job(owner, related) if self._groups is not None else Grouping()
        if self._groups is not None:
            if grouping.groups:
                grouping = each_without_ungrouped(grouping, self._gangs(owner, related, grouping))
            # Pods of an existing JobSet name the groups, which are not changed, and recreated if deleted.
            state = await self._groups.ensure(owner, grouping, NAME, in_use=found is not None)
            if found is None and state is GroupPhase.REPLACING:
                return None
        if found is not None:
            if self._groups is not None:
                self._report_size(owner, related)
            await self._suspend(found, bool(owner["spec"].get("suspend")))
            return found
        try:
            body = job_set_of(owner, runtime_of(owner, related), grouping)
            return await self._sets.create(body)
        except AlreadyExists:
            return None
        except (Invalid, Forbidden) as problem:
            raise GroupingRefused(
                f"JobSet {owner['metadata']['name']} cannot be created: {problem}", "FailedCreate"
            ) from problem

    def _report_size(self, owner: Json, related: list[Json]) -> None:
        """Report a size change of a running TrainJob: the Trainer rejects it; here it is stored without effect."""
        steps = steps_of(owner, runtime_of(owner, related))
        made = as_made(owner, steps, related)
        if made != steps:
            text = f"it runs with {sum(step.pods for step in made)} pods; another size holds when it is made again"
            self._events.warning(owner, NAME, "SizeUnchanged", text)

    def _gangs(self, owner: Json, related: list[Json], grouping: Grouping) -> dict[str, Gang]:
        """Return the pods that belong into its groups."""
        found: dict[str, Gang] = {}
        meta = owner["metadata"]
        name = f"{meta['namespace']}/{meta['name']}"
        there, jobs = self._pods.by_index("jobset", name), self._jobs.by_index("jobset", name)
        for step in as_made(owner, steps_of(owner, runtime_of(owner, related)), related):
            link = grouping.links.get(step.name)
            if link is not None:
                pods = [pod for pod in there if pod["metadata"]["labels"].get(PART) == step.name]
                gone = sum(
                    deleted_for_good(job, [pod for pod in pods if controlled_by(pod, job["metadata"]["uid"])])
                    for job in jobs
                    if job["metadata"]["labels"].get(PART) == step.name
                )
                found[link.pod_group] = found.get(link.pod_group, NO_PODS).plus(step.pods, pods, gone)
        return found

    async def _suspend(self, found: Json, suspended: bool) -> None:
        if bool(found["spec"].get("suspend")) == suspended:
            return
        with suppress(NotFound):
            await self._sets.patch(found, {"spec": {"suspend": suspended}})

    def _related(self, owner: Json) -> list[Json]:
        kind, name = runtime_named(owner)
        cache = self._runtimes.get(kind)
        namespace = owner["metadata"]["namespace"] if cache is not None and cache.resource.namespaced else ""
        runtime = cache.get(namespace, name) if cache is not None else None
        around = self._groups.related(owner) if self._groups is not None else []
        return [*around, *([runtime] if runtime is not None else [])]


def _index_by_set(pod: Json) -> list[str]:
    name = jobset_of(pod)
    return [f"{pod['metadata']['namespace']}/{name}"] if name else []


def job_set_of(owner: Json, runtime: Json, grouping: Grouping) -> Json:
    """Build the JobSet, with the TrainJob's name. Its pods name their groups, so the JobSet creates none."""
    template = resolved(owner, runtime)
    spec, metadata = template["spec"], template.get("metadata") or {}
    for part in spec["replicatedJobs"]:
        pod: Json = part["template"]["spec"]["template"]
        for field in ("labels", "annotations"):
            if metadata.get(field):
                holder = pod.setdefault("metadata", {})
                holder[field] = {**metadata[field], **(holder.get(field) or {})}
        if part["name"] in grouping.links:
            grouping.links[part["name"]].put_on(pod["spec"])
    spec["suspend"] = bool(owner["spec"].get("suspend"))
    meta = owner["metadata"]
    return {
        "apiVersion": r.JOB_SETS.api_version,
        "kind": r.JOB_SETS.kind,
        "metadata": {
            "name": meta["name"],
            "namespace": meta["namespace"],
            **{field: dict(metadata[field]) for field in ("labels", "annotations") if metadata.get(field)},
            "ownerReferences": [controller_reference(owner, TRAIN_JOBS)],
        },
        "spec": spec,
    }
