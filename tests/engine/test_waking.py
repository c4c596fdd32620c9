"""Who is tried when: order, sleeping, waking, and not waking."""

from __future__ import annotations

import pytest

from phalanx.engine.events import TimePassed
from phalanx.engine.framework.evaluation import Evaluation
from phalanx.engine.scheduling.attempt.unit_requests import UnitRequests
from phalanx.testing import Cluster
from phalanx.testing.builders import node, pod, pvc, service
from support.verdicts import binds, not_helpful


@pytest.fixture
def evaluations(monkeypatch):
    """How often an attempt looked at the nodes. What the plan of starts looks at is not counted."""
    looked = []
    real, eligible = Evaluation.pre_filter, UnitRequests._eligible

    def plan(self, record):
        before = len(looked)
        found = eligible(self, record)
        del looked[before:]
        return found

    monkeypatch.setattr(Evaluation, "pre_filter", lambda self: looked.append(self.shape.id) or real(self))
    monkeypatch.setattr(UnitRequests, "_eligible", plan)
    return looked


def test_higher_priority_goes_first_then_the_earlier_request():
    run = Cluster().see(
        node("n").cpu("3"),
        pod("young").cpu("1").created(300),
        pod("old").cpu("1").created(100),
        pod("urgent").cpu("1").created(400).priority(10),
        pod("middle").cpu("1").created(200),
    )
    assert list(binds(run.step())) == ["urgent", "old", "middle"]


def test_a_failed_attempt_does_not_lose_its_place():
    run = Cluster().see(node("n").cpu("1"), pod("first").cpu("2").created(1))
    run.step()
    run.see(pod("second").cpu("2").created(2)).step()
    run.see(node("m").cpu("2"))
    assert binds(run.step()) == {"first": "m"}


def test_equal_pods_that_cannot_fit_are_looked_at_once(evaluations):
    run = Cluster().see(node("n").cpu("1"), *(pod(f"p{i}").cpu("2") for i in range(200)))
    run.step()
    assert len(evaluations) == 1
    assert run.messages("p199") == run.messages("p0") == [not_helpful("0/1 nodes are available: 1 Insufficient cpu.")]


def test_waking_a_shape_tries_as_many_pods_as_fit_and_one_more(evaluations):
    run = Cluster().see(node("n").cpu("1"), *(pod(f"p{i}").cpu("2").created(i) for i in range(50)))
    run.step()
    evaluations.clear()
    run.see(node("m").cpu("6"))
    assert list(binds(run.step())) == ["p0", "p1", "p2"]
    assert len(evaluations) == 4


@pytest.mark.parametrize(
    "change",
    [
        lambda run: run.see(node("n").cpu("1").label("new", "label")),
        lambda run: run.see(node("tiny").cpu("1")),
        lambda run: run.gone("Pod", "small"),
        lambda run: run.see(pod("other").cpu("100m")),
        lambda run: run.see(service("s")),
        lambda run: run.see(pvc("claim")),
    ],
    ids=["label", "small node", "small pod gone", "another pod", "service", "claim"],
)
def test_events_that_cannot_help_do_not_wake(evaluations, change):
    run = Cluster().see(node("n").cpu("1"), pod("small").cpu("100m"), pod("big").cpu("2"))
    run.step()
    big = run.engine.pods.records["default/big"].shape.id
    evaluations.clear()
    change(run)
    run.step()
    assert big not in evaluations


@pytest.mark.parametrize(
    ("first", "waiting", "change"),
    [
        (node("n").cpu("1"), pod("p").cpu("2"), lambda run: run.see(node("m").cpu("2"))),
        (node("n").cpu("1"), pod("p").cpu("2"), lambda run: run.see(node("n").cpu("2"))),
        (node("n").taint("k", "v"), pod("p"), lambda run: run.see(node("n"))),
        (node("n").unschedulable(), pod("p"), lambda run: run.see(node("n"))),
        (node("n"), pod("p").select("disk", "ssd"), lambda run: run.see(node("n").label("disk", "ssd"))),
        (node("n").cpu("1"), pod("p").cpu("2"), lambda run: run.see(pod("p").cpu("1"))),
        (node("n"), pod("p").gate("wait"), lambda run: run.see(pod("p"))),
        (node("n").taint("k", "v"), pod("p"), lambda run: run.see(pod("p").tolerate("k", "v"))),
    ],
    ids=["node", "allocatable", "taint", "cordon", "label", "pod shrinks", "gate", "toleration"],
)
def test_events_that_help_wake_at_once(first, waiting, change):
    run = Cluster().see(first, waiting)
    assert binds(run.step()) == {}
    change(run)
    assert len(binds(run.step())) == 1


