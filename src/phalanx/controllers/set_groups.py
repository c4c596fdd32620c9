"""Groups of StatefulSets, Deployments and ReplicaSets whose authors ask for them.

The controllers of those kinds make the pods and ask `admit` for each: it links the pod to its group, and refuses it
while the group does not exist, or never will because the request makes no sense.
"""

from __future__ import annotations

from phalanx.base.client import Resource
from phalanx.base.errors import Conflict, Invalid
from phalanx.controllers import resources as r
from phalanx.controllers.events import Events
from phalanx.controllers.grouping.core import Refused
from phalanx.controllers.grouping.statefulset import group_set
from phalanx.controllers.groups import Groups
from phalanx.controllers.ownership import controlled_by, controller_of, deleting, index_by_controller
from phalanx.controllers.pods import active
from phalanx.controllers.runtime import Caches, Controller, Json, Key

GROUPED: tuple[Resource, ...] = (r.STATEFUL_SETS, r.DEPLOYMENTS, r.REPLICA_SETS)


class SetGroupsController(Controller):
    """One per kind."""

    def __init__(self, caches: Caches, events: Events, groups: Groups, resource: Resource) -> None:
        self.name = f"groups-of-{resource.plural}"
        super().__init__()
        self._events, self._groups, self._resource = events, groups, resource
        self._owners = caches.of(resource)
        self._pods = caches.of(r.PODS)
        self._pods.index("controller", index_by_controller)
        self._owners.on_change(self._owner_changed)
        groups.feed(resource.kind, self.queue)

    def _owner_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        if new is not None and controller_of(new) is None:
            self.queue.add(key)

    async def reconcile(self, key: Key) -> None:
        owner = self._owners.get(*key)
        if owner is None or deleting(owner) or controller_of(owner) is not None:
            return  # groups go with their owner
        if self._by_hand(owner):
            return
        try:
            wanted = group_set(owner)
            if wanted:
                await self._groups.ensure(owner, wanted, self.name)
            elif self._groups.owned(owner):
                await self._groups.remove(owner)
        except Refused as refusal:
            self._events.warning(owner, self.name, refusal.reason, refusal.message)

    def _by_hand(self, owner: Json) -> bool:
        """Manifest lifecycle: a Workload its author wrote for this owner is theirs, and no other is made."""
        uid = owner["metadata"]["uid"]
        return any(not controlled_by(found, uid) for found in self._groups.for_owner(owner))

    def _has_group(self, namespace: str, name: str, maker: Json) -> bool:
        """A group that is being deleted stays as long as pods refer to it; without any it is about to go."""
        found = self._groups.pod_groups.get(namespace, name)
        if found is None or not deleting(found):
            return found is not None
        return any(map(active, self._pods.by_index("controller", maker["metadata"]["uid"])))

    def link(self, pod: Json, owner: Json, maker: Json) -> None:
        """`owner` asks for the group, `maker` makes the pods: the same, or a ReplicaSet of it."""
        if self._by_hand(owner):
            return
        try:
            wanted = group_set(owner)
        except Refused as refusal:
            raise Invalid(refusal.message) from refusal
        link = wanted.links.get("")
        if link is None:
            return
        namespace = owner["metadata"]["namespace"]
        if link.pod_group and not self._has_group(namespace, link.pod_group, maker):
            raise Conflict(f"PodGroup {link.pod_group} does not exist yet")
        if link.workload and self._groups.workloads.get(namespace, link.workload) is None:
            raise Conflict(f"Workload {link.workload} does not exist yet")
        link.put_on(pod["spec"])


class SetGroups:
    """All three kinds, and the way from a pod to the one that counts."""

    def __init__(self, caches: Caches, events: Events, groups: Groups) -> None:
        self.controllers = {
            resource.kind: SetGroupsController(caches, events, groups, resource) for resource in GROUPED
        }
        self._deployments = caches.of(r.DEPLOYMENTS)

    async def admit(self, pod: Json, owner: Json) -> None:
        """`owner` is the StatefulSet or ReplicaSet that makes the pod."""
        above = controller_of(owner)
        if above is None:
            self.controllers[owner["kind"]].link(pod, owner, owner)
        elif above["kind"] == "Deployment":
            deployment = self._deployments.get(owner["metadata"]["namespace"], above["name"])
            if deployment is not None and deployment["metadata"]["uid"] == above["uid"]:
                self.controllers["Deployment"].link(pod, deployment, owner)
