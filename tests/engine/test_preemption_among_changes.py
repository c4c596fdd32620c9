"""Pods end while plans of preemption are made in slices: no attempt fails with an internal error."""

from __future__ import annotations

import random

import pytest

from phalanx.engine import decisions as d
from phalanx.engine.engine import Engine
from phalanx.engine.framework.settings import EngineSettings
from phalanx.model.groups import GROUP_LABEL
from phalanx.testing import Cluster
from phalanx.testing.builders import node, pod, pod_group

SLICE = 20  # units of work: a plan takes many slices
MOST_GROUPS = 80


class Churn:
    """Gangs of different priorities come, lose pods and go, on nodes that are full."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.run = Cluster(Engine(EngineSettings(search_slice=SLICE)), grace=True)
        self.run.see(*(node(f"n{i:02}").cpu("8") for i in range(16)))
        self.sizes: dict[str, int] = {}
        self.made = 0

    def add_gang(self) -> None:
        rng, self.made = self.rng, self.made + 1
        name, size, priority = f"g{self.made}", rng.randint(1, 10), rng.choice((0, 0, 1, 5, 9))
        group = pod_group(name).gang(size).priority(priority)
        self.run.see(group.disrupt_all() if rng.random() < 0.5 else group)
        cpu = rng.choice(("1", "2", "4"))
        self.run.see(*(pod(f"{name}-{i}").group(name).cpu(cpu).priority(priority) for i in range(size)))
        self.sizes[name] = size

    def change(self) -> None:
        kind = self.rng.random()
        placed = sorted(self.run.placed)
        if kind < 0.5 and len(self.sizes) < MOST_GROUPS:
            self.add_gang()
        elif kind < 0.8 and placed:
            for name in self.rng.sample(placed, min(len(placed), 4)):
                self.run.gone("Pod", name)
        elif self.sizes:
            name = self.rng.choice(sorted(self.sizes))
            for member in [each for each in self.run.pods if each.startswith(f"{name}-")]:
                self.run.gone("Pod", member)
            self.run.gone("PodGroup", name)
            del self.sizes[name]
        if self.rng.random() < 0.3:
            self.run.finish()

    def step(self) -> None:
        self.run.now += 0.05
        for decision in self.run.engine.step(self.run.now):  # one slice, not until nothing is left to do
            self.run.log.append(decision)
            self.run.perform(decision)


@pytest.mark.parametrize("seed", range(4))
def test_pods_that_end_while_a_plan_is_made_disturb_only_that_plan(seed: int) -> None:
    """Seen with 400 gangs on 2,000 nodes: groups were set aside with a KeyError or a ValueError."""
    churn = Churn(seed)
    for _ in range(40):
        churn.add_gang()
    for _ in range(150):
        churn.change()
        for _ in range(churn.rng.randint(1, 3)):
            churn.step()
        assert not churn.run.engine.isolation.unlogged
    churn.run.engine.validate()
    assert churn.run.of(d.Evict), "nothing was preempted"


def test_a_pod_that_joins_a_group_while_it_is_bound_has_the_priority_of_the_group() -> None:
    """Found by a random life: the victim index kept the priority of the pod."""
    run = Cluster(confirm=False).see(node("n0").cpu("2"), pod_group("g").priority(0))
    lone = pod("a").cpu("2").priority(5)
    run.see(lone).step()
    run.step()
    run.see(pod("b").cpu("2").priority(1)).step()  # builds the index
    assert not run.of(d.Evict)
    run.see(lone.label(GROUP_LABEL, "g")).step()
    run.engine.validate()
    assert run.engine.preemption.victim_index.units["default/a"].priority == 0


def test_a_group_has_the_lowest_priority_of_its_pods_also_if_the_lowest_comes_last() -> None:
    """Found by a random life: the victim index kept the priority that the group had before."""
    run = Cluster().see(node("n0").cpu("2"), pod_group("g"), pod("a").cpu("2").priority(5).group("g"))
    run.step()
    run.see(pod("b").cpu("2").priority(1)).step()  # builds the index
    assert not run.of(d.Evict)
    run.see(pod("c").cpu("2").priority(0).group("g")).step()
    run.engine.validate()
    run.gone("Pod", "c").step()
    run.engine.validate()
