"""Loss of members and time limits, as the policy of a group says."""

from __future__ import annotations

import msgspec
import pytest

from phalanx.base.clock import rfc3339
from phalanx.engine import decisions as d
from phalanx.engine.events import TimePassed
from phalanx.engine.explain import why
from phalanx.model.objects.pod import PodCondition
from phalanx.testing.builders import composite, node, pod, pod_group, workload, workload_policy
from phalanx.testing.cluster import Cluster
from support.maintained import START, healthy, lose, member, policy, running


@pytest.mark.parametrize("word", ["Keep", "Shrink", "Replace"])
def test_other_policies_leave_the_rest_of_the_gang_alone(word: str) -> None:
    cluster = running(rescheduling={"policy": word, "graceSeconds": 5})
    lose(cluster, "g-0")
    cluster.step(3600)
    assert cluster.evicted == []
    assert healthy(cluster)[1] == "Degraded"


def test_terminate_all_ends_the_rest_once_after_the_grace_and_the_gang_starts_again() -> None:
    cluster = running(rescheduling={"policy": "TerminateAll", "graceSeconds": 60, "backoffSeconds": 20})
    lose(cluster, "g-0")
    cluster.step(59)
    assert cluster.evicted == []
    cluster.step(1)
    assert sorted(cluster.evicted) == ["g-1", "g-2"]
    assert {each.reason for each in cluster.of(d.Evict)} == {"GangTerminated"}
    cluster.step(30)
    assert len(cluster.evicted) == 2, "once"
    (event,) = [each for each in cluster.of(d.RecordEvent, "g") if each.reason == "GangTerminated"]
    assert event.message.endswith("ended the other 2 pods; restart 1 of 5")
    cluster.finish()
    cluster.see(*(member(f"new-{n}") for n in range(3)))
    cluster.step(5)
    assert set(cluster.bound) == {f"new-{n}" for n in range(3)}
    assert healthy(cluster)[1] == "Running"


def test_a_restart_waits_for_its_backoff_which_doubles_and_ends_after_max_restarts() -> None:
    rules = {"policy": "TerminateAll", "graceSeconds": 0, "backoffSeconds": 100, "maxRestarts": 2}
    cluster = running(rescheduling=rules)
    for restart, wait in ((1, 100), (2, 200)):
        lose(cluster, next(iter(cluster.bound)))
        cluster.step(1)
        assert len(cluster.evicted) == 2 * restart
        cluster.finish()
        cluster.see(*(member(f"r{restart}-{n}") for n in range(3)))
        cluster.step(wait - 10)
        assert not cluster.bound, "backoff"
        cluster.step(20)
        assert len(cluster.bound) == 3
    lose(cluster, next(iter(cluster.bound)))
    cluster.step(3600)
    assert len(cluster.evicted) == 4
    assert "restarted 2 of 2 times" in healthy(cluster)[2]


def test_restarts_are_counted_over_the_life_of_scheduler_processes() -> None:
    cluster = running(rescheduling={"policy": "TerminateAll", "graceSeconds": 0, "backoffSeconds": 0, "maxRestarts": 1})
    lose(cluster, "g-0")
    cluster.step(1)
    assert cluster.objects["PodGroup"]["g"].status.restarts == 1
    cluster.finish()
    cluster.see(*(member(f"new-{n}") for n in range(3)))
    cluster.step(5)
    cluster.restart()
    cluster.step(5)
    lose(cluster, "new-0")
    cluster.step(3600)
    assert len(cluster.evicted) == 2


def test_a_gang_that_is_whole_again_within_the_grace_is_left_alone() -> None:
    cluster = running(rescheduling={"policy": "TerminateAll", "graceSeconds": 60})
    lose(cluster, "g-0")
    cluster.step(30)
    cluster.see(member("again"))
    cluster.step(1)
    cluster.step(3600)
    assert cluster.evicted == []


def test_a_tree_ends_as_a_whole() -> None:
    cluster = Cluster(grace=True).see(
        node("n").cpu("8"),
        composite("tree").gang(2),
        workload_policy("p")
        .target("CompositePodGroup", "tree")
        .set(rescheduling={"policy": "TerminateAll", "graceSeconds": 10}),
        *(pod_group(name).gang(2).parent("tree") for name in ("a", "b")),
        *(member(f"{name}-{n}", name) for name in ("a", "b") for n in range(2)),
    )
    cluster.step()
    lose(cluster, "a-0")
    cluster.step(11)
    assert sorted(cluster.evicted) == ["a-1", "b-0", "b-1"]


