"""Write the scheduling objects of workloads of other controllers.

Only objects with our label are changed or deleted. An object without it was created by another program, even if the
workload controls it; then we stop managing that workload. The process may be killed between any two writes.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from enum import Enum

import msgspec

from phalanx.base.errors import AlreadyExists, Conflict, Invalid, NotFound
from phalanx.base.resources import PODS, PRIORITY_CLASSES, WORKLOADS
from phalanx.controllers.cluster_mode.directory import MANAGED_BY, MANAGER, is_ours
from phalanx.controllers.grouping.compare import (
    Difference,
    difference,
    dropped_note,
    with_counts_of,
    with_dropped_fields_annotated,
)
from phalanx.controllers.grouping.core import WORKLOADS_V1ALPHA1, Grouping, GroupingRefused, Json, flat, reference_to
from phalanx.controllers.grouping.priorities import default_class, value_of
from phalanx.controllers.runtime.controller import Caches
from phalanx.controllers.runtime.groups import Groups, clash, of_namesake
from phalanx.controllers.runtime.ownership import controlled_by, controller_of, deleting
from phalanx.controllers.workloads.member import PodView

NAME = "group-controller"


class OtherManager(Exception):
    """The workload's own controller creates its scheduling objects."""


class _State(Enum):
    GOOD = "as wanted"
    LEAVING = "being deleted"
    OTHER = "not as wanted, and not to be changed"


