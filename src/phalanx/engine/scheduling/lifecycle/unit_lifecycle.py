"""The lifecycle of a scheduling unit: its states, the table of transitions, and the only code that changes a state.

A unit with pending pods is held, queued or evicting. A group without pending pods is committing or scheduled. The data
of a state changes only here: the gate of a held unit, the plan of an evicting unit, the units that wait for each
victim, evicted pods, and whether the queue holds the unit. Its position in the queue belongs to the queue. Transitions
of groups are written to the history.
"""

from __future__ import annotations

from typing import NamedTuple

from phalanx.engine.framework import ClusterChange, Wake
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.scheduling.lifecycle.history import History
from phalanx.engine.scheduling.lifecycle.transitions import IllegalTransitions, Transition
from phalanx.engine.scheduling.queue.units import (
    NO_GATE,
    Gate,
    PreemptionInProgress,
    QueueName,
    SchedulingUnit,
    UnitQueue,
    UnitState,
)
from phalanx.engine.state.records import PodRecord

HELD, QUEUED, EVICTING = UnitState.HELD, UnitState.QUEUED, UnitState.EVICTING
COMMITTING, SCHEDULED, NONE = UnitState.COMMITTING, UnitState.SCHEDULED, UnitState.NONE

EVICTION_TIMEOUT = 600.0  # seconds; a victim that does not terminate must not block its preemptor for ever


class Eviction(NamedTuple):
    """A pod for which an Evict was decided."""

    uid: str
    decision: int
    at: float  # seconds


