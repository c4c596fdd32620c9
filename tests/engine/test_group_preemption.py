"""Groups that make room for themselves, and groups that have to go."""

from __future__ import annotations

import pytest

from phalanx.engine import decisions as d
from phalanx.engine.events import PERMANENT, Gone, Outcome
from phalanx.testing import Cluster
from phalanx.testing.builders import composite, gang, node, pdb, pod, pod_group


def run(**options):
    return Cluster(**options)


def test_a_gang_evicts_just_enough_and_uses_free_room_first():
    world = run().see(
        *(node(f"n{i}").cpu("2") for i in range(3)),
        pod("l0").cpu("2").priority(10).node("n0"),
        pod("l1").cpu("2").priority(10).node("n1"),
        *gang("g", 3, "1", 100),
    )
    world.step()
    assert len(world.evicted) == 1
    assert sorted(world.bound) == ["g-0", "g-1", "g-2"]


def test_nothing_is_evicted_unless_the_whole_gang_then_fits():
    world = run().see(
        node("n").cpu("3"),
        pod("high").cpu("1").priority(500).node("n"),
        *(pod(f"low{i}").cpu("1").priority(10).node("n") for i in range(2)),
        *gang("g", 3, "1", 100),
    )
    world.step()
    assert world.evicted == [] and world.bound == {}


def test_what_the_group_and_its_victims_say_while_victims_terminate():
    world = run(grace=True).see(node("n").cpu("1"), pod("low").cpu("1").priority(10).node("n"), *gang("g", 1, "1", 100))
    world.step()
    (evict,) = world.of(d.Evict)
    assert evict.message == "default-scheduler: preempting to accommodate a higher priority podgroup"
    assert evict.event_message == "Preempted by podgroup g (priority 100)"
    assert evict.preemptor == "podgroup/default/g"
    conditions = [c for c in world.of(d.SetGroupCondition, "g") if c.type == "PodGroupInitiallyScheduled"]
    assert conditions[-1].message.endswith("pod group preemption: found a placement for podgroup, preempting 1 victims")
    assert world.nominated() == {"g-0": "n"}
    world.step(30)
    assert world.evicted == ["low"] and world.bound == {}
    world.finish().step()
    assert world.bound == {"g-0": "n"}


def test_the_gang_goes_at_once_when_the_last_victim_is_gone_and_not_before():
    world = run(grace=True).see(
        *(node(f"n{i}").cpu("1") for i in range(2)),
        *(pod(f"low{i}").cpu("1").priority(1).node(f"n{i}") for i in range(2)),
        *gang("g", 2, "1", 9),
    )
    world.step()
    assert sorted(world.evicted) == ["low0", "low1"]
    world.finish("low0")
    assert world.step() == []
    world.finish("low1").step()
    assert sorted(world.bound) == ["g-0", "g-1"] and len(world.evicted) == 2


def test_a_disruption_mode_all_group_goes_as_a_whole_and_says_so():
    world = run().see(
        *(node(f"n{i}").cpu("1") for i in range(3)),
        pod_group("batch").gang(2).priority(10).disrupt_all(),
        *(pod(f"b{i}").cpu("1").group("batch").priority(10).node(f"n{i}") for i in range(3)),
        *gang("g", 1, "1", 100),
    )
    world.step()
    assert sorted(world.evicted) == ["b0", "b1", "b2"]
    announced = [c for c in world.of(d.SetGroupCondition, "batch") if c.type == "DisruptionTarget"]
    assert [(c.status, c.reason) for c in announced] == [("True", "PreemptionByScheduler")]


def test_a_lone_pod_is_preferred_to_a_whole_group():
    world = run().see(
        *(node(f"n{i}").cpu("1") for i in range(3)),
        pod_group("batch").gang(2).priority(10).disrupt_all(),
        *(pod(f"b{i}").cpu("1").group("batch").priority(10).node(f"n{i}") for i in range(2)),
        pod("lone").cpu("1").priority(10).node("n2"),
        pod("high").cpu("1").priority(100),
    )
    world.step()
    assert world.evicted == ["lone"]


def test_a_single_pod_evicts_a_whole_group_if_that_is_all_there_is():
    world = run().see(
        *(node(f"n{i}").cpu("1") for i in range(2)),
        pod_group("batch").gang(2).priority(10).disrupt_all(),
        *(pod(f"b{i}").cpu("1").group("batch").priority(10).node(f"n{i}") for i in range(2)),
        pod("high").cpu("1").priority(100),
    )
    world.step()
    assert sorted(world.evicted) == ["b0", "b1"] and len(world.bound) == 1