class ClusterWriter:
    def __init__(self, caches: Caches, groups: Groups) -> None:
        self._client, self._groups = caches.client, groups
        self._classes = caches.of(PRIORITY_CLASSES, optional=True)
        self.fill_priority = False  # no admission plugin fills it for custom resources

    async def write(self, owner: Json, grouping: Grouping, in_use: Collection[str], *, apart: bool = False) -> None:
        """Create missing objects, update counts, delete unused ones. Raises Refused and OtherManager.

        apart: its groups are independent, so new ones are created while those of earlier policies still exist.
        """
        grouping = grouping if self._groups.composites.served else flat(grouping)
        wanted = {(obj["kind"], obj["metadata"]["name"]) for obj in grouping.objects}
        surplus = [obj for obj in self.ours(owner) if (obj["kind"], obj["metadata"]["name"]) not in wanted]
        await self.delete(surplus, in_use)
        kept: list[str] = []
        plan = ""  # a Workload whose templates differ from the request
        for obj in grouping.objects:  # parents before children
            state = await self._ensure(owner, self._with_our_metadata(obj, grouping, bool(in_use)))
            if state is _State.OTHER and in_use and obj["kind"] == WORKLOADS.kind:
                plan = obj["metadata"]["name"]  # new groups have their own policy
                continue
            if state is _State.OTHER and apart and in_use:
                kept.append(obj["metadata"]["name"])
                await self.delete(
                    [known for known in self.ours(owner) if known["metadata"]["name"] == kept[-1]], in_use
                )
                continue
            if state is _State.OTHER:
                await self._replace(owner, obj, in_use)
            if state is not _State.GOOD and not apart:
                return  # the watch event of its deletion requeues us
        if kept:
            names = ", ".join(kept[:5])
            raise GroupingRefused(
                f"{names} keep the rules they were made with while pods are in them", "GroupsUnchanged"
            )
        if plan and not apart:
            raise GroupingRefused(
                f"Workload {plan} cannot be changed as asked while pods are in its groups; "
                f"it is replaced when {_shown(owner)} has no pods",
                "GroupsUnchanged",
            )

    async def _replace(self, owner: Json, obj: Json, in_use: Collection[str]) -> None:
        """Recreate the whole tree, because immutable fields differ and a parent stays while it has children."""
        if in_use:
            raise GroupingRefused(
                f"{obj['kind']} {obj['metadata']['name']} cannot be changed as asked while pods are in its groups; "
                f"it is replaced when {_shown(owner)} has no pods",
                "GroupsUnchanged",
            )
        await self.delete(self.ours(owner), in_use)

    def ours(self, owner: Json) -> list[Json]:
        """Return the objects created here, children before parents."""
        return [obj for obj in self._groups.owned(owner) if is_ours(obj)]

    async def take_over(self, owner: Json) -> None:
        """Own what we created for an earlier workload of this name, left by `--cascade=orphan`: pods are still in it,
        and it is deleted as soon as it is not needed."""
        for workload in self._groups.for_owner(owner):
            meta = workload["metadata"]
            for left in (workload, *self._groups.of_workload(meta["namespace"], meta["name"])):
                if is_ours(left) and controller_of(left) is None and not deleting(left):
                    references = [*(left["metadata"].get("ownerReferences") or ()), reference_to(owner)]
                    body = {**left, "metadata": {**left["metadata"], "ownerReferences": references}}
                    await self._groups.cache_of(left["kind"]).update(body)

    async def delete(self, objects: list[Json], in_use: Collection[str]) -> None:
        """Delete groups without pods: a pod of a deleted group would wait for ever."""
        if in_use:
            objects = [obj for obj in objects if obj["kind"] == "PodGroup" and obj["metadata"]["name"] not in in_use]
        for obj in objects:
            if not deleting(obj):
                await self._groups.cache_of(obj["kind"]).delete(obj, "Background")

    async def open_gate(self, pod: PodView, gate: str) -> None:
        meta = pod.metadata
        left = [{"name": name} for name in pod.gates if name != gate]
        patch: Json = {"metadata": {"uid": meta.uid}, "spec": {"schedulingGates": left or None}}
        try:
            await self._client.patch(PODS, meta.name, patch, meta.namespace)
        except (NotFound, Conflict):  # deleted, or replaced by a pod with the same name
            return

    async def _ensure(self, owner: Json, wanted: Json) -> _State:
        meta = wanted["metadata"]
        cache = self._groups.cache_of(wanted["kind"])
        known = cache.get(meta["namespace"], meta["name"])
        if known is None:
            try:
                first = wanted["apiVersion"] == WORKLOADS_V1ALPHA1.api_version
                resource = WORKLOADS_V1ALPHA1 if first else cache.resource
                made = msgspec.json.decode(await self._client.create(resource, wanted, meta["namespace"]))
                if not first:
                    noted = with_dropped_fields_annotated(made, wanted)
                    if noted is not None:
                        made = await cache.update(noted)
                        self._groups.events.warning(owner, NAME, "FieldsDropped", dropped_note(noted))
                    cache.remember(made)
                note = f"Created {wanted['kind']} {meta['name']} for {owner['kind']} {owner['metadata']['name']}"
                self._groups.events.normal(owner, NAME, f"{wanted['kind']}Created", note)
                return _State.GOOD
            except AlreadyExists:  # created before a crash, or by another program
                known = msgspec.json.decode(await self._client.get(cache.resource, meta["name"], meta["namespace"]))
                cache.remember(known)
        if not controlled_by(known, owner["metadata"]["uid"]):
            if of_namesake(known, owner):
                return _State.LEAVING
            raise GroupingRefused(clash(known, known["kind"], owner), "NameConflict")
        if not is_ours(known):
            raise OtherManager(f"{known['kind']} {meta['name']}")
        if deleting(known):
            return _State.LEAVING
        found = difference(known, wanted, default_class(self._classes))
        if found is Difference.COUNTS:
            try:
                await cache.update(with_counts_of(known, wanted))
                return _State.GOOD
            except Invalid:  # the count of a CompositePodGroup is fixed
                return _State.OTHER
        return _State.GOOD if found is Difference.NONE else _State.OTHER

    def _with_our_metadata(self, obj: Json, grouping: Grouping, in_use: bool) -> Json:
        """Add our label, the Workload as a second owner where Kubernetes does so, and the priority of its class."""
        obj = copy.deepcopy(obj)
        meta, spec = obj["metadata"], obj["spec"]
        meta.setdefault("labels", {})[MANAGED_BY] = MANAGER
        if grouping.owned_by_workload and obj["kind"] == "PodGroup" and grouping.workload is not None:
            name = grouping.workload["metadata"]["name"]
            above = self._groups.workloads.get(meta["namespace"], name)
            if above is not None:
                reference = {"apiVersion": WORKLOADS.api_version, "kind": WORKLOADS.kind, "name": name}
                meta["ownerReferences"].append({**reference, "uid": above["metadata"]["uid"]})
        if self.fill_priority and obj["kind"] != "Workload":
            known = self._groups.cache_of(obj["kind"]).get(meta["namespace"], meta["name"]) if in_use else None
            if known is not None and known["spec"].get("priorityClassName") == spec.get("priorityClassName"):
                # As in admission: the value of the class when the group was created, even if the class changed since.
                spec["priority"] = known["spec"].get("priority")
            else:
                spec["priority"] = self._priority(str(spec.get("priorityClassName") or ""))
        return obj

    def _priority(self, name: str) -> int:
        """Return the priority of a class, or of the default class, as admission does for pods."""
        found = value_of(name, self._classes)
        if found is None:
            raise GroupingRefused(f"there is no PriorityClass {name}; create it or name another", "NoPriorityClass")
        return found


def _shown(owner: Json) -> str:
    return f"{owner['kind']} {owner['metadata']['name']}"