class UnitLifecycle:
    def __init__(self, state: ClusterState, queue: UnitQueue, history: History, illegal: IllegalTransitions) -> None:
        self._cluster = state
        self.queue = queue
        self.history = history
        history.exists = lambda key: key in state.records or self.of(key) is not NONE
        self.illegal = illegal
        self.placed: dict[str, UnitState] = {}  # groups without pending pods, by unit key: committing or scheduled
        self._waited_for: dict[str, dict[str, SchedulingUnit]] = {}  # victim (pod key) -> units by key
        self._evictions: dict[str, Eviction] = {}  # pod key -> its eviction, while the pod exists
        self._by_decision: dict[int, str] = {}  # Evict without an outcome -> pod key

    def of(self, key: str) -> UnitState:
        unit = self.queue.units.get(key)
        return unit.state if unit is not None else self.placed.get(key, NONE)

    def waiting(self, key: str) -> SchedulingUnit | None:
        """Return the unit with this key if it has pending pods."""
        return self.queue.units.get(key)

    def create(self, kind: str, key: str, created: float, order: int) -> SchedulingUnit:
        """Create a unit for pending pods of a group. The caller then holds or queues it."""
        unit = SchedulingUnit(kind, key, 0, created, order, self.placed.pop(key, NONE))
        self.queue.units[key] = unit
        return unit

    # ---- transitions

    def _transition(
        self,
        unit: SchedulingUnit,
        state: UnitState,
        detail: str = "",
        *,
        gate: Gate = NO_GATE,
        plan: PreemptionInProgress | None = None,
    ) -> None:
        """Make a transition of the table. No other code changes the state, gate or plan of a unit."""
        before = unit.state
        transition = TRANSITIONS.get((before, state))
        if transition is None:
            self.illegal.add(unit.key, before, state)
            return
        unit.state = state
        transition.function(self, unit, gate, plan)
        if unit.kind != "Pod":  # the pod's lifecycle writes the history of a single pod
            self._note(unit.key, before, state, detail)

    def _note(self, key: str, before: UnitState, state: UnitState, detail: str = "") -> None:
        """Add a change of state to the history of a unit that was ever refused."""
        if before is not state and (state is HELD or state is EVICTING):
            self.history.note(key, state.value, detail)
        elif key not in self.history.notes_of:
            return  # most gangs are placed at once and have no history
        elif state is not NONE and (before is not state or detail):
            self.history.note(key, state.value, detail)

    def _wait(self, unit: SchedulingUnit, gate: Gate, plan: PreemptionInProgress | None) -> None:
        """Set the gate of a unit with pending pods; NO_GATE: it may be tried."""
        unit.gate = gate

    def _start_evicting(self, unit: SchedulingUnit, gate: Gate, plan: PreemptionInProgress | None) -> None:
        """Store the plan and its victims."""
        unit.gate, unit.plan = gate, plan
        for victim in plan.victims if plan is not None else ():
            self._waited_for.setdefault(victim, {})[unit.key] = unit

    def _keep_evicting(self, unit: SchedulingUnit, gate: Gate, plan: PreemptionInProgress | None) -> None:
        """Replace the plan if it changed; evictions decided before continue."""
        unit.gate = gate
        if plan is not None:
            self._drop_plan(unit)
            self._start_evicting(unit, gate, plan)

    def _stop_evicting(self, unit: SchedulingUnit, gate: Gate, plan: PreemptionInProgress | None) -> None:
        """Drop the plan: its victims are gone, or it cannot be carried out."""
        unit.gate = gate
        self._drop_plan(unit)

    def _settle(self, unit: SchedulingUnit, gate: Gate, plan: PreemptionInProgress | None) -> None:
        """Change nothing else: without pending pods there is neither a gate nor a plan."""

    def _drop_plan(self, unit: SchedulingUnit) -> None:
        plan, unit.plan = unit.plan, None
        for victim in plan.victims if plan is not None else ():
            waiting = self._waited_for.get(victim, {})
            waiting.pop(unit.key, None)
            if not waiting:
                self._waited_for.pop(victim, None)

    # ---- waiting

    def notify(self, unit: SchedulingUnit, what: str, detail: str) -> None:
        """Write a history entry without a change of state."""
        self.history.note(unit.key, what, detail)

    def hold(self, unit: SchedulingUnit, plugin: str, message: str) -> None:
        """Hold a unit: objects or members are missing, or a gate is closed. Its preemption is dropped."""
        self.queue.gate(unit)
        self._transition(unit, HELD, message, gate=(plugin, message))

    def admit(self, unit: SchedulingUnit) -> None:
        """Queue a unit as active."""
        self._transition(unit, EVICTING if unit.state is EVICTING else QUEUED)  # a preemption in progress continues
        self.queue.activate(unit)

    def back_off(self, unit: SchedulingUnit, gate: Gate | None = None) -> None:
        """Queue a unit after a backoff. `gate`: PreEnqueue failed and is called again first."""
        after = EVICTING if unit.state is EVICTING else QUEUED
        self._transition(unit, after, gate=unit.gate if gate is None else gate)
        self.queue.back_off(unit, self._cluster.now)

    # ---- preemption in progress

    def plan_of(self, key: str) -> PreemptionInProgress | None:
        unit = self.queue.units.get(key)
        return unit.plan if unit is not None else None

    def is_valid(self, plan: PreemptionInProgress | None) -> bool:
        """Return True if the plan can still be carried out, so that no other one is needed."""
        if plan is None or self._cluster.now - plan.since > EVICTION_TIMEOUT:
            return False
        return all(node in self._cluster.columns.row_of for node in plan.nodes)

    def in_progress(self, key: str) -> bool:
        """Return True if a unit waits for victims of a valid plan."""
        return self.is_valid(self.plan_of(key))

    def expects(self, key: str, change: ClusterChange) -> bool:
        """Return True if a change is a step of the unit's own plan: the unit is tried only after the last step."""
        plan = self.plan_of(key)
        if plan is None or change.row < 0 or change.kind & Wake.NODE:
            return False
        return self._cluster.columns.names[change.row] in plan.nodes

    def evict(self, unit: SchedulingUnit, plan: PreemptionInProgress) -> None:
        """Wait for victims. An earlier plan is dropped; its evictions continue."""
        self._transition(unit, EVICTING, f"{plan.size} {'pod has' if plan.size == 1 else 'pods have'} to go", plan=plan)

    def give_up(self, unit: SchedulingUnit) -> None:
        if unit.state is EVICTING:
            self._transition(unit, QUEUED)

    def drop_stale_plan(self, unit: SchedulingUnit) -> None:
        """Drop a plan that can no longer be carried out; called before an attempt."""
        if unit.plan is not None and not self.is_valid(unit.plan):
            self.give_up(unit)

    def is_evicted(self, record: PodRecord) -> bool:
        """Return True if an Evict of this pod was decided recently."""
        eviction = self._evictions.get(record.key)
        if eviction is None or eviction.uid != record.uid:
            return False
        return self._cluster.now - eviction.at <= EVICTION_TIMEOUT

    def evicted(self, record: PodRecord, decision: int) -> None:
        before = self._evictions.get(record.key)
        if before is not None:
            self._by_decision.pop(before.decision, None)  # it has no outcome
        self._evictions[record.key] = Eviction(record.uid, decision, self._cluster.now)
        self._by_decision[decision] = record.key

    def eviction_answered(self, decision: int, problem: str) -> None:
        """Handle the outcome of an Evict. A refusal makes all plans impossible that wait for the pod."""
        pod = self._by_decision.pop(decision, None)
        if pod is None or not problem:
            return
        del self._evictions[pod]
        # With a backoff: the same plan would be found and refused again at once.
        for unit in list(self._waited_for.get(pod, {}).values()):
            self._transition(unit, QUEUED, gate=unit.gate)
            if unit.queue_name in (QueueName.WAITING, QueueName.BACKOFF):
                self.queue.back_off(unit, self._cluster.now)

    def is_victim(self, pod: str) -> bool:
        return pod in self._waited_for

    def pod_gone(self, record: PodRecord) -> None:
        """Handle a deleted or finished pod. A unit is tried at once after its last victim."""
        eviction = self._evictions.pop(record.key, None)
        if eviction is not None:
            self._by_decision.pop(eviction.decision, None)
        for unit in list(self._waited_for.pop(record.key, {}).values()):
            assert unit.plan is not None
            del unit.plan.victims[record.key]
            if not unit.plan.victims:
                self._transition(unit, QUEUED)
                if unit.queue_name in (QueueName.WAITING, QueueName.BACKOFF):
                    self.queue.activate(unit)

    # ---- without pending pods

    def commit(self, unit: SchedulingUnit, pods: int) -> None:
        """Record that this many pods of a unit are about to be assumed; the others stay pending."""
        if pods < len(unit.records):
            self.history.follow(unit.key, COMMITTING.value, f"{pods} pods")
        else:
            self._transition(unit, COMMITTING, f"{pods} pods")

    def leave(self, unit: SchedulingUnit) -> None:
        """Handle a unit whose pods all have a node or are gone."""
        self.queue.remove(unit)
        if unit.state is COMMITTING:
            self.placed[unit.key] = COMMITTING
        elif unit.state is not NONE:
            self._transition(unit, NONE)

    def settle(self, key: str, state: UnitState) -> None:
        """Set the state of a group without pending pods: COMMITTING, SCHEDULED or NONE."""
        before = self.placed.get(key, NONE)
        if before is not state and (before, state) not in TRANSITIONS:
            self.illegal.add(key, before, state)
            return
        if state is NONE:
            self.placed.pop(key, None)
        else:
            self.placed[key] = state
        self._note(key, before, state)

    def validate(self) -> None:
        waited_for: dict[str, set[str]] = {}
        for key, unit in self.queue.units.items():
            assert unit.state in (HELD, QUEUED, EVICTING), f"{unit} has pending pods but is {unit.state.value}"
            assert (unit.state is HELD) == (unit.queue_name is QueueName.GATED), f"{unit} is {unit.state.value}"
            assert (unit.state is EVICTING) == (unit.plan is not None), f"{unit} is {unit.state.value}"
            assert key not in self.placed, f"{unit} has pending pods but is {self.placed[key].value}"
            for victim in unit.plan.victims if unit.plan is not None else ():
                waited_for.setdefault(victim, set()).add(key)
        assert {pod: set(units) for pod, units in self._waited_for.items()} == waited_for, "victims, by pod"
        for pod, units in self._waited_for.items():
            for key, unit in units.items():
                assert self.queue.units.get(key) is unit, f"{key} waits for victim {pod} but is gone"
        assert all(state in (COMMITTING, SCHEDULED) for state in self.placed.values())
        for number, pod in self._by_decision.items():
            assert self._evictions[pod].decision == number, f"eviction {number} of {pod}"
        for pod, eviction in self._evictions.items():
            record = self._cluster.records.get(pod)
            assert record is not None and record.uid == eviction.uid, f"{pod} was evicted but is gone"


