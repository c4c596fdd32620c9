"""Protect claims in use: remove the finalizer of a deleted claim once no pod on a node uses it.

Admission has added the finalizer.
"""

from __future__ import annotations

from phalanx.base import resources as r
from phalanx.base.clock import Clock
from phalanx.base.errors import NotFound
from phalanx.controllers.runtime.controller import Caches, Controller, Json, Key
from phalanx.controllers.runtime.ownership import deleting
from phalanx.controllers.volumes.ephemeral import claim_name
from phalanx.controllers.volumes.writes import CLAIM_PROTECTION, VolumeWrites


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
    """Cache index: namespace/name. A pod without a node does not count: no node starts it with a deleted claim."""
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
