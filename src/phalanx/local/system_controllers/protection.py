"""Protection finalizers: a PodGroup stays while live pods refer to it, a CompositePodGroup while it has children.

Finalizers are added at admission; here they are only ever taken away, and only from objects that are being deleted.
References are by name, as pods and groups make them. What can never be used is not kept: a composite that is its own
ancestor goes at once, and a pod that was made when its group was on its way out holds it only once it has a node.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import force_setattr

from phalanx.base.client import Client
from phalanx.base.errors import NotFound
from phalanx.base.work import WorkQueue
from phalanx.local.system_controllers.metadata_feed import MetadataBody, MetadataFeed, MetadataItem, ObjectMetadata
from phalanx.model.groups.keys import AFTER_GROUP
from phalanx.model.kinds import Registry

PODS = "pods"
POD_GROUPS = "podgroups.scheduling.k8s.io"
COMPOSITES = "compositepodgroups.scheduling.k8s.io"
FINALIZERS = {
    POD_GROUPS: "scheduling.k8s.io/podgroup-protection",
    COMPOSITES: "scheduling.k8s.io/compositepodgroup-protection",
}
FINISHED = ("Succeeded", "Failed")
MOST_STEPS = 1000  # up a chain of parents: a place below a ring would climb for ever

ServiceAddress = tuple[str, str, str]  # (kind key, namespace, name)


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

    def keep(self, namespace: str, name: str) -> None:
        super().keep(namespace, name)
        force_setattr(self.metadata, "resource_version", "")  # only groups are written
        if self.spec.scheduling_group is None:  # no group asks for the rest
            force_setattr(self, "spec", _NO_SPEC)
            force_setattr(self, "status", _NO_STATUS)

    @property
    def held(self) -> str:
        """Return the name of the PodGroup that a live pod protects; empty if there is none."""
        group, known = self.spec.scheduling_group, self.metadata.annotations
        if group is None or self.status.phase in FINISHED:
            return ""
        if known is not None and known.after_group and not self.spec.node_name:
            return ""  # it waits for the group that comes after
        return group.pod_group_name or ""


class GroupMetadata(MetadataBody, frozen=True):
    spec: _GroupSpec = _GroupSpec()

    @property
    def held(self) -> str:
        """Return the name of the CompositePodGroup that a group is a child of; empty if there is none."""
        return self.spec.parent_composite_pod_group_name or ""


VIEWS: Mapping[str, type[MetadataBody]] = {PODS: PodMetadata, POD_GROUPS: GroupMetadata, COMPOSITES: GroupMetadata}


class _PodList(msgspec.Struct):
    items: list[PodMetadata] = []


class _GroupList(msgspec.Struct):
    items: list[GroupMetadata] = []


_decode_pods = msgspec.json.Decoder(_PodList).decode
_decode_groups = msgspec.json.Decoder(_GroupList).decode


class GroupProtection:
    """The feed must have been made with VIEWS."""

    def __init__(self, client: Client, registry: Registry, feed: MetadataFeed) -> None:
        self._client = client
        self._registry = registry
        self._feed = feed
        self._references: dict[ServiceAddress, dict[ServiceAddress, None]] = {}  # group -> who refers to it
        self._made: dict[ServiceAddress, ServiceAddress] = {}  # who -> the group it refers to
        self._deleting: dict[ServiceAddress, ObjectMetadata] = {}  # groups on their way out
        self._work: WorkQueue[ServiceAddress] = WorkQueue("group protection")
        feed.listen(self._on_change)

    async def run(self) -> None:
        await self._feed.synced.wait()
        await self._work.run(self._step, workers=2)

    def _on_change(self, before: MetadataItem | None, after: MetadataItem | None) -> None:
        item = after or before
        assert item is not None
        key = item.kind.key
        if key not in VIEWS:
            return
        place = (key, item.meta.namespace, item.meta.name)
        body = after.body if after is not None else None
        target = ""
        if isinstance(body, PodMetadata | GroupMetadata):
            target = body.held
        group = (POD_GROUPS if key == PODS else COMPOSITES, item.meta.namespace, target)
        self._refer(place, group if target else None)
        if key == PODS:
            return
        if body is not None and body.metadata.deleting:
            self._deleting[place] = body.metadata
            self._work.add(place)
        else:
            self._deleting.pop(place, None)

    def _refer(self, who: ServiceAddress, group: ServiceAddress | None) -> None:
        before = self._made.get(who)
        if before == group:
            return
        if before is not None:
            del self._made[who]
            users = self._references[before]
            users.pop(who, None)
            if not users:
                del self._references[before]
                if before in self._deleting:
                    self._work.add(before)
        if group is not None:
            self._made[who] = group
            self._references.setdefault(group, {})[who] = None
            if who[0] == COMPOSITES and group in self._deleting and self._circular(group):
                self._work.add(group)  # the ring was closed after its deletion

    async def _step(self, place: ServiceAddress) -> None:
        meta = self._deleting.get(place)
        key, namespace, name = place
        finalizer = FINALIZERS[key]
        kind = self._registry.by_storage_key(key)
        if meta is None or kind is None or not meta.has(finalizer):
            return
        if not self._circular(place) and (self._references.get(place) or await self._in_use(place)):
            return
        left = [entry for entry in meta.finalizers or () if entry != finalizer]
        metadata = {"uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": left or None}
        try:
            await self._client.patch(kind.resource(), name, {"metadata": metadata}, namespace)
        except NotFound:
            return

    def _circular(self, place: ServiceAddress) -> bool:
        """Return True if a composite is among its own ancestors.

        No tree with it is ever scheduled, and no member of the ring could go before the others. Parents are immutable,
        so what was observed stays true.
        """
        above, steps = self._made.get(place), 0
        while above is not None and above != place and steps < MOST_STEPS:
            above, steps = self._made.get(above), steps + 1
        return above == place

    async def _in_use(self, place: ServiceAddress) -> bool:
        """Ask the server itself: watches of pods and groups are not in step with each other."""
        key, namespace, name = place
        for user in (PODS,) if key == POD_GROUPS else (POD_GROUPS, COMPOSITES):
            kind = self._registry.by_storage_key(user)
            if kind is None:
                continue
            answer = await self._client.list(kind.resource(), namespace)
            found: list[PodMetadata] | list[GroupMetadata]
            found = _decode_pods(answer).items if user == PODS else _decode_groups(answer).items
            if any(body.held == name for body in found):
                return True
        return False
