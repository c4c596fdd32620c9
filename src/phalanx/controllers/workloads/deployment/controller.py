"""Deployment: rolls a pod template out through ReplicaSets, one per revision of the template."""

from __future__ import annotations

import copy

import msgspec

from phalanx.base import resources as r
from phalanx.base.clock import Clock
from phalanx.base.errors import AlreadyExists, Forbidden, Invalid
from phalanx.base.ids import hash_of
from phalanx.base.well_known import LAST_APPLIED, POD_TEMPLATE_HASH
from phalanx.controllers.runtime.claiming import Claims
from phalanx.controllers.runtime.controller import Caches, Controller, Json, Key
from phalanx.controllers.runtime.events import Events
from phalanx.controllers.runtime.ownership import controlled_by, controller_of, controller_reference, deleting
from phalanx.controllers.runtime.rollout import ReplicaSetShare, allowance, grown, scaled_down, shared_out
from phalanx.controllers.runtime.status import write_status
from phalanx.controllers.workloads.deployment.status import (
    CREATE_FAILED,
    RolloutProgress,
    status_of,
    status_without_set,
)
from phalanx.model.annotation_values import MAX_INT32, MAX_INT64, BadValue, natural, whole_number
from phalanx.model.selectors import from_selector

REVISION = "deployment.kubernetes.io/revision"
HISTORY = "deployment.kubernetes.io/revision-history"
DESIRED = "deployment.kubernetes.io/desired-replicas"
MAXIMUM = "deployment.kubernetes.io/max-replicas"
NOT_COPIED = {REVISION, HISTORY, DESIRED, MAXIMUM, LAST_APPLIED}