def test_a_tree_whose_members_are_never_ready_is_below_its_minimum_and_ends_as_a_whole() -> None:
    rules = {"policy": "TerminateAll", "graceSeconds": 10}
    cluster = Cluster(grace=True).see(
        node("n").cpu("8"),
        composite("top").gang(1),
        composite("tree").gang(2).parent("top"),
        workload_policy("p").target("CompositePodGroup", "top").set(rescheduling=rules, timeouts={"readySeconds": 30}),
        *(pod_group(name).gang(2).parent("tree") for name in ("a", "b")),
        *(member(f"{name}-{n}", name) for name in ("a", "b") for n in range(2)),
    )
    cluster.step()
    for name in ("a-0", "a-1", "b-0"):
        set_ready(cluster, name, "True")
    cluster.step(31)
    for name, placed in (("tree", "1 of 2"), ("top", "0 of 1")):
        status, reason, message = healthy(cluster, name, "CompositePodGroup")
        assert (status, reason) == ("False", "Degraded")
        assert message.startswith(placed) and "b-1 (never ready)" in message
    assert healthy(cluster, "a")[1] == "Running"
    cluster.step(11)
    assert sorted(cluster.evicted) == ["a-0", "a-1", "b-0", "b-1"]


def test_replace_reserves_the_room_of_a_lost_member_until_its_replacement_comes() -> None:
    cluster = running(rescheduling={"policy": "Replace"}, nodes=1, size=4)
    lose(cluster, "g-3", "EvictionByEvictionAPI")
    cluster.see(pod("other").cpu("1").created(START + 1))
    cluster.step(5)
    assert "other" not in cluster.bound, "the room is reserved"
    hints = why(cluster.engine, "PodGroup", "default", "g").items[0].hints
    assert hints == ["room on n0 is kept for 1 pod to come of group g"]
    cluster.see(member("again", created=START + 9))
    cluster.step(1)
    assert cluster.bound["again"] == "n0"


@pytest.mark.parametrize(("reason", "seconds"), [("", 60), ("EvictionByEvictionAPI", 600)])
def test_what_is_reserved_for_a_replacement_that_never_comes_is_free_again(reason: str, seconds: int) -> None:
    """The controller of a pod that was just deleted may want fewer: it is suspended, or scaled down."""
    cluster = running(rescheduling={"policy": "Replace"}, nodes=1, size=4)
    lose(cluster, "g-3", reason)
    cluster.see(pod("other").cpu("1").created(START + 1))
    cluster.step(seconds - 1)
    assert "other" not in cluster.bound
    cluster.step(2)
    assert "other" in cluster.bound


def test_what_a_smaller_replacement_leaves_of_the_reserved_room_is_used_at_once() -> None:
    cluster = running(rescheduling={"policy": "Replace"}, nodes=1, size=4)
    for number in range(2):
        lose(cluster, f"g-{number}")
    cluster.see(pod("other").cpu("1"))
    cluster.step(1)
    assert "other" not in cluster.bound
    cluster.see(*(member(f"g-{number}", cpu="500m") for number in (8, 9)))
    cluster.step(1)
    assert "other" in cluster.bound


def test_a_group_that_is_incomplete_for_too_long_is_timed_out_and_still_starts() -> None:
    cluster = Cluster().see(node("n").cpu("8"), policy(timeouts={"membersSeconds": 60}), pod_group("g").gang(2))
    cluster.see(member("a"))
    cluster.step(59)
    assert healthy(cluster)[1] == "Waiting"
    cluster.step(1)
    status, reason, message = healthy(cluster)
    assert (status, reason) == ("False", "TimedOut")
    assert "incomplete for 60 seconds (timeouts.membersSeconds)" in message
    cluster.see(member("b", created=cluster.now))
    cluster.step(5)
    assert healthy(cluster)[1] == "Running"


