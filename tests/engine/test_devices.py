"""Pods with resource claims: which devices they get, and what is never done twice."""

from __future__ import annotations

import random
from itertools import combinations, product
from typing import Any

import msgspec
import pytest

from phalanx.engine import decisions as d
from phalanx.engine import events as e
from phalanx.engine.devices.allocator import Allocator, ClaimDemand
from phalanx.engine.devices.cel import compile_selector
from phalanx.engine.devices.holdings import Unused
from phalanx.engine.devices.inventory import Device, build_pool
from phalanx.engine.devices.requests import ClaimSpecs
from phalanx.engine.devices.selectors import DeviceSelectors
from phalanx.engine.engine import Engine
from phalanx.engine.explain import why
from phalanx.model import objects as o
from phalanx.model.gates import Gates
from phalanx.model.objects.devices import ResourceClaimStatus
from phalanx.model.objects.groups import GroupResourceClaim

DRIVER = "gpu.example.com"
GROUP_CLAIMS = Gates({"DRAWorkloadResourceClaims": True})
Json = dict[str, Any]


def node(name: str, cpu: str = "8") -> o.Node:
    amounts = {"cpu": cpu, "memory": "64Gi", "pods": "110"}
    labels = {"kubernetes.io/hostname": name}
    return msgspec.convert({"metadata": {"name": name, "labels": labels}, "status": {"allocatable": amounts}}, o.Node)


def device(name: str, **attributes: object) -> Json:
    typed = {
        key: {"bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "string": value}
        for key, value in attributes.items()
    }
    return {"name": name, "attributes": typed}


def published(name: str, *devices: Json, counters: Json | None = None) -> list[o.ResourceSlice]:
    bodies = [{"devices": list(devices)}]
    if counters is not None:
        sets = [{"name": key, "counters": {c: {"value": v} for c, v in each.items()}} for key, each in counters.items()]
        bodies.append({"sharedCounters": sets})
    pool = {"name": name, "generation": 1, "resourceSliceCount": len(bodies)}
    spec = {"driver": DRIVER, "nodeName": name, "pool": pool}
    return [
        msgspec.convert({"metadata": {"name": f"{name}-{n}"}, "spec": {**spec, **body}}, o.ResourceSlice)
        for n, body in enumerate(bodies)
    ]


def device_class(name: str = "gpu") -> o.DeviceClass:
    spec = {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, o.DeviceClass)


def claim(name: str, *requests: Json, constraints: list[Json] | None = None) -> o.ResourceClaim:
    spec = {"devices": {"requests": list(requests) or [asks()], "constraints": constraints or []}}
    meta = {"name": name, "namespace": "default", "uid": f"claim-{name}"}
    return msgspec.convert({"metadata": meta, "spec": spec}, o.ResourceClaim)


def asks(name: str = "r", count: int = 1, cel: str = "", **more: Any) -> Json:
    exactly: Json = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count, **more}
    if cel:
        exactly["selectors"] = [{"cel": {"expression": cel}}]
    return {"name": name, "exactly": exactly}


def pod(name: str, *claims: str, priority: int = 0, cpu: str = "1", group: str = "") -> o.Pod:
    spec: Json = {
        "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}],
        "resourceClaims": [{"name": each, "resourceClaimName": each} for each in claims],
        "priority": priority,
    }
    if group:
        spec["schedulingGroup"] = {"podGroupName": group}
    return msgspec.convert({"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": spec}, o.Pod)


def gang(name: str, size: int, priority: int = 0) -> o.PodGroup:
    spec = {"schedulingPolicy": {"gang": {"minCount": size}}, "priority": priority}
    meta = {"name": name, "namespace": "default", "uid": name}
    return msgspec.convert({"metadata": meta, "spec": spec}, o.PodGroup)