class DeploymentController(Controller):
    name = "deployment"

    def __init__(self, caches: Caches, clock: Clock, events: Events) -> None:
        super().__init__()
        self._client, self._clock, self._events = caches.client, clock, events
        self._deployments = caches.of(r.DEPLOYMENTS)
        self._sets = caches.of(r.REPLICA_SETS)
        self._pods = caches.of(r.PODS)
        self._claims = Claims(self._sets, r.DEPLOYMENTS)
        self._deployments.index("namespace", lambda obj: [obj["metadata"]["namespace"]])
        self._deployments.on_change(self.requeue)
        self.report_refusals(self._deployments, events)
        self._sets.on_change(self._set_changed)
        self._pods.on_change(self._pod_changed, of="ReplicaSet")

    def _set_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        self.requeue_owner("Deployment")(key, new, old)
        if new is not None and self._claims.is_orphan(new):
            for owner in self._deployments.by_index("namespace", key.namespace):
                if from_selector(owner["spec"]["selector"]).matches(new["metadata"]["labels"]):
                    self.queue.add(Key(key.namespace, owner["metadata"]["name"]))

    def _pod_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        """Requeue for Recreate, which waits for the deletion of the last old pod; no ReplicaSet status shows that."""
        reference = controller_of(old) if new is None and old is not None else None
        if reference is not None and reference["kind"] == "ReplicaSet":
            replica_set = self._sets.get(key.namespace, reference["name"])
            if replica_set is not None:
                self._set_changed(key, replica_set, None)

    async def reconcile(self, key: Key) -> None:
        deployment = self._deployments.get(*key)
        if deployment is None:
            return
        sets = await self._ours(deployment)
        current = _current(deployment, sets)
        created = False
        if not deleting(deployment):
            old = [s for s in sets if s is not current]
            spec = deployment["spec"]
            if spec.get("paused") or self._rescaled(deployment, sets):
                if current is not None:
                    current = await self._number(deployment, current, old)
                await self._rescale(deployment, current, old)
            elif (spec.get("strategy") or {}).get("type") == "Recreate":
                await self._recreate(deployment, current, old)
            else:
                created = current is None
                await self._roll(deployment, await self._ensure(deployment, current, old), old)
            deployment = self._deployments.get(*key) or deployment
            sets = [s for s in self._sets.by_index("controller", deployment["metadata"]["uid"]) if not deleting(s)]
            current = _current(deployment, sets)
        progress = RolloutProgress(deployment, current, sets, created)
        status, recheck = status_of(progress, self._clock)
        deployment = await write_status(self._deployments, deployment, status)
        if recheck is not None:
            self.queue.add_after(key, recheck)
        if not deleting(deployment) and progress.complete:
            await self._clean(deployment, [s for s in sets if s is not current])

    async def _ours(self, deployment: Json) -> list[Json]:
        return [s for s in await self._claims.of(deployment) if not deleting(s)]

    # ---- the ReplicaSet of the current template

    async def _ensure(self, deployment: Json, current: Json | None, old: list[Json]) -> Json:
        """Return the ReplicaSet of the current template, created or found, with the newest revision number."""
        if current is not None:
            return await self._number(deployment, current, old)
        newest = max(map(_revision, old), default=0) + 1
        collisions = int((deployment.get("status") or {}).get("collisionCount") or 0)
        body = self._new_set(deployment, newest, collisions)
        namespace = deployment["metadata"]["namespace"]
        try:
            made = await self._sets.create(body)
        except AlreadyExists:
            made = msgspec.json.decode(await self._client.get(r.REPLICA_SETS, body["metadata"]["name"], namespace))
            if not (controlled_by(made, deployment["metadata"]["uid"]) and _same_template(made, deployment)):
                # Another owner's object has the name: the next attempt uses another hash.
                status = {**(deployment.get("status") or {}), "collisionCount": collisions + 1}
                await write_status(self._deployments, deployment, status)
                raise
            self._sets.remember(made)
        except (Invalid, Forbidden) as problem:
            text = f'Failed to create new replica set "{body["metadata"]["name"]}": {problem}'
            self._events.warning(deployment, self.name, CREATE_FAILED, text)
            problem.reported = True
            await write_status(self._deployments, deployment, status_without_set(deployment, text, self._clock))
            raise
        self._report_scaled(deployment, made, 0, _wanted(made))
        await self._report_revision(deployment, newest)
        return made

    async def _number(self, deployment: Json, current: Json, old: list[Json]) -> Json:
        """Give the current revision the highest number and the Deployment's annotations (change-cause)."""
        newest = max(map(_revision, old), default=0) + 1
        have = current["metadata"].get("annotations") or {}
        want = {k: v for k, v in (deployment["metadata"].get("annotations") or {}).items() if k not in NOT_COPIED}
        if _revision(current) < newest:
            want[REVISION] = str(newest)
            if have.get(REVISION):
                want[HISTORY] = ",".join(filter(None, (have.get(HISTORY), have[REVISION])))
        if not want.items() <= have.items():
            current = await self._patch_set(current, {"metadata": {"annotations": want}})
        await self._report_revision(deployment, _revision(current))
        return current

    def _new_set(self, deployment: Json, revision: int, collisions: int) -> Json:
        spec, meta = deployment["spec"], deployment["metadata"]
        digest = hash_of(spec["template"], collisions)
        template = copy.deepcopy(spec["template"])
        labels = template.setdefault("metadata", {}).setdefault("labels", {})
        labels[POD_TEMPLATE_HASH] = digest
        selector = copy.deepcopy(spec["selector"])
        selector.setdefault("matchLabels", {})[POD_TEMPLATE_HASH] = digest
        annotations = {k: v for k, v in (meta.get("annotations") or {}).items() if k not in NOT_COPIED}
        return {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {
                "name": f"{meta['name']}-{digest}",
                "namespace": meta["namespace"],
                "labels": dict(labels),
                "annotations": {**annotations, REVISION: str(revision), **_bounds(deployment)},
                "ownerReferences": [controller_reference(deployment, r.DEPLOYMENTS)],
            },
            "spec": {
                "replicas": 0,
                "minReadySeconds": int(spec.get("minReadySeconds") or 0),
                "selector": selector,
                "template": template,
            },
        }

    async def _report_revision(self, deployment: Json, revision: int) -> None:
        meta = deployment["metadata"]
        if (meta.get("annotations") or {}).get(REVISION) == str(revision):
            return
        patch = {"metadata": {"uid": meta["uid"], "annotations": {REVISION: str(revision)}}}
        await self._deployments.patch(deployment, patch)

    # ---- sizes

    def _rescaled(self, deployment: Json, sets: list[Json]) -> bool:
        """Return True if the user changed the scale since the ReplicaSets were last sized."""
        wanted = str(deployment["spec"].get("replicas", 1))
        return any(_wanted(s) and (s["metadata"].get("annotations") or {}).get(DESIRED, wanted) != wanted for s in sets)

    async def _rescale(self, deployment: Json, current: Json | None, old: list[Json]) -> None:
        replicas = int(deployment["spec"].get("replicas", 1))
        sets = [s for s in [current, *old] if s is not None]
        busy = [s for s in sets if _wanted(s)]
        if len(busy) <= 1:
            last = busy[0] if busy else max(sets, key=_revision, default=None)
            if last is not None:
                await self._scale(last, replicas, deployment)
        elif current is not None and _wanted(current) == replicas == _available(current):
            for replica_set in old:
                await self._scale(replica_set, 0, deployment)
        elif (deployment["spec"].get("strategy") or {}).get("type") != "Recreate":
            sizes = shared_out([_share(s) for s in busy], replicas, allowance(deployment["spec"]))
            for replica_set in busy:
                await self._scale(replica_set, sizes[replica_set["metadata"]["name"]], deployment)

    async def _recreate(self, deployment: Json, current: Json | None, old: list[Json]) -> None:
        if any(map(_wanted, old)):
            for replica_set in old:
                await self._scale(replica_set, 0, deployment)
        elif not any(self._has_pods(s) for s in old):
            current = await self._ensure(deployment, current, old)
            await self._scale(current, int(deployment["spec"].get("replicas", 1)), deployment)

    def _has_pods(self, replica_set: Json) -> bool:
        return self._pods.any_in_index("controller", replica_set["metadata"]["uid"])

    async def _roll(self, deployment: Json, current: Json, old: list[Json]) -> None:
        spec = deployment["spec"]
        replicas, allowed = int(spec.get("replicas", 1)), allowance(spec)
        shares = [_share(s) for s in old]
        current = await self._scale(current, grown(_share(current), shares, replicas, allowed), deployment)
        if not any(map(_wanted, old)):
            return
        sizes = scaled_down(_share(current), shares, replicas, allowed)
        for replica_set in old:
            name = replica_set["metadata"]["name"]
            await self._scale(replica_set, sizes.get(name, _wanted(replica_set)), deployment)

    async def _scale(self, replica_set: Json, replicas: int, deployment: Json) -> Json:
        bounds = _bounds(deployment)
        annotations = replica_set["metadata"].get("annotations") or {}
        if _wanted(replica_set) == replicas and (not replicas or bounds.items() <= annotations.items()):
            return replica_set
        before = _wanted(replica_set)
        patch: Json = {"metadata": {"annotations": bounds}, "spec": {"replicas": replicas}}
        scaled = await self._patch_set(replica_set, patch)
        self._report_scaled(deployment, replica_set, before, replicas)
        return scaled

    def _report_scaled(self, deployment: Json, replica_set: Json, before: int, after: int) -> None:
        if before != after:
            name, way = replica_set["metadata"]["name"], "up" if after > before else "down"
            note = f"Scaled {way} replica set {name} from {before} to {after}"
            self._events.normal(deployment, self.name, "ScalingReplicaSet", note)

    async def _patch_set(self, replica_set: Json, patch: Json) -> Json:
        patch.setdefault("metadata", {})["resourceVersion"] = replica_set["metadata"]["resourceVersion"]
        return await self._sets.patch(replica_set, patch)

    async def _clean(self, deployment: Json, old: list[Json]) -> None:
        limit = deployment["spec"].get("revisionHistoryLimit", 10)
        idle = [s for s in old if not _wanted(s) and not (s.get("status") or {}).get("replicas")]
        for replica_set in sorted(idle, key=_revision)[: max(0, len(idle) - int(limit))]:
            await self._sets.delete(replica_set, "Background")


