"""Devices as the dashboard shows them: columns of node rows, the devices of one node, what a pending unit asks for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from phalanx.engine.explain import why
from phalanx.engine.explain.device_table import device_table
from phalanx.model import objects as o
from phalanx.model.objects.devices import IMPLICIT_RESOURCE_PREFIX
from phalanx.serve.queries.engine_view import EngineReader
from support.device_world import (
    DRIVER,
    World,
    ask,
    asks,
    claim,
    claim_template,
    claiming_job,
    consumer,
    device,
    device_cluster,
    device_node,
    gang_group,
    published,
)

GPU = f"{IMPLICIT_RESOURCE_PREFIX}gpu"


def reader(world: World) -> EngineReader:
    return EngineReader(world.engine, lambda: world.now)


def rows(found: EngineReader) -> dict[str, Any]:
    layout = found.layout()
    return found.nodes(layout, found.names())


def tainted(world: World, name: str) -> None:
    taint = {"key": "example.com/broken", "value": "yes", "effect": "NoSchedule"}
    spec = {"deviceSelector": {"driver": DRIVER, "device": name}, "taint": taint}
    world.see(msgspec.convert({"metadata": {"name": "broken"}, "spec": spec}, o.DeviceTaintRule))


def test_a_class_is_the_first_column_of_every_node() -> None:
    world = device_cluster(2, 3)
    world.see(claim("c", asks("r", 2)), consumer("p", "c")).run()
    found = reader(world)
    assert found.layout().resources[0] == GPU
    at = world.bound["p"]
    assert {name: (row[2][0], row[3][0]) for name, row in rows(found).items()} == {
        name: (3, 2 if name == at else 0) for name in ("n0", "n1")
    }
    assert rows(found)[at][6] == {"pods/default/0": [1, 2]}  # one pod that has two devices
    (row,) = device_table(world.engine.indexes.devices, ())
    assert (row.devices, row.in_use) == (6, 2)  # `top` says the same
    assert found.sums(found.layout())["use"][GPU] == pytest.approx(2 / 6, abs=1e-4)
    assert GPU not in found.state()["resources"]  # it has a view of its own for them


def test_without_devices_nothing_is_added() -> None:
    world = World(device_node("n0"))
    assert all(not name.startswith(IMPLICIT_RESOURCE_PREFIX) for name in reader(world).layout().resources)
    assert reader(world).node("n0")["devices"] == []  # type: ignore[index]


def test_nodes_are_read_again_when_their_devices_change() -> None:
    world = device_cluster(3, 2)
    found = reader(world)
    assert found.changed() is None
    assert found.changed() == set()
    world.see(claim("c", asks("r", 1)), consumer("p", "c")).run()
    at = world.bound["p"]
    assert found.changed() == {at}
    world.slow = True  # the claim is released later than the pod ends
    world.gone("Pod", "p")
    found.changed()
    assert rows(found)[at][3][0] == 1
    world.release("p")
    assert found.changed() == {at}
    assert rows(found)[at][3][0] == 0
    world.see(device_node("new"))
    assert found.changed() is None
    world.see(published("new", device("d0")))
    assert found.changed() == {"new"}
    assert rows(found)["new"][2][0] == 1


def test_the_first_devices_change_the_columns() -> None:
    world = World(device_node("n0"))
    found = reader(world)
    found.changed()
    before = found.layout()
    world.see(published("n0", device("d0")))
    assert found.changed() is None  # everything is read again
    assert found.layout() != before


def test_a_node_lists_its_devices_with_claims_and_pods() -> None:
    world = World(device_node("n0"), published("n0", *(device(f"d{i}", nvlink=i // 2) for i in range(3))))
    world.see(claim("c", asks("r", 1)), consumer("p", "c")).run()
    tainted(world, "d2")
    listed = reader(world).node("n0")["devices"]  # type: ignore[index]
    assert [(each["name"], each["state"]) for each in listed] == [("d0", "in use"), ("d1", "free"), ("d2", "tainted")]
    assert listed[0]["claims"] == ["default/c"] and listed[0]["pods"] == ["default/p"]
    assert listed[2]["taints"] == ["example.com/broken=yes:NoSchedule"]
    assert listed[1]["classes"] == ["gpu"] and listed[1]["attributes"] == {f"{DRIVER}/nvlink": "0"}
    (row,) = rows(reader(world)).values()
    assert (row[2][0], row[3][0]) == (2, 1)  # a tainted device is no room
    (counted,) = device_table(world.engine.indexes.devices, ())
    assert (counted.tainted, counted.in_use, counted.free) == (1, 1, 1)


def test_shared_capacity_says_how_much_is_used() -> None:
    shared = {**device("d0"), "allowMultipleAllocations": True, "capacity": {"memory": {"value": "80Gi"}}}
    world = World(device_node("n0"), published("n0", shared))
    world.see(claim("c", asks("r", 1, capacity={"requests": {"memory": "30Gi"}})), consumer("p", "c")).run()
    (listed,) = reader(world).node("n0")["devices"]  # type: ignore[index]
    assert listed["state"] == "shared" and listed["shares"] == [["memory", "30Gi", "80Gi"]]
    assert listed["pods"] == ["default/p"]


def test_a_device_that_pods_share_is_one_device_of_the_map() -> None:
    shared = {**device("d0"), "allowMultipleAllocations": True, "capacity": {"memory": {"value": "80Gi"}}}
    world = World(device_node("n0"), published("n0", shared, {**shared, "name": "d1"}))
    for name in ("c", "d"):
        world.see(claim(name, asks("r", 1, capacity={"requests": {"memory": "30Gi"}})), consumer(name, name))
    row = rows(reader(world.run()))["n0"]
    assert (row[2][0], row[3][0]) == (2, 1) and row[6] == {"pods/default/0": [2, 1]}  # two pods on one of two devices


def test_what_a_pending_gang_asks_for_is_counted_as_top_does() -> None:
    world = device_cluster(2, 2)
    world.see(gang_group("train", 3), *(claim(f"c{i}", asks("r", 2)) for i in range(3)))
    world.see(*(consumer(f"p{i}", f"c{i}", group="train") for i in range(3))).run()
    found = reader(world)
    free = found.free_devices("podgroup/default/train")["rows"]
    assert free == [msgspec.to_builtins(each) for each in device_table(world.engine.indexes.devices, ())]
    assert free[0]["free"] == 4 and free[0]["mostOnNode"] == 2
    assert found.shape("podgroup/default/train")[GPU] == 2
    assert found.free_devices("podgroup/default/nothing")["rows"] == []


def test_a_gang_without_devices_is_short_of_devices() -> None:
    world = device_cluster(2, 2)
    world.see(gang_group("train", 3), *(claim(f"c{i}", asks("r", 2)) for i in range(3)))
    world.see(*(consumer(f"p{i}", f"c{i}", group="train") for i in range(3))).run()
    (item,) = why(world.engine.scheduler, "PodGroup", "default", "train").items
    assert item.headline == "Needs 3 pods at once; there is room for 2 (short of devices)"
    assert item.queue is not None and item.queue.waits_for[0] == "devices that its claims ask for are free"
    outlook, _ = ask(
        device_cluster(2, 2), claim_template("two", 2), claiming_job("big", 3, {"resourceClaimTemplateName": "two"})
    )
    assert outlook.items[0].headline == "Needs 3 pods at once; there is room for 2 (short of devices)"


def test_a_gang_short_of_cpu_is_not_short_of_devices() -> None:
    world = device_cluster(2, 2)
    world.see(gang_group("train", 3), *(claim(f"c{i}", asks("r", 1)) for i in range(3)))
    world.see(*(consumer(f"p{i}", f"c{i}", group="train", cpu="5") for i in range(3))).run()
    (item,) = why(world.engine.scheduler, "PodGroup", "default", "train").items
    assert item.headline == "Needs 3 pods at once; there is room for 2 (short of CPU)"
