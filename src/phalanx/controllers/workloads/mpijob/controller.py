"""MPIJob in a local cluster: worker pods, a launcher Job, and conditions derived from the launcher.

The ssh keys and host file of mpi-operator are useless for simulated pods and are not created.
"""

from __future__ import annotations

import copy
from contextlib import suppress

from phalanx.base import resources as r
from phalanx.base.client import Resource
from phalanx.base.clock import Clock
from phalanx.base.errors import AlreadyExists
from phalanx.base.well_known import REPLICA_INDEX
from phalanx.controllers.grouping.core import BATCH, TOO_MANY, Grouping, GroupingRefused, Link, check_pods
from phalanx.controllers.grouping.priorities import keep_priority
from phalanx.controllers.grouping.ungrouped_pods import without_ungrouped
from phalanx.controllers.grouping.user_workload import made_by_hand
from phalanx.controllers.runtime.controller import Cache, Caches, CustomController, Json, Key
from phalanx.controllers.runtime.events import Events
from phalanx.controllers.runtime.groups import GroupPhase, Groups
from phalanx.controllers.runtime.ownership import controller_reference, deleting, index_by_controller
from phalanx.controllers.runtime.pods import active, condition, finished, from_template, ready
from phalanx.controllers.runtime.status import (
    conditions_of,
    follow_refusal,
    gather_results,
    set_condition,
    write_status,
)
from phalanx.controllers.workloads.mpijob.grouping import all_pods, group_mpi_job, waits_for_workers

MPI_JOBS = Resource("kubeflow.org", "v2beta1", "mpijobs", "MPIJob")
JOB_NAME = "training.kubeflow.org/job-name"
JOB_ROLE = "training.kubeflow.org/job-role"


MANAGED_BY = "kubeflow.org/mpi-operator"  # the value of runPolicy.managedBy that means us
NAME = "mpijob"


