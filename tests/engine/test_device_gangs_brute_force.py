"""Gangs with claims against brute force: a gang is placed exactly where some choice of nodes and devices exists."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations, product
from typing import Any, NamedTuple

import pytest

from support.device_world import DRIVER, World, asks, claim, consumer, device, device_node, gang_group, published

Json = dict[str, Any]


class Wish(NamedTuple):
    """What one member asks for."""

    count: int
    kind: int  # devices of at most this kind
    same: str  # attribute that its devices have in common; "": none
    cpu: int


class Device(NamedTuple):
    name: str
    kind: int
    numa: int


def choices(requested: Wish, free: frozenset[Device]) -> Iterator[frozenset[Device]]:
    able = sorted(each for each in free if each.kind <= requested.kind)
    for some in combinations(able, requested.count):
        if not requested.same or len({getattr(each, requested.same) for each in some}) == 1:
            yield frozenset(some)


def packs(preferences: list[Wish], free: frozenset[Device]) -> bool:
    """Return whether the claims of these members can have devices of one node together."""
    if not preferences:
        return True
    return any(packs(preferences[1:], free - some) for some in choices(preferences[0], free))


def possible(preferences: list[Wish], nodes: dict[str, tuple[int, frozenset[Device]]]) -> bool:
    for places in product(nodes, repeat=len(preferences)):
        by_node = {name: [w for w, at in zip(preferences, places, strict=True) if at == name] for name in nodes}
        if all(
            sum(w.cpu for w in inside) <= nodes[name][0] and packs(inside, nodes[name][1])
            for name, inside in by_node.items()
        ):
            return True
    return False


@pytest.mark.parametrize("seed", range(60))
def test_a_gang_is_placed_exactly_where_there_is_a_way(seed: int) -> None:
    rng = random.Random(seed)
    nodes: dict[str, tuple[int, frozenset[Device]]] = {}
    world = World()
    for n in range(rng.randint(1, 3)):
        devices = [Device(f"d{i}", rng.randint(0, 1), rng.randint(0, 1)) for i in range(rng.randint(1, 4))]
        cpu = rng.choice([1, 2, 4])
        nodes[f"n{n}"] = (cpu, frozenset(devices))
        world.see(device_node(f"n{n}", str(cpu)))
        world.see(published(f"n{n}", *(device(d.name, kind=d.kind, numa=d.numa) for d in devices)))
    preferences = [
        Wish(rng.randint(1, 2), rng.randint(0, 1), rng.choice(["", "numa", "kind"]), rng.choice([1, 1, 2]))
        for _ in range(rng.randint(1, 4))
    ]
    world.see(gang_group("g", len(preferences)))
    for number, requested in enumerate(preferences):
        limits = [{"matchAttribute": f"{DRIVER}/{requested.same}"}] if requested.same else []
        asked = asks("r", requested.count, f'device.attributes["{DRIVER}"].kind <= {requested.kind}')
        world.see(claim(f"c{number}", asked, constraints=limits))
        world.see(consumer(f"p{number}", f"c{number}", cpu=str(requested.cpu), group="g"))
    world.run(20)
    expected = len(preferences) if possible(preferences, nodes) else 0
    assert len(world.bound) == expected, (preferences, nodes, world.messages)
    if not expected:
        assert not any(world.devices(f"c{number}") for number in range(len(preferences)))  # nothing is left allocated
    world.engine.validate()
