"""Drives an engine the way a cluster would, evictions included: an evicted pod terminates, and is gone when told so."""

from __future__ import annotations

from typing import Any

import msgspec

from phalanx.engine import decisions as d
from phalanx.engine.engine import Engine
from phalanx.engine.events import CHANGED_BY_KIND, Gone, Outcome
from phalanx.model.gates import Gates
from phalanx.model.objects import Pod


class ClusterRun:
    def __init__(self, engine: Engine | None = None, *, grace: bool = False) -> None:
        self.engine = engine or Engine()
        self.now = 1000.0
        self.grace = grace  # victims only terminate; `finish` ends them
        self.pods: dict[str, Pod] = {}
        self.log: list[d.Decision] = []
        self.bound: dict[str, str] = {}
        self.evicted: list[str] = []

    def see(self, *builders: Any) -> ClusterRun:
        for builder in builders:
            obj = builder.build() if hasattr(builder, "build") else builder
            if isinstance(obj, Pod):
                self.pods[obj.metadata.name] = obj
            self.engine.apply(CHANGED_BY_KIND[type(obj).__name__](obj))  # type: ignore[call-arg]
        self.engine.validate()
        return self

    def gone(self, kind: str, name: str, namespace: str = "default") -> ClusterRun:
        self.engine.apply(Gone(kind, name, "" if kind == "Node" else namespace))
        self.pods.pop(name, None)
        self.bound.pop(name, None)
        self.engine.validate()
        return self

    def finish(self, *names: str) -> ClusterRun:
        """Terminating pods are gone now."""
        for name in names or [n for n, p in self.pods.items() if p.metadata.deletion_timestamp is not None]:
            self.gone("Pod", name)
        return self

    def step(self, seconds: float = 0.0) -> list[d.Decision]:
        self.now += seconds
        made: list[d.Decision] = []
        for _ in range(100):
            out = self.engine.step(self.now, 10_000)
            self.engine.validate()
            if not out:
                break
            made += out
            for decision in out:
                self.perform(decision)
        self.log += made
        return made

    def perform(self, decision: d.Decision) -> None:
        self.engine.apply(Outcome(decision.id))
        pod = self.pods.get(decision.name)
        if isinstance(decision, d.Bind) and pod is not None:
            self.bound[decision.name] = decision.node
            self.see(msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=decision.node)))
        elif isinstance(decision, d.Nominate) and pod is not None:
            status = msgspec.structs.replace(pod.status, nominated_node_name=decision.node)
            self.see(msgspec.structs.replace(pod, status=status))
        elif isinstance(decision, d.Evict) and pod is not None:
            self.evicted.append(decision.name)
            if self.grace:
                meta = msgspec.structs.replace(pod.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
                self.see(msgspec.structs.replace(pod, metadata=meta))
            else:
                self.gone("Pod", decision.name)

    def of(self, kind: type[Any], name: str | None = None) -> list[Any]:
        return [x for x in self.log if isinstance(x, kind) and name in (None, x.name)]

    def message(self, name: str) -> str:
        return str(self.of(d.SetPodCondition, name)[-1].message)

    def nominated(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for x in self.of(d.Nominate):
            found[x.name] = x.node
        return {name: node for name, node in found.items() if node}


def groups_engine(**more: bool) -> Engine:
    names = ("GenericWorkload", "GangScheduling", "TopologyAwareWorkloadScheduling", "CompositePodGroup")
    return Engine(gates=Gates({**dict.fromkeys(names, True), **more}))
