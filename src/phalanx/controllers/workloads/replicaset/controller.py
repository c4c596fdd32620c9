"""ReplicaSet and ReplicationController: keep the wanted number of identical pods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from phalanx.base import resources as r
from phalanx.base.clock import Clock
from phalanx.base.errors import ApiProblem, Conflict
from phalanx.controllers.grouping.core import BATCH, GroupingRefused, check_pods
from phalanx.controllers.runtime.cache import MARKED
from phalanx.controllers.runtime.claiming import Claims, selector_of
from phalanx.controllers.runtime.controller import Caches, Controller, Json, Key
from phalanx.controllers.runtime.events import Events
from phalanx.controllers.runtime.ownership import controller_of, deleting
from phalanx.controllers.runtime.pods import (
    Admission,
    Expectations,
    PodEvents,
    active,
    available_in,
    from_template,
    ready,
    refusal_text,
    removal_rank,
)
from phalanx.controllers.runtime.status import conditions_of, gather_results, set_condition, write_status


class ReplicaSetController(Controller):
    name = "replicaset"
    resource = r.REPLICA_SETS

    def __init__(self, caches: Caches, clock: Clock, events: Events, admission: Sequence[Admission] = ()) -> None:
        super().__init__()
        self._announced = PodEvents(events, clock, self.name)
        self._clock = clock
        self._admission = admission
        self._sets = caches.of(self.resource)
        self._pods = caches.of(r.PODS)
        self._claims = Claims(self._pods, self.resource)
        self._sets.index("namespace", lambda obj: [obj["metadata"]["namespace"]])
        self._going = Expectations(clock)
        self._sets.on_change(self.requeue)
        self.report_refusals(self._sets, events)
        self._pods.on_change(self._pod_changed, of=MARKED)

    def _pod_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        for pod in (new, old):
            if pod is None:
                continue
            reference = controller_of(pod)
            if reference is not None:
                if reference["kind"] == self.resource.kind:
                    if new is None or deleting(new):
                        self._going.seen(reference["uid"], pod["metadata"]["name"])
                    self.queue.add(Key(key.namespace, reference["name"]))
                continue
            labels = pod["metadata"].get("labels")
            for owner in self._sets.by_index("namespace", key.namespace) if labels else ():
                if selector_of(owner).matches(labels):
                    self.queue.add(Key(key.namespace, owner["metadata"]["name"]))

    async def reconcile(self, key: Key) -> None:
        owner = self._sets.get(*key)
        if owner is None:
            return
        uid = owner["metadata"]["uid"]
        pods = await self._claims.of(owner, active)
        problem = ""
        if not deleting(owner) and self._going.fulfilled(uid):
            problem = await self._scale(owner, pods)
        await self._write_status(owner, pods, problem)

    async def _scale(self, owner: Json, pods: list[Json]) -> str:
        alive = [pod for pod in pods if active(pod)]
        missing = int(owner["spec"].get("replicas", 1)) - len(alive)
        try:
            if missing > 0:
                check_pods("spec.replicas", missing + len(alive))
                await self._create(owner, min(missing, BATCH))
            elif missing < 0:
                crowd = Counter((pod.get("spec") or {}).get("nodeName") for pod in alive)
                rank = {
                    pod["metadata"]["uid"]: removal_rank(pod, crowd[(pod.get("spec") or {}).get("nodeName")])
                    for pod in alive
                }
                victims = sorted(alive, key=lambda pod: rank[pod["metadata"]["uid"]])[: min(-missing, BATCH)]
                await gather_results(self._delete(owner, pod) for pod in victims)
        except Conflict:
            raise  # an object needed by the pods is missing: retry, no failure
        except ApiProblem as error:
            self._announced.failed(owner, error)
            return refusal_text(owner, error)
        except GroupingRefused as refusal:
            return refusal.message
        return ""

    async def _create(self, owner: Json, count: int) -> None:
        """Create pods in doubling batches: a rejected template costs one request, not a thousand."""
        batch = 1
        while count > 0:
            size = min(batch, count)
            await gather_results(self._create_one(owner) for _ in range(size))
            count -= size
            batch *= 2

    async def _create_one(self, owner: Json) -> None:
        body = from_template(owner["spec"]["template"], owner, self.resource)
        for admit in self._admission:
            await admit(body, owner)
        self._announced.created(await self._pods.create(body))

    async def _delete(self, owner: Json, pod: Json) -> None:
        meta = pod["metadata"]
        self._going.expect(owner["metadata"]["uid"], meta["name"])
        try:
            if await self._pods.delete(pod):
                self._announced.deleted(pod)
            else:
                self._going.seen(owner["metadata"]["uid"], meta["name"])
        except ApiProblem:
            self._going.seen(owner["metadata"]["uid"], meta["name"])
            raise

    async def _write_status(self, owner: Json, pods: list[Json], problem: str) -> None:
        alive = [pod for pod in pods if active(pod)]
        minimum = int(owner["spec"].get("minReadySeconds") or 0)
        waits = [available_in(pod, minimum, self._clock.now()) for pod in alive]
        template_labels = ((owner["spec"]["template"].get("metadata") or {}).get("labels") or {}).items()
        conditions = [c for c in conditions_of(owner) if problem or c["type"] != "ReplicaFailure"]
        if problem:
            set_condition(conditions, "ReplicaFailure", "True", "FailedCreate", problem, self._clock)
        status = {
            "replicas": len(alive),
            "fullyLabeledReplicas": sum(
                template_labels <= (pod["metadata"].get("labels") or {}).items() for pod in alive
            ),
            "readyReplicas": sum(ready(pod) for pod in alive) or None,
            "availableReplicas": sum(wait == 0.0 for wait in waits) or None,
            "observedGeneration": owner["metadata"].get("generation", 0),
            "conditions": conditions,
        }
        status["fullyLabeledReplicas"] = status["fullyLabeledReplicas"] or None
        await write_status(self._sets, owner, status)
        soon = [wait for wait in waits if wait]
        key = Key(owner["metadata"]["namespace"], owner["metadata"]["name"])
        if soon:
            self.queue.add_after(key, min(soon))
        if problem:
            self.queue.add_after(key, 1.0)


class ReplicationControllers(ReplicaSetController):
    name = "replicationcontroller"
    resource = r.REPLICATION_CONTROLLERS
