"""A policy that is changed or deleted while it is in action."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from phalanx.engine import decisions as d
from phalanx.model.objects.pod import PodCondition
from phalanx.testing.builders import node, pod, pod_group
from phalanx.testing.cluster import Cluster
from support.maintained import START, healthy, lose, member, policy, running


def change(cluster: Cluster, **parts: Any) -> None:
    """Delete the policy, or replace what it says."""
    if parts:
        cluster.see(policy(**parts))
    else:
        cluster.gone("WorkloadPolicy", "policy")


def ready(cluster: Cluster, *names: str) -> None:
    for name in names:
        found = cluster.pods[name]
        conditions = [*(found.status.conditions or ()), PodCondition(type="Ready", status="True")]
        cluster.see(msgspec.structs.replace(found, status=msgspec.structs.replace(found.status, conditions=conditions)))


@pytest.mark.parametrize("parts", [{}, {"rescheduling": {"policy": "TerminateAll"}}])
def test_members_that_are_not_ready_count_again_without_the_limit(parts: dict[str, Any]) -> None:
    cluster = running(timeouts={"readySeconds": 30})
    cluster.step(31)
    assert healthy(cluster)[1] == "Degraded"
    change(cluster, **parts)
    cluster.step(1)
    cluster.step(1000)
    assert healthy(cluster)[1] == "Running"
    assert cluster.evicted == []


def test_the_backoff_ends_with_its_policy() -> None:
    cluster = running(rescheduling={"policy": "TerminateAll", "graceSeconds": 0, "backoffSeconds": 500})
    lose(cluster, "g-0")
    cluster.step(1)
    cluster.finish()
    cluster.see(*(member(f"new-{n}") for n in range(3)))
    cluster.step(10)
    assert not cluster.bound
    change(cluster)
    cluster.step(1)
    assert len(cluster.bound) == 3


def test_the_grace_time_ends_with_its_policy_and_starts_with_one_that_comes() -> None:
    cluster = running(rescheduling={"policy": "TerminateAll", "graceSeconds": 60})
    lose(cluster, "g-0")
    cluster.step(30)
    change(cluster)
    cluster.step(100)
    assert cluster.evicted == []
    change(cluster, rescheduling={"policy": "TerminateAll", "graceSeconds": 10})
    cluster.step(1)
    cluster.step(10)
    assert sorted(cluster.evicted) == ["g-1", "g-2"]


@pytest.mark.parametrize("parts", [{}, {"rescheduling": {"policy": "Keep"}, "timeouts": {"readySeconds": 60}}])
def test_reserved_room_is_free_again_without_its_policy(parts: dict[str, Any]) -> None:
    cluster = running(rescheduling={"policy": "Replace"}, nodes=1, size=4)
    ready(cluster, "g-0", "g-1", "g-2")
    lose(cluster, "g-3")
    cluster.see(pod("other").cpu("1").created(START + 1))
    cluster.step(10)
    assert "other" not in cluster.bound
    change(cluster, **parts)
    cluster.step(10)
    assert "other" in cluster.bound


def test_a_timeout_ends_with_its_policy() -> None:
    cluster = Cluster().see(policy(timeouts={"scheduleSeconds": 60}), pod_group("g").gang(2), member("a"), member("b"))
    cluster.step(0)
    cluster.step(61)
    assert healthy(cluster)[1] == "TimedOut"
    change(cluster)
    cluster.step(1)
    assert healthy(cluster)[1] == "Scheduling"


def test_members_that_are_never_ready_are_replaced_with_backoff_and_not_without_end() -> None:
    rules = {"policy": "Replace", "maxRestarts": 2, "backoffSeconds": 100}
    cluster = Cluster(grace=True).see(
        node("n").cpu("8"),
        policy(timeouts={"readySeconds": 10}, rescheduling=rules),
        pod_group("g").gang(1),
        member("a"),
    )
    cluster.step()
    evicted = []
    for number in range(60):
        cluster.step(10)
        if len(cluster.evicted) > len(evicted):
            evicted.append(cluster.now)
            cluster.finish()
            cluster.see(member(f"again-{number}", created=cluster.now))
    assert len(evicted) == 2
    assert evicted[1] - evicted[0] >= 100
    assert {each.reason for each in cluster.of(d.Evict)} == {"NeverReady"}
    assert "restarted 2 of 2 times" in healthy(cluster)[2]
    assert cluster.objects["PodGroup"]["g"].status.restarts == 2


def test_nothing_is_remembered_of_a_group_that_is_gone() -> None:
    cluster = running(rescheduling={"policy": "TerminateAll", "graceSeconds": 60}, timeouts={"readySeconds": 1000})
    maintenance = cluster.engine.maintenance
    lose(cluster, "g-0")
    assert cluster.engine.groups.members.health.followed
    for name in ("g-1", "g-2"):
        cluster.gone("Pod", name)
    cluster.gone("PodGroup", "g")
    cluster.step(1)
    assert maintenance.remembered == 0
