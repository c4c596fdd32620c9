"""TrainJob in a local cluster: a JobSet of its runtime, as large as the TrainJob says; its end is the TrainJob's end.

Of what the Trainer writes into pods only image, command, arguments and environment of the trainer are taken over.
"""

from __future__ import annotations

import copy

import msgspec

from phalanx.base.clock import Clock
from phalanx.base.errors import AlreadyExists, NotFound
from phalanx.controllers import resources as r
from phalanx.controllers.grouping.bounds import TOO_MANY, check_pods, count_in
from phalanx.controllers.grouping.core import Grouping, Refused
from phalanx.controllers.grouping.ungrouped_pods import Gang, each_without_outsiders
from phalanx.controllers.runtime.cache import MARKED
from phalanx.controllers.runtime.controller import Caches, Controller, Json, Key
from phalanx.controllers.runtime.events import Events
from phalanx.controllers.runtime.groups import Groups, State
from phalanx.controllers.runtime.ownership import controlled_by, controller_of, controller_reference, deleting
from phalanx.controllers.runtime.pods import condition, group_of
from phalanx.controllers.runtime.status import conditions_of, follow_refusal, set_condition, write_status
from phalanx.controllers.workloads.jobset.jobs import PART, jobset_of
from phalanx.controllers.workloads.trainjob.grouping import (
    ANCESTOR,
    as_made,
    group_train_job,
    runtime_named,
    runtime_of,
    steps_of,
)
from phalanx.controllers.workloads.trainjob.names import RUNTIMES, TRAIN_JOBS

NAME = "trainjob"
_TAKEN = ("image", "command", "args", "env")


class TrainJobController(Controller):
    name = NAME

    def __init__(self, caches: Caches, clock: Clock, events: Events, groups: Groups | None) -> None:
        super().__init__()
        self._client, self._clock, self._events, self._groups = caches.client, clock, events, groups
        self._owners = caches.of(TRAIN_JOBS, optional=True)
        self._sets = caches.of(r.JOB_SETS, optional=True)
        self._runtimes = {resource.kind: caches.of(resource, optional=True) for resource in RUNTIMES}
        self._owners.on_change(lambda key, new, old: self.queue.add(key))
        self._sets.on_change(self._set_changed)
        for cache in self._runtimes.values():
            cache.on_change(self._runtime_changed)
        self._pods = caches.of(r.PODS)
        self._pods.index("jobset", _index_by_set, of_marks=True)
        if groups is not None:
            groups.feed(TRAIN_JOBS.kind, self.queue)
            self._pods.on_change(self._pod_changed, of=MARKED)

    def _set_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        reference = controller_of(new or old or {})
        if reference is not None and reference["kind"] == TRAIN_JOBS.kind:
            self.queue.add(Key(key.namespace, reference["name"]))

    def _pod_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        """A pod in no group, which the gang does not wait for, comes or goes."""
        pod = new or old or {}
        name = jobset_of(pod)
        if name and not group_of(pod) and self._owners.get(key.namespace, name) is not None:
            self.queue.add(Key(key.namespace, name))

    def _runtime_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        for owner in self._owners:
            if runtime_named(owner)[1] == key.name:
                self.queue.add(Key(owner["metadata"]["namespace"], owner["metadata"]["name"]))

    async def reconcile(self, key: Key) -> None:
        owner = self._owners.get(*key)
        if owner is None or deleting(owner):
            return
        conditions = conditions_of(owner)
        if any(entry["type"] in ("Complete", "Failed") and entry["status"] == "True" for entry in conditions):
            return
        found = self._sets.get(*key)
        try:
            if found is not None and not controlled_by(found, owner["metadata"]["uid"]):
                raise Refused(f"JobSet {key.name} belongs to somebody else; delete or rename it", "NameConflict")
            await self._arrange(owner, found)
        except Refused as refused:
            self._events.warning(owner, NAME, refused.reason, refused.message)
            if refused.reason == TOO_MANY:
                follow_refusal(conditions, TOO_MANY, refused, self._clock)
                await write_status(self._owners, owner, {**(owner.get("status") or {}), "conditions": conditions})
            return
        follow_refusal(conditions, TOO_MANY, None, self._clock)
        for type_, known in (("Complete", "Completed"), ("Failed", "Failed")):
            if found is not None and (condition(found, known) or {}).get("status") == "True":
                set_condition(conditions, type_, "True", f"JobSet{known}", f"JobSet {key.name} is over", self._clock)
        await write_status(self._owners, owner, {**(owner.get("status") or {}), "conditions": conditions})

    async def _arrange(self, owner: Json, found: Json | None) -> None:
        check_pods("spec.trainer.numNodes", count_in(owner["spec"].get("trainer") or {}, "numNodes"))
        related = [*self._related(owner), *([found] if found is not None else [])]
        grouping = group_train_job(owner, related) if self._groups is not None else Grouping()
        if self._groups is not None:
            if grouping.groups:
                grouping = each_without_outsiders(grouping, self._gangs(owner, related, grouping))
            # Once there is a JobSet its pods name the groups, which stay as they are and are made again when they go.
            state = await self._groups.ensure(owner, grouping, NAME, in_use=found is not None)
            if found is None and state is State.REPLACING:
                return
        if found is not None:
            if self._groups is not None:
                self._tell_size(owner, related)
            await self._suspend(found, bool(owner["spec"].get("suspend")))
            return
        try:
            body = job_set_of(owner, runtime_of(owner, related), grouping)
            answer = await self._client.create(r.JOB_SETS, body, owner["metadata"]["namespace"])
        except AlreadyExists:
            return
        self._sets.remember(msgspec.json.decode(answer))

    def _tell_size(self, owner: Json, related: list[Json]) -> None:
        """The Trainer refuses another size for a TrainJob that runs; here it is kept, has no effect, and is told."""
        steps = steps_of(owner, runtime_of(owner, related))
        made = as_made(owner, steps, related)
        if made != steps:
            text = f"it runs with {sum(step.pods for step in made)} pods; another size holds when it is made again"
            self._events.warning(owner, NAME, "SizeUnchanged", text)

    def _gangs(self, owner: Json, related: list[Json], grouping: Grouping) -> dict[str, Gang]:
        """Who should be in its groups."""
        found: dict[str, Gang] = {}
        meta = owner["metadata"]
        there = self._pods.by_index("jobset", f"{meta['namespace']}/{meta['name']}")
        for step in as_made(owner, steps_of(owner, runtime_of(owner, related)), related):
            link = grouping.links.get(step.name)
            if link is not None:
                before = found.get(link.pod_group, Gang(0, []))
                pods = [pod for pod in there if pod["metadata"]["labels"].get(PART) == step.name]
                found[link.pod_group] = Gang(before.everybody + step.pods, [*before.pods, *pods])
        return found

    async def _suspend(self, found: Json, suspended: bool) -> None:
        if bool(found["spec"].get("suspend")) == suspended:
            return
        meta = found["metadata"]
        try:
            await self._client.patch(r.JOB_SETS, meta["name"], {"spec": {"suspend": suspended}}, meta["namespace"])
        except NotFound:
            return

    def _related(self, owner: Json) -> list[Json]:
        kind, name = runtime_named(owner)
        cache = self._runtimes.get(kind)
        namespace = owner["metadata"]["namespace"] if cache is not None and cache.resource.namespaced else ""
        runtime = cache.get(namespace, name) if cache is not None else None
        around = self._groups.around(owner) if self._groups is not None else []
        return [*around, *([runtime] if runtime is not None else [])]