_L = UnitLifecycle
TRANSITIONS: dict[tuple[UnitState, UnitState], Transition] = {
    (NONE, HELD): Transition(_L._wait, "pods arrive; objects, members or gates missing"),
    (NONE, QUEUED): Transition(_L._wait, "pods arrive"),
    (NONE, COMMITTING): Transition(_L._settle, "members found on nodes"),
    (NONE, SCHEDULED): Transition(_L._settle, "members found on nodes"),
    (HELD, HELD): Transition(_L._wait, "another reason"),
    (HELD, QUEUED): Transition(_L._wait, "admitted"),
    (HELD, NONE): Transition(_L._settle, "pods deleted"),
    (QUEUED, QUEUED): Transition(_L._wait, "tried again"),
    (QUEUED, HELD): Transition(_L._wait, "no longer admitted"),
    (QUEUED, EVICTING): Transition(_L._start_evicting, "preemption found victims"),
    (QUEUED, COMMITTING): Transition(_L._settle, "placed"),
    (QUEUED, NONE): Transition(_L._settle, "single pod placed, or pods deleted"),
    (EVICTING, EVICTING): Transition(_L._keep_evicting, "another plan"),
    (EVICTING, QUEUED): Transition(_L._stop_evicting, "victims gone, or plan impossible"),
    (EVICTING, HELD): Transition(_L._stop_evicting, "no longer admitted"),
    (EVICTING, COMMITTING): Transition(_L._stop_evicting, "placed"),
    (EVICTING, NONE): Transition(_L._stop_evicting, "single pod placed, or pods deleted"),
    (COMMITTING, SCHEDULED): Transition(_L._settle, "binds of the minimum confirmed"),
    (COMMITTING, QUEUED): Transition(_L._wait, "a bind failed, or pods arrive"),
    (COMMITTING, HELD): Transition(_L._wait, "a bind failed, and members are missing"),
    (COMMITTING, NONE): Transition(_L._settle, "members deleted"),
    (SCHEDULED, QUEUED): Transition(_L._wait, "members replaced or added"),
    (SCHEDULED, HELD): Transition(_L._wait, "members replaced, and others are missing"),
    (SCHEDULED, COMMITTING): Transition(_L._settle, "members replaced"),
    (SCHEDULED, NONE): Transition(_L._settle, "members deleted"),
}
