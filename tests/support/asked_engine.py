"""An engine whose decisions are performed at once, and the one-liners tests of questions need."""

from __future__ import annotations

from typing import Any

from phalanx.engine import decisions as d
from phalanx.engine.engine import Engine
from phalanx.engine.explain import Question, Why, whatif, why
from phalanx.engine.explain.values import WhatIfAnswer
from phalanx.testing import Cluster
from phalanx.testing.builders import node


class Asked(Cluster):
    """Evicted pods stay until the test says they are gone."""

    def __init__(self, engine: Engine | None = None) -> None:
        super().__init__(engine, evict=False, now=1_000_000.0)

    def why(self, kind: str, name: str) -> Why:
        """Asking must leave everything as it was."""
        before = fingerprint(self.engine)
        (item,) = why(self.engine, kind, "default", name).items
        self.engine.validate()
        assert fingerprint(self.engine) == before
        return item

    def last_message(self, name: str) -> str:
        """The message last written about an object."""
        written = [c for c in self.log if isinstance(c, d.SetPodCondition | d.SetGroupCondition)]
        return [c for c in written if c.name == name and "/" not in c.type][-1].message


def fingerprint(engine: Engine) -> tuple[Any, ...]:
    """All that decisions come from, as far as it can be compared."""
    columns = engine.columns
    places = sorted(
        (root.key, place.value, root.attempts, tuple(root.records)) for root, place in engine.queue.places()
    )
    return (
        columns.used.tobytes(),
        columns.nonzero.tobytes(),
        columns.alloc.tobytes(),
        [sorted(pods) for pods in columns.pods],  # trials that take pods away and back change their order
        list(columns.resource_names),
        list(columns.labels),
        engine.interest.known(),
        engine.interest.epoch,
        len(engine.shapes),
        engine.outbox.last_id,
        list(engine.outbox.decisions),
        [(node, record.key) for node, record in engine.nominations.all()],
        places,
    )


def racks(count: int = 8, cpu: str = "4", per_rack: int = 2, per_block: int = 4) -> list[Any]:
    return [
        node(f"n{i}").cpu(cpu).label("rack", f"r{i // per_rack}").label("block", f"b{i // per_block}")
        for i in range(count)
    ]


def ask(run: Asked, *builders: Any) -> WhatIfAnswer:
    question = Question()
    for builder in builders:
        obj = builder.build() if hasattr(builder, "build") else builder
        fields = {"Pod": "pods", "PodGroup": "pod_groups", "CompositePodGroup": "composites", "Workload": "workloads"}
        getattr(question, fields[type(obj).__name__]).append(obj)
    before = fingerprint(run.engine)
    outlook = whatif(run.engine, question)
    run.engine.validate()
    assert fingerprint(run.engine) == before
    return outlook
