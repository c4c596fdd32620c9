"""A small cluster around an engine, for tests of groups: it keeps what the API server would keep (bound pods with their
annotations, conditions of groups), can refuse binds, and can be met by a new scheduler process at any moment."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from phalanx.engine import decisions as d
from phalanx.engine.engine import Engine
from phalanx.engine.events import CHANGED_BY_KIND, NOT_FOUND, Event, Gone, NodeChanged, Outcome, PodChanged
from phalanx.engine.scheduling.group_roots import Groups
from phalanx.model.objects import CompositePodGroup, Node, Pod, PodGroup, Workload

Grouped = PodGroup | CompositePodGroup


class Cluster:
    def __init__(self, engine: Engine | None = None) -> None:
        self.engine = engine or Engine()
        self.now = 1000.0
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}
        self.groups: dict[tuple[str, str], Grouped] = {}
        self.workloads: dict[str, Workload] = {}
        self.log: list[d.Decision] = []
        self.refuse: dict[str, str] = {}  # pod -> problem of its next binds
        self.hold: set[str] = set()  # pods whose binds are not answered yet
        self.held: list[d.Bind] = []
        self.graceful = False  # evicted pods stay until `finalise`

    # ---- objects

    def see(self, *builders: Any) -> Cluster:
        for builder in builders:
            obj = builder.build() if hasattr(builder, "build") else builder
            name = obj.metadata.name
            if isinstance(obj, Pod):
                self.pods[name] = obj
            elif isinstance(obj, Node):
                self.nodes[name] = obj
            elif isinstance(obj, Workload):
                self.workloads[name] = obj
            else:
                self.groups[type(obj).__name__, name] = obj
            self.engine.apply(CHANGED_BY_KIND[type(obj).__name__](obj))
        self.engine.validate()
        return self

    def gone(self, kind: str, name: str) -> Cluster:
        uid = ""
        if kind == "Pod":
            uid = self.pods.pop(name).metadata.uid
        elif kind == "Node":
            del self.nodes[name]
        elif kind == "Workload":
            del self.workloads[name]
        else:
            del self.groups[kind, name]
        self.engine.apply(Gone(kind, name, "" if kind == "Node" else "default", uid))
        self.engine.validate()
        return self

    def update(self, name: str, *, phase: str | None = None, started: bool = False, ending: bool = False) -> Cluster:
        pod = self.pods[name]
        status, meta = pod.status, pod.metadata
        if phase is not None:
            status = msgspec.structs.replace(status, phase=phase)
        if started:
            status = msgspec.structs.replace(status, start_time="2026-01-01T00:00:00Z")
        if ending:
            meta = msgspec.structs.replace(meta, deletion_timestamp="2026-01-01T00:00:00Z")
        return self.see(msgspec.structs.replace(pod, status=status, metadata=meta))

    def annotate(self, name: str, key: str, value: str) -> Cluster:
        pod = self.pods[name]
        meta = msgspec.structs.replace(pod.metadata, annotations={**pod.metadata.annotations, key: value})
        return self.see(msgspec.structs.replace(pod, metadata=meta))

    def finalise(self) -> Cluster:
        for name in [name for name, pod in self.pods.items() if pod.metadata.deletion_timestamp is not None]:
            self.gone("Pod", name)
        return self

    # ---- time

    def step(self, seconds: float = 0.0, rounds: int = 50) -> list[d.Decision]:
        """Let the engine decide and carry it out until it has nothing more to say now."""
        self.now += seconds
        made: list[d.Decision] = []
        for _ in range(rounds):
            out = self.engine.step(self.now, 10_000)
            self.engine.validate()
            if not out:
                return made
            made += out
            self.log += out
            for decision in out:
                self.perform(decision)
        raise AssertionError("the engine does not come to rest")

    def perform(self, decision: d.Decision) -> None:
        if isinstance(decision, d.Bind):
            if decision.name in self.hold:
                self.held.append(decision)
            else:
                self.bind(decision)
        elif isinstance(decision, d.Evict):
            self.engine.apply(Outcome(decision.id))
            if self.graceful:
                self.update(decision.name, ending=True)
            elif decision.name in self.pods:
                self.gone("Pod", decision.name)
        elif isinstance(decision, d.SetGroupCondition):
            self.condition(decision)
        else:
            self.engine.apply(Outcome(decision.id))

    def bind(self, decision: d.Bind, *, answer: bool = True, show: bool = True) -> None:
        problem = self.refuse.get(decision.name, "")
        found = self.pods.get(decision.name)
        if found is None:
            problem = NOT_FOUND
        if answer:
            self.engine.apply(Outcome(decision.id, problem, f"bind says {problem}" if problem else ""))
        if problem or found is None:
            return
        meta = msgspec.structs.replace(
            found.metadata, annotations={**found.metadata.annotations, **decision.annotations}
        )
        spec = msgspec.structs.replace(found.spec, node_name=decision.node)
        self.pods[decision.name] = msgspec.structs.replace(found, metadata=meta, spec=spec)
        if show:
            self.see(self.pods[decision.name])

    def answer_held(self) -> Cluster:
        held, self.held = self.held, []
        self.hold = set()
        for decision in held:
            self.bind(decision)
        return self

    def condition(self, decision: d.SetGroupCondition) -> None:
        found = self.groups.get((decision.kind, decision.name))
        self.engine.apply(Outcome(decision.id, "" if found is not None else NOT_FOUND))
        if found is None:
            return
        said = {"type": decision.type, "status": decision.status, "reason": decision.reason,
                "message": decision.message}  # fmt: skip
        status = msgspec.convert({"conditions": [said]}, type(found.status))
        self.see(msgspec.structs.replace(found, status=status))

    # ---- another process

    def restart(self, engine: Engine | None = None, order: Iterable[int] | None = None) -> Cluster:
        """A new scheduler meets the cluster as the API server knows it."""
        self.engine = engine or Engine()
        events: list[Event] = [NodeChanged(n) for n in self.nodes.values()]
        events += [CHANGED_BY_KIND["Workload"](w) for w in self.workloads.values()]
        events += [CHANGED_BY_KIND[kind](g) for (kind, _), g in self.groups.items()]
        events += [PodChanged(p) for p in self.pods.values()]
        for index in order if order is not None else range(len(events)):
            self.engine.apply(events[index])
        return self

    # ---- what people see

    @property
    def bound(self) -> dict[str, str]:
        return {name: pod.spec.node_name for name, pod in self.pods.items() if pod.spec.node_name}

    def said(self, name: str, kind: str = "PodGroup") -> tuple[str, str, str]:
        """(status, reason, message) of the group's condition."""
        conditions = self.groups[kind, name].status.conditions or ()
        return next(((c.status, c.reason, c.message) for c in conditions), ("", "", ""))

    def told(self, pod: str) -> str:
        """What the pod was told last."""
        return next(
            (
                f"{c.reason}: {c.message}"
                for c in reversed(self.log)
                if isinstance(c, d.SetPodCondition) and c.name == pod
            ),
            "",
        )

    def evicted(self) -> list[str]:
        return [e.name for e in self.log if isinstance(e, d.Evict)]

    def attempts(self, root: str) -> int:
        assert isinstance(self.engine.groups, Groups)
        found = self.engine.queue.roots.get(root)
        return found.attempts if found is not None else 0