class MPIJobController(CustomController):
    name = NAME

    def __init__(self, caches: Caches, clock: Clock, events: Events, groups: Groups | None) -> None:
        super().__init__(events)
        self._clock, self._events, self._groups = clock, events, groups
        self._owners = caches.of(MPI_JOBS, optional=True)
        self._jobs, self._pods = caches.of(r.JOBS), caches.of(r.PODS)
        self._classes = caches.of(r.PRIORITY_CLASSES, optional=True)
        for cache in (self._jobs, self._pods):
            cache.index("controller", index_by_controller, of_marks=True)
            cache.on_change(self.requeue_owner(MPI_JOBS.kind), of=MPI_JOBS.kind)
        self._owners.on_change(self.requeue)
        self.report_refusals(self._owners, events)
        if groups is not None:
            groups.requeue_on_change(MPI_JOBS.kind, self.queue)

    def object_of(self, key: Key) -> Json | None:
        return self._owners.get(*key)

    async def reconcile_object(self, key: Key) -> None:
        owner = self._owners.get(*key)
        if owner is None or deleting(owner):
            return
        if ((owner["spec"].get("runPolicy") or {}).get("managedBy") or MANAGED_BY) != MANAGED_BY:
            return
        uid = owner["metadata"]["uid"]
        workers = {pod["metadata"]["name"]: pod for pod in self._pods.by_index("controller", uid)}
        launcher = next(iter(self._jobs.by_index("controller", uid)), None)
        conditions = conditions_of(owner)
        if any(entry["type"] in ("Succeeded", "Failed") and entry["status"] == "True" for entry in conditions):
            await self._clean(owner, workers)
            return
        refusal: GroupingRefused | None = None
        try:
            check_pods("the MPIJob", all_pods(owner))
            await self._sync_pods(owner, workers, launcher)
        except GroupingRefused as refused:
            refusal = refused if refused.reason == TOO_MANY else None
            self._events.warning(owner, NAME, refused.reason, refused.message)
        follow_refusal(conditions, TOO_MANY, refusal, self._clock)
        self._conclude(conditions, launcher, list(workers.values()))
        await write_status(self._owners, owner, {**(owner.get("status") or {}), "conditions": conditions})

    # ---- pods

    async def _sync_pods(self, owner: Json, workers: dict[str, Json], launcher: Json | None) -> None:
        if (owner["spec"].get("runPolicy") or {}).get("suspend"):
            await gather_results(self._pods.delete(pod) for pod in workers.values() if not deleting(pod))
            if launcher is not None and not launcher["spec"].get("suspend"):
                await self._jobs.patch(launcher, {"spec": {"suspend": True}})
            await self._group(owner, workers, launcher)  # planning tools know what it will need
            return
        replicas = (owner["spec"].get("mpiReplicaSpecs") or {}).get("Worker") or {}
        count = 0 if not replicas else 1 if replicas.get("replicas") is None else int(replicas["replicas"])
        names = [f"{owner['metadata']['name']}-worker-{index}" for index in range(count)]
        extra = [pod for name, pod in workers.items() if name not in names]
        # Scale down before groups are checked: that is always possible.
        await gather_results(self._pods.delete(pod) for pod in extra if not deleting(pod))
        grouping = await self._group(owner, workers, launcher)
        if grouping is None:
            return
        # A worker that ended before its launcher is recreated with the same name.
        over = [workers[name] for name in names if name in workers and finished(workers[name])]
        await gather_results(self._pods.delete(pod) for pod in over if not deleting(pod))
        missing = [(index, name) for index, name in enumerate(names) if name not in workers]
        await gather_results(
            self._create(self._pods, self._worker(owner, replicas, index, name, grouping.links.get("worker")))
            for index, name in missing[:BATCH]
        )
        if launcher is not None:
            if launcher["spec"].get("suspend"):
                await self._jobs.patch(launcher, {"spec": {"suspend": False}})
        elif not waits_for_workers(owner) or (not missing and all(ready(workers[name]) for name in names)):
            await self._create(self._jobs, self._launcher(owner, grouping.links.get("launcher")))

    async def _group(self, owner: Json, workers: dict[str, Json], launcher: Json | None) -> Grouping | None:
        """Return the groups if they exist. Raises Refused."""
        if self._groups is None:
            return Grouping()
        around = self._groups.related(owner)
        grouping = group_mpi_job(owner, around)
        by_hand = made_by_hand(owner, around) if grouping and grouping.workload is None else None
        if by_hand is not None:
            await self._groups.adopt(owner, by_hand)  # a user's Workload for this MPIJob: it is deleted with it
        launchers = self._pods.by_index("controller", launcher["metadata"]["uid"]) if launcher is not None else []
        pods = [pod for pod in (*workers.values(), *launchers) if active(pod)]
        grouping = without_ungrouped(grouping, all_pods(owner), pods)
        state = await self._groups.ensure(owner, grouping, NAME, in_use=bool(pods))
        return None if state is GroupPhase.REPLACING else grouping

    def _worker(self, owner: Json, replicas: Json, index: int, name: str, link: Link | None) -> Json:
        pod = from_template(copy.deepcopy(replicas["template"]), owner, MPI_JOBS, name=name)
        pod["metadata"]["labels"] |= _labels(owner, "worker", index)
        self._join(owner, pod["spec"], link)
        return pod

    def _join(self, owner: Json, pod_spec: Json, link: Link | None) -> None:
        if link is None or self._groups is None:
            return
        link.put_on(pod_spec)
        keep_priority(
            pod_spec, self._groups.live_pod_group(owner["metadata"]["namespace"], link.pod_group), self._classes
        )

    def _launcher(self, owner: Json, link: Link | None) -> Json:
        template = copy.deepcopy(((owner["spec"].get("mpiReplicaSpecs") or {}).get("Launcher") or {})["template"])
        meta = template.setdefault("metadata", {})
        meta["labels"] = {**(meta.get("labels") or {}), **_labels(owner, "launcher", 0)}
        template["spec"].setdefault("restartPolicy", "Never")
        self._join(owner, template["spec"], link)
        run = owner["spec"].get("runPolicy") or {}
        fields = ("backoffLimit", "activeDeadlineSeconds")
        return {
            "apiVersion": r.JOBS.api_version,
            "kind": r.JOBS.kind,
            "metadata": {
                "name": f"{owner['metadata']['name']}-launcher",
                "namespace": owner["metadata"]["namespace"],
                "labels": _labels(owner, "launcher", 0),
                "ownerReferences": [controller_reference(owner, MPI_JOBS)],
            },
            "spec": {"template": template, **{field: run[field] for field in fields if run.get(field) is not None}},
        }

    # ---- ends

    def _conclude(self, conditions: list[Json], launcher: Json | None, workers: list[Json]) -> None:
        set_condition(conditions, "Created", "True", "MPIJobCreated", "workers and launcher are made", self._clock)
        if launcher is None:
            return
        for type_, known in (("Succeeded", "Complete"), ("Failed", "Failed")):
            if (condition(launcher, known) or {}).get("status") == "True":
                text = f"launcher Job {launcher['metadata']['name']} is over"
                set_condition(conditions, type_, "True", f"MPIJob{type_}", text, self._clock)
                set_condition(conditions, "Running", "False", f"MPIJob{type_}", text, self._clock)
                return
        if int((launcher.get("status") or {}).get("active") or 0) and all(map(ready, workers)):
            set_condition(conditions, "Running", "True", "MPIJobRunning", "launcher and workers run", self._clock)

    async def _clean(self, owner: Json, workers: dict[str, Json]) -> None:
        if (owner["spec"].get("runPolicy") or {}).get("cleanPodPolicy", "Running") != "None":
            await gather_results(self._pods.delete(pod) for pod in workers.values() if active(pod))

    async def _create(self, cache: Cache, body: Json) -> None:
        with suppress(AlreadyExists):
            await cache.create(body)


def _labels(owner: Json, role: str, index: int) -> dict[str, str]:
    return {
        "training.kubeflow.org/operator-name": "mpi-operator",
        JOB_NAME: owner["metadata"]["name"],
        JOB_ROLE: role,
        REPLICA_INDEX: str(index),
    }