def test_a_gang_is_not_broken_where_a_free_pod_will_do():
    world = run().see(
        *(node(f"n{i}").cpu("1") for i in range(3)),
        pod_group("train").gang(2).priority(10),
        *(pod(f"t{i}").cpu("1").group("train").priority(10).node(f"n{i}") for i in range(2)),
        pod("web").cpu("1").priority(10).node("n2"),
        *gang("g", 1, "1", 100),
    )
    world.step()
    assert world.evicted == ["web"]


@pytest.mark.parametrize("priority", [10, 11])
def test_equal_or_higher_priority_groups_are_safe(priority):
    world = run().see(
        node("n").cpu("2"),
        *(pod(f"run{i}").cpu("1").priority(priority).node("n") for i in range(2)),
        *gang("g", 2, "1", 10),
    )
    world.step()
    assert world.evicted == []


def test_the_rack_with_fewer_victims():
    world = run().see(
        *(node(f"a{i}").cpu("2").label("rack", "r1") for i in range(2)),
        *(node(f"b{i}").cpu("2").label("rack", "r2") for i in range(4)),
        *(pod(f"x{i}").cpu("1").priority(10).node(f"a{i // 2}") for i in range(4)),
        pod("y").cpu("2").priority(10).node("b0"),
        pod("w1").cpu("2").priority(900).node("b1"),
        pod("w2").cpu("1").priority(900).node("b2"),
        *gang("g", 2, "2", 100, topology="rack"),
    )
    world.step()
    assert world.evicted == ["y"]
    assert {world.bound[f"g-{i}"] for i in range(2)} <= {"b0", "b3"}


def test_the_minimum_is_served_first_and_extras_in_a_plan_of_their_own():
    world = run(grace=True).see(
        *(node(f"n{i}").cpu("1") for i in range(4)),
        *(pod(f"low{i}").cpu("1").priority(1).node(f"n{i}") for i in range(4)),
        *gang("g", 3, "1", 9, minimum=2),
    )
    world.step()
    assert len(world.evicted) == 2
    world.finish().step()
    assert len(world.evicted) == 3 and len(world.bound) == 2
    world.finish().step()
    assert len(world.evicted) == 3 and len(world.bound) == 3


def test_extras_that_can_only_partly_be_served_still_get_what_is_possible():
    world = run().see(
        *(node(f"n{i}").cpu("1") for i in range(4)),
        *(pod(f"low{i}").cpu("1").priority(1).node(f"n{i}") for i in range(2)),
        *(pod(f"high{i}").cpu("1").priority(99).node(f"n{i + 2}") for i in range(2)),
        *gang("g", 3, "1", 9, minimum=1),
    )
    world.step()
    assert sorted(world.evicted) == ["low0", "low1"] and len(world.bound) == 2


def test_a_composite_evicts_for_its_minimum_only():
    world = run().see(
        *(node(f"n{i}").cpu("2") for i in range(3)),
        *(pod(f"low{i}").cpu("2").priority(10).node(f"n{i}") for i in range(3)),
        composite("root").gang(1).priority(100).from_workload("w", "root"),
        pod_group("pg1").gang(2).priority(100).parent("root").from_workload("w", "pg1"),
        pod_group("pg2").gang(1).priority(100).parent("root").from_workload("w", "pg2"),
        pod("a1").cpu("2").group("pg1").priority(100),
        pod("a2").cpu("100").group("pg1").priority(100),
        pod("b1").cpu("2").group("pg2").priority(100),
    )
    world.step()
    assert len(world.evicted) == 1 and list(world.bound) == ["b1"]


def late_tree(policy, *children):
    """Two nodes of 2 cpu, the second full of an unimportant pod; child groups (name, cpu) of two pods each."""
    root = composite("root").priority(100).from_workload("w", "root")
    return run().see(
        *(node(f"n{i}").cpu("2") for i in range(2)),
        pod("low").cpu("2").priority(10).node("n1"),
        root.gang(1) if policy == "gang" else root,
        *(pod_group(n).gang(2).priority(100).parent("root").from_workload("w", n) for n, _ in children),
        *(pod(f"{n}-{i}").cpu(cpu).group(n).priority(100) for n, cpu in children for i in range(2)),
    )


@pytest.mark.parametrize("policy", ["gang", "basic"])
def test_a_child_group_beyond_the_minimum_makes_room_once_the_minimum_runs(policy):
    world = late_tree(policy, ("pg1", "1"), ("pg2", "1"))
    world.step()
    assert world.evicted == ["low"]
    assert sorted(world.bound) == ["pg1-0", "pg1-1", "pg2-0", "pg2-1"]


def test_a_child_group_that_cannot_fit_does_not_keep_another_from_preempting():
    world = late_tree("gang", ("pg1", "1"), ("pg2", "100"), ("pg3", "1"))
    world.step()
    assert world.evicted == ["low"]
    assert sorted(world.bound) == ["pg1-0", "pg1-1", "pg3-0", "pg3-1"]


