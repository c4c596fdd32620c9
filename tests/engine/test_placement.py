"""Where a group tree goes: minimums for everybody first, tight domains, choices reconsidered, whole or not at all."""

from __future__ import annotations

import numpy as np
import pytest

from phalanx.engine.placement import Composite, Leaf, PlacementProblem, SearchOutcome, SearchVerdict, Subtree, place
from support.small_problems import cluster, faults, sitting_of

CPU = [{"cpu": 1.0}]


def pods_of(outcome: SearchOutcome, leaf: Subtree) -> int:
    return sum(int(s.counts.sum()) for s in outcome.shares if s.leaf is leaf)


def nodes_of(outcome: SearchOutcome, leaf: Subtree) -> set[int]:
    return {int(n) for s in outcome.shares if s.leaf is leaf for n in s.nodes}


def placed(problem: PlacementProblem) -> SearchOutcome:
    outcome = place(problem)
    assert outcome.verdict is SearchVerdict.PLACED
    assert faults(problem, sitting_of(outcome)) == []
    return outcome


def gang_leaf(name: str, minimum: int, count: int | None = None, key: str | None = None) -> Leaf:
    return Leaf(name, minimum, ((0, count if count is not None else minimum),), key=key)


def test_the_block_of_the_kep_example_that_holds_both_gangs_is_found() -> None:
    nodes: list[dict[str, object]] = [
        {"cpu": 3, "block": "a", "rack": "a1"},
        {"cpu": 5, "block": "a", "rack": "a2"},
        {"cpu": 5, "block": "b", "rack": "b1"},
        {"cpu": 5, "block": "b", "rack": "b2"},
    ]
    one, two = gang_leaf("pg-1", 5, key="rack"), gang_leaf("pg-2", 5, key="rack")
    root = Composite("root", 2, (one, two), key="block")
    problem = cluster(nodes, root, CPU)
    outcome = placed(problem)
    assert outcome.domains[id(root)] == ("block", 1)
    assert nodes_of(outcome, one) | nodes_of(outcome, two) == {2, 3}


def test_an_earlier_gang_moves_to_another_rack_when_its_sibling_needs_the_first() -> None:
    """The variant of the KEP example that sibling order alone cannot solve."""
    nodes: list[dict[str, object]] = [{"cpu": 5, "block": "a", "rack": "a1"}, {"cpu": 3, "block": "a", "rack": "a2"}]
    for children in ([3, 5], [5, 3]):
        leaves = [gang_leaf(f"pg-{n}", n, key="rack") for n in children]
        outcome = placed(cluster(nodes, Composite("root", 2, tuple(leaves), key="block"), CPU))
        assert [nodes_of(outcome, leaf) for leaf in leaves] == [{0} if n == 5 else {1} for n in children]


def test_extras_never_take_what_a_sibling_needs_for_its_minimum() -> None:
    first, second = gang_leaf("first", 2, 4), gang_leaf("second", 2)
    outcome = placed(cluster([{"cpu": 4}], Composite("root", 2, (first, second)), CPU))
    assert (pods_of(outcome, first), pods_of(outcome, second)) == (2, 2)


def test_extras_fill_what_the_minimums_leave() -> None:
    a, b, c = gang_leaf("a", 2, 6), gang_leaf("b", 2), gang_leaf("c", 2)
    outcome = placed(cluster([{"cpu": 4}, {"cpu": 3}], Composite("root", 3, (a, b, c)), CPU))
    assert [pods_of(outcome, leaf) for leaf in (a, b, c)] == [3, 2, 2]


def test_other_children_are_chosen_when_the_first_takes_too_much() -> None:
    a, b, c = gang_leaf("a", 3), gang_leaf("b", 2), gang_leaf("c", 2)
    outcome = placed(cluster([{"cpu": 4}], Composite("root", 2, (a, b, c)), CPU))
    assert [outcome.satisfies(leaf) for leaf in (a, b, c)] == [False, True, True]
    assert pods_of(outcome, a) == 0


def test_nothing_below_a_group_that_lacks_children_is_placed() -> None:
    """KEP-6012: a late sub-group of a scheduled basic root waits for its second child."""
    running = Leaf("running", 1, (), satisfied=1)
    early = gang_leaf("early", 1)
    sub = Composite("sub", 2, (early,))
    outcome = placed(cluster([{"cpu": 4}], Composite("root", 1, (running, sub)), CPU))
    assert pods_of(outcome, early) == 0 and not outcome.satisfies(sub)


