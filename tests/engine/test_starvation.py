"""The live scheduler: younger work overtakes a waiting gang only so far, then room is reserved for the gang."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from phalanx.cli.plan import render
from phalanx.engine.explain.ask import why
from phalanx.engine.explain.pending import PendingReasons
from phalanx.engine.explain.plans import plan
from phalanx.engine.explain.whatif import Question, whatif
from phalanx.engine.scheduling.commit import start_reservations
from phalanx.engine.scheduling.commit.start_reservations import PLANS_PER_SWEEP
from phalanx.testing import Cluster
from phalanx.testing.builders import node, pod, pod_group
from support.submitted_gangs import end, submit

PROMISED = "scheduling.phalanx.dev/StartPromised"
CONFIG = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- reservations: {%s}
"""


def cluster(nodes: int, settings: str = "", **labels: Any) -> Cluster:
    run = Cluster(config=CONFIG % settings)
    return run.see(*(node(f"n{i:02}").cpu(1).label("rack", f"r{i // 4}") for i in range(nodes)))


def running(run: Cluster, name: str) -> int:
    return sum(p.startswith(f"{name}-") for p in run.placed)


def promised(run: Cluster, name: str) -> tuple[str, str]:
    conditions = run.objects["PodGroup"][name].status.conditions or ()
    return next(((c.status, c.message) for c in conditions if c.type == PROMISED), ("", ""))


def stream(run: Cluster, rounds: int, *, seconds: int = 0) -> int:
    """Every ten seconds a gang of four comes, and the oldest one ends; returns the round in which `big` runs, or -1."""
    small = [f"s{i}" for i in range(3)]
    for i in range(3, rounds):
        if running(run, "big"):
            return i
        run.step(10.0)
        small.append(f"s{i}")
        submit(run, small[-1], 4, seconds=seconds)
        end(run, small.pop(0))
    return -1


def until_reserved(run: Cluster) -> None:
    for i in range(100, 130):
        run.step(10.0)
        submit(run, f"x{i}", 4)
        if run.engine.starts.held:
            return
        end(run, f"x{i}")
    raise AssertionError("nothing was reserved")


def prepared(settings: str, *, seconds: int = 0) -> Cluster:
    run = cluster(16, settings)
    for i in range(3):
        submit(run, f"s{i}", 4, seconds=seconds)
    submit(run, "big", 12)
    return run


def test_a_stream_of_small_gangs_does_not_starve_a_big_one() -> None:
    run = prepared("starvationSeconds: 60")
    assert stream(run, 40) > 0
    assert running(run, "big") == 12
    assert not run.evicted, "nothing is evicted for a reservation"


def test_without_the_limit_it_starves() -> None:
    assert stream(prepared("starvationSeconds: 0"), 40) == -1


def test_a_gang_that_was_passed_too_often_is_protected_before_the_time_is_over() -> None:
    assert 0 < stream(prepared("starvationSeconds: 100000, maxOvertaken: 5"), 40) < 20


def test_the_group_says_how_often_it_was_overtaken_and_what_is_reserved() -> None:
    run = prepared("starvationSeconds: 60")
    until_reserved(run)
    status, message = promised(run, "big")
    assert status == "True"
    assert "overtaken by" in message and "reserved n" in message
    for name in ("s0", "s1"):
        end(run, name)
    assert running(run, "big") == 12
    run.step(2.0)
    assert promised(run, "big")[0] == "False", "it runs: nothing is reserved any more"


def test_higher_priority_takes_reserved_room() -> None:
    run = prepared("starvationSeconds: 60")
    until_reserved(run)
    assert promised(run, "big")[0] == "True"
    end(run, "s0")
    submit(run, "younger", 4)
    assert running(run, "younger") == 0
    submit(run, "urgent", 4, priority=10)
    assert running(run, "urgent") == 4


def test_no_reservation_survives_its_owner() -> None:
    run = prepared("starvationSeconds: 60")
    until_reserved(run)
    assert run.engine.starts.held
    end(run, "big")
    run.step(2.0)
    assert not run.engine.starts.held
    assert not run.engine.nominations


def test_a_reservation_moves_when_its_node_vanishes() -> None:
    run = prepared("starvationSeconds: 60")
    until_reserved(run)
    lost = run.engine.starts.placeholders[0].nominated
    run.gone("Node", lost).step(2.0)
    held = [p.nominated for p in run.engine.starts.placeholders]
    assert lost not in held and len(held) == 12


