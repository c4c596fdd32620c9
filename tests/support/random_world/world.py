"""A cluster in which everything happens by chance, from a seed: events of a table, news that is late or doubled, writes
that fail, answers that are lost, a scheduler that restarts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import msgspec

from phalanx.engine import decisions as d
from phalanx.engine.engine import Engine
from phalanx.engine.events import (
    CHANGED_BY_KIND,
    CONFLICT,
    NOT_FOUND,
    PERMANENT,
    TRANSIENT,
    Event,
    Gone,
    NodeChanged,
    Outcome,
    PodChanged,
)
from phalanx.engine.framework.settings import EngineSettings
from phalanx.engine.groups.conditions import TYPE_OF
from phalanx.model.objects import CompositePodGroup, Node, Pod, PodGroup
from support.random_world.checks import check_binds, check_waiting_classes

NS = "default"
Events = tuple[tuple[Callable[["World"], bool], float], ...]  # with their weights


class World:
    """What the API server knows. Its news reaches the engine late and doubled, in order per object.

    `events` are plug-ins with weights: each changes the world and says whether it found anything to change. What
    happened, and which faults, is counted in `happened`.
    """

    def __init__(
        self, seed: int, events: Events, *, faults: float = 0.1, settings: EngineSettings | None = None
    ) -> None:
        self.rng = random.Random(seed)
        self.priorities = bool(seed % 2)  # odd seeds: some groups may preempt others
        self.faults = faults
        self.settings = settings
        self.now = 1e9
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}
        self.groups: dict[tuple[str, str], PodGroup | CompositePodGroup] = {}
        self.updates: list[Event] = []
        self.made = 0  # objects, for their UIDs
        self.happened: Counter[str] = Counter()
        self.decisions: list[d.Decision] = []
        self.late: list[d.Bind] = []  # binds the executor has not performed yet
        self.engine = Engine(self.settings)
        self._events, self._weights = zip(*events, strict=True)

    def tick(self) -> None:
        (event,) = self.rng.choices(self._events, self._weights)
        if event(self):
            self.happened[event.__name__] += 1
        self.deliver()
        self.step()
        if self.rng.random() < 0.1:
            check_waiting_classes(self.engine)

    # ---- the API server

    def show_node(self, node: Node) -> None:
        self.nodes[node.metadata.name] = node
        self.updates.append(NodeChanged(node))

    def show_group(self, group: PodGroup | CompositePodGroup) -> None:
        kind = type(group).__name__
        self.groups[kind, group.metadata.name] = group
        self.updates.append(CHANGED_BY_KIND[kind](group))

    def show_pod(self, pod: Pod) -> None:
        self.pods[pod.metadata.name] = pod
        self.updates.append(PodChanged(pod))

    def delete_pod(self, name: str) -> None:
        """At once, or only a deletion timestamp."""
        found = self.pods[name]
        if found.metadata.deletion_timestamp is None and self.rng.random() < 0.4:
            meta = msgspec.structs.replace(found.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
            self.show_pod(msgspec.structs.replace(found, metadata=meta))
            return
        del self.pods[name]
        self.updates.append(Gone("Pod", name, NS, found.metadata.uid))

    def bind(self, name: str, node_name: str, annotations: dict[str, str]) -> bool:
        found = self.pods[name]
        if found.spec.node_name or found.metadata.deletion_timestamp is not None or found.spec.scheduling_gates:
            return False
        meta = msgspec.structs.replace(found.metadata, annotations={**found.metadata.annotations, **annotations})
        spec = msgspec.structs.replace(found.spec, node_name=node_name)
        self.show_pod(msgspec.structs.replace(found, metadata=meta, spec=spec))
        return True

    # ---- the engine and its executor

    def restart(self) -> None:
        """A new process sees only what is in the API server, in any order. Writes of the old one may still land."""
        self.engine = Engine(self.settings)
        self.updates = []
        objects: list[Event] = [NodeChanged(n) for n in self.nodes.values()]
        objects += [PodChanged(p) for p in self.pods.values()]
        objects += [CHANGED_BY_KIND[kind](g) for (kind, _), g in self.groups.items()]
        self.rng.shuffle(objects)
        for event in objects:
            self.engine.apply(event)
        late, self.late = self.late, []
        for bind in late:
            if self.fault("write after a restart", 0.5):
                self.perform(bind, lost=True)

    def fault(self, name: str, chance: float | None = None) -> bool:
        """Whether this fault happens now."""
        happens = self.rng.random() < (self.faults if chance is None else chance)
        if happens:
            self.happened[name] += 1
        return happens

    def deliver(self) -> None:
        while self.updates and self.rng.random() < 0.75:
            event = self.updates.pop(0)
            self.engine.apply(event)
            if self.fault("doubled news"):
                self.engine.apply(event)
        self.now += self.rng.choice([0.0, 0.1, 1.0, 5.0])

    def step(self) -> None:
        made = self.engine.step(self.now, self.rng.randrange(1, 6))
        self.decisions += made
        check_binds(self.engine, made)
        for decision in made:
            if isinstance(decision, d.Bind):
                self.late.append(decision)
            elif isinstance(decision, d.Evict):
                self.evict(decision)
            elif isinstance(decision, d.SetGroupCondition):
                self.set_condition(decision)
            elif not self.fault("lost answer"):
                self.answer(decision, TRANSIENT if self.fault("failed write") else "")
        while self.late and self.rng.random() < 0.85:
            self.perform(self.late.pop(self.rng.randrange(len(self.late))))
        self.engine.validate()

    def answer(self, decision: d.Decision, problem: str = "") -> None:
        self.updates.append(Outcome(decision.id, problem))

    def perform(self, decision: d.Bind, *, lost: bool = False) -> None:
        found = self.pods.get(decision.name)
        problem = ""
        if found is None or found.metadata.uid != decision.uid:
            problem = NOT_FOUND
        elif self.fault("failed bind"):
            problem = self.rng.choice([TRANSIENT, PERMANENT])
        elif not self.bind(decision.name, decision.node, decision.annotations):
            problem = CONFLICT
        else:
            lost = self.fault("lost answer of a bind") or lost
        self.happened[f"bind {problem}".strip()] += 1
        if not lost:
            self.updates.insert(self.rng.randrange(len(self.updates) + 1), Outcome(decision.id, problem, problem))

    def evict(self, decision: d.Evict) -> None:
        found = self.pods.get(decision.name)
        if self.fault("failed eviction"):
            self.answer(decision, TRANSIENT)
            return
        if found is not None and found.metadata.uid == decision.uid and not self.fault("eviction without effect"):
            self.happened["evict"] += 1
            self.delete_pod(decision.name)
        if not self.fault("lost answer of an eviction"):
            self.answer(decision)

    def set_condition(self, decision: d.SetGroupCondition) -> None:
        found = self.groups.get((decision.kind, decision.name))
        if found is None or found.metadata.uid != decision.uid:
            self.answer(decision, NOT_FOUND)
            return
        conditions = {c.type: msgspec.to_builtins(c) for c in found.status.conditions or ()}
        before = conditions.get(decision.type)
        if decision.type in TYPE_OF.values():  # a DisruptionTarget is taken back when the group runs again
            assert before is None or before["status"] != "True" or decision.status == "True", (
                f"{decision.kind} {decision.name}: {decision.type} went from True to {decision.status}"
            )
        conditions[decision.type] = {"type": decision.type, "status": decision.status, "reason": decision.reason,
                                     "message": decision.message}  # fmt: skip
        status = msgspec.convert({"conditions": list(conditions.values())}, type(found.status))
        self.show_group(msgspec.structs.replace(found, status=status))
        self.happened["condition of a group"] += 1
        self.answer(decision)

    def settle(self) -> None:
        """Deliver everything, let no more fault happen, and let the engine finish."""
        self.faults = 0.0
        self.now = max(self.now, self.engine.cluster.now)  # a clock that was set back is right again
        quiet = 0
        for _ in range(400):
            while self.updates:
                self.engine.apply(self.updates.pop(0))
            self.now += 11.0
            before = len(self.decisions)
            self.step()
            while self.engine.searches.unfinished:  # a root tried again for ever, slice by slice, is at rest too
                self.step()
            while self.late:
                self.perform(self.late.pop(0))
            for name in [n for n, p in self.pods.items() if p.metadata.deletion_timestamp is not None]:
                self.delete_pod(name)
            rest = len(self.decisions) == before and not self.updates and not self.engine.queue.has_active()
            quiet = quiet + 1 if rest else 0
            if quiet > 2:
                return
        raise AssertionError("the engine never comes to rest")
