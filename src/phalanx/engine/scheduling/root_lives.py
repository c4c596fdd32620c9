"""The life of a root: its state, the transitions there are, and the only place that makes them.

A root that has pending pods is held, queued or evicting; a group of which nobody waits is committing or scheduled. What
goes with a state changes here and nowhere else: the gate of a held root, the plan of an evicting one, who waits for
which victim, and whether the queue has it at all. Where in the queue it waits is the queue's business. What happened is
told to the group's story.
"""

from __future__ import annotations

from collections import deque

from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.scheduling.queue import Queue
from phalanx.engine.scheduling.roots import Place, Root, RootState, UnderWay
from phalanx.engine.scheduling.stories import Stories

HELD, QUEUED, EVICTING = RootState.HELD, RootState.QUEUED, RootState.EVICTING
COMMITTING, SCHEDULED, NONE = RootState.COMMITTING, RootState.SCHEDULED, RootState.NONE

TRANSITIONS: dict[RootState, frozenset[RootState]] = {
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


class RootLives:
    def __init__(self, state: ClusterState, queue: Queue, stories: Stories) -> None:
        self._cluster = state
        self._queue = queue
        self._stories = stories
        self.placed: dict[str, RootState] = {}  # group roots of which nobody waits, by key: committing or scheduled
        self._waited_for: dict[str, dict[str, Root]] = {}  # victim (pod key) -> roots by key
        self.impossible: deque[str] = deque(maxlen=100)  # transitions that are not in the table: our own mistakes

    def of(self, key: str) -> RootState:
        root = self._queue.roots.get(key)
        return root.state if root is not None else self.placed.get(key, NONE)

    def waiting(self, key: str) -> Root | None:
        """The root of that key, if pods of it are pending."""
        return self._queue.roots.get(key)

    def plan_of(self, key: str) -> UnderWay | None:
        root = self._queue.roots.get(key)
        return root.plan if root is not None else None

    def _to(self, root: Root, state: RootState, detail: str = "") -> None:
        """The only way a state changes."""
        before = root.state
        if before is EVICTING:
            self._drop_plan(root)
        root.state = state
        if root.kind == "Pod":
            if before is not state and state not in TRANSITIONS[before]:
                self._mistake(root.key, before, state)
            return  # its story is told by the pod's own life
        self._moved(root.key, before, state, detail)

    def _moved(self, key: str, before: RootState, state: RootState, detail: str = "") -> None:
        if before is state:
            if detail:
                self._stories.follow(key, state.value, detail)
            return
        if state not in TRANSITIONS[before]:
            self._mistake(key, before, state)
        if state is HELD or state is EVICTING:
            self._stories.note(key, state.value, detail)
        elif state is not NONE:  # most gangs are placed at once and need no story
            self._stories.follow(key, state.value, detail)

    def _mistake(self, key: str, before: RootState, state: RootState) -> None:
        self.impossible.append(f"{key}: {before.value} to {state.value}")

    def tell(self, root: Root, what: str, detail: str) -> None:
        """Something happened that does not change its state."""
        self._stories.note(root.key, what, detail)

    # ---- waiting

    def appear(self, root: Root) -> None:
        """Pods of a group are pending, and none of it was before. It has to be held or queued next."""
        root.state = self.placed.pop(root.key, NONE)
        self._queue.roots[root.key] = root

    def hold(self, root: Root, plugin: str, message: str) -> None:
        """It may not be tried: objects or members are missing, or a gate is closed. Room is no longer made for it."""
        self._queue.gate(root, plugin, message)
        self._to(root, HELD, message)

    def admit(self, root: Root) -> None:
        """It may be tried now."""
        self._wait(root)
        self._queue.activate(root)

    def back_off(self, root: Root) -> None:
        """It may be tried after a while."""
        self._wait(root)
        self._queue.back_off(root, self._cluster.now)

    def _wait(self, root: Root) -> None:
        if root.state is not QUEUED and root.state is not EVICTING:  # room that is being made is waited for
            self._to(root, QUEUED)

    # ---- making room

    def evict(self, root: Root, plan: UnderWay) -> None:
        """Pods have to go before it fits; a plan it had before is forgotten. Who was sent away stays sent."""
        self._to(root, EVICTING, f"{plan.size} {'pod has' if plan.size == 1 else 'pods have'} to go")
        root.plan = plan
        for victim in plan.victims:
            self._waited_for.setdefault(victim, {})[root.key] = root

    def give_up(self, root: Root) -> None:
        """Its plan cannot come true."""
        if root.state is EVICTING:
            self._to(root, QUEUED)

    def victim_gone(self, pod: str) -> None:
        """Whose last victim this was is tried at once."""
        for root in list(self._waited_for.pop(pod, {}).values()):
            assert root.plan is not None
            del root.plan.victims[pod]
            if not root.plan.victims:
                self._room(root)

    def victim_stays(self, pod: str) -> None:
        """It will not go: plans that wait for it cannot come true. Those who made them look again after a while: at
        once they would find the same plan, and whoever refused it would be asked without end."""
        for root in list(self._waited_for.get(pod, {}).values()):
            self._to(root, QUEUED)
            if root.place in (Place.WAITING, Place.BACKOFF):
                self._queue.back_off(root, self._cluster.now)

    def is_victim(self, pod: str) -> bool:
        return pod in self._waited_for

    def _room(self, root: Root) -> None:
        self._to(root, QUEUED)
        if root.place in (Place.WAITING, Place.BACKOFF):
            self._queue.activate(root)

    def _drop_plan(self, root: Root) -> None:
        plan, root.plan = root.plan, None
        for victim in plan.victims if plan is not None else ():
            waiting = self._waited_for.get(victim, {})
            waiting.pop(root.key, None)
            if not waiting:
                self._waited_for.pop(victim, None)

    # ---- nobody of it waits

    def commit(self, root: Root, pods: int) -> None:
        """So many of its pods are about to be assumed. If some are left they wait as before."""
        if pods < len(root.records):
            self._stories.follow(root.key, COMMITTING.value, f"{pods} pods")
        else:
            self._to(root, COMMITTING, f"{pods} pods")

    def leave(self, root: Root) -> None:
        """All its pods have a node, or are gone."""
        self._queue.remove(root)
        if root.state is COMMITTING:
            self.placed[root.key] = COMMITTING
        elif root.state is not NONE:
            self._to(root, NONE)

    def settle(self, key: str, state: RootState) -> None:
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
        for key, root in self._queue.roots.items():
            assert root.state in (HELD, QUEUED, EVICTING), f"{root} waits, and is {root.state.value}"
            assert (root.state is HELD) == (root.place is Place.GATED), f"{root} is {root.state.value}"
            assert (root.state is EVICTING) == (root.plan is not None), f"{root} is {root.state.value}"
            assert key not in self.placed, f"{root} waits, and is {self.placed[key].value}"
            for victim in root.plan.victims if root.plan is not None else ():
                waited_for.setdefault(victim, set()).add(key)
        assert {pod: set(roots) for pod, roots in self._waited_for.items()} == waited_for, "victims, by pod"
        for pod, roots in self._waited_for.items():
            for key, root in roots.items():
                assert self._queue.roots.get(key) is root, f"{key} waits for {pod} to go, and is gone"
        assert all(state in (COMMITTING, SCHEDULED) for state in self.placed.values())
