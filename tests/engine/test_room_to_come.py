"""Room that a replica's workers will need is kept for them from the moment its leader starts (LeaderReady)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from phalanx.engine.scheduling.commit.group_reservations import RESERVED_FOR
from phalanx.testing import Cluster
from phalanx.testing.builders import node, pod, pod_group
from support.replicas import blocks, leader, replica, workers


def begun(**kwargs: Any) -> Cluster:
    """Nodes of 5 and 4 cores; a leader of 2 has started, and two workers of 3 are to come."""
    run = Cluster(**kwargs).see(node("n0").cpu("5"), node("n1").cpu("4"))
    run.see(replica("a", 2, "3", topology=""), leader("a", "2")).step()
    assert run.placed == {"a-0": "n0"}, "beside one worker; the other one will be alone"
    return run


def test_an_ordinary_pod_does_not_take_it_and_has_what_is_left() -> None:
    run = begun().see(pod("big").cpu("2"), pod("small").cpu("1"))
    run.step(60)
    assert run.placed == {"a-0": "n0", "small": "n1"}
    assert "Insufficient cpu" in run.message("big")
    run.see(*workers("a", 2, "3")).step()
    assert {run.placed["a-1"], run.placed["a-2"]} == {"n0", "n1"}
    assert "big" not in run.placed


def test_what_smaller_workers_than_expected_leave_is_used_at_once() -> None:
    run = begun().see(pod("big").cpu("3"))
    run.step(60)
    assert "big" not in run.placed
    run.see(*workers("a", 2, "1")).step(1)
    assert {"a-1", "a-2", "big"} <= run.placed.keys()


def test_an_ordinary_gang_does_not_take_it() -> None:
    run = begun()
    run.see(pod_group("g").gang(2), *(pod(f"g{i}").group("g").cpu("2") for i in range(2))).step(60)
    assert run.placed == {"a-0": "n0"}
    run.see(*workers("a", 2, "3")).step(60)
    assert len(run.placed) == 3


def test_a_pod_that_waited_longer_does_not_slip_in_between_a_worker_and_its_start() -> None:
    run = begun()
    run.see(*(pod(f"old{i}").cpu("3") for i in range(4))).step(60)
    for worker in workers("a", 2, "3"):  # one after the other, as a StatefulSet makes them
        run.see(worker).step()
        assert worker.build().metadata.name in run.placed
    assert not [name for name in run.placed if name.startswith("old")]


def test_a_more_important_pod_takes_it() -> None:
    run = begun().see(pod("vip").cpu("4").priority(10))
    run.step()
    assert run.placed["vip"] == "n1"
    run.see(*workers("a", 2, "3")).step()
    assert len(run.placed.keys() & {"a-1", "a-2"}) == 1, "one of the two has lost its place"
    run.gone("Pod", "vip").step(60)
    assert {"a-1", "a-2"} <= run.placed.keys()


def test_room_for_pods_that_never_come_is_not_kept_for_ever() -> None:
    run = begun().see(pod("big").cpu("3"))
    run.step(RESERVED_FOR - 1)
    assert "big" not in run.placed
    assert run.engine.next_wake() is not None
    run.step(2)
    assert "big" in run.placed
    run.see(pod("more").cpu("3")).step()
    assert "more" in run.placed, "it is over for good, not begun again"


def test_when_the_leader_is_gone_nothing_is_kept() -> None:
    run = begun().see(pod("big").cpu("4"))
    run.step()
    assert "big" not in run.placed
    run.gone("Pod", "a-0").step(60)
    assert list(run.placed) == ["big"]
    run.see(leader("a", "2")).step(60)
    assert "a-0" not in run.placed, "there is no room for the whole now"


def test_when_the_group_is_gone_nothing_is_kept() -> None:
    run = begun().see(pod("big").cpu("4"))
    run.gone("PodGroup", "a").step(60)
    assert run.placed["big"] == "n1"


def test_a_new_scheduler_process_keeps_it_too() -> None:
    run = begun().see(*(pod(f"big{i}").cpu("2") for i in range(2)))
    run.restart().step(60)
    assert run.placed == {"a-0": "n0"}
    run.see(*workers("a", 2, "3")).step()
    assert len(run.placed) == 3


def test_room_that_is_made_is_kept_until_all_of_them_came() -> None:
    run = Cluster(grace=True).see(*(node(f"n{i}").cpu("4") for i in range(3)))
    run.see(*(pod(f"low-{i}").cpu("4").node(f"n{i}").priority(-10) for i in range(3)))
    run.see(replica("a", 2, "4", priority=10), leader("a", "4", priority=10)).step()
    assert len(run.evicted) == 3
    run.see(*(pod(f"new-{i}").cpu("4") for i in range(3))).step()
    run.finish().step(60)
    assert list(run.placed) == ["a-0"], "victims are gone; what they left is for the workers"
    run.see(*(worker.priority(10) for worker in workers("a", 2, "4"))).step()
    assert sorted(run.placed) == ["a-0", "a-1", "a-2"]


def promised() -> Cluster:
    """Three nodes of 4 cores, full; room is being made for a leader and its two workers to come, who fill them."""
    run = Cluster(grace=True).see(*(node(f"n{i}").cpu("4") for i in range(3)))
    run.see(*(pod(f"low-{i}").cpu("4").node(f"n{i}").priority(-10) for i in range(3)))
    run.see(replica("a", 2, "4", priority=10), leader("a", "4", priority=10)).step()
    assert len(run.evicted) == 3 and len(run.engine.groups.room.reservations) == 2
    return run


def test_when_the_leaders_promise_is_taken_by_a_more_important_pod_nothing_is_kept() -> None:
    """Seed 1010072: its workers' room stayed promised for ten minutes after the leader had lost its own."""
    run = promised()
    node_of_leader = run.engine.pods.records["default/a-0"].nominated
    run.see(pod("vip").cpu("4").priority(20).select("kubernetes.io/hostname", node_of_leader)).step()
    run.engine.validate()
    assert not run.engine.groups.room.reservations
    run.see(pod("modest").cpu("4").priority(5)).finish().step(60)
    assert "vip" in run.placed and "modest" in run.placed, "there is no room for the whole, so others may have it"