def test_known_ends_give_a_start_time_and_only_work_that_ends_before_passes() -> None:
    run = cluster(8, "starvationSeconds: 5")
    for i in range(2):
        submit(run, f"long{i}", 3, seconds=1000)
    submit(run, "big", 8)
    submit(run, "small", 1, seconds=500)
    run.step(1.0)
    run.step(10.0)
    status, message = promised(run, "big")
    assert status == "True"
    submit(run, "unknown", 1)
    assert running(run, "unknown") == 0
    assert "from 1970-01-01T00:33:" in message, "1,000 seconds after the gangs of long work started"
    submit(run, "short", 1, seconds=60)
    assert running(run, "short") == 1
    submit(run, "slow", 1, seconds=5000)
    assert running(run, "slow") == 0


@pytest.mark.parametrize("settings", ["", "starvationSeconds: 0"])
def test_where_nothing_waits_nothing_is_reserved(settings: str) -> None:
    run = cluster(8, settings)
    for i in range(4):
        submit(run, f"g{i}", 2)
        run.step(1000.0)
    assert not run.engine.starts.held and not run.engine.starts.overtaking.of


def test_whatif_says_when_a_gang_would_start() -> None:
    run = cluster(4)
    submit(run, "runs", 3, seconds=1000)
    pods = [pod(f"ask-{i}").cpu(1).group("ask").build() for i in range(4)]
    question = Question(pods=pods, pod_groups=[pod_group("ask").gang(4).build()])
    (item,) = whatif(run.engine.scheduler, question, when=True).items
    assert not item.fits
    assert item.starts == "1970-01-01T00:33:20Z", item
    assert "when 3 pods there have ended" in item.when
    huge = Question(
        pods=[pod(f"ask-{i}").cpu(1).group("ask").build() for i in range(5)],
        pod_groups=[pod_group("ask").gang(5).build()],
    )
    (item,) = whatif(run.engine.scheduler, huge, when=True).items
    assert item.when.startswith("fits at no time")
    run.step()
    assert running(run, "ask") == 0


def test_the_next_gang_is_promised_a_start_at_once_if_all_running_pods_have_a_known_end() -> None:
    run = cluster(8)
    submit(run, "long", 6, seconds=1000)
    submit(run, "big", 8)
    run.step(1.0)
    status, message = promised(run, "big")
    assert status == "True" and "reserved n" in message and "from 1970-01-01T00:33:2" in message
    submit(run, "slow", 1, seconds=5000)
    submit(run, "unknown", 1)
    submit(run, "short", 1, seconds=60)
    assert [running(run, name) for name in ("slow", "unknown", "short")] == [0, 0, 1]
    run.step(1.0)
    assert promised(run, "slow")[0] == "", "only the first of a priority is promised a start"
    end(run, "short")
    end(run, "long")
    run.step(2.0)
    assert running(run, "big") == 8 and not run.evicted


def test_with_conservative_backfill_every_gang_is_promised_a_start() -> None:
    run = cluster(8, "backfill: Conservative, maxReservedFraction: 1, maxReservedFractionPerNamespace: 1")
    submit(run, "a", 4, seconds=1000)
    submit(run, "b", 4, seconds=2000)
    submit(run, "first", 4)
    submit(run, "second", 4)
    run.step(1.0)
    assert "00:33:2" in promised(run, "first")[1]
    assert "00:50:0" in promised(run, "second")[1]


def test_without_backfill_no_start_is_promised() -> None:
    run = cluster(8, "backfill: None")
    submit(run, "long", 6, seconds=1000)
    submit(run, "big", 8)
    run.step(1.0)
    submit(run, "unknown", 1)
    assert promised(run, "big") == ("", "") and running(run, "unknown") == 1


def test_a_gang_says_why_its_promised_start_was_not_kept() -> None:
    run = cluster(8)
    submit(run, "long", 6, seconds=1000)
    submit(run, "big", 8)
    run.step(1.0)
    assert promised(run, "big")[0] == "True"
    run.step(1500.0)
    run.step(2.0)
    status, message = promised(run, "big")
    assert status == "True" and "runs longer than expected" in message
    start = run.engine.starts.held["podgroup/default/big"].start
    assert start is not None and start > run.now, "as long as the gang overruns, its end is expected later"