def test_budgets_are_kept_when_possible():
    world = run().see(
        node("n").cpu("3"),
        pdb("guard").select({"app": "guarded"}).allowed(0),
        *(pod(f"g{i}").cpu("1").priority(10).label("app", "guarded").node("n") for i in range(2)),
        pod("free").cpu("1").priority(10).label("app", "free").node("n"),
        *gang("gang", 2, "500m", 100),
    )
    world.step()
    assert world.evicted == ["free"] and len(world.bound) == 2


def test_anti_affinity_of_members_is_resolved_by_evicting_the_pods_they_avoid():
    members = [
        pod(f"p{i}").cpu("1500m").group("pg").priority(100).anti_affinity("kubernetes.io/hostname", {"app": "bad"})
        for i in range(2)
    ]
    world = run().see(
        node("n1").cpu("2").label("kubernetes.io/hostname", "n1"),
        node("n2").cpu("2").label("kubernetes.io/hostname", "n2"),
        pod("low").cpu("500m").priority(10).label("app", "bad").node("n1"),
        pod_group("pg").gang(2).priority(100),
        *members,
    )
    world.step()
    assert world.evicted == ["low"] and len(world.bound) == 2


def test_never_policy_of_a_pod_holds_for_its_gang():
    world = run().see(
        node("n").cpu("2"),
        *(pod(f"low{i}").cpu("1").priority(1).node("n") for i in range(2)),
        pod_group("g").gang(2).priority(9),
        *(pod(f"g-{i}").cpu("1").group("g").priority(9).preemption_policy("Never") for i in range(2)),
    )
    world.step()
    assert world.evicted == []


def test_a_deleted_preemptor_leaves_nothing_behind():
    world = run(grace=True).see(node("n").cpu("1"), pod("low").cpu("1").priority(1).node("n"), *gang("g", 1, "1", 9))
    world.step()
    world.gone("Pod", "g-0").finish()
    world.see(pod("other").cpu("1").priority(1)).step()
    assert world.bound == {"other": "n"} and world.evicted == ["low"]


def test_an_unchanged_cluster_is_not_searched_twice():
    world = run().see(node("n").cpu("1"), pod("x").cpu("1").priority(50).node("n"),
                      pod("y").cpu("0").priority(1).node("n"), *gang("g", 1, "1", 9))  # fmt: skip
    preempt = world.engine.preemption
    asked = []
    look = preempt.plan
    preempt.plan = lambda *args: asked.append(1) or look(*args)
    world.step()
    world.step(400)
    assert len(asked) == 1


def test_a_waiting_gang_looks_again_when_a_departure_makes_a_plan_possible():
    world = run().see(
        node("n").cpu("2"),
        pod("x").cpu("1").priority(500).node("n"),
        pod("low").cpu("1").priority(5).node("n"),
        *gang("g", 1, "2", 9),
    )
    world.step()
    assert world.evicted == []
    world.gone("Pod", "x").step()
    assert world.evicted == ["low"] and world.bound == {"g-0": "n"}


def test_a_waiting_gang_looks_again_when_a_less_important_pod_arrives():
    world = run().see(
        node("n").cpu("2"), pod("x").cpu("1").priority(500).node("n"), pod("y").cpu("1").priority(9).node("n"),
        *gang("g", 1, "1", 9),
    )  # fmt: skip
    world.step()
    moved = pod("low").cpu("1").priority(5).node("n")
    world.engine.apply(Gone("Pod", "y", "default"))
    world.see(moved).step()
    assert world.evicted == ["low"] and world.bound == {"g-0": "n"}


def test_the_pod_that_members_avoid_is_found_among_hundreds_of_small_pods():
    host = "kubernetes.io/hostname"
    world = run().see(
        *(node(f"n{i}").cpu("400").pods(500).label(host, f"n{i}") for i in range(2)),
        *(pod(f"small{i:03}").cpu("1").priority(10).node(f"n{i % 2}") for i in range(700)),
        *(pod(f"bad{i}").cpu("1").priority(5).label("app", "bad").node(f"n{i}") for i in range(2)),
        pod_group("g").gang(2).priority(100),
        *(pod(f"g-{i}").cpu("1").group("g").priority(100).label("app", "g")
          .anti_affinity(host, {"app": "bad"}).anti_affinity(host, {"app": "g"}) for i in range(2)),
    )  # fmt: skip
    world.step()
    assert sorted(world.evicted) == ["bad0", "bad1"]
    assert sorted(world.bound) == ["g-0", "g-1"]


