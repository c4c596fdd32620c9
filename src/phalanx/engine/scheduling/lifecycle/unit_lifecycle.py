"""The life of a root: its state, the transitions there are, and the only place that makes them.

A root that has pending pods is held, queued or evicting; a group of which nobody waits is committing or scheduled. What
goes with a state changes here and nowhere else: the gate of a held root, the plan of an evicting one, who waits for
which victim, and whether the queue has it at all. Where in the queue it waits is the queue's business. What happened is
told to the group's story.
"""

from __future__ import annotations

from collections import deque

from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.scheduling.lifecycle.history import History
from phalanx.engine.scheduling.queue.queue import Queue
from phalanx.engine.scheduling.queue.units import PreemptionInProgress, QueueName, SchedulingUnit, UnitState

HELD, QUEUED, EVICTING = UnitState.HELD, UnitState.QUEUED, UnitState.EVICTING
COMMITTING, SCHEDULED, NONE = UnitState.COMMITTING, UnitState.SCHEDULED, UnitState.NONE

TRANSITIONS: dict[UnitState, frozenset[UnitState]] = {
    # Whoever waited is gone or has a node, and what is left of the group is placed.
    NONE: frozenset({HELD, QUEUED, COMMITTING, SCHEDULED}),
    HELD: frozenset({QUEUED, NONE}),
    QUEUED: frozenset({HELD, EVICTING, COMMITTING, NONE}),
    # Back to the queue: the victims are gone, or will not go.
    EVICTING: frozenset({QUEUED, HELD, COMMITTING, NONE}),
    # Back to the queue: somebody was refused on the way, or a bind failed.
    COMMITTING: frozenset({SCHEDULED, QUEUED, HELD, NONE}),
    # A gang that lost members, or got more, is tried again.
    SCHEDULED: frozenset({QUEUED, HELD, COMMITTING, NONE}),
}


