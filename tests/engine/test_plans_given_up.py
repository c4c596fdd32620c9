"""A gang that is held again, or whose reason to give up is gone: what it was promised, and when it is tried again."""

from __future__ import annotations

import pytest

from phalanx.engine import decisions as d
from phalanx.testing import Cluster
from phalanx.testing.builders import composite, gang, node, pod, pod_group, workload


def full(nodes=8, **options):
    """Every node filled by a pod of low priority."""
    return Cluster(**options).see(
        *(node(f"n{i}").cpu("1") for i in range(nodes)),
        *(pod(f"low{i}").cpu("1").priority(1).node(f"n{i}") for i in range(nodes)),
    )


def members(name, count, priority=100):
    return [pod(f"{name}-{i}").cpu("1").group(name).priority(priority) for i in range(count)]


def lose_a_member(world):
    world.gone("Pod", "g-1")


def raise_the_minimum(world):
    world.see(pod_group("g").gang(3).priority(100))


def gate_a_member(world):
    world.see(pod("g-2").cpu("1").group("g").priority(100).gate("wait"))


def lose_the_group(world):
    world.gone("PodGroup", "g")


@pytest.mark.parametrize("hold", [lose_a_member, raise_the_minimum, gate_a_member, lose_the_group])
def test_a_held_gang_gives_back_the_nodes_it_was_promised(hold):
    world = full(grace=True).see(*gang("g", 2, "1", 100), pod("next").cpu("1").priority(1))
    world.step()
    assert sorted(world.nominated()) == ["g-0", "g-1"]
    hold(world)
    world.step()
    assert "g-0" not in world.nominated()
    world.finish().step()
    assert "next" in world.bound


def test_a_held_tree_gives_back_the_nodes_it_was_promised():
    world = full(grace=True).see(
        composite("tree").gang(2).priority(100),
        *(pod_group(name).gang(1).parent("tree").priority(100) for name in ("a", "b")),
        *members("a", 1),
        *members("b", 1),
        pod("next").cpu("1").priority(1),
    )
    world.step()
    assert sorted(world.nominated()) == ["a-0", "b-0"]
    world.gone("Pod", "b-0").step()
    assert "a-0" not in world.nominated()
    world.finish().step()
    assert "next" in world.bound


def test_a_gang_that_is_complete_again_makes_room_again():
    world = full(grace=True).see(*gang("g", 2, "1", 100))
    world.step()
    world.gone("Pod", "g-1").step()
    world.finish().step()
    world.see(pod("g-3").cpu("1").group("g").priority(100)).step()
    assert sorted(world.bound) == ["g-0", "g-3"] and len(world.evicted) == 2


def test_a_gang_whose_plan_came_to_nothing_gives_its_nodes_back():
    world = full(2, grace=True).see(*gang("g", 2, "1", 100), pod("next").cpu("1").priority(1))
    world.step()
    assert sorted(world.nominated()) == ["g-0", "g-1"]
    world.gone("Node", "n0").step()
    assert world.nominated() == {}
    world.finish().step()
    assert world.bound == {"next": "n1"}


def test_a_node_that_was_named_for_a_pod_is_kept_while_its_gang_arrives():
    first = pod("g-0").cpu("1").group("g").priority(100).nominated("n1")
    world = Cluster().see(*(node(f"n{i}").cpu("1") for i in range(2)))
    world.see(pod_group("g").gang(2).priority(100), first).step()
    assert world.of(d.Nominate) == []
    world.see(pod("g-1").cpu("1").group("g").priority(100)).step()
    assert world.bound["g-0"] == "n1"


# ---- hopeless until something it depends on changes


def lower_the_minimum(world):
    world.see(pod_group("g").gang(3).priority(100))


def make_the_group_again(world):
    world.gone("PodGroup", "g").step()
    world.see(pod_group("g").gang(3).priority(100))


@pytest.mark.parametrize("change", [lower_the_minimum, make_the_group_again])
def test_a_gang_asked_too_much_of_makes_room_once_it_asks_less(change):
    world = full().see(*gang("g", 9, "1", 100))
    world.step()
    assert world.evicted == []
    change(world)
    world.step()
    assert len(world.evicted) >= 3 and len(world.bound) >= 3


def replica(count):
    template = {"gang": {"minCount": count}}
    return workload("w").template("workers", template)


def test_a_workload_made_again_with_a_smaller_minimum_makes_room():
    world = full().see(
        replica(9), *(pod(f"g-{i}").cpu("1").priority(100).workload("w", "workers", "0") for i in range(9))
    )
    world.step()
    assert world.evicted == []
    world.gone("Workload", "w").step()
    world.see(replica(3)).step()
    assert len(world.evicted) >= 3 and len(world.bound) >= 3


def test_a_tree_that_needs_fewer_of_its_groups_makes_room():
    world = full().see(
        composite("tree").gang(3).priority(100),
        *(pod_group(name).gang(3).parent("tree").priority(100) for name in "abc"),
        *(pod for name in "abc" for pod in members(name, 3)),
    )
    world.step()
    assert world.evicted == []
    world.see(composite("tree").gang(2).priority(100)).step()
    assert len(world.evicted) >= 6 and len(world.bound) >= 6


def test_a_member_that_asks_for_less_makes_room():
    world = full(2).see(
        pod_group("g").gang(2).priority(100), *(pod(f"g-{i}").cpu("2").group("g").priority(100) for i in range(2))
    )
    world.step()
    assert world.evicted == []
    world.see(*members("g", 2)).step()
    assert len(world.evicted) == 2 and len(world.bound) == 2


@pytest.mark.parametrize("high", [gang("g", 1, "1", 100), [pod("g-0").cpu("1").priority(100)]], ids=["gang", "pod"])
def test_a_group_that_became_less_important_can_be_evicted(high):
    world = Cluster().see(
        node("n0").cpu("1"),
        pod_group("batch").gang(1).priority(200).disrupt_all(),
        pod("b0").cpu("1").group("batch").priority(10).node("n0"),
        *high,
    )
    world.step()
    assert world.evicted == []
    world.see(pod_group("batch").gang(1).priority(10).disrupt_all()).step()
    assert world.evicted == ["b0"] and world.bound == {"g-0": "n0"}
