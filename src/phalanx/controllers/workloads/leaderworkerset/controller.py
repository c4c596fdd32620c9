"""LeaderWorkerSet: replicated groups of a leader and its workers, scaled, rolled and restarted as units.

A StatefulSet creates the leaders; for each leader another one, owned by it, creates its workers. Groups (KEP-407) are
created before their pods, including surge: `admit` is called for every pod and refuses it until then. Scaling down,
rolling and restarting delete leaders; ownership does the rest.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from phalanx.base import resources as r
from phalanx.base.clock import Clock
from phalanx.base.errors import AlreadyExists, Conflict
from phalanx.base.resources import WORKLOADS
from phalanx.base.well_known import WORKLOAD_SCHEDULING_READY
from phalanx.controllers.group_apis import create_pod_group_if_not_exists, provider_of
from phalanx.controllers.grouping.core import PARENT_COMPOSITE, TOO_MANY, Grouping, GroupingRefused
from phalanx.controllers.grouping.user_workload import generated, ignored_note
from phalanx.controllers.runtime.cache import MARKED
from phalanx.controllers.runtime.controller import Caches, Controller, Json, Key
from phalanx.controllers.runtime.events import Events
from phalanx.controllers.runtime.groups import GroupPhase, Groups
from phalanx.controllers.runtime.ownership import (
    controlled_by,
    controller_of,
    controller_reference,
    deleting,
    index_by_controller,
)
from phalanx.controllers.runtime.pods import bound, condition, ready
from phalanx.controllers.runtime.revisions import Revisions
from phalanx.controllers.runtime.status import conditions_of, follow_refusal, write_status
from phalanx.controllers.workloads.leaderworkerset import grouping as grouping
from phalanx.controllers.workloads.leaderworkerset.admission import PodAdmission, grouped_now
from phalanx.controllers.workloads.leaderworkerset.revision import (
    as_written_by_go,
    at_revision,
    revision_data,
    revision_hash,
)
from phalanx.controllers.workloads.leaderworkerset.rollout import Allowed, Leaders, ReplicaState, allowed_of, next_step
from phalanx.controllers.workloads.leaderworkerset.rules import (
    Replica,
    must_recreate,
    names_of,
    outdated,
    replica_of,
    unavailable_replicas,
    without,
)
from phalanx.controllers.workloads.leaderworkerset.sets import leader_set, service, unique_subdomains, worker_set
from phalanx.controllers.workloads.leaderworkerset.status import ProgressEvents, of_groups, rolled_out, status_of
from phalanx.model.leaderworkerset import names as n
from phalanx.model.leaderworkerset.pods import is_grouped, is_leader

KIND = r.LEADER_WORKER_SETS.kind
GATES_OFF = "Groups need the feature gates GenericWorkload and PodGroupPerReplica; its pods start one by one"
REFUSED_AGAIN = 5.0  # seconds; the obstacle may be removed without an event of the set


@dataclass(slots=True)
class ObservedReplicas:
    """The state read by one reconcile: leaders by index, and the set at each revision."""

    lws: Json
    revision: str
    then: dict[str, Json]
    leaders: dict[int, Json]
    leader_set: Json | None
    allowed: Allowed
    states: list[ReplicaState]
    outdated: set[Replica] = field(default_factory=set)  # replicas with outdated policies


class LeaderWorkerSetController(Controller):
    name = "leaderworkerset"

    def __init__(self, caches: Caches, clock: Clock, events: Events, groups: Groups | None) -> None:
        super().__init__()
        self._client, self._clock, self._events, self._groups = caches.client, clock, events, groups
        self._owners = caches.of(r.LEADER_WORKER_SETS, optional=True)
        self._sets = caches.of(r.STATEFUL_SETS)
        self._pods = caches.of(r.PODS)
        self._nodes = caches.of(r.NODES)
        self._services = caches.of(r.SERVICES)
        self._policies = caches.of(r.WORKLOAD_POLICIES, optional=True)
        self._policies.on_change(self._policy_changed)
        self._revisions = Revisions(
            caches.of(r.CONTROLLER_REVISIONS),
            r.LEADER_WORKER_SETS,
            label=n.REVISION,
            numbered=True,
            digest=revision_hash,
            normal=as_written_by_go,
        )
        self.admit = PodAdmission(self._owners, self._pods, self._revisions, groups).admit
        self._progress = ProgressEvents(events)
        self._lost: dict[str, dict[str, Json]] = {}  # uid of what made workers -> those deleted, by name
        self._pods.index("lws", _index_by_owner, of_marks=True)
        self._pods.index("controller", index_by_controller, of_marks=True)
        self._owners.on_change(self.requeue)
        self.report_refusals(self._owners, events)
        self._pods.on_change(self._pod_gone, of=MARKED)
        self._sets.on_change(self._set_gone, of=MARKED)
        self._services.on_change(self._service_gone)
        for cache in (self._sets, self._pods):
            cache.on_change(self._part_changed, of=MARKED)
        if groups is not None:
            groups.requeue_on_change("LeaderWorkerSet", self.queue)
            self._owners.index("under", _index_by_parent)
            groups.composites.on_change(self._parent_changed)

    def _pod_gone(self, key: Key, new: Json | None, old: Json | None) -> None:
        """Remember a deleted worker: after a forced deletion its replacement may exist before the next reconcile."""
        if new is not None or old is None:
            return
        self._lost.pop(old["metadata"]["uid"], None)
        owner = controller_of(old)
        if owner is None or not n.label(old, n.NAME) or is_leader(old):
            return
        maker = {"StatefulSet": self._sets, "Pod": self._pods}.get(owner["kind"])
        if maker is not None and maker.get(key.namespace, owner["name"]) is not None:
            self._lost.setdefault(owner["uid"], {})[key.name] = old

    def _service_gone(self, key: Key, new: Json | None, old: Json | None) -> None:
        name = ((old or {}).get("spec") or {}).get("selector") or {}
        if new is None and name.get(n.NAME):
            self.queue.add(Key(key.namespace, name[n.NAME]))

    def _set_gone(self, key: Key, new: Json | None, old: Json | None) -> None:
        if new is None and old is not None:
            self._lost.pop(old["metadata"]["uid"], None)

    def _part_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        for obj in (new, old):
            if obj is not None and n.label(obj, n.NAME):
                self.queue.add(Key(key.namespace, n.label(obj, n.NAME)))

    def _parent_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        if new is None or old is None:
            for lws in self._owners.by_index("under", str(key)):
                self.queue.add(Key(key.namespace, lws["metadata"]["name"]))

    # ---- reading

    async def reconcile(self, key: Key) -> None:
        lws = self._owners.get(*key)
        if lws is None or deleting(lws):
            return  # everything is deleted with its owner
        try:
            grouping.check_size(lws)
        except GroupingRefused as refusal:
            await self._refuse(lws, refusal)
            return
        look = await self._observe(lws)
        partition, replicas = next_step(look.allowed, self._present(look), look.revision, look.states)
        scheduling: tuple[str, str, str] | None = None
        try:
            provider = provider_of(lws)
            grouped = grouped_now(lws, self._groups)
            go_on = await self._make_groups(look, partition, replicas, grouped and provider.name == grouping.NATIVE)
            scheduling = of_groups(look.leaders, look.outdated) if grouped else self._without_groups(lws)
            if go_on:
                await self._sync_replicas(look, partition, replicas)
        except GroupingRefused as refusal:
            scheduling = ("False", refusal.reason, refusal.message)
            self._events.warning(lws, self.name, refusal.reason, refusal.message)
            self.queue.add_after(key, REFUSED_AGAIN)
        await self._finish(look, scheduling)

    def _without_groups(self, lws: Json) -> tuple[str, str, str] | None:
        """Return the condition of a set that gets no groups, and report what is without effect."""
        if grouping.asked(lws):
            if (condition(lws, WORKLOAD_SCHEDULING_READY) or {}).get("message") != GATES_OFF:
                self._events.warning(lws, self.name, "APINotAvailable", GATES_OFF)
            return "False", "APINotAvailable", GATES_OFF
        about = self._groups.for_owner(lws) if self._groups is not None else ()
        for found in about if not grouping.pods_name_group(lws) else ():
            if controller_of(found) is None and not generated(found):
                note = ignored_note(lws, found, "spec.scheduling: {}")
                self._events.warning(lws, self.name, "WorkloadIgnored", note)
        if condition(lws, WORKLOAD_SCHEDULING_READY):
            return "False", "NotAsked", "Groups are not asked for; replicas that have one keep it"
        return None

    async def _refuse(self, lws: Json, refusal: GroupingRefused) -> None:
        """Report a set that exceeds the limits; running pods are not changed."""
        conditions = conditions_of(lws)
        if (condition(lws, TOO_MANY) or {}).get("message") != refusal.message:
            self._events.warning(lws, self.name, refusal.reason, refusal.message)
        follow_refusal(conditions, TOO_MANY, refusal, self._clock)
        await write_status(self._owners, lws, {**(lws.get("status") or {}), "conditions": conditions})

    async def _observe(self, lws: Json) -> ObservedReplicas:
        meta = lws["metadata"]
        earlier = {n.label(rev, n.REVISION) for rev in self._revisions.of(lws)}
        found = await self._adopted(lws, self._sets.get(meta["namespace"], meta["name"]))
        if found is not None and not controlled_by(found, meta["uid"]):
            note = f"StatefulSet {meta['name']} has another owner; delete or rename it"
            self._events.warning(lws, self.name, "NameConflict", note)
            raise Conflict(note)
        used = n.label(found, n.REVISION) if found is not None else ""
        present = await self._revisions.present(lws, revision_data(lws), {n.NAME: meta["name"]}, used)
        revision = n.label(present, n.REVISION)
        if revision not in earlier:
            self._progress.revision(lws, revision)
        then = {n.label(rev, n.REVISION): at_revision(lws, rev) for rev in self._revisions.of(lws)}
        then[revision] = lws
        leaders = {}
        for pod in self._all_pods(lws):
            if found is not None and is_leader(pod) and controlled_by(pod, found["metadata"]["uid"]):
                leaders[int(pod["metadata"]["name"].rpartition("-")[2])] = pod
        look = ObservedReplicas(lws, revision, then, leaders, found, allowed_of(lws, self._limit(lws)), [])
        highest = max([look.allowed.replicas, *(index + 1 for index in leaders)])
        look.states = [self._state(look, index) for index in range(highest)]
        return look

    async def _adopted(self, lws: Json, found: Json | None) -> Json | None:
        """Adopt the leaders' StatefulSet left by an earlier LeaderWorkerSet with this name."""
        if found is None or controller_of(found) is not None or deleting(found) or deleting(lws):
            return found
        if n.label(found, n.NAME) != lws["metadata"]["name"]:
            return found
        meta = found["metadata"]
        references = [*(meta.get("ownerReferences") or ()), controller_reference(lws, r.LEADER_WORKER_SETS)]
        change = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"], "ownerReferences": references}
        return await self._sets.patch(found, {"metadata": change})

    def _limit(self, lws: Json) -> int | None:
        namespace = lws["metadata"]["namespace"]
        policies = (each for each in self._policies if each["metadata"]["namespace"] == namespace)
        return unavailable_replicas(policies, {**lws, "apiVersion": r.LEADER_WORKER_SETS.api_version, "kind": KIND})

    def _policy_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        for policy in (new, old):
            target = ((policy or {}).get("spec") or {}).get("targetRef") or {}
            if target.get("kind") == KIND:
                self.queue.add(Key(key.namespace, str(target.get("name"))))

    def _state(self, look: ObservedReplicas, index: int) -> ReplicaState:
        leader = look.leaders.get(index)
        if leader is None or deleting(leader):
            return ReplicaState()
        revision = n.label(leader, n.REVISION)
        workers = self._workers_of(leader)
        alone = n.size_of(look.then.get(revision, look.lws)) == 1
        return ReplicaState(
            ready=ready(leader) and (alone or (workers is not None and _complete(workers))),
            updated=revision == look.revision,
        )

    def _workers_of(self, leader: Json) -> Json | None:
        meta = leader["metadata"]
        found = self._sets.get(meta["namespace"], meta["name"])
        return found if found is not None and controlled_by(found, meta["uid"]) else None

    def _present(self, look: ObservedReplicas) -> Leaders | None:
        if look.leader_set is None:
            return None
        spec = look.leader_set["spec"]
        rolling = (spec.get("updateStrategy") or {}).get("rollingUpdate") or {}
        announced = n.annotation(look.leader_set, n.REPLICAS)
        return Leaders(
            replicas=int(spec.get("replicas", 1)),
            partition=int(rolling.get("partition") or 0),
            revision=n.label(look.leader_set, n.REVISION),
            announced=int(announced) if announced.isdecimal() and len(announced) <= 10 else look.allowed.replicas,
        )

    # ---- groups

    async def _make_groups(self, look: ObservedReplicas, partition: int, replicas: int, wanted: bool) -> bool:
        """Create groups of all pods that exist or may be created next; return False to retry after a deletion."""
        if self._groups is None:
            return True
        owned = self._groups.owned(look.lws)
        found = self._wanted(look, partition, replicas) if wanted else Grouping()
        if not found and not owned:
            return True
        look.outdated = outdated(found, owned, self._all_pods(look.lws))
        keep = names_of(owned, look.outdated)
        if found.workload is None and keep:
            keep |= {(obj["kind"], obj["metadata"]["name"]) for obj in owned if obj["kind"] == WORKLOADS.kind}
        state = await self._groups.ensure(look.lws, without(found, look.outdated), self.name, keep=keep)
        return state is not GroupPhase.REPLACING

    def _wanted(self, look: ObservedReplicas, partition: int, replicas: int) -> Grouping:
        """Return the groups of existing replicas and of those that may be created next."""
        there = {(index, n.label(leader, n.REVISION)): leader for index, leader in look.leaders.items()}
        pairs = set(there)
        earlier = n.label(look.leader_set, n.REVISION) if look.leader_set is not None else look.revision
        for index in range(replicas):
            # Below the partition a lost leader is recreated at its old revision, otherwise with the current template.
            pairs |= {(index, look.revision)} if index >= partition else self._below(look, index, earlier)
        alone = {pair for pair, leader in there.items() if not is_grouped(leader) and not deleting(leader)}
        known = [(index, rev, look.then[rev]) for index, rev in pairs - alone if rev in look.then]
        return grouping.grouping(look.lws, known, self._groups.related(look.lws) if self._groups is not None else ())

    def _all_pods(self, lws: Json) -> list[Json]:
        return self._pods.by_index("lws", f"{lws['metadata']['namespace']}/{lws['metadata']['name']}")

    def _below(self, look: ObservedReplicas, index: int, earlier: str) -> set[tuple[int, str]]:
        current = (look.leader_set or {}).get("status", {}).get("currentRevision")
        owner = look.leader_set["metadata"]["uid"] if look.leader_set is not None else ""
        for revision in self._revisions.cache.by_index("controller", owner):
            if revision["metadata"]["name"] == current:
                template = revision["data"]["spec"]["template"]
                return {(index, (template["metadata"].get("labels") or {}).get(n.REVISION, earlier))}
        return {(index, earlier)}

    # ---- arranging

    async def _sync_replicas(self, look: ObservedReplicas, partition: int, replicas: int) -> None:
        lws, meta = look.lws, look.lws["metadata"]
        if not unique_subdomains(lws):
            owner = controller_reference(lws, r.LEADER_WORKER_SETS)
            async with self._progress.creating(lws, f"Service {meta['name']}"):
                await self._service(service(meta["name"], meta["namespace"], {n.NAME: meta["name"]}, owner))
        wanted, before = leader_set(lws, look.revision, partition, replicas, look.allowed.surge), self._present(look)
        async with self._progress.creating(lws, f"StatefulSet {meta['name']}"):
            look.leader_set = await self._apply_leaders(look.leader_set, wanted)
        self._progress.leaders(lws, before, look.revision, partition, replicas)
        for index in sorted(look.leaders):
            await self._sync_replica(look, index, look.leaders[index])

    async def _apply_leaders(self, known: Json | None, wanted: Json) -> Json:
        meta = wanted["metadata"]
        if known is None:
            return await self._sets.create(wanted)
        fields = ("replicas", "template", "updateStrategy")
        if n.label(known, n.REVISION) == meta["labels"][n.REVISION] and _same_metadata(
            known["spec"]["template"], wanted["spec"]["template"]
        ):
            # A difference only in annotations of earlier versions replaces nothing.
            wanted["spec"]["template"] = known["spec"]["template"]
        same = (
            known["spec"].get("replicas") == wanted["spec"]["replicas"]
            and known["spec"].get("updateStrategy") == wanted["spec"]["updateStrategy"]
            and n.label(known, n.REVISION) == meta["labels"][n.REVISION]
            and meta["labels"].items() <= (known["metadata"].get("labels") or {}).items()
            and meta["annotations"].items() <= (known["metadata"].get("annotations") or {}).items()
            and known["spec"]["template"] is wanted["spec"]["template"]
        )
        if same:
            return known
        body = {
            **known,
            "metadata": {
                **known["metadata"],
                "labels": {**(known["metadata"].get("labels") or {}), **meta["labels"]},
                "annotations": {**(known["metadata"].get("annotations") or {}), **meta["annotations"]},
            },
            "spec": {**known["spec"], **{field: wanted["spec"][field] for field in fields}},
        }
        return await self._sets.update(body)

    async def _sync_replica(self, look: ObservedReplicas, index: int, leader: Json) -> None:
        lws, meta, name = look.lws, look.lws["metadata"], leader["metadata"]["name"]
        revision = n.label(leader, n.REVISION)
        then = look.then.get(revision)
        workers, grouped = self._workers_of(leader), is_grouped(leader)
        if then is None or deleting(leader):
            return
        if replica_of(leader) in look.outdated and not any(map(bound, [leader, *self._pods_of(workers, leader)])):
            note = f"Recreating group {index} (leader {name}): nothing of it has started, and other rules are asked for"
            self._events.normal(lws, self.name, "RecreateGroup", note)
            await self._delete(leader)
            return
        lost = [pod for maker in (workers, leader) for pod in self._pop_lost(maker)]
        recreated = must_recreate(then, leader, self._pods_of(workers, leader), lost)
        if recreated is not None:
            # The uid makes repeated Events different: equal Events are recorded once.
            which = f"leader {name}, uid {leader['metadata']['uid'][:8]}"
            note = f"Recreating group {index} ({which}): pod {recreated['metadata']['name']} was lost or restarted"
            self._events.normal(lws, self.name, "RecreateGroup", note)
            await self._delete(leader)
            return
        owner = controller_reference(leader, r.PODS)
        if unique_subdomains(then):
            selector = {n.NAME: meta["name"], n.GROUP_INDEX: str(index)}
            await self._service(service(name, meta["namespace"], selector, owner))
        provider = provider_of(lws)
        if grouped and provider.name != grouping.NATIVE:
            await create_pod_group_if_not_exists(
                self._client, provider, grouping.replica_of(then, index, revision, owner)
            )
        if n.size_of(then) == 1 or workers is not None:
            return
        if grouping.leader_first(lws) and not ready(leader):
            return
        selector_of_node = None
        topology = n.annotation(lws, n.EXCLUSIVE)
        if topology and not grouped:
            node = self._nodes.get("", (leader.get("spec") or {}).get("nodeName") or "")
            if node is None:
                return  # workers follow their leader
            selector_of_node = {topology: (node["metadata"].get("labels") or {}).get(topology, "")}
        await self._make_workers(look, leader, worker_set(then, leader, node_selector=selector_of_node))

    async def _make_workers(self, look: ObservedReplicas, leader: Json, wanted: Json) -> None:
        meta = wanted["metadata"]
        try:
            async with self._progress.creating(look.lws, f"StatefulSet {meta['name']}"):
                await self._sets.create(wanted)
            self._progress.workers(look.lws, leader)
        except AlreadyExists:
            found = self._sets.get(meta["namespace"], meta["name"])
            if found is not None and (controller_of(found) or {}).get("kind") != "Pod":
                note = f"StatefulSet {meta['name']} has another owner; delete or rename it"
                self._events.warning(look.lws, self.name, "NameConflict", note)
            # Otherwise it belongs to the previous leader and is terminating; its deletion requeues the set.

    def _pods_of(self, workers: Json | None, leader: Json) -> list[Json]:
        """Return the workers of a leader: those of its StatefulSet, and any whose controller is the leader itself."""
        makers = [maker for maker in (workers, leader) if maker is not None]
        return [pod for maker in makers for pod in self._pods.by_index("controller", maker["metadata"]["uid"])]

    def _pop_lost(self, maker: Json | None) -> list[Json]:
        return list(self._lost.pop(maker["metadata"]["uid"], {}).values()) if maker is not None else []

    async def _service(self, wanted: Json) -> None:
        meta = wanted["metadata"]
        if self._services.get(meta["namespace"], meta["name"]) is not None:
            return
        with suppress(AlreadyExists):
            await self._services.create(wanted)

    async def _delete(self, leader: Json) -> None:
        """Delete in the foreground: a new leader is created only after all pods of the old group are gone."""
        await self._pods.delete(leader, "Foreground")

    async def _finish(self, look: ObservedReplicas, scheduling: tuple[str, str, str] | None) -> None:
        lws = self._owners.get(look.lws["metadata"]["namespace"], look.lws["metadata"]["name"]) or look.lws
        existing = sum(not deleting(leader) for leader in look.leaders.values())
        created = int(((look.leader_set or {}).get("status") or {}).get("replicas") or 0)
        status = status_of(look.lws, look.allowed, look.states, (existing, created), scheduling, self._clock)
        self._progress.status(look.lws, status)
        await write_status(self._owners, lws, status)
        if rolled_out(look.allowed, look.states):
            used = {n.label(leader, n.REVISION) for leader in look.leaders.values()} | {look.revision}
            live = {rev["metadata"]["name"] for rev in self._revisions.of(lws) if n.label(rev, n.REVISION) in used}
            await self._revisions.trim(lws, live, 0)


def _index_by_owner(pod: Json) -> list[str]:
    name = n.label(pod, n.NAME)
    return [f"{pod['metadata']['namespace']}/{name}"] if name else []


def _index_by_parent(lws: Json) -> list[str]:
    """Return the parent CompositePodGroup, if the set is part of a tree of another workload."""
    name = n.annotation(lws, PARENT_COMPOSITE)
    return [f"{lws['metadata']['namespace']}/{name}"] if name else []


def _complete(workers: Json) -> bool:
    status, spec = workers.get("status") or {}, workers["spec"]
    return bool(
        status.get("observedGeneration") in (None, 0, workers["metadata"].get("generation"))  # None: not reported
        and status.get("availableReplicas", 0) == spec.get("replicas", 1)
        and status.get("currentRevision") == status.get("updateRevision")
    )


def _same_metadata(known: Json, wanted: Json) -> bool:
    """Return True if labels and annotations are equal. Equal revision labels mean equal specs."""
    here, there = known.get("metadata") or {}, wanted["metadata"]
    notes = {key: value for key, value in (here.get("annotations") or {}).items() if key != n.GROUPED}
    return (here.get("labels") or {}) == (there.get("labels") or {}) and notes == (there.get("annotations") or {})
