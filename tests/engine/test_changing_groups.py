"""A pod's label says another group than before, or none, while its bind is under way."""

from __future__ import annotations

import msgspec
import pytest

from phalanx.engine import decisions as d
from phalanx.engine.events import TRANSIENT
from phalanx.model.groups import GROUP_LABEL
from phalanx.testing import Cluster
from phalanx.testing.builders import node, pod, pod_group


def relabel(run: Cluster, name: str, group: str | None) -> None:
    found = run.pods[name]
    labels = {} if group is None else {GROUP_LABEL: group}
    run.see(msgspec.structs.replace(found, metadata=msgspec.structs.replace(found.metadata, labels=labels)))


def binds(run: Cluster, name: str) -> int:
    return sum(isinstance(each, d.Bind) and each.name == name for each in run.log)


def test_a_pod_that_joins_a_group_while_it_is_being_bound_counts_as_placed_but_not_as_confirmed():
    run = Cluster().see(node("n").cpu("4"), pod_group("g").gang(2), pod("a").cpu("1"))
    run.hold = {"a"}
    run.step()
    relabel(run, "a", "g")
    run.see(pod("b").label(GROUP_LABEL, "g").cpu("1")).step()
    assert binds(run, "a") == 1, "it has a node already"
    assert run.bound == {"b": "n"}, "one beside the one that is being bound makes two"
    assert run.condition("g")[0] != "True", "one of the two binds is not answered"
    run.answer_held().step()
    assert run.bound == {"a": "n", "b": "n"}
    assert run.condition("g") == ("True", "Scheduled", "")


def test_a_pod_that_joins_a_group_while_it_is_being_bound_waits_with_the_group_when_the_bind_fails():
    run = Cluster().see(node("n").cpu("4"), pod_group("g").gang(2), pod("a").cpu("1"))
    run.hold, run.refuse = {"a"}, {"a": TRANSIENT}
    run.step()
    relabel(run, "a", "g")
    run.answer_held().step(11)
    assert run.bound == {}, "one of two"
    run.refuse = {}
    run.see(pod("b").label(GROUP_LABEL, "g").cpu("1")).step(11)
    assert run.bound.keys() == {"a", "b"}
    assert run.condition("g") == ("True", "Scheduled", "")


def test_a_pod_that_leaves_its_group_while_it_is_being_bound_is_tried_alone_when_the_bind_fails():
    run = Cluster().see(node("n").cpu("4"), pod_group("g").gang(1), pod("a").label(GROUP_LABEL, "g").cpu("1"))
    run.hold, run.refuse = {"a"}, {"a": TRANSIENT}
    run.step()
    relabel(run, "a", None)
    run.answer_held().step()
    run.refuse = {}
    run.step(11)
    assert run.bound == {"a": "n"}


def test_a_pod_that_left_its_group_while_it_was_being_bound_and_comes_back_pending_waits_with_it():
    run = Cluster().see(node("n").cpu("4"), pod_group("g").gang(1), pod("a").label(GROUP_LABEL, "g").cpu("1"))
    run.hold, run.refuse = {"a"}, {"a": TRANSIENT}
    run.step()
    relabel(run, "a", None)
    run.answer_held()
    relabel(run, "a", "g")
    run.refuse = {}
    run.step(11)
    assert run.bound == {"a": "n"}


def test_a_group_that_is_scheduled_is_tried_again_with_a_pod_that_joined_it_and_whose_bind_failed():
    run = Cluster().see(node("n").cpu("4"), pod_group("g").gang(1), pod("b").group("g").cpu("1"), pod("a").cpu("1"))
    run.hold, run.refuse = {"a"}, {"a": TRANSIENT}
    run.step()
    assert run.condition("g") == ("True", "Scheduled", "")
    relabel(run, "a", "g")
    run.step()
    run.answer_held().step()
    assert run.bound == {"b": "n"}
    run.refuse = {}
    run.step(11)
    assert run.bound == {"a": "n", "b": "n"}


def test_a_pod_does_not_wait_because_the_bind_of_one_that_is_gone_failed():
    run = Cluster().see(node("n").cpu("4"), pod_group("g").gang(1), pod("a").group("g").cpu("1"))
    run.step()
    run.hold, run.refuse = {"b"}, {"b": TRANSIENT}
    run.see(pod("b").group("g").cpu("1")).step()
    run.answer_held().gone("Pod", "b").step()
    run.see(pod("c").group("g").cpu("1")).step()
    assert run.bound == {"a": "n", "c": "n"}


def test_a_pod_that_is_being_deleted_is_not_tried_again_when_its_bind_fails():
    run = Cluster().see(node("n").cpu("4"), pod("a").cpu("1"))
    run.hold, run.refuse = {"a"}, {"a": TRANSIENT}
    run.step()
    run.update("a", ending=True)
    run.answer_held().step(11)
    assert binds(run, "a") == 1


def test_labels_changed_while_a_pod_is_being_bound_count_when_the_bind_fails():
    run = Cluster().see(node("n").label("rack", "r").cpu("4"), pod("a").cpu("1"))
    run.hold, run.refuse = {"a"}, {"a": TRANSIENT}
    run.step()
    run.see(pod("a").label("app", "x").cpu("1"))
    run.see(pod("b").cpu("1").node("n").anti_affinity("rack", {"app": "x"}))
    run.answer_held()
    run.refuse = {}
    run.step(11)
    assert "a" not in run.bound, "the running pod b does not stand it beside itself"


@pytest.mark.parametrize("ending", ["bound and gone", "gone"])
def test_no_node_is_remembered_for_the_next_pod_of_the_same_name(ending: str):
    """A gang of two must not start with one pod because a namesake of the other once had a node."""
    run = Cluster().see(node("n").cpu("4"), pod_group("g").gang(1), pod("a").label(GROUP_LABEL, "g").cpu("1"))
    run.hold = {"a"}
    run.step()
    relabel(run, "a", None)
    if ending == "bound and gone":
        run.answer_held()
    run.gone("Pod", "a").step()
    run.hold, run.held = set(), []
    again = pod("a").uid("again").label(GROUP_LABEL, "h").cpu("1").build()
    meta = msgspec.structs.replace(again.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    run.see(pod_group("h").gang(2), msgspec.structs.replace(again, metadata=meta))
    run.see(pod("b").label(GROUP_LABEL, "h").cpu("1")).step(11)
    assert "b" not in run.bound, "the other member has no node and is going"
