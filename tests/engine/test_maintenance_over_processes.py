"""A new scheduler process goes on with grace times, backoffs and time limits where the last one stopped."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from phalanx.base.clock import rfc3339
from phalanx.engine import decisions as d
from phalanx.engine.events import TRANSIENT, Outcome
from phalanx.engine.groups.reserved_room import ROOM_RESERVED
from phalanx.model.objects.meta import Condition
from phalanx.model.objects.pod import PodCondition
from phalanx.testing.builders import node, pod, pod_group, workload_policy
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


def test_restarts_are_counted_where_the_api_server_stores_conditions_only() -> None:
    rules = {"policy": "TerminateAll", "graceSeconds": 0, "backoffSeconds": 40, "maxRestarts": 1}
    cluster = running(rescheduling=rules)
    lose(cluster, "g-0")
    cluster.step(1)
    cluster.finish()
    without_own_fields(cluster)
    cluster.restart().see(*(member(f"new-{n}") for n in range(3)))
    cluster.step(20)
    assert not cluster.bound, "backoff"
    cluster.step(30)
    assert len(cluster.bound) == 3
    without_own_fields(cluster)
    cluster.restart()
    evicted = len(cluster.evicted)
    lose(cluster, "new-0")
    cluster.step(60)
    assert len(cluster.evicted) == evicted, "maxRestarts"


def without_own_fields(cluster: Cluster) -> None:
    """Drop what kube-apiserver 1.37 does not store."""
    group = cluster.objects["PodGroup"]["g"]
    status = msgspec.structs.replace(group.status, restarts=0, last_restart_time=None)
    cluster.objects["PodGroup"]["g"] = msgspec.structs.replace(group, status=status)


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


def room_reserved(cluster: Cluster, name: str = "g") -> tuple[str, str]:
    conditions = cluster.objects["PodGroup"][name].status.conditions or ()
    return next(((c.status, c.reason) for c in conditions if c.type == ROOM_RESERVED), ("", ""))


def test_room_reserved_for_a_replacement_stays_reserved() -> None:
    cluster = running(rescheduling={"policy": "Replace"}, nodes=1, size=4)
    lose(cluster, "g-0", "EvictionByEvictionAPI")
    assert room_reserved(cluster) == ("True", "Replacement")
    cluster.restart()
    cluster.see(pod("other").cpu("1"))
    cluster.step(30)
    assert "other" not in cluster.bound
    cluster.restart().see(member("g-9"))
    cluster.step(30)
    assert cluster.bound["g-9"] == "n0"
    assert room_reserved(cluster) == ("False", "NothingReserved")
    cluster.gone("Pod", "g-9").gone("PodGroup", "g")
    cluster.step()
    assert "other" in cluster.bound


def test_room_reserved_by_an_earlier_process_is_free_again_at_the_same_time() -> None:
    cluster = running(rescheduling={"policy": "Replace"}, nodes=1, size=4)
    lose(cluster, "g-0", "EvictionByEvictionAPI")
    cluster.step(400)
    cluster.restart().see(pod("other").cpu("1"))
    cluster.step(190)
    assert "other" not in cluster.bound
    cluster.step(20)
    assert "other" in cluster.bound


def test_a_replacement_that_waits_keeps_its_room() -> None:
    cluster = running(rescheduling={"policy": "Replace"}, nodes=2, size=4)
    lose(cluster, "g-0")
    lost = cluster.engine.maintenance.replacements.records[0].nominated
    cluster.see(member("g-9").gate("wait"))
    cluster.step()
    cluster.restart()
    cluster.see(*(pod(f"other-{n}").cpu("1") for n in range(8)))
    cluster.step(1)
    assert len(cluster.bound.keys() & {f"other-{n}" for n in range(8)}) == 4
    cluster.see(member("g-9"))
    cluster.step(1)
    assert cluster.bound["g-9"] == lost


def test_a_replacement_that_was_bound_takes_its_room_from_what_is_restored() -> None:
    """It was bound just before the process ended, on another node than the one that was reserved."""
    cluster = running(rescheduling={"policy": "Replace"}, nodes=1, size=4)
    cluster.see(node("n1").cpu("1"))
    lose(cluster, "g-0")
    cluster.step(10)
    came = member("g-9").node("n1").build()
    bound = PodCondition("PodScheduled", "True", last_transition_time=rfc3339(cluster.now))
    cluster.see(msgspec.structs.replace(came, status=msgspec.structs.replace(came.status, conditions=[bound])))
    cluster.restart()
    cluster.see(pod("other").cpu("1"))
    cluster.step(1)
    assert "other" in cluster.bound


def test_a_member_that_terminates_while_no_scheduler_runs_is_replaced() -> None:
    cluster = running(rescheduling={"policy": "Replace"}, nodes=1, size=4)
    target = PodCondition("DisruptionTarget", "True", "EvictionByEvictionAPI")
    lost = cluster.pods["g-0"]
    status = msgspec.structs.replace(lost.status, conditions=[target])
    meta = msgspec.structs.replace(lost.metadata, deletion_timestamp=rfc3339(cluster.now))
    cluster.objects["Pod"]["g-0"] = msgspec.structs.replace(lost, status=status, metadata=meta)
    cluster.restart().see(pod("other").cpu("1"))
    cluster.step(1)
    assert "g-0 (drained)" in healthy(cluster)[2]
    cluster.finish().step(1)
    assert "other" not in cluster.bound
    cluster.restart().see(member("g-9"))
    cluster.step(1)
    assert "g-9" in cluster.bound and "other" not in cluster.bound


@pytest.mark.parametrize("owner", ["JobSet", "Job"])
def test_a_gang_that_is_restarted_while_no_scheduler_runs_comes_before_what_waited_for_its_room(owner: str) -> None:
    cluster = Cluster().see(node("n").cpu("2"), pod_group("g").gang(2).owner(owner, "js").created(START))
    cluster.see(*(member(f"g-{n}") for n in range(2)))
    cluster.step()
    assert healthy(cluster)[1] == "Running"
    cluster.see(pod("other").cpu("1").created(START + 10))
    cluster.step(20)
    for number in range(2):
        del cluster.objects["Pod"][f"g-{number}"]
    cluster.restart().see(*(member(f"new-{n}", created=START + 20) for n in range(2)))
    cluster.step()
    assert ("other" in cluster.bound) is (owner == "Job"), "a user started the Job again"
    assert ("new-0" in cluster.bound) is (owner == "JobSet")


@pytest.mark.parametrize("owner", ["JobSet", "Job"])
def test_room_of_the_members_that_are_ended_after_the_scheduler_was_killed_is_reserved_too(owner: str) -> None:
    """The process sees the first member fail; the owner then restarts all of them, and they are gone at its end."""
    cluster = Cluster().see(*(node(f"n{n}").cpu("1") for n in range(3)), pod_group("g").gang(3).owner(owner, "js"))
    cluster.see(*(member(f"g-{n}") for n in range(3)), pod("other").cpu("1").created(START + 10))
    cluster.step()
    assert "other" not in cluster.bound
    cluster.update("g-0", phase="Failed").step()
    for number in range(3):
        del cluster.objects["Pod"][f"g-{number}"]
    cluster.restart().step()
    assert ("other" in cluster.bound) is (owner == "Job")
    cluster.see(*(member(f"new-{n}", created=START + 20) for n in range(3)))
    cluster.step(5)
    assert ("new-2" in cluster.bound) is (owner == "JobSet")
    assert owner == "Job" or room_reserved(cluster) == ("False", "NothingReserved")


def test_room_of_members_that_are_still_there_is_not_reserved_for_a_new_process() -> None:
    cluster = Cluster().see(*(node(f"n{n}").cpu("2") for n in range(2)), pod_group("g").gang(3).owner("JobSet", "js"))
    cluster.see(*(member(f"g-{n}") for n in range(3)))
    cluster.step()
    cluster.update("g-0", phase="Failed").step()
    cluster.restart().see(*(pod(f"other-{n}").cpu("1").created(START + 10) for n in range(2)))
    cluster.step()
    assert len(cluster.bound.keys() & {"other-0", "other-1"}) == 1, "one is free, one reserved"


@pytest.mark.parametrize("ago", [10.0, 700.0])
def test_a_member_that_fails_while_no_scheduler_runs_is_replaced(ago: float) -> None:
    cluster = running(rescheduling={"policy": "Replace"}, nodes=1, size=4)
    cluster.step(1000)
    fail(cluster, "g-0", when=cluster.now - ago)
    cluster.restart().see(pod("other").cpu("1"))
    cluster.step(1)
    assert ("other" in cluster.bound) is (ago > 600), "room is reserved for ten minutes"
    assert ("g-0 (failed" in healthy(cluster)[2]) is (ago < 600)
    cluster.see(member("g-9"))
    cluster.step(1)
    assert ("g-9" in cluster.bound) is (ago < 600)


def test_a_failed_member_that_was_replaced_reserves_nothing_for_a_new_process() -> None:
    cluster = running(rescheduling={"policy": "Replace"}, nodes=1, size=4)
    fail(cluster, "g-0", when=cluster.now)
    cluster.restart().see(member("g-9"))
    cluster.step(1)
    assert "g-9" in cluster.bound
    cluster.see(node("n1").cpu("1"))
    cluster.restart().see(pod("other").cpu("1"))
    cluster.step(1)
    assert cluster.bound["other"] == "n1"
    assert healthy(cluster)[1] == "Running"


def fail(cluster: Cluster, name: str, when: float) -> None:
    """Fail a pod while no scheduler sees it."""
    lost = cluster.pods[name]
    conditions = [*(lost.status.conditions or ()), PodCondition("Ready", "False", last_transition_time=rfc3339(when))]
    status = msgspec.structs.replace(lost.status, phase="Failed", conditions=conditions)
    cluster.objects["Pod"][name] = msgspec.structs.replace(lost, status=status)


@pytest.mark.parametrize(
    "message", ["", "no", "{}", '{"at":"x","places":[]}', '{"at":"2026-01-01T00:00:00Z","places":7}']
)
def test_a_condition_that_cannot_be_read_reserves_nothing(message: str) -> None:
    cluster = running(rescheduling={"policy": "Replace"}, nodes=1, size=3)
    group = cluster.objects["PodGroup"]["g"]
    said = Condition(ROOM_RESERVED, "True", "Replacement", message)
    status = msgspec.structs.replace(group.status, conditions=[*(group.status.conditions or ()), said])
    cluster.objects["PodGroup"]["g"] = msgspec.structs.replace(group, status=status)
    cluster.restart().see(pod("other").cpu("1"))
    cluster.step(1)
    assert "other" in cluster.bound


def test_a_reservation_that_could_not_be_written_is_written_again() -> None:
    cluster = running(rescheduling={"policy": "Replace"}, nodes=1, size=4)
    cluster.gone("Pod", "g-0")
    made = [each for each in cluster.engine.step(cluster.now) if isinstance(each, d.SetGroupCondition)]
    assert len({each.type for each in made}) > 1
    for write in made:  # all of them, about the same group
        cluster.engine.apply(Outcome(write.id, TRANSIENT, "no answer"))
    cluster.step(6)
    assert room_reserved(cluster) == ("True", "Replacement")