def test_a_group_that_is_not_placed_for_too_long_goes_behind_the_others_of_its_priority() -> None:
    cluster = Cluster().see(policy(timeouts={"scheduleSeconds": 60}), pod_group("g").gang(2))
    cluster.see(member("a"), member("b"), pod("later").cpu("1").created(START + 30))
    cluster.step(0)
    cluster.step(60)
    assert healthy(cluster)[1] == "TimedOut"
    cluster.see(node("n").cpu("1"))
    cluster.step(10)
    assert set(cluster.bound) == {"later"}
    cluster.see(node("m").cpu("2"))
    cluster.step(10)
    assert set(cluster.bound) == {"later", "a", "b"}
    assert healthy(cluster)[1] == "Running"


def test_a_member_that_is_never_ready_counts_as_lost() -> None:
    cluster = running(timeouts={"readySeconds": 30}, rescheduling={"policy": "TerminateAll", "graceSeconds": 10})
    for name in ("g-0", "g-1"):
        found = cluster.pods[name]
        conditions = [PodCondition(type="Ready", status="True")]
        cluster.see(msgspec.structs.replace(found, status=msgspec.structs.replace(found.status, conditions=conditions)))
    cluster.step(31)
    assert healthy(cluster)[1] == "Degraded"
    assert "g-2 (never ready)" in healthy(cluster)[2]
    cluster.step(11)
    assert sorted(cluster.evicted) == ["g-0", "g-1", "g-2"]


def test_a_wrong_time_limit_evicts_no_pod() -> None:
    cluster = running(timeouts={"readySeconds": -5, "scheduleSeconds": 10**10})
    cluster.step(3600)
    assert cluster.evicted == []
    assert healthy(cluster)[1] == "Running"


def test_a_clock_that_jumps_ahead_ends_at_most_what_is_below_its_minimum() -> None:
    cluster = running(rescheduling={"policy": "TerminateAll", "graceSeconds": 60})
    cluster.step(10**8)
    assert cluster.evicted == []


@pytest.mark.parametrize("word", ["TerminateAll", "Replace"])
def test_a_clock_that_is_set_forward_ends_no_time_limit(word: str) -> None:
    cluster = running(timeouts={"readySeconds": 600}, rescheduling={"policy": word, "graceSeconds": 600})
    set_ready(cluster, "g-0", "True")
    cluster.step(100)
    cluster.engine.apply(TimePassed(cluster.now + 3600, 3600.0))
    cluster.now += 3600
    cluster.step(0)
    lose(cluster, "g-0")
    cluster.step(400)
    cluster.engine.apply(TimePassed(cluster.now + 3600, 3600.0))
    cluster.now += 3600
    cluster.step(90)
    assert cluster.evicted == []
    cluster.step(120)
    assert sorted(cluster.evicted) == ["g-1", "g-2"], "600 seconds that have passed"


def test_the_time_limit_of_a_member_does_not_depend_on_the_clock_of_another_machine() -> None:
    cluster = running(timeouts={"readySeconds": 600}, rescheduling={"policy": "Replace"})
    for name in ("g-0", "g-1", "g-2"):
        set_ready(cluster, name, "True")
    cluster.step(1000)
    seen = cluster.pods["g-1"]
    condition = PodCondition("Ready", "False", last_transition_time=rfc3339(cluster.now - 3600))
    cluster.see(msgspec.structs.replace(seen, status=msgspec.structs.replace(seen.status, conditions=[condition])))
    cluster.step(590)
    assert cluster.evicted == []
    cluster.step(20)
    assert cluster.evicted == ["g-1"]


def test_a_gang_whose_evictions_take_time_is_restarted_once() -> None:
    cluster = running(rescheduling={"policy": "TerminateAll", "graceSeconds": 5, "backoffSeconds": 0})
    cluster.grace = cluster.evict = False
    lose(cluster, "g-0")
    cluster.step(5)
    assert sorted(cluster.evicted) == ["g-1", "g-2"]
    cluster.update("g-1", started=True)
    cluster.step(1)
    cluster.gone("Pod", "g-1")
    for _ in range(5):
        cluster.step(1)
    assert sorted(cluster.evicted) == ["g-1", "g-2"], "once"
    assert cluster.objects["PodGroup"]["g"].status.restarts == 1


def test_an_eviction_that_did_not_reach_a_member_is_repeated_without_another_restart() -> None:
    cluster = running(rescheduling={"policy": "TerminateAll", "graceSeconds": 5})
    cluster.grace = cluster.evict = False
    lose(cluster, "g-0")
    cluster.step(5)
    cluster.gone("Pod", "g-1")
    cluster.step(60)
    assert sorted(cluster.evicted) == ["g-1", "g-2", "g-2"]
    assert cluster.objects["PodGroup"]["g"].status.restarts == 1


