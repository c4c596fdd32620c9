"""Controllers of cluster mode: they create groups for workloads of upstream controllers.

Upstream's controllers create the pods. The controllers here only write the Workloads, CompositePodGroups and PodGroups
of workloads that request them, update their counts, and label pods created without a link. They never change
workloads. Kinds that are not installed are checked again later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from phalanx.base import informer
from phalanx.base import resources as r
from phalanx.base.client import Client
from phalanx.base.clock import Clock
from phalanx.base.errors import Conflict, NotFound
from phalanx.base.informer import Informer, ObjectChange
from phalanx.base.tasks import run_all
from phalanx.base.work import WorkQueue
from phalanx.controllers.cluster_mode.directory import Directory, UnfinishedPods, finished
from phalanx.controllers.cluster_mode.gang_budgets import GangBudgets
from phalanx.controllers.cluster_mode.linking import requests_gang
from phalanx.controllers.cluster_mode.protection import CompositeProtection
from phalanx.controllers.cluster_mode.writer import NAME, ClusterWriter, OtherManager
from phalanx.controllers.grouping.core import GROUP_TEMPLATE, PARENT_COMPOSITE, GroupingRefused
from phalanx.controllers.grouping.names import LABEL
from phalanx.controllers.grouping.user_workload import made_by_hand
from phalanx.controllers.pod_sets import PodSetsController
from phalanx.controllers.runtime.cache import Cache, Caches, Handler, Json, Key
from phalanx.controllers.runtime.controller import Controller
from phalanx.controllers.runtime.events import Events
from phalanx.controllers.runtime.groups import Groups
from phalanx.controllers.runtime.ownership import controller_of, deleting
from phalanx.controllers.workloads.job.grouping import vacant
from phalanx.controllers.workloads.kind import WorkloadKind
from phalanx.controllers.workloads.member import PodView
from phalanx.controllers.workloads.registry import BY_KIND, FOLLOWED, READ, places
from phalanx.model.groups.keys import AFTER_GROUP, GROUP_LABEL, SIZE_GATE


class GroupController(Controller):
    """Reconciles the groups of one kind of workload."""

    name = NAME

    def __init__(
        self,
        cache: Cache,
        groups: Groups,
        directory: Directory,
        writer: ClusterWriter,
        pods: UnfinishedPods,
        relabel: Callable[[str, Key], None],
    ) -> None:
        super().__init__()
        self.cache, self._relabel = cache, relabel
        self._groups, self._directory, self._writer, self._pods = groups, directory, writer, pods
        cache.on_change(self.requeue)
        groups.requeue_on_change(cache.resource.kind, self.queue)

    async def reconcile(self, key: Key) -> None:
        owner = self.cache.get(key.namespace, key.name)
        if owner is None or deleting(owner):
            return  # the garbage collector deletes the groups
        await self._group(key, owner)
        for pod in self._pods.of(owner["kind"], key.namespace, key.name):
            if SIZE_GATE in pod.gates and not self._directory.early(pod):
                await self._writer.open_gate(pod, SIZE_GATE)

    async def _group(self, key: Key, owner: Json) -> None:
        if not requests_gang(owner) or finished(owner):
            await self._tidy(owner)
            return
        theirs = self._directory.handed_over(owner)
        if theirs is not None:
            await self._leave_groups(owner, f"{theirs['kind']} {theirs['metadata']['name']}")
            return
        await self._writer.take_over(owner)
        wanted = self._directory.wanted(owner)
        if wanted is None:
            if not self._directory.is_managed(owner) and self._directory.has_groups_when_started(owner):
                note = "it began before groups were asked for and runs on without; start it again to have them"
                self._warn(owner, "NotGrouped", note)
            return
        try:
            if isinstance(wanted, GroupingRefused):
                raise wanted
            kind = BY_KIND[owner["kind"]]
            await self._writer.write(owner, wanted, self._in_use(owner), apart=kind.replicated is not None)
            if kind.owns_user_workload and wanted.workload is None:
                by_hand = made_by_hand(owner, self._groups.for_owner(owner))
                if by_hand is not None:
                    await self._groups.adopt(owner, by_hand)
            for reason, note in wanted.notes:
                self._warn(owner, reason, note)
            self._relabel(owner["kind"], key)
        except GroupingRefused as refused:
            self._warn(owner, refused.reason, refused.message)
        except OtherManager as reason:
            await self._leave_groups(owner, str(reason))
        except NotFound as problem:
            note = f"scheduling objects are not served by this cluster ({problem}); install the custom resources"
            self._warn(owner, "APINotAvailable", note)
            self.queue.add_after(key, informer.ABSENT_SECONDS)  # when the caches check again

    async def _tidy(self, owner: Json) -> None:
        """Delete the groups of a workload that no longer requests them; those of a finished one are kept as a
        record."""
        if not requests_gang(owner):
            await self._writer.delete(self._writer.ours(owner), self._in_use(owner))

    async def _leave_groups(self, owner: Json, what: str) -> None:
        """Leave the groups to the workload's own controller, and delete ours unless pods use them."""
        ours = self._writer.ours(owner)
        in_use = self._in_use(owner)
        if ours and not in_use:
            await self._writer.delete(ours, in_use)
        note = f"{what} was made by the controller of this {owner['kind']}; groups are left to it"
        self._groups.events.normal(owner, NAME, "GroupsHandedOver", note)

    def _in_use(self, owner: Json) -> set[str]:
        meta = owner["metadata"]
        found = self._pods.of(owner["kind"], meta["namespace"], meta["name"])
        return {pod.group for pod in found if pod.group}

    def _warn(self, owner: Json, reason: str, note: str) -> None:
        self._groups.events.warning(owner, NAME, reason, note)


