"""Run the engine: apply events, return decisions. The same events give exactly the same decisions.

engine = Engine()
engine.apply(NodeChanged(node)); engine.apply(PodChanged(pod))
for decision in engine.step(now): perform(decision); engine.apply(Outcome(decision.id))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from phalanx.base.well_known import SCHEDULER_ERROR, UNSCHEDULABLE
from phalanx.engine import decisions as d
from phalanx.engine import events as e
from phalanx.engine.decisions import Decision
from phalanx.engine.devices.domains import DeviceDomains
from phalanx.engine.events import Event
from phalanx.engine.explain.whatif import find_place
from phalanx.engine.framework import ClusterChange, Factory, Wake
from phalanx.engine.framework.adapters import failure_of
from phalanx.engine.framework.settings import EngineSettings
from phalanx.engine.scheduling.attempt.attempt import EVALUATION, ROWS_PER_STEP
from phalanx.engine.scheduling.commit.cycle import ROW_WORK
from phalanx.engine.scheduling.commit.overtaking import queue_order
from phalanx.engine.scheduling.lifecycle.isolation import Isolation, object_of, room_only
from phalanx.engine.scheduling.lifecycle.pod_lifecycle import LATER
from phalanx.engine.scheduling.queue.units import QueueName, SchedulingUnit
from phalanx.engine.scheduling.scheduler import Scheduler, Watch
from phalanx.engine.state.columns import NOT_OFFERED
from phalanx.engine.state.objects import KINDS
from phalanx.engine.state.records import PodRecord, PodState
from phalanx.engine.validation import validate
from phalanx.model.gates import Gates
from phalanx.model.objects import Node

BINDS = 2  # binds per unit of work
POD = 3  # units of work per attempt of a single pod

_WITH_DEVICE_DOMAINS = frozenset({"PodGroup", "CompositePodGroup", "Workload"})
_WAKE_OF_KIND = {
    "PersistentVolume": Wake.STORAGE,
    "PersistentVolumeClaim": Wake.STORAGE,
    "StorageClass": Wake.STORAGE,
    "CSINode": Wake.STORAGE,
    "CSIDriver": Wake.STORAGE,
    "CSIStorageCapacity": Wake.STORAGE,
    "Namespace": Wake.NAMESPACE,
    "Service": Wake.SERVICE,
    "ReplicationController": Wake.SERVICE,
    "ReplicaSet": Wake.SERVICE,
    "StatefulSet": Wake.SERVICE,
    "PodGroup": Wake.GROUP,
    "CompositePodGroup": Wake.GROUP,
    "Workload": Wake.GROUP,
    "WorkloadPolicy": Wake.GROUP,
    "ResourceClaim": Wake.DEVICES,
    "ResourceSlice": Wake.DEVICES,
    "DeviceClass": Wake.DEVICES,
    "DeviceTaintRule": Wake.DEVICES,
}


class Engine:
    def __init__(
        self,
        settings: EngineSettings | None = None,
        gates: Gates | None = None,
        *,
        plugins: Mapping[str, Factory] | None = None,
        watch: Watch | None = None,
    ) -> None:
        """Create the engine. `plugins`: factories by name, in addition to the built-in plugins and those of installed
        packages. `watch`: wraps the factory of a plugin that is not built in, to measure its time, because the engine
        itself has no clock."""
        self.settings, self.gates = settings or EngineSettings(), gates or Gates()
        self.scheduler = scheduler = Scheduler(self.settings, self.gates, plugins or {}, watch)
        self.cluster = state = scheduler.cluster
        self.columns, self.objects, self.interest = state.columns, state.objects, state.interest
        self.shapes, self.evaluations, self.nominations = state.shapes, state.evaluations, state.nominations
        self.profiles, self.indexes = state.profiles, scheduler.indexes
        self.queue, self.pods, self.groups = scheduler.queue, scheduler.pods, scheduler.groups
        self.unit_lifecycle, self.pod_lifecycle = scheduler.unit_lifecycle, scheduler.pod_lifecycle
        self.attempts, self.searches, self.preemption = scheduler.attempts, scheduler.searches, scheduler.preemption
        self.history, self.isolation = scheduler.history, scheduler.isolation
        self.maintenance, self.starts = scheduler.maintenance, scheduler.starts
        self.rejections, self.places = scheduler.rejections, scheduler.places
        self.illegal_transitions = scheduler.illegal_transitions
        self.outbox, self.faults = scheduler.outbox, scheduler.faults
        self._binding, self._cycle = scheduler.binding, scheduler.cycle
        self._status, self._status_writes = scheduler.status, scheduler.status_writes
        self.device_domains = DeviceDomains(self.indexes.devices)
        self._apply: dict[type[Any], Callable[[Any], None]] = {
            e.PodChanged: self._pod_changed,
            e.NodeChanged: lambda event: self._node_changed(event.object),
            e.Gone: self._gone,
            e.Outcome: self._outcome,
            e.TimePassed: lambda event: self._time(event.now, event.jumped),
            e.PlaceRequested: self.places.request,
            e.PlaceReleased: lambda event: self.places.release(event.namespace, event.name),
        }

    # ---- events

    def apply(self, event: Event) -> None:
        """Apply an event to the state. It is cheap, makes no decision, and raises no exception."""
        try:
            handler = self._apply.get(type(event))
            if handler is not None:
                handler(event)
            else:
                obj = event.object  # type: ignore[union-attr]
                self._notify(KINDS[type(obj)], self.objects.put(obj), obj)
        except Exception as problem:
            if Isolation.strict:
                raise
            self._set_aside(event, problem)
        else:
            if self.isolation.objects and (key := object_of(event)) is not None:
                self.isolation.handled(key)

    def _set_aside(self, event: Event, problem: Exception) -> None:
        """Undo a partly handled event as if its object were deleted, and report the object."""
        key = object_of(event)
        if key is None:
            self.isolation.note(type(event).__name__, "", problem)
            return
        kind, namespace, name = key
        undo: tuple[Callable[[], None], ...]
        if kind == "Pod":
            undo = (
                lambda: self.pods.gone(namespace, name, ""),
                lambda: self.groups.members.lost(namespace, name),
            )
        else:
            undo = (lambda: self._gone(e.Gone(kind, name, namespace)),)
        if isinstance(event, e.PodChanged) and event.object.spec.node_name:
            bound = event.object  # its resources are in use, whatever else the object says
            undo = (*undo, lambda: self._pod_changed(e.PodChanged(room_only(bound))))
        for part in undo:
            try:
                part()
            except Exception as another:
                self.isolation.note(kind, f"{namespace}/{name}", another)
        if not isinstance(event, e.Gone):
            meta = event.object.metadata  # type: ignore[union-attr]
            self.isolation.set_aside(key, meta.uid, meta.generation, problem)

    def _time(self, now: float, jumped: float = 0.0) -> None:
        self.cluster.now = max(self.cluster.now, now)  # if the clock jumps back, backoffs must not be undone
        if jumped:
            self.maintenance.clock_jumped(jumped)
            self.preemption.victim_index.minimum_runtime.clock_jumped(self.cluster.now, jumped)

    def _pod_changed(self, event: e.PodChanged) -> None:
        pod = event.object
        if pod.spec.resource_claims:
            self.indexes.claims.pod_seen(pod)
        if pod.status.phase == "Succeeded":
            self.starts.times.run_times.ended(pod)
        self.groups.members.pod_seen(pod)
        self.pods.changed(pod)

    def _node_changed(self, node: Node) -> None:
        before = self.columns.offers_shared
        self._see_node(self.device_domains.labelled(node))
        if self.columns.offers_shared != before:
            self.shapes.start_epoch()
            self.queue.wake_requesting({self.columns.resource(NOT_OFFERED)})

    def _see_node(self, node: Node) -> None:
        name = node.metadata.name
        row = self.columns.row_of.get(name, -1)
        if row < 0:
            row = self.columns.set_node(node)
            self.pod_lifecycle.node_appeared(name, row)
            self.queue.wake(ClusterChange(Wake.NODE_ADDED, row, new=node))
            self.starts.node_changed(name, usable=True)
            return
        old = self.columns.nodes[row]
        assert old is not None
        if (
            old.metadata.labels == node.metadata.labels
            and old.spec == node.spec
            and old.status.allocatable == node.status.allocatable
            and old.status.images == node.status.images
        ):
            self.columns.nodes[row] = node  # a heartbeat
            return
        self.columns.set_node(node)
        self.pod_lifecycle.externally_filled_rows.add(row)
        self.queue.wake(ClusterChange(Wake.NODE_CHANGED, row, old=old, new=node))
        usable = old.spec != node.spec or old.status.allocatable != node.status.allocatable
        self.starts.node_changed(name, usable=usable)

    def _node_gone(self, name: str, uid: str) -> None:
        row = self.columns.row_of.get(name, -1)
        node = self.columns.nodes[row] if row >= 0 else None
        if row < 0 or (uid and node is not None and node.metadata.uid and node.metadata.uid != uid):
            return
        self.pod_lifecycle.node_vanished(name, self.columns.remove_node(name))
        self.pod_lifecycle.externally_filled_rows.discard(row)
        self.groups.room.node_gone(name)
        self.queue.node_gone(ClusterChange(Wake.NODE_CHANGED, -1, old=node), self.cluster.now)

    def _gone(self, event: e.Gone) -> None:
        if event.kind == "Pod":
            self.pods.gone(event.namespace, event.name, event.uid)
            self.groups.members.lost(event.namespace, event.name)
            self.indexes.claims.lost(event.namespace, event.name)
        elif event.kind == "Node":
            self._node_gone(event.name, event.uid)
        else:
            old = self.objects.remove(event.kind, event.namespace, event.name, event.uid)
            if old is not None:
                self._notify(event.kind, old, None)

    def _notify(self, kind: str, old: Any | None, new: Any | None) -> None:
        self.indexes.observe(kind, old, new)
        for plugin in self.scheduler.observers:
            try:
                plugin.observe(kind, old, new)
            except BaseException as problem:
                self._fault(plugin, problem)
        if kind == "DeviceClass":
            self._classes_changed(old, new)
        elif kind == "ResourceSlice" and self.device_domains.attributes:
            for name in dict.fromkeys(each.spec.node_name or "" for each in (old, new) if each is not None):
                self._label_again(name)
        elif new is not None and kind in _WITH_DEVICE_DOMAINS:
            self.request_device_domain(new.metadata.annotations)
        self.preemption.observe(kind, old, new)
        self.groups.members.observe(kind, old, new)
        wake = _WAKE_OF_KIND.get(kind)
        if wake is not None:
            self.queue.wake(ClusterChange(wake, old=old, new=new))

    def request_device_domain(self, annotations: Mapping[str, str]) -> None:
        """Add the device attribute that a group's annotations request, as a label of all nodes."""
        if self.device_domains.request(annotations):
            for name in list(self.columns.row_of):
                self._label_again(name)

    def _label_again(self, name: str) -> None:
        row = self.columns.row_of.get(name, -1)
        node = self.columns.nodes[row] if row >= 0 else None
        if node is not None:
            self._node_changed(node)

    def _classes_changed(self, old: Any | None, new: Any | None) -> None:
        """Start a new epoch when device classes change which extended resources need claims."""
        if changed := self.indexes.claims.class_changed(old, new):
            self.shapes.extended = bool(self.indexes.claims.classes)
            self.interest.epoch += 1
            known = self.columns.resources
            self.queue.wake_requesting({known[name] for name in changed if name in known})

    def _fault(self, plugin: Any, problem: BaseException) -> None:
        self.faults.append(str(failure_of(plugin, problem)))

    def _outcome(self, event: e.Outcome) -> None:
        decision = self.outbox.answered(event.decision)
        if decision is None:
            return  # answered before, or no outcome is expected
        kind = type(decision)
        if event.problem:
            self.groups.members.failed(decision, event)
        if kind is d.Evict:
            self.unit_lifecycle.eviction_answered(decision.id, event.problem)
        for plugin in self.scheduler.outcome_observers[kind]:
            try:
                plugin.outcome(decision, event)
            except BaseException as problem:
                self._fault(plugin, problem)
        if kind is d.ReleaseClaim:
            self.queue.wake(ClusterChange(Wake.DEVICES))  # if nothing was written, no event will arrive
            return
        if kind is d.SetGroupCondition:
            return
        record = self.pods.records.get(f"{decision.namespace}/{decision.name}")
        if record is None or record.uid != decision.uid:
            return
        if decision.id == record.bind:
            self._bind_answered(record, event)
        elif event.problem and isinstance(decision, d.SetPodCondition):
            self._status.write_failed(record, decision, event.problem)

    def _bind_answered(self, record: PodRecord, event: e.Outcome) -> None:
        if not event.problem:
            self._binding.confirmed(record)
        elif not record.assumed:
            self.pod_lifecycle.bind_unanswered(record)
        else:
            self._binding.failed(record, event.message if event.problem == e.PERMANENT else "")

    # ---- decisions

    def step(self, now: float, limit: int = 100) -> list[Decision]:
        """Attempt up to `limit` scheduling units; return every decision since the last step.

        With a limit of 0 no unit is attempted, but gangs whose binding has begun are bound completely.
        """
        self._time(now)
        queue = self.queue
        if self.cluster.outgrown():
            self.cluster.remove_unused(queue.requested())
        queue.flush(self.cluster.now)
        for record in self.preemption.victim_index.unprotected():
            queue.wake(ClusterChange(Wake.POD_PLACED, record.row, record))
        self._repeat_statuses()
        self.maintenance.step()
        self.rejections.step()
        self.groups.settle()
        self.maintenance.settle()
        self.scheduler.evictions.step()
        self.starts.sweep()
        if self.places.requests or self.places.held:
            self._answer_places()
        turns = self._binding.poll() if self.pod_lifecycle.holding else 0
        searches = self.searches
        searches.sweep()
        searches.spent = turns // BINDS
        alone = searches.exclusive_unit
        turn = alone or queue.first_suspended()
        for _ in range(limit):
            wait = searches.over or (alone is not None and not queue.above(alone.priority))
            root = None if wait else queue.pop()
            if root is None:
                break
            self._attempt(root)
        if turn is not None and limit:
            self._go_on(turn)
        self.groups.members.statuses.notify()
        return self.outbox.take()

    def _answer_places(self) -> None:
        """Search places for workloads whose pods do not exist yet, also for those that lost their place."""
        places = self.places
        for lost in places.sweep():
            places.request(lost)
        for event in sorted(places.requests.values(), key=lambda each: -max((p.spec.priority or 0) for p in each.pods)):
            place, message = find_place(self.scheduler, event)
            places.release(event.namespace, event.name)
            if place:
                places.hold(event, place)
            self.outbox.emit(
                d.PlaceAnswered,
                namespace=event.namespace,
                name=event.name,
                uid=event.uid,
                placed=bool(place),
                message=message,
                nodes=sorted({node for _, node in place}),
            )

    def _repeat_statuses(self) -> None:
        for decision in self._status_writes.take():
            if isinstance(decision, d.SetPodCondition):
                self._status.rewrite(decision)
            else:
                self.groups.members.rewrite(decision)

    def _attempt(self, root: SchedulingUnit) -> None:
        """Attempt a scheduling unit taken from the queue. If the attempt raises, retry the unit after a backoff."""
        records, came_from = list(root.records.values()), root.equivalence_class
        try:
            self._try(root, records)
        except Exception as problem:
            if Isolation.strict:
                raise
            self._raised(root, records, problem)
            if root.queue_name is not QueueName.SEARCH:
                self.queue.attempted(root, came_from)

    def _raised(self, root: SchedulingUnit, records: list[PodRecord], problem: Exception) -> None:
        """Undo an unfinished attempt. Decisions already made stay valid, because the state includes them."""
        if self.columns.journal.recording:
            self.columns.journal.rewind(1)
        kind, _, name = root.key.partition("/")
        message = f"the attempt failed: {self.isolation.note(kind, name, problem)}"
        for record in records:
            if record.state is PodState.PENDING and record.row >= 0:
                self.columns.unplace(record)
            elif record.state is PodState.ASSUMED and record.key not in self.pod_lifecycle.holding:
                self._binding.failed(record, message)
        if root.queue_name is not QueueName.ATTEMPT:
            return
        if not root.records:
            self.unit_lifecycle.leave(root)
            return
        for record in root.records.values():
            self._status.report(record, SCHEDULER_ERROR, message)
        if root.group is not None:
            self.groups.members.report(root.group, SCHEDULER_ERROR, message)
        self.unit_lifecycle.back_off(root)

    def _try(self, root: SchedulingUnit, records: list[PodRecord]) -> None:
        epoch = self.interest.epoch
        for record in records:
            if record.shape_epoch != epoch or record.claims or record.shape.claims:
                self._reshape(record)
        if message := self.scheduler.strict_order.message(root):
            self._hold_for_older(root, message)
            return
        places = self.places
        arrived = [(r, o) for r in root.records.values() if (o := places.owner_of(r))] if places.held else []
        ignored = self.starts.ignore_reservations(records, queue_order(root)) if self.starts.held else []
        ignored += places.ignore_reservations(root) if arrived else []
        # without some reservations, this unit may fit where others of its equivalence class did not
        self.queue.shares_failures = not ignored and not self.starts.differs_from_class(records)
        try:
            self._try_kind(root)
        finally:
            if ignored:
                self.starts.put_back(ignored)
            if arrived:
                places.placed(arrived)
        if records and records[0].row >= 0:
            self.starts.placed(root, records)

    def _hold_for_older(self, root: SchedulingUnit, message: str) -> None:
        """Back off a unit that `strictFIFO` holds behind an older one."""
        came_from, root.equivalence_class, root.errors = root.equivalence_class, None, 0
        self.unit_lifecycle.notify(root, "refused", message)
        for record in root.records.values():
            self._status.report(record, UNSCHEDULABLE, message, event=False)
        if root.group is not None:
            self.groups.members.report(root.group, UNSCHEDULABLE, message)
        self.unit_lifecycle.back_off(root)
        self.queue.attempted(root, came_from)

    def _try_kind(self, root: SchedulingUnit) -> None:
        """Attempt a unit and add the work spent to the budget of the step."""
        self.preemption.victim_index.own_only = root.key in self.rejections.returned
        if root.kind == "Pod":
            made, looked = self.evaluations.made, self.preemption.chooser.looked
            self._cycle.attempt(root)
            self.searches.spent += POD + (self.evaluations.made - made) * (EVALUATION + self.columns.n // ROWS_PER_STEP)
            self.searches.spent += (self.preemption.chooser.looked - looked) * ROW_WORK
        else:
            self._cycle.attempt(root)

    def _go_on(self, first: SchedulingUnit) -> None:
        """Run one slice of a suspended attempt. Suspended attempts take turns."""
        spent, root = self.searches.spent, first if first.queue_name is QueueName.SEARCH else None
        for _ in range(len(self.searches.unfinished) + 1):
            if root is None:
                return
            self.queue.resume(root)
            self._attempt(root)
            if self.searches.spent > spent:
                return
            root = self.queue.first_suspended()

    def _reshape(self, record: PodRecord) -> None:
        """Recompute the shape of a record if the label interest or its claims may have changed since it was made."""
        if record.pod is None:
            return
        if record.shape_epoch == self.interest.epoch and self.shapes.same_claims(record.pod, record.shape):
            return
        shape = self.shapes.of(record.pod)
        if shape is not record.shape:
            self.shapes.keep(shape)
            self.shapes.drop(record.shape)
            record.shape = shape
        record.shape_epoch = self.interest.epoch

    def next_wake(self) -> float | None:
        """Return the time at which to call `step` again if no event arrives. A time not after `now` means at once."""
        if self.outbox.decisions or self.groups.busy or self.queue.has_active():
            return self.cluster.now
        protection = self.preemption.victim_index.minimum_runtime
        tables = (
            self._binding,
            self.queue,
            self._status_writes,
            self.groups.room,
            self.groups.members.health,
            protection,
            self.maintenance,
            self.rejections,
            self.scheduler.evictions,
            self.starts,
            self.places,
        )
        ahead = [table.next_time() for table in tables]
        return min((due for due in ahead if due is not None), default=None)

    @property
    def unseen_binds(self) -> bool:
        """Return True if a pod is about to be bound, or is bound but not yet shown by an informer.

        A pod that waits for a plugin (Permit, PreBind), perhaps for minutes, does not count once its node is written.
        """
        held = sum(each.stage != LATER for each in self.pod_lifecycle.holding.values())
        return len(self.pod_lifecycle.unit_of) > held or not self._binding.all_announced

    def validate(self) -> None:
        """Raise AssertionError if the state is inconsistent. For tests only: it rebuilds all derived state."""
        validate(self.scheduler)
