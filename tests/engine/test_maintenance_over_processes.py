"""A new scheduler process goes on with grace times, backoffs and time limits where the last one stopped."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from phalanx.engine import decisions as d
from phalanx.testing.builders import node, pod_group, workload_policy
from phalanx.testing.cluster import Cluster
from support.maintained import START, healthy, lose, member, running


def test_the_grace_time_counts_from_the_loss() -> None:
    cluster = running(rescheduling={"policy": "TerminateAll", "graceSeconds": 60})
    lose(cluster, "g-0")
    cluster.step(40)
    cluster.restart()
    cluster.step(10)
    assert cluster.evicted == []
    cluster.step(10)
    assert sorted(cluster.evicted) == ["g-1", "g-2"]


def test_the_backoff_goes_on() -> None:
    cluster = running(rescheduling={"policy": "TerminateAll", "graceSeconds": 0, "backoffSeconds": 100})
    lose(cluster, "g-0")
    cluster.step(1)
    cluster.finish()
    cluster.see(*(member(f"new-{n}") for n in range(3)))
    cluster.step(40)
    cluster.restart()
    cluster.step(0)
    cluster.step(50)
    assert not cluster.bound, "backoff"
    cluster.step(20)
    assert set(cluster.bound) == {"new-0", "new-1", "new-2"}


def test_the_backoff_of_a_tree_goes_on() -> None:
    rules = {"policy": "TerminateAll", "graceSeconds": 0, "backoffSeconds": 100}
    cluster = Cluster(grace=True).see(
        node("n").cpu("8"), workload_policy("p").target("PodGroup", "g").set(rescheduling=rules)
    )
    cluster.see(pod_group("g").gang(2), *(member(f"g-{n}") for n in range(2)))
    cluster.step()
    lose(cluster, "g-0")
    cluster.step(1)
    cluster.finish()
    for _ in range(3):  # every process that starts meanwhile
        cluster.restart()
        cluster.see(*(member(f"new-{n}") for n in range(2)))
        cluster.step(25)
        assert not cluster.bound
    cluster.step(30)
    assert len(cluster.bound) == 2


@pytest.mark.parametrize("backoff", [0, 10])
def test_a_second_grace_time_counts_from_the_restart_of_the_gang(backoff: int) -> None:
    rules = {"policy": "TerminateAll", "graceSeconds": 30, "backoffSeconds": backoff}
    cluster = running(rescheduling=rules)
    lose(cluster, "g-0")
    cluster.step(30)
    assert len(cluster.evicted) == 2
    cluster.restart()  # before the evicted pods are gone
    cluster.step(1)
    cluster.finish()
    cluster.step(20)
    assert len(cluster.evicted) == 2
    assert cluster.objects["PodGroup"]["g"].status.restarts == 1


def test_an_incomplete_group_is_timed_out_at_the_same_time() -> None:
    cluster = Cluster().see(node("n").cpu("8"), pod_group("g").gang(2), member("a"))
    cluster.see(workload_policy("p").target("PodGroup", "g").set(timeouts={"membersSeconds": 60}))
    cluster.step(40)
    cluster.restart()
    cluster.step(19)
    assert healthy(cluster)[1] == "Waiting"
    cluster.step(1)
    assert healthy(cluster)[1] == "TimedOut"


def test_a_timeout_is_announced_once() -> None:
    cluster = Cluster().see(pod_group("g").gang(2), member("a"), member("b"))
    cluster.see(workload_policy("p").target("PodGroup", "g").set(timeouts={"scheduleSeconds": 60}))
    cluster.step(0)
    cluster.step(61)
    cluster.restart()
    cluster.step(5)
    assert healthy(cluster)[1] == "TimedOut"
    assert len([each for each in cluster.of(d.RecordEvent, "g") if each.reason == "TimedOut"]) == 1
    assert cluster.now > START


@pytest.mark.parametrize(
    "status", [{"restarts": 2**31 - 1}, {"restarts": 1, "last_restart_time": "2990-01-01T00:00:00Z"}]
)
def test_a_status_written_by_a_user_holds_a_gang_no_longer_than_its_backoff(status: dict[str, Any]) -> None:
    cluster = running(rescheduling={"policy": "TerminateAll", "graceSeconds": 0, "backoffSeconds": 10})
    group = cluster.objects["PodGroup"]["g"]
    cluster.objects["PodGroup"]["g"] = msgspec.structs.replace(
        group, status=msgspec.structs.replace(group.status, **status)
    )
    for name in ("g-0", "g-1", "g-2"):
        cluster.gone("Pod", name)
    cluster.restart()
    cluster.see(*(member(f"new-{n}") for n in range(3)))
    cluster.step(1)
    cluster.step(11)
    assert len(cluster.bound) == 3
