"""A scheduler process that starts where another one stopped: between the writes of claims and the bind."""

from __future__ import annotations

import pytest

from phalanx.engine import decisions as d
from phalanx.testing import builders as b
from support.device_world import World, claim, consumer, device, device_class, device_node, gang_group, published

PREPARED = {"bindingConditions": ["prepared"], "bindingFailureConditions": ["broken"]}


def unprepared(name: str = "d0") -> dict[str, object]:
    return {**device(name), **PREPARED}


@pytest.mark.parametrize("group", ["", "g"])
def test_a_pod_keeps_the_devices_that_an_earlier_process_wrote(group: str) -> None:
    world = World(device_node("a"), published("a", device("d0")), gang_group("g", 1))
    world.see(claim("c"), consumer("p", "c", group=group)).run(stop_at=d.Bind)
    assert world.devices("c") == ["a/d0"]
    world.restart().run()
    assert world.bound == {"p": "a"} and world.devices("c") == ["a/d0"]


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("group", ["", "g"])
def test_a_claim_of_extended_resources_that_an_earlier_process_made(group: str, full: bool) -> None:
    """It is used; if its node has no room any more, it is replaced by one for another node."""
    world = World(device_class(extendedResourceName="example.com/gpu"), gang_group("g", 1))
    world.see(device_node("a"), published("a", device("d0")))
    pod = b.pod("p").uid("p").cpu("4").resource("example.com/gpu", "1")
    world.see((pod.group(group) if group else pod).build()).run(stop_at=d.Bind)
    assert world.devices("p-extended-resources") == ["a/d0"]
    world.see(device_node("b"), published("b", device("d0")))
    if full:
        world.see(b.pod("other").uid("other").cpu("8").node("a").build())
    world.restart().run()
    where = "b" if full else "a"
    assert world.bound["p"] == where and world.devices("p-extended-resources") == [f"{where}/d0"]


@pytest.mark.parametrize("status", [{"broken": "True"}, {"broken": "True", "prepared": "True"}])
def test_a_device_that_failed_while_no_scheduler_ran_is_given_back(status: dict[str, str]) -> None:
    world = World(device_node("a"), published("a", unprepared()), claim("c"), consumer("p", "c"))
    world.run(5)
    assert world.devices("c") == ["a/d0"] and not world.bound
    world.gone("ResourceSlice", "a-0").see(device_node("b"), published("b", device("d0"))).conditions("c", **status)
    world.restart().run(20)
    assert world.bound == {"p": "b"} and world.devices("c") == ["b/d0"]


def test_the_time_limit_of_a_driver_is_counted_from_the_allocation() -> None:
    world = World(device_node("a"), published("a", unprepared()), claim("c"), consumer("p", "c"))
    world.run(5)
    world.gone("ResourceSlice", "a-0").see(device_node("b"), published("b", device("d0")))
    world.now += 590.0
    world.restart().run(20)  # 40 seconds
    assert world.bound == {"p": "b"} and world.devices("c") == ["b/d0"]


def test_a_shared_claim_is_given_back_when_the_last_pod_that_waits_for_its_device_gives_up() -> None:
    world = World(device_node("a"), published("a", unprepared()), claim("c"))
    world.see(consumer("p", "c")).run(5).see(consumer("q", "c")).run(5)
    assert world.devices("c") == ["a/d0"] and not world.bound
    world.gone("ResourceSlice", "a-0").see(device_node("b"), published("b", device("d0")))
    world.conditions("c", broken="True").run(30)
    assert world.bound == {"p": "b", "q": "b"} and world.devices("c") == ["b/d0"]