class World:
    """An engine, and an API server and claim controller that do what they should."""

    def __init__(self, *objects: Any, gates: Gates | None = None) -> None:
        self.engine = Engine(gates=gates)
        self.objects: dict[tuple[str, str], Any] = {}
        self.bound: dict[str, str] = {}
        self.evicted: list[str] = []
        self.messages: dict[str, str] = {}
        self.fail: set[str] = set()  # claims whose writes fail
        self.slow = False  # consumers that are gone are not taken out of their claims
        self.now = 1000.0
        self.see(device_class(), *objects)

    def see(self, *objects: Any) -> World:
        for each in objects:
            for obj in each if isinstance(each, list) else [each]:
                kind = type(obj).__name__
                self.objects[kind, obj.metadata.name] = obj
                self.engine.apply(e.CHANGED_BY_KIND[kind](obj))  # type: ignore[call-arg,arg-type]
        return self

    def gone(self, kind: str, name: str) -> World:
        obj = self.objects.pop((kind, name))
        self.engine.apply(e.Gone(kind, name, obj.metadata.namespace))
        if kind == "Pod":
            self.bound.pop(name, None)
            if not self.slow:
                self.release(name)
        return self

    def release(self, pod_name: str) -> None:
        """What the ResourceClaim controller does about a pod that is gone."""
        for (kind, _), obj in list(self.objects.items()):
            if kind == "ResourceClaim" and any(
                (each.resource, each.name) == ("pods", pod_name) for each in obj.status.reserved_for
            ):
                left = [each for each in obj.status.reserved_for if each.name != pod_name]
                allocation = obj.status.allocation if left else None
                status = ResourceClaimStatus(allocation=allocation, reserved_for=left)
                self.see(msgspec.structs.replace(obj, status=status))

    def run(self, rounds: int = 60) -> World:
        for _ in range(rounds):
            self.now += 2.0
            for decision in self.engine.step(self.now):
                self._perform(decision)
            self.check()
        return self

    def _perform(self, decision: d.Decision) -> None:
        problem = ""
        if isinstance(decision, d.ReserveClaim):
            problem = e.PERMANENT if decision.name in self.fail else self._reserve(decision)
        elif isinstance(decision, d.ReleaseClaim):
            old = self.objects.get(("ResourceClaim", decision.name))
            if old is not None:
                left = [each for each in old.status.reserved_for if each.uid != decision.pod]
                keep = left or not decision.deallocate
                status = ResourceClaimStatus(allocation=old.status.allocation if keep else None, reserved_for=left)
                self.see(msgspec.structs.replace(old, status=status))
        elif isinstance(decision, d.SetPodCondition):
            self.messages[decision.name] = f"{decision.reason}: {decision.message}"
        self.engine.apply(e.Outcome(decision.id, problem))
        if isinstance(decision, d.Bind):
            self.bound[decision.name] = decision.node
            old = self.objects["Pod", decision.name]
            self.see(msgspec.structs.replace(old, spec=msgspec.structs.replace(old.spec, node_name=decision.node)))
        elif isinstance(decision, d.Evict):
            self.evicted.append(decision.name)
            self.gone("Pod", decision.name)

    def _reserve(self, decision: d.ReserveClaim) -> str:
        old = self.objects["ResourceClaim", decision.name]
        allocation = old.status.allocation or decision.allocation
        assert allocation is not None, "reserved without an allocation"
        others = [each for each in old.status.reserved_for if each.uid != decision.consumer.uid]
        reserved = [*others, decision.consumer]
        status = ResourceClaimStatus(allocation=allocation, reserved_for=reserved)
        self.see(msgspec.structs.replace(old, status=status))
        return ""

    def devices(self, claim_name: str) -> list[str]:
        allocation = self.objects["ResourceClaim", claim_name].status.allocation
        return [] if allocation is None else [f"{r.pool}/{r.device}" for r in allocation.devices.results]

    def check(self) -> None:
        """No device is in two claims, no counter and no capacity is exceeded, and bound pods have their claims."""
        users: dict[tuple[str, str], list[str]] = {}
        for (kind, name), obj in self.objects.items():
            if kind == "ResourceClaim" and obj.status.allocation is not None:
                for result in obj.status.allocation.devices.results:
                    users.setdefault((result.pool, result.device), []).append(name)
        twice = {key: names for key, names in users.items() if len(names) > 1}
        assert not twice, twice
        for name, where in self.bound.items():
            for each in self.objects["Pod", name].spec.resource_claims or ():
                assert all(got.split("/")[0] == where for got in self.devices(each.resource_claim_name)), name
                assert self.devices(each.resource_claim_name), f"{name} is bound without devices"


def test_a_pod_gets_a_device_of_its_node_and_the_next_one_waits():
    world = World(node("a"), node("b"), published("b", device("g0")))
    world.see(claim("c1"), pod("p1", "c1"), claim("c2"), pod("p2", "c2")).run()
    assert world.bound == {"p1": "b"}
    assert world.devices("c1") == ["b/g0"]
    assert "cannot allocate all claims" in world.messages["p2"]
    world.gone("Pod", "p1").run()
    assert world.bound == {"p2": "b"}


def test_a_write_that_fails_gives_the_devices_back():
    world = World(node("a"), published("a", device("g0")))
    world.fail.add("c1")
    world.see(claim("c1"), pod("p1", "c1")).run(3)
    assert world.bound == {} and world.devices("c1") == []
    world.see(claim("c2"), pod("p2", "c2", priority=5)).run(3)
    assert world.bound == {"p2": "a"}


def test_members_of_a_gang_leave_each_other_the_device_that_only_one_can_use():
    special = f'device.attributes["{DRIVER}"].special'
    world = World(node("a"), published("a", device("g0", special=True), device("g1", special=False)), gang("g", 2))
    world.see(claim("any"), claim("one", asks(cel=special)))
    world.see(pod("p1", "any", group="g"), pod("p2", "one", group="g")).run()
    assert world.devices("any") == ["a/g1"] and world.devices("one") == ["a/g0"]