def test_a_gang_whose_way_is_blocked_without_a_known_end_is_promised_nothing() -> None:
    run = cluster(8)
    submit(run, "long", 6)
    submit(run, "big", 8)
    for _ in range(3):
        run.step(2.0)
    assert promised(run, "big") == ("", "")
    assert run.engine.starts.next_time() is None, "a start that is not known is not planned again and again"


def test_no_pod_is_evicted_for_a_gang_that_starts_within_the_patience() -> None:
    run = cluster(4, "preemptionPatienceSeconds: 600")
    submit(run, "low", 4, seconds=300)
    submit(run, "high", 4, priority=10)
    run.step(2.0)
    assert not run.evicted and "no pod is evicted" in _scheduled(run, "high")
    answer = plan(run.engine, "PodGroup", "default", "high")
    assert answer.victims and answer.waits.startswith("no pod is evicted for it: it is expected to start by")
    assert f"not yet: {answer.waits}" in render(answer)
    end(run, "low")
    run.step(20.0)
    assert running(run, "high") == 4


@pytest.mark.parametrize("seconds", [4, 6, 9, 13])
@pytest.mark.parametrize("size", [1, 4])
def test_what_waited_instead_of_evicting_starts_as_soon_as_its_room_is_free(seconds: int, size: int) -> None:
    run = cluster(4, "preemptionPatienceSeconds: 600")
    submit(run, "low", 4, seconds=300)
    if size == 1:
        run.see(pod("high-0").cpu(1).priority(10).build())
    else:
        submit(run, "high", size, priority=10)
    for _ in range(seconds):
        run.step(1.0)
    assert not run.evicted
    end(run, "low")
    run.step(1.0)
    assert running(run, "high") == size


def test_pods_are_evicted_for_a_gang_that_would_start_after_the_patience() -> None:
    run = cluster(4, "preemptionPatienceSeconds: 60")
    submit(run, "low", 4, seconds=300)
    submit(run, "high", 4, priority=10)
    run.step(2.0)
    assert run.evicted


def test_whatif_says_that_a_start_depends_on_reservations() -> None:
    run = cluster(4)
    submit(run, "runs", 3, seconds=1000)
    submit(run, "big", 4)
    run.step(1.0)
    assert promised(run, "big")[0] == "True"
    pods = [pod(f"ask-{i}").cpu(1).group("ask").build() for i in range(4)]
    question = Question(pods=pods, pod_groups=[pod_group("ask").gang(4).build()])
    (item,) = whatif(run.engine.scheduler, question, when=True).items
    assert item.when == "no start is known: it fits only after units that have a reservation"
    assert len(run.engine.starts.reserved_nodes) == 4


def test_whatif_promises_no_start_behind_a_planned_unit_without_a_known_end() -> None:
    """Seen: the answer was the time at which another gang was promised the same nodes."""
    run = cluster(4)
    submit(run, "runs", 4, seconds=1000)
    submit(run, "endless", 1)
    run.step(2.0)
    assert promised(run, "endless")[0] == "True"
    pods = [pod(f"ask-{i}").cpu(1).group("ask").build() for i in range(4)]
    question = Question(pods=pods, pod_groups=[pod_group("ask").gang(4).build()])
    (item,) = whatif(run.engine.scheduler, question, when=True).items
    assert item.when == "no start is known: it fits only after units that have a reservation"


def test_whatif_promises_no_start_from_a_plan_whose_units_are_gone() -> None:
    """Seen: a start time that had passed, when the gang that was planned had been deleted and others ran."""
    run = cluster(4)
    submit(run, "runs", 4, seconds=1000)
    submit(run, "deleted", 4, seconds=10)
    run.step(2.0)
    assert promised(run, "deleted")[0] == "True"
    end(run, "deleted")
    end(run, "runs")
    submit(run, "endless", 3)
    run.step(2000.0)
    pods = [pod(f"ask-{i}").cpu(1).group("ask").build() for i in range(4)]
    question = Question(pods=pods, pod_groups=[pod_group("ask").gang(4).build()])
    (item,) = whatif(run.engine.scheduler, question, when=True).items
    assert not item.starts and "some of them have no known end" in item.when


