"""A pod that fits nowhere makes room for itself: what it may evict, what it chooses, and what all of them say."""

from __future__ import annotations

import pytest

from phalanx.engine import decisions as d
from phalanx.testing import Cluster
from phalanx.testing.builders import node, pdb, pod


def test_the_lowest_priority_victim_is_evicted_and_the_pod_follows():
    run = Cluster().see(
        node("n1").cpu("2"),
        node("n2").cpu("2"),
        pod("mid").cpu("2").priority(50).node("n1"),
        pod("low").cpu("2").priority(5).node("n2"),
        pod("high").cpu("2").priority(100),
    )
    run.step()
    assert run.evicted == ["low"]
    assert run.bound == {"high": "n2"}


def test_what_victim_and_preemptor_say():
    run = Cluster(grace=True).see(
        node("n").cpu("1"), pod("low").cpu("1").priority(1).node("n"), pod("high").cpu("1").priority(9)
    )
    run.step()
    (evict,) = run.of(d.Evict)
    assert evict.reason == "PreemptionByScheduler"
    assert evict.message == "default-scheduler: preempting to accommodate a higher priority pod"
    assert evict.event_message == "Preempted by pod high (priority 9) on node n"
    assert evict.preemptor == "pod/default/high"
    assert run.nominated() == {"high": "n"}
    assert run.message("high") == (
        "0/1 nodes are available: 1 Insufficient cpu. "
        "preemption: found a potential placement for pod on node n, preempting 1 victims"
    )


@pytest.mark.parametrize("priority", [100, 101])
def test_equal_or_higher_priority_is_never_evicted(priority):
    run = Cluster().see(
        node("n").cpu("1"), pod("other").cpu("1").priority(priority).node("n"), pod("p").cpu("1").priority(100)
    )
    run.step()
    assert run.evicted == []
    assert run.message("p") == (
        "0/1 nodes are available: 1 Insufficient cpu. "
        "preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
    )


def test_a_pod_larger_than_any_node_evicts_no_pod():
    run = Cluster().see(node("n").cpu("2"), pod("low").cpu("2").node("n"), pod("p").cpu("3").priority(9))
    run.step()
    assert run.evicted == []
    assert run.message("p").endswith("preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.")


def test_preemption_policy_never_evicts_no_pod():
    waiting = pod("p").cpu("1").priority(9).preemption_policy("Never")
    run = Cluster().see(node("n").cpu("1"), pod("low").cpu("1").node("n"), waiting)
    run.step()
    assert run.evicted == []
    assert run.message("p").endswith("preemption: not eligible due to preemptionPolicy=Never.")


def test_no_more_is_evicted_than_is_needed():
    run = Cluster().see(
        node("n").cpu("4"),
        *(pod(f"small{i}").cpu("1").priority(1).node("n") for i in range(2)),
        pod("big").cpu("2").priority(1).node("n"),
        pod("high").cpu("2").priority(9),
    )
    run.step()
    assert run.evicted == ["big"]
    assert run.bound == {"high": "n"}


def test_budgets_are_kept_where_another_node_will_do():
    run = Cluster().see(
        node("n1").cpu("1"),
        node("n2").cpu("1"),
        pdb("guard").select({"app": "web"}).allowed(0),
        pod("web").cpu("1").priority(1).label("app", "web").node("n1"),
        pod("batch").cpu("1").priority(50).node("n2"),
        pod("high").cpu("1").priority(100),
    )
    run.step()
    assert run.evicted == ["batch"]


def test_budgets_are_broken_when_nothing_else_helps():
    run = Cluster().see(
        node("n1").cpu("1"),
        pdb("guard").select({"app": "web"}).allowed(0),
        pod("web").cpu("1").priority(1).label("app", "web").node("n1"),
        pod("high").cpu("1").priority(100),
    )
    run.step()
    assert run.evicted == ["web"]


def test_nothing_more_is_evicted_while_victims_are_leaving():
    run = Cluster(grace=True).see(
        node("n1").cpu("1"),
        node("n2").cpu("1"),
        pod("a").cpu("1").priority(1).node("n1"),
        pod("b").cpu("1").priority(2).node("n2"),
        pod("high").cpu("1").priority(9),
    )
    run.step()
    run.see(node("n3").cpu("100m"))
    run.step(400)
    assert run.evicted == ["a"] and run.bound == {}
    run.finish("a").step()
    assert run.bound == {"high": "n1"} and run.evicted == ["a"]


def test_the_freed_room_is_kept_from_equal_and_lower_priority():
    run = Cluster(grace=True).see(
        node("n").cpu("1"), pod("low").cpu("1").priority(1).node("n"), pod("high").cpu("1").priority(9)
    )
    run.step()
    run.see(pod("same").cpu("1").priority(9), pod("lower").cpu("500m").priority(2))
    run.finish("low").step()
    assert run.bound == {"high": "n"}


