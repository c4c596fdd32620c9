"""A gang that is held again, or whose reason to give up is gone: what it was promised, and when it is tried again."""

from __future__ import annotations

import pytest
from cluster_run import ClusterRun, groups_engine

from phalanx.engine import decisions as d
from phalanx.testing.builders import composite, node, pod, pod_group


def full(nodes=8, **options):
    """Every node filled by a pod of low priority."""
    return ClusterRun(groups_engine(), **options).see(
        *(node(f"n{i}").cpu("1") for i in range(nodes)),
        *(pod(f"low{i}").cpu("1").priority(1).node(f"n{i}") for i in range(nodes)),
    )


def members(name, count, priority=100):
    return [pod(f"{name}-{i}").cpu("1").group(name).priority(priority) for i in range(count)]


def gang(name, minimum, count, priority=100):
    return [pod_group(name).gang(minimum).priority(priority), *members(name, count, priority)]


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
    world = full(grace=True).see(*gang("g", 2, 2), pod("next").cpu("1").priority(1))
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


def test_a_gang_that_is_complete_again_makes_room_anew():
    world = full(grace=True).see(*gang("g", 2, 2))
    world.step()
    world.gone("Pod", "g-1").step()
    world.finish().step()
    world.see(pod("g-3").cpu("1").group("g").priority(100)).step()
    assert sorted(world.bound) == ["g-0", "g-3"] and len(world.evicted) == 2


def test_a_gang_whose_plan_came_to_nothing_gives_its_nodes_back():
    world = full(2, grace=True).see(*gang("g", 2, 2), pod("next").cpu("1").priority(1))
    world.step()
    assert sorted(world.nominated()) == ["g-0", "g-1"]
    world.gone("Node", "n0").step()
    assert world.nominated() == {}
    world.finish().step()
    assert world.bound == {"next": "n1"}


def test_a_node_that_somebody_named_for_a_pod_is_kept_while_its_gang_arrives():
    first = pod("g-0").cpu("1").group("g").priority(100).nominated("n1")
    world = ClusterRun(groups_engine()).see(*(node(f"n{i}").cpu("1") for i in range(2)))
    world.see(pod_group("g").gang(2).priority(100), first).step()
    assert world.of(d.Nominate) == []
    world.see(pod("g-1").cpu("1").group("g").priority(100)).step()
    assert world.bound["g-0"] == "n1"