class UnitLifecycle:
    def __init__(self, state: ClusterState, queue: Queue, history: History) -> None:
        self._cluster = state
        self._queue = queue
        self._history = history
        self.placed: dict[str, UnitState] = {}  # group roots of which nobody waits, by key: committing or scheduled
        self._waited_for: dict[str, dict[str, SchedulingUnit]] = {}  # victim (pod key) -> roots by key
        self.impossible: deque[str] = deque(maxlen=100)  # transitions that are not in the table: our own mistakes

    def of(self, key: str) -> UnitState:
        unit = self._queue.units.get(key)
        return unit.state if unit is not None else self.placed.get(key, NONE)

    def waiting(self, key: str) -> SchedulingUnit | None:
        """The root of that key, if pods of it are pending."""
        return self._queue.units.get(key)

    def plan_of(self, key: str) -> PreemptionInProgress | None:
        unit = self._queue.units.get(key)
        return unit.plan if unit is not None else None

    def _to(self, unit: SchedulingUnit, state: UnitState, detail: str = "") -> None:
        """The only way a state changes."""
        before = unit.state
        if before is EVICTING:
            self._drop_plan(unit)
        unit.state = state
        if unit.kind == "Pod":
            if before is not state and state not in TRANSITIONS[before]:
                self._mistake(unit.key, before, state)
            return  # its story is told by the pod's own life
        self._moved(unit.key, before, state, detail)

    def _moved(self, key: str, before: UnitState, state: UnitState, detail: str = "") -> None:
        if before is state:
            if detail:
                self._history.follow(key, state.value, detail)
            return
        if state not in TRANSITIONS[before]:
            self._mistake(key, before, state)
        if state is HELD or state is EVICTING:
            self._history.note(key, state.value, detail)
        elif state is not NONE:  # most gangs are placed at once and need no story
            self._history.follow(key, state.value, detail)

    def _mistake(self, key: str, before: UnitState, state: UnitState) -> None:
        self.impossible.append(f"{key}: {before.value} to {state.value}")

    def tell(self, unit: SchedulingUnit, what: str, detail: str) -> None:
        """Something happened that does not change its state."""
        self._history.note(unit.key, what, detail)

    # ---- waiting

    def appear(self, unit: SchedulingUnit) -> None:
        """Pods of a group are pending, and none of it was before. It has to be held or queued next."""
        unit.state = self.placed.pop(unit.key, NONE)
        self._queue.units[unit.key] = unit

    def hold(self, unit: SchedulingUnit, plugin: str, message: str) -> None:
        """It may not be tried: objects or members are missing, or a gate is closed. Room is no longer made for it."""
        self._queue.gate(unit, plugin, message)
        self._to(unit, HELD, message)

    def admit(self, unit: SchedulingUnit) -> None:
        """It may be tried now."""
        self._wait(unit)
        self._queue.activate(unit)

    def back_off(self, unit: SchedulingUnit) -> None:
        """It may be tried after a while."""
        self._wait(unit)
        self._queue.back_off(unit, self._cluster.now)

    def _wait(self, unit: SchedulingUnit) -> None:
        if unit.state is not QUEUED and unit.state is not EVICTING:  # room that is being made is waited for
            self._to(unit, QUEUED)

    # ---- making room

    def evict(self, unit: SchedulingUnit, plan: PreemptionInProgress) -> None:
        """Pods have to go before it fits; a plan it had before is forgotten. Who was sent away stays sent."""
        self._to(unit, EVICTING, f"{plan.size} {'pod has' if plan.size == 1 else 'pods have'} to go")
        unit.plan = plan
        for victim in plan.victims:
            self._waited_for.setdefault(victim, {})[unit.key] = unit

    def give_up(self, unit: SchedulingUnit) -> None:
        """Its plan cannot come true."""
        if unit.state is EVICTING:
            self._to(unit, QUEUED)

    def victim_gone(self, pod: str) -> None:
        """Whose last victim this was is tried at once."""
        for unit in list(self._waited_for.pop(pod, {}).values()):
            assert unit.plan is not None
            del unit.plan.victims[pod]
            if not unit.plan.victims:
                self._room(unit)

    def victim_stays(self, pod: str) -> None:
        """It will not go: plans that wait for it cannot come true. Those who made them look again after a while: at
        once they would find the same plan, and whoever refused it would be asked without end."""
        for unit in list(self._waited_for.get(pod, {}).values()):
            self._to(unit, QUEUED)
            if unit.place in (QueueName.WAITING, QueueName.BACKOFF):
                self._queue.back_off(unit, self._cluster.now)

    def is_victim(self, pod: str) -> bool:
        return pod in self._waited_for

    def _room(self, unit: SchedulingUnit) -> None:
        self._to(unit, QUEUED)
        if unit.place in (QueueName.WAITING, QueueName.BACKOFF):
            self._queue.activate(unit)

    def _drop_plan(self, unit: SchedulingUnit) -> None:
        plan, unit.plan = unit.plan, None
        for victim in plan.victims if plan is not None else ():
            waiting = self._waited_for.get(victim, {})
            waiting.pop(unit.key, None)
            if not waiting:
                self._waited_for.pop(victim, None)

    # ---- nobody of it waits

    def commit(self, unit: SchedulingUnit, pods: int) -> None:
        """So many of its pods are about to be assumed. If some are left they wait as before."""
        if pods < len(unit.records):
            self._history.follow(unit.key, COMMITTING.value, f"{pods} pods")
        else:
            self._to(unit, COMMITTING, f"{pods} pods")

    def leave(self, unit: SchedulingUnit) -> None:
        """All its pods have a node, or are gone."""
        self._queue.remove(unit)
        if unit.state is COMMITTING:
            self.placed[unit.key] = COMMITTING
        elif unit.state is not NONE:
            self._to(unit, NONE)

    def settle(self, key: str, state: UnitState) -> None:
        """What is known of a group of which nobody waits: COMMITTING, SCHEDULED or nothing."""
        before = self.placed.get(key, NONE)
        self._moved(key, before, state)
        if state is NONE:
            self.placed.pop(key, None)
        else:
            self.placed[key] = state

    def validate(self) -> None:
        assert not self.impossible, f"transitions that do not exist: {list(self.impossible)}"
        waited_for: dict[str, set[str]] = {}
        for key, unit in self._queue.units.items():
            assert unit.state in (HELD, QUEUED, EVICTING), f"{unit} waits, and is {unit.state.value}"
            assert (unit.state is HELD) == (unit.place is QueueName.GATED), f"{unit} is {unit.state.value}"
            assert (unit.state is EVICTING) == (unit.plan is not None), f"{unit} is {unit.state.value}"
            assert key not in self.placed, f"{unit} waits, and is {self.placed[key].value}"
            for victim in unit.plan.victims if unit.plan is not None else ():
                waited_for.setdefault(victim, set()).add(key)
        assert {pod: set(units) for pod, units in self._waited_for.items()} == waited_for, "victims, by pod"
        for pod, units in self._waited_for.items():
            for key, unit in units.items():
                assert self._queue.units.get(key) is unit, f"{key} waits for {pod} to go, and is gone"
        assert all(state in (COMMITTING, SCHEDULED) for state in self.placed.values())
