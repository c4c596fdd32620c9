"""Bind PersistentVolumes to claims, reclaim released volumes, and provision simulated disks.

The scheduler decides claims of WaitForFirstConsumer classes: it reserves a volume (claimRef) or names a node
(selected-node), and this controller completes that. Keys without a namespace are volumes.
"""

from __future__ import annotations

import msgspec

from phalanx.base import resources as r
from phalanx.base.clock import Clock
from phalanx.base.errors import AlreadyExists, NotFound
from phalanx.base.well_known import BIND_COMPLETED, NO_PROVISIONER, SELECTED_NODE
from phalanx.controllers.runtime.controller import Caches, Controller, Json, Key
from phalanx.controllers.runtime.events import Events
from phalanx.controllers.runtime.ownership import deleting
from phalanx.controllers.volumes.provisioning import (
    PROVISIONED_BY,
    PROVISIONER,
    VOLUME_PROTECTION,
    any_node,
    disk,
    is_local,
    standard_class,
)
from phalanx.controllers.volumes.rules import (
    annotations_of,
    best_match,
    class_of,
    default_class,
    is_named_by,
    leaves_class_open,
    requested,
    size,
    unsuitable,
    waits_for_consumer,
)
from phalanx.controllers.volumes.writes import VolumeWrites

STORAGE_PROVISIONER = (
    "volume.kubernetes.io/storage-provisioner",
    "volume.beta.kubernetes.io/storage-provisioner",
)
OPEN = " "  # replaces the class name of a claim without a class
START = Key("", "")  # key for the work at startup


