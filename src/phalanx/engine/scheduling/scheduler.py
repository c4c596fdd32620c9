"""The scheduler's parts and how they hang together. `Engine` tells it what happened; questions read it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from phalanx.base.errors import ConfigProblem
from phalanx.engine import decisions as d
from phalanx.engine.decisions import Decision
from phalanx.engine.framework import Factory, Handle
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.framework.profile import Profile, third_party
from phalanx.engine.framework.settings import EngineSettings
from phalanx.engine.groups.conditions import GroupConditions
from phalanx.engine.groups.workload_status import WorkloadStatuses
from phalanx.engine.plugins.registry import Indexes, builtin
from phalanx.engine.preemption.catalogue import Catalogue
from phalanx.engine.scheduling.admission import Admission
from phalanx.engine.scheduling.attempt import Attempts
from phalanx.engine.scheduling.binding import Binding
from phalanx.engine.scheduling.commits import Commits
from phalanx.engine.scheduling.evictions import Evictions
from phalanx.engine.scheduling.group_cycle import GroupCycle
from phalanx.engine.scheduling.group_preemption import GroupPreemption
from phalanx.engine.scheduling.group_roots import Groups
from phalanx.engine.scheduling.lifecycle import Lifecycle
from phalanx.engine.scheduling.members import Members
from phalanx.engine.scheduling.pod_cycle import PodCycle
from phalanx.engine.scheduling.pod_preemption import PodPreemption
from phalanx.engine.scheduling.pod_status import PodStatus
from phalanx.engine.scheduling.pods import Pods
from phalanx.engine.scheduling.queue import Queue, by_priority
from phalanx.engine.scheduling.reminders import Reminders
from phalanx.engine.scheduling.room_to_come import RoomToCome
from phalanx.engine.scheduling.root_lives import RootLives
from phalanx.engine.scheduling.roots import Root
from phalanx.engine.scheduling.searches import Searches
from phalanx.engine.scheduling.stories import Stories
from phalanx.engine.scheduling.waiting import Waiting
from phalanx.engine.state.sieve import Sieve
from phalanx.model.gates import Gates

Watch = Callable[[str, Factory], Factory]  # by name

# Decisions whose outcome means something to the engine.
_ANSWERED = frozenset({
    d.Bind, d.Nominate, d.Evict, d.SetPodCondition, d.SetGroupCondition, d.BindVolume, d.ProvisionVolume,
})  # fmt: skip


class Scheduler:
    def __init__(
        self, settings: EngineSettings, gates: Gates, plugins: Mapping[str, Factory], watch: Watch | None = None
    ) -> None:
        self.settings = settings
        self.gates = gates
        self.faults: deque[str] = deque(maxlen=100)  # of plugins, where no pod could be told; for logs
        self._last_id = 0
        self._out: list[Decision] = []
        self._awaited: dict[int, Decision] = {}
        self.cluster = state = ClusterState(settings, gates)
        self.columns, self.objects, self.interest = state.columns, state.objects, state.interest
        self.shapes, self.evaluations, self.nominations = state.shapes, state.evaluations, state.nominations
        self.profiles = state.profiles
        self.indexes = Indexes.of(state.columns, state.objects, state.interest)
        self._make_profiles(plugins, watch)
        self.queue = self._make_queue()
        queue, emit = self.queue, self.emit
        self.stories = Stories(state)
        reminders = self.reminders = Reminders(state)
        status = self.status = PodStatus(state, queue, self.stories, reminders, emit)
        catalogue = Catalogue(state)
        conditions = GroupConditions(emit)
        commits = Commits(state, conditions, emit)
        lives = self.lives = RootLives(state, queue, self.stories)
        self.evictions = Evictions(state, queue, lives, emit)
        self.preemption = PodPreemption(state, catalogue, self.evictions, status, emit)
        self.group_preemption = GroupPreemption(state, catalogue, self.evictions, status, emit)
        self.attempts = Attempts(state, self.preemption, self.group_preemption, commits)
        self.searches = Searches(state, self.attempts, self.group_preemption)
        queue.heard = self.searches.heard
        waiting = Waiting(state, queue, self.preemption)
        members = Members(state, queue, lives, conditions, WorkloadStatuses(state.forest, emit), commits, reminders)
        self.life = Lifecycle(state, queue, waiting, members, self.stories, lives, self.evictions)
        self.pods = Pods(state, queue, self.life, lives, members, status, catalogue)
        self.binding = Binding(state, self.life, lives, members, self.pods, status, emit)
        self.pod_cycle = PodCycle(
            state, queue, lives, self.attempts, self.binding, self.preemption, self.evictions, waiting, status, emit
        )
        room = RoomToCome(state, queue, members)
        group_cycle = GroupCycle(
            state,
            queue,
            members,
            self.life,
            lives,
            self.binding,
            self.attempts,
            self.searches,
            self.group_preemption,
            self.evictions,
            room,
            waiting,
            status,
            emit,
        )
        admission = Admission(members, self.pods, status, lives)
        self.groups = Groups(state, queue, members, self.evictions, lives, admission, room, group_cycle)
        self._observers = [o for p in self.profiles.values() for o in p.observers]
        self._listeners = [
            plugin for p in self.profiles.values() for plugin in p.plugins.values() if hasattr(plugin, "outcome")
        ]

    def _make_profiles(self, more: Mapping[str, Factory], watch: Watch | None) -> None:
        ours = builtin(self.indexes)
        registry: dict[str, Factory] = {**ours, **more}
        named = {use.name for profile in self.settings.profiles for use in profile.plugins}
        registry.update(third_party(named - registry.keys()))
        if watch is not None:
            theirs = {name: make for name, make in registry.items() if ours.get(name) is not make}
            registry.update({name: watch(name, make) for name, make in theirs.items()})
        state = self.cluster
        for settings in self.settings.profiles:
            name = settings.scheduler_name
            if name in self.profiles:
                raise ConfigProblem("profiles", f"scheduler name {name!r} is used twice")
            handle = Handle(state.columns, state.objects, state.interest, state.gates, state.forest, name)
            profile = self.profiles[name] = Profile(settings, registry, handle)
            self.shapes.signers += [(plugin.name, plugin.sign) for plugin in profile.signers]
        state.columns.keep_all()

    def _make_queue(self) -> Queue:
        sort = next((p.queue_sort for p in self.profiles.values() if p.queue_sort is not None), None)
        return Queue(
            Sieve(self.columns),
            sort.sort_key if sort is not None else by_priority,
            readmit=self._readmit,
            gatekeepers={name: wakes for p in self.profiles.values() for name, wakes in p.gatekeepers.items()},
            initial_backoff=self.settings.initial_backoff,
            max_backoff=self.settings.max_backoff,
            flush_after=self.settings.flush_after,
        )

    def _readmit(self, root: Root) -> None:
        if root.kind == "Pod":
            self.pods.admit(root)
        else:
            self.groups.admit(root)

    def emit(self, cls: type[Any], **fields: Any) -> int:
        """Make a decision; returns its id."""
        self._last_id += 1
        decision = cls(id=self._last_id, **fields)
        self._out.append(decision)
        if cls in _ANSWERED:
            self._awaited[self._last_id] = decision
            if cls is d.Nominate:
                self.pods.nominating[f"{decision.namespace}/{decision.name}"] = decision.id
        return self._last_id
