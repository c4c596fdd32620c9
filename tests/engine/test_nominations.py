"""Promised nodes hold their room against equal and lower priority only."""

from __future__ import annotations

from phalanx.testing import Cluster
from phalanx.testing.builders import node, pod
from support.table_sizes import table_sizes
from support.verdicts import binds, no_victims


def waiting(priority=10):
    """One node of 2 cpu; `v` uses 1, and `p` (2 cpu) is nominated there, waiting for `v` to go."""
    run = Cluster(evict=False).see(
        node("n").cpu("2"), pod("v").cpu("1").node("n"), pod("p").cpu("2").priority(priority).nominated("n")
    )
    assert binds(run.step()) == {}
    return run


def test_the_room_is_not_given_to_lower_or_equal_priority():
    run = waiting().see(pod("low").cpu("1").priority(0), pod("equal").cpu("1").priority(10))
    assert binds(run.step()) == {}
    assert run.messages("low") == [no_victims("0/1 nodes are available: 1 Insufficient cpu.")]


def test_higher_priority_does_not_care():
    run = waiting().see(pod("high").cpu("1").priority(11))
    assert binds(run.step()) == {"high": "n"}


def test_the_promised_pod_takes_its_node_even_if_another_is_emptier():
    run = waiting().see(node("big").cpu("64").taint("later", "x"))
    run.gone("Pod", "v").see(node("big").cpu("64"))
    assert binds(run.step()) == {"p": "n"}


def test_others_wake_when_the_promise_is_gone():
    run = waiting().see(pod("low").cpu("1"))
    run.step()
    run.gone("Pod", "p")
    assert binds(run.step()) == {"low": "n"}


def test_others_wake_when_another_client_takes_the_promise_back():
    run = waiting().see(pod("low").cpu("1"))
    run.step()
    run.see(pod("p").cpu("2").priority(10))
    assert binds(run.step(60)) == {"low": "n"}


def test_others_find_another_node_than_the_promised_one():
    run = waiting().see(node("m").cpu("1"), pod("low").cpu("1"))
    assert binds(run.step()) == {"low": "m"}


def test_what_happened_to_promises_is_not_kept_for_ever():
    """Followers that fell behind start over; everybody else finds what came after the position they know."""
    run = waiting()
    nominations, record = run.engine.nominations, run.engine.pods.records["default/p"]
    seen = nominations.changes.position
    for _ in range(40_000):
        nominations.set(record, "n")
    assert nominations.changes.since(seen) is None
    known = nominations.changes.position
    nominations.set(record, "n")
    assert nominations.changes.since(known) == ["n", "n"]
    assert table_sizes(nominations)["ChangeLog._entries"] <= 2 * nominations.changes.keep
