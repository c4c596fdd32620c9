"""The allocator against a solver that tries every choice, with every feature of claims and slices in one problem."""

from __future__ import annotations

import random
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
from support.device_problems import Problem, Reference, random_problem

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
        """Return the allocations on this node; None if there are none, or why the claims cannot be judged."""
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
            reference.check(got, problem.claims, node)