def test_with_strict_fifo_no_gang_overtakes_an_older_one() -> None:
    run = cluster(8, "strictFIFO: true")
    submit(run, "runs", 6)
    submit(run, "big", 8)
    for name in ("small1", "small2"):
        submit(run, name, 1)
    run.step(5.0)
    assert running(run, "small1") == 0 and "strictFIFO" in _scheduled(run, "small1")
    assert why(run.engine.scheduler, "PodGroup", "default", "small1").items[0].headline.startswith("strictFIFO: waits")
    submit(run, "urgent", 1, priority=10)
    assert running(run, "urgent") == 1, "higher priority goes before it"
    end(run, "urgent")
    end(run, "runs")
    run.step(20.0)
    assert running(run, "big") == 8
    end(run, "big")
    run.step(20.0)
    assert running(run, "small1") == running(run, "small2") == 1


def _scheduled(run: Cluster, name: str) -> str:
    return " ".join(c.message or "" for c in run.objects["PodGroup"][name].status.conditions or ())


def test_why_and_the_queue_say_when_a_gang_with_a_reservation_starts() -> None:
    run = cluster(8)
    submit(run, "long", 6, seconds=1000)
    submit(run, "big", 8)
    run.step(1.0)
    (item,) = why(run.engine.scheduler, "PodGroup", "default", "big").items
    assert item.headline.startswith("Starts by 1970-01-01T00:33:2") and "room is reserved for it" in item.headline
    assert item.now is not None and item.now.proof is not None
    assert item.now.proof.fits == 2, "what is reserved for the gang itself is room for it"
    reason = PendingReasons(run.engine.scheduler).of(run.engine.queue.units["podgroup/default/big"])
    assert (reason.reason, reason.headline) == ("Reserved", item.headline)
    assert len(run.engine.starts.reserved_nodes) == 8


def test_why_says_what_a_starving_gang_waits_for_if_no_end_is_known() -> None:
    run = prepared("starvationSeconds: 60")
    until_reserved(run)
    (item,) = why(run.engine.scheduler, "PodGroup", "default", "big").items
    assert item.headline.startswith("Waits for ") and item.headline.endswith("; room there is reserved for it")


def test_a_unit_that_waits_for_reserved_room_names_the_owner_in_its_own_namespace_only() -> None:
    run = cluster(8)
    submit(run, "long", 6, seconds=1000)
    submit(run, "big", 8)
    run.step(1.0)
    run.see(pod("mine").cpu(1).created(run.now), pod("theirs").ns("other").cpu(1).created(run.now))
    run.see(pod_group("g").ns("other").gang(2))
    run.see(*(pod(f"g-{i}").ns("other").group("g").cpu(1).created(run.now) for i in range(2)))
    run.step()
    assert "Room is reserved for PodGroup default/big." in run.message("mine")
    for name in ("theirs", "g-0"):
        assert "oom is reserved for 1 unit of other namespaces" in run.message(name), run.message(name)
        assert "big" not in run.message(name) and "default" not in run.message(name)


def test_many_starving_units_are_planned_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen with hundreds of them on 2,000 nodes: all were planned in one step, which took a minute."""
    run = cluster(4, "starvationSeconds: 300, maxOvertaken: 1, backfill: None, maxReservedFraction: 0.1")
    submit(run, "first", 2)
    run.step()
    for i in range(12):
        submit(run, f"g{i:02}", 3 + i)
    run.step(1.0)
    planned: list[str] = []
    times = run.engine.starts.times
    plan = times.plan
    monkeypatch.setattr(times, "plan", lambda unit: planned.append(unit.key) or plan(unit))
    for name in ("s0", "s1"):
        submit(run, name, 1)
        run.step(1.1)
    for _ in range(8):
        before = len(planned)
        run.step(1.1)
        assert len(planned) - before <= PLANS_PER_SWEEP
    assert len(set(planned)) == 12  # each has its turn


def test_starving_units_are_planned_the_less_often_the_more_pods_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen with 11,000 pods on 2,000 nodes: plans took most of the time of the process, and pages came seconds late."""
    monkeypatch.setattr(start_reservations, "PODS_PER_PLANS", 10)
    run = cluster(4, "starvationSeconds: 300, maxOvertaken: 1, backfill: None, maxReservedFraction: 0.1")
    submit(run, "first", 2)
    run.step()
    for i in range(12):
        submit(run, f"g{i:02}", 3 + i)
    run.step(1.0)
    at: dict[str, float] = {}
    plan = run.engine.starts.times.plan
    monkeypatch.setattr(run.engine.starts.times, "plan", lambda unit: at.setdefault(unit.key, run.now) and plan(unit))
    for name in ("s0", "s1"):
        submit(run, name, 1)
        run.step(1.1)
    for _ in range(80):
        run.step(1.1)
    assert len(at) == 12  # each has its turn
    times = sorted(set(at.values()))
    assert all(later - earlier > 10 for earlier, later in itertools.pairwise(times))  # 106 pods
    assert all(list(at.values()).count(each) <= PLANS_PER_SWEEP for each in times)


