"""Which pods are evicted, held against all that could be tried: single pods, gangs, trees, with and without rules.

PHALANX_CROWDS=300 looks at so many clusters of each kind instead of a few.
"""

from __future__ import annotations

import os

import pytest

from phalanx.engine.explain import plan
from phalanx.engine.explain.values import PlanAnswer, Price
from phalanx.engine.preemption import cost as order
from phalanx.testing import Cluster
from phalanx.testing.builders import node, pod, pod_group
from support.small_clusters import KINDS, NOW, Crowd, Key, cheapest, cost, crowd, in_order

SEEDS = range(int(os.environ.get("PHALANX_CROWDS", "12")))
NO_VICTIMS = -(2.0**63)


def key_of(price: Price | None) -> Key:
    if price is None:
        return in_order((0, NO_VICTIMS, 0, 0, 0, 0, 0.0))
    highest = NO_VICTIMS if price.highest_priority is None else price.highest_priority
    counts = (price.budget_violations, highest, price.stopped_pods, price.pods, price.broken_gangs, price.workloads)
    return in_order((*counts, price.lost_seconds))


def asked(made: Crowd, budget: int | None = None) -> tuple[Cluster, PlanAnswer]:
    run = Cluster(evict=False, now=NOW)
    run.see(*made.objects).step()
    if budget is not None:
        run.engine.preemption.budget = budget
    run.see(*made.preemptor)
    run.engine.step(NOW, 0)  # groups settle; no pod is tried yet
    return run, plan(run.engine, made.kind, "default", made.root.name)


def units_of(answer: PlanAnswer) -> list[str]:
    return [line.name.rpartition("/")[2] for line in answer.victims]


def true_to(answer: PlanAnswer, least: Key) -> None:
    """What it says is proved cannot be less, and the bound is one."""
    said = key_of(answer.cost)
    assert said[: len(answer.proved)] == least[: len(answer.proved)], answer
    if answer.lower_bound is not None:
        assert key_of(answer.lower_bound)[:6] <= least[:6], answer


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_no_set_of_victims_costs_less_and_what_is_called_proved_is_true(kind: str, seed: int) -> None:
    _no_set_costs_less(kind, seed)


SWAPPED = [
    ("budgets", "priority", "pods", "stopped", "gangs", "workloads", "kind", "work"),
    ("priority", "budgets", "stopped", "pods", "gangs", "workloads", "kind", "work"),
    ("stopped", "priority", "budgets", "pods", "gangs", "workloads", "kind", "work"),
    ("budgets", "priority", "stopped", "pods", "workloads", "gangs", "kind", "work"),
]


@pytest.mark.parametrize("seed", SEEDS[:5])
@pytest.mark.parametrize("swapped", SWAPPED, ids=" ".join)
@pytest.mark.parametrize("kind", KINDS)
def test_every_planner_follows_when_two_parts_of_the_order_are_swapped(
    kind: str, swapped: tuple[str, ...], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order, "ORDER", swapped)
    _no_set_costs_less(kind, 500 + seed)


def _no_set_costs_less(kind: str, seed: int) -> None:
    made = crowd(seed, kind, 6 if kind == "tied tree" else 8)
    run, answer = asked(made)
    single = made.kind == "Pod"
    least = cheapest(made, local=single)  # a single pod's victims are on its node
    if answer.result not in ("plan", "fits"):
        assert least is None, answer
        return
    assert least is not None, answer
    assert key_of(answer.cost)[:6] == least[:6], answer
    true_to(answer, cheapest(made) if single else least)
    if not single and answer.victims:
        assert answer.optimal, answer
    if answer.victims:
        assert key_of(answer.cost) == cost(made, units_of(answer))
        run.step()
        assert sorted(run.evicted) == sorted(v.name for v in made.victims if v.unit in units_of(answer))


@pytest.mark.parametrize("seed", SEEDS[:6])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("pod")])
def test_a_search_that_ends_early_claims_no_more_than_it_knows(kind: str, seed: int) -> None:
    made = crowd(1000 + seed, kind, 6)
    for budget in (1, 20):
        _, answer = asked(made, budget)
        if answer.result == "plan":
            least = cheapest(made)
            assert least is not None
            true_to(answer, least)


def test_pods_on_other_nodes_that_exclude_members_from_a_zone_are_evicted_too_and_no_others() -> None:
    rival = pod("rival").cpu("500m").priority(1).node("n0").anti_affinity("zone", {"app": "new"})
    run = Cluster().see(
        node("n0").cpu("1").label("zone", "z"),
        node("n1").cpu("1").label("zone", "z"),
        rival,
        pod("stays").cpu("500m").priority(1000).node("n0"),
        pod("low").cpu("1").priority(1).node("n1"),
        pod_group("high").gang(1).priority(100),
        pod("high-0").cpu("1").priority(100).group("high").label("app", "new"),
    )
    run.step()
    assert sorted(run.evicted) == ["low", "rival"]
    assert run.bound["high-0"] == "n1"
