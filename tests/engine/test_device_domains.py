"""One device attribute in common for all members of a group, asked for by annotation."""

from __future__ import annotations

import msgspec
import pytest

from phalanx.engine.explain import why
from phalanx.model import objects as o
from support.device_world import DRIVER, World, claim, consumer, device, device_node, gang_group, published

ATTRIBUTE = f"{DRIVER}/domain"


def linked(name: str, size: int, priority: int = 0) -> o.PodGroup:
    group = gang_group(name, size, priority)
    annotations = {"scheduling.phalanx.dev/match-device-attribute": ATTRIBUTE}
    return msgspec.structs.replace(group, metadata=msgspec.structs.replace(group.metadata, annotations=annotations))


def cluster(*domains: str, devices: int = 1) -> World:
    """One node for every letter, in the NVLink domain of that letter."""
    world = World()
    for n, domain in enumerate(domains):
        world.see(device_node(f"n{n}"), published(f"n{n}", *(device(f"d{i}", domain=domain) for i in range(devices))))
    return world


def members(world: World, name: str, count: int, priority: int = 0) -> World:
    for n in range(count):
        world.see(claim(f"{name}-{n}"), consumer(f"{name}-{n}", f"{name}-{n}", group=name, priority=priority))
    return world


@pytest.mark.parametrize("first", ["group", "nodes"])
def test_all_members_get_devices_of_one_domain(first: str) -> None:
    if first == "group":
        world = World(linked("g", 3))
        for n, domain in enumerate("abbab"):
            world.see(device_node(f"n{n}"), published(f"n{n}", device("d0", domain=domain)))
    else:
        world = cluster(*"abbab").see(linked("g", 3))
    members(world, "g", 3).run()
    assert sorted(world.bound.values()) == ["n1", "n2", "n4"]  # a has two nodes only


def test_a_group_that_fits_in_no_domain_waits_and_says_which_it_lacks() -> None:
    world = members(cluster(*"abab").see(linked("g", 3)), "g", 3).run()
    assert not world.bound
    (item,) = why(world.engine.scheduler, "PodGroup", "default", "g").items
    assert "needs 3 pods in one domain; best domain a fits 2" in item.summary
    world.see(device_node("n9"), published("n9", device("d0", domain="b"))).run()
    assert len(world.bound) == 3


def test_a_replacement_returns_to_the_domain_of_the_others() -> None:
    world = members(cluster(*"abbabb").see(linked("g", 3)), "g", 3).run()
    where = {world.bound[f"g-{n}"] for n in range(3)}
    world.gone("Pod", "g-0").see(claim("again"), consumer("again", "again", group="g")).run()
    assert world.bound["again"] in {"n1", "n2", "n4", "n5"} and where <= {"n1", "n2", "n4", "n5"}


def test_pods_of_one_domain_are_evicted_and_no_others() -> None:
    world = cluster(*"aabb")
    for n in range(4):
        world.see(claim(f"low-{n}"), consumer(f"low-{n}", f"low-{n}"))
    world.run()
    members(world.see(linked("g", 2, priority=9)), "g", 2, priority=9).run()
    assert len(world.evicted) == 2
    assert {world.bound[f"g-{n}"] for n in range(2)} in ({"n0", "n1"}, {"n2", "n3"})


def test_a_node_whose_devices_differ_is_in_no_domain_and_a_change_of_slices_counts() -> None:
    world = World(
        device_node("n0"), published("n0", device("d0", domain="a"), device("d1", domain="b")), linked("g", 2)
    )
    members(world, "g", 2).run()
    assert not world.bound
    (again,) = published("n0", device("d0", domain="a"), device("d1", domain="a"))
    world.see(again).run()
    assert sorted(world.bound.values()) == ["n0", "n0"]


def test_more_attributes_than_may_be_asked_for_change_nothing_for_others() -> None:
    world = cluster(*"ab")
    for n in range(100):
        group = linked(f"x{n}", 1)
        odd = {"scheduling.phalanx.dev/match-device-attribute": f"example.com/a{n}"}
        world.see(msgspec.structs.replace(group, metadata=msgspec.structs.replace(group.metadata, annotations=odd)))
    world.see(claim("plain"), consumer("plain", "plain")).run()
    assert "plain" in world.bound
    assert (
        sum(key.startswith("device:") for each in world.engine.columns.nodes if each for key in each.metadata.labels)
        == 0
    )
