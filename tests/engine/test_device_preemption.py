"""Preemption for devices against brute force: the victims are the cheapest that free enough of the right kind."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from phalanx.testing import builders as b
from support.device_world import (
    DRIVER,
    World,
    asks,
    attached,
    claim,
    consumer,
    device,
    device_class,
    device_node,
    gang_group,
    published,
)

Placed = tuple[str, int, frozenset[str]]  # name, priority, devices


def cheapest(nodes: dict[str, tuple[dict[str, int], list[Placed]]], need: int, priority: int, kind: int | None):
    """(highest priority evicted, pods evicted) of the best plan; None: there is none. Tries every set of victims."""
    costs = []
    for devices, pods in nodes.values():
        lower = [each for each in pods if each[1] < priority]
        for size in range(len(lower) + 1):
            for victims in combinations(lower, size):
                taken = {name for each in pods if each not in victims for name in each[2]}
                free = [name for name in devices if name not in taken and kind in (None, devices[name])]
                if len(free) >= need:
                    costs.append((max((each[1] for each in victims), default=-1), size))
    return min(costs, default=None)


@pytest.mark.parametrize("seed", range(40))
def test_the_cheapest_pods_make_room_on_devices(seed: int):
    rng = random.Random(seed)
    world = World()
    nodes: dict[str, tuple[dict[str, int], list[Placed]]] = {}
    for name in "abc"[: rng.randint(1, 3)]:
        devices = {f"g{number}": rng.randint(0, 1) for number in range(rng.randint(1, 4))}
        nodes[name] = (devices, [])
        world.see(
            device_node(name, cpu="64"), published(name, *(device(each, kind=kind) for each, kind in devices.items()))
        )
    total = sum(len(devices) for devices, _ in nodes.values())
    for number in range(rng.randint(total // 2, total)):
        world.see(claim(f"c{number}", asks(count=rng.randint(1, 2))))
        world.see(consumer(f"p{number}", f"c{number}", priority=rng.randint(1, 5))).run(2)
    for name in [key[1] for key in world.objects if key[0] == "Pod" and key[1] not in world.bound]:
        world.gone("Pod", name)
    priorities = {}
    for name, where in world.bound.items():
        priorities[name] = world.objects["Pod", name].spec.priority
        got = frozenset(each.split("/")[1] for each in world.devices(f"c{name[1:]}"))
        nodes[where][1].append((name, priorities[name], got))
    world.evicted.clear()
    need, kind, priority = rng.randint(1, 3), rng.choice([None, 0, 1]), rng.randint(2, 7)
    expected = cheapest(nodes, need, priority, kind)
    cel = f'device.attributes["{DRIVER}"].kind == {kind}' if kind is not None else ""
    world.see(claim("high", asks(count=need, cel=cel)), consumer("high", "high", priority=priority)).run(20)
    cost = (max((priorities[each] for each in world.evicted), default=-1), len(world.evicted))
    assert (cost if "high" in world.bound else None) == expected


@pytest.mark.parametrize("seed", range(20))
def test_a_gang_evicts_the_fewest_of_the_lowest_priority(seed: int):
    rng = random.Random(seed)
    world = World()
    total = 0
    for name in "abc"[: rng.randint(1, 3)]:
        count = rng.randint(1, 3)
        total += count
        world.see(device_node(name, cpu="64"), published(name, *(device(f"g{number}") for number in range(count))))
    for number in range(rng.randint(0, total)):
        world.see(claim(f"c{number}"), consumer(f"p{number}", f"c{number}", priority=rng.randint(1, 5))).run(2)
    for name in [key[1] for key in world.objects if key[0] == "Pod" and key[1] not in world.bound]:
        world.gone("Pod", name)
    world.evicted.clear()
    size, priority = rng.randint(1, total), rng.randint(2, 7)
    priorities = {name: world.objects["Pod", name].spec.priority for name in world.bound}
    lower = sorted(each for each in priorities.values() if each < priority)
    need = max(0, size - (total - len(priorities)))
    expected = None if need > len(lower) else (lower[need - 1] if need else -1, need)
    world.see(gang_group("g", size, priority), *(claim(f"m{number}") for number in range(size)))
    world.see(*(consumer(f"m{number}", f"m{number}", priority=priority, group="g") for number in range(size))).run(25)
    placed = sum(f"m{number}" in world.bound for number in range(size))
    cost = (max((priorities[each] for each in world.evicted), default=-1), len(world.evicted))
    assert placed in (0, size) and (cost if placed else None) == expected


@pytest.mark.parametrize("size", [1, 2])
def test_pods_are_evicted_for_the_devices_of_their_extended_resources(size: int) -> None:
    world = World(device_class(extendedResourceName="example.com/gpu"), device_node("a"))
    world.see(published("a", device("g0"), device("g1")))
    for name, priority in (("low0", 1), ("low1", 2)):
        world.see(b.pod(name).uid(name).cpu("1").resource("example.com/gpu", "1").priority(priority).build())
    world.see(consumer("plain", priority=0)).run()
    assert set(world.bound) == {"low0", "low1", "plain"}
    world.see(b.pod("high").uid("high").cpu("1").resource("example.com/gpu", str(size)).priority(10).build()).run()
    assert sorted(world.evicted) == ["low0", "low1"][:size]
    assert world.bound["high"] == "a" and len(world.devices("high-extended-resources")) == size


def test_a_claim_and_an_extended_resource_compete_for_one_device() -> None:
    world = World(device_class(extendedResourceName="example.com/gpu"), device_node("a"))
    world.see(published("a", device("g0")))
    world.see(b.pod("low").uid("low").cpu("1").resource("example.com/gpu", "1").priority(1).build()).run()
    world.see(claim("c"), consumer("high", "c", priority=5)).run()
    assert world.evicted == ["low"] and world.bound == {"high": "a"} and world.devices("c") == ["a/g0"]


def test_a_gang_evicts_no_more_pods_while_devices_of_its_victims_are_released() -> None:
    world = World(*([device_node(name), *published(name, device("g0"))] for name in "abcd"))
    for name in ("low1", "low2"):
        world.see(claim(name), consumer(name, name, priority=10)).run(2)
    world.slow = True
    world.see(gang_group("g", 3, priority=100))
    world.see(*([claim(name), consumer(name, name, priority=100, group="g")] for name in ("m1", "m2", "m3"))).run(10)
    assert len(world.evicted) == 1 and "devices that claims of deleted pods still hold" in world.messages["m1"]
    world.slow = False
    world.release(world.evicted[0])
    world.run(10)
    assert len(world.evicted) == 1 and {"m1", "m2", "m3"} < set(world.bound)


@pytest.mark.parametrize("group", ["", "late"], ids=["pods", "members of a gang"])
@pytest.mark.parametrize("elsewhere", [False, True], ids=["devices of nodes", "and of several nodes"])
def test_pods_that_come_while_victims_leave_take_no_device_of_the_plan(group: str, elsewhere: bool) -> None:
    """A gang takes two free devices of b, and two of a that pods hold; the pods that replace its victims come early."""
    world = World(device_node("a"), published("a", device("g0"), device("g1")))
    for name in ("low0", "low1"):
        world.see(claim(name), consumer(name, name)).run(2)
    world.see(device_node("b"), published("b", device("g0"), device("g1")))
    if elsewhere:
        world.see(attached("switch", device("s0", kind=1)))
    world.slow = True
    own = 'device.attributes["gpu.example.com"].?kind.orValue(0) == 0'
    world.see(*(claim(name, asks(count=2, cel=own)) for name in "xy"), gang_group("urgent", 2, 10))
    world.see(*(consumer(name, name, priority=10, group="urgent") for name in "xy")).run(3)
    assert sorted(world.evicted) == ["low0", "low1"]
    if group:
        world.see(gang_group(group, 2))
    world.see(*(claim(name, asks(cel=own)) for name in ("new0", "new1")))
    world.see(*(consumer(name, name, group=group) for name in ("new0", "new1"))).run(5)
    for name in ("low0", "low1"):
        world.release(name)
    world.run(20)
    assert world.bound == {"x": "a", "y": "b"} or world.bound == {"x": "b", "y": "a"}
    assert sorted(world.evicted) == ["low0", "low1"]


def test_a_gang_gets_devices_that_no_plan_needs_while_victims_leave() -> None:
    world = World(device_node("a"), published("a", device("g0", kind=0), device("g1", kind=0)))
    for name in ("low0", "low1"):
        world.see(claim(name), consumer(name, name)).run(2)
    world.see(attached("switch", device("s0", kind=2)), device_node("c"), published("c", device("g0", kind=1)))
    world.slow = True
    world.see(
        claim("x", asks(count=2, cel='device.attributes["gpu.example.com"].kind == 0')), gang_group("urgent", 1, 10)
    )
    world.see(consumer("x", "x", priority=10, group="urgent")).run(3)
    assert sorted(world.evicted) == ["low0", "low1"]
    world.see(claim("new", asks(cel='device.attributes["gpu.example.com"].kind == 1')), gang_group("late", 1))
    world.see(consumer("new", "new", group="late")).run(5)
    assert world.bound == {"new": "c"}


def test_a_pod_keeps_its_room_while_the_devices_of_its_victim_are_released() -> None:
    world = World(device_node("a", cpu="4"), *published("a", device("g0")), claim("low"), claim("high"))
    world.see(consumer("low", "low", cpu="3")).run(3)
    world.slow = True
    world.see(consumer("high", "high", cpu="3", priority=100)).run(3)
    world.see(consumer("other", cpu="3", priority=50)).run(10)
    assert world.evicted == ["low"] and not world.bound
    world.slow = False
    world.release("low")
    world.run(10)
    assert world.evicted == ["low"] and world.bound == {"high": "a"}


@pytest.mark.parametrize("seed", range(30))
def test_holders_of_shared_devices_and_claims_are_evicted_at_the_lowest_cost(seed: int) -> None:
    """Devices that every node can use, and claims with several pods: a device is free when its last pod is gone."""
    rng = random.Random(seed)
    world = World(*(device_node(name, cpu=rng.choice(["2", "8"])) for name in "abc"))
    kinds = {f"d{n}": rng.randint(0, 1) for n in range(rng.randint(1, 4))}
    world.see(attached("fab", *(device(name, kind=kind) for name, kind in kinds.items())))
    users: dict[str, list[str]] = {}
    for n in range(rng.randint(1, len(kinds))):
        world.see(claim(f"c{n}"))
        for user in range(rng.randint(1, 2)):
            world.see(consumer(f"p{n}{user}", f"c{n}", priority=rng.randint(1, 4))).run(2)
            users.setdefault(f"c{n}", []).append(f"p{n}{user}")
    assert len(world.bound) == sum(map(len, users.values()))
    priority = {pod: world.objects["Pod", pod].spec.priority for pod in world.bound}
    devices = {name: world.devices(name)[0].split("/")[1] for name in users}
    kind, mine = rng.choice([None, 0, 1]), rng.randint(2, 5)
    free = [name for name, k in kinds.items() if kind in (None, k) and name not in devices.values()]
    costs = [
        (max(priority[pod] for pod in pods), len(pods))
        for name, pods in users.items()
        if kind in (None, kinds[devices[name]]) and all(priority[pod] < mine for pod in pods)
    ]
    expected = (-1, 0) if free else min(costs, default=None)
    cel = f'device.attributes["{DRIVER}"].kind == {kind}' if kind is not None else ""
    world.see(claim("high", asks(cel=cel)), consumer("high", "high", priority=mine)).run(20)
    cost = (max((priority[each] for each in world.evicted), default=-1), len(world.evicted))
    assert (cost if "high" in world.bound else None) == expected