def test_a_workload_has_the_worst_state_of_its_groups() -> None:
    cluster = Cluster(grace=True).see(node("n").cpu("8"), workload("w").template("t", {"gang": {"minCount": 2}}))
    for name in ("a", "b"):
        cluster.see(pod_group(name).gang(2).from_workload("w", "t"))
        cluster.see(*(member(f"{name}-{n}", name) for n in range(2)))
    cluster.step()
    assert healthy(cluster, "w", "Workload") == ("True", "Running", "groups: 2 Running")
    lose(cluster, "a-0")
    assert healthy(cluster, "w", "Workload") == ("False", "Degraded", "groups: 1 Degraded, 1 Running")


@pytest.mark.parametrize("word", ["Replace", "TerminateAll"])
def test_the_cause_of_a_member_that_was_never_ready_outlives_its_eviction(word: str) -> None:
    cluster = running(timeouts={"readySeconds": 30}, rescheduling={"policy": word, "graceSeconds": 0})
    for name in ("g-0", "g-1"):
        seen = cluster.pods[name]
        ready = msgspec.structs.replace(seen.status, conditions=[PodCondition(type="Ready", status="True")])
        cluster.see(msgspec.structs.replace(seen, status=ready))
    cluster.step(31)
    cluster.step(2)
    assert "g-2" in cluster.evicted
    assert "g-2 (never ready)" in healthy(cluster)[2]
    cluster.finish()
    cluster.step(2)
    assert "g-2 (never ready)" in healthy(cluster)[2]


def set_ready(cluster: Cluster, name: str, status: str) -> None:
    seen = cluster.pods[name]
    condition = PodCondition("Ready", status, last_transition_time=rfc3339(cluster.now))
    cluster.see(msgspec.structs.replace(seen, status=msgspec.structs.replace(seen.status, conditions=[condition])))


def test_a_member_that_was_ready_before_has_the_same_time_to_be_ready_again() -> None:
    cluster = running(timeouts={"readySeconds": 30}, rescheduling={"policy": "Replace"})
    for name in ("g-0", "g-1", "g-2"):
        set_ready(cluster, name, "True")
    cluster.step(5000)
    set_ready(cluster, "g-1", "False")
    cluster.step(20)
    set_ready(cluster, "g-1", "True")
    cluster.step(20)
    assert cluster.evicted == [] and healthy(cluster)[1] == "Running"
    set_ready(cluster, "g-1", "False")
    cluster.step(29)
    assert cluster.evicted == []
    cluster.step(2)
    assert cluster.evicted == ["g-1"]


def test_a_member_that_is_not_ready_because_its_node_is_lost_is_lost_with_its_node() -> None:
    cluster = running(timeouts={"readySeconds": 30})
    for name in ("g-0", "g-1", "g-2"):
        set_ready(cluster, name, "True")
    lost = cluster.bound["g-1"]
    cluster.see(node(lost).cpu("4").taint("node.kubernetes.io/unreachable", effect="NoExecute"))
    for name in [name for name, at in cluster.bound.items() if at == lost]:
        set_ready(cluster, name, "Unknown")
    cluster.step(31)
    assert "node lost" in healthy(cluster)[2]
    for name in [name for name, at in cluster.bound.items() if at == lost]:
        set_ready(cluster, name, "True")
    cluster.step(0)
    cluster.step(1)
    assert healthy(cluster)[1] == "Running", "at once, not at the next time limit"


@pytest.mark.parametrize(
    ("taints", "cause"),
    [
        ((), "(node lost)"),
        (("node.kubernetes.io/unreachable",), "(node lost)"),
        (("repair",), "(drained by the taint repair)"),
        (("repair", "node.kubernetes.io/not-ready"), "(node lost)"),
    ],
)
def test_a_member_that_a_taint_evicts_is_drained_unless_the_node_is_lost(taints: tuple[str, ...], cause: str) -> None:
    cluster = running()
    lost = node(cluster.bound["g-1"]).cpu("4")
    for key in taints:
        lost.taint(key, effect="NoExecute")
    cluster.see(lost)
    lose(cluster, "g-1", "DeletionByTaintManager")
    assert f"g-1 {cause}" in healthy(cluster)[2]


