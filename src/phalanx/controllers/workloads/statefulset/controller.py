"""StatefulSet: pods with stable names, created in order or in parallel, updated from the highest ordinal down."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.base import resources as r
from phalanx.base.clock import Clock
from phalanx.base.errors import AlreadyExists, Forbidden, Invalid
from phalanx.base.well_known import POD_INDEX
from phalanx.controllers.grouping.core import BATCH, TOO_MANY, GroupingRefused, check_pods, count_in
from phalanx.controllers.runtime.claiming import Claims
from phalanx.controllers.runtime.controller import Caches, Controller, Json, Key
from phalanx.controllers.runtime.events import Events
from phalanx.controllers.runtime.ownership import controller_of, deleting
from phalanx.controllers.runtime.pods import Admission, PodEvents, available_in, finished, from_template, phase, ready
from phalanx.controllers.runtime.revisions import HASH_LABEL, Revisions, template_data, template_of
from phalanx.controllers.runtime.status import conditions_of, follow_refusal, gather_results, write_status
from phalanx.controllers.workloads.statefulset.volumes import Volumes, is_claim_of
from phalanx.model.rules.assembly import scaled

POD_NAME_LABEL = "statefulset.kubernetes.io/pod-name"


class StatefulSetController(Controller):
    name = "statefulset"

    def __init__(self, caches: Caches, clock: Clock, events: Events, admission: Sequence[Admission] = ()) -> None:
        super().__init__()
        self._announced = PodEvents(events, clock, self.name)
        self._clock = clock
        self._admission = admission
        self._sets = caches.of(r.STATEFUL_SETS)
        self._pods = caches.of(r.PODS)
        self._revisions = Revisions(caches.of(r.CONTROLLER_REVISIONS), r.STATEFUL_SETS)
        claims = caches.of(r.PERSISTENT_VOLUME_CLAIMS)
        self._volumes = Volumes(claims)
        self._claims = Claims(self._pods, r.STATEFUL_SETS)
        self._sets.index("namespace", lambda obj: [obj["metadata"]["namespace"]])
        self._sets.on_change(self.requeue)
        self.report_refusals(self._sets, events)
        self._pods.on_change(self._pod_changed)
        claims.on_change(self._claim_changed)

    def _pod_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        self.requeue_owner("StatefulSet")(key, new, old)
        if (old is not None and controller_of(old) is None) or (new is not None and self._claims.is_orphan(new)):
            self._name_is_free(key)

    def _claim_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        """Requeue to recreate a claim that was deleted while its pod is pending."""
        if new is not None:
            return
        for owner in self._sets.by_index("namespace", key.namespace):
            if is_claim_of(owner, key.name):
                self.queue.add(Key(key.namespace, owner["metadata"]["name"]))

    def _name_is_free(self, key: Key) -> None:
        """Requeue sets that may adopt this orphan, or that wait for the name of this deleted pod."""
        owner = self._sets.get(key.namespace, key.name.rpartition("-")[0])
        if owner is not None:
            self.queue.add(Key(key.namespace, owner["metadata"]["name"]))

    async def reconcile(self, key: Key) -> None:
        owner = self._sets.get(*key)
        if owner is None:
            return
        pods = await self._ours(owner)
        current, update = await self._both_revisions(owner)
        refusal: GroupingRefused | None = None
        if not deleting(owner):
            try:
                check_pods("spec.replicas", count_in(owner["spec"], "replicas"))
                await self._sync_pods(owner, pods, current, update)
            except GroupingRefused as problem:
                refusal = problem
            pods = await self._ours(owner)
            await self._volumes.update_owners(owner, sorted(pods))
        await self._write_status(owner, pods, current, update, refusal)

    async def _ours(self, owner: Json) -> dict[int, Json]:
        named = {}
        for pod in await self._claims.of(owner, lambda pod: _ordinal(owner, pod["metadata"]["name"]) is not None):
            ordinal = _ordinal(owner, pod["metadata"]["name"])
            if ordinal is not None:
                named[ordinal] = pod
        return named

    async def _both_revisions(self, owner: Json) -> tuple[Json, Json]:
        """Return (current, update): the default revision of pods, and that of the current template."""
        template = owner["spec"]["template"]
        labels = (template.get("metadata") or {}).get("labels") or {}
        update = await self._revisions.present(owner, template_data(template), labels)
        name = (owner.get("status") or {}).get("currentRevision")
        current = next((rev for rev in self._revisions.of(owner) if rev["metadata"]["name"] == name), update)
        return current, update

    # ---- arranging pods

    async def _sync_pods(self, owner: Json, pods: dict[int, Json], current: Json, update: Json) -> None:
        spec = owner["spec"]
        start = int((spec.get("ordinals") or {}).get("start") or 0)
        wanted = range(start, start + int(spec.get("replicas", 1)))
        ordered = spec.get("podManagementPolicy", "OrderedReady") == "OrderedReady"
        waiting = False
        jobs = []
        for ordinal in wanted:
            pod = pods.get(ordinal)
            if pod is not None and finished(pod) and not deleting(pod):
                jobs.append(self._delete(pod))  # a set's pod runs for ever: a finished one is recreated
                waiting = True
            elif pod is None:
                revision = self._revision_for(owner, ordinal, start, current, update)
                jobs.append(self._create(owner, ordinal, revision))
                waiting = True
            elif not self._healthy(owner, pod):
                if phase(pod) == "Pending" and spec.get("volumeClaimTemplates") and not deleting(pod):
                    jobs.append(self._volumes.restore(owner, ordinal))
                waiting = True
            if (waiting and ordered) or len(jobs) >= BATCH:
                break  # the new pods requeue the set
        if ordered and jobs:
            jobs, rest = jobs[:1], jobs[1:]
            for unused in rest:
                unused.close()
        await gather_results(jobs)
        if ordered and waiting:
            return
        extra = [pods[o] for o in sorted(pods, reverse=True) if o not in wanted]
        if extra:
            await self._scale_down(owner, extra, ordered=ordered)
            if ordered:
                return
        await self._roll(owner, {o: p for o, p in pods.items() if o in wanted}, update)

    async def _scale_down(self, owner: Json, extra: list[Json], *, ordered: bool) -> None:
        """Delete surplus pods. `ordered`: from the highest ordinal, one after the other."""
        to_delete = [pod for pod in extra if not deleting(pod)]
        if ordered:
            to_delete = to_delete[:1] if len(to_delete) == len(extra) else []
        for pod in to_delete:
            await self._volumes.delete_with_pod(owner, pod)
        await gather_results(self._delete(pod) for pod in to_delete)

    def _healthy(self, owner: Json, pod: Json) -> bool:
        minimum = int(owner["spec"].get("minReadySeconds") or 0)
        left = available_in(pod, minimum, self._clock.now())
        if left:
            self.queue.add_after(Key(owner["metadata"]["namespace"], owner["metadata"]["name"]), left)
        return left == 0.0 and not deleting(pod)

    def _revision_for(self, owner: Json, ordinal: int, start: int, current: Json, update: Json) -> Json:
        strategy = owner["spec"].get("updateStrategy") or {}
        partition = int((strategy.get("rollingUpdate") or {}).get("partition") or 0)
        return current if ordinal < start + partition else update

    async def _roll(self, owner: Json, pods: dict[int, Json], update: Json) -> None:
        spec = owner["spec"]
        strategy = spec.get("updateStrategy") or {}
        if strategy.get("type", "RollingUpdate") != "RollingUpdate":
            return
        rolling = strategy.get("rollingUpdate") or {}
        start = int((spec.get("ordinals") or {}).get("start") or 0)
        lowest = start + int(rolling.get("partition") or 0)
        budget = max(1, scaled(rolling.get("maxUnavailable", 1), int(spec.get("replicas", 1)), up=False))
        name = update["metadata"]["name"]
        # A missing pod, or a new one, is unavailable too.
        unavailable = int(spec.get("replicas", 1)) - sum(self._healthy(owner, pod) for pod in pods.values())
        to_delete = []
        for ordinal in sorted((o for o in pods if o >= lowest), reverse=True):
            pod = pods[ordinal]
            if (pod["metadata"].get("labels") or {}).get(HASH_LABEL) == name:
                if not self._healthy(owner, pod) and budget == 1:
                    break  # the replaced pod must be ready before the next deletion
                continue
            if deleting(pod):
                continue
            if not self._healthy(owner, pod):
                to_delete.append(pod)  # it is not available: replacing it costs nothing
            elif unavailable < budget:
                to_delete.append(pod)
                unavailable += 1
            else:
                break
        await gather_results(self._delete(pod) for pod in to_delete)

    async def _create(self, owner: Json, ordinal: int, revision: Json) -> None:
        meta, spec = owner["metadata"], owner["spec"]
        name = f"{meta['name']}-{ordinal}"
        pod = from_template(template_of(revision), owner, r.STATEFUL_SETS, name=name)
        pod["metadata"]["labels"] |= {
            POD_NAME_LABEL: name,
            POD_INDEX: str(ordinal),
            HASH_LABEL: revision["metadata"]["name"],
        }
        pod["spec"]["hostname"] = name
        if spec.get("serviceName"):
            pod["spec"]["subdomain"] = spec["serviceName"]
        await self._volumes.ensure(owner, ordinal, pod)
        for admit in self._admission:
            await admit(pod, owner)
        try:
            made = await self._pods.create(pod)
        except AlreadyExists:
            return  # the cache is outdated, or another pod has the name: its deletion requeues the set
        except (Invalid, Forbidden) as problem:
            self._announced.failed(owner, problem)
            raise
        self._announced.created(made)

    async def _delete(self, pod: Json) -> None:
        if await self._pods.delete(pod):
            self._announced.deleted(pod)

    # ---- status

    def _conditions(self, owner: Json, refusal: GroupingRefused | None) -> list[Json]:
        conditions = conditions_of(owner)
        follow_refusal(conditions, TOO_MANY, refusal, self._clock)
        return conditions

    async def _write_status(
        self, owner: Json, pods: dict[int, Json], current: Json, update: Json, refusal: GroupingRefused | None
    ) -> None:
        spec = owner["spec"]
        alive = [pod for pod in pods.values() if not finished(pod)]
        updated = [pod for pod in alive if _runs(pod, update)]
        on_current = [pod for pod in alive if _runs(pod, current)]
        replicas = int(spec.get("replicas", 1))
        done = len(updated) == len(alive) == replicas and all(self._healthy(owner, pod) for pod in updated)
        if done:
            current, on_current = update, updated
        status = {
            "observedGeneration": owner["metadata"].get("generation", 0),
            "replicas": len(alive),
            "readyReplicas": sum(ready(pod) for pod in alive) or None,
            "availableReplicas": sum(self._healthy(owner, pod) for pod in alive),
            "currentReplicas": len(on_current) or None,
            "updatedReplicas": len(updated) or None,
            "currentRevision": current["metadata"]["name"],
            "updateRevision": update["metadata"]["name"],
            "collisionCount": (owner.get("status") or {}).get("collisionCount", 0),
            "conditions": self._conditions(owner, refusal),
        }
        owner = await write_status(self._sets, owner, status)
        if done and not deleting(owner):
            live = {current["metadata"]["name"], update["metadata"]["name"]}
            await self._revisions.trim(owner, live, int(spec.get("revisionHistoryLimit", 10)))


def _runs(pod: Json, revision: Json) -> bool:
    labels = pod["metadata"].get("labels") or {}
    return labels.get(HASH_LABEL) == revision["metadata"]["name"] and not deleting(pod)


def _ordinal(owner: Json, name: str) -> int | None:
    prefix, _, number = name.rpartition("-")
    return int(number) if prefix == owner["metadata"]["name"] and number.isdecimal() else None
