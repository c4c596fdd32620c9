"""What becomes of decisions: confirmed, failed, late, doubled, overtaken by events."""

from __future__ import annotations

import pytest

from phalanx.engine import decisions as d
from phalanx.engine.events import CONFLICT, NOT_FOUND, PERMANENT, TRANSIENT, Outcome
from phalanx.testing import Cluster
from phalanx.testing.builders import node, pod
from support.verdicts import binds


def started(*objects, confirm=False):
    run = Cluster(confirm=confirm).see(*objects)
    return run, [each for each in run.step() if isinstance(each, d.Bind)]


def test_an_assumed_pod_holds_its_room_before_it_is_confirmed():
    run, (bind,) = started(node("n").cpu("1"), pod("a").cpu("1"))
    run.see(pod("b").cpu("1"))
    assert binds(run.step()) == {}
    run.engine.apply(Outcome(bind.id))
    events = run.engine.step(run.now)
    assert [(e.reason, e.message) for e in events if isinstance(e, d.RecordEvent)] == [
        ("Scheduled", "Successfully assigned default/a to n")
    ]


@pytest.mark.parametrize("informer_first", [True, False])
def test_confirmations_may_come_in_any_order_and_twice(informer_first):
    run, (bind,) = started(node("n").cpu("1"), pod("a").cpu("1"))
    if informer_first:
        run.show_bound("a", "n")
        run.engine.apply(Outcome(bind.id))
    else:
        run.engine.apply(Outcome(bind.id))
        run.show_bound("a", "n")
    run.engine.apply(Outcome(bind.id))
    run.show_bound("a", "n")
    run.engine.validate()
    assert run.engine.columns.used[0, 0] == 1000


@pytest.mark.parametrize("problem", [CONFLICT, NOT_FOUND, TRANSIENT, PERMANENT])
def test_a_failed_bind_gives_the_room_back_and_is_tried_again_after_a_while(problem):
    run, (bind,) = started(node("n").cpu("1"), pod("a").cpu("1"))
    run.engine.apply(Outcome(bind.id, problem, "the server said no"))
    run.engine.validate()
    assert run.engine.columns.used[0, 0] == 0
    said = [each for each in run.engine.step(run.now) if isinstance(each, d.SetPodCondition)]
    assert [each.reason for each in said] == (["SchedulerError"] if problem == PERMANENT else [])
    assert run.engine.next_wake() == run.now + 1.0
    assert binds(run.step(1.0)) == {"a": "n"}


def test_backoff_doubles_up_to_its_limit():
    run, (bind,) = started(node("n").cpu("1"), pod("a").cpu("1"))
    waits = []
    for _ in range(6):
        run.engine.apply(Outcome(bind.id, TRANSIENT))
        due = run.engine.next_wake()
        waits.append(due - run.now)
        (bind,) = run.step(due - run.now)
    assert waits == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_a_late_failure_of_a_bind_that_the_informer_has_shown_changes_nothing():
    run, (bind,) = started(node("n").cpu("1"), pod("a").cpu("1"))
    run.show_bound("a", "n")
    run.engine.apply(Outcome(bind.id, TRANSIENT, "answer lost"))
    run.engine.validate()
    assert run.engine.columns.used[0, 0] == 1000 and run.step(20.0) == []


def test_a_pod_deleted_while_it_is_bound_leaves_nothing_behind():
    run, (bind,) = started(node("n").cpu("1"), pod("a").cpu("1"))
    run.gone("Pod", "a")
    run.engine.apply(Outcome(bind.id, NOT_FOUND))
    run.engine.validate()
    assert run.engine.columns.used[0, 0] == 0
    assert run.engine.pods.records == {} and run.step(60.0) == []


def test_a_node_deleted_under_an_assumed_pod_comes_back_with_it():
    run, (bind,) = started(node("n").cpu("2"), pod("a").cpu("1"))
    run.gone("Node", "n")
    run.see(node("n").cpu("2"))
    assert run.engine.columns.used[0, run.engine.columns.row_of["n"]] == 1000
    run.engine.apply(Outcome(bind.id))
    run.show_bound("a", "n")
    run.engine.validate()


def test_a_bind_that_fails_after_its_node_is_gone_goes_elsewhere():
    run, (bind,) = started(node("n").cpu("2"), pod("a").cpu("1"))
    run.gone("Node", "n").see(node("m").cpu("2"))
    run.engine.apply(Outcome(bind.id, CONFLICT))
    run.engine.validate()
    assert binds(run.step(1.0)) == {"a": "m"}


def test_the_bind_of_another_scheduler_wins():
    run, (bind,) = started(node("n").cpu("1"), node("m").cpu("1"), pod("a").cpu("1"))
    assert bind.node == "n"
    run.show_bound("a", "m")
    run.engine.apply(Outcome(bind.id, CONFLICT))
    run.engine.validate()
    assert run.engine.columns.used[0, :2].tolist() == [0, 1000]
    run.see(pod("b").cpu("1"))
    assert binds(run.step()) == {"b": "n"}


def test_an_unbound_version_of_a_bound_pod_is_ignored_as_outdated():
    run, (bind,) = started(node("n").cpu("1"), pod("a").cpu("1"))
    run.engine.apply(Outcome(bind.id))
    run.show_bound("a", "n")
    run.see(pod("a").cpu("1"))
    assert binds(run.step(60.0)) == {}
    assert run.engine.columns.used[0, 0] == 1000


def test_a_pod_made_again_under_its_old_name_is_another_pod():
    run, (bind,) = started(node("n").cpu("1"), pod("a").cpu("1"))
    run.see(pod("a").cpu("500m").uid("second"))
    placed = [each for each in run.step() if isinstance(each, d.Bind)]
    assert [(each.uid, each.node) for each in placed] == [("second", "n")]
    run.engine.apply(Outcome(bind.id, NOT_FOUND))
    run.engine.validate()
    assert run.engine.columns.used[0, 0] == 500


def test_pods_bound_to_a_node_we_do_not_know_yet_count_when_it_appears():
    run = Cluster().see(pod("early").cpu("1").node("n"), node("n").cpu("1"), pod("b").cpu("1"))
    assert binds(run.step()) == {}


def test_a_bound_pod_that_shrinks_makes_room():
    run = Cluster().see(node("n").cpu("2"), pod("a").cpu("2").node("n"), pod("b").cpu("1"))
    assert binds(run.step()) == {}
    run.see(pod("a").cpu("1").node("n"))
    assert binds(run.step()) == {"b": "n"}


def test_a_condition_that_could_not_be_written_is_said_again():
    run = Cluster().see(node("n").cpu("1"), pod("a").cpu("2"))
    (condition, _) = run.engine.step(run.now)
    run.engine.apply(Outcome(condition.id, TRANSIENT))
    again = run.step(400.0)
    assert [type(each) for each in again] == [d.SetPodCondition], "its event was recorded the first time"


def test_a_node_that_comes_back_after_the_bind_failed_is_empty():
    run, (bind,) = started(node("n").cpu("2"), pod("a").cpu("1"))
    run.gone("Node", "n")
    run.engine.apply(Outcome(bind.id, CONFLICT))
    run.see(node("n").cpu("2"))
    assert run.engine.columns.used[0, run.engine.columns.row_of["n"]] == 0
    assert binds(run.step(1.0)) == {"a": "n"}