def test_of_equally_tight_racks_the_busier_one_is_taken() -> None:
    problem = cluster(
        [{"cpu": 4, "pods": 9}, {"cpu": 4, "pods": 20}], gang_leaf("g", 3, key="rack"), [{"cpu": 1, "pods": 1}]
    )
    problem.domains = {"rack": np.array([0, 1], dtype=np.int32)}
    problem.used = np.zeros_like(problem.free)
    problem.used[problem.resources.index("cpu"), 1] = 2
    assert placed(problem).shares[0].nodes.tolist() == [1]


def test_a_failing_optional_child_does_not_bind_in_part() -> None:
    small, big = gang_leaf("small", 1), Leaf("big", 2, ((1, 2),))
    problem = cluster([{"cpu": 4}], Composite("root", 1, (small, big)), [{"cpu": 1}, {"cpu": 3}])
    outcome = placed(problem)
    assert outcome.satisfies(small) and not outcome.satisfies(big)
    assert pods_of(outcome, big) == 0


@pytest.mark.parametrize("demand", [((0, 2), (1, 1)), ((1, 1), (0, 2))])
def test_a_big_member_after_small_ones_still_finds_room(demand: tuple[tuple[int, int], ...]) -> None:
    problem = cluster([{"cpu": 2}, {"cpu": 2}], Leaf("g", 3, demand), [{"cpu": 1}, {"cpu": 2}])
    placed(problem)


def test_plain_pods_keep_the_accelerators_free() -> None:
    nodes: list[dict[str, object]] = [{"cpu": 4, "gpu": 4}, {"cpu": 2, "gpu": 0}]
    leaf = Leaf("g", 5, ((0, 1), (1, 4)))
    outcome = placed(cluster(nodes, leaf, [{"cpu": 2}, {"cpu": 1, "gpu": 1}]))
    assert {int(n) for s in outcome.shares if s.shape == 0 for n in s.nodes} == {1}


def test_the_smallest_sufficient_rack_is_used_and_large_ones_stay_whole() -> None:
    nodes: list[dict[str, object]] = [
        {"cpu": 16, "gpu": 8, "rack": "big"},
        {"cpu": 64, "gpu": 2, "rack": "cpus"},
        {"cpu": 16, "gpu": 4, "rack": "fits"},
    ]
    leaf = Leaf("g", 4, ((0, 4),), key="rack")
    outcome = placed(cluster(nodes, leaf, [{"cpu": 1, "gpu": 1}]))
    assert nodes_of(outcome, leaf) == {2}


def test_a_rack_for_all_members_beats_a_tighter_one_for_the_minimum() -> None:
    nodes: list[dict[str, object]] = [{"cpu": 2, "rack": "tight"}, {"cpu": 5, "rack": "roomy"}]
    leaf = gang_leaf("g", 2, 4, key="rack")
    outcome = placed(cluster(nodes, leaf, CPU))
    assert pods_of(outcome, leaf) == 4


def test_nodes_without_the_label_are_outside_every_domain() -> None:
    nodes: list[dict[str, object]] = [{"cpu": 9}, {"cpu": 2, "rack": "r"}]
    assert place(cluster(nodes, gang_leaf("g", 3, key="rack"), CPU)).verdict is SearchVerdict.IMPOSSIBLE
    assert nodes_of(placed(cluster(nodes, leaf := gang_leaf("g", 2, key="rack"), CPU)), leaf) == {1}


def test_equal_rack_names_in_two_blocks_are_two_racks_under_a_block_constraint() -> None:
    nodes: list[dict[str, object]] = [
        {"cpu": 2, "block": "a", "rack": "r1"},
        {"cpu": 2, "block": "b", "rack": "r1"},
    ]
    leaf = gang_leaf("g", 4, key="rack")
    placed(cluster(nodes, leaf, CPU))  # alone, one name is one rack
    root = Composite("root", 1, (gang_leaf("g", 4, key="rack"),), key="block")
    assert place(cluster(nodes, root, CPU)).verdict is SearchVerdict.IMPOSSIBLE


def test_running_members_pin_the_domain() -> None:
    nodes: list[dict[str, object]] = [{"cpu": 9, "rack": "a"}, {"cpu": 2, "rack": "b"}]
    leaf = Leaf("g", 3, ((0, 2),), satisfied=1, key="rack", pinned=1)
    assert nodes_of(placed(cluster(nodes, leaf, CPU)), leaf) == {1}
    more = Leaf("g", 5, ((0, 4),), satisfied=1, key="rack", pinned=1)
    assert place(cluster(nodes, more, CPU)).verdict is SearchVerdict.IMPOSSIBLE
    root = Composite("root", 2, (leaf, gang_leaf("h", 1, key="rack")), key=None)
    placed(cluster(nodes, root, CPU))