def test_when_another_client_takes_the_leaders_promise_back_nothing_is_kept() -> None:
    run = promised()
    given = run.engine.pods.records["default/a-0"].nominated
    run.see(leader("a", "4", priority=10).nominated(given)).see(leader("a", "4", priority=10))
    run.engine.step(run.now)
    assert not run.engine.groups.room.reservations
    run.finish().step(60)
    assert "a-0" in run.placed and len(run.engine.groups.room.reservations) == 2, (
        "tried again when its victims are gone"
    )


def test_when_the_group_is_held_nothing_is_kept() -> None:
    run = promised()
    run.see(replica("a", 2, "4", priority=10).gang(2)).step()
    assert not run.engine.groups.room.reservations
    run.see(*(pod(f"modest-{i}").cpu("4") for i in range(3))).finish().step(60)
    assert len(run.placed) == 3


def test_what_is_kept_is_moved_where_that_lets_another_replica_in() -> None:
    run = Cluster().see(node("n0").cpu("4").label("d", "x"), node("n1").cpu("4"))
    run.see(replica("a", 1, "2"), leader("a", "1")).step()
    first = run.placed["a-0"]
    run.see(replica("b", 1, "3", selector={"d": "x"}), leader("b", "1")).step()
    assert "b-0" in run.placed, first
    run.see(pod("big").cpu("2")).step()
    run.see(*workers("a", 1, "2"), *workers("b", 1, "3", d="x")).step()
    assert {"a-1", "b-1"} <= run.placed.keys()