def _current(deployment: Json, sets: list[Json]) -> Json | None:
    """Return the ReplicaSet of the current template; of several, the oldest."""
    matching = [s for s in sets if _same_template(s, deployment)]
    return min(matching, key=lambda s: (s["metadata"]["creationTimestamp"], s["metadata"]["name"]), default=None)


def _bounds(deployment: Json) -> dict[str, str]:
    replicas = int(deployment["spec"].get("replicas", 1))
    return {DESIRED: str(replicas), MAXIMUM: str(replicas + allowance(deployment["spec"]).surge)}


def _share(replica_set: Json) -> ReplicaSetShare:
    meta = replica_set["metadata"]
    return ReplicaSetShare(
        meta["name"],
        meta["creationTimestamp"],
        _wanted(replica_set),
        _available(replica_set),
        natural((meta.get("annotations") or {}).get(MAXIMUM, ""), MAX_INT32) or 0,
    )


def _wanted(replica_set: Json) -> int:
    return int(replica_set["spec"].get("replicas", 1))


def _available(replica_set: Json) -> int:
    return int((replica_set.get("status") or {}).get("availableReplicas") or 0)


def _revision(replica_set: Json) -> int:
    try:
        return whole_number((replica_set["metadata"].get("annotations") or {}).get(REVISION, "0"), 0, MAX_INT64 - 1)
    except BadValue:
        return 0


def _same_template(replica_set: Json, deployment: Json) -> bool:
    return _bare(replica_set["spec"]["template"]) == _bare(deployment["spec"]["template"])


def _bare(template: Json) -> Json:
    meta = {k: v for k, v in (template.get("metadata") or {}).items() if v and k != "creationTimestamp"}
    labels = {k: v for k, v in (meta.pop("labels", None) or {}).items() if k != POD_TEMPLATE_HASH}
    return {"metadata": meta, "labels": labels, "spec": template.get("spec") or {}}
