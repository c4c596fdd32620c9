"""Claims that are allocated and not used where their gang does not fit: they are deallocated together, or none is."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from phalanx.engine import decisions as d
from phalanx.model.objects.devices import ConsumerReference, ResourceClaimStatus
from support.device_world import DRIVER, World, claim, consumer, device, device_node, gang_group, published


def allocated(name: str, node: str, *consumers: str, group: str = "") -> Any:
    """A claim whose device d0 of a node was allocated before."""
    where = {"key": "metadata.name", "operator": "In", "values": [node]}
    result = {"request": "r", "driver": DRIVER, "pool": node, "device": "d0"}
    reserved = [ConsumerReference("", "pods", each, each) for each in consumers]
    if group:
        reserved.append(ConsumerReference("scheduling.k8s.io", "podgroups", group, group))
    body = {
        "allocation": {
            "devices": {"results": [result]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [where]}]},
        }
    }
    status = msgspec.structs.replace(msgspec.convert(body, ResourceClaimStatus), reserved_for=reserved)
    return msgspec.structs.replace(claim(name), status=status)


def nodes(**cpu: str) -> list[Any]:
    made: list[Any] = []
    for name, amount in cpu.items():
        made += [device_node(name, cpu=amount), *published(name, device("d0"), device("d1"))]
    return made


def test_a_gang_gets_other_devices_if_its_claim_is_allocated_where_it_does_not_fit() -> None:
    world = World(*nodes(small="1", large="8"), allocated("c0", "small"), claim("c1"), gang_group("g", 2))
    world.see(consumer("p0", "c0", cpu="2", group="g"), consumer("p1", "c1", cpu="2", group="g")).run(20)
    assert world.bound == {"p0": "large", "p1": "large"}


def test_a_gang_that_fits_nowhere_keeps_its_allocations() -> None:
    world = World(*nodes(small="1", large="3"), allocated("c0", "small"), claim("c1"), gang_group("g", 2))
    world.see(consumer("p0", "c0", cpu="2", group="g"), consumer("p1", "c1", cpu="2", group="g")).run(20)
    assert not world.bound and world.devices("c0") == ["small/d0"]


def test_a_claim_that_the_placement_can_keep_stays_allocated() -> None:
    world = World(*nodes(small="1", large="8"), allocated("c0", "small"), allocated("c1", "large"), gang_group("g", 2))
    world.see(consumer("p0", "c0", cpu="2", group="g"), consumer("p1", "c1", cpu="2", group="g"))
    released = []
    for _ in range(20):
        world.now += 2.0
        for decision in world.engine.step(world.now):
            released += [decision.name] if isinstance(decision, d.ReleaseClaim) else []
            world._perform(decision)
    assert world.bound == {"p0": "large", "p1": "large"} and released == ["c0"]


def test_claims_that_only_a_preemption_makes_useful_are_deallocated_first() -> None:
    world = World(*nodes(small="1", large="4"), consumer("low", cpu="3")).run(3)
    assert world.bound == {"low": "large"}
    world.see(allocated("c0", "small"), claim("c1"), gang_group("g", 2, priority=5))
    for name, own in (("p0", "c0"), ("p1", "c1")):
        world.see(consumer(name, own, cpu="2", group="g", priority=5))
    world.run(20)
    assert world.bound == {"p0": "large", "p1": "large"} and world.evicted == ["low"]


@pytest.mark.parametrize("user", ["other", ""])
def test_a_claim_with_another_consumer_is_never_deallocated(user: str) -> None:
    world = World(*nodes(small="2", large="8"), gang_group("g", 2))
    world.see(allocated("c0", "small", user or "p0"), claim("c1"))
    if user:
        world.see(consumer(user, "c0", cpu="1"))
    world.see(consumer("p0", "c0", cpu="2", group="g"), consumer("p1", "c1", cpu="2", group="g")).run(20)
    if user:
        assert "p0" not in world.bound and world.devices("c0") == ["small/d0"]
    else:  # its own reservation, left by an earlier scheduler
        assert set(world.bound) == {"p0", "p1"}


def test_a_claim_that_its_group_holds_is_deallocated_while_no_member_is_placed() -> None:
    world = World(*nodes(small="1", large="8"), gang_group("g", 2), allocated("c0", "small", group="g"), claim("c1"))
    world.see(consumer("p0", "c0", cpu="2", group="g"), consumer("p1", "c1", cpu="2", group="g")).run(20)
    assert world.bound == {"p0": "large", "p1": "large"}
