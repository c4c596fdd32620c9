"""Protection finalizers: a PodGroup is kept while live pods refer to it, a CompositePodGroup while it has children.

Admission adds the finalizers; they are removed here, from objects in deletion only. References are by name. Objects
that can never be used are not protected: a composite that is its own ancestor is removed at once, and a pod that was
created while its group was in deletion protects it only once it has a node.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import force_setattr

from phalanx.base.client import Client
from phalanx.base.errors import NotFound
from phalanx.base.well_known import POD_GROUP_FINALIZER
from phalanx.base.work import WorkQueue
from phalanx.local.system_controllers.metadata_feed import MetadataBody, MetadataFeed, MetadataItem, ObjectMetadata
from phalanx.model.groups.keys import AFTER_GROUP
from phalanx.model.kinds import Registry

PODS = "pods"
POD_GROUPS = "podgroups.scheduling.k8s.io"
COMPOSITES = "compositepodgroups.scheduling.k8s.io"
FINALIZERS = {
    POD_GROUPS: POD_GROUP_FINALIZER,
    COMPOSITES: "scheduling.k8s.io/compositepodgroup-protection",
}
FINISHED = ("Succeeded", "Failed")
MOST_STEPS = 1000  # up a chain of parents, which may end in a cycle

ObjectKey = tuple[str, str, str]  # (kind key, namespace, name)


class _Group(msgspec.Struct, rename="camel", frozen=True, gc=False):
    pod_group_name: str | None = None


class _PodSpec(msgspec.Struct, rename="camel", frozen=True, gc=False):
    scheduling_group: _Group | None = None
    node_name: str = ""


class _Status(msgspec.Struct, frozen=True, gc=False):
    phase: str = ""


class _GroupSpec(msgspec.Struct, rename="camel", frozen=True, gc=False):
    parent_composite_pod_group_name: str | None = None


class _Annotations(msgspec.Struct, frozen=True, gc=False):
    after_group: str = msgspec.field(default="", name=AFTER_GROUP)


class _PodMeta(ObjectMetadata, rename="camel", frozen=True, gc=False):
    annotations: _Annotations | None = None


_NO_SPEC, _NO_STATUS = _PodSpec(), _Status()


class PodMetadata(MetadataBody, frozen=True):
    metadata: _PodMeta
    spec: _PodSpec = _NO_SPEC
    status: _Status = _NO_STATUS

    def compact(self, namespace: str, name: str) -> None:
        super().compact(namespace, name)
        force_setattr(self.metadata, "resource_version", "")  # only groups are written
        if self.spec.scheduling_group is None:  # the other fields are needed only for pods of a group
            force_setattr(self, "spec", _NO_SPEC)
            force_setattr(self, "status", _NO_STATUS)

    @property
    def protects(self) -> str:
        """Return the name of the PodGroup that a live pod protects; empty if it protects none."""
        group, known = self.spec.scheduling_group, self.metadata.annotations
        if group is None or self.status.phase in FINISHED:
            return ""
        if known is not None and known.after_group and not self.spec.node_name:
            return ""  # it waits for the group that replaces this one
        return group.pod_group_name or ""


class GroupMetadata(MetadataBody, frozen=True):
    spec: _GroupSpec = _GroupSpec()

    @property
    def protects(self) -> str:
        """Return the name of the CompositePodGroup that is the parent of a group; empty if it has none."""
        return self.spec.parent_composite_pod_group_name or ""


VIEWS: Mapping[str, type[MetadataBody]] = {PODS: PodMetadata, POD_GROUPS: GroupMetadata, COMPOSITES: GroupMetadata}


class _PodList(msgspec.Struct):
    items: list[PodMetadata] = []


class _GroupList(msgspec.Struct):
    items: list[GroupMetadata] = []


_decode_pods = msgspec.json.Decoder(_PodList).decode
_decode_groups = msgspec.json.Decoder(_GroupList).decode


class GroupProtection:
    """The feed must be created with VIEWS."""

    def __init__(self, client: Client, registry: Registry, feed: MetadataFeed) -> None:
        self._client = client
        self._registry = registry
        self._feed = feed
        self._references: dict[ObjectKey, dict[ObjectKey, None]] = {}  # group -> objects that refer to it
        self._target: dict[ObjectKey, ObjectKey] = {}  # object -> the group it refers to
        self._deleting: dict[ObjectKey, ObjectMetadata] = {}  # groups in deletion
        self._work: WorkQueue[ObjectKey] = WorkQueue("group protection")
        feed.listen(self._on_change)

    async def run(self) -> None:
        await self._feed.synced.wait()
        await self._work.run(self._reconcile, workers=2)

    def _on_change(self, before: MetadataItem | None, after: MetadataItem | None) -> None:
        item = after or before
        assert item is not None
        kind_key = item.kind.key
        if kind_key not in VIEWS:
            return
        key = (kind_key, item.meta.namespace, item.meta.name)
        body = after.body if after is not None else None
        target = ""
        if isinstance(body, PodMetadata | GroupMetadata):
            target = body.protects
        group = (POD_GROUPS if kind_key == PODS else COMPOSITES, item.meta.namespace, target)
        self._set_target(key, group if target else None)
        if kind_key == PODS:
            return
        if body is not None and body.metadata.deleting:
            self._deleting[key] = body.metadata
            self._work.add(key)
        else:
            self._deleting.pop(key, None)

    def _set_target(self, user: ObjectKey, group: ObjectKey | None) -> None:
        before = self._target.get(user)
        if before == group:
            return
        if before is not None:
            del self._target[user]
            users = self._references[before]
            users.pop(user, None)
            if not users:
                del self._references[before]
                if before in self._deleting:
                    self._work.add(before)
        if group is not None:
            self._target[user] = group
            self._references.setdefault(group, {})[user] = None
            if user[0] == COMPOSITES and group in self._deleting and self._circular(group):
                self._work.add(group)  # the cycle was closed after the deletion

    async def _reconcile(self, key: ObjectKey) -> None:
        """Remove the finalizer of a deleted object that no object uses any more."""
        meta = self._deleting.get(key)
        kind_key, namespace, name = key
        finalizer = FINALIZERS[kind_key]
        kind = self._registry.by_storage_key(kind_key)
        if meta is None or kind is None or not meta.has(finalizer):
            return
        if not self._circular(key) and (self._references.get(key) or await self._in_use(key)):
            return
        left = [entry for entry in meta.finalizers or () if entry != finalizer]
        metadata = {"uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": left or None}
        try:
            await self._client.patch(kind.resource(), name, {"metadata": metadata}, namespace)
        except NotFound:
            return

    def _circular(self, key: ObjectKey) -> bool:
        """Return True if a composite is its own ancestor.

        Such a tree is never scheduled, and no member of the cycle could be deleted before the others. Parents are
        immutable, so the result cannot change.
        """
        above, steps = self._target.get(key), 0
        while above is not None and above != key and steps < MOST_STEPS:
            above, steps = self._target.get(above), steps + 1
        return above == key

    async def _in_use(self, key: ObjectKey) -> bool:
        """Return True if the server has an object that refers to the group: watches of kinds are not synchronized."""
        kind_key, namespace, name = key
        for user in (PODS,) if kind_key == POD_GROUPS else (POD_GROUPS, COMPOSITES):
            kind = self._registry.by_storage_key(user)
            if kind is None:
                continue
            answer = await self._client.list(kind.resource(), namespace)
            found: list[PodMetadata] | list[GroupMetadata]
            found = _decode_pods(answer).items if user == PODS else _decode_groups(answer).items
            if any(body.protects == name for body in found):
                return True
        return False
