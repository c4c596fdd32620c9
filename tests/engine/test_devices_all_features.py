"""The allocator against a solver that tries every choice, with every feature of claims and slices in one problem."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import msgspec
import pytest

from phalanx.engine.devices.allocator import AllocationError, Allocator, ClaimDemand
from phalanx.engine.devices.cel import compile_selector
from phalanx.engine.devices.holdings import Holdings, held_by
from phalanx.engine.devices.inventory import Inventory, in_order
from phalanx.engine.devices.requests import ClaimSpecs
from phalanx.engine.devices.results import allocation_of
from phalanx.engine.devices.selectors import DeviceSelectors
from phalanx.model import objects as o
from phalanx.testing import builders as b
from support.device_problems import CLASSES, GPU, RACK, Problem, Reference, claim, random_problem
from support.device_world import World, consumer, gang_group

Json = dict[str, Any]


class Answer:
    """What the engine says about the claims of one pod, on one node after the other."""

    def __init__(self, problem: Problem) -> None:
        self.inventory = Inventory()
        for each in problem.slices:
            self.inventory.slice_changed(None, msgspec.convert(each, o.ResourceSlice))
        self.inventory.refresh()
        self.holdings = Holdings(self.inventory)
        for each in problem.allocated:
            held = msgspec.convert(each, o.ResourceClaim)
            assert held.status.allocation is not None
            self.holdings.set(("default", held.metadata.name), held_by(held.status.allocation))
        classes = {each["metadata"]["name"]: msgspec.convert(each, o.DeviceClass) for each in problem.classes}
        self.specs = ClaimSpecs(classes.get)
        self.selectors = DeviceSelectors(compile_selector)
        self.claims = [msgspec.convert(each, o.ResourceClaim) for each in problem.claims]

    def on(self, body: Json) -> list[Json] | str | None:
        """Return the allocations on this node; None if there are none, or why the claims cannot be checked."""
        node = msgspec.convert(body, o.Node)
        pools = self.inventory.pools_of(node)
        unusable = next((pool.problem for pool in pools if pool.problem), "")
        devices = list(in_order(pools, node))
        demands = [
            ClaimDemand(each.metadata.name, each.metadata.name, self.specs.of(each), devices, unusable)
            for each in self.claims
        ]
        allocator = Allocator(demands, self.holdings, self.selectors)
        try:
            found = allocator.solve()
        except AllocationError as problem:
            return str(problem)
        assert not allocator.exhausted
        if found is None:
            return None
        made = [allocation_of(d.spec, found[d.claim], node.metadata.name, d.name) for d in demands]
        return [msgspec.to_builtins(each) for each in made]


@pytest.mark.parametrize("seed", range(400))
def test_claims_are_allocated_exactly_where_there_is_a_way(seed: int) -> None:
    problem = random_problem(random.Random(seed))
    reference, answer = Reference(problem), Answer(problem)
    for node in problem.nodes:
        got = answer.on(node)
        expected = reference.possible([(each, node) for each in problem.claims])
        assert isinstance(got, list) == expected, (node, got)
        if isinstance(got, list):
            reference.check(got, [(each, node) for each in problem.claims])


@pytest.mark.parametrize("seed", range(150))
def test_a_gang_gets_its_claims_exactly_where_there_is_a_way(seed: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, claims=4)
    reference = Reference(problem)
    if reference.undecided():
        return
    world = World()
    for kind, bodies in (("DeviceClass", problem.classes), ("ResourceSlice", problem.slices)):
        world.see(*(msgspec.convert(each, getattr(o, kind)) for each in bodies))
    for node in problem.nodes:
        world.see(
            b.node(node["metadata"]["name"]).cpu("8").mem("64Gi").label(RACK, node["metadata"]["labels"][RACK]).build()
        )
    world.see(*(msgspec.convert(each, o.ResourceClaim) for each in (*problem.allocated, *problem.claims)))
    members = rng.randint(1, len(problem.claims))  # the last one uses the claims that are left
    owner = [min(number, members - 1) for number in range(len(problem.claims))]
    world.see(gang_group("g", members))
    for member in range(members):
        mine = [f"c{number}" for number, of in enumerate(owner) if of == member]
        world.see(consumer(f"p{member}", *mine, group="g"))
    world.run(12)
    nodes = {node["metadata"]["name"]: node for node in problem.nodes}
    places = product(problem.nodes, repeat=members)
    expected = any(
        reference.possible([(each, place[of]) for each, of in zip(problem.claims, owner, strict=True)])
        for place in places
    )
    assert len(world.bound) == (members if expected else 0), world.messages
    made = [world.objects["ResourceClaim", each["metadata"]["name"]].status.allocation for each in problem.claims]
    if expected:
        where = [(each, nodes[world.bound[f"p{of}"]]) for each, of in zip(problem.claims, owner, strict=True)]
        reference.check([msgspec.to_builtins(each) for each in made], where)
    else:
        assert made == [None] * len(made)
    world.engine.validate()


def test_configuration_names_each_class_once_and_no_requests_where_it_is_for_all() -> None:
    """As kube-scheduler writes it: of each class once, then that of the claim with its requests as they are."""
    parts = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}
    requests = [{"name": "a", "exactly": parts}, {"name": "b", "firstAvailable": [{"name": "s", **parts}]}]
    own = [{"requests": ["a"], "opaque": {"driver": GPU, "parameters": {}}}]
    own += [{"requests": ["a", "b/other"], "opaque": {"driver": GPU, "parameters": {}}}]
    own += [{"requests": ["b/other"], "opaque": {"driver": GPU, "parameters": {}}}]
    pool = {"name": "n0", "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": f"d{n}", "attributes": {"kind": {"int": 0}}} for n in range(2)]
    body = {"driver": GPU, "pool": pool, "nodeName": "n0", "devices": devices}
    node: Json = {"metadata": {"name": "n0"}}
    slices = [{"metadata": {"name": "n0"}, "spec": body}]
    problem = Problem([node], slices, CLASSES, [], [claim("c", {"devices": {"requests": requests, "config": own}})])
    allocations = Answer(problem).on(node)
    assert isinstance(allocations, list)
    (made,) = allocations
    got = [(each["source"], each.get("requests", [])) for each in made["devices"]["config"]]
    assert got == [("FromClass", []), ("FromClaim", ["a"]), ("FromClaim", ["a", "b/other"])]
