"""For random clusters and workloads: what whatif says is what the scheduler then does."""

from __future__ import annotations

import random
from typing import Any

import pytest

from phalanx.engine import decisions as d
from phalanx.engine.engine import Engine
from phalanx.engine.explain.values import WhatIfUnit
from phalanx.engine.framework.settings import EngineSettings
from phalanx.model.gates import Gates
from phalanx.testing.builders import composite, node, pod, pod_group
from support.asked_engine import Asked, ask

GATES = [{}, {"TopologyAwareWorkloadScheduling": False}, {"PodGroupPreemptionPolicy": True}]


def cluster(rng: random.Random) -> Asked:
    """Racks of nodes, some of them full, some unusable, with pods and gangs of low and middling priority on them."""
    # Attempts in one piece: in slices others may be served in between, and then it is their room that is taken.
    run = Asked(Engine(EngineSettings(search_slice=0), gates=Gates(rng.choice(GATES))))
    for i in range(rng.randint(3, 7)):
        made = node(f"n{i}").cpu(rng.choice("234")).label("rack", f"r{i // 2}")
        run.see(made.taint("odd", "x", "NoSchedule") if rng.random() < 0.15 else made)
        for j in range(rng.randint(0, 2)):
            there = pod(f"on-{i}-{j}").cpu(rng.choice("12")).priority(rng.choice([0, 3])).node(f"n{i}")
            run.see(there.label("app", "old") if rng.random() < 0.3 else there)
    if rng.random() < 0.5:
        group = pod_group("old").gang(2).priority(2)
        run.see(group.disrupt_all() if rng.random() < 0.5 else group)
        run.see(*(pod(f"old-{i}").cpu("1").priority(2).group("old") for i in range(2)))
    run.step()
    return run


def member(rng: random.Random, name: str, priority: int) -> Any:
    made = pod(name).cpu(rng.choice("123")).priority(priority)
    odd = rng.random()
    if odd < 0.1:
        made.label("app", "new").anti_affinity("rack", {"app": "new"})
    elif odd < 0.2:
        made.anti_affinity("kubernetes.io/hostname", {"app": "old"})
    elif odd < 0.25:
        made.gate("later")
    return made


def workload(rng: random.Random, number: int) -> list[Any]:
    name, priority = f"w{number}", rng.choice([0, 1, 5, 9])
    kind = rng.random()
    if kind < 0.35:
        return [member(rng, name, priority)]
    if kind < 0.8:
        return random_gang(rng, name, rng.randint(1, 4), priority)
    children = [random_gang(rng, f"{name}-{i}", rng.randint(1, 2), priority, parent=name) for i in range(2)]
    return [composite(name).gang(2).priority(priority), *(each for child in children for each in child)]


def random_gang(rng: random.Random, name: str, size: int, priority: int, parent: str = "") -> list[Any]:
    group = pod_group(name).gang(size).priority(priority)
    if rng.random() < 0.4:
        group.topology("rack")
    if parent:
        group.parent(parent)
    made = group.build()
    if rng.random() < 0.2 and not parent:
        made.metadata.annotations["scheduling.phalanx.dev/min-resources"] = f'{{"cpu": "{rng.randint(1, 9)}"}}'
    first = rng.choice("123")
    pods = [member(rng, f"{name}-{i}", priority).cpu(first).group(name) for i in range(size)]
    return [made, *(pods if rng.random() < 0.9 else pods[1:])]  # sometimes one is missing


def says(would: WhatIfUnit) -> dict[str, int]:
    """node -> pods"""
    found: dict[str, int] = {}
    for place in would.places:
        for share in place.nodes:
            found[share.node] = found.get(share.node, 0) + share.pods
    return found


@pytest.mark.parametrize("seed", range(60))
def test_what_whatif_says_is_what_happens(seed: int) -> None:
    rng = random.Random(seed)
    run = cluster(rng)
    objects = [each for number in range(rng.randint(1, 3)) for each in workload(rng, number)]
    outlook = ask(run, *objects)
    made = run.see(*objects).step()
    root_of: dict[str, str] = {}
    for each in objects:
        built = each.build() if hasattr(each, "build") else each
        if type(built).__name__ == "Pod":
            head = built.metadata.name.split("-")[0]
            root_of[built.metadata.name] = head
    for would in outlook.items:
        name = would.root.rpartition("/")[2]
        bound: dict[str, int] = {}
        for bind in made:
            if isinstance(bind, d.Bind) and root_of.get(bind.name) == name.split("-")[0]:
                bound[bind.node] = bound.get(bind.node, 0) + 1
        under_way = run.engine.unit_lifecycle.plan_of(would.root)
        sent = {f"default/{e.name}" for e in run.log if isinstance(e, d.Evict)}  # perhaps for another pod before it
        evicted = sent & set(under_way.victims if under_way is not None else ())
        assert (bound, evicted) == (says(would), set(would.evicts)), would
        if would.evicts:
            assert would.plan is not None and would.plan.cost is not None
            assert would.plan.cost.pods == sum(line.pods for line in would.plan.victims) == len(would.evicts), would
            return  # what comes after it is judged as if its victims were gone already
