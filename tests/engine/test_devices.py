"""Pods with resource claims: which devices they get, and what is never done twice."""

from __future__ import annotations

import random
from itertools import combinations, product
from typing import Any

import msgspec
import pytest

from phalanx.engine.devices.allocator import Allocator, ClaimDemand
from phalanx.engine.devices.cel import compile_selector
from phalanx.engine.devices.holdings import Unused
from phalanx.engine.devices.inventory import Device, build_pool
from phalanx.engine.devices.requests import ClaimSpecs
from phalanx.engine.devices.selectors import DeviceSelectors
from phalanx.engine.explain import why
from phalanx.model.gates import Gates
from phalanx.model.objects.groups import GroupResourceClaim
from phalanx.testing import builders as b
from support.device_world import (
    DRIVER,
    World,
    asks,
    claim,
    consumer,
    device,
    device_class,
    device_node,
    gang_group,
    published,
)

GROUP_CLAIMS = Gates({"DRAWorkloadResourceClaims": True})


def test_a_pod_gets_a_device_of_its_node_and_the_next_one_waits():
    world = World(device_node("a"), device_node("b"), published("b", device("g0")))
    world.see(claim("c1"), consumer("p1", "c1"), claim("c2"), consumer("p2", "c2")).run()
    assert world.bound == {"p1": "b"}
    assert world.devices("c1") == ["b/g0"]
    assert "cannot allocate all claims" in world.messages["p2"]
    world.gone("Pod", "p1").run()
    assert world.bound == {"p2": "b"}


def test_a_write_that_fails_gives_the_devices_back():
    world = World(device_node("a"), published("a", device("g0")))
    world.fail.add("c1")
    world.see(claim("c1"), consumer("p1", "c1")).run(3)
    assert world.bound == {} and world.devices("c1") == []
    world.see(claim("c2"), consumer("p2", "c2", priority=5)).run(3)
    assert world.bound == {"p2": "a"}


def test_a_claim_that_a_pod_names_twice_is_allocated_once():
    world = World(device_node("a"), published("a", device("g0")), claim("c"))
    world.see(b.pod("p").uid("p").cpu("1").claim("first", "c").claim("second", "c").build()).run()
    assert world.bound == {"p": "a"} and world.devices("c") == ["a/g0"]


@pytest.mark.parametrize("group", ["", "g"])
@pytest.mark.parametrize("resource", ["example.com/gpu", "deviceclass.resource.kubernetes.io/late"])
def test_a_pod_waits_for_the_class_that_offers_its_extended_resource(group: str, resource: str):
    world = World(device_node("a"), published("a", device("g0")), gang_group("g", 1))
    waiting = b.pod("p").uid("p").cpu("1").resource(resource, "1")
    world.see((waiting.group(group) if group else waiting).build()).run()
    assert world.bound == {} and resource in world.messages["p"]
    world.see(device_class("late", extendedResourceName="example.com/gpu")).run()
    assert world.bound == {"p": "a"}


@pytest.mark.parametrize("group", ["", "g"])
def test_the_claim_of_extended_resources_asks_only_for_what_the_node_does_not_offer(group: str):
    """Node a offers one resource itself, node b none: on b both need devices, and there is only one."""
    world = World(gang_group("g", 1), device_class("other", extendedResourceName="example.com/nic"))
    world.see(device_class(extendedResourceName="example.com/gpu"))
    world.see(b.node("a").cpu("8").mem("8Gi").resource("example.com/gpu", 2).build(), device_node("b"))
    world.see(published("a", device("g0")), published("b", device("g0")))

    def both(name: str) -> Any:
        made = b.pod(name).uid(name).cpu("1").resource("example.com/gpu", 1).resource("example.com/nic", 1)
        return (made.group(group) if group else made).build()

    world.see(both("p")).run()
    assert world.bound == {"p": "a"} and world.devices("p-extended-resources") == ["a/g0"]
    world.see(both("q")).run()
    assert "q" not in world.bound


def test_members_of_a_gang_leave_each_other_the_device_that_only_one_can_use():
    special = f'device.attributes["{DRIVER}"].special'
    world = World(
        device_node("a"), published("a", device("g0", special=True), device("g1", special=False)), gang_group("g", 2)
    )
    world.see(claim("any"), claim("one", asks(cel=special)))
    world.see(consumer("p1", "any", group="g"), consumer("p2", "one", group="g")).run()
    assert world.devices("any") == ["a/g1"] and world.devices("one") == ["a/g0"]


def test_a_gang_without_enough_devices_gets_none():
    world = World(device_node("a"), published("a", device("g0"), device("g1")), gang_group("g", 3))
    world.see(*(claim(f"c{n}") for n in range(3)), *(consumer(f"p{n}", f"c{n}", group="g") for n in range(3))).run()
    assert world.bound == {} and [world.devices(f"c{n}") for n in range(3)] == [[], [], []]
    world.see(device_node("b"), published("b", device("g0"))).run()
    assert len(world.bound) == 3