def test_room_elsewhere_is_taken_at_once():
    run = Cluster(grace=True).see(
        node("n").cpu("1"), pod("low").cpu("1").priority(1).node("n"), pod("high").cpu("1").priority(9)
    )
    run.step()
    run.see(node("spare").cpu("1")).step()
    assert run.bound == {"high": "spare"}


def test_room_that_is_about_to_be_free_needs_no_victim():
    leaving = pod("leaving").cpu("1").priority(50).node("n1").deleting()
    run = Cluster().see(
        node("n1").cpu("1"), node("n2").cpu("1"), leaving, pod("low").cpu("1").priority(1).node("n2"),
        pod("high").cpu("1").priority(9),
    )  # fmt: skip
    run.step()
    assert run.evicted == [] and run.nominated() == {"high": "n1"}
    run.finish("leaving").step()
    assert run.bound == {"high": "n1"}


def test_several_preemptors_choose_different_nodes():
    run = Cluster(grace=True).see(
        *(node(f"n{i}").cpu("1") for i in range(3)),
        *(pod(f"low{i}").cpu("1").priority(1).node(f"n{i}") for i in range(3)),
        *(pod(f"high{i}").cpu("1").priority(9) for i in range(3)),
    )
    run.step()
    assert sorted(run.evicted) == ["low0", "low1", "low2"]
    assert sorted(run.nominated().values()) == ["n0", "n1", "n2"]
    run.finish().step()
    assert sorted(run.bound) == ["high0", "high1", "high2"]


def test_a_port_taken_by_lower_priority_is_freed():
    run = Cluster().see(
        node("n").cpu("4"),
        pod("low").cpu("1").port(80).priority(1).node("n"),
        pod("by").cpu("1").priority(0).node("n"),
        pod("high").cpu("1").port(80).priority(9),
    )
    run.step()
    assert run.evicted == ["low"] and run.bound == {"high": "n"}


def test_anti_affinity_towards_lower_priority_is_resolved():
    run = Cluster().see(
        node("n").cpu("4"),
        pod("bad").cpu("1").label("app", "bad").priority(1).node("n"),
        pod("good").cpu("1").label("app", "good").priority(1).node("n"),
        pod("high").cpu("1").anti_affinity("kubernetes.io/hostname", {"app": "bad"}).priority(9),
    )
    run.step()
    assert run.evicted == ["bad"] and run.bound == {"high": "n"}


def test_a_refused_eviction_does_not_hold_the_preemptor_for_ever():
    run = Cluster(grace=True).see(
        node("n").cpu("1"), pod("low").cpu("1").priority(1).node("n"), pod("high").cpu("1").priority(9)
    )
    run.perform = lambda decision: None  # type: ignore[method-assign]
    (evict,) = [x for x in run.step() if isinstance(x, d.Evict)]
    from phalanx.engine.events import PERMANENT, Outcome

    run.engine.apply(Outcome(evict.id, PERMANENT, "admission webhook said no"))
    assert [x.name for x in run.engine.step(run.now + 1.1) if isinstance(x, d.Evict)] == ["low"]


def test_a_server_that_refuses_evictions_is_not_asked_without_end():
    """Simulation, seed 940020: a leader that could not renew its lease refused every eviction at once, and every
    refusal led to the next: 25,000 in no time. A webhook or missing rights would be asked as often as they answer."""
    run = Cluster(grace=True).see(
        node("n").cpu("1"), pod("low").cpu("1").priority(1).node("n"), pod("high").cpu("1").priority(9)
    )
    run.perform = lambda decision: None  # type: ignore[method-assign]
    from phalanx.engine.events import TRANSIENT, Outcome

    asked = 0
    for tenths in range(600):
        for decision in run.engine.step(run.now + tenths / 10):
            if isinstance(decision, d.Evict):
                asked += 1
                run.engine.apply(Outcome(decision.id, TRANSIENT, "the lease was not renewed in time"))
    run.engine.validate()
    assert 5 <= asked <= 12, "after 1, 2, 4, 8 and then every 10 seconds"


def test_equivalent_pods_do_not_repeat_a_futile_search():
    run = Cluster().see(
        node("n").cpu("1"),
        pod("other").cpu("1").priority(50).node("n"),
        *(pod(f"p{i}").cpu("1").priority(9) for i in range(5)),
    )
    chooser = run.engine.preemption.chooser
    asked = []
    choose = chooser.choose
    chooser.choose = lambda *args: asked.append(1) or choose(*args)
    run.step()
    assert len(asked) == 1
    run.see(pod("low").cpu("0").priority(1).node("n")).step()
    assert len(asked) == 2
