"""Write the Workload, CompositePodGroups and PodGroups of an owner, and delete them.

The process may be killed between any two writes: names are fixed, parents are created before children, and existing
objects are compared. An object with the wanted name but another owner is never changed or adopted.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from enum import Enum

import msgspec

from phalanx.base.client import Resource
from phalanx.base.errors import AlreadyExists, Invalid
from phalanx.base.resources import COMPOSITE_POD_GROUPS, POD_GROUPS, PRIORITY_CLASSES, WORKLOADS
from phalanx.base.work import WorkQueue
from phalanx.controllers.grouping.compare import (
    Difference,
    as_v1beta1,
    difference,
    dropped_note,
    with_counts_of,
    with_dropped_fields_annotated,
)
from phalanx.controllers.grouping.core import (
    ADOPTED,
    GENERATED,
    PARENT_COMPOSITE,
    WORKLOADS_V1ALPHA1,
    Grouping,
    GroupingRefused,
    flat,
)
from phalanx.controllers.grouping.priorities import default_class
from phalanx.controllers.grouping.user_workload import generated
from phalanx.controllers.runtime.controller import Cache, Caches, Json, Key
from phalanx.controllers.runtime.events import Events
from phalanx.controllers.runtime.ownership import controlled_by, controller_of, deleting, index_by_controller
from phalanx.controllers.runtime.pods import keeps_group
from phalanx.controllers.runtime.status import gather_results


class GroupPhase(Enum):
    READY = "everything exists"
    LEAVING = "everything exists, but some of it is being deleted and will be made again"
    REPLACING = "something stood in the way and is being deleted; look again when it is gone"


class Groups:
    def __init__(self, caches: Caches, events: Events) -> None:
        self._client, self.events = caches.client, events
        self.workloads = caches.of(WORKLOADS, optional=True)
        self.composites = caches.of(COMPOSITE_POD_GROUPS, optional=True)
        self.pod_groups = caches.of(POD_GROUPS, optional=True)
        self._classes = caches.of(PRIORITY_CLASSES, optional=True)
        for cache in (self.workloads, self.composites, self.pod_groups):
            cache.index("controller", index_by_controller)
        self.workloads.index("controllerRef", _index_by_controller_ref)
        self.pod_groups.index("workload", _index_by_workload)

    def requeue_on_change(self, kind: str, queue: WorkQueue[Key]) -> None:
        """Requeue an owner of this kind whenever one of its scheduling objects changes."""

        def changed(key: Key, new: Json | None, old: Json | None) -> None:
            seen = new or old or {}
            about = seen["spec"].get("controllerRef") or {}
            if new is None and (reference := seen["spec"].get("workloadRef")):  # a group is gone: see its Workload
                above = self.workloads.get(key.namespace, reference["workloadName"])
                about = (above["spec"].get("controllerRef") or {}) if above is not None else {}
            if about.get("kind") == kind and controller_of(seen) is None:  # a user's, or left by an orphaning deletion
                queue.add(Key(key.namespace, about["name"]))
            if new is not None and not deleting(new) and (old is None or new["spec"] == old["spec"]):
                return  # created by its owner, or only its status changed
            for obj in (new, old):
                reference = controller_of(obj) if obj is not None else None
                if reference is not None and reference["kind"] == kind:
                    queue.add(Key(key.namespace, reference["name"]))

        for cache in (self.workloads, self.composites, self.pod_groups):
            cache.on_change(changed)

    def owned(self, owner: Json) -> list[Json]:
        """Return scheduling objects controlled by the owner, children before parents: the order of deletion."""
        uid = owner["metadata"]["uid"]
        groups = self.pod_groups.by_index("controller", uid)
        composites = self.composites.by_index("controller", uid)
        workloads = [found for found in self.workloads.by_index("controller", uid) if not adopted(found)]
        return [*groups, *_children_first(composites), *workloads]

    def known(self, wanted: Json) -> Json | None:
        """Return the scheduling object of that kind and name."""
        meta = wanted["metadata"]
        return self.cache_of(wanted["kind"]).get(meta["namespace"], meta["name"])

    def for_owner(self, owner: Json) -> list[Json]:
        """Return the Workloads whose controllerRef names this owner, including those created by users."""
        meta = owner["metadata"]
        group = owner["apiVersion"].rpartition("/")[0]
        return self.workloads.by_index("controllerRef", f"{meta['namespace']}/{group}/{owner['kind']}/{meta['name']}")

    def of_workload(self, namespace: str, name: str) -> list[Json]:
        """Return the PodGroups made from the templates of a Workload."""
        return self.pod_groups.by_index("workload", f"{namespace}/{name}")

    def related(self, owner: Json) -> list[Json]:
        """Return the objects on which an owner's groups depend: its Workloads, its controller's, its parent group."""
        meta = owner["metadata"]
        found = self.for_owner(owner)
        parent = controller_of(owner)
        if parent is not None:
            found += self.for_owner({**parent, "metadata": {"namespace": meta["namespace"], "name": parent["name"]}})
        name = (meta.get("annotations") or {}).get(PARENT_COMPOSITE)
        above = self.composites.get(meta["namespace"], name) if name else None
        if above is not None:
            named = (above["spec"].get("workloadRef") or {}).get("workloadName")
            whose = self.workloads.get(meta["namespace"], str(named))
            found += [above, *([whose] if whose is not None else [])]
        return found

    async def ensure(
        self,
        owner: Json,
        grouping: Grouping,
        controller: str,
        *,
        announce: bool = False,
        idle: bool = False,
        in_use: bool = False,
        keep: Collection[tuple[str, str]] = (),
    ) -> GroupPhase:
        """Create missing objects, update changed counts, delete unused ones except `keep` (kind, name).

        in_use: pods are in the groups, so only counts are updated; other policies take effect later. idle: no pod uses
        the groups, so terminating objects are waited for and get no new children. Raises Refused if a needed name
        belongs to another owner.
        """
        uid = owner["metadata"]["uid"]
        grouping = grouping if self.composites.served else flat(grouping)
        wanted = {*keep, *((obj["kind"], obj["metadata"]["name"]) for obj in grouping.objects)}
        surplus = [obj for obj in self.owned(owner) if (obj["kind"], obj["metadata"]["name"]) not in wanted]
        await self._delete(self._left_by_predecessor(owner))
        await self._delete([obj for obj in surplus if not deleting(obj) and (not in_use or _is_plan(obj))])
        state = GroupPhase.READY
        levels: list[list[Json]] = [
            [grouping.workload] if grouping.workload is not None else [],
            *_by_level(grouping.composites),
        ]
        for number, level in enumerate([*levels, grouping.groups]):
            if grouping.owned_by_workload and number == len(levels):
                level = [self._with_workload(obj, grouping) for obj in level]
            if idle and state is not GroupPhase.READY:
                break
            states = await gather_results(
                self._ensure_one(owner, uid, obj, controller, announce, in_use and not _is_plan(obj)) for obj in level
            )
            for found in states:
                if found is GroupPhase.REPLACING or state is GroupPhase.READY:
                    state = found
        return state

    def _left_by_predecessor(self, owner: Json) -> list[Json]:
        """Return generated objects of an earlier object with the owner's name, deleted with --cascade=orphan."""
        left = [found for found in self.for_owner(owner) if controller_of(found) is None and generated(found)]
        groups = [
            group
            for found in left
            for group in self.of_workload(found["metadata"]["namespace"], found["metadata"]["name"])
            if controller_of(group) is None
        ]
        return [obj for obj in (*groups, *left) if not deleting(obj)]

    def _with_workload(self, obj: Json, grouping: Grouping) -> Json:
        """Add its Workload as an owner, when the uid is known."""
        assert grouping.workload is not None
        meta = grouping.workload["metadata"]
        known = self.workloads.get(meta["namespace"], meta["name"])
        if known is None:
            return obj
        reference = {
            "apiVersion": WORKLOADS.api_version,
            "kind": WORKLOADS.kind,
            "name": meta["name"],
            "uid": known["metadata"]["uid"],
        }
        references = [*obj["metadata"]["ownerReferences"], reference]
        return {**obj, "metadata": {**obj["metadata"], "ownerReferences": references}}

    async def _ensure_one(
        self, owner: Json, uid: str, wanted: Json, controller: str, announce: bool, in_use: bool
    ) -> GroupPhase:
        kind, meta = wanted["kind"], wanted["metadata"]
        cache = self.cache_of(kind)
        known = self.known(wanted)
        if known is None:
            known, made = await self._create(cache, wanted)
            if made:
                noted = with_dropped_fields_annotated(known, wanted)
                if noted is not None:
                    await cache.update(noted)
                    self.events.warning(owner, controller, "FieldsDropped", dropped_note(noted))
                if announce:
                    note = f"Created {kind} {meta['name']} for {owner['kind']} {owner['metadata']['name']}"
                    self.events.normal(owner, controller, f"{kind}Created", note)
                return GroupPhase.READY
        if not controlled_by(known, uid):
            if of_namesake(known, owner):
                return GroupPhase.REPLACING  # left by an earlier object with the owner's name, and terminating
            if controller_of(known) is None and deleting(known):
                return GroupPhase.LEAVING  # left by an orphaning deletion: it stays for its pods, which run on
            raise GroupingRefused(clash(known, kind, owner), "NameConflict")
        # A terminating object still holds pods, which may wait for an outdated count.
        kept = GroupPhase.LEAVING if deleting(known) else GroupPhase.READY
        found = difference(known, wanted, default_class(self._classes))
        if found is Difference.COUNTS:
            try:
                await cache.update(with_counts_of(known, wanted))
                return kept
            except Invalid:  # a CompositePodGroup's count is immutable unless a gate allows it
                pass
        if found is Difference.NONE or deleting(known):
            return kept
        if in_use:
            note = (
                f"{kind} {meta['name']} keeps the rules it was made with while pods are in it; "
                f"those asked for now hold when {owner['kind']} {owner['metadata']['name']} has no pods"
            )
            self.events.warning(owner, controller, "GroupsUnchanged", note)
            return kept
        await self._delete([known])
        return GroupPhase.REPLACING

    def any_deleting(self, owner: Json, grouping: Grouping) -> bool:
        """Return True if a wanted object is still being deleted."""
        found = (self.known(obj) for obj in grouping.objects)
        return any(
            known is not None and deleting(known) and controlled_by(known, owner["metadata"]["uid"]) for known in found
        )

    def live_pod_group(self, namespace: str, name: str) -> Json | None:
        """Return the PodGroup of that name, unless it is being deleted."""
        found = self.pod_groups.get(namespace, name) if name else None
        return None if found is None or deleting(found) else found

    async def remove(self, owner: Json, *, plans: bool = True) -> bool:
        """Delete all objects of the owner, children first; return True when none is left. plans: also Workloads."""
        owned = [obj for obj in self.owned(owner) if plans or not _is_plan(obj)]
        await self._delete([obj for obj in owned if not deleting(obj)])
        return not owned

    async def adopt(self, owner: Json, workload: Json) -> None:
        """Adopt a Workload that a user created for this owner: it is deleted with the owner."""
        if controller_of(workload) is not None or deleting(workload):
            return
        meta = owner["metadata"]
        reference = {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": meta["name"],
            "uid": meta["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
        body = copy.deepcopy(workload)
        body["metadata"]["ownerReferences"] = [*(workload["metadata"].get("ownerReferences") or ()), reference]
        body["metadata"].setdefault("annotations", {})[ADOPTED] = "true"
        await self.workloads.update(body)

    # ---- single writes

    def cache_of(self, kind: str) -> Cache:
        if kind == "Workload":
            return self.workloads
        return self.composites if kind == "CompositePodGroup" else self.pod_groups

    async def _create(self, cache: Cache, wanted: Json) -> tuple[Json, bool]:
        meta = wanted["metadata"]
        if _is_plan(wanted):
            marked = {**(meta.get("annotations") or {}), GENERATED: "true"}
            wanted = {**wanted, "metadata": {**meta, "annotations": marked}}
        resource: Resource = cache.resource
        if wanted["apiVersion"] == WORKLOADS_V1ALPHA1.api_version:
            resource = WORKLOADS_V1ALPHA1
        try:
            answer: Json = msgspec.json.decode(await self._client.create(resource, wanted, meta["namespace"]))
            made = True
        except AlreadyExists:  # created before a crash, or by another owner
            answer = msgspec.json.decode(await self._client.get(cache.resource, meta["name"], meta["namespace"]))
            made = False
        if resource is WORKLOADS_V1ALPHA1 and made:
            answer = as_v1beta1(answer)
        cache.remember(answer)
        return answer, made

    async def _delete(self, objects: list[Json]) -> None:
        for obj in objects:
            await self.cache_of(obj["kind"]).delete(obj, "Background")


def _is_plan(obj: Json) -> bool:
    """Return True for a Workload: it has templates, and no pods of its own."""
    return bool(obj["kind"] == WORKLOADS.kind)


def adopted(workload: Json) -> bool:
    """Return True if a user created it and it was adopted: it is never changed, and deleted with its owner."""
    return (workload["metadata"].get("annotations") or {}).get(ADOPTED) == "true"


def _index_by_controller_ref(obj: Json) -> list[str]:
    reference = obj["spec"].get("controllerRef")
    if not reference:
        return []
    namespace = obj["metadata"]["namespace"]
    return [f"{namespace}/{reference.get('apiGroup') or ''}/{reference['kind']}/{reference['name']}"]


def _index_by_workload(obj: Json) -> list[str]:
    reference = obj["spec"].get("workloadRef")
    return [f"{obj['metadata']['namespace']}/{reference['workloadName']}"] if reference else []


def _by_level(composites: list[Json]) -> list[list[Json]]:
    """Return composites by depth, roots first."""
    depth: dict[str, int] = {}
    levels: list[list[Json]] = []
    for obj in composites:  # parents come before children
        level = depth.get(obj["spec"].get("parentCompositePodGroupName", ""), -1) + 1
        depth[obj["metadata"]["name"]] = level
        if level == len(levels):
            levels.append([])
        levels[level].append(obj)
    return levels


def _children_first(composites: list[Json]) -> list[Json]:
    parents = {obj["metadata"]["name"]: obj["spec"].get("parentCompositePodGroupName", "") for obj in composites}

    def depth(name: str) -> int:
        level = 0
        while name in parents and level < len(parents):
            name, level = parents[name], level + 1
        return level

    return sorted(composites, key=lambda obj: -depth(obj["metadata"]["name"]))


def has_group(groups: Groups, pods: Cache, namespace: str, name: str, *, staying: bool = False) -> bool:
    """Return True if a PodGroup exists. Unless `staying`, a terminating one counts while pods keep it."""
    found = groups.pod_groups.get(namespace, name)
    if found is None or not deleting(found):
        return found is not None
    return not staying and any(map(keeps_group, pods.by_index("group", f"{namespace}/{name}")))


def of_namesake(known: Json, owner: Json) -> bool:
    """Return True if it belongs to an earlier object with the owner's kind and name that is not garbage-collected
    yet."""
    reference = controller_of(known)
    named = (owner["kind"], owner["metadata"]["name"])
    return reference is not None and (reference["kind"], reference["name"]) == named


def clash(known: Json, kind: str, owner: Json) -> str:
    """Return the message that an object which the owner needs exists and is not its own."""
    reference = controller_of(known)
    whose = f"belongs to {reference['kind']} {reference['name']}" if reference is not None else "was made by hand"
    return (
        f"{kind} {known['metadata']['name']} already exists and {whose}; delete or rename it, "
        f"or rename {owner['kind']} {owner['metadata']['name']}"
    )