@pytest.mark.parametrize("size", [1, 2])
def test_pods_are_evicted_for_their_devices_and_no_others(size: int):
    world = World(device_node("a"), published("a", *(device(f"g{n}") for n in range(2))))
    world.see(claim("l0"), claim("l1"), consumer("low0", "l0", priority=1), consumer("low1", "l1", priority=2))
    world.see(consumer("plain", priority=0)).run()
    assert set(world.bound) == {"low0", "low1", "plain"}
    world.see(claim("h", asks(count=size)), consumer("high", "h", priority=10)).run()
    assert sorted(world.evicted) == ["low0", "low1"][:size]
    assert world.bound["high"] == "a"


def test_a_device_that_others_still_use_is_not_freed_by_an_eviction():
    world = World(device_node("a"), published("a", device("g0")))
    world.see(claim("shared"), consumer("low", "shared", priority=1), consumer("same", "shared", priority=20)).run()
    assert set(world.bound) == {"low", "same"}
    world.see(claim("h"), consumer("high", "h", priority=10)).run()
    assert world.evicted == [] and "high" not in world.bound


def test_nothing_more_is_evicted_while_devices_are_being_given_back():
    world = World(*(each for name in "ab" for each in (device_node(name), published(name, device("g0")))))
    world.see(claim("l0"), claim("l1"), consumer("low0", "l0", priority=1), consumer("low1", "l1", priority=2)).run()
    world.slow = True  # the claim controller
    world.see(claim("h"), consumer("high", "h", priority=10)).run()
    assert world.evicted == ["low0"] and "high" not in world.bound
    world.release("low0")
    world.run()
    assert world.evicted == ["low0"] and "high" in world.bound


def test_a_selector_that_fails_counts_only_on_nodes_the_pod_could_use():
    numa = f'device.attributes["{DRIVER}"].numa == 0'
    world = World(
        device_node("a", cpu="1"), device_node("b"), published("a", device("g0")), published("b", device("g0", numa=0))
    )
    world.see(claim("c1", asks(cel=numa)), consumer("p1", "c1", cpu="1")).run(3)
    assert "CEL runtime error" in world.messages["p1"] and "no such key" in world.messages["p1"]
    world.see(claim("c2", asks(cel=numa)), consumer("p2", "c2", cpu="4")).run(3)
    assert world.bound == {"p2": "b"}


def test_a_claim_of_a_group_is_given_back_if_its_gang_cannot_be_bound():
    world = World(device_node("a"), published("a", device("g0"), device("g1"), device("g2")), gates=GROUP_CLAIMS)
    group = gang_group("g", 2)
    entry = {"name": "shared", "resourceClaimName": "shared"}
    spec = msgspec.structs.replace(group.spec, resource_claims=[msgspec.convert(entry, GroupResourceClaim)])
    world.see(msgspec.structs.replace(group, spec=spec), claim("shared"), claim("c0"), claim("c1"))
    world.fail.add("c1")
    world.see(*(consumer(f"p{n}", "shared", f"c{n}", group="g") for n in range(2))).run(1)
    assert world.bound == {}
    world.fail.clear()
    world.run()
    assert set(world.bound) == {"p0", "p1"}
    assert [each.name for each in world.objects["ResourceClaim", "shared"].status.reserved_for] == ["g"]


def test_why_names_the_claim_and_what_rules_devices_out():
    world = World(device_node("a"), published("a", device("g0", numa=0), device("g1", numa=1), device("g2", numa=1)))
    world.see(claim("c1", asks(cel=f'device.attributes["{DRIVER}"].numa == 1')), consumer("p1", "c1")).run()
    world.see(claim("c2", asks(count=2, cel=f'device.attributes["{DRIVER}"].numa == 1')), consumer("p2", "c2")).run()
    (announced,) = why(world.engine, "Pod", "default", "p2").items
    assert announced.hints[-1] == (
        "claim default/c2, request r: needs 2 devices; of 3 published 1 is ruled out by selector #0 of the request, "
        "1 is in use, 1 can be used now, at most 1 on one node"
    )


# ---- against brute force


def _possible(
    demands: list[ClaimDemand], selectors: DeviceSelectors, capacity: dict[str, int], uses: dict[str, int]
) -> bool:
    """Whether devices can be dealt out at all: every choice is tried."""
    units = []
    for number, demand in enumerate(demands):
        for alternatives in demand.spec.requests:
            request = alternatives[0]
            fitting = [each for each in demand.devices if request.selects(each, selectors) is True]
            units.append((number, request, list(combinations(fitting, request.count))))
    for choice in product(*(sets for _, _, sets in units)):
        chosen = [each for group in choice for each in group]
        if len({each.key for each in chosen}) != len(chosen):
            continue
        used = sum(uses.get(each.name, 0) for each in chosen)
        if capacity and used > capacity["memory"]:
            continue
        if all(_kept(demand, number, units, choice) for number, demand in enumerate(demands)):
            return True
    return False


