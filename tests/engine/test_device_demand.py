"""Nodes that waiting pods with claims lack: a new node has the devices of a node like it."""

from __future__ import annotations

from phalanx.cli.demand import render
from phalanx.engine.explain.demand import demand
from phalanx.engine.explain.node_pools import DeclaredPool
from phalanx.engine.explain.values import GroupDemand, NodeDemand
from phalanx.testing import builders as b
from support.device_world import (
    World,
    asks,
    claim,
    consumer,
    device,
    device_cluster,
    device_node,
    gang_group,
    published,
)


def lacking(world: World, *pools: DeclaredPool) -> list[GroupDemand]:
    return demand(world.engine.scheduler, pools).groups


def waiting_gang(world: World, name: str, size: int, devices: int = 1) -> None:
    world.see(gang_group(name, size))
    for number in range(size):
        own = f"{name}-{number}"
        world.see(claim(own, asks("r", devices)), consumer(own, own, group=name))
    world.run(5)


def test_a_gang_asks_for_as_many_nodes_as_its_devices_need() -> None:
    world = device_cluster(nodes=1, devices=4)
    waiting_gang(world, "train", 10)
    (group,) = lacking(world)
    assert [(each.shape, each.count) for each in group.nodes] == [("like-n0", 2)]
    assert [(each.pods, each.devices) for each in group.requests] == [(10, {"gpu": 1})]
    assert "cpu=1, gpu=1 device " in render(NodeDemand([group], []))
    assert not world.bound


def test_more_devices_than_any_node_has_make_no_demand() -> None:
    world = device_cluster(nodes=2, devices=4)
    waiting_gang(world, "wide", 1, devices=5)
    (group,) = lacking(world)
    assert not group.nodes and "never fits" in group.message


def test_a_type_of_node_without_devices_is_not_asked_for() -> None:
    world = device_cluster(nodes=1, devices=2)
    world.see(*(b.node(f"cpu{n}").cpu(64).mem("64Gi").build() for n in range(3)))
    waiting_gang(world, "train", 4)
    (group,) = lacking(world)
    assert [(each.shape, each.count) for each in group.nodes] == [("like-n0", 1)]


def test_pods_without_claims_ask_for_nodes_without_devices() -> None:
    world = device_cluster(nodes=1, devices=2)
    world.see(b.node("small").cpu(8).mem("64Gi").label("other", "type").build())
    world.see(*(consumer(f"plain-{n}", cpu="7") for n in range(3))).run(5)
    (group,) = lacking(world)
    assert [(each.shape, each.count) for each in group.nodes] == [("like-small", 1)]


def test_declared_nodes_bring_the_devices_that_are_declared_with_them() -> None:
    world = World()
    waiting_gang(world, "train", 4)
    nodes = [device_node(f"new-{n}") for n in range(8)]
    slices = {each.metadata.name: published(each.metadata.name, device("d0"), device("d1")) for each in nodes}
    (group,) = lacking(world, DeclaredPool("gpu2", nodes, slices))
    assert [each.nodes for each in group.nodes] == [["new-0", "new-1"]]
    (group,) = lacking(world, DeclaredPool("plain", nodes))
    assert not group.nodes


def test_devices_of_two_units_are_counted_once() -> None:
    world = device_cluster(nodes=1, devices=4)
    waiting_gang(world, "one", 5)
    waiting_gang(world, "two", 6)
    assert [(group.name, [each.count for each in group.nodes]) for group in lacking(world)] == [
        ("one", [1]), ("two", [1]),
    ]  # fmt: skip


def test_asking_leaves_no_devices_behind() -> None:
    world = device_cluster(nodes=1, devices=4)
    waiting_gang(world, "train", 10)
    devices = world.engine.scheduler.indexes.devices
    before = sorted(devices.inventory.devices)
    lacking(world)
    devices.sync()
    assert sorted(devices.inventory.devices) == before
    world.see(device_node("n1"), published("n1", *map(device, ("d0", "d1"))))
    world.see(device_node("n2"), published("n2", *map(device, "abcd"))).run()
    assert len(world.bound) == 10
