"""Manage the groups of StatefulSets, Deployments and ReplicaSets whose authors request them.

The controllers of these kinds create the pods and call `admit` for each: it links the pod to its group. It refuses the
pod while the group does not exist, or permanently if the request is invalid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from phalanx.base import resources as r
from phalanx.base.client import Resource
from phalanx.base.errors import Conflict, Invalid
from phalanx.base.work import WorkQueue
from phalanx.controllers.grouping.annotations import GANG
from phalanx.controllers.grouping.compare import Difference, difference
from phalanx.controllers.grouping.core import Grouper, Grouping, GroupingRefused, Link
from phalanx.controllers.grouping.priorities import keep_priority, value_of
from phalanx.controllers.grouping.replacement import with_successor
from phalanx.controllers.grouping.replicas import group_set
from phalanx.controllers.grouping.ungrouped_pods import without_ungrouped
from phalanx.controllers.grouping.user_workload import ignored_note, made_by_hand
from phalanx.controllers.runtime.controller import Caches, Controller, Json, Key
from phalanx.controllers.runtime.events import Events
from phalanx.controllers.runtime.groups import Groups, has_group
from phalanx.controllers.runtime.ownership import controller_of, deleting, index_by_controller
from phalanx.controllers.runtime.pods import active, group_of, index_by_group
from phalanx.controllers.workloads.kind import ExpectedPod, Local, numbered, replicas_of


class SetGroupsController(Controller):
    """Manages the groups of one kind."""

    def __init__(
        self,
        caches: Caches,
        events: Events,
        groups: Groups,
        resource: Resource,
        group: Grouper = group_set,
        makers: Mapping[str, WorkQueue[Key]] | None = None,
    ) -> None:
        """Create the controller. makers: by kind, queues of the controllers that create the pods."""
        self.name = f"groups-of-{resource.plural}"
        super().__init__()
        self._events, self._groups, self._resource, self._group = events, groups, resource, group
        self._makers = makers or {}
        self._waiting: dict[Key, dict[tuple[str, Key], None]] = {}  # PodGroup or Workload -> waiting (kind, creator)
        self._classes = caches.of(r.PRIORITY_CLASSES)
        self._owners = caches.of(resource)
        self._pods = caches.of(r.PODS)
        self._pods.index("group", index_by_group)
        self._pods.index("controller", index_by_controller, of_marks=True)
        self._pods.on_change(self._pod_changed, of=resource.kind)
        self._owners.on_change(self._owner_changed)
        self.report_refusals(self._owners, events)
        groups.requeue_on_change(resource.kind, self.queue)
        for cache in (groups.pod_groups, groups.workloads):
            cache.on_change(self._group_changed)

    def _group_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        """Requeue the owners that wait for this group."""
        for kind, maker in self._waiting.pop(key, ()):
            self._makers[kind].add(maker)

    def _pod_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        """Requeue the owner: its group does not count a pod outside of it, but will count its replacement."""
        if old is None or not active(old) or (new is not None and active(new)) or group_of(old):
            return
        reference = controller_of(old)
        if reference is not None and reference["kind"] == self._resource.kind:
            self.queue.add(Key(key.namespace, reference["name"]))

    def _owner_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        if new is not None and controller_of(new) is None:
            self.queue.add(key)

    async def reconcile(self, key: Key) -> None:
        owner = self._owners.get(*key)
        if owner is None or deleting(owner) or controller_of(owner) is not None:
            return  # groups are deleted with their owner
        try:
            wanted = self._wanted(owner)
            if wanted:
                await self._groups.ensure(owner, wanted, self.name, in_use=self._in_use(owner, wanted))
            else:
                self._report_unused(owner)
                if self._groups.owned(owner):
                    await self._groups.remove(owner)
        except GroupingRefused as refusal:
            self._events.warning(owner, self.name, refusal.reason, refusal.message)

    def _report_unused(self, owner: Json) -> None:
        """Report a user's Workload without effect, because the set requests no group."""
        by_hand = made_by_hand(owner, self._groups.for_owner(owner))
        template = owner["spec"]["template"].get("spec") or {}
        if by_hand is None or template.get("schedulingGroup") or template.get("workloadRef"):
            return
        note = ignored_note(owner, by_hand, f'the annotation {GANG}: "{self._gang_value(owner)}"')
        self._events.warning(owner, self.name, "WorkloadIgnored", note)

    def _gang_value(self, owner: Json) -> str:
        """Return the value that requests a group: "false", a Basic group, where no gang is possible."""
        meta = owner["metadata"]
        try:
            self._group({**owner, "metadata": {**meta, "annotations": {GANG: "true"}}}, ())
        except GroupingRefused:
            return "false"
        return "true"

    def _wanted(self, owner: Json) -> Grouping:
        """Return the wanted grouping. A user's Workload for this owner is used and not adopted."""
        found = self._group(owner, self._groups.for_owner(owner))
        uid = owner["metadata"]["uid"]
        known = partial(self._groups.pod_groups.get, owner["metadata"]["namespace"])
        found = with_successor(found, uid, known, lambda name: value_of(name, self._classes))
        return without_ungrouped(found, replicas_of(owner), filter(active, self._pods.by_index("controller", uid)))

    def _in_use(self, owner: Json, wanted: Grouping) -> bool:
        """Return True if the group must not be recreated. A basic group gets a replacement instead."""
        group = wanted.links[""].pod_group if "" in wanted.links else ""
        if not group or (wanted.groups and "gang" not in wanted.groups[0]["spec"]["schedulingPolicy"]):
            return False
        return self._pods.any_in_index("group", f"{owner['metadata']['namespace']}/{group}")

    async def admit(self, pod: Json, maker: Json) -> None:
        """Link a pod. `maker` creates it; `owner` requests the group: the same object, or the Deployment of a
        ReplicaSet."""
        above = controller_of(maker)
        owner: Json | None = None
        if above is None:
            owner = maker if maker["kind"] == self._resource.kind else None
        elif above["kind"] == self._resource.kind:
            found = self._owners.get(maker["metadata"]["namespace"], above["name"])
            owner = found if found is not None and found["metadata"]["uid"] == above["uid"] else None
        if owner is None:
            return
        try:
            wanted = self._wanted(owner)
        except GroupingRefused as refusal:
            problem = Invalid(refusal.message)
            problem.reported = True  # by the controller of the owner's groups
            raise problem from refusal
        link = wanted.links.get("")
        if link is None:
            return
        missing = self._missing(owner, wanted, link)
        if missing:
            key = Key(maker["metadata"]["namespace"], link.pod_group or link.workload)
            if maker["kind"] in self._makers:
                self._waiting.setdefault(key, {})[maker["kind"], Key(key.namespace, maker["metadata"]["name"])] = None
            self.queue.add(Key(key.namespace, owner["metadata"]["name"]))  # the missing object may cause no event
            raise Conflict(missing)
        link.put_on(pod["spec"])
        keep_priority(
            pod["spec"], self._groups.live_pod_group(owner["metadata"]["namespace"], link.pod_group), self._classes
        )

    def _missing(self, owner: Json, wanted: Grouping, link: Link) -> str:
        """Return what the pods of a set wait for; "" if nothing."""
        namespace = owner["metadata"]["namespace"]
        if link.pod_group and not has_group(self._groups, self._pods, namespace, link.pod_group):
            return f"PodGroup {link.pod_group} does not exist yet"
        for group in wanted.groups:
            # A growing set raises its group's count before it creates pods: otherwise the first ones would start alone.
            known = self._groups.pod_groups.get(namespace, group["metadata"]["name"])
            if known is not None and not deleting(known) and difference(known, group) is Difference.COUNTS:
                return f"PodGroup {link.pod_group} does not follow the size of {owner['kind']} yet"
        if link.workload and self._groups.workloads.get(namespace, link.workload) is None:
            return f"Workload {link.workload} does not exist yet"
        return ""


def groups_of_sets(local: Local, resource: Resource, group: Grouper = group_set) -> list[Controller]:
    """Return the groups controller of one of these kinds, if the API has groups; it admits every pod."""
    if local.groups is None:
        return []
    controller = SetGroupsController(local.caches, local.events, local.groups, resource, group, local.makers)
    local.admission.append(controller.admit)
    return [controller]


def pods_of_set(workload: Json, related: Sequence[Json], found: Grouping, index: str = "") -> Iterator[ExpectedPod]:
    """Return the pods of a set before it exists. `index`: label with the pod's number."""
    template = workload["spec"]["template"]
    return numbered(workload["metadata"]["name"], template, replicas_of(workload), found.links.get(""), index)
