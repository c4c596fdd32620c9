"""Create a claim for each generic ephemeral volume of a pod, and protect claims that a pod uses.

The garbage collector deletes an ephemeral claim with its pod. Admission adds the finalizer that protects a claim; it is
removed from a terminating claim when no pod on a node uses it.
"""

from __future__ import annotations

import copy

from phalanx.base import resources as r
from phalanx.base.clock import Clock
from phalanx.base.errors import AlreadyExists, NotFound
from phalanx.controllers.runtime.controller import Caches, Controller, Json, Key
from phalanx.controllers.runtime.events import Events
from phalanx.controllers.runtime.ownership import controlled_by, controller_reference, deleting
from phalanx.controllers.runtime.pods import finished
from phalanx.controllers.volumes.writes import CLAIM_PROTECTION, VolumeWrites


class EphemeralVolumesController(Controller):
    name = "ephemeral volumes"

    def __init__(self, caches: Caches, events: Events) -> None:
        super().__init__()
        self._client, self._events = caches.client, events
        self._pods = caches.of(r.PODS)
        self._claims = caches.of(r.PERSISTENT_VOLUME_CLAIMS)
        self._pods.on_change(self._pod_changed)

    def _pod_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        if new is not None and any(map(_template, (new.get("spec") or {}).get("volumes") or ())):
            self.queue.add(key)

    async def reconcile(self, key: Key) -> None:
        pod = self._pods.get(*key)
        if pod is None or deleting(pod) or finished(pod):
            return
        for volume in pod["spec"].get("volumes") or ():
            template = _template(volume)
            if template:
                await self._ensure(pod, claim_name(pod, volume), template)

    async def _ensure(self, pod: Json, name: str, template: Json) -> None:
        meta = pod["metadata"]
        known = self._claims.get(meta["namespace"], name)
        if known is not None:
            if not controlled_by(known, meta["uid"]):
                # It must not be shared by accident; the scheduler refuses the pod for the same reason.
                text = f"PVC {meta['namespace']}/{name} was not created for pod (pod is not owner)"
                self._events.warning(pod, self.name, "FailedCreate", text)
            return
        about = template.get("metadata") or {}
        body = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": name,
                "namespace": meta["namespace"],
                "labels": dict(about.get("labels") or {}),
                "annotations": dict(about.get("annotations") or {}),
                "ownerReferences": [controller_reference(pod, r.PODS)],
            },
            "spec": copy.deepcopy(template.get("spec") or {}),
        }
        try:
            await self._client.create(r.PERSISTENT_VOLUME_CLAIMS, body, meta["namespace"])
        except AlreadyExists:
            return


def claim_name(pod: Json, volume: Json) -> str:
    return f"{pod['metadata']['name']}-{volume['name']}"


def _template(volume: Json) -> Json:
    return (volume.get("ephemeral") or {}).get("volumeClaimTemplate") or {}


class ClaimProtection(Controller):
    name = "claim protection"
    workers = 2

    def __init__(self, caches: Caches, clock: Clock) -> None:
        super().__init__()
        self._claims = caches.of(r.PERSISTENT_VOLUME_CLAIMS)
        self._pods = caches.of(r.PODS)
        self._writes = VolumeWrites(caches.of(r.PERSISTENT_VOLUMES), self._claims, clock)
        self._pods.index("claims used", _claims_used)
        self._claims.on_change(self._claim_changed)
        self._pods.on_change(self._pod_changed)

    def _claim_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        if new is not None and deleting(new):
            self.queue.add(key)

    def _pod_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        if new is None and old is not None:
            for claim in _claims_used(old):
                self.queue.add(Key(key.namespace, claim.partition("/")[2]))

    async def reconcile(self, key: Key) -> None:
        claim = self._claims.get(*key)
        if claim is None or self._pods.any_in_index("claims used", str(key)):
            return
        try:
            await self._writes.unprotect(self._claims, claim, CLAIM_PROTECTION)
        except NotFound:
            return


def _claims_used(pod: Json) -> list[str]:
    """Cache index: namespace/name. A pod without a node does not count: it cannot start with a deleted claim."""
    spec, meta = pod.get("spec") or {}, pod["metadata"]
    if not spec.get("nodeName"):
        return []
    found = []
    for volume in spec.get("volumes") or ():
        if volume.get("persistentVolumeClaim"):
            found.append(f"{meta['namespace']}/{volume['persistentVolumeClaim'].get('claimName', '')}")
        elif volume.get("ephemeral"):
            found.append(f"{meta['namespace']}/{claim_name(pod, volume)}")
    return found