def test_a_starving_unit_that_never_fits_wakes_the_scheduler_rarely() -> None:
    """Seen in a benchmark that never ended: such units were planned again every second, each of thousands of them."""
    run = cluster(4, "starvationSeconds: 300, maxOvertaken: 1")
    for i in range(6):
        run.see(pod(f"large-{i}").cpu("9"))
    run.step(1.0)
    for name in ("s0", "s1"):
        submit(run, name, 1)
        run.step(1.1)
    run.step(2.0)
    due = run.engine.next_wake()
    assert due is None or due > run.now + 60


@pytest.mark.parametrize("settings", ["starvationSeconds: 60", "strictFIFO: true"])
@pytest.mark.parametrize("topology", ["rack", ""])
def test_a_gang_that_lost_a_member_does_not_wait_for_the_room_of_one_that_waits_for_it(
    topology: str, settings: str
) -> None:
    """`big` would wait until the other members of `ring` end, and they wait for the node that is reserved for `big`."""
    run = cluster(16, settings)
    submit(run, "ring", 4, topology=topology)
    for i in range(2):
        submit(run, f"s{i}", 4)
    submit(run, "big", 16)
    if "strict" not in settings:
        until_reserved(run)
        run.step(60.0)
    lost = run.placed["ring-3"]
    run.gone("Pod", "ring-3").step()
    run.see(pod("ring-again").cpu(1).group("ring").created(run.now)).step(1.0)
    run.step(30.0)
    assert run.placed.get("ring-again") == lost, run.engine.starts.held
    assert running(run, "big") == 0


def starving_pods_of_one_shape() -> Cluster:
    """Two pods of one shape are overtaken by smaller ones; `first` has a reservation with a known start."""
    run = cluster(
        2, "starvationSeconds: 10, backfill: None, maxReservedFraction: 1.0, maxReservedFractionPerNamespace: 1.0"
    )
    run.see(node("n00").cpu(4), node("n01").cpu(4))
    known = pod("a").cpu(3).priority(9)
    known.spec["activeDeadlineSeconds"] = 100
    run.see(known, pod("b").cpu(3).priority(9)).step()
    run.see(pod("first").cpu(4), pod("second").cpu(4)).step()
    for number in range(4):
        small = pod(f"small{number}").cpu("500m").created(run.now)
        small.spec["activeDeadlineSeconds"] = 50
        run.see(small).step(5.0)
    run.step(10.0)
    assert set(run.engine.starts.held) == {"pod/default/first", "pod/default/second"}
    for number in range(4):
        run.gone("Pod", f"small{number}")
    return run


def test_room_that_is_free_starts_the_pod_it_is_reserved_for_behind_others_of_its_shape() -> None:
    run = starving_pods_of_one_shape()
    held = {name: run.engine.starts.held[f"pod/default/{name}"].planned for name in ("first", "second")}
    assert held["first"].start is not None and held["second"].start is None
    run.gone("Pod", "b").step(2.0)
    assert "second" in run.placed, "n01 is reserved for it; first waits for n00"
    assert "first" not in run.placed


def test_a_reservation_of_a_starving_pod_moves_when_its_start_has_passed() -> None:
    run = starving_pods_of_one_shape()
    run.step(200.0)  # `a` runs longer than its deadline
    run.step(2.0)
    start = run.engine.starts.held["pod/default/first"].planned.start
    assert start is None or start > run.now


def test_with_strict_fifo_the_gangs_behind_the_head_start_with_it() -> None:
    run = cluster(8, "strictFIFO: true")
    submit(run, "runs", 8)
    for name in ("head", "second", "third"):
        submit(run, name, 2)
    run.step(30.0)
    end(run, "runs")
    run.step(0.0)
    assert [running(run, name) for name in ("head", "second", "third")] == [2, 2, 2], "at once, not a second later"