def test_two_obstacles_removed_one_after_the_other():
    """The first filter hides the second: taking the taint away must not make the pod deaf to freed room."""
    run = Cluster().see(node("n").cpu("1").taint("k", "v"), pod("old").cpu("1").node("n"), pod("p").cpu("1"))
    run.step()
    run.see(node("n").cpu("1"))
    assert binds(run.step()) == {}
    run.gone("Pod", "old")
    assert binds(run.step()) == {"p": "n"}


def test_a_gated_pod_is_not_tried_and_keeps_its_turn(evaluations):
    run = Cluster().see(
        node("n").cpu("1"), pod("gated").cpu("1").created(1).gate("g"), pod("later").cpu("2").created(2)
    )
    run.step()
    root = run.engine.queue.units["pod/default/gated"]
    assert root.gate == ("SchedulingGates", "waiting for scheduling gates: [g]")
    assert len(evaluations) == 1
    run.see(pod("gated").cpu("1").created(1))
    assert binds(run.step()) == {"gated": "n"}


def test_an_equal_pod_follows_a_deleted_representative():
    run = Cluster().see(node("n").cpu("1"), *(pod(f"p{i}").cpu("2").created(i) for i in range(3)))
    run.step()
    run.see(node("m").cpu("2"))
    run.gone("Pod", "p0")
    assert binds(run.step()) == {"p1": "m"}


def test_writing_the_verdict_to_the_pod_does_not_try_it_again(evaluations):
    run = Cluster().see(node("n").cpu("1"), pod("p").cpu("2"))
    run.step()
    evaluations.clear()
    run.see(pod("p").cpu("2").condition("PodScheduled", "False", "Unschedulable", run.messages("p")[0]))
    run.step()
    assert evaluations == []


def test_a_restart_does_not_repeat_what_the_pod_already_says():
    message = not_helpful("0/1 nodes are available: 1 Insufficient cpu.")
    run = Cluster().see(
        node("n").cpu("1"), pod("p").cpu("2").condition("PodScheduled", "False", "Unschedulable", message)
    )
    assert run.step() == []


def test_a_sleeping_shape_is_looked_at_again_after_a_long_time(evaluations):
    run = Cluster().see(node("n").cpu("1"), *(pod(f"p{i}").cpu("2") for i in range(20)))
    run.step()
    evaluations.clear()
    assert run.engine.next_wake() == run.now + 300.0
    run.step(300.0)
    assert len(evaluations) == 1


def test_a_clock_that_jumps_back_is_ignored():
    run = Cluster().see(node("n").cpu("1"), pod("p").cpu("2"))
    run.step()
    due = run.engine.next_wake()
    run.engine.apply(TimePassed(1.0))
    assert run.engine.cluster.now == run.now and run.engine.next_wake() == due


def test_among_many_waiting_shapes_only_those_are_tried_that_fit_when_their_turn_comes(evaluations):
    run = Cluster().see(node("n").cpu("1"), *(pod(f"p{i}").cpu(f"{2000 + i}m") for i in range(300)))
    run.step()
    evaluations.clear()
    run.see(node("m").cpu("2100m"))
    made = run.engine.step(run.now, 1000)
    assert binds(made) == {"p0": "m"}  # 101 could have had the room
    assert len(evaluations) == 1


def test_a_gated_pod_says_so():
    run = Cluster().see(node("n"), pod("p").gate("g"))
    made = run.step()
    assert [(each.reason, each.message) for each in made] == [
        ("SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates")
    ]


def test_a_pod_that_waits_for_company_wakes_when_we_place_that_company():
    run = Cluster().see(node("n"), pod("guest").affinity("kubernetes.io/hostname", {"app": "host"}))
    assert binds(run.step()) == {}
    run.see(pod("host").label("app", "host"))
    assert list(binds(run.step())) == ["host", "guest"]