def test_a_satisfied_group_only_adds_what_fits() -> None:
    leaf = Leaf("g", 2, ((0, 5),), satisfied=2)
    assert pods_of(placed(cluster([{"cpu": 3}], leaf, CPU)), leaf) == 3
    root = Composite("root", 1, (Leaf("g", 2, ((0, 5),), satisfied=2),))
    outcome = place(cluster([{"cpu": 3}], root, CPU))
    assert outcome.placed and pods_of(outcome, root.children[0]) == 3


def test_a_preferred_topology_narrows_when_possible_and_only_then() -> None:
    nodes: list[dict[str, object]] = [
        {"cpu": 2, "block": "a", "rack": "a1"},
        {"cpu": 2, "block": "a", "rack": "a2"},
        {"cpu": 3, "block": "b", "rack": "b1"},
        {"cpu": 3, "block": "b", "rack": "b2"},
    ]
    leaf = Leaf("g", 3, ((0, 3),), key="block", preferred="rack")
    assert len(nodes_of(placed(cluster(nodes, leaf, CPU)), leaf)) == 1
    wide = Leaf("g", 4, ((0, 4),), key="block", preferred="rack")
    assert len(nodes_of(placed(cluster(nodes, wide, CPU)), wide)) == 2


def test_rivals_and_caps_are_respected() -> None:
    leaf = Leaf("g", 4, ((0, 2), (1, 2)))
    shapes = [{"cpu": 1.0}, {"cpu": 2.0}]
    problem = cluster([{"cpu": 9}] * 3, leaf, shapes, caps={0: 1}, conflicts=frozenset({(0, 1)}))
    placed(problem)
    two = cluster([{"cpu": 9}] * 2, leaf, shapes, caps={0: 1}, conflicts=frozenset({(0, 1)}))
    assert place(two).verdict is SearchVerdict.IMPOSSIBLE


def test_scores_choose_among_nodes_that_fit() -> None:
    leaf = gang_leaf("g", 2)
    problem = cluster([{"cpu": 1}] * 4, leaf, CPU)
    problem.shapes[0].score = np.array([1.0, 5.0, 3.0, 5.0])
    assert nodes_of(placed(problem), leaf) == {1, 3}


def test_ties_go_by_node_order() -> None:
    leaf = gang_leaf("g", 2)
    problem = cluster([{"cpu": 1}] * 4, leaf, CPU)
    assert nodes_of(placed(problem), leaf) == {0, 1}
    problem.order = np.array([3, 2, 1, 0])
    assert nodes_of(placed(problem), leaf) == {2, 3}


def test_the_budget_ends_a_search_and_says_so() -> None:
    """Racks of the right total size, gangs that cannot share: many arrangements, none works."""
    nodes: list[dict[str, object]] = [{"cpu": 7, "gpu": 11, "rack": f"r{i}"} for i in range(6)]
    shapes = [{"cpu": float(2 + i % 3), "gpu": float(3 + i % 4)} for i in range(12)]
    children = tuple(Leaf(f"g{i}", 2, ((i, 1), ((i + 5) % 12, 1)), key="rack") for i in range(7))
    outcome = place(cluster(nodes, Composite("root", 7, children), shapes, budget=3))
    assert outcome.verdict is SearchVerdict.EXHAUSTED
    assert outcome.expansions >= 3


def test_hundreds_of_groups_do_not_overflow_the_stack() -> None:
    children = tuple(gang_leaf(f"g{i}", 1) for i in range(1_500))
    outcome = place(cluster([{"cpu": 1_500, "pods": 2_000}], Composite("root", 1_500, children), CPU))
    assert outcome.placed


def test_the_same_problem_gives_the_same_placement() -> None:
    nodes: list[dict[str, object]] = [{"cpu": 4 + i % 3, "gpu": i % 2 * 2, "rack": f"r{i // 3}"} for i in range(12)]

    def once() -> list[tuple[str, int, list[int], list[int]]]:
        kids = tuple(Leaf(f"g{i}", 2, ((0, 2), (1, 1)), key="rack") for i in range(3))
        outcome = place(cluster(nodes, Composite("root", 2, kids), [{"cpu": 2}, {"cpu": 1, "gpu": 1}]))
        return [(s.leaf.name, s.shape, s.nodes.tolist(), s.counts.tolist()) for s in outcome.shares]

    assert once() == once() != []