def _kept(demand: ClaimDemand, number: int, units: list[Any], choice: tuple[tuple[Device, ...], ...]) -> bool:
    for limit in demand.spec.constraints:
        values = [
            each.attributes.get(limit.attribute)
            for (owner, request, _), group in zip(units, choice, strict=True)
            if owner == number and limit.concerns(request)
            for each in group
        ]
        if None in values or len(set(values)) != (len(values) if limit.distinct else min(1, len(values))):
            return False
    return True


@pytest.mark.parametrize("seed", range(150))
def test_the_allocator_finds_a_solution_exactly_where_there_is_one(seed: int):
    rng = random.Random(seed)
    counters = {"memory": rng.randint(3, 9)} if rng.random() < 0.4 else {}
    uses = {f"g{n}": rng.randint(1, 3) for n in range(6)} if counters else {}
    devices = []
    for number in range(rng.randint(1, 6)):
        made = device(f"g{number}", kind=rng.randint(0, 2), numa=rng.randint(0, 1))
        if rng.random() < 0.2:
            del made["attributes"]["numa"]
        if counters:
            made["consumesCounters"] = [{"counterSet": "s", "counters": {"memory": {"value": str(uses[f"g{number}"])}}}]
        devices.append(made)
    slices = published("a", *devices, counters={"s": {"memory": str(counters["memory"])}} if counters else None)
    pool = build_pool((DRIVER, "a"), {each.metadata.name: each for each in slices}, ())
    assert pool is not None and not pool.problem
    claims = []
    for number in range(rng.randint(1, 3)):
        requests = [
            asks(f"r{n}", rng.randint(1, 2), f'device.attributes["{DRIVER}"].kind <= {rng.randint(0, 2)}')
            for n in range(rng.randint(1, 2))
        ]
        limits = []
        if rng.random() < 0.6:
            field = rng.choice(["matchAttribute", "distinctAttribute"])
            limits.append({field: f"{DRIVER}/{rng.choice(['numa', 'kind'])}"})
        claims.append(claim(f"c{number}", *requests, constraints=limits))
    selectors = DeviceSelectors(compile_selector)
    specs = ClaimSpecs(lambda name: device_class(name))
    demands = [ClaimDemand(each.metadata.name, each.metadata.name, specs.of(each), pool.devices) for each in claims]
    solution = Allocator(demands, Unused(), selectors).solve()
    assert (solution is not None) == _possible(demands, selectors, counters, uses)
    if solution is not None:
        chosen = [pick.device.key for picks in solution.values() for pick in picks]
        assert len(set(chosen)) == len(chosen)


@pytest.mark.parametrize(
    ("expression", "evaluations"),
    [
        (f'device.attributes["{DRIVER}"].model == "a"', 2),  # one for each model
        (f'has(device.attributes["{DRIVER}"].model) && device.driver == "{DRIVER}"', 2),
        (f'device.capacity["{DRIVER}"].memory.compareTo(quantity("1Gi")) > 0', 1),
        (f'device.attributes["{DRIVER}"].uuid.startsWith("u")', 6),
        (f'device.attributes["{DRIVER}"].exists(name, name == "uuid")', 6),  # may read any attribute
    ],
)
def test_equal_devices_share_one_evaluation_of_a_selector(expression: str, evaluations: int):
    devices = [
        {
            "name": f"d{n}",
            "attributes": {"model": {"string": "ab"[n % 2]}, "uuid": {"string": f"u{n}"}},
            "capacity": {"memory": {"value": "2Gi"}},
        }
        for n in range(6)
    ]
    pool = build_pool((DRIVER, "n0"), {each.metadata.name: each for each in published("n0", *devices)}, ())
    assert pool is not None
    selectors, alone = DeviceSelectors(compile_selector), compile_selector(expression)
    assert [selectors.verdict(expression, each) for each in pool.devices] == [
        alone.matches(each) for each in pool.devices
    ]
    assert selectors.evaluations == evaluations


@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_ever_allocated_twice(seed: int):
    rng = random.Random(seed)
    world = World()
    for n in range(3):
        world.see(device_node(f"n{n}"), published(f"n{n}", *(device(f"g{i}", numa=i // 2) for i in range(4))))
    alive: list[str] = []
    for number in range(40):
        what = rng.random()
        if what < 0.6 or not alive:
            limits = [{"matchAttribute": f"{DRIVER}/numa"}] if rng.random() < 0.3 else []
            world.see(claim(f"c{number}", asks(count=rng.randint(1, 2)), constraints=limits))
            shared = rng.choice(alive) if alive and rng.random() < 0.15 else ""
            claims = [f"c{number}", *([f"c{shared[1:]}"] if shared else [])]
            world.see(consumer(f"p{number}", *claims, priority=rng.randint(0, 3)))
            alive.append(f"p{number}")
        elif what < 0.9:
            name = alive.pop(rng.randrange(len(alive)))
            if ("Pod", name) in world.objects:
                world.gone("Pod", name)
        elif rng.random() < 0.5:
            world.fail = {f"c{rng.randrange(40)}"}
        world.run(2)
        world.engine.validate()
        alive = [name for name in alive if ("Pod", name) in world.objects]