def test_the_pod_that_members_avoid_may_be_on_another_node_of_the_zone():
    world = run().see(
        node("n0").cpu("2").label("zone", "z"),
        node("n1").cpu("4").label("zone", "z"),
        *(pod(f"small{i}").cpu("1").priority(10).node("n1") for i in range(2)),
        pod("bad").cpu("1").priority(5).label("app", "bad").node("n0"),
        pod_group("g").gang(2).priority(100),
        *(pod(f"g-{i}").cpu("1").group("g").priority(100).anti_affinity("zone", {"app": "bad"}) for i in range(2)),
    )
    world.step()
    assert world.evicted == ["bad"] and sorted(world.bound) == ["g-0", "g-1"]


def workers_with_a_leader(zone_size):
    """Two zones full of lower priority; two workers that want to be where their leader is."""
    return run().see(
        *(node(f"{z}{i}").cpu("1").label("zone", z) for z in "ab" for i in range(zone_size)),
        *(pod(f"low-{z}{i}").cpu("1").priority(1).node(f"{z}{i}") for z in "ab" for i in range(zone_size)),
        pod_group("g").gang(3).priority(100),
        *(pod(f"w{i}").cpu("1").group("g").priority(100).affinity("zone", {"role": "leader"}) for i in range(2)),
        pod("leader").cpu("1").group("g").priority(100).label("role", "leader"),
    )


def test_members_with_affinity_that_no_pod_satisfies_yet_find_victims_too():
    world = workers_with_a_leader(3)
    world.step()
    assert sorted(world.bound) == ["leader", "w0", "w1"]
    assert len(world.evicted) == 3 and len({name[4] for name in world.evicted}) == 1  # one zone, no pod more


def test_no_pod_is_evicted_for_members_whose_affinity_fits_in_no_zone():
    world = workers_with_a_leader(2)
    world.step()
    assert world.bound == {} and world.evicted == []


def two_in_the_way_of_one_unit(**how):
    """A gang that goes as a whole on two nodes, and two pods of high priority that need a node each."""
    run = Cluster(**how).see(*(node(f"n{i}").cpu("2") for i in range(2)), pod_group("g").gang(2).disrupt_all())
    run.see(*(pod(f"g{i}").group("g").cpu("2").priority(1).node(f"n{i}") for i in range(2)))
    return run.see(pod("h0").cpu("2").priority(100), pod("h1").cpu("2").priority(100))


def test_a_pod_in_the_way_of_two_is_evicted_once():
    run = two_in_the_way_of_one_unit(evict=False)
    made = run.step()
    assert sorted(each.name for each in made if isinstance(each, d.Evict)) == ["g0", "g1"]
    announced = [each for each in made if isinstance(each, d.SetGroupCondition) and each.type == "DisruptionTarget"]
    assert [each.name for each in announced] == ["g"]
    run.gone("Pod", "g0").gone("Pod", "g1").step()
    assert sorted(run.bound) == ["h0", "h1"]


def test_a_refusal_ends_the_plans_of_both():
    run = two_in_the_way_of_one_unit(evict=False)
    first = next(each for each in run.engine.step(run.now) if isinstance(each, d.Evict))
    run.engine.apply(Outcome(first.id, PERMANENT, "no"))
    run.engine.validate()
    again = [each.name for each in run.engine.step(run.now + 1.1) if isinstance(each, d.Evict)]
    assert again == [first.name]  # the other one was evicted before and is waited for


@pytest.mark.parametrize("tied", [False, True])
def test_the_minimum_is_served_first_and_extras_by_a_plan_of_their_own(tied):
    """Members tied to each other or not: no pod is evicted for an extra before the minimum has its nodes."""
    run = Cluster(evict=False).see(*(node(f"n{i}").cpu("2").label("zone", "ab"[i % 2]) for i in range(4)))
    run.see(*(pod(f"low{i}").cpu("2").priority(1).node(f"n{i}") for i in range(4)))
    members = [pod(f"m{i}").group("g").cpu("2").priority(100).label("app", "g") for i in range(4)]
    if tied:
        members = [each.spread("zone", {"app": "g"}, max_skew=2) for each in members]
    run.see(pod_group("g").gang(2).priority(100), *members)
    first = [each.name for each in run.step() if isinstance(each, d.Evict)]
    assert len(first) == 2
    for name in first:
        run.gone("Pod", name)
    second = [each.name for each in run.step() if isinstance(each, d.Evict)]
    assert len(run.bound) == 2 and len(second) == 2 and not set(first) & set(second)


def test_an_eviction_without_an_answer_is_repeated_after_a_while():
    run = Cluster(evict=False).see(node("n").cpu("1"), pod("low").cpu("1").node("n"), pod("high").cpu("1").priority(9))
    run.perform = lambda decision: None  # type: ignore[method-assign]
    for seconds, evictions in ((0, 1), (60, 0), (700, 1), (60, 0)):
        run.see(node("n").cpu("1").label("changed", str(run.now)))
        made = [each.name for each in run.step(seconds) if isinstance(each, d.Evict)]
        assert made == ["low"] * evictions
