"""Autoscalers act on PodScheduled=False with the reason Unschedulable: only pods that lack nodes may have it."""

from __future__ import annotations

import pytest

from phalanx.engine import decisions as d
from phalanx.engine.explain.demand import demand
from phalanx.testing import Cluster
from phalanx.testing.builders import composite, node, pod, pod_group, workload_policy
from support.submitted_gangs import submit


def reasons(run: Cluster, group: str) -> set[str]:
    """The last reason of every pending pod of a group."""
    last = {c.name: c.reason for c in run.of(d.SetPodCondition) if c.type == "PodScheduled"}
    return {last.get(name, "") for name in run.pods if name.startswith(f"{group}-") and name not in run.placed}


def test_all_members_of_a_gang_that_lacks_nodes_are_unschedulable_at_once() -> None:
    run = Cluster().see(node("n0").cpu(2))
    run.see(pod_group("train").gang(4), *(pod(f"train-{i}").cpu(1).group("train") for i in range(4)))
    made = run.step()
    announced = [c.name for c in made if isinstance(c, d.SetPodCondition) and c.reason == "Unschedulable"]
    assert sorted(announced) == [f"train-{i}" for i in range(4)]


def test_a_gang_that_waits_for_members_is_not_unschedulable() -> None:
    run = Cluster()
    submit(run, "train", 3, minimum=4)
    assert reasons(run, "train") == {"WaitingForMembers"}


def test_a_gang_that_waits_for_gates_is_not_unschedulable() -> None:
    run = Cluster().see(pod_group("train").gang(2), pod("train-0").group("train"))
    run.see(pod("train-1").group("train").gate("kueue.x-k8s.io/admission"))
    run.step()
    assert reasons(run, "train") == {"SchedulingGated"}


def test_pods_of_an_incomplete_group_wait_for_members_while_their_tree_lacks_nodes() -> None:
    run = Cluster().see(composite("tree").gang(1))
    run.see(pod_group("whole").gang(2).parent("tree"), pod_group("half").gang(2).parent("tree"))
    run.see(*(pod(f"whole-{i}").cpu(8).group("whole") for i in range(2)), pod("half-0").cpu(1).group("half"))
    run.see(node("n0").cpu(4)).step()
    assert reasons(run, "whole") == {"Unschedulable"}
    assert reasons(run, "half") == {"WaitingForMembers"}


def test_an_incomplete_child_of_a_running_tree_is_unschedulable_as_in_kubernetes() -> None:
    """kube-scheduler 1.37 reports it so (the shared case composite/late-child-group-of-a-scheduled-basic-root)."""
    run = Cluster().see(node("n0").cpu(20), composite("root").basic(), pod_group("first").gang(2).parent("root"))
    run.see(*(pod(f"first-{i}").cpu(1).group("first") for i in range(2))).step()
    assert len(run.placed) == 2
    run.see(composite("sub").gang(2).parent("root"), pod_group("late").basic().parent("sub"))
    run.see(pod("late-0").cpu(1).group("late")).step()
    assert reasons(run, "late") == {"Unschedulable"}


def test_a_gang_that_waits_for_a_promised_start_is_not_unschedulable() -> None:
    run = Cluster().see(*(node(f"n{i}").cpu(1) for i in range(4)))
    long = [pod(f"long-{i}").cpu(1).created(run.now) for i in range(2)]
    for each in long:
        each.spec["activeDeadlineSeconds"] = 1000
    run.see(*long).step()
    submit(run, "train", 4, minimum=4)
    run.step(1)
    assert reasons(run, "train") == {"StartPromised"}
    assert not demand(run.engine.scheduler).groups, "its nodes become free: an autoscaler adds none"
    run.gone("Node", "n3")  # the promise is broken: now a node is missing
    run.step(10)
    assert reasons(run, "train") == {"Unschedulable"}
    assert [each.name for each in demand(run.engine.scheduler).groups] == ["train"]


@pytest.mark.parametrize("nodes", [1, 4])
def test_pods_beyond_the_largest_count_are_limited_by_policy(nodes: int) -> None:
    run = Cluster().see(*(node(f"n{i}").cpu(2) for i in range(nodes)))
    run.see(workload_policy("limit").target("PodGroup", "train", "scheduling.k8s.io").set(counts={"min": 2, "max": 2}))
    submit(run, "train", 4, minimum=2)
    assert len(run.placed) == 2
    assert reasons(run, "train") == {"LimitedByPolicy"}
