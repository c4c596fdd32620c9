"""Protection finalizers: a PodGroup stays while live pods refer to it, a CompositePodGroup while it has children.

Finalizers are added at admission; here they are only ever taken away, and only from objects that are being deleted.
References are by name, as pods and groups make them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from phalanx.base.client import Client, Resource
from phalanx.base.errors import NotFound
from phalanx.base.informer import Change, Informer
from phalanx.local.duties.feed import Meta
from phalanx.local.work import Work
from phalanx.model.kinds import Registry

PODS = Resource("", "v1", "pods", "Pod")
POD_GROUP_FINALIZER = "scheduling.k8s.io/podgroup-protection"
COMPOSITE_FINALIZER = "scheduling.k8s.io/compositepodgroup-protection"
FINISHED = ("Succeeded", "Failed")

Place = tuple[str, str, str]  # (plural, namespace, name)


class _Group(msgspec.Struct, rename="camel", frozen=True):
    pod_group_name: str | None = None
    parent_composite_pod_group_name: str | None = None
    scheduling_group: _Group | None = None


class _Status(msgspec.Struct, frozen=True):
    phase: str = ""


class _Member(msgspec.Struct, frozen=True):
    """A pod, a PodGroup or a CompositePodGroup, as far as it refers to a group."""

    metadata: Meta
    spec: _Group = _Group()
    status: _Status = _Status()

    @property
    def live(self) -> bool:
        return self.status.phase not in FINISHED


class _List(msgspec.Struct):
    items: list[_Member] = []


_decode_list = msgspec.json.Decoder(_List).decode


def pod_refers_to(pod: _Member) -> str:
    """The PodGroup that a live pod holds on to; "" when none."""
    group = pod.spec.scheduling_group
    return (group.pod_group_name or "") if group is not None and pod.live else ""


def group_refers_to(group: _Member) -> str:
    return group.spec.parent_composite_pod_group_name or ""


class GroupProtection:
    def __init__(self, client: Client, registry: Registry) -> None:
        self._client = client
        self._groups = {
            plural: kind.resource()
            for plural in ("podgroups", "compositepodgroups")
            if (kind := registry.by_storage_key(f"{plural}.scheduling.k8s.io")) is not None
        }
        self._references: dict[Place, dict[Place, None]] = {}  # group -> who refers to it
        self._made: dict[Place, Place] = {}  # who -> the group it refers to
        self._deleting: dict[Place, Meta] = {}  # groups on their way out
        self._work: Work[Place] = Work("group protection", self._step, workers=2)

    async def run(self) -> None:
        if not self._groups:
            return  # the gate GenericWorkload is off
        informers = [Informer(self._client, PODS, _Member, self._sink("pods", "podgroups", pod_refers_to))]
        for plural, resource in self._groups.items():
            informers.append(
                Informer(self._client, resource, _Member, self._sink(plural, "compositepodgroups", group_refers_to))
            )
        async with asyncio.TaskGroup() as group:
            for informer in informers:
                group.create_task(informer.run())
            for informer in informers:
                await informer.synced.wait()
            group.create_task(self._work.run())

    def _sink(self, plural: str, target: str, refers_to: Callable[[_Member], str]) -> Callable[[Change[_Member]], None]:
        def sink(change: Change[_Member]) -> None:
            place = (plural, change.namespace, change.name)
            name = refers_to(change.object) if change.object is not None else ""
            self._refer(place, (target, change.namespace, name) if name else None)
            if plural != "pods":
                meta = change.object.metadata if change.object is not None else None
                if meta is not None and meta.deleting:
                    self._deleting[place] = meta
                    self._work.add(place)
                else:
                    self._deleting.pop(place, None)

        return sink

    def _refer(self, who: Place, group: Place | None) -> None:
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

    async def _step(self, place: Place) -> None:
        meta = self._deleting.get(place)
        plural, namespace, name = place
        finalizer = POD_GROUP_FINALIZER if plural == "podgroups" else COMPOSITE_FINALIZER
        if meta is None or not meta.has(finalizer) or self._references.get(place) or await self._in_use(place):
            return
        left = [entry for entry in meta.finalizers or () if entry != finalizer]
        metadata = {"uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": left or None}
        try:
            await self._client.patch(self._groups[plural], name, {"metadata": metadata}, namespace)
        except NotFound:
            return

    async def _in_use(self, place: Place) -> bool:
        """Ask the server itself: watches of pods and groups are not in step with each other."""
        plural, namespace, name = place
        if plural == "podgroups":
            users = _decode_list(await self._client.list(PODS, namespace)).items
            return any(pod_refers_to(pod) == name for pod in users)
        for resource in self._groups.values():
            children = _decode_list(await self._client.list(resource, namespace)).items
            if any(group_refers_to(child) == name for child in children):
                return True
        return False
