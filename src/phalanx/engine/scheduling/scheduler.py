"""Build the parts of the scheduler and connect them. `Engine` passes events to them; queries read them."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from phalanx.base.errors import ConfigProblem
from phalanx.engine import decisions as d
from phalanx.engine.decisions import Decision
from phalanx.engine.framework import Factory, Handle
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.framework.options import ObservesOutcomes
from phalanx.engine.framework.profile import Profile, third_party
from phalanx.engine.framework.settings import EngineSettings
from phalanx.engine.framework.traits import traits_of
from phalanx.engine.groups.conditions import GroupConditions
from phalanx.engine.groups.losses import Losses
from phalanx.engine.groups.statuses import Statuses
from phalanx.engine.plugins.registry import Indexes, builtin, plugins_of
from phalanx.engine.preemption.victim_index import VictimIndex
from phalanx.engine.scheduling.attempt.attempt import Attempts
from phalanx.engine.scheduling.attempt.preemption import Preemption
from phalanx.engine.scheduling.attempt.sliced_attempts import SlicedAttempts
from phalanx.engine.scheduling.commit.admission import UnitAdmission
from phalanx.engine.scheduling.commit.admitted_places import AdmittedPlaces
from phalanx.engine.scheduling.commit.binding import Binding
from phalanx.engine.scheduling.commit.cycle import Cycle
from phalanx.engine.scheduling.commit.evictions import Evictions
from phalanx.engine.scheduling.commit.group_reservations import GroupReservations
from phalanx.engine.scheduling.commit.group_units import GroupUnits
from phalanx.engine.scheduling.commit.maintenance import Maintenance
from phalanx.engine.scheduling.commit.refusals import Refusals
from phalanx.engine.scheduling.commit.start_reservations import StartReservations
from phalanx.engine.scheduling.lifecycle.gang_commits import GangCommits
from phalanx.engine.scheduling.lifecycle.history import History
from phalanx.engine.scheduling.lifecycle.isolation import Isolation
from phalanx.engine.scheduling.lifecycle.members import Members
from phalanx.engine.scheduling.lifecycle.pod_lifecycle import PodLifecycle
from phalanx.engine.scheduling.lifecycle.pod_status import PendingWrites, PodStatusWriter
from phalanx.engine.scheduling.lifecycle.pods import Pods
from phalanx.engine.scheduling.lifecycle.rejections import Rejections
from phalanx.engine.scheduling.lifecycle.transitions import IllegalTransitions
from phalanx.engine.scheduling.lifecycle.unit_lifecycle import UnitLifecycle
from phalanx.engine.scheduling.queue.queue import Queue, by_priority
from phalanx.engine.scheduling.queue.units import QueueTimes, SchedulingUnit, UnitState
from phalanx.engine.scheduling.queue.waiting import Waiting
from phalanx.engine.state.capacity_index import CapacityIndex
from phalanx.engine.state.records import PodRecord
from phalanx.model.gates import Gates
from phalanx.model.groups import GroupKey

Watch = Callable[[str, Factory], Factory]  # by name

# Decisions whose outcomes the engine handles.
_ANSWERED = frozenset({
    d.Bind, d.Nominate, d.Evict, d.SetPodCondition, d.SetGroupCondition, d.BindVolume, d.ProvisionVolume,
    d.ReserveClaim, d.ReleaseClaim, d.CreateExtendedClaim,
})  # fmt: skip


def _observes(plugin: ObservesOutcomes, decision: type) -> bool:
    wanted = traits_of(plugin).outcomes
    return wanted is None or decision in wanted


class Outbox:
    """Decisions since the last step, and decisions without an outcome yet."""

    def __init__(self) -> None:
        self.last_id = 0
        self.decisions: list[Decision] = []
        self._awaited: dict[int, Decision] = {}
        self.nominating: dict[str, int] = {}  # pod key -> Nominate decision without an outcome yet

    def emit(self, cls: type[Any], **fields: Any) -> int:
        """Make a decision; return its id."""
        self.last_id += 1
        decision = cls(id=self.last_id, **fields)
        self.decisions.append(decision)
        if cls in _ANSWERED:
            self._awaited[self.last_id] = decision
            if cls is d.Nominate:
                self.nominating[f"{decision.namespace}/{decision.name}"] = decision.id
        return self.last_id

    def take(self) -> list[Decision]:
        taken, self.decisions = self.decisions, []
        return taken

    def answered(self, number: int) -> Decision | None:
        """Return the decision of an outcome; None: it has its outcome already, or needs none."""
        decision = self._awaited.pop(number, None)
        if type(decision) is d.Nominate:
            key = f"{decision.namespace}/{decision.name}"
            if self.nominating.get(key) == number:
                del self.nominating[key]
        return decision


class Scheduler:
    """The parts of the scheduler, built and connected."""

    def __init__(
        self, settings: EngineSettings, gates: Gates, plugins: Mapping[str, Factory], watch: Watch | None = None
    ) -> None:
        self.settings = settings
        self.gates = gates
        self.faults: deque[str] = deque(maxlen=100)  # of plugins, without a pod to report them on; for logs
        self.outbox = Outbox()
        self.cluster = state = ClusterState(settings, gates)
        self.columns, self.objects, self.interest = state.columns, state.objects, state.interest
        self.shapes, self.evaluations, self.nominations = state.shapes, state.evaluations, state.nominations
        self.profiles = state.profiles
        self.indexes = Indexes.of(state.columns, state.objects, state.interest, gates)
        state.devices, state.shapes.uses_of = self.indexes.devices, self.indexes.claims.of
        self._make_profiles(plugins, watch)
        self.queue = self._make_queue()
        queue, emit = self.queue, self.outbox.emit
        isolation = self.isolation = Isolation(emit)
        self.history = History(state)
        status_writes = self.status_writes = PendingWrites(state)
        status = self.status = PodStatusWriter(state, self.history, status_writes, emit)
        victim_index = VictimIndex(state)
        conditions = GroupConditions(emit)
        commits = GangCommits(state, conditions, emit)
        illegal = self.illegal_transitions = IllegalTransitions(strict=settings.strict_transitions or Isolation.strict)
        unit_lifecycle = self.unit_lifecycle = UnitLifecycle(state, queue, self.history, illegal)
        self.preemption = Preemption(state, victim_index, unit_lifecycle.in_progress)
        self.attempts = Attempts(state, self.preemption, commits)
        self.searches = SlicedAttempts(state, self.attempts, self.preemption)
        queue.on_change = self.searches.note_change
        waiting = Waiting(state, queue, victim_index)
        losses = Losses()
        members = Members(
            state, unit_lifecycle, conditions, Statuses(state, conditions, losses, emit), commits, status_writes
        )
        pods = self.pod_lifecycle = PodLifecycle(state, queue, members, unit_lifecycle, waiting.placed, emit)
        self.rejections = Rejections(state, members, emit)
        self.pods = Pods(state, pods, members, status, victim_index, self.rejections)
        evictions = self.evictions = Evictions(state, victim_index, unit_lifecycle, pods, losses, emit)
        self.binding = Binding(state, pods, members, status, emit, self.pods.back)
        room = GroupReservations(state, pods, members)
        self.maintenance = Maintenance(state, members, pods, room, emit)
        self.starts = StartReservations(state, queue, pods, unit_lifecycle, members, status)
        self.strict_order = self.starts.strict_order
        self.places = AdmittedPlaces(state, pods)
        refusals = Refusals(self.attempts, pods, members, waiting, status, self.starts)
        self.cycle = Cycle(self.searches, refusals, self.binding, evictions, room, self.rejections)
        admission = UnitAdmission(members, pods, status, self.pods.admit)
        self.groups = GroupUnits(state, members, unit_lifecycle, admission, room, isolation)
        state.contested = self._contested
        pods.nominating = self.outbox.nominating
        self.observers = [o for p in self.profiles.values() for o in p.observers]
        # By type of decision: every pod has a Bind, and few plugins read its outcome.
        self.outcome_observers: dict[type, list[ObservesOutcomes]] = {
            decision: [o for p in self.profiles.values() for o in p.outcome_observers if _observes(o, decision)]
            for decision in _ANSWERED
        }

    def _contested(self, group: GroupKey, priority: int) -> bool:
        """Return True if a waiting unit outside the group's tree, of that priority or higher, could use free room."""
        own = self.cluster.forest.root_of(group)
        waiting: list[PodRecord] = []
        for unit in self.queue.units.values():
            if unit.priority < priority or unit.group in (own, group) or unit.state is UnitState.HELD:
                continue
            for record in unit.records.values():
                if record.scheduler_name not in self.profiles:
                    continue
                if self.cluster.evaluation(record).feasible.any():
                    return True
                waiting.append(record)
        return bool(waiting) and self._room_comes(waiting)

    def _room_comes(self, waiting: Sequence[PodRecord]) -> bool:
        """Return True if terminating pods leave enough resources on a node for one of these pods."""
        alloc, used = self.columns.alloc_cell, self.columns.used_cell
        leaving: dict[int, defaultdict[int, float]] = {}
        for record in self.cluster.records.values():
            for rid, amount in record.shape.requests if record.terminating and record.row >= 0 else ():
                leaving.setdefault(record.row, defaultdict(float))[rid] += amount
        requests = {record.shape.requests for record in waiting} if leaving else ()
        return any(
            all(alloc[rid][row] - used[rid][row] + freed[rid] >= amount for rid, amount in asked)
            for row, freed in leaving.items()
            for asked in requests
        )

    def _make_profiles(self, more: Mapping[str, Factory], watch: Watch | None) -> None:
        ours = builtin(self.indexes)
        registry: dict[str, Factory] = {**ours, **more}
        profiles = [(profile, plugins_of(profile)) for profile in self.settings.profiles]
        named = {use.name for _, plugins in profiles for use in plugins}
        registry.update(third_party(named - registry.keys()))
        if watch is not None:
            theirs = {name: make for name, make in registry.items() if ours.get(name) is not make}
            registry.update({name: watch(name, make) for name, make in theirs.items()})
        state = self.cluster
        for settings, plugins in profiles:
            name = settings.scheduler_name
            if name in self.profiles:
                raise ConfigProblem("profiles", f"scheduler name {name!r} is used twice")
            handle = Handle(
                state.columns, state.objects, state.interest, state.gates, state.forest, name, self.outbox.emit
            )
            profile = self.profiles[name] = Profile(settings, plugins, registry, handle)
            self.shapes.on_evict.append(profile.forget)
            self.shapes.signers += [(plugin, signer.sign) for plugin, signer in profile.signers]
        state.columns.keep_all()

    def _make_queue(self) -> Queue:
        sort = next((p.queue_sort for p in self.profiles.values() if p.queue_sort is not None), None)
        return Queue(
            CapacityIndex(self.columns),
            sort.sort_key if sort is not None else by_priority,
            readmit=self._admit_again,
            gatekeepers={name: wakes for p in self.profiles.values() for name, wakes in p.gatekeepers.items()},
            times=QueueTimes(self.settings.initial_backoff, self.settings.max_backoff, self.settings.flush_after),
        )

    def _admit_again(self, unit: SchedulingUnit) -> None:
        if unit.kind == "Pod":
            self.pods.admit(unit)
        else:
            self.groups.admit(unit)
