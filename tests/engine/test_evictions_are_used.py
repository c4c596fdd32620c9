"""Evictions serve a pod of higher priority, which then runs, and they end, in any order of requests."""

from __future__ import annotations

import random

import msgspec
import pytest

from phalanx.engine import decisions as d
from phalanx.engine.preemption.victim_index import VictimIndex
from phalanx.testing import Cluster
from phalanx.testing.builders import node, pod, pod_group


class Town(Cluster):
    """A cluster whose evicted pods come back as new ones, as those of a Job or Deployment do."""

    def __init__(self, seed: int) -> None:
        super().__init__(grace=True)
        self.random = random.Random(seed)
        self.priority: dict[str, int] = {}
        self.made = 0
        self.revivals: dict[str, int] = {}

    def add(self, *builders):
        for builder in builders:
            body = builder.build()
            if hasattr(body.spec, "containers"):
                self.priority[body.metadata.name] = body.spec.priority or 0
            self.see(body)

    def reborn(self) -> None:
        """Every terminating pod goes and its controller makes another one of the same kind."""
        dying = [n for n, p in self.pods.items() if p.metadata.deletion_timestamp is not None]
        self.random.shuffle(dying)
        for name in dying:
            old = self.pods[name]
            self.gone("Pod", name)
            stem = name.split("~")[0]
            self.revivals[stem] = self.revivals.get(stem, 0) + 1
            fresh = f"{stem}~{self.revivals[stem]}"
            meta = msgspec.structs.replace(old.metadata, name=fresh, uid=f"pod:{fresh}", deletion_timestamp=None)
            spec = msgspec.structs.replace(old.spec, node_name="")
            status = msgspec.structs.replace(old.status, nominated_node_name="")
            self.priority[fresh] = self.priority[name]
            self.see(msgspec.structs.replace(old, metadata=meta, spec=spec, status=status))


def town(seed: int) -> Town:
    world = Town(seed)
    pick = world.random
    count = pick.randint(2, 5)
    for i in range(count):
        world.add(node(f"n{i}").cpu(str(pick.randint(2, 4))).label("rack", f"r{i % 2}"))
    for g in range(pick.randint(2, 5)):
        size = pick.randint(1, 4)
        priority = pick.choice([1, 5, 9])
        group = pod_group(f"g{g}").gang(pick.randint(1, size)).priority(priority)
        if pick.random() < 0.4:
            group = group.topology("rack")
        if pick.random() < 0.4:
            group = group.disrupt_all()
        world.add(group)
        for i in range(size):
            world.add(pod(f"g{g}-{i}").cpu(pick.choice(["500m", "1", "2"])).group(f"g{g}").priority(priority))
        if pick.random() < 0.5:
            world.step(1)
        for i in range(pick.randint(0, 2)):
            lone = pod(f"p{g}-{i}").cpu(pick.choice(["1", "2"])).priority(pick.choice([0, 1, 5, 9]))
            world.add(lone)
    return world


@pytest.mark.parametrize("seed", range(40))
def test_evictions_serve_a_more_important_pod_and_come_to_an_end(seed):
    world = town(seed)
    quiet = 0
    for _ in range(60):
        out = world.step(1)
        dying = any(p.metadata.deletion_timestamp is not None for p in world.pods.values())
        _as_built_again(world)
        quiet = quiet + 1 if not out and not dying else 0
        if quiet >= 3:
            break
        world.reborn()
    assert quiet >= 3, "it never comes to rest"
    groups = {name: obj.spec.priority for (_, name), obj in _groups(world).items()}
    for evict in world.of(d.Evict):
        kind, _, name = evict.preemptor.split("/")
        preemptor = groups[name] if kind == "podgroup" else world.priority[name]
        assert world.priority[evict.name] < preemptor
    for key in sorted({evict.preemptor for evict in world.of(d.Evict)}):
        assert _served(world, key), f"{key} evicted others and does not run"


def _as_built_again(world):
    """What is known about units, kept up change by change, is what a look at everything says."""
    engine = world.engine
    kept = engine.preemption.victim_index
    kept.refresh()
    recomputed = VictimIndex(engine.cluster)
    recomputed.refresh()
    assert {k: (u.priority, set(u.pods)) for k, u in kept.units.items()} == {
        k: (u.priority, set(u.pods)) for k, u in recomputed.units.items()
    }
    assert {row: {k: set(p) for k, p in here.items()} for row, here in kept.on_row.items()} == {
        row: {k: set(p) for k, p in here.items()} for row, here in recomputed.on_row.items()
    }
    assert kept.leaving == recomputed.leaving
    for leaf in engine.groups.forest.roots():
        assert kept.running(leaf) == recomputed.running(leaf)


def _groups(world):
    from phalanx.model.objects import PodGroup

    return {(g.metadata.namespace, g.metadata.name): g for g in world.engine.objects.all(PodGroup)}


def _served(world: Town, key: str) -> bool:
    """Bound after its last eviction, unless a pod of higher priority that came later needed that room more."""
    kind, _, name = key.split("/")
    last = max(i for i, x in enumerate(world.log) if isinstance(x, d.Evict) and x.preemptor == key)
    stem = name if kind == "pod" else f"{name}-"
    members = {n for n in world.priority if (n == name if kind == "pod" else n.startswith(stem))}
    rank = max(world.priority[n] for n in members)
    binds = [x.name for x in world.log[last:] if isinstance(x, d.Bind)]
    return any(n in members for n in binds) or any(world.priority[n] > rank for n in binds)
