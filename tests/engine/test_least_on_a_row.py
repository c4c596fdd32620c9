"""Which pods a single pod evicts: held against an enumeration of every set of units on every node."""

import random
from itertools import combinations

import pytest

from phalanx.engine import decisions as d
from phalanx.engine.preemption.cost import PROVABLE, provable
from phalanx.engine.preemption.row_search import RowSearch
from phalanx.engine.scheduling.attempt.answers import NominatedAfterPreemption
from phalanx.engine.scheduling.queue.units import SinglePod
from phalanx.testing import Cluster
from phalanx.testing.builders import node, pdb, pod, pod_group


def full_cluster(seed: int) -> Cluster:
    """Up to three nodes with up to nine pods of many sizes, priorities, budgets and gangs."""
    rng = random.Random(seed)
    run = Cluster()
    for name in ("red", "blue"):
        run.see(pdb(name).select({"team": name}).allowed(rng.randrange(3)))
    for gang in range(3):
        group = pod_group(f"g{gang}").gang(rng.randrange(1, 4)).priority(rng.randrange(3))
        run.see(group.disrupt_all() if rng.random() < 0.3 else group)
    number = 0
    for at in range(rng.randrange(1, 4)):
        room = 0
        pods = []
        for _ in range(rng.randrange(2, 10)):
            number += 1
            cpu = rng.randrange(1, 6)
            one = pod(f"p{number}").cpu(cpu).mem(f"{rng.randrange(1, 4)}Gi").node(f"n{at}").priority(rng.randrange(3))
            if rng.random() < 0.4:
                one = one.label("team", rng.choice(("red", "blue")))
            if rng.random() < 0.4:
                one = one.group(f"g{rng.randrange(3)}")
            pods.append(one)
            room += cpu
        run.see(node(f"n{at}").cpu(room).mem("64Gi" if rng.random() < 0.5 else "14Gi"), *pods)
    run.step()
    return run


def cheapest(run: Cluster, record) -> tuple[float, ...] | None:
    """By trying every set."""
    chooser = run.engine.preemption.chooser
    catalogue = chooser.victim_index
    best = None
    for row in range(run.engine.columns.n):
        lacking, freed = chooser._freed(record.shape, record.priority, row)
        for size in range(len(freed) + 1):
            for some in combinations(freed, size):
                if all(sum(gives[rid] for _, gives in some) >= need for rid, need in lacking.items()):
                    key = catalogue.cost([unit for unit, _ in some]).key()[:PROVABLE]
                    best = key if best is None else min(best, key)
    return best


@pytest.mark.parametrize("seed", range(120))
def test_no_set_of_victims_costs_less(seed):
    run = full_cluster(seed)
    run.see(pod("high").cpu(4 + seed % 7).mem(f"{1 + seed % 3}Gi").priority(10))
    record = run.engine.pods.records["default/high"]
    answer = run.engine.attempts.search(SinglePod(record))
    if not isinstance(answer, NominatedAfterPreemption):
        assert record.row < 0 and cheapest(run, record) is None
        return
    assert answer.plan.key[:PROVABLE] == cheapest(run, record)
    assert answer.plan.proved == provable()


def test_a_search_that_ends_early_says_so():
    run = Cluster().see(node("n").cpu("64"), pdb("all").select({"team": "red"}).allowed(0))
    for i in range(30):
        run.see(
            pod(f"p{i}").cpu(f"{1700 + 13 * i}m").node("n").label("team", "red" if i % 2 else "blue").priority(i % 4)
        )
    run.see(pod("high").cpu("40").priority(10))
    record = run.engine.pods.records["default/high"]
    chooser = run.engine.preemption.chooser
    chooser.victim_index.refresh()
    table = chooser.table(record.shape, record.priority)
    lacking, freed = chooser._freed(record.shape, record.priority, 0)
    known = (table.cost.key(0), table.units[0])
    search = RowSearch(chooser.victim_index, freed, lacking, known, 5)
    assert not search.proved and search.key <= known[0]


def test_a_table_of_many_rows_is_filled_in_slices_and_others_are_served_between():
    run = Cluster().see(*(node(f"n{i}").cpu("4") for i in range(900)))
    run.see(*(pod(f"low{i}").cpu("4").priority(i % 5).node(f"n{i}") for i in range(900)))
    run.step()
    run.see(pod("high").cpu("3").priority(10))
    engine, steps, announced, placed = run.engine, 0, [], []
    while not announced:
        run.see(pod(f"small{steps}").cpu("0"))
        made = engine.step(run.now)
        placed += [each.name for each in made if isinstance(each, d.Bind)]
        announced = [each.name for each in made if isinstance(each, d.Evict)]
        engine.validate()
        steps += 1
    assert steps > 5 and announced == ["low0"]
    assert len(placed) >= steps - 1
