"""The cheapest eviction: one order for single pods, for gangs, and for gangs whose members are tied together."""

from __future__ import annotations

import pytest

from phalanx.engine.preemption import cost
from phalanx.engine.preemption.victim_index import VictimIndex
from phalanx.testing import Cluster
from phalanx.testing.builders import composite, gang, node, pdb, pod, pod_group

PREEMPTORS = {
    "pod": [pod("high").cpu("2").priority(100)],
    "gang": gang("high", 1, "2", 100),
    "gang of two": gang("high", 2, "1", 100),
}


def whole(name, members, on, priority=10):
    """A group that is only disrupted as a whole."""
    group = pod_group(name).gang(members).priority(priority).disrupt_all()
    return [
        group,
        *(pod(f"{name}{i}").cpu("1").group(name).priority(priority).node(on) for i in range(members)),
    ]


@pytest.mark.parametrize("high", PREEMPTORS.values(), ids=PREEMPTORS)
@pytest.mark.parametrize("first", ["n0", "n1"])
def test_two_single_pods_fall_before_a_whole_group_of_two(high, first):
    second = "n1" if first == "n0" else "n0"
    world = Cluster().see(
        node("n0").cpu("2"),
        node("n1").cpu("2"),
        *whole("batch", 2, first),
        *(pod(f"single{i}").cpu("1").priority(10).node(second) for i in range(2)),
        *high,
    )
    world.step()
    assert sorted(world.evicted) == ["single0", "single1"]


def test_two_single_pods_beside_a_whole_group_on_one_node_fall_first():
    world = Cluster().see(
        node("n0").cpu("4"),
        *whole("batch", 2, "n0"),
        *(pod(f"single{i}").cpu("1").priority(10).node("n0") for i in range(2)),
        pod("high").cpu("2").priority(100),
    )
    world.step()
    assert sorted(world.evicted) == ["single0", "single1"]


@pytest.mark.parametrize("high", PREEMPTORS.values(), ids=PREEMPTORS)
def test_one_group_hit_is_less_than_two(high):
    """Spare members of gangs: both of one gang, rather than one each of two."""
    world = Cluster().see(
        *(node(f"n{i}").cpu("2") for i in range(2)),
        node("elsewhere").cpu("3"),
        pod("full").cpu("3").priority(1000).node("elsewhere"),
        *(pod_group(name).gang(1).priority(10) for name in "abc"),
        pod("a0").cpu("1").group("a").priority(10).node("n0"),
        pod("b0").cpu("1").group("b").priority(10).node("n0"),
        *(pod(f"c{i}").cpu("1").group("c").priority(10).node("n1") for i in range(2)),
        *high,
    )
    world.step()
    assert sorted(world.evicted) == ["c0", "c1"]


def started(name, on, at):
    return pod(name).cpu("1").priority(1).node(on).started(at)


def test_work_lost_is_the_same_kept_up_to_date_and_counted_again():
    world = Cluster().see(node("n").cpu("4"), pod("p").cpu("1").priority(1).node("n"))
    engine = world.engine
    engine.step(1000.0, 10)
    kept = engine.preemption.victim_index
    kept.refresh()
    world.see(started("p", "n", 1200.0))
    engine.step(3000.0, 10)
    kept.refresh()
    recomputed = VictimIndex(engine.cluster)
    recomputed.refresh()
    assert (
        [kept.lost(u) for u in kept.units.values()]
        == [recomputed.lost(u) for u in recomputed.units.values()]
        == [1800.0]
    )


@pytest.mark.parametrize("high", [[pod("high").cpu("1").priority(100)], gang("high", 1, "1", 100)], ids=["pod", "gang"])
def test_the_pod_that_started_last_goes_also_when_its_start_is_reported_late(high):
    world = Cluster().see(
        *(node(f"n{i}").cpu("1") for i in range(3)),
        *(pod(f"low{i}").cpu("1").priority(1).node(f"n{i}") for i in range(3)),
        pod("early").cpu("1").priority(50),
    )
    world.step()  # tables of victims are made
    left = [name for name in ("low0", "low1", "low2") if name not in world.evicted]
    for name, at in zip(left, (500.0, 900.0), strict=True):
        world.see(started(name, f"n{name[-1]}", at))
    world.gone("Pod", "early").see(pod("full").cpu("1").priority(500)).step(5)
    world.see(*high).step()
    assert world.evicted[1:] == [left[1]]


