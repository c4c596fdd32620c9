"""Owner-reference garbage collection: background, foreground and orphan, driven by watches.

An object is deleted when all its owners are absent; if some owners remain, only the references to absent owners are
removed. An owner counts as absent only after a request for exactly that owner, because watches of different kinds are
not synchronized with each other and a wrong deletion cannot be undone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from phalanx.base.client import Client, Propagation
from phalanx.base.errors import Conflict, NotFound
from phalanx.base.well_known import FOREGROUND_FINALIZER, ORPHAN_FINALIZER
from phalanx.base.work import WorkQueue
from phalanx.local.system_controllers.metadata_feed import (
    MetadataBody,
    MetadataFeed,
    MetadataItem,
    ObjectMetadata,
    OwnerMetadata,
)
from phalanx.model.kinds import Kind, Registry

log = logging.getLogger(__name__)
_decode = msgspec.json.Decoder(MetadataBody).decode

OwnerState = Literal["solid", "waiting", "absent", "unknown"]
KNOWN_ABSENT = 10_000  # uids of absent owners to remember; a uid is never used again
AT_ONCE = 32
RECHECK_SECONDS = 5.0  # seconds until an owner that no watch has shown is checked again


class _Owners(msgspec.Struct):
    solid: list[OwnerMetadata] = msgspec.field(default_factory=list)
    waiting: list[OwnerMetadata] = msgspec.field(default_factory=list)  # these owners wait for their dependents
    absent: list[OwnerMetadata] = msgspec.field(default_factory=list)
    unknown: list[OwnerMetadata] = msgspec.field(default_factory=list)  # the owner's kind is not served


class _Names(msgspec.Struct, frozen=True):
    kind: str = ""


class _DefinitionSpec(msgspec.Struct, frozen=True):
    group: str = ""
    names: _Names = _Names()


class DefinitionView(MetadataBody, frozen=True):
    spec: _DefinitionSpec = _DefinitionSpec()


DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"
VIEWS: Mapping[str, type[MetadataBody]] = {DEFINITIONS: DefinitionView}


class GarbageCollector:
    """The feed must be created with VIEWS."""

    def __init__(self, client: Client, registry: Registry, feed: MetadataFeed) -> None:
        self._client = client
        self._registry = registry
        self._feed = feed
        self._dependents: dict[str, dict[str, None]] = {}  # owner uid -> uids, in order of arrival
        self._absent: dict[str, None] = {}
        self._seen_existing: dict[str, None] = {}  # owners that existed, although no watch shows them now
        self._definitions: dict[str, tuple[str, str]] = {}  # name of a definition -> (group, kind)
        self._unresolved: set[str] = set()  # uids to check again when kinds are added or removed
        self._work: WorkQueue[str] = WorkQueue("garbage collector")
        feed.listen(self._on_change, self._on_kinds)

    async def run(self) -> None:
        await self._feed.synced.wait()
        await self._work.run(self._reconcile, workers=8)

    # -- the graph ----------------------------------------------------------------------------------------------

    def _on_change(self, before: MetadataItem | None, after: MetadataItem | None) -> None:
        for owner in before.meta.owners if before else ():
            found = self._dependents.get(owner.uid)
            if found is not None and before is not None:
                found.pop(before.meta.uid, None)
                if not found:
                    del self._dependents[owner.uid]
            self._wake_waiting(owner.uid)
        for owner in after.meta.owners if after else ():
            if after is not None:
                self._dependents.setdefault(owner.uid, {})[after.meta.uid] = None
            self._wake_waiting(owner.uid)
        if before is not None and (after is None or after.meta.uid != before.meta.uid):
            if self._registry.by_storage_key(before.kind.key) is None:
                self._remember_existing(before.meta.uid)  # its kind is no longer served; the object was not deleted
            else:
                self._remember_absent(before.meta.uid)
            self._unresolved.discard(before.meta.uid)
            self._wake_dependents(before.meta.uid)
        self._follow_definition(before, after)
        if after is None:
            return
        if after.meta.uid in self._absent:
            del self._absent[after.meta.uid]
        if after.meta.owners or (after.meta.deleting and after.meta.finalizers):
            self._work.add(after.meta.uid)
        if after.meta.waits_for_dependents and not (before and before.meta.waits_for_dependents):
            self._wake_dependents(after.meta.uid)

    def _follow_definition(self, before: MetadataItem | None, after: MetadataItem | None) -> None:
        if after is not None and isinstance(after.body, DefinitionView):
            self._definitions[after.meta.name] = (after.body.spec.group, after.body.spec.names.kind)
        elif before is not None and isinstance(before.body, DefinitionView):
            self._definitions.pop(before.meta.name, None)
            self._on_kinds()

    def _wake_waiting(self, uid: str) -> None:
        owner = self._feed.items.get(uid)
        if owner is not None and owner.meta.waits_for_dependents:
            self._work.add(uid)

    def _wake_dependents(self, uid: str) -> None:
        for dependent in self._dependents.get(uid, ()):
            self._work.add(dependent)

    def _on_kinds(self) -> None:
        for uid in sorted(self._unresolved):
            self._work.add(uid)
        self._unresolved.clear()

    def _remember_absent(self, uid: str) -> None:
        self._seen_existing.pop(uid, None)
        self._absent[uid] = None
        while len(self._absent) > KNOWN_ABSENT:
            self._absent.pop(next(iter(self._absent)))

    def _remember_existing(self, uid: str) -> None:
        self._seen_existing[uid] = None
        while len(self._seen_existing) > KNOWN_ABSENT:
            self._seen_existing.pop(next(iter(self._seen_existing)))

    # -- one object ---------------------------------------------------------------------------------------------

    async def _reconcile(self, uid: str) -> None:
        item = self._feed.items.get(uid)
        if item is None:
            return
        if item.meta.deleting:
            if item.meta.has(ORPHAN_FINALIZER):
                await self._orphan_dependents(item)
            elif item.meta.has(FOREGROUND_FINALIZER):
                await self._delete_dependents_first(item)
        elif item.meta.owners and not self._all_exist(item):
            await self._collect(item)

    def _all_exist(self, item: MetadataItem) -> bool:
        return all(self._known_state(item, owner) == "solid" for owner in item.meta.owners)

    def _known_state(self, item: MetadataItem, owner: OwnerMetadata) -> OwnerState | None:
        """Return the state of an owner as the watches show it; None if no watch shows it."""
        if owner.uid in self._absent:
            return "absent"
        found = self._feed.items.get(owner.uid)
        if found is None:
            return None
        group, _, _ = owner.api_version.rpartition("/")
        if found.meta.name != owner.name or (found.kind.group, found.kind.kind) != (group, owner.kind):
            return None  # the reference and the uid disagree: request the object that the reference names
        if found.meta.namespace and found.meta.namespace != item.meta.namespace:
            return None if item.meta.namespace else "unknown"
        return "waiting" if found.meta.waits_for_dependents else "solid"

    async def _state(self, item: MetadataItem, owner: OwnerMetadata) -> OwnerState:
        known = self._known_state(item, owner)
        if known is not None:
            return known
        group, _, version = owner.api_version.rpartition("/")
        kind = self._registry.by_kind(group, version, owner.kind)
        if kind is None and owner.uid in self._seen_existing and (group, owner.kind) not in self._definitions.values():
            return "absent"  # a definition is removed only after all its objects
        if kind is None or (kind.namespaced and not item.meta.namespace):
            return "unknown"  # a cluster-scoped object cannot have a namespaced owner
        meta = await self._get_metadata(kind, owner.name, item.meta.namespace if kind.namespaced else "")
        if meta is None or meta.uid != owner.uid:
            if owner.uid not in self._feed.items:
                self._remember_absent(owner.uid)
            return "absent"
        # No watch has shown the owner yet, and its deletion may be missed: check again later.
        self._remember_existing(owner.uid)
        self._unresolved.add(item.meta.uid)
        self._work.add_after(item.meta.uid, RECHECK_SECONDS)
        return "waiting" if meta.waits_for_dependents else "solid"

    async def _collect(self, item: MetadataItem) -> None:
        """Delete an object whose owners are all gone, or remove the references to those that are."""
        live = await self._get_metadata(item.kind, item.meta.name, item.meta.namespace)
        if live is None or live.uid != item.meta.uid or live.deleting or not live.owners:
            return
        owners = _Owners()
        for owner in live.owners:
            getattr(owners, await self._state(item, owner)).append(owner)
        if owners.unknown:
            self._unresolved.add(live.uid)
            log.info("%s %s/%s has an owner of a kind that is not served", item.kind.kind, live.namespace, live.name)
            return
        if owners.solid:
            gone = {owner.uid for owner in owners.absent + owners.waiting}
            if gone:
                await self._drop_owners(item.kind, live, gone)
            return
        policy: Propagation = "Background"
        if owners.waiting and self._dependents.get(live.uid):
            policy = "Foreground"
            if any(self._waits(dependent) for dependent in self._dependents[live.uid]):
                # A cycle of objects that wait for each other: unblock this one, so that it is deleted first.
                await self._unblock_owners(item.kind, live)
        elif live.has(ORPHAN_FINALIZER):
            policy = "Orphan"
        elif live.has(FOREGROUND_FINALIZER):
            policy = "Foreground"
        await self._delete(item.kind, live, policy)

    def _waits(self, uid: str) -> bool:
        item = self._feed.items.get(uid)
        return item is not None and item.meta.waits_for_dependents

    async def _delete_dependents_first(self, item: MetadataItem) -> None:
        uid = item.meta.uid
        blocking = []
        for dependent in self._dependents.get(uid, ()):
            found = self._feed.items.get(dependent)
            if found and any(o.uid == uid and o.block_owner_deletion for o in found.meta.owners):
                blocking.append(found)
        if not blocking:
            await self._drop_finalizer(item, FOREGROUND_FINALIZER)
        for dependent_item in blocking:
            if not dependent_item.meta.deleting:
                self._work.add(dependent_item.meta.uid)

    async def _orphan_dependents(self, item: MetadataItem) -> None:
        uids = list(self._dependents.get(item.meta.uid, ()))
        for start in range(0, len(uids), AT_ONCE):
            await asyncio.gather(*(self._drop_owner(uid, item.meta.uid) for uid in uids[start : start + AT_ONCE]))
        await self._drop_finalizer(item, ORPHAN_FINALIZER)

    async def _drop_owner(self, dependent: str, owner: str) -> None:
        item = self._feed.items.get(dependent)
        if item is None:
            return
        live = await self._get_metadata(item.kind, item.meta.name, item.meta.namespace)
        if live is not None and live.uid == dependent and any(o.uid == owner for o in live.owners):
            await self._drop_owners(item.kind, live, {owner})

    # -- calls --------------------------------------------------------------------------------------------------

    async def _get_metadata(self, kind: Kind, name: str, namespace: str) -> ObjectMetadata | None:
        try:
            return _decode(await self._client.get(kind.resource(), name, namespace)).metadata
        except NotFound:
            return None

    async def _drop_owners(self, kind: Kind, live: ObjectMetadata, uids: set[str]) -> None:
        # The typed references lack some fields (`controller`): read the raw list.
        owners = [owner for owner in await self._owner_list(kind, live) if owner.get("uid") not in uids]
        await self._patch(kind, live, {"ownerReferences": owners or None})

    async def _unblock_owners(self, kind: Kind, live: ObjectMetadata) -> None:
        owners = await self._owner_list(kind, live)
        await self._patch(kind, live, {"ownerReferences": [{**o, "blockOwnerDeletion": False} for o in owners]})

    async def _owner_list(self, kind: Kind, live: ObjectMetadata) -> list[dict[str, Any]]:
        body = msgspec.json.decode(await self._client.get(kind.resource(), live.name, live.namespace))
        if body["metadata"]["resourceVersion"] != live.resource_version:
            raise Conflict(f"{kind.kind} {live.name} changed meanwhile")
        owners: list[dict[str, Any]] = body["metadata"].get("ownerReferences") or []
        return owners

    async def _drop_finalizer(self, item: MetadataItem, finalizer: str) -> None:
        live = await self._get_metadata(item.kind, item.meta.name, item.meta.namespace)
        if live is not None and live.uid == item.meta.uid and live.has(finalizer):
            left = [name for name in live.finalizers or () if name != finalizer]
            await self._patch(item.kind, live, {"finalizers": left or None})

    async def _patch(self, kind: Kind, live: ObjectMetadata, metadata: dict[str, Any]) -> None:
        guard = {"uid": live.uid, "resourceVersion": live.resource_version}
        try:
            await self._client.patch(kind.resource(), live.name, {"metadata": guard | metadata}, live.namespace)
        except NotFound:
            return

    async def _delete(self, kind: Kind, live: ObjectMetadata, policy: Propagation) -> None:
        try:
            await self._client.delete(kind.resource(), live.name, live.namespace, propagation=policy, uid=live.uid)
        except NotFound:
            return
