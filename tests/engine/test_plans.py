"""The planner alone: against plain enumeration on tiny clusters, and its promises on larger ones."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.engine.placement import Composite, Leaf, PlacementProblem, ShapeRow
from phalanx.engine.preemption import (
    ORDER,
    Cost,
    Hopeless,
    Plan,
    PreemptionProblem,
    SearchBudgetExhausted,
    Units,
    cost,
    cost_of,
    plan,
)
from phalanx.engine.preemption.feasibility import Feasibility
from phalanx.engine.preemption.result import proof
from support.eviction_instances import instance_files, problem_of, read

ORDERS = [
    ORDER,
    ("pods", "priority", "budgets", "stopped", "gangs", "workloads", "kind", "work"),
    ("budgets", "priority", "pods", "stopped", "workloads", "gangs", "kind", "work"),
    ("stopped", "pods", "priority", "budgets", "gangs", "workloads", "work", "kind"),
    ("budgets", "stopped", "pods", "priority", "gangs", "workloads", "kind", "work"),
]


@st.composite
def problems(draw):
    """Up to 6 nodes in 3 racks and 2 blocks, up to 8 units of 1-3 pods, budgets, gangs, blockers; any shape of tree."""
    n = draw(st.integers(2, 6))
    count = draw(st.integers(1, 8))
    alloc = np.array([draw(st.lists(st.integers(3, 8), min_size=n, max_size=n)), [12] * n], dtype=float)
    free = alloc.copy()
    rows: dict[tuple[int, int], list[float]] = {}
    for unit in range(count):
        for _ in range(draw(st.integers(1, 3))):
            node = draw(st.integers(0, n - 1))
            size = draw(st.integers(1, 4))
            if free[0, node] >= size:
                free[:, node] -= (size, 1)
                entry = rows.setdefault((node, unit), [0.0, 0.0])
                entry[0] += size
                entry[1] += 1
    present = sorted({unit for _, unit in rows})
    number = {unit: i for i, unit in enumerate(present)}
    keys = sorted((node, number[unit]) for node, unit in rows)
    back = {(node, number[unit]): entry for (node, unit), entry in rows.items()}
    pods = np.array([int(back[k][1]) for k in keys], dtype=np.int64)
    budgets = draw(st.integers(0, 2))
    hits = np.array([[draw(st.integers(0, int(p))) for p in pods] for _ in range(budgets)], dtype=np.int64).reshape(
        budgets, len(keys)
    )
    gangs = [[(draw(st.integers(0, 1)), int(sum(back[k][1] for k in keys if k[1] == u)))] for u in range(len(present))]
    running = [sum(c for g in gangs for at, c in g if at == gang) for gang in range(2)]
    units = Units(
        [f"u{u}" for u in present],
        np.array(
            sorted(draw(st.lists(st.integers(0, 3), min_size=len(present), max_size=len(present)))), dtype=np.int64
        ),
        np.array([float(draw(st.integers(0, 5))) for _ in present]),
        np.array([u for _, u in keys], dtype=np.int64),
        np.array([node for node, _ in keys], dtype=np.int64),
        np.array([back[k] for k in keys]).reshape(-1, 2).T,
        pods,
        hits,
        np.array([draw(st.integers(0, 2)) for _ in range(budgets)], dtype=np.int64),
        gangs,
        running,
        [max(1, r - draw(st.integers(0, 2))) for r in running],
        workload=[draw(st.integers(-1, 2)) for _ in present],
        kind=[draw(st.integers(0, 2)) for _ in present],
    )
    shapes = [
        ShapeRow(
            np.array([float(draw(st.integers(1, 5))), 1.0]),
            np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n))) | (np.arange(n) == 0),
            np.full(n, 1, dtype=np.int64) if draw(st.booleans()) else None,
        )
        for _ in range(2)
    ]
    rack = np.array([i % 3 for i in range(n)], dtype=np.int32)
    domains = {"rack": rack, "block": (rack // 2).astype(np.int32)}

    def leaf(name):
        demand = tuple(
            (s, c) for s, c in enumerate(draw(st.sampled_from([(1, 0), (2, 0), (1, 1), (0, 2), (2, 1)]))) if c
        )
        total = sum(c for _, c in demand)
        key = draw(st.sampled_from([None, "rack"]))
        return Leaf(name, draw(st.integers(1, total)), demand, key=key)

    root: Leaf | Composite
    if draw(st.booleans()):
        root = leaf("a")
    else:
        key = draw(st.sampled_from([None, "block"]))
        root = Composite("root", draw(st.integers(1, 2)), (leaf("a"), leaf("b")), key=key)
    blockers = {}
    for node, unit in keys:
        if shapes[0].mask[node] and draw(st.integers(0, 5)) == 0:
            blockers[0, node] = (unit,)
    placement = PlacementProblem(("cpu", "pods"), free, shapes, root, domains)
    return PreemptionProblem(placement, units, blockers)


def cheapest(problem):
    """Every subset of units, by the placement itself."""
    fitting = Feasibility(problem)
    best = None
    for size in range(len(problem.units) + 1):
        for chosen in combinations(range(len(problem.units)), size):
            key = cost_of(problem.units, chosen).key()
            if (best is None or key < best) and fitting.fits(chosen):
                best = key
    return best


@contextmanager
def ordered(order):
    """Costs in another order; what is asked in it is answered in it, by every planner."""
    before, cost.ORDER = cost.ORDER, cost.checked(order)
    try:
        yield
    finally:
        cost.ORDER = before


@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
@settings(max_examples=100, deadline=None)
@given(problem=problems())
def test_no_cheaper_set_of_victims_exists_and_impossible_is_impossible(order, problem):
    with ordered(order):
        _no_cheaper_set(problem)


def _no_cheaper_set(problem):
    found = plan(problem)
    best = cheapest(problem)
    if isinstance(found, Plan):
        exact = len(found.proved)
        assert found.cost.key()[:exact] == best[:exact]
        assert found.lower_bound.key()[:6] <= best[:6] <= found.cost.key()[:6]
    else:
        assert isinstance(found, SearchBudgetExhausted) or best is None


@settings(max_examples=150, deadline=None)
@given(problems())
def test_put_any_victim_back_and_the_group_no_longer_fits(problem):
    found = plan(problem)
    if not isinstance(found, Plan):
        return
    fitting = Feasibility(problem)
    victims = {victim.unit for victim in found.victims}
    assert fitting.fits(victims)
    assert found.placement.placed
    for unit in victims:
        assert not fitting.fits(victims - {unit}), found


@settings(max_examples=60, deadline=None)
@given(problems())
def test_the_same_question_gets_the_same_answer(problem):
    first, second = plan(problem), plan(problem)
    assert type(first) is type(second)
    if isinstance(first, Plan) and isinstance(second, Plan):
        assert first.victims == second.victims and first.expansions == second.expansions


def small(free, units, root, request=(2.0,), **more):
    """units: (priority, {node: (cpu, pods)})."""
    keys = sorted((node, u) for u, (_, parts) in enumerate(units) for node in parts)
    made = Units(
        [f"u{u}" for u in range(len(units))],
        np.array([p for p, _ in units], dtype=np.int64),
        np.zeros(len(units)),
        np.array([u for _, u in keys], dtype=np.int64),
        np.array([n for n, _ in keys], dtype=np.int64),
        np.array([[units[u][1][n][0] for n, u in keys]], dtype=float),
        np.array([units[u][1][n][1] for n, u in keys], dtype=np.int64),
        np.zeros((0, len(keys)), dtype=np.int64),
        np.zeros(0, dtype=np.int64),
    )
    shapes = [ShapeRow(np.array([r]), np.ones(len(free), dtype=bool)) for r in request]
    return PreemptionProblem(PlacementProblem(("cpu",), np.array([free], dtype=float), shapes, root, **more), made)


def test_free_capacity_is_used_first():
    found = plan(small([0, 0, 2], [(1, {0: (2, 1)}), (1, {1: (2, 1)})], Leaf("g", 2, ((0, 2),))))
    assert isinstance(found, Plan) and found.optimal
    assert found.cost.pods == 1


def test_a_low_priority_crowd_is_hurt_before_one_that_matters_more():
    found = plan(small([0, 0], [(1, {0: (2, 5)}), (2, {1: (2, 1)})], Leaf("g", 1, ((0, 1),))))
    assert isinstance(found, Plan)
    assert [v.unit for v in found.victims] == [0]


def test_several_domains_are_compared():
    racks = {"rack": np.array([0, 0, 1, 1], dtype=np.int32)}
    units = [(1, {0: (2, 1)}), (1, {1: (2, 1)}), (1, {2: (2, 1)})]
    found = plan(small([0, 0, 0, 2], units, Leaf("g", 2, ((0, 2),), key="rack"), domains=racks))
    assert isinstance(found, Plan)
    assert [v.unit for v in found.victims] == [2]


def test_a_unit_that_spans_nodes_is_used_to_the_full():
    units = [(1, {0: (2, 1), 1: (2, 1)}), (1, {2: (2, 1), 3: (2, 2)})]
    found = plan(small([0, 0, 0, 0], units, Leaf("g", 2, ((0, 2),))))
    assert isinstance(found, Plan) and found.optimal
    assert [v.unit for v in found.victims] == [0]


def in_groups(problem, gangs, running, minimum, workload):
    """The same with its units in gangs (unit -> gang) and workloads."""
    units = problem.units
    units.gangs = [[(gang, int(units.pods[u]))] if gang >= 0 else [] for u, gang in enumerate(gangs)]
    units.gang_running, units.gang_minimum, units.workload = running, minimum, workload
    return problem


def test_among_equally_many_pods_a_gang_is_evicted_whole_rather_than_two_broken():
    """Six nodes with one pod each; the first members of three gangs are cheaper by name, but only one gang is whole."""
    units = [(1, {n: (2, 1)}) for n in range(6)]
    problem = in_groups(
        small([0] * 6, units, Leaf("g", 2, ((0, 2),))), [0, 1, 2, 0, 1, 1], [2, 3, 4], [2, 3, 4], [0, 1, 2, 0, 1, 1]
    )
    found = plan(problem)
    assert isinstance(found, Plan) and found.optimal
    assert [v.unit for v in found.victims] == [0, 3]
    assert (found.cost.gangs, found.cost.workloads) == (0, 1)


def test_spare_members_of_one_gang_go_rather_than_of_several():
    units = [(1, {n: (2, 1)}) for n in range(6)]
    problem = in_groups(
        small([0] * 6, units, Leaf("g", 3, ((0, 3),))), [0, 1, 2, 2, 1, 2], [9, 9, 9], [1, 1, 1], [0, 1, 2, 2, 1, 2]
    )
    found = plan(problem)
    assert isinstance(found, Plan) and found.optimal
    assert [v.unit for v in found.victims] == [2, 3, 5]


def test_an_unproved_answer_says_that_it_is_not_proved():
    text = proof(("budgets", "priority", "stopped"), Cost(0, 10, 4, 2, 1, 1))
    assert text == (
        "proved to be least: disruption budgets, highest priority, pods stopped; no plan can cost less than "
        "0 beyond disruption budgets, highest priority 10, 4 pods stopped, 2 pods evicted, 1 gang broken, "
        "1 workload hit, 0 s of work lost"
    )


def test_the_answer_says_when_no_eviction_can_help():
    found = plan(small([0, 0], [(1, {0: (2, 1)})], Leaf("g", 2, ((0, 2),))))
    assert isinstance(found, Hopeless)


def test_a_plan_can_be_read():
    found = plan(small([0], [(7, {0: (2, 1)})], Leaf("g", 1, ((0, 1),))))
    assert isinstance(found, Plan)
    assert "u0: priority 7, 1 pod; its room is needed on node 0 (0.002 cpu) for 1 of the group" in str(found)


@pytest.mark.skipif(not instance_files(), reason="no placement-quality instances on this machine")
def test_quality_instances_are_solved_at_the_oracles_cost():
    for path in instance_files():
        instance = read(path)
        found = plan(problem_of(instance))
        oracle = instance["oracle"]
        if not oracle["feasible"]:
            assert isinstance(found, Hopeless), path.name
            continue
        assert isinstance(found, Plan), path.name
        best = oracle["optimumStopped"]
        assert found.cost.budgets == best["pdbViolations"], path.name
        assert found.cost.priority == best["maxPriority"], path.name
        assert found.cost.stopped == best["stoppedPods"], path.name
        assert found.cost.pods == best["evictedPods"], path.name
        assert found.cost.gangs == best["brokenGangs"], path.name
        assert found.optimal, path.name