class VolumesController(Controller):
    name = "volumes"
    workers = 8

    def __init__(self, caches: Caches, clock: Clock, events: Events) -> None:
        super().__init__()
        self._client, self._events = caches.client, events
        self._volumes = caches.of(r.PERSISTENT_VOLUMES)
        self._claims = caches.of(r.PERSISTENT_VOLUME_CLAIMS)
        self._classes = caches.of(r.STORAGE_CLASSES)
        self._nodes = caches.of(r.NODES)
        self._writes = VolumeWrites(self._volumes, self._claims, clock)
        self._promised: set[str] = set()  # volumes whose claimRef is being written
        self._volumes.index("claim", _claim_named)
        self._volumes.index("free", lambda volume: [] if volume["spec"].get("claimRef") else [class_of(volume)])
        self._claims.index("unbound", _unbound_class)
        self._claims.index("volume", lambda claim: [claim["spec"].get("volumeName") or ""])
        self._claims.on_change(self._claim_changed)
        self._volumes.on_change(self._volume_changed)
        self._classes.on_change(self._class_changed)
        self.queue.add(START)

    # ---- requeues

    def _claim_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        self.queue.add(key)
        for volume in self._volumes.by_index("claim", str(key)):
            self.queue.add(Key("", volume["metadata"]["name"]))

    def _volume_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        self.queue.add(key)
        for volume in (new, old):
            reference = volume["spec"].get("claimRef") if volume is not None else None
            if reference is not None:
                self.queue.add(Key(reference.get("namespace", ""), reference.get("name", "")))
        waiting = self._claims.by_index("volume", key.name)
        if new is not None and new["spec"].get("claimRef") is None:
            waiting += self._claims.by_index("unbound", class_of(new))
        self._wake(waiting)

    def _class_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        self._wake(self._claims.by_index("unbound", key.name) + self._claims.by_index("unbound", OPEN))

    def _wake(self, claims: list[Json]) -> None:
        for claim in claims:
            self.queue.add(Key(claim["metadata"]["namespace"], claim["metadata"]["name"]))

    async def reconcile(self, key: Key) -> None:
        if key == START:
            await self._ensure_default_class()
            return
        obj = (self._claims if key.namespace else self._volumes).get(*key)
        if obj is None:
            return
        try:
            await (self._claim(obj) if key.namespace else self._volume(obj))
        except NotFound:
            return  # deleted: its watch event will follow

    async def _ensure_default_class(self) -> None:
        if default_class(self._classes) is not None:
            return
        try:
            await self._client.create(r.STORAGE_CLASSES, standard_class())
        except AlreadyExists:
            return  # changed by the user

    # ---- claims

    async def _claim(self, claim: Json) -> None:
        if deleting(claim):
            return
        if BIND_COMPLETED in annotations_of(claim):
            await self._bound_claim(claim)
        elif claim["spec"].get("volumeName"):
            await self._bind_to_named_volume(claim)
        else:
            await self._unbound_claim(claim)

    async def _unbound_claim(self, claim: Json) -> None:
        if leaves_class_open(claim):
            default = default_class(self._classes)
            if default is not None:
                change = {"spec": {"storageClassName": default["metadata"]["name"]}}
                claim = await self._writes.patch(self._claims, claim, change)
        meta, name = claim["metadata"], class_of(claim)
        storage_class = self._classes.get("", name) if name else None
        waits = waits_for_consumer(storage_class)
        candidates = self._volumes.by_index("claim", f"{meta['namespace']}/{meta['name']}")
        if not waits:
            candidates += self._volumes.by_index("free", name)
        volume = best_match((v for v in candidates if v["metadata"]["name"] not in self._promised), claim)
        if volume is not None:
            await self._bind(volume, claim)
        elif waits and SELECTED_NODE not in annotations_of(claim):
            text = "waiting for first consumer to be created before binding"
            self._events.normal(claim, self.name, "WaitForFirstConsumer", text)
        elif storage_class is not None:
            await self._provision(claim, storage_class)
        elif name:
            text = f'storageclass.storage.k8s.io "{name}" not found'
            self._events.warning(claim, self.name, "ProvisioningFailed", text)
        else:
            text = "no persistent volumes available for this claim and no storage class is set"
            self._events.normal(claim, self.name, "FailedBinding", text)

    async def _bind_to_named_volume(self, claim: Json) -> None:
        """Bind a claim that names its volume."""
        name = claim["spec"]["volumeName"]
        volume = self._volumes.get("", name)
        if volume is None:
            return
        if is_named_by(volume, claim):
            await self._bind(volume, claim)
        elif volume["spec"].get("claimRef") is not None or name in self._promised:
            text = f'volume "{name}" already bound to a different claim.'
            self._events.warning(claim, self.name, "FailedBinding", text)
        else:
            problem = unsuitable(volume, claim)
            if problem:
                text = f'Cannot bind to requested volume "{name}": {problem}'
                self._events.warning(claim, self.name, "VolumeMismatch", text)
            else:
                await self._bind(volume, claim)

    async def _bound_claim(self, claim: Json) -> None:
        name = claim["spec"].get("volumeName")
        volume = self._volumes.get("", name) if name else None
        if volume is None and name:
            volume = await self._read_volume(name)
        if volume is None:
            what = "its PersistentVolume" if name else "reference to PersistentVolume"
            await self._lose(claim, "ClaimLost", f"Bound claim has lost {what}. Data on the volume is lost!")
        elif volume["spec"].get("claimRef") is None or is_named_by(volume, claim):
            await self._bind(await self._grown(volume, claim), claim)
        else:
            text = "Two claims are bound to the same volume, this one is bound incorrectly"
            await self._lose(claim, "ClaimMisbound", text)

    async def _read_volume(self, name: str) -> Json | None:
        """Read a volume from the server: caches are not synchronised, so only the server shows that it is gone."""
        try:
            found: Json = msgspec.json.decode(await self._client.get(r.PERSISTENT_VOLUMES, name))
        except NotFound:
            return None
        return found

    async def _lose(self, claim: Json, reason: str, text: str) -> None:
        await self._writes.claim_phase(claim, "Lost")
        self._events.warning(claim, self.name, reason, text)

    async def _bind(self, volume: Json, claim: Json) -> None:
        name = volume["metadata"]["name"]
        self._promised.add(name)
        try:
            await self._writes.bind(volume, claim)
        finally:
            self._promised.discard(name)

    # ---- simulated disks

    async def _provision(self, claim: Json, storage_class: Json) -> None:
        provisioner = storage_class["provisioner"]
        if provisioner == NO_PROVISIONER:
            return
        if provisioner != PROVISIONER:
            await self._leave_to(provisioner, claim)
            return
        chosen = annotations_of(claim).get(SELECTED_NODE)
        node = self._nodes.get("", chosen) if chosen else None
        if chosen and node is None:
            text = f'failed to provision volume with StorageClass "{storage_class["metadata"]["name"]}": '
            self._events.warning(claim, self.name, "ProvisioningFailed", f'{text}node "{chosen}" not found')
            # Remove the node, so that the scheduler chooses again.
            await self._writes.patch(self._claims, claim, {"metadata": {"annotations": {SELECTED_NODE: None}}})
            return
        if node is None and is_local(storage_class):
            node = any_node(self._nodes, claim)
            if node is None:
                self._events.warning(claim, self.name, "ProvisioningFailed", "no node for a local disk")
                self.queue.add_after(Key(claim["metadata"]["namespace"], claim["metadata"]["name"]), 1.0)
                return
        body = disk(claim, storage_class, node)
        name = body["metadata"]["name"]
        try:
            volume = await self._volumes.create(body)
        except AlreadyExists:
            return  # created before a crash; when the cache has it, its claimRef requeues this claim
        self._events.normal(claim, self.name, "ProvisioningSucceeded", f"Successfully provisioned volume {name}")
        await self._bind(volume, claim)

    async def _leave_to(self, provisioner: str, claim: Json) -> None:
        """Annotate a claim with the name of its external provisioner, and wait."""
        if any(annotations_of(claim).get(key) != provisioner for key in STORAGE_PROVISIONER):
            change = {"metadata": {"annotations": dict.fromkeys(STORAGE_PROVISIONER, provisioner)}}
            claim = await self._writes.patch(self._claims, claim, change)
        text = f'waiting for a volume to be created by the external provisioner "{provisioner}"'
        self._events.normal(claim, self.name, "ExternalProvisioning", text)

    async def _grown(self, volume: Json, claim: Json) -> Json:
        """Expand a simulated disk when its claim requests more and its class allows it."""
        if requested(claim) <= size(volume["spec"].get("capacity")) or not _simulated(volume):
            return volume
        storage_class = self._classes.get("", class_of(claim))
        if storage_class is None or not storage_class.get("allowVolumeExpansion"):
            return volume
        capacity = {"storage": claim["spec"]["resources"]["requests"]["storage"]}
        return await self._writes.patch(self._volumes, volume, {"spec": {"capacity": capacity}})

    # ---- volumes

    async def _volume(self, volume: Json) -> None:
        volume = await self._set_phase(volume)
        if deleting(volume) and (volume.get("status") or {}).get("phase") != "Bound":
            await self._writes.unprotect(self._volumes, volume, VOLUME_PROTECTION)

    async def _set_phase(self, volume: Json) -> Json:
        """Set the phase of the volume; returns the updated volume."""
        name, reference = volume["metadata"]["name"], volume["spec"].get("claimRef")
        if reference is None or not reference.get("uid"):
            return await self._writes.volume_phase(volume, "Available")
        claim = await self._claim_of(reference)
        if claim is None:
            return await self._release(volume)
        bound_to = claim["spec"].get("volumeName")
        if bound_to == name:
            return await self._writes.volume_phase(volume, "Bound")
        if not bound_to:
            return volume  # reserved; the same watch event requeues the claim, which completes the binding
        if PROVISIONED_BY in annotations_of(volume) and _policy(volume) == "Delete":
            return await self._release(volume)  # provisioned for a claim that was bound to another volume
        return await self._writes.volume_phase(await self._writes.unbind(volume), "Available")

    async def _claim_of(self, reference: Json) -> Json | None:
        """Return the claim with the referenced uid. The server is read before a claim counts as deleted."""
        namespace, name = reference.get("namespace", ""), reference.get("name", "")
        known = self._claims.get(namespace, name)
        if known is not None and known["metadata"]["uid"] == reference["uid"]:
            return known
        try:
            found: Json = msgspec.json.decode(await self._client.get(r.PERSISTENT_VOLUME_CLAIMS, name, namespace))
        except NotFound:
            return None
        return found if found["metadata"]["uid"] == reference["uid"] else None

    async def _release(self, volume: Json) -> Json:
        policy = _policy(volume)
        volume = await self._writes.volume_phase(volume, "Released")
        if policy == "Recycle":  # nothing was ever written to it, so it is clean
            return await self._writes.volume_phase(await self._writes.unbind(volume), "Available")
        foreign = volume["spec"].get("csi") is not None and not _simulated(volume)
        if policy == "Delete" and not foreign and not deleting(volume):
            await self._volumes.delete(volume)
        return volume


def _policy(volume: Json) -> str:
    return str(volume["spec"].get("persistentVolumeReclaimPolicy") or "Retain")


def _simulated(volume: Json) -> bool:
    return (volume["spec"].get("csi") or {}).get("driver") == PROVISIONER


def _claim_named(volume: Json) -> list[str]:
    reference = volume["spec"].get("claimRef")
    return [f"{reference.get('namespace', '')}/{reference.get('name', '')}"] if reference is not None else []


def _unbound_class(claim: Json) -> list[str]:
    if BIND_COMPLETED in annotations_of(claim):
        return []
    return [OPEN, ""] if leaves_class_open(claim) else [class_of(claim)]
