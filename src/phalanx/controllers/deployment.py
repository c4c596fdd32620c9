"""Deployment: rolls a pod template out through ReplicaSets, one per revision of the template."""

from __future__ import annotations

import copy
import math
from typing import Any

import msgspec

from phalanx.base.clock import Clock, parse_rfc3339, rfc3339
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
from phalanx.controllers.runtime import Caches, Controller, Json, Key
from phalanx.controllers.status import conditions_of, set_condition, write_status

HASH_LABEL = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
DESIRED = "deployment.kubernetes.io/desired-replicas"
MAXIMUM = "deployment.kubernetes.io/max-replicas"
NOT_COPIED = {REVISION, DESIRED, MAXIMUM, "kubectl.kubernetes.io/last-applied-configuration"}


class DeploymentController(Controller):
    name = "deployment"

    def __init__(self, caches: Caches, clock: Clock) -> None:
        super().__init__()
        self._client, self._clock = caches.client, clock
        self._deployments = caches.of(r.DEPLOYMENTS)
        self._sets = caches.of(r.REPLICA_SETS)
        self._pods = caches.of(r.PODS)
        self._sets.index("controller", index_by_controller)
        self._pods.index("controller", index_by_controller)
        self._deployments.on_change(lambda key, new, old: self.queue.add(key))
        self._sets.on_change(self._set_changed)

    def _set_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        for obj in (new, old):
            reference = controller_of(obj) if obj is not None else None
            if reference is not None and reference["kind"] == "Deployment":
                self.queue.add(Key(key.namespace, reference["name"]))

    async def reconcile(self, key: Key) -> None:
        deployment = self._deployments.get(*key)
        if deployment is None:
            return
        sets = [s for s in self._sets.by_index("controller", deployment["metadata"]["uid"]) if not deleting(s)]
        if deleting(deployment):
            await self._write(deployment, None, sets)
            return
        current = next((s for s in sets if _same_template(s, deployment)), None)
        old = [s for s in sets if s is not current]
        spec = deployment["spec"]
        if spec.get("paused"):
            await self._write(deployment, current, sets)
            return
        recreate = (spec.get("strategy") or {}).get("type") == "Recreate"
        if recreate and any(_wanted(s) for s in old):
            for replica_set in old:
                await self._scale(replica_set, 0, deployment)
        elif recreate and any(self._has_pods(s) for s in old):
            pass  # wait until the last old pod is gone; its ReplicaSet's status will wake us
        else:
            current = await self._ensure(deployment, current, sets)
            if recreate:
                await self._scale(current, int(spec.get("replicas", 1)), deployment)
            else:
                await self._roll(deployment, current, old)
        sets = [s for s in self._sets.by_index("controller", deployment["metadata"]["uid"]) if not deleting(s)]
        current = next((s for s in sets if _same_template(s, deployment)), None)
        deployment = await self._write(deployment, current, sets)
        await self._clean(deployment, [s for s in sets if s is not current])

    def _has_pods(self, replica_set: Json) -> bool:
        return any(True for _ in self._pods.by_index("controller", replica_set["metadata"]["uid"]))

    async def _ensure(self, deployment: Json, current: Json | None, sets: list[Json]) -> Json:
        """The ReplicaSet of the present template, made or found, with the newest revision number."""
        newest = max((_revision(s) for s in sets if s is not current), default=0) + 1
        if current is not None:
            if _revision(current) < newest:
                current = await self._patch_set(current, {"metadata": {"annotations": {REVISION: str(newest)}}})
            await self._tell_revision(deployment, _revision(current))
            return current
        collisions = int((deployment.get("status") or {}).get("collisionCount") or 0)
        body = self._new_set(deployment, newest, collisions)
        namespace = deployment["metadata"]["namespace"]
        try:
            made: Json = msgspec.json.decode(await self._client.create(r.REPLICA_SETS, body, namespace))
        except AlreadyExists:
            made = msgspec.json.decode(await self._client.get(r.REPLICA_SETS, body["metadata"]["name"], namespace))
            if not (controlled_by(made, deployment["metadata"]["uid"]) and _same_template(made, deployment)):
                status = {**(deployment.get("status") or {}), "collisionCount": collisions + 1}
                await write_status(self._deployments, deployment, status)
                raise
        self._sets.remember(made)
        await self._tell_revision(deployment, newest)
        return made

    def _new_set(self, deployment: Json, revision: int, collisions: int) -> Json:
        spec, meta = deployment["spec"], deployment["metadata"]
        digest = hash_of(spec["template"], collisions)
        template = copy.deepcopy(spec["template"])
        labels = template.setdefault("metadata", {}).setdefault("labels", {})
        labels[HASH_LABEL] = digest
        selector = copy.deepcopy(spec["selector"])
        selector.setdefault("matchLabels", {})[HASH_LABEL] = digest
        annotations = {k: v for k, v in (meta.get("annotations") or {}).items() if k not in NOT_COPIED}
        return {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {
                "name": f"{meta['name']}-{digest}",
                "namespace": meta["namespace"],
                "labels": dict(labels),
                "annotations": {**annotations, REVISION: str(revision), **self._bounds(deployment)},
                "ownerReferences": [controller_reference(deployment, r.DEPLOYMENTS)],
            },
            "spec": {
                "replicas": 0,
                "minReadySeconds": int(spec.get("minReadySeconds") or 0),
                "selector": selector,
                "template": template,
            },
        }

    def _bounds(self, deployment: Json) -> dict[str, str]:
        replicas = int(deployment["spec"].get("replicas", 1))
        surge, _ = _allowance(deployment["spec"])
        return {DESIRED: str(replicas), MAXIMUM: str(replicas + surge)}

    async def _tell_revision(self, deployment: Json, revision: int) -> None:
        meta = deployment["metadata"]
        if (meta.get("annotations") or {}).get(REVISION) == str(revision):
            return
        patch = {"metadata": {"uid": meta["uid"], "annotations": {REVISION: str(revision)}}}
        answer: Json = msgspec.json.decode(
            await self._client.patch(r.DEPLOYMENTS, meta["name"], patch, meta["namespace"])
        )
        self._deployments.remember(answer)

    async def _roll(self, deployment: Json, current: Json, old: list[Json]) -> None:
        spec = deployment["spec"]
        replicas = int(spec.get("replicas", 1))
        surge, unavailable = _allowance(spec)
        total = sum(map(_wanted, [current, *old]))
        room = replicas + surge - total
        wanted = _wanted(current)
        if wanted > replicas:
            current = await self._scale(current, replicas, deployment)
        elif wanted < replicas and room > 0:
            current = await self._scale(current, min(replicas, wanted + room), deployment)
        if not any(map(_wanted, old)):
            return
        # Old pods may go as far as the minimum stays available, counting on the new pods that are available now.
        total = sum(map(_wanted, [current, *old]))
        minimum = replicas - unavailable
        budget = total - minimum - (_wanted(current) - _available(current))
        if budget <= 0:
            return
        oldest_first = sorted(old, key=lambda s: (s["metadata"]["creationTimestamp"], s["metadata"]["name"]))
        for replica_set in oldest_first:  # unhealthy replicas first: nobody misses them
            unhealthy = min(_wanted(replica_set) - _available(replica_set), budget)
            if unhealthy > 0:
                await self._scale(replica_set, _wanted(replica_set) - unhealthy, deployment)
                budget -= unhealthy
        fresh = [self._sets.get(s["metadata"]["namespace"], s["metadata"]["name"]) or s for s in oldest_first]
        spare = sum(_available(s) for s in [current, *fresh]) - minimum
        for replica_set in fresh:
            step = min(_wanted(replica_set), spare, budget)
            if step > 0:
                await self._scale(replica_set, _wanted(replica_set) - step, deployment)
                spare -= step
                budget -= step

    async def _scale(self, replica_set: Json, replicas: int, deployment: Json) -> Json:
        bounds = self._bounds(deployment)
        annotations = replica_set["metadata"].get("annotations") or {}
        if _wanted(replica_set) == replicas and bounds.items() <= annotations.items():
            return replica_set
        return await self._patch_set(replica_set, {"metadata": {"annotations": bounds}, "spec": {"replicas": replicas}})

    async def _patch_set(self, replica_set: Json, patch: Json) -> Json:
        meta = replica_set["metadata"]
        patch.setdefault("metadata", {})["resourceVersion"] = meta["resourceVersion"]
        answer: Json = msgspec.json.decode(
            await self._client.patch(r.REPLICA_SETS, meta["name"], patch, meta["namespace"])
        )
        self._sets.remember(answer)
        return answer

    async def _clean(self, deployment: Json, old: list[Json]) -> None:
        limit = deployment["spec"].get("revisionHistoryLimit", 10)
        idle = [s for s in old if not _wanted(s) and not (s.get("status") or {}).get("replicas")]
        for replica_set in sorted(idle, key=_revision)[: max(0, len(idle) - int(limit))]:
            meta = replica_set["metadata"]
            try:
                await self._client.delete(
                    r.REPLICA_SETS, meta["name"], meta["namespace"], uid=meta["uid"], propagation="Background"
                )
            except NotFound:
                continue

    async def _write(self, deployment: Json, current: Json | None, sets: list[Json]) -> Json:
        spec = deployment["spec"]
        replicas = int(spec.get("replicas", 1))
        totals = {name: sum(int((s.get("status") or {}).get(name) or 0) for s in sets) for name in _COUNTERS}
        updated = int(((current or {}).get("status") or {}).get("replicas") or 0)
        _, unavailable_allowed = _allowance(spec)
        conditions = conditions_of(deployment)
        if totals["availableReplicas"] >= replicas - unavailable_allowed:
            _condition(conditions, "Available", "True", "MinimumReplicasAvailable", _HAS_MINIMUM, self._clock)
        else:
            _condition(conditions, "Available", "False", "MinimumReplicasUnavailable", _LACKS_MINIMUM, self._clock)
        self._progress(deployment, conditions, current, updated, totals)
        status = {
            "replicas": totals["replicas"] or None,
            "updatedReplicas": updated or None,
            "readyReplicas": totals["readyReplicas"] or None,
            "availableReplicas": totals["availableReplicas"] or None,
            "unavailableReplicas": max(0, sum(map(_wanted, sets)) - totals["availableReplicas"]) or None,
            "observedGeneration": deployment["metadata"].get("generation", 0),
            "collisionCount": (deployment.get("status") or {}).get("collisionCount"),
            "conditions": conditions,
        }
        latest = self._deployments.get(deployment["metadata"]["namespace"], deployment["metadata"]["name"])
        return await write_status(self._deployments, latest or deployment, status)

    def _progress(
        self, deployment: Json, conditions: list[Json], current: Json | None, updated: int, totals: dict[str, int]
    ) -> None:
        """The Progressing condition that `kubectl rollout status` and its deadline read."""
        spec, before = deployment["spec"], deployment.get("status") or {}
        replicas = int(spec.get("replicas", 1))
        if current is None:
            return
        name = current["metadata"]["name"]
        complete = updated == replicas == totals["replicas"] == totals["availableReplicas"]
        moved = updated > int(before.get("updatedReplicas") or 0) or totals["availableReplicas"] > int(
            before.get("availableReplicas") or 0
        )
        known = next((c for c in conditions if c["type"] == "Progressing"), None)
        now = rfc3339(self._clock.now())
        if complete:
            text = f'ReplicaSet "{name}" has successfully progressed.'
            if known is None or known["reason"] != "NewReplicaSetAvailable" or known["message"] != text:
                _condition(conditions, "Progressing", "True", "NewReplicaSetAvailable", text, self._clock, touch=now)
            return
        if known is None or moved or known["reason"] == "NewReplicaSetAvailable":
            text = f'ReplicaSet "{name}" is progressing.'
            _condition(conditions, "Progressing", "True", "ReplicaSetUpdated", text, self._clock, touch=now)
            known = next(c for c in conditions if c["type"] == "Progressing")
        deadline = spec.get("progressDeadlineSeconds", 600)
        if known["status"] != "True" or deadline is None:
            return
        left = parse_rfc3339(known["lastUpdateTime"]) + int(deadline) - self._clock.now()
        if left <= 0:
            text = f'ReplicaSet "{name}" has timed out progressing.'
            _condition(conditions, "Progressing", "False", "ProgressDeadlineExceeded", text, self._clock, touch=now)
        else:
            meta = deployment["metadata"]
            self.queue.add_after(Key(meta["namespace"], meta["name"]), left + 0.1)


