"""Drives an engine the way a cluster would: objects in, decisions performed, outcomes and informer events back."""

from __future__ import annotations

from typing import Any

import msgspec

from phalanx.engine import decisions as d
from phalanx.engine.engine import Engine
from phalanx.engine.events import CHANGED_BY_KIND, Gone, Outcome
from phalanx.model.objects import Pod


class Run:
    def __init__(self, engine: Engine | None = None, *, confirm: bool = True) -> None:
        self.engine = engine or Engine()
        self.now = 1000.0
        self.confirm = confirm  # answer every Bind and show the pod bound
        self.objects: dict[str, Pod] = {}
        self.log: list[d.Decision] = []
        self.bound: dict[str, str] = {}

    def see(self, *builders: Any) -> Run:
        for builder in builders:
            obj = builder.build() if hasattr(builder, "build") else builder
            if isinstance(obj, Pod):
                self.objects[obj.metadata.name] = obj
            self.engine.apply(CHANGED_BY_KIND[type(obj).__name__](obj))  # type: ignore[call-arg]
        self.engine.validate()
        return self

    def gone(self, kind: str, name: str, namespace: str = "default") -> Run:
        self.engine.apply(Gone(kind, name, "" if kind == "Node" else namespace))
        self.bound.pop(name, None)
        self.engine.validate()
        return self

    def step(self, seconds: float = 0.0, limit: int = 10_000) -> list[d.Decision]:
        self.now += seconds
        made: list[d.Decision] = []
        for _ in range(50):
            out = self.engine.step(self.now, limit)
            self.engine.validate()
            if not out:
                break
            made += out
            for decision in out:
                self.perform(decision)
        self.log += made
        return made

    def perform(self, decision: d.Decision) -> None:
        if isinstance(decision, d.Bind):
            if not self.confirm:
                return
            self.bound[decision.name] = decision.node
            self.engine.apply(Outcome(decision.id))
            self.show_bound(decision.name, decision.node)
        else:
            self.engine.apply(Outcome(decision.id))

    def show_bound(self, name: str, node: str) -> None:
        pod = self.objects[name]
        spec = msgspec.structs.replace(pod.spec, node_name=node)
        self.objects[name] = msgspec.structs.replace(pod, spec=spec)
        self.see(self.objects[name])

    def messages(self, name: str) -> list[str]:
        """What a pod was told, with what preemption adds to it."""
        return [c.message for c in self.log if isinstance(c, d.SetPodCondition) and c.name == name]


def binds(decisions: list[d.Decision]) -> dict[str, str]:
    return {each.name: each.node for each in decisions if isinstance(each, d.Bind)}


def no_victims(message: str) -> str:
    """A verdict with what preemption adds to it when every node might help, but nobody there may be evicted."""
    return _with_preemption(message, "No preemption victims found for incoming pod")


def not_helpful(message: str) -> str:
    """The same when no eviction anywhere would help."""
    return _with_preemption(message, "Preemption is not helpful for scheduling")


def _with_preemption(message: str, why: str) -> str:
    count = message.partition(" ")[0].removeprefix("0/")
    return f"{message} preemption: 0/{count} nodes are available: {count} {why}."