def test_a_gang_without_enough_devices_gets_none():
    world = World(node("a"), published("a", device("g0"), device("g1")), gang("g", 3))
    world.see(*(claim(f"c{n}") for n in range(3)), *(pod(f"p{n}", f"c{n}", group="g") for n in range(3))).run()
    assert world.bound == {} and [world.devices(f"c{n}") for n in range(3)] == [[], [], []]
    world.see(node("b"), published("b", device("g0"))).run()
    assert len(world.bound) == 3


@pytest.mark.parametrize("size", [1, 2])
def test_pods_are_evicted_for_their_devices_and_no_others(size: int):
    world = World(node("a"), published("a", *(device(f"g{n}") for n in range(2))))
    world.see(claim("l0"), claim("l1"), pod("low0", "l0", priority=1), pod("low1", "l1", priority=2))
    world.see(pod("plain", priority=0)).run()
    assert set(world.bound) == {"low0", "low1", "plain"}
    world.see(claim("h", asks(count=size)), pod("high", "h", priority=10)).run()
    assert sorted(world.evicted) == ["low0", "low1"][:size]
    assert world.bound["high"] == "a"


def test_a_device_that_others_still_use_is_not_freed_by_an_eviction():
    world = World(node("a"), published("a", device("g0")))
    world.see(claim("shared"), pod("low", "shared", priority=1), pod("same", "shared", priority=20)).run()
    assert set(world.bound) == {"low", "same"}
    world.see(claim("h"), pod("high", "h", priority=10)).run()
    assert world.evicted == [] and "high" not in world.bound


def test_nothing_more_is_evicted_while_devices_are_being_given_back():
    world = World(*(each for name in "ab" for each in (node(name), published(name, device("g0")))))
    world.see(claim("l0"), claim("l1"), pod("low0", "l0", priority=1), pod("low1", "l1", priority=2)).run()
    world.slow = True  # the claim controller
    world.see(claim("h"), pod("high", "h", priority=10)).run()
    assert world.evicted == ["low0"] and "high" not in world.bound
    world.release("low0")
    world.run()
    assert world.evicted == ["low0"] and "high" in world.bound


def test_a_selector_that_fails_counts_only_on_nodes_the_pod_could_use():
    numa = f'device.attributes["{DRIVER}"].numa == 0'
    world = World(node("a", cpu="1"), node("b"), published("a", device("g0")), published("b", device("g0", numa=0)))
    world.see(claim("c1", asks(cel=numa)), pod("p1", "c1", cpu="1")).run(3)
    assert "CEL runtime error" in world.messages["p1"] and "no such key" in world.messages["p1"]
    world.see(claim("c2", asks(cel=numa)), pod("p2", "c2", cpu="4")).run(3)
    assert world.bound == {"p2": "b"}


def test_a_claim_of_a_group_is_given_back_if_its_gang_cannot_be_bound():
    world = World(node("a"), published("a", device("g0"), device("g1"), device("g2")), gates=GROUP_CLAIMS)
    group = gang("g", 2)
    entry = {"name": "shared", "resourceClaimName": "shared"}
    spec = msgspec.structs.replace(group.spec, resource_claims=[msgspec.convert(entry, GroupResourceClaim)])
    world.see(msgspec.structs.replace(group, spec=spec), claim("shared"), claim("c0"), claim("c1"))
    world.fail.add("c1")
    world.see(*(pod(f"p{n}", "shared", f"c{n}", group="g") for n in range(2))).run(1)
    assert world.bound == {}
    world.fail.clear()
    world.run()
    assert set(world.bound) == {"p0", "p1"}
    assert [each.name for each in world.objects["ResourceClaim", "shared"].status.reserved_for] == ["g"]


def test_why_names_the_claim_and_what_rules_devices_out():
    world = World(node("a"), published("a", device("g0", numa=0), device("g1", numa=1), device("g2", numa=1)))
    world.see(claim("c1", asks(cel=f'device.attributes["{DRIVER}"].numa == 1')), pod("p1", "c1")).run()
    world.see(claim("c2", asks(count=2, cel=f'device.attributes["{DRIVER}"].numa == 1')), pod("p2", "c2")).run()
    (announced,) = why(world.engine, "Pod", "default", "p2").items
    assert announced.hints[-1] == (
        "claim default/c2, request r: needs 2 devices; of 3 published 1 are ruled out by selector #0 of the request, "
        "1 are in use, 1 can be used now, at most 1 on one node"
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
        world.see(node(f"n{n}"), published(f"n{n}", *(device(f"g{i}", numa=i // 2) for i in range(4))))
    alive: list[str] = []
    for number in range(40):
        what = rng.random()
        if what < 0.6 or not alive:
            limits = [{"matchAttribute": f"{DRIVER}/numa"}] if rng.random() < 0.3 else []
            world.see(claim(f"c{number}", asks(count=rng.randint(1, 2)), constraints=limits))
            shared = rng.choice(alive) if alive and rng.random() < 0.15 else ""
            claims = [f"c{number}", *([f"c{shared[1:]}"] if shared else [])]
            world.see(pod(f"p{number}", *claims, priority=rng.randint(0, 3)))
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
