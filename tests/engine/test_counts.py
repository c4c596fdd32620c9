"""min, desired and max of a policy: how many members of a group are placed, and at whose cost."""

from __future__ import annotations

from typing import Any

from phalanx.testing.builders import node, pod, pod_group, workload_policy
from phalanx.testing.cluster import Cluster


def counts(target: str = "g", **values: int) -> Any:
    return workload_policy("p").target("PodGroup", target).set(counts=values)


def members(number: int, group: str = "g") -> list[Any]:
    return [pod(f"{group}-{n:02}").group(group).cpu("1") for n in range(number)]


def test_pods_beyond_max_wait_with_a_message() -> None:
    cluster = Cluster().see(node("n").cpu("16"), counts(min=2, max=4), pod_group("g").gang(2), *members(6))
    cluster.step()
    assert len(cluster.bound) == 4
    (late, *_) = [name for name in cluster.pods if name not in cluster.bound]
    assert "its policy allows 4 (counts.max)" in cluster.message(late)
    cluster.gone("Pod", next(iter(cluster.bound)))
    cluster.step(5)
    assert len(cluster.bound) == 4


def test_up_to_desired_free_room_is_taken_and_nothing_is_preempted() -> None:
    cluster = Cluster().see(node("n").cpu("4"), pod("low").cpu("1").priority(1).node("n"))
    group = pod_group("g").gang(2).priority(10)
    cluster.see(counts(min=2, desired=6, max=6), group, *(each.priority(10) for each in members(6)))
    cluster.step()
    assert len(cluster.bound) == 3
    cluster.step(60)
    assert cluster.evicted == []


def test_a_workload_that_fits_nowhere_does_not_keep_members_beyond_desired_waiting() -> None:
    cluster = Cluster().see(node("n").cpu("4"), counts(min=1, desired=2, max=8), pod_group("g").gang(1))
    cluster.see(pod("large").cpu("100"), *members(6))
    cluster.step()
    cluster.step(30)
    assert len(cluster.bound) == 4


def test_members_beyond_desired_come_after_younger_workloads_of_the_same_priority() -> None:
    cluster = Cluster().see(node("n").cpu("4"), counts(min=1, desired=2, max=8), pod_group("g").gang(1))
    cluster.see(*(each.created(10) for each in members(6)), *(pod(name).cpu("1").created(20) for name in ("a", "b")))
    cluster.step()
    cluster.step(30)
    assert {"a", "b"} <= set(cluster.bound)
    assert len(cluster.bound) == 4


def test_beyond_desired_members_leave_room_that_a_waiting_gang_could_use() -> None:
    cluster = Cluster().see(node("n").cpu("4"), counts(min=1, desired=2, max=8), pod_group("g").gang(1))
    cluster.see(pod_group("other").gang(3), *members(3, "other"))
    cluster.see(*members(6))
    cluster.step()
    placed = [name for name in cluster.bound if name.startswith("g-")]
    cluster.step(30)
    others = [name for name in cluster.bound if name.startswith("other-")]
    assert len(placed) <= 2 or not others
    cluster.gone("PodGroup", "other")
    for number in range(3):
        cluster.gone("Pod", f"other-{number:02}")
    cluster.step(30)
    assert len([name for name in cluster.bound if name.startswith("g-")]) == 4


def test_beyond_desired_members_leave_room_to_a_pod_that_waits_for_a_terminating_one() -> None:
    cluster = Cluster(grace=True).see(node("n").cpu("4"), counts(min=1, desired=1, max=8), pod_group("g").gang(1))
    cluster.see(*members(1), pod("old").cpu("2").node("n"))
    cluster.step()
    cluster.see(pod("whole").cpu("3"))
    cluster.step()
    cluster.update("old", ending=True).see(*members(2)[1:])
    cluster.step(30)
    assert "g-01" not in cluster.bound
    cluster.gone("Pod", "old")
    cluster.step(30)
    assert cluster.bound["whole"] == "n"


def test_the_gate_lets_counts_limit_basic_groups() -> None:
    for on, placed in ((False, 4), (True, 2)):
        cluster = Cluster(gates={"WorkloadBasicPolicyDesiredCount": on})
        cluster.see(node("n").cpu("16"), counts(max=2), pod_group("g"), *members(4))
        cluster.step()
        assert len(cluster.bound) == placed
        (accepted,) = cluster.objects["WorkloadPolicy"]["p"].status.conditions
        assert accepted.status == "True"
        assert ("spec.counts has no effect on groups with the Basic policy" in accepted.message) is not on
