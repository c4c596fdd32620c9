"""The search against plain enumeration on tiny problems: it places exactly what can be placed, and always validly."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.engine.placement import Composite, Leaf, PlacementProblem, SearchVerdict, Subtree, place
from phalanx.engine.placement.problem import ShapeRow
from support.small_problems import by_hand, cluster, faults, sitting_of

KEYS = st.sampled_from((None, None, "rack", "block"))


@st.composite
def problems(draw: st.DrawFn) -> PlacementProblem:
    nodes: list[dict[str, object]] = []
    for _ in range(draw(st.integers(1, 4))):
        node: dict[str, object] = {"cpu": draw(st.integers(0, 4)), "gpu": draw(st.integers(0, 2))}
        if draw(st.integers(0, 5)):
            node["rack"] = draw(st.sampled_from(("r0", "r1")))
        if draw(st.integers(0, 5)):
            node["block"] = draw(st.sampled_from(("b0", "b1")))
        nodes.append(node)
    shapes = [{"cpu": float(draw(st.integers(0, 3))), "gpu": float(draw(st.integers(0, 1)))} for _ in range(3)]
    pods = 5

    def leaf(name: str) -> Leaf:
        nonlocal pods
        demand = []
        for shape in draw(st.permutations(range(3)))[: draw(st.integers(1, 2))]:
            count = draw(st.integers(0, min(3, pods)))
            pods -= count
            if count:
                demand.append((shape, count))
        total = sum(c for _, c in demand)
        satisfied = draw(st.sampled_from((0, 0, 0, 1)))
        return Leaf(name, draw(st.integers(1, max(1, total + satisfied))), tuple(demand), satisfied, draw(KEYS))

    def tree(depth: int, name: str) -> Subtree:
        if depth == 0 or draw(st.booleans()):
            return leaf(name)
        children = tuple(tree(depth - 1, f"{name}{i}") for i in range(draw(st.integers(1, 3))))
        return Composite(name, draw(st.integers(1, len(children))), children, draw(KEYS))

    masks = {0: draw(st.lists(st.integers(0, len(nodes) - 1), unique=True))} if draw(st.booleans()) else None
    caps = {1: 1} if draw(st.booleans()) else None
    conflicts = frozenset({(0, 2)}) if draw(st.booleans()) else frozenset()
    root = tree(2, "g")
    return cluster(
        [{"rack": "r9", "block": "b9", "cpu": 0, "gpu": 0}, *nodes],
        root,
        shapes,
        masks=masks,
        caps=caps,
        conflicts=conflicts,
    )


def test_pods_beyond_the_minimum_may_replace_members_of_it() -> None:
    """Two pods of 3 cpu make the minimum and fill both nodes; two with a gpu and one of 3 cpu are more."""
    everywhere = np.ones(2, bool)
    shapes = [ShapeRow(np.array(request, float), everywhere) for request in ((3, 0, 1), (2, 1, 1))]
    free = np.array([[4, 3], [2, 0], [110, 110]], float)
    problem = PlacementProblem(["cpu", "gpu", "pods"], free, shapes, Leaf("g", 2, ((0, 2), (1, 2))), {}, {})
    assert sum(int(share.counts.sum()) for share in place(problem).shares) == 3


@settings(max_examples=200, deadline=None)
@given(problems())
def test_places_whenever_enumeration_can_and_only_then(problem: PlacementProblem) -> None:
    best = by_hand(problem)
    outcome = place(problem)
    if best is None:
        assert outcome.verdict is not SearchVerdict.PLACED
        assert outcome.certificate is not None
    else:
        assert outcome.verdict is SearchVerdict.PLACED
        assert faults(problem, sitting_of(outcome)) == []
        seated = sum(int(s.counts.sum()) for s in outcome.shares)
        assert seated <= best
        if isinstance(problem.root, Leaf) and problem.root.key is None:
            assert seated == best, "in one piece of ground the extras are packed exactly"
