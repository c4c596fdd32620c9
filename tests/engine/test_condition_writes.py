"""Writes of groups' conditions that fail, or are answered late: True stays True."""

from __future__ import annotations

import pytest

from phalanx.base.well_known import DISRUPTION_TARGET
from phalanx.engine import decisions as d
from phalanx.engine.events import NOT_FOUND, TRANSIENT, Outcome
from phalanx.testing import Cluster
from phalanx.testing.builders import node, pod, pod_group, workload


class Refusing(Cluster):
    """An API server that fails some writes of conditions, at once or when asked to."""

    failing: tuple[str, str] = ("", "")  # type and status
    problem = TRANSIENT
    answers_late = False

    def perform(self, decision: d.Decision) -> None:
        if isinstance(decision, d.SetGroupCondition) and (decision.type, decision.status) == self.failing:
            if not self.answers_late:
                self.engine.apply(Outcome(decision.id, self.problem))
            return
        super().perform(decision)


def statuses(run: Cluster, name: str, type_: str) -> list[str]:
    return [each.status for each in run.of(d.SetGroupCondition, name) if each.type == type_]


def test_a_failed_write_about_a_disruption_leaves_what_was_said_about_scheduling():
    run = Refusing().see(
        *(node(f"n{i}").cpu("1") for i in range(2)),
        pod_group("batch").gang(2).priority(10).disrupt_all(),
        *(pod(f"b{i}").cpu("1").group("batch").priority(10) for i in range(2)),
    )
    run.step()
    run.failing = (DISRUPTION_TARGET, "True")
    run.see(*(pod(f"high{i}").cpu("1").priority(100) for i in range(2))).step()
    assert set(run.evicted) == {"b0", "b1"}
    run.see(pod("b2").cpu("1").group("batch").priority(10)).step(11)
    assert statuses(run, "batch", "PodGroupInitiallyScheduled") == ["True"]


def test_a_write_that_fails_after_more_was_said_takes_nothing_back():
    run = Refusing().see(node("n").cpu("4"), pod_group("g").gang(2), pod("a").group("g").cpu("1"))
    run.failing, run.answers_late = ("PodGroupInitiallyScheduled", "False"), True
    run.step()
    late = run.of(d.SetGroupCondition, "g")[0]
    run.see(pod("b").group("g").cpu("1")).step()
    assert run.condition("g") == ("True", "Scheduled", "")
    run.engine.apply(Outcome(late.id, TRANSIENT))
    run.gone("Pod", "a").gone("Pod", "b").see(pod("c").group("g").cpu("1")).step(11)
    assert statuses(run, "g", "PodGroupInitiallyScheduled") == ["False", "True"]


def test_a_disruption_that_could_not_be_taken_back_is_taken_back_later():
    run = Refusing().see(
        *(node(f"n{i}").cpu("1") for i in range(2)),
        pod_group("batch").gang(1).priority(10).disrupt_all(),
        pod("b0").cpu("1").group("batch").priority(10),
        pod("other").cpu("1").priority(100),
    )
    run.step()
    run.see(pod("high").cpu("1").priority(100)).step()
    assert statuses(run, "batch", DISRUPTION_TARGET) == ["True"]
    run.failing = (DISRUPTION_TARGET, "False")
    run.gone("Pod", "other").see(pod("b1").cpu("1").group("batch").priority(10)).step(11)
    assert statuses(run, "batch", DISRUPTION_TARGET)[1:], "it runs again"
    run.failing = ("", "")
    before = len(statuses(run, "batch", DISRUPTION_TARGET))
    run.see(node("n2").cpu("1"), pod("b2").cpu("1").group("batch").priority(10)).step(11)
    assert statuses(run, "batch", DISRUPTION_TARGET)[before:] == ["False"]


@pytest.mark.parametrize("problem", [TRANSIENT, NOT_FOUND])
def test_the_condition_of_a_scheduled_gang_is_written_when_the_api_server_works_again(problem: str):
    run = Refusing().see(node("n").cpu("4"), pod_group("g").gang(2), *(pod(p).group("g").cpu("1") for p in "ab"))
    run.problem = problem
    run.failing = ("PodGroupInitiallyScheduled", "True")
    run.step()
    assert run.bound.keys() == {"a", "b"} and len(statuses(run, "g", "PodGroupInitiallyScheduled")) == 1, "not at once"
    run.failing = ("", "")
    wake = run.engine.next_wake()
    assert wake is not None, "the engine has to be called again"
    run.step(wake - run.now)
    assert run.objects["PodGroup"]["g"].status.conditions[0].status == "True"
    assert run.engine.next_wake() is None


@pytest.mark.parametrize("problem", [TRANSIENT, NOT_FOUND])
def test_the_condition_of_a_waiting_pod_is_written_when_the_api_server_works_again(problem: str):
    class Deaf(Cluster):
        deaf = True

        def perform(self, decision: d.Decision) -> None:
            if isinstance(decision, d.SetPodCondition) and self.deaf:
                self.engine.apply(Outcome(decision.id, problem))
            else:
                super().perform(decision)

    run = Deaf().see(node("n").cpu("4"), pod("a").group("to-come").cpu("1"))
    run.step()
    announced = [each.reason for each in run.of(d.SetPodCondition, "a")]
    assert announced == ["WaitingForMembers"], "not again at once"
    run.deaf = False
    run.step(11)
    assert [each.reason for each in run.of(d.SetPodCondition, "a")] == ["WaitingForMembers"] * 2
    run.step(11)
    assert len(run.of(d.SetPodCondition, "a")) == 2, "it has arrived"
    run.engine.validate()


def test_the_status_of_a_workload_is_written_when_the_api_server_works_again():
    run = Refusing().see(node("n").cpu("4"), workload("w").template("g", {"gang": {"minCount": 1}}))
    run.see(pod("a").workload("w", "g").cpu("1"))
    run.failing = ("Scheduled", "True")
    run.step()
    assert run.bound.keys() == {"a"}
    before = len(statuses(run, "w", "Scheduled"))
    run.failing = ("", "")
    wake = run.engine.next_wake()
    assert wake is not None, "the engine has to be called again"
    run.step(wake - run.now)
    assert statuses(run, "w", "Scheduled")[before:] == ["True"]
    assert run.engine.next_wake() is None