def _index_by_set(pod: Json) -> list[str]:
    name = jobset_of(pod)
    return [f"{pod['metadata']['namespace']}/{name}"] if name else []


def job_set_of(owner: Json, runtime: Json, grouping: Grouping) -> Json:
    """The JobSet of a TrainJob has its name. Pods name their groups, so that the JobSet makes none of its own."""
    spec = copy.deepcopy(runtime["spec"]["template"]["spec"])
    sizes = {step.name: step.pods for step in steps_of(owner, runtime)}
    trainer: Json = owner["spec"].get("trainer") or {}
    for part in spec["replicatedJobs"]:
        template = part.setdefault("template", {})
        job = template.setdefault("spec", {})
        size = sizes[part["name"]]
        job |= {"parallelism": size, "completions": size}
        pod = job.setdefault("template", {}).setdefault("spec", {})
        if ((template.get("metadata") or {}).get("labels") or {}).get(ANCESTOR) == "trainer" or part["name"] == "node":
            for container in (pod.get("containers") or ())[:1]:
                container |= {field: trainer[field] for field in _TAKEN if trainer.get(field)}
        if part["name"] in grouping.links:
            grouping.links[part["name"]].put_on(pod)
    spec["suspend"] = bool(owner["spec"].get("suspend"))
    meta = owner["metadata"]
    return {
        "apiVersion": r.JOB_SETS.api_version,
        "kind": r.JOB_SETS.kind,
        "metadata": {
            "name": meta["name"],
            "namespace": meta["namespace"],
            "labels": dict(owner["spec"].get("labels") or {}),
            "ownerReferences": [controller_reference(owner, TRAIN_JOBS)],
        },
        "spec": spec,
    }
