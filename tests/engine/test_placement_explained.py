"""Why a tree does not fit: the level, the best domain, what runs out there and what is ruled out."""

from __future__ import annotations

from phalanx.engine.placement import Certificate, Composite, Leaf, PlacementProblem, RuledOut, hopeless, place, sentence
from phalanx.engine.placement.explain import explain
from support.small_problems import cluster


def reason(problem: PlacementProblem) -> Certificate:
    outcome = place(problem)
    assert not outcome.placed and outcome.certificate is not None
    return outcome.certificate


def test_the_best_rack_and_its_scarcest_resource_are_named() -> None:
    nodes: list[dict[str, object]] = [{"cpu": 90, "gpu": 5, "rack": "r7"}, {"cpu": 90, "gpu": 3, "rack": "r8"}]
    nodes += [{"cpu": 90, "gpu": 8, "rack": f"x{i}"} for i in range(12)]
    problem = cluster(
        nodes,
        Leaf("g", 8, ((0, 8),), key="rack"),
        [{"cpu": 1, "gpu": 1}],
        masks={0: [0, 1]},
        reasons={0: [-1, -1, *[0] * 12]},
        reason_names=("taint x",),
    )
    why = reason(problem)
    assert (why.group, why.key, why.needed, why.fits, why.best, why.limiting) == ("g", "rack", 8, 5, "r7", "gpu")
    assert why.ruled_out == (RuledOut("taint x", 12, 12),)
    assert why.domains == 14
    assert sentence(why) == (
        "needs 8 pods in one rack; best rack r7 fits 5 (limited by gpu); 12 racks ruled out by taint x"
    )


def test_without_a_key_nodes_are_counted() -> None:
    problem = cluster(
        [{"cpu": 2}, {"cpu": 9}, {"cpu": 9}],
        Leaf("g", 3, ((0, 3),)),
        [{"cpu": 1}],
        masks={0: [0]},
        reasons={0: [-1, 1, 0]},
        reason_names=("taint", "selector"),
    )
    why = reason(problem)
    assert (why.fits, why.best, why.limiting) == (2, None, "cpu")
    assert why.ruled_out == (RuledOut("selector", 1, 1), RuledOut("taint", 1, 1))
    assert sentence(why) == (
        "needs 3 pods; room for 2 (limited by cpu); 1 node ruled out by selector; 1 node ruled out by taint"
    )


def test_a_composite_names_the_child_that_fails() -> None:
    nodes: list[dict[str, object]] = [
        {"cpu": 4, "block": "a", "rack": "a1"},
        {"cpu": 1, "block": "b", "rack": "b1"},
    ]
    small, big = Leaf("small", 1, ((0, 1),), key="rack"), Leaf("big", 6, ((0, 6),), key="rack")
    why = reason(cluster(nodes, Composite("root", 2, (small, big), key="block"), [{"cpu": 1}]))
    assert (why.group, why.composite, why.needed, why.fits, why.best) == ("root", True, 2, 1, "a")
    assert why.inner is not None
    assert (why.inner.group, why.inner.key, why.inner.fits, why.inner.best) == ("big", "rack", 4, "a1")
    assert sentence(why) == (
        "needs 2 child groups in one block; best block a fits 1:"
        " big needs 6 pods in one rack; best rack a1 fits 4 (limited by cpu)"
    )


def test_children_that_fit_alone_but_not_together_are_distinguished() -> None:
    one, two = Leaf("one", 3, ((0, 3),)), Leaf("two", 2, ((0, 2),))
    why = reason(cluster([{"cpu": 4}], Composite("root", 2, (one, two)), [{"cpu": 1}]))
    assert why.together and why.inner is None and why.limiting == "cpu"
    assert "each of them fits alone, but not all side by side (limited by cpu)" in sentence(why)


def test_the_pinned_domain_is_named() -> None:
    nodes: list[dict[str, object]] = [{"cpu": 9, "rack": "a"}, {"cpu": 1, "rack": "b"}]
    why = reason(cluster(nodes, Leaf("g", 3, ((0, 2),), satisfied=1, key="rack", pinned=1), [{"cpu": 1}]))
    assert (why.pinned, why.best, why.fits, why.needed) == ("b", "b", 1, 2)


def test_too_few_members_are_no_matter_of_room() -> None:
    why = reason(cluster([{"cpu": 9}], Leaf("g", 3, ((0, 2),)), [{"cpu": 1}]))
    assert (why.needed, why.members) == (3, 2)
    assert sentence(why) == "needs 3 pods, but only 2 pods are waiting"


def test_a_host_rule_can_be_what_limits() -> None:
    why = reason(cluster([{"cpu": 9}, {"cpu": 9}], Leaf("g", 3, ((0, 3),)), [{"cpu": 1}], caps={0: 1}))
    assert why.fits == 2
    assert why.limiting is not None and "host port or anti-affinity" in why.limiting


def test_a_label_that_no_node_has_is_named() -> None:
    why = reason(cluster([{"cpu": 9}], Leaf("g", 1, ((0, 1),), key="example.com/rack"), [{"cpu": 1}]))
    assert sentence(why) == "needs 1 pod in one rack; no node in reach has the label example.com/rack"


def test_hopeless_means_that_counting_rules_it_out() -> None:
    nodes: list[dict[str, object]] = [{"cpu": 4, "rack": "a"}, {"cpu": 4, "rack": "b"}]
    assert hopeless(cluster(nodes, Leaf("g", 5, ((0, 5),), key="rack"), [{"cpu": 1}]))
    assert not hopeless(cluster(nodes, Leaf("g", 4, ((0, 4),), key="rack"), [{"cpu": 1}]))
    pair = (Leaf("x", 3, ((0, 3),), key="rack"), Leaf("y", 9, ((0, 9),)))
    assert hopeless(cluster(nodes, Composite("root", 2, pair), [{"cpu": 1}]))
    assert not hopeless(cluster(nodes, Composite("root", 1, pair), [{"cpu": 1}]))


def test_a_group_that_needs_no_pod_is_explained_without_a_resource() -> None:
    """Of its two kinds of pods each fits alone and its minimum is none: nothing is short."""
    why = explain(cluster([{"cpu": 4}], Leaf("g", 0, ((0, 1), (1, 1))), [{"cpu": 1}, {"cpu": 2}]))
    assert (why.group, why.needed, why.limiting) == ("g", 0, None)