def test_a_replacement_of_a_member_that_was_never_ready_has_its_room() -> None:
    cluster = running(size=2, nodes=1, timeouts={"readySeconds": 30}, rescheduling={"policy": "Replace"})
    cluster.see(pod("other").cpu("2").node("n0"), pod("waits").cpu("1"))
    first = cluster.pods["g-0"]
    ready = msgspec.structs.replace(first.status, conditions=[PodCondition(type="Ready", status="True")])
    cluster.see(msgspec.structs.replace(first, status=ready))
    cluster.step(31)
    cluster.finish()
    cluster.step(1)
    cluster.see(member("g-9"))
    cluster.step(1)
    assert cluster.bound.get("g-9") == "n0" and "waits" not in cluster.bound


def test_room_is_not_reserved_a_second_time_when_a_replaced_member_is_gone() -> None:
    cluster = running(size=1, nodes=1, timeouts={"readySeconds": 30}, rescheduling={"policy": "Replace"})
    cluster.step(31)
    assert cluster.evicted == ["g-0"]
    cluster.see(member("g-9", created=cluster.now))
    cluster.step(1)
    assert cluster.bound["g-9"] == "n0", "beside the old one, which terminates"
    cluster.update("g-0", phase="Failed", ending=True).step(1)
    cluster.finish()
    cluster.see(pod("other").cpu("3"))
    cluster.step(1)
    assert cluster.bound.get("other") == "n0" and healthy(cluster)[1] == "Running"


def test_a_member_that_is_lost_for_two_reasons_is_named_once() -> None:
    cluster = running(timeouts={"readySeconds": 30}, rescheduling={"policy": "Keep"})
    for name in ("g-0", "g-2"):
        set_ready(cluster, name, "True")
    cluster.step(31)
    assert "g-1 (never ready)" in healthy(cluster)[2]
    cluster.update("g-1", ending=True)
    cluster.step(2)
    assert healthy(cluster)[2].count("g-1") == 1


def test_nothing_is_reserved_for_a_gang_that_was_preempted_as_a_whole() -> None:
    cluster = Cluster(grace=True)
    cluster.see(*(node(f"n{n}").cpu("4") for n in range(3)), policy(rescheduling={"policy": "Replace"}))
    cluster.see(pod_group("g").gang(3).disrupt_all(), *(member(f"g-{n}", cpu="3") for n in range(3)))
    cluster.step()
    cluster.see(pod("urgent").cpu("3").priority(9).select("kubernetes.io/hostname", cluster.placed["g-0"])).step()
    assert len(cluster.evicted) == 3
    cluster.finish().see(pod("late").cpu("3"), pod("later").cpu("3")).step()
    assert cluster.placed.keys() == {"urgent", "late", "later"}


def test_a_preempted_gang_that_is_not_placed_in_time_has_timed_out() -> None:
    cluster = Cluster(grace=True).see(node("n").cpu("2"), policy(timeouts={"scheduleSeconds": 60}))
    cluster.see(pod_group("g").gang(2).disrupt_all(), member("g-0"), member("g-1"))
    cluster.step()
    cluster.see(pod("high").cpu("2").priority(100))
    cluster.step()
    cluster.finish()
    cluster.step(1)
    cluster.see(*(member(f"new-{n}", created=cluster.now) for n in range(2)))
    cluster.step(59)
    assert healthy(cluster)[1] == "Preempted"
    cluster.step(2)
    assert healthy(cluster)[1] == "TimedOut" and "scheduleSeconds" in healthy(cluster)[2]
    cluster.gone("Pod", "high")
    cluster.step(30)
    assert healthy(cluster)[1] == "Running"


def test_a_complete_group_of_an_incomplete_tree_stays_timed_out() -> None:
    cluster = Cluster().see(
        node("n").cpu("2"),
        composite("tree").gang(2),
        workload_policy("p").target("CompositePodGroup", "tree").set(timeouts={"membersSeconds": 60}),
        pod_group("g").gang(1).parent("tree"),
        member("g-0"),
    )
    cluster.step(61)
    cluster.step(2)
    writes = len(cluster.of(d.SetGroupCondition))
    for _ in range(5):
        cluster.step(1)
        assert healthy(cluster)[1] == "TimedOut"
    assert len(cluster.of(d.SetGroupCondition)) == writes, "it is written once"
