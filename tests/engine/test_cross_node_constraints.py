"""Gangs whose members are tied to each other across nodes: whatever can be placed in some order is placed, and nothing
is ever placed against a rule or in part."""

from __future__ import annotations

import pytest

from phalanx.engine.engine import Engine
from phalanx.engine.framework.settings import EngineSettings
from phalanx.testing import Cluster
from phalanx.testing.builders import node, pod, pod_group
from support.cross_node_constraints import HOST, ZONE, Case, Gang, Rules, case_of


@pytest.mark.parametrize("block", range(6))
def test_a_gang_is_bound_exactly_when_some_order_of_some_placement_keeps_every_rule(block: int) -> None:
    feasible = 0
    for seed in range(block * 100, block * 100 + 100):
        case = case_of(seed)
        binds = case.binds()
        case.check(binds)
        possible = case.feasible()
        assert bool(binds) == possible, f"seed {seed}: bound {binds}, possible: {possible}"
        feasible += possible
    assert 30 <= feasible <= 80, "the cases say nothing any more"


def bound(case: Case) -> list[tuple[str, Rules, int]]:
    assert case.feasible()
    binds = case.binds()
    case.check(binds)
    return binds


def test_workers_that_want_their_leader_s_zone_may_stand_before_it_in_the_queue() -> None:
    worker, leader = Rules("worker", 1, near=((ZONE, "leader"),)), Rules("leader", 1)
    binds = bound(Case([(1, "a"), (2, "b"), (2, "b")], [], [Gang("g", 4, [worker, worker, worker, leader])]))
    assert binds[0][1] == leader and {at for _, _, at in binds} == {1, 2}


def test_the_leader_goes_to_the_only_zone_that_holds_its_workers() -> None:
    worker, leader = Rules("worker", 2, near=((ZONE, "leader"),)), Rules("leader", 1)
    nodes = [(4, "a"), (1, "b"), (2, "b"), (2, "b"), (2, "b")]
    assert {at for _, _, at in bound(Case(nodes, [], [Gang("g", 4, [leader, worker, worker, worker])]))} == {1, 2, 3, 4}


def test_gangs_of_a_tree_that_want_each_other_are_seated_by_turns() -> None:
    first = Gang("a", 2, [Rules("x", 1, near=((ZONE, "x"),)), Rules("y", 1, near=((HOST, "z"),))])
    second = Gang("b", 2, [Rules("z", 1, near=((ZONE, "x"),)), Rules("w", 1, near=((HOST, "y"),))])
    binds = bound(Case([(2, "a"), (3, "b"), (1, "b")], [], [first, second], quorum=2))
    assert len(binds) == 4 and binds[0][1].app == "x"


def test_spreading_beside_running_pods_opens_as_members_sit() -> None:
    """As the cluster is, only zone b is open; a is again after the first member."""
    member, running = Rules("x", 1, spread=((ZONE, "x", 1),)), Rules("x", 1)
    binds = bound(Case([(3, "a"), (3, "b")], [(running, 0)], [Gang("g", 4, [member] * 4)]))
    assert sorted(at for _, _, at in binds) == [0, 0, 1, 1] or sorted(at for _, _, at in binds) == [0, 1, 1, 1]


def tied(count: int) -> list[object]:
    return [
        pod(f"p{i}").group("g").cpu(1 + i % 3).label("app", "x").spread(ZONE, {"app": "x"}, max_skew=1)
        for i in range(count)
    ]


def test_a_search_that_gives_up_says_so_and_one_that_does_not_has_tried_everything() -> None:
    def message(budget: int) -> str:
        run = Cluster(Engine(EngineSettings(search_budget=budget)))
        for number in range(6):
            run.see(node(f"n{number}").cpu(8 if number else 1).label(ZONE, "ab"[number > 0]))
        run.see(pod_group("g").gang(6), *tied(6)).step()
        assert run.placed == {}
        return run.condition("g")[2]

    assert "(search budget of 10 expansions used up, not proved impossible)" in message(10)
    assert "no placement was found that also keeps the pods' affinity, spreading" in message(20_000)
    assert "used up" not in message(20_000)


def test_room_promised_to_others_is_not_taken_by_tied_members() -> None:
    """The node that they would like better is promised to a pod whose victim is still leaving."""
    run = Cluster()
    run.grace = True
    run.see(node("n0").cpu(8).label(ZONE, "a"), pod("old").cpu(2).node("n0"), pod("urgent").cpu(7).priority(10))
    run.step()
    assert run.evicted == ["old"] and "urgent" not in run.placed
    worker = pod("worker").group("g").cpu(1).label("app", "w").affinity(ZONE, {"app": "l"})
    run.see(node("n1").cpu(2).label(ZONE, "a"), pod_group("g").gang(2), worker)
    run.see(pod("leader").group("g").cpu(1).label("app", "l"))
    run.step(1)
    assert run.placed == {"old": "n0", "worker": "n1", "leader": "n1"}
    run.finish().step(1)
    assert run.placed["urgent"] == "n0"
