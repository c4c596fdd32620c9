"""What a WorkloadPolicy says about preemption: a group that has just started stays, extras with counts evict no pod."""

from __future__ import annotations

import pytest

from phalanx.engine.events import TimePassed
from phalanx.engine.explain import plan, why
from phalanx.testing import Cluster
from phalanx.testing.builders import gang, node, pdb, pod, pod_group, workload, workload_policy


def protected(mode="single"):
    """A node full of a gang that started at 1000 and is protected for 60 s."""
    group = pod_group("low").gang(2).priority(1)
    return Cluster(now=1000.0).see(
        node("n").cpu("2"),
        workload_policy("keep").target("PodGroup", "low").set(preemption={"minRuntimeSeconds": 60}),
        group.disrupt_all() if mode == "all" else group,
        *(pod(f"low{i}").cpu("1").group("low").priority(1).node("n").started(1000.0) for i in range(2)),
    )


PREEMPTORS = {"pod": [pod("high").cpu("1").priority(100)], "gang": gang("high", 2, "1", 100)}


@pytest.mark.parametrize("mode", ["single", "all"])
@pytest.mark.parametrize("high", PREEMPTORS)
def test_a_group_that_has_just_started_is_not_evicted_before_its_minimum_runtime(high, mode):
    world = protected(mode).see(*PREEMPTORS[high])
    world.step(10)
    assert world.evicted == []
    assert world.engine.next_wake() == 1060.0
    world.step(40)  # 1050
    assert world.evicted == []
    world.step(11)  # 1061: nothing but time has passed
    assert world.evicted and len(world.bound) == (1 if high == "pod" else 2)


@pytest.mark.parametrize("seen", ["before", "after"])
def test_a_clock_that_is_set_forward_does_not_end_the_minimum_runtime(seen):
    world = protected()
    preemptor = pod("high").cpu("1").priority(100)
    if seen == "before":
        world.see(preemptor)
    world.step(10)
    world.engine.apply(TimePassed(world.now + 3600, 3600.0))
    world.now += 3600
    world.see(preemptor)
    world.step(40)
    assert world.evicted == []
    world.step(11)
    assert world.evicted


@pytest.mark.parametrize("high", PREEMPTORS)
def test_why_and_plan_say_until_when_a_group_cannot_be_preempted(high):
    world = protected().see(*PREEMPTORS[high])
    world.step(10)
    kind = "Pod" if high == "pod" else "PodGroup"
    text = "1 group of lower priority cannot be preempted yet (preemption.minRuntimeSeconds)"
    text += "; the first one can be at 1970-01-01T00:17:40Z"
    assert why(world.engine, kind, "default", "high").items[0].hints == [text]
    answer = plan(world.engine, kind, "default", "high")
    assert answer.result == "hopeless" and answer.summary.endswith(text)


def test_another_group_without_a_policy_is_evicted_instead():
    world = protected().see(node("m").cpu("1"), pod("lone").cpu("1").priority(50).node("m"))
    world.see(pod("high").cpu("1").priority(100))
    world.step()
    assert world.evicted == ["lone"]


def test_a_policy_that_comes_later_protects_and_one_that_goes_no_longer_does():
    world = Cluster(now=1000.0).see(
        node("n").cpu("2"),
        pod_group("low").gang(2).priority(1),
        *(pod(f"low{i}").cpu("1").group("low").priority(1).node("n").started(1000.0) for i in range(2)),
    )
    world.step()
    world.see(workload_policy("keep").target("PodGroup", "low").set(preemption={"minRuntimeSeconds": 3600}))
    world.see(pod("high").cpu("1").priority(100)).step(5)
    assert world.evicted == []
    world.gone("WorkloadPolicy", "keep").step(600)
    assert world.evicted == ["low0"] or world.evicted == ["low1"]


@pytest.mark.parametrize("counts", [False, True])
def test_extras_of_a_group_with_counts_extend_into_free_room_and_evict_none(counts):
    """One eviction is enough for the gang to run; five more pods would each evict another."""
    world = Cluster().see(node("n").cpu("6"), *(pod(f"low{i}").cpu("1").priority(1).node("n") for i in range(6)))
    if counts:
        world.see(workload_policy("counts").target("PodGroup", "g").set(counts={"min": 1, "desired": 6}))
    world.see(*gang("g", 6, "1", 100, minimum=1))
    for _ in range(6):
        world.step(5)
    assert len(world.evicted) == (1 if counts else 6)
    world.gone("Pod", next(name for name in world.pods if name.startswith("low"))) if counts else None
    for _ in range(2):
        world.step(5)
    assert len(world.bound) == (2 if counts else 6)


def replicas(limit, mode="all"):
    """Three replicas of a workload, one node each, and a pod of higher priority on a fourth node."""
    world = Cluster().see(
        workload_policy("few").target("Workload", "w").set(disruption={"maxUnavailableReplicas": limit}),
        workload("w").template("t", {"gang": {"minCount": 2}}),
        node("m").cpu("2"),
        pod("lone").cpu("2").priority(50).node("m"),
    )
    for name in "abc":
        group = pod_group(name).gang(2).priority(1).from_workload("w", "t")
        world.see(node(f"n{name}").cpu("2"), group.disrupt_all() if mode == "all" else group)
        world.see(*(pod(f"{name}{i}").cpu("1").group(name).priority(1).node(f"n{name}") for i in range(2)))
    return world


@pytest.mark.parametrize("mode", ["single", "all"])
def test_preemption_respects_how_many_replicas_may_be_unavailable(mode):
    world = replicas(2 if mode == "all" else 4, mode).see(*gang("high", 4, "1", 100))
    world.step()
    assert "lone" not in world.evicted and len(world.evicted) == 4
    world = replicas(1, "all").see(*gang("high", 4, "1", 100))
    world.step()
    assert sorted(world.evicted)[-1] == "lone" and len(world.evicted) == 3


def test_a_replica_that_is_down_already_counts():
    world = replicas(1)
    world.gone("Pod", "a0").gone("Pod", "a1").gone("Node", "na")
    world.see(pod("high").cpu("2").priority(100))
    world.step()
    assert world.evicted == ["lone"]


def test_replicas_are_preempted_beyond_the_limit_if_nothing_else_helps():
    world = replicas(0).see(pod("high").cpu("2").priority(40))
    world.step()
    assert len(world.evicted) == 2, "as with any disruption budget"


def test_a_budget_that_a_gang_implies_does_not_count_in_preemption():
    world = Cluster().see(
        node("n").cpu("2"),
        node("m").cpu("2"),
        pdb("gang-low").select({"g": "low"}).allowed(0).annotate("scheduling.phalanx.dev/implied-by", "PodGroup low"),
        pod_group("low").gang(2).priority(1).disrupt_all(),
        *(pod(f"low{i}").cpu("1").label("g", "low").group("low").priority(1).node("n") for i in range(2)),
        pod("lone").cpu("2").priority(50).node("m"),
        pod("high").cpu("2").priority(100),
    )
    world.step()
    assert sorted(world.evicted) == ["low0", "low1"]