def test_what_moved_room_leaves_is_used_at_once() -> None:
    run = Cluster().see(node("n0").cpu("5").label("d", "x"))
    run.see(replica("a", 1, "3"), leader("a", "1")).step()
    run.see(pod("waits").cpu("2").select("d", "x")).step()
    assert run.placed == {"a-0": "n0"}
    run.see(node("n1").cpu("4"))
    run.step(60)
    run.see(replica("b", 1, "1", selector={"d": "x"}), leader("b", "1").select("d", "x")).step(1)
    assert {"b-0", "waits"} <= run.placed.keys()


@pytest.mark.parametrize("seed", [*range(50), 1020, 1111, 1204, 1267, 1309, 1367, 1382])
def test_no_leader_is_left_without_its_workers_whatever_else_comes(seed: int) -> None:
    """Any mix of replicas with pods and gangs beside them, of the same and lower priority; workers come one by one,
    and the scheduler is restarted now and then."""
    rng = random.Random(seed)
    topology = rng.choice(["", "block"])
    run = Cluster().see(*blocks(rng.randint(1, 3), str(rng.choice([4, 8]))))
    shapes = {f"g{i}": (rng.randint(1, 3), rng.choice([1, 2, 4]), rng.choice([1, 2, 4])) for i in range(3)}
    to_make = {name: workers(name, count, str(large)) for name, (count, _, large) in shapes.items()}
    for name, (count, small, large) in shapes.items():
        run.see(replica(name, count, str(large), topology=topology), leader(name, str(small)))
    for number in range(16):
        run.step(20)
        event = rng.random()
        ready = [name for name in shapes if f"{name}-0" in run.placed and to_make[name]]
        if ready and event < 0.5:
            run.see(to_make[rng.choice(ready)].pop(0))
        elif event < 0.8:
            run.see(pod(f"p{number}").cpu(str(rng.choice([1, 2, 4]))).priority(rng.choice([0, 0, -5])))
        elif event < 0.9:
            run.see(pod_group(f"x{number}").gang(2))
            run.see(*(pod(f"x{number}-{i}").group(f"x{number}").cpu("2") for i in range(2)))
        else:
            run.restart()
    for name in shapes:
        if f"{name}-0" in run.placed:
            run.see(*to_make[name]).step(20)
    for name, (count, _, _) in shapes.items():
        bound = [member for member in (f"{name}-{i}" for i in range(count + 1)) if member in run.placed]
        assert len(bound) in (0, count + 1), f"{name} has {bound} of {count + 1}"


def test_an_attempt_looks_at_replicas_that_have_begun_and_at_no_other_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    run = begun()
    run.see(*(pod_group(f"idle{i}").gang(1) for i in range(3)), replica("b", 1, "1"), leader("b", "1")).step()
    forest = run.engine.cluster.forest
    assert [group.key.name for group in forest.begun()] == ["a"], "b has no room, the others announce nothing"
    run.see(*workers("a", 2, "3")).step()
    assert forest.begun() == [], "it is complete"

    def all_of_them() -> None:
        raise AssertionError("all groups are looked at")

    run.see(replica("c", 1, "1"), leader("c", "1"))
    monkeypatch.setattr(forest, "roots", all_of_them)
    monkeypatch.setattr(forest, "in_namespace", all_of_them)
    assert "c-0" in {decision.name for decision in run.engine.step(run.now + 60)}, "it was tried"


def test_room_on_a_node_that_goes_away_is_kept_elsewhere() -> None:
    run = Cluster().see(*(node(f"n{i}").cpu("4") for i in range(3)))
    run.see(replica("a", 1, "4"), leader("a", "4")).step()
    kept = next(iter({name for name, _ in run.engine.nominations.all()}))
    run.gone("Node", kept).see(pod("big").cpu("4")).step(60)
    assert "big" not in run.placed, "the last node is for the worker now"
    run.see(*workers("a", 1, "4")).step()
    assert sorted(run.placed) == ["a-0", "a-1"]
