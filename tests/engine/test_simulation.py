"""A long stretch of random cluster life with faults, by seed; every invariant after every step.

The suite runs 30,000 events of the same lives each time; `.ci/run` adds a life of a new seed, and
`python tests/engine/test_simulation.py 100000 7` runs as much as one likes.
"""

from __future__ import annotations

import random
import sys

import msgspec
import pytest

from phalanx.engine import decisions as d
from phalanx.engine.engine import Engine
from phalanx.engine.events import CONFLICT, NOT_FOUND, TRANSIENT, Event, Gone, NodeChanged, Outcome, PodChanged
from phalanx.engine.framework.choice import choose
from phalanx.model.objects import Pod
from phalanx.testing.builders import node, pod

ZONE = "topology.kubernetes.io/zone"


class World:
    """What the API server knows. Its news reaches the engine late, doubled, and not always in order."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.engine = Engine()
        self.now = 1e9
        self.pods: dict[str, Pod] = {}
        self.nodes: set[str] = set()
        self.updates: list[Event] = []
        self.made = 0
        self.binds = 0

    def tick(self) -> None:
        rng = self.rng
        dice = rng.random()
        if dice < 0.12:
            self.updates.append(NodeChanged(self.random_node()))
        elif dice < 0.14 and self.nodes:
            name = rng.choice(sorted(self.nodes))
            self.nodes.discard(name)
            self.updates.append(Gone("Node", name))
        elif dice < 0.45 and len(self.pods) < 60:
            self.make_pod()
        elif dice < 0.60 and self.pods:
            name = rng.choice(sorted(self.pods))
            gone = self.pods.pop(name)
            self.updates.append(Gone("Pod", name, "default", gone.metadata.uid))
        elif dice < 0.65 and self.pods:
            self.relabel(rng.choice(sorted(self.pods)))
        elif dice < 0.68 and self.pods:
            self.bind(rng.choice(sorted(self.pods)), f"n{rng.randrange(9)}")  # another scheduler
        self.deliver()
        self.step()

    def random_node(self):
        rng = self.rng
        name = f"n{rng.randrange(9)}"
        self.nodes.add(name)
        built = node(name).cpu(rng.choice(["0", "1", "2", "4", "-3", "junk"])).pods(rng.randrange(1, 8))
        if rng.random() < 0.7:
            built.label(ZONE, f"z{rng.randrange(3)}")
        if rng.random() < 0.2:
            built.taint("k", "v", rng.choice(["NoSchedule", "PreferNoSchedule", "NoExecute"]))
        return built.unschedulable(rng.random() < 0.1).build()

    def make_pod(self) -> None:
        rng = self.rng
        self.made += 1
        name = f"p{rng.randrange(80)}"
        if name in self.pods:
            return
        built = (
            pod(name).uid(f"uid{self.made}").cpu(f"{rng.randrange(1, 9) * 250}m").label("app", f"a{rng.randrange(3)}")
        )
        built.priority(rng.randrange(3))
        if rng.random() < 0.2:
            built.gate("g")
        if rng.random() < 0.2:
            built.anti_affinity("kubernetes.io/hostname", {"app": "a0"})
        if rng.random() < 0.2:
            built.affinity(ZONE, {"app": "a1"})
        if rng.random() < 0.2:
            built.spread(ZONE, {"app": "a2"})
        if rng.random() < 0.2:
            built.port(80)
        if rng.random() < 0.2:
            built.tolerate("k", "v")
        if rng.random() < 0.1:
            built.scheduler("somebody-else")
        self.pods[name] = built.build()
        self.updates.append(PodChanged(self.pods[name]))

    def relabel(self, name: str) -> None:
        found = self.pods[name]
        meta = msgspec.structs.replace(found.metadata, labels={"app": f"a{self.rng.randrange(3)}"})
        spec = msgspec.structs.replace(found.spec, scheduling_gates=None)
        self.pods[name] = msgspec.structs.replace(found, metadata=meta, spec=spec)
        self.updates.append(PodChanged(self.pods[name]))

    def bind(self, name: str, node_name: str) -> bool:
        found = self.pods[name]
        if found.spec.node_name:
            return False
        self.pods[name] = msgspec.structs.replace(found, spec=msgspec.structs.replace(found.spec, node_name=node_name))
        self.updates.append(PodChanged(self.pods[name]))
        return True

    def deliver(self) -> None:
        """Some of the news, in order per object as a watch gives them, now and then twice."""
        while self.updates and self.rng.random() < 0.7:
            event = self.updates.pop(0)
            self.engine.apply(event)
            if self.rng.random() < 0.1:
                self.engine.apply(event)
        self.now += self.rng.choice([0.0, 0.1, 1.0, 5.0])
        if self.rng.random() < 0.01:  # the clock is set: an hour back, or a day on
            self.now += self.rng.choice([-3600.0, 86400.0])

    def step(self) -> None:
        for decision in self.engine.step(self.now, self.rng.randrange(1, 6)):
            if isinstance(decision, d.Bind):
                self.perform(decision)
            elif self.rng.random() < 0.9:
                self.engine.apply(Outcome(decision.id, "" if self.rng.random() < 0.9 else TRANSIENT))
        self.engine.validate()

    def perform(self, bind: d.Bind) -> None:
        found = self.pods.get(bind.name)
        dice = self.rng.random()
        if found is None or found.metadata.uid != bind.uid:
            self.updates.append(Outcome(bind.id, NOT_FOUND))
        elif dice < 0.1 or not self.bind(bind.name, bind.node):
            self.updates.append(Outcome(bind.id, CONFLICT if found.spec.node_name else TRANSIENT))
        else:
            self.binds += 1
            if dice < 0.9:  # otherwise the answer is lost for good
                self.updates.insert(self.rng.randrange(len(self.updates) + 1), Outcome(bind.id))

    def settle(self) -> None:
        """Deliver everything and let the engine finish."""
        for _ in range(200):
            while self.updates:
                self.engine.apply(self.updates.pop(0))
            self.now += 11.0
            before = self.binds
            self.step()
            if not self.updates and self.binds == before and not self.engine.queue.has_active():
                break


def simulate(events: int, seed: int) -> World:
    world = World(seed)
    for _ in range(events):
        world.tick()
    world.settle()
    return world


@pytest.mark.parametrize(
    ("events", "seed"), [*((1500, seed) for seed in range(4)), *((6000, seed) for seed in range(4, 8))]
)
def test_random_life_with_faults_loses_and_overcommits_nothing(events, seed):
    world = simulate(events, seed)
    assert world.binds > 50
    check(world)


def check(world: World) -> None:
    """Nothing is lost, promised to no pod, or unschedulable where it fits."""
    engine = world.engine
    known = {record.name: record.node_name for record in engine.pods.records.values()}
    ours = {name: p.spec.node_name for name, p in world.pods.items()
            if p.spec.node_name or p.spec.scheduler_name == "default-scheduler"}  # fmt: skip
    assert known == ours
    for node_name, waiting in engine.nominations.all():  # room is kept only for pods that wait for it
        if waiting.key.count("/") > 1:
            continue  # a placeholder: room reserved for an expected pod or a promised start, which validate() checks
        assert engine.pods.records.get(waiting.key) is waiting and waiting.row < 0, f"no pod waits for {node_name}"
    for root, _ in engine.queue.places():
        if root.equivalence_class is None:
            continue
        evaluation = engine.cluster.evaluation(root.record)
        fits = choose(engine.cluster, root.record, evaluation, []) >= 0  # beside what is promised to others
        assert not fits or evaluation.pre_filter() is not None, f"{root} fits but sleeps"


if __name__ == "__main__":
    done = simulate(int(sys.argv[1]), int(sys.argv[2]))
    check(done)
    print(f"engine: {sys.argv[1]} events of seed {sys.argv[2]}, {done.binds} binds, nothing lost")