class ClusterControllers:
    """Controllers of cluster mode with their caches. `follow` always runs, `work` only on the leader."""

    def __init__(self, client: Client, clock: Clock, *, gang_budgets: bool = False) -> None:
        self._client = client
        self._caches = Caches(client)
        self.events = Events(client, clock)
        self._caches.client.refused = self.events.written_too_often
        self._groups = Groups(self._caches, self.events)
        self.pods = UnfinishedPods()
        followed = {kind.resource.kind: self._caches.of(kind.resource, optional=True) for kind in FOLLOWED}
        read = {resource.kind: self._caches.of(resource, optional=True) for resource in READ}
        classes = self._caches.of(r.PRIORITY_CLASSES, optional=True)
        self.directory = Directory(self._groups, followed, self.pods, read, classes)
        self.writer = ClusterWriter(self._caches, self._groups)
        self.controllers = {
            kind: GroupController(cache, self._groups, self.directory, self.writer, self.pods, self._relabel)
            for kind, cache in followed.items()
        }
        self._protection = CompositeProtection(client, self._groups)
        self._budgets = GangBudgets(self._caches, self._groups) if gang_budgets else None
        self._pod_sets = PodSetsController(self._caches, self._groups, FOLLOWED)
        self.workloads_have_status = False  # True: the Workloads are our custom resources
        self._labels: WorkQueue[Key] = WorkQueue("pod-labels")
        self._pod_informer: Informer[PodView] = Informer(client, r.PODS, PodView, self._pod_changed)
        self._unlinked: dict[Key, PodView] = {}
        for cache in followed.values():
            cache.index("parent", _by_parent)
            cache.index("under", _by_composite)
        self._groups.workloads.on_change(self._workload_changed)
        self._groups.composites.on_change(self._composite_changed)
        followed[r.JOBS.kind].on_change(self._job_changed)
        for kind in FOLLOWED:
            if kind.replicated is not None:
                followed[kind.replicated.made_of.kind].on_change(self._part_changed(kind.resource.kind))
            for resource in kind.reads:
                read[resource.kind].on_change(self._read_changed(kind))
        self.ready = asyncio.Event()

    @property
    def informers(self) -> Sequence[Informer[PodView] | Informer[bytes]]:
        return [self._pod_informer, *self._caches.informers]

    def failures(self) -> dict[str, int]:
        """Return the number of reconciles that raised, by controller."""
        return {"labels": self._labels.failed} | {
            f"groups of {kind}": controller.queue.failed for kind, controller in self.controllers.items()
        }

    async def follow(self) -> None:
        """Fill the caches and keep them current until cancelled. Reads only."""
        await run_all((("pod informer", self._pod_informer.run()), ("caches", self._caches.run(self._filled))))

    async def _filled(self) -> None:
        await self._pod_informer.synced.wait()
        self.ready.set()
        await asyncio.Event().wait()

    async def work(self) -> None:
        """Run the writers, until cancelled."""
        await self.ready.wait()
        works = [(f"groups of {kind}", controller.run()) for kind, controller in self.controllers.items()]
        works.append(("composite protection", self._protection.run()))
        if self._budgets is not None:
            works.append(("gang budgets", self._budgets.run()))
        if self.workloads_have_status:
            works.append(("pod sets of Workloads", self._pod_sets.run()))
        await run_all([*works, ("labels", self._labels.run(self._label, 4)), ("events", self.events.run())])

    # ---- events

    def _pod_changed(self, change: ObjectChange[PodView]) -> None:
        key = Key(change.namespace, change.name)
        pod, old = self.pods.take(change)
        if self._budgets is not None:
            self._budgets.pod_changed(old, pod)
        self._unlinked.pop(key, None)
        if pod is None:
            # An unused group may be deleted now, and a restarted workload may get one.
            self._requeue(old)
            return
        if not pod.linked and pod.controller is not None and pod.metadata.deletion_timestamp is None:
            self._unlinked[key] = pod
            self._labels.add(key)
        if SIZE_GATE in pod.gates:
            self._requeue(pod)  # its group may have grown
        elif old is None:
            # It may be the first pod of a replica of another revision, or its group was deleted while it was created.
            lost = bool(pod.group) and self._groups.pod_groups.get(change.namespace, pod.group) is None
            self._requeue(pod, replicated=not lost)

    def _requeue(self, pod: PodView | None, *, replicated: bool = False) -> None:
        for place in places(pod) if pod is not None else ():
            controller = self.controllers.get(place.kind)
            wanted = not replicated or BY_KIND[place.kind].replicated is not None
            if pod is not None and controller is not None and wanted:
                controller.queue.add(Key(pod.metadata.namespace, place.name))

    def _relabel(self, kind: str, key: Key) -> None:
        """Check pods of a workload again: its watch event may arrive after theirs."""
        for pod in self.pods.of(kind, key.namespace, key.name):
            found = Key(pod.metadata.namespace, pod.metadata.name)
            if found in self._unlinked:
                self._labels.add(found)

    def _workload_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        """Requeue the workloads that wait for this Workload of their parent."""
        about = ((new or old or {}).get("spec") or {}).get("controllerRef")
        if about:
            for controller in self.controllers.values():
                for child in controller.cache.by_index("parent", f"{key.namespace}/{about['kind']}/{about['name']}"):
                    controller.queue.add(Key(key.namespace, child["metadata"]["name"]))

    def _composite_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        """Requeue the workloads that wait for this CompositePodGroup as their parent."""
        for controller in self.controllers.values() if new is None or old is None else ():
            for child in controller.cache.by_index("under", str(key)):
                controller.queue.add(Key(key.namespace, child["metadata"]["name"]))

    def _job_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        """Update a gang's count when pods of a Job have completed permanently, or when the Job is recreated."""
        reference = controller_of(new or old or {})
        controller = self.controllers.get(reference["kind"]) if reference is not None else None
        if reference is None or controller is None:
            return
        if (vacant(new) if new is not None else 0) != (vacant(old) if old is not None else 0):
            controller.queue.add(Key(key.namespace, reference["name"]))

    def _part_changed(self, kind: str) -> Handler:
        def changed(key: Key, new: Json | None, old: Json | None) -> None:
            """Requeue the owner: the object has its number of replicas and its revision."""
            reference = controller_of(new) if new is not None else None
            if reference is not None and reference["kind"] == kind:
                self.controllers[kind].queue.add(Key(key.namespace, reference["name"]))

        return changed

    def _read_changed(self, kind: WorkloadKind) -> Handler:
        controller = self.controllers[kind.resource.kind]

        def changed(key: Key, new: Json | None, old: Json | None) -> None:
            for workload in controller.cache:
                if kind.referenced_object(workload)[1] == key.name:
                    controller.queue.add(Key(workload["metadata"]["namespace"], workload["metadata"]["name"]))

        return changed

    # ---- pods without a link

    async def _label(self, key: Key) -> None:
        """Label a pod that the webhook did not process: its spec is immutable, its labels are not.

        Pods with a node are labelled too: they count for the gang.
        """
        pod = self._unlinked.get(key)
        if pod is None:
            return
        found = self.directory.member(pod)
        if found is None or not found.link.pod_group or len(found.link.pod_group) > LABEL:
            return
        patch: Json = {"metadata": {"uid": pod.metadata.uid, "labels": {GROUP_LABEL: found.link.pod_group}}}
        if replaced_group_uid := self.directory.replaced_group_uid(found):
            patch["metadata"]["annotations"] = {AFTER_GROUP: replaced_group_uid}
        try:
            await self._client.patch(r.PODS, key.name, patch, key.namespace)
        except (NotFound, Conflict):  # deleted, or replaced by a pod with the same name
            return


def _by_composite(child: Json) -> list[str]:
    name = (child["metadata"].get("annotations") or {}).get(PARENT_COMPOSITE)
    return [f"{child['metadata']['namespace']}/{name}"] if name else []


def _by_parent(child: Json) -> list[str]:
    parent = controller_of(child)
    if parent is None or GROUP_TEMPLATE not in (child["metadata"].get("annotations") or {}):
        return []
    return [f"{child['metadata']['namespace']}/{parent['kind']}/{parent['name']}"]
