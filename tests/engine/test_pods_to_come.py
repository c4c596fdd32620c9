"""Groups whose first pod comes before the others (LeaderReady): it starts where all of them will fit, or not at all."""

from __future__ import annotations

import random

import pytest

from phalanx.testing import Cluster
from phalanx.testing.builders import node, pod
from support.replicas import blocks, leader, replica, workers


def test_the_second_leader_keeps_out_of_the_block_that_the_first_one_needs() -> None:
    run = Cluster().see(*blocks(4))
    for name in ("a", "b"):
        run.see(replica(name, 2, "4", topology="block"), leader(name, "2")).step()
    homes = {name: run.placed[f"{name}-0"][:2] for name in ("a", "b")}
    assert homes["a"] != homes["b"], "ten of sixteen cores are the first one's"
    for name in ("a", "b"):
        run.see(*workers(name, 2, "4")).step()
        assert {run.placed[f"{name}-{i}"][:2] for i in range(3)} == {homes[name]}


def test_where_no_block_holds_the_whole_no_leader_starts_and_it_says_why() -> None:
    run = Cluster().see(*blocks(2)).see(replica("a", 4, "4", topology="block"), leader("a", "2"))
    run.step()
    assert run.placed == {}
    assert "no room for all 5 pods that it will have in one domain of block" in run.condition("a")[2]
    run.see(*(node(f"m{i}").cpu("16").label("block", "large") for i in range(2))).step(60)
    assert run.placed["a-0"].startswith("m")


def test_workers_with_a_selector_of_their_own_decide_too() -> None:
    run = Cluster().see(*blocks(2), node("gpu").cpu("8").label("block", "b1").label("gpu", "yes"))
    run.see(replica("a", 2, "4", topology="block", selector={"gpu": "yes"}), leader("a", "2")).step()
    assert run.placed["a-0"] in ("n10", "n11"), "in the block of the only node its workers may go to, and not on it"
    run.see(*workers("a", 2, "4", gpu="yes")).step()
    assert run.placed["a-1"] == run.placed["a-2"] == "gpu"


def test_two_that_each_fill_a_zone_never_wait_for_each_other() -> None:
    run = Cluster().see(*blocks(2))
    for name in ("a", "b", "c"):
        run.see(replica(name, 3, "4", topology="block"), leader(name, "4"))
    run.step()
    started = {pod.partition("-")[0] for pod in run.placed}
    assert len(started) == 2
    for name in sorted(started):
        run.see(*workers(name, 3, "4")).step()
    assert len(run.placed) == 8, "both are complete; the third has not begun"


def test_the_whole_is_made_room_for() -> None:
    run = Cluster().see(*(node(f"n{i}").cpu("4") for i in range(3)))
    run.see(*(pod(f"low-{i}").cpu("4").node(f"n{i}") for i in range(3)))
    run.see(replica("a", 2, "4", priority=10), leader("a", "4", priority=10)).step()
    assert sorted(run.evicted) == ["low-0", "low-1", "low-2"], "for all three, though only one exists"


@pytest.mark.parametrize("seed", range(60))
def test_no_leader_is_ever_left_without_its_workers(seed: int) -> None:
    """Any mix of replicas, sizes and blocks; workers come when their leader has a node, in any order."""
    rng = random.Random(seed)
    topology = rng.choice(["", "block"])
    run = Cluster().see(*blocks(rng.randint(1, 3), str(rng.choice([4, 8]))))
    shapes = {
        f"g{i}": (rng.randint(1, 3), rng.choice([1, 2, 4]), rng.choice([1, 2, 4])) for i in range(rng.randint(1, 5))
    }
    for name, (count, small, large) in shapes.items():
        run.see(replica(name, count, str(large), topology=topology), leader(name, str(small)))
        if rng.random() < 0.5:
            run.step()
    made: set[str] = set()
    for _ in range(12):
        run.step(20)
        ready = [name for name in shapes if f"{name}-0" in run.placed and name not in made]
        for name in rng.sample(ready, k=min(len(ready), rng.randint(1, 2))):
            made.add(name)
            run.see(*workers(name, shapes[name][0], str(shapes[name][2])))
    for name, (count, _, _) in shapes.items():
        members = [f"{name}-{i}" for i in range(count + 1)]
        bound = [member for member in members if member in run.placed]
        assert len(bound) in (0, count + 1), f"{name} has {bound} of {members}"
        if topology and bound:
            assert len({run.placed[member][:2] for member in bound}) == 1
