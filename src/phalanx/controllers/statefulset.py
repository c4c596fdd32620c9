"""StatefulSet: pods with names that stay, one after the other or all at once, rolled from the highest ordinal down."""

from __future__ import annotations

import asyncio
import copy
import math
from typing import Any

import msgspec

from phalanx.base.clock import Clock
from phalanx.base.errors import AlreadyExists, NotFound
from phalanx.controllers import resources as r
from phalanx.controllers.hashing import hash_of
from phalanx.controllers.ownership import (
    controlled_by,
    controller_of,
    controller_reference,
    deleting,
    index_by_controller,
)
from phalanx.controllers.pods import available_in, finished, from_template, ready
from phalanx.controllers.runtime import Caches, Controller, Json, Key
from phalanx.controllers.status import write_status

REVISION_LABEL = "controller-revision-hash"
POD_NAME_LABEL = "statefulset.kubernetes.io/pod-name"
INDEX_LABEL = "apps.kubernetes.io/pod-index"


class StatefulSetController(Controller):
    name = "statefulset"

    def __init__(self, caches: Caches, clock: Clock) -> None:
        super().__init__()
        self._client, self._clock = caches.client, clock
        self._sets = caches.of(r.STATEFUL_SETS)
        self._pods = caches.of(r.PODS)
        self._revisions = caches.of(r.CONTROLLER_REVISIONS)
        self._claims = caches.of(r.PERSISTENT_VOLUME_CLAIMS)
        self._pods.index("controller", index_by_controller)
        self._revisions.index("controller", index_by_controller)
        self._sets.on_change(lambda key, new, old: self.queue.add(key))
        self._pods.on_change(self._pod_changed)

    def _pod_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        for pod in (new, old):
            reference = controller_of(pod) if pod is not None else None
            if reference is not None and reference["kind"] == "StatefulSet":
                self.queue.add(Key(key.namespace, reference["name"]))

    async def reconcile(self, key: Key) -> None:
        owner = self._sets.get(*key)
        if owner is None:
            return
        pods = self._ours(owner)
        current, update = await self._both_revisions(owner)
        if not deleting(owner):
            await self._arrange(owner, pods, current, update)
            pods = self._ours(owner)
        await self._write(owner, pods, current, update)

    def _ours(self, owner: Json) -> dict[int, Json]:
        pods = {}
        for pod in self._pods.by_index("controller", owner["metadata"]["uid"]):
            ordinal = _ordinal(owner, pod["metadata"]["name"])
            if ordinal is not None:
                pods[ordinal] = pod
        return pods

    # ---- revisions

    async def _both_revisions(self, owner: Json) -> tuple[Json, Json]:
        """(current, update): the revision pods run by default, and the one of the present template."""
        known = self._revisions.by_index("controller", owner["metadata"]["uid"])
        data = {"spec": {"template": {**copy.deepcopy(owner["spec"]["template"]), "$patch": "replace"}}}
        update = next((rev for rev in known if rev.get("data") == data), None)
        if update is None:
            update = await self._new_revision(owner, data, max((int(rev["revision"]) for rev in known), default=0) + 1)
        name = (owner.get("status") or {}).get("currentRevision")
        current = next((rev for rev in known if rev["metadata"]["name"] == name), update)
        return current, update

    async def _new_revision(self, owner: Json, data: Json, number: int) -> Json:
        meta = owner["metadata"]
        name = f"{meta['name']}-{hash_of(data)}"
        body = {
            "apiVersion": "apps/v1",
            "kind": "ControllerRevision",
            "metadata": {
                "name": name,
                "namespace": meta["namespace"],
                "labels": dict((owner["spec"]["template"].get("metadata") or {}).get("labels") or {}),
                "ownerReferences": [controller_reference(owner, r.STATEFUL_SETS)],
            },
            "data": data,
            "revision": number,
        }
        try:
            made: Json = msgspec.json.decode(await self._client.create(r.CONTROLLER_REVISIONS, body, meta["namespace"]))
        except AlreadyExists:
            made = msgspec.json.decode(await self._client.get(r.CONTROLLER_REVISIONS, name, meta["namespace"]))
            if not controlled_by(made, meta["uid"]):
                raise
        self._revisions.remember(made)
        return made

    # ---- arranging pods

    async def _arrange(self, owner: Json, pods: dict[int, Json], current: Json, update: Json) -> None:
        spec = owner["spec"]
        start = int((spec.get("ordinals") or {}).get("start") or 0)
        wanted = range(start, start + int(spec.get("replicas", 1)))
        ordered = spec.get("podManagementPolicy", "OrderedReady") == "OrderedReady"
        waiting = False
        jobs = []
        for ordinal in wanted:
            pod = pods.get(ordinal)
            if pod is not None and finished(pod) and not deleting(pod):
                jobs.append(self._delete(pod))  # a set's pod runs for ever: one that ended is made anew
                waiting = True
            elif pod is None:
                revision = self._revision_for(owner, ordinal, start, current, update)
                jobs.append(self._create(owner, ordinal, revision))
                waiting = True
            elif not self._healthy(owner, pod):
                waiting = True
            if waiting and ordered:
                break
        if ordered and jobs:
            jobs, rest = jobs[:1], jobs[1:]
            for unused in rest:
                unused.close()
        await asyncio.gather(*jobs)
        if ordered and waiting:
            return
        extra = sorted((o for o in pods if o not in wanted), reverse=True)
        if extra:
            doomed = [pods[o] for o in extra if not deleting(pods[o])]
            if ordered:
                # From the highest, one at a time, each only after the one above is gone.
                doomed = [] if any(deleting(pods[o]) for o in extra) else doomed[:1]
            await asyncio.gather(*(self._delete(pod) for pod in doomed))
            if ordered:
                return
        await self._roll(owner, {o: p for o, p in pods.items() if o in wanted}, update)

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
        budget = max(1, _resolve(rolling.get("maxUnavailable", 1), int(spec.get("replicas", 1))))
        name = update["metadata"]["name"]
        unavailable = sum(1 for pod in pods.values() if not self._healthy(owner, pod))
        doomed = []
        for ordinal in sorted((o for o in pods if o >= lowest), reverse=True):
            pod = pods[ordinal]
            if (pod["metadata"].get("labels") or {}).get(REVISION_LABEL) == name:
                if not self._healthy(owner, pod) and budget == 1:
                    break  # the one just replaced must be well before the next goes
                continue
            if deleting(pod):
                continue
            if not self._healthy(owner, pod):
                doomed.append(pod)  # it serves nobody: replacing it costs nothing
            elif unavailable < budget:
                doomed.append(pod)
                unavailable += 1
            else:
                break
        await asyncio.gather(*(self._delete(pod) for pod in doomed))

    async def _create(self, owner: Json, ordinal: int, revision: Json) -> None:
        meta, spec = owner["metadata"], owner["spec"]
        name = f"{meta['name']}-{ordinal}"
        template = {k: v for k, v in revision["data"]["spec"]["template"].items() if k != "$patch"}
        pod = from_template(template, owner, r.STATEFUL_SETS, name=name)
        pod["metadata"]["labels"] |= {
            POD_NAME_LABEL: name,
            INDEX_LABEL: str(ordinal),
            REVISION_LABEL: revision["metadata"]["name"],
        }
        pod["spec"]["hostname"] = name
        if spec.get("serviceName"):
            pod["spec"]["subdomain"] = spec["serviceName"]
        await self._volumes(owner, ordinal, pod)
        try:
            made: Json = msgspec.json.decode(await self._client.create(r.PODS, pod, meta["namespace"]))
        except AlreadyExists:
            return  # the cache is behind, or a stranger has the name: the next look tells
        self._pods.remember(made)

    async def _volumes(self, owner: Json, ordinal: int, pod: Json) -> None:
        meta = owner["metadata"]
        for template in owner["spec"].get("volumeClaimTemplates") or ():
            label = template["metadata"]["name"]
            claim = f"{label}-{meta['name']}-{ordinal}"
            volumes = [v for v in pod["spec"].get("volumes") or () if v["name"] != label]
            volumes.append({"name": label, "persistentVolumeClaim": {"claimName": claim}})
            pod["spec"]["volumes"] = volumes
            if self._claims.get(meta["namespace"], claim) is not None:
                continue
            labels = (owner["spec"]["selector"].get("matchLabels") or {}) | (template["metadata"].get("labels") or {})
            body = {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": claim, "namespace": meta["namespace"], "labels": labels},
                "spec": copy.deepcopy(template["spec"]),
            }
            try:
                await self._client.create(r.PERSISTENT_VOLUME_CLAIMS, body, meta["namespace"])
            except AlreadyExists:
                continue

    async def _delete(self, pod: Json) -> None:
        meta = pod["metadata"]
        try:
            await self._client.delete(r.PODS, meta["name"], meta["namespace"], uid=meta["uid"])
        except NotFound:
            return

    # ---- status

    async def _write(self, owner: Json, pods: dict[int, Json], current: Json, update: Json) -> None:
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
        }
        owner = await write_status(self._sets, owner, status)
        if done:
            await self._clean(owner, update)

    async def _clean(self, owner: Json, current: Json) -> None:
        limit = int(owner["spec"].get("revisionHistoryLimit", 10))
        old = [
            rev
            for rev in self._revisions.by_index("controller", owner["metadata"]["uid"])
            if rev["metadata"]["name"] != current["metadata"]["name"]
        ]
        for revision in sorted(old, key=lambda rev: int(rev["revision"]))[: max(0, len(old) - limit)]:
            meta = revision["metadata"]
            try:
                await self._client.delete(r.CONTROLLER_REVISIONS, meta["name"], meta["namespace"], uid=meta["uid"])
            except NotFound:
                continue


def _runs(pod: Json, revision: Json) -> bool:
    labels = pod["metadata"].get("labels") or {}
    return labels.get(REVISION_LABEL) == revision["metadata"]["name"] and not deleting(pod)


def _ordinal(owner: Json, name: str) -> int | None:
    prefix, _, number = name.rpartition("-")
    return int(number) if prefix == owner["metadata"]["name"] and number.isdecimal() else None


def _resolve(value: Any, total: int) -> int:
    return value if isinstance(value, int) else math.floor(int(str(value).rstrip("%")) * total / 100)