def want_each_other(*members):
    """The first wants the company of the second: no node is open to it before that one sits."""
    first, second = members
    return [first.affinity("zone", {"role": "second"}), second.label("role", "second")]


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("name", ["a-guarded", "z-guarded"])
@pytest.mark.parametrize("together", [False, True], ids=["another node", "one node"])
def test_a_protected_pod_is_spared_where_two_others_will_do(tied, name, together):
    members = [pod(f"g-{i}").cpu("1").group("g").priority(100) for i in range(2)]
    world = Cluster().see(
        *(node(f"n{i}").cpu("4" if together else "2").label("zone", "z") for i in range(1 if together else 2)),
        pdb("guard").select({"app": "guarded"}).allowed(0),
        pod(name).cpu("2").priority(10).node("n0").label("app", "guarded"),
        *(pod(f"low{i}").cpu("1").priority(10).node("n0" if together else "n1").label("app", "low") for i in range(2)),
        pod_group("g").gang(2).priority(100),
        *(want_each_other(*members) if tied else members),
    )
    world.step()
    assert sorted(world.evicted) == ["low0", "low1"]


STOPPED_OR_EVICTED = {
    "a pod": ([pod("high").cpu("2").priority(100)], False),
    "a pod that needs a port": ([pod("high").cpu("2").priority(100).port(80)], False),
    "a gang": (gang("high", 1, "2", 100), False),
    "a tied gang": (gang("high", 2, "1", 100), True),
}


@pytest.mark.parametrize("pods_first", [False, True], ids=["stopped first", "pods first"])
@pytest.mark.parametrize("high", STOPPED_OR_EVICTED)
def test_members_left_behind_in_a_broken_gang_count_as_stopped(high, pods_first, monkeypatch):
    """Two single pods, or one of a gang of four: the former stop fewer pods, the latter evict fewer."""
    if pods_first:
        monkeypatch.setattr(
            cost, "ORDER", ("budgets", "priority", "pods", "stopped", "gangs", "workloads", "kind", "work")
        )
    objects, tied = STOPPED_OR_EVICTED[high]
    preemptor = [objects[0], *want_each_other(*objects[1:])] if tied else objects
    zone = ("zone", "z")
    world = Cluster().see(
        *(node(f"n{i}").cpu("2").label(*zone) for i in range(2)),
        node("far").cpu("3").label(*zone),
        pod_group("batch").gang(4).priority(10),
        pod("batch0").cpu("2").group("batch").priority(10).node("n0"),
        *(pod(f"batch{i}").cpu("1").group("batch").priority(10).node("far") for i in range(1, 4)),
        *(pod(f"single{i}").cpu("1").priority(10).node("n1") for i in range(2)),
        *preemptor,
    )
    world.step()
    assert sorted(world.evicted) == (["batch0"] if pods_first else ["single0", "single1"])


def test_an_order_that_no_planner_can_follow_is_refused():
    with pytest.raises(ValueError, match="no planner can follow"):
        cost.checked(("gangs", "budgets", "priority", "stopped", "pods", "workloads", "kind", "work"))


@pytest.mark.parametrize("high", [[pod("high").cpu("1").priority(100)], gang("high", 1, "1", 100)], ids=["pod", "gang"])
def test_a_group_falls_before_a_composite_that_costs_the_same(high):
    world = Cluster().see(
        *(node(f"n{i}").cpu("1") for i in range(2)),
        composite("a-tree").gang(1).priority(10).disrupt_all(),
        pod_group("a-leaf").gang(1).parent("a-tree").priority(10),
        pod("a0").cpu("1").group("a-leaf").priority(10).node("n0").started(900.0),
        pod_group("b").gang(1).priority(10).disrupt_all(),
        pod("b0").cpu("1").group("b").priority(10).node("n1").started(100.0),
        *high,
    )
    world.step()
    assert world.evicted == ["b0"]


@pytest.mark.parametrize("high", [[pod("high").cpu("1").priority(100)], gang("high", 1, "1", 100)], ids=["pod", "gang"])
def test_a_gang_that_grew_can_lose_a_pod_and_one_that_shrank_cannot(high):
    """What an eviction costs on one node follows members on other nodes."""
    world = Cluster().see(
        *(node(f"n{i}").cpu("1") for i in range(2)),
        node("far").cpu("8"),
        *(pod_group(name).gang(2).priority(10) for name in "ab"),
        *(pod(f"{name}{i}").cpu("1").group(name).priority(10).node("far") for name in "ab" for i in range(1, 3)),
        *(pod(f"{name}0").cpu("1").group(name).priority(10).node(f"n{i}") for i, name in enumerate("ab")),
        pod("full").cpu("4").priority(1000).node("far"),
        pod("early").cpu("9").priority(50),
    )
    world.step()  # tables of victims are made
    world.gone("Pod", "early").gone("Pod", "a1")  # now `a` needs both that are left
    world.see(pod("more").cpu("1").priority(1000).node("far"), *high).step(5)
    assert [name[0] for name in world.evicted] == ["b"]
