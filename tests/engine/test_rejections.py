"""A gang of which a kubelet rejects a pod, and room that other schedulers have reserved."""

from __future__ import annotations

import msgspec

from phalanx.base.clock import rfc3339
from phalanx.engine import decisions as d
from phalanx.model.objects.pod import PodCondition
from phalanx.testing import Cluster
from phalanx.testing.builders import node, pod, pod_group
from support.verdicts import binds


def reject(run: Cluster, name: str) -> None:
    found = run.pods[name]
    status = msgspec.structs.replace(found.status, phase="Failed", reason="OutOfcpu")
    run.see(msgspec.structs.replace(found, status=status))


def bound_at(run: Cluster, name: str, since: float) -> None:
    """What the API server writes with a bind."""
    found = run.pods[name]
    said = PodCondition(type="PodScheduled", status="True", last_transition_time=rfc3339(since))
    run.see(msgspec.structs.replace(found, status=msgspec.structs.replace(found.status, conditions=[said])))


def members(*names: str, priority: int = 0):
    return [pod(name).cpu("2").group("g").priority(priority) for name in names]


def three_on_three_nodes(priority: int = 0) -> Cluster:
    run = Cluster().see(*(node(name).cpu("2") for name in "abc"))
    run.see(pod_group("g").gang(3).priority(priority), *members("m1", "m2", "m3", priority=priority))
    assert len(binds(run.step())) == 3
    return run


def test_the_whole_gang_is_returned_in_the_next_step():
    run = three_on_three_nodes()
    reject(run, "m2")
    run.step()
    assert sorted(run.evicted) == ["m1", "m3"]


def excused(run: Cluster) -> list[str]:
    found = run.of(d.SetPodCondition)
    return [each.name for each in found if (each.type, each.status) == ("DisruptionTarget", "True")]


def test_the_rejected_pod_says_that_it_did_not_fail_by_itself():
    run = three_on_three_nodes()
    bound_at(run, "m2", run.now)
    reject(run, "m2")
    run.step()
    assert excused(run) == ["m2"]
    run.see(node("d").cpu("3"), pod("single").cpu("3")).step()
    reject(run, "single")
    run.step()
    assert excused(run) == ["m2", "single"]


def test_a_pod_that_was_rejected_long_ago_is_left_as_it_is():
    run = three_on_three_nodes()
    bound_at(run, "m2", run.now)
    reject(run, "m2")
    run.restart().step(120)
    assert excused(run) == []


def test_it_is_placed_again_after_a_jitter():
    run = three_on_three_nodes()
    reject(run, "m2")
    run.step()
    run.gone("Pod", "m2").see(*members("n1", "n2", "n3"))
    assert binds(run.step()) == {}
    assert len(binds(run.step(1))) == 3


def test_a_scheduler_that_was_restarted_returns_a_gang_that_the_earlier_process_bound():
    run = three_on_three_nodes()
    for name in ("m1", "m2", "m3"):
        bound_at(run, name, run.now)
    run.restart().step(5)
    reject(run, "m2")
    run.step()
    assert sorted(run.evicted) == ["m1", "m3"]


def test_so_does_one_that_starts_after_the_rejection():
    run = three_on_three_nodes()
    for name in ("m1", "m2", "m3"):
        bound_at(run, name, run.now)
    reject(run, "m2")
    run.restart().step(5)
    assert sorted(run.evicted) == ["m1", "m3"]


def test_a_rejection_of_long_ago_returns_nothing_after_a_restart():
    run = three_on_three_nodes()
    for name in ("m1", "m2", "m3"):
        bound_at(run, name, run.now)
    reject(run, "m2")
    run.restart().step(120)
    assert run.evicted == []


def test_a_gang_that_was_complete_before_a_restart_loses_one_member_only():
    run = three_on_three_nodes()
    for name, since in (("m1", 0.0), ("m2", 100.0), ("m3", 0.0)):
        bound_at(run, name, run.now + since)
    run.restart().step(101)
    reject(run, "m2")
    run.step()
    assert run.evicted == []


def test_a_gang_of_another_scheduler_is_not_returned_after_a_restart():
    run = Cluster().see(*(node(name).cpu("2") for name in "abc"), pod_group("g").gang(3))
    run.see(*(pod(f"m{number}").cpu("2").group("g").node(name) for number, name in enumerate("abc")))
    for name in ("m0", "m1", "m2"):
        bound_at(run, name, run.now)
    reject(run, "m2")
    run.restart().step(5)
    assert run.evicted == []


def test_a_gang_that_was_complete_before_loses_one_member_only():
    run = three_on_three_nodes()
    run.step(120)
    run.gone("Pod", "m2").see(*members("n2"))
    assert len(binds(run.step())) == 1
    reject(run, "n2")
    run.step(1)
    assert run.evicted == []


def test_pods_of_the_other_scheduler_are_not_evicted_for_it():
    run = three_on_three_nodes(priority=9)
    taken = run.placed["m2"]
    run.see(pod("foreign").cpu("2").scheduler("other").node(taken))
    reject(run, "m2")
    run.step()
    run.gone("Pod", "m2").see(*members("n1", "n2", "n3", priority=9))
    run.step(1)
    assert "foreign" not in run.evicted
    run.gone("Pod", "foreign")
    assert len(binds(run.step(1))) == 3


def test_a_node_that_another_scheduler_nominated_is_reserved():
    foreign = pod("foreign").cpu("2").scheduler("other")
    run = Cluster().see(node("a").cpu("2"), foreign.nominated("a"), pod("ours").cpu("1"))
    assert binds(run.step()) == {}
    run.see(pod("foreign").cpu("2").scheduler("other").node("b"))
    assert binds(run.step(60)) == {"ours": "a"}


def test_its_room_is_free_again_when_the_nominated_pod_is_gone():
    run = Cluster().see(node("a").cpu("2"), pod("foreign").cpu("2").scheduler("other").nominated("a"))
    run.see(pod("ours").cpu("1"))
    assert binds(run.step()) == {}
    run.gone("Pod", "foreign")
    assert binds(run.step(60)) == {"ours": "a"}
