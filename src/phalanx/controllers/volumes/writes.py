"""Write the changes that bind or unbind a claim and a volume. Each is safe to repeat.

Every write names the resourceVersion that was read, so that a concurrent change is not overwritten.
"""

from __future__ import annotations

import msgspec

from phalanx.base.clock import Clock, rfc3339
from phalanx.base.well_known import BIND_COMPLETED
from phalanx.controllers.runtime.controller import Cache, Json
from phalanx.controllers.runtime.ownership import deleting
from phalanx.controllers.volumes.provisioning import VOLUME_PROTECTION
from phalanx.controllers.volumes.rules import BOUND_BY_CONTROLLER, annotations_of

CLAIM_PROTECTION = "kubernetes.io/pvc-protection"


class VolumeWrites:
    def __init__(self, volumes: Cache, claims: Cache, clock: Clock) -> None:
        self._volumes, self._claims, self._clock = volumes, claims, clock

    async def bind(self, volume: Json, claim: Json) -> None:
        """Bind both sides, the volume first: a claim must not be Bound without its volume."""
        volume = await self._reserve(volume, claim)
        volume = await self.volume_phase(volume, "Bound")
        claim = await self._complete(claim, volume)
        await self.claim_phase(claim, "Bound", volume)

    async def _reserve(self, volume: Json, claim: Json) -> Json:
        reference, meta = volume["spec"].get("claimRef"), claim["metadata"]
        if reference is not None and reference.get("uid") == meta["uid"]:
            return volume
        wanted = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": meta["namespace"],
            "name": meta["name"],
            "uid": meta["uid"],
        }
        change: Json = _protected(volume, VOLUME_PROTECTION)
        if reference is None:
            # A volume reserved by the user stays reserved after release; one chosen here does not.
            change["annotations"] = {BOUND_BY_CONTROLLER: "yes"}
        return await self.patch(self._volumes, volume, {"metadata": change, "spec": {"claimRef": wanted}})

    async def _complete(self, claim: Json, volume: Json) -> Json:
        name, annotations = volume["metadata"]["name"], annotations_of(claim)
        if claim["spec"].get("volumeName") == name and BIND_COMPLETED in annotations:
            return claim
        change: Json = {"annotations": {BIND_COMPLETED: "yes"}, **_protected(claim, CLAIM_PROTECTION)}
        spec: Json = {}
        if claim["spec"].get("volumeName") != name:
            change["annotations"][BOUND_BY_CONTROLLER] = "yes"
            spec["volumeName"] = name
        return await self.patch(self._claims, claim, {"metadata": change, "spec": spec})

    async def unbind(self, volume: Json) -> Json:
        """Release a volume whose claim was bound elsewhere: available, or reserved by name as the user wrote it."""
        if BOUND_BY_CONTROLLER in annotations_of(volume):
            change: Json = {"metadata": {"annotations": {BOUND_BY_CONTROLLER: None}}, "spec": {"claimRef": None}}
        else:
            change = {"spec": {"claimRef": {"uid": None, "resourceVersion": None}}}
        return await self.patch(self._volumes, volume, change)

    async def volume_phase(self, volume: Json, phase: str, message: str = "") -> Json:
        status, kept = volume.get("status") or {}, _protected(volume, VOLUME_PROTECTION)
        if (status.get("phase"), status.get("message") or "") == (phase, message):
            return await self.patch(self._volumes, volume, {"metadata": kept}) if kept else volume
        change: Json = {"phase": phase, "message": message or None}
        if status.get("phase") != phase:
            change["lastPhaseTransitionTime"] = rfc3339(self._clock.now())
        return await self.patch(self._volumes, volume, {"metadata": kept, "status": change}, "status")

    async def claim_phase(self, claim: Json, phase: str, volume: Json | None = None) -> Json:
        status = claim.get("status") or {}
        wanted: Json = {"phase": phase}
        if volume is not None:
            wanted["accessModes"] = volume["spec"].get("accessModes")
            wanted["capacity"] = volume["spec"].get("capacity")
            if volume["spec"].get("volumeAttributesClassName"):
                wanted["currentVolumeAttributesClassName"] = volume["spec"]["volumeAttributesClassName"]
        if all(status.get(field) == value for field, value in wanted.items()):
            return claim
        return await self.patch(self._claims, claim, {"status": wanted}, "status")

    async def unprotect(self, cache: Cache, obj: Json, finalizer: str) -> None:
        finalizers = obj["metadata"].get("finalizers") or []
        if deleting(obj) and finalizer in finalizers:
            left = [entry for entry in finalizers if entry != finalizer]
            await self.patch(cache, obj, {"metadata": {"finalizers": left or None}})

    async def patch(self, cache: Cache, obj: Json, change: Json, subresource: str = "") -> Json:
        meta = obj["metadata"]
        seen = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
        body = {**change, "metadata": {**(change.get("metadata") or {}), **seen}}
        answer: Json = msgspec.json.decode(
            await cache.client.patch(
                cache.resource, meta["name"], body, meta.get("namespace", ""), subresource=subresource
            )
        )
        if not deleting(answer):  # this write may have removed the last finalizer, and so the object
            cache.remember(answer)
        return answer


def _protected(obj: Json, finalizer: str) -> Json:
    """Return the metadata change that adds the protection finalizer; empty if nothing is to be added."""
    finalizers = obj["metadata"].get("finalizers") or []
    if finalizer in finalizers or deleting(obj):
        return {}
    return {"finalizers": [*finalizers, finalizer]}