_COUNTERS = ("replicas", "readyReplicas", "availableReplicas")
_HAS_MINIMUM = "Deployment has minimum availability."
_LACKS_MINIMUM = "Deployment does not have minimum availability."


def _condition(
    conditions: list[Json], type_: str, status: str, reason: str, message: str, clock: Clock, touch: str = ""
) -> None:
    known = next((c for c in conditions if c["type"] == type_), None)
    updated = touch or rfc3339(clock.now())
    if known is not None and not touch and (known["status"], known["reason"]) == (status, reason):
        updated = known.get("lastUpdateTime", updated)
    set_condition(conditions, type_, status, reason, message, clock, lastUpdateTime=updated)


def _wanted(replica_set: Json) -> int:
    return int(replica_set["spec"].get("replicas", 1))


def _available(replica_set: Json) -> int:
    return int((replica_set.get("status") or {}).get("availableReplicas") or 0)


def _revision(replica_set: Json) -> int:
    try:
        return int((replica_set["metadata"].get("annotations") or {}).get(REVISION, 0))
    except ValueError:
        return 0


def _same_template(replica_set: Json, deployment: Json) -> bool:
    template = copy.deepcopy(replica_set["spec"]["template"])
    (template.get("metadata", {}).get("labels") or {}).pop(HASH_LABEL, None)
    return _bare(template) == _bare(deployment["spec"]["template"])


def _bare(template: Json) -> Json:
    meta = {k: v for k, v in (template.get("metadata") or {}).items() if v and k != "creationTimestamp"}
    return {"metadata": meta, "spec": template.get("spec") or {}}


def _allowance(spec: Json) -> tuple[int, int]:
    """(maxSurge, maxUnavailable) as numbers: surge rounds up, unavailable down, never both zero."""
    strategy = spec.get("strategy") or {}
    if strategy.get("type") == "Recreate":
        return 0, 0
    rolling = strategy.get("rollingUpdate") or {}
    replicas = int(spec.get("replicas", 1))
    surge = _resolve(rolling.get("maxSurge", "25%"), replicas, math.ceil)
    unavailable = _resolve(rolling.get("maxUnavailable", "25%"), replicas, math.floor)
    if not surge and not unavailable:
        unavailable = 1
    return surge, min(unavailable, replicas)


def _resolve(value: Any, total: int, rounding: Any) -> int:
    if isinstance(value, int):
        return value
    return int(rounding(int(str(value).rstrip("%")) * total / 100))
