"""Pods that name resources that no node offers cost little, however many they name, and fit when a node offers them."""

from __future__ import annotations

from typing import Any

from phalanx.engine.state.columns import MOST_RESOURCES, NOT_OFFERED
from phalanx.testing import Cluster
from phalanx.testing.builders import node, pod


def greedy(name: str, count: int) -> Any:
    asks = pod(name)
    for number in range(count):
        asks = asks.resource(f"{name}.example.com/r{number}", "1")
    return asks


def crowded() -> Cluster:
    """A cluster whose table of resources is full."""
    run = Cluster().see(node("n").cpu("4"))
    run.see(greedy("a", 3 * MOST_RESOURCES), greedy("b", MOST_RESOURCES))
    run.step()
    assert len(run.engine.columns.resources) == MOST_RESOURCES + 1
    return run


def test_pods_with_thousands_of_resources_fill_no_table_and_others_are_placed() -> None:
    run = crowded()
    assert NOT_OFFERED in run.message("b")
    run.see(pod("ok").cpu("1"), node("late").cpu("4"), pod("big").cpu("4")).step()
    assert {"ok", "big"} <= run.placed.keys() and not {"a", "b"} & run.placed.keys()


def test_a_pod_is_placed_when_a_node_offers_the_resource_that_shared_a_column() -> None:
    run = crowded()
    run.see(pod("gpu").resource("example.com/gpu", "1"), pod("more").resource("example.com/gpu", "3"))
    run.step()
    assert "gpu" not in run.placed
    run.see(node("g").cpu("4").resource("example.com/gpu", "2")).step(1)
    assert run.placed.get("gpu") == "g" and "more" not in run.placed
    assert "Insufficient example.com/gpu" in run.message("more")
    run.see(pod("equal").resource("example.com/gpu", "1"), pod("late").resource("example.com/gpu", "1"))
    run.step(1)
    assert len({"equal", "late"} & run.placed.keys()) == 1, "the second has been taken"


def test_a_resource_of_a_node_has_its_own_column_whatever_pods_name() -> None:
    run = Cluster().see(node("n").cpu("4").resource("example.com/gpu", "1"), node("m").cpu("4"))
    run.see(greedy("a", 3 * MOST_RESOURCES)).step()
    run.see(pod("one").resource("example.com/gpu", "1"), pod("two").resource("example.com/gpu", "1"))
    run.step()
    assert len({"one", "two"} & run.placed.keys()) == 1
    run.see(node("m").cpu("4").resource("other.com/fpga", "1"), pod("fpga").resource("other.com/fpga", "1")).step(1)
    assert run.placed.get("fpga") == "m"
