"""The live scheduler promises a start to every waiting unit whose time is known, and later units never delay it."""

from __future__ import annotations

import os
import random
import re

import pytest

from phalanx.base.clock import parse_rfc3339
from phalanx.engine.explain.ask import why
from phalanx.engine.scheduling.commit.start_reservations import StartReservations
from phalanx.testing import Cluster
from phalanx.testing.builders import gang, node, pod
from support.submitted_gangs import end, submit

PROMISED = "scheduling.phalanx.dev/StartPromised"
CONFIG = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- reservations: {%s}
"""
STREAMS = int(os.environ.get("STREAMS", "3"))


def cluster(nodes: int, settings: str = "", cpu: int = 1) -> Cluster:
    run = Cluster(config=CONFIG % settings)
    return run.see(*(node(f"n{i:02}").cpu(cpu).label("rack", f"r{i // 4}") for i in range(nodes)))


def runs(run: Cluster, name: str) -> bool:
    return f"{name}-0" in run.placed


def promised(run: Cluster, name: str) -> float | None:
    """Seconds from now until the promised start."""
    held = run.engine.starts.held.get(f"podgroup/default/{name}")
    return None if held is None or held.planned.start is None else held.planned.start - run.now


def condition(run: Cluster, name: str) -> tuple[str, str, str]:
    found = {c.type: c for c in run.objects["PodGroup"][name].status.conditions or ()}.get(PROMISED)
    return (found.status, found.reason, found.message) if found is not None else ("", "", "")


def test_every_waiting_gang_is_promised_a_start_one_behind_the_other() -> None:
    run = cluster(4, "backfill: Conservative")
    submit(run, "runs", 4, seconds=100)
    for number in range(5):
        submit(run, f"wait{number}", 4, seconds=50)
    run.step(2.0)
    starts = [promised(run, f"wait{number}") for number in range(5)]
    assert starts == [100.0, 150.0, 200.0, 250.0, 300.0]
    assert all(condition(run, f"wait{number}")[0] == "True" for number in range(5))
    run.engine.validate()


def test_a_gang_whose_pods_come_one_by_one_is_promised_a_start() -> None:
    run = cluster(4)
    submit(run, "runs", 4, seconds=100)
    group, *members = gang("big", 4)
    run.see(group)
    for member in members:
        run.see(member.created(run.now)).step(2.0)
    run.step(2.0)
    assert promised(run, "big") is not None


def test_a_gang_is_promised_a_start_again_when_its_nodes_are_usable_again() -> None:
    run = cluster(4)
    submit(run, "runs", 4, seconds=100)
    submit(run, "big", 4)
    run.step(2.0)
    nodes = {name: node(name).cpu(1) for name in ("n00", "n01", "n02", "n03")}
    run.see(*(node(name).cpu(1).unschedulable() for name in nodes)).step(2.0)
    assert promised(run, "big") is None
    run.step(5.0)
    run.see(*nodes.values())
    run.step(2.0)
    assert promised(run, "big") is not None


def test_a_gang_that_comes_after_others_have_gone_is_promised_a_start() -> None:
    run = cluster(4)
    submit(run, "runs", 4, seconds=100)
    for number in range(3):
        submit(run, f"gone{number}", 5, seconds=50)  # no promise: it never fits
    run.step(2.0)
    for number in range(3):
        for index in range(5):
            run.gone("Pod", f"gone{number}-{index}")
    run.step(2.0)
    submit(run, "late", 4, seconds=50)
    run.step(2.0)
    assert promised(run, "late") is not None


def test_they_start_in_time_and_in_order() -> None:
    run = cluster(4, "backfill: Conservative")
    submit(run, "runs", 4, seconds=100)
    for number in range(3):
        submit(run, f"wait{number}", 4, seconds=50)
    run.step(2.0)
    run.step(98.0)
    end(run, "runs")
    assert [runs(run, f"wait{number}") for number in range(3)] == [True, False, False]
    run.step(2.0)
    assert promised(run, "wait1") == pytest.approx(48.0, abs=2.0)


def test_a_gang_that_fits_beside_the_plan_starts_and_one_that_would_delay_it_waits() -> None:
    run = cluster(4, "backfill: Conservative")
    submit(run, "runs", 3, seconds=100)
    submit(run, "big", 4, seconds=50)
    submit(run, "next", 4, seconds=50)
    run.step(2.0)
    assert promised(run, "next") == 150.0
    submit(run, "long", 1, seconds=300)
    submit(run, "unknown", 1)
    assert not runs(run, "long") and not runs(run, "unknown")
    submit(run, "short", 1, seconds=90)
    assert runs(run, "short")
    assert promised(run, "next") == 150.0


def test_a_placement_is_found_beside_the_room_of_units_behind_the_first() -> None:
    """n00 and n01 are free, and the second gang is planned on one of them: work without an end goes elsewhere."""
    run = cluster(6, "backfill: Conservative, durationExponent: 0")
    submit(run, "runs", 4, seconds=100)
    submit(run, "first", 5, seconds=1000)
    submit(run, "second", 4, seconds=50)
    run.step(2.0)
    assert promised(run, "first") == 100.0 and promised(run, "second") == 1100.0
    run.see(pod("plain").cpu(1).created(run.now)).step(2.0)
    assert "plain" in run.placed
    assert promised(run, "first") == 98.0 and promised(run, "second") == 1098.0


@pytest.mark.parametrize(("backfill", "starts"), [("Easy", True), ("Conservative", False)])
def test_with_easy_backfill_a_small_unit_may_be_delayed_within_its_promise(backfill: str, starts: bool) -> None:
    run = Cluster(config=CONFIG % f"backfill: {backfill}")
    run.see(*(node(f"n{i:02}").cpu(1).label("zone", "big" if i < 12 else "small") for i in range(14)))
    submit(run, "runs", 12, seconds=100, topology="zone")
    submit(run, "one", 1, seconds=100)
    submit(run, "first", 12, seconds=100, topology="zone")
    submit(run, "two", 2, seconds=100, topology="zone")
    run.step(2.0)
    assert promised(run, "first") == 100.0
    assert promised(run, "two") == pytest.approx(100.0 + (200.0 / 3 if starts else 0.0))
    submit(run, "between", 1, seconds=150)
    run.step(2.0)
    assert runs(run, "between") is starts
    assert condition(run, "two")[0] == "True", "it can still start as promised"


def test_higher_priority_moves_a_promise_and_the_condition_says_so() -> None:
    run = cluster(4, "backfill: Conservative")
    submit(run, "runs", 4, seconds=100, priority=10)
    submit(run, "low", 4, seconds=50)
    run.step(2.0)
    assert promised(run, "low") == 100.0
    submit(run, "high", 4, seconds=70, priority=10)
    run.step(2.0)
    assert promised(run, "low") is not None and promised(run, "low") > 100.0
    status, _, message = condition(run, "low")
    assert status == "True" and "a unit of higher priority took its room" in message


def test_a_job_that_overruns_moves_the_promise_and_is_not_ended() -> None:
    run = cluster(4, "backfill: Conservative")
    submit(run, "runs", 4, seconds=100)
    submit(run, "wait", 4, seconds=50)
    run.step(2.0)
    run.step(110.0)
    assert runs(run, "runs") and not run.evicted
    status, _, message = condition(run, "wait")
    assert status == "True" and "longer than expected" in message
    assert promised(run, "wait") == pytest.approx(60.0 - 12.0, abs=2.0), "another minute at least is expected"


def test_a_lost_node_moves_the_promise() -> None:
    run = cluster(5, "backfill: Conservative")
    submit(run, "runs", 4, seconds=100)
    submit(run, "long", 1, seconds=200)
    submit(run, "wait", 4, seconds=50)
    run.step(2.0)
    assert promised(run, "wait") == 100.0
    where = next(iter(run.engine.starts.plan.units["podgroup/default/wait"].nodes))
    run.gone("Node", where)
    run.step(2.0)
    assert promised(run, "wait") == pytest.approx(198.0, abs=2.0)
    assert "a node of its reservation is gone, cordoned or in another domain" in condition(run, "wait")[2]


@pytest.mark.parametrize("how", ["gone", "cordoned"])
def test_a_lost_node_is_not_named_any_more_if_others_are_free_at_the_same_time(how: str) -> None:
    run = cluster(5, "backfill: Conservative")
    submit(run, "runs", 5, seconds=100)
    submit(run, "wait", 4, seconds=50)
    run.step(2.0)
    assert promised(run, "wait") == 100.0 and "reserved n00, n01" in condition(run, "wait")[2]
    if how == "gone":
        run.gone("Node", "n00")
    else:
        run.see(node("n00").cpu(1).label("rack", "r0").unschedulable())
    run.step(2.0)
    assert promised(run, "wait") == 98.0 and "reserved n01, n02" in condition(run, "wait")[2]


@pytest.mark.parametrize("left", ["r9", ""])
def test_a_reservation_does_not_span_domains_when_nodes_change_theirs(left: str) -> None:
    run = cluster(8, "backfill: Conservative")
    submit(run, "a", 4, seconds=100, topology="rack")
    submit(run, "b", 4, seconds=200, topology="rack")
    submit(run, "wait", 4, seconds=50, topology="rack")
    run.step(2.0)
    assert promised(run, "wait") == 100.0 and "reserved r0" in condition(run, "wait")[2]
    run.see(*(node(f"n{i:02}").cpu(1).label("rack", left) for i in range(2)))
    run.step(2.0)
    assert promised(run, "wait") == pytest.approx(198.0, abs=2.0)
    status, reason, message = condition(run, "wait")
    assert (status, reason) == ("True", "Reserved") and "reserved r1" in message and "in another domain" in message
    run.see(*(node(f"n{i:02}").cpu(1).label("rack", left and "r8") for i in (4, 5)))
    run.step(2.0)
    assert promised(run, "wait") is None and condition(run, "wait")[0] == "False"
    run.engine.validate()


def test_a_gang_in_a_domain_is_promised_one_and_loses_it_with_the_domain() -> None:
    run = cluster(8, "backfill: Conservative")
    submit(run, "a", 4, seconds=100, topology="rack")
    submit(run, "b", 4, seconds=200, topology="rack")
    submit(run, "wait", 3, seconds=50, topology="rack")
    run.step(2.0)
    assert condition(run, "wait")[0] == "True" and "reserved r0" in condition(run, "wait")[2]
    for name in ("n00", "n01", "n02", "n03"):
        run.gone("Node", name)
    run.step(2.0)
    assert "reserved r1" in condition(run, "wait")[2]


@pytest.mark.parametrize("seed", range(3))
def test_a_gang_with_another_topology_key_moves_no_promise(seed: int) -> None:
    """A new key, resource or node makes the planner new: it takes over every reservation."""
    run, draw = cluster(16, "backfill: Easy"), random.Random(seed)
    for number in range(4):
        submit(run, f"runs{number}", 4, seconds=draw.randint(50, 500))
    for number in range(12):
        rules = {"topology": "rack"} if draw.random() < 0.5 else {}
        submit(run, f"wait{number}", draw.choice((1, 2, 3, 4)), seconds=draw.randint(50, 500), **rules)
    run.step(2.0)
    plan = run.engine.starts.plan
    before, planner = {key: (unit.start, dict(unit.nodes)) for key, unit in plan.units.items()}, plan.planner
    submit(run, "later", 5, seconds=50, topology="kubernetes.io/hostname")
    run.step(2.0)
    assert len(before) == 12 and plan.planner is not planner
    assert before == {key: (plan.units[key].start, plan.units[key].nodes) for key in before}


def test_every_node_cordoned_leaves_no_promise() -> None:
    run = cluster(4, "backfill: Conservative")
    submit(run, "runs", 4, seconds=100)
    submit(run, "wait", 4, seconds=50)
    run.step(2.0)
    run.see(*(node(f"n{i:02}").cpu(1).label("rack", "r0").unschedulable() for i in range(4))).step(2.0)
    assert promised(run, "wait") is None
    assert condition(run, "wait")[:2] == ("False", "NodeLost")


def test_units_that_came_while_every_node_was_cordoned_are_promised_a_start_afterwards() -> None:
    run = cluster(8)
    submit(run, "runs", 8, seconds=1000)
    run.step(2.0)
    submit(run, "never", 9, seconds=50)
    submit(run, "wait", 4, seconds=50)
    run.step(2.0)
    run.see(*(node(f"n{i:02}").cpu(1).label("rack", "r0").unschedulable() for i in range(8))).step(2.0)
    for number in range(40):
        submit(run, f"later{number}", 1 + number % 8, seconds=50 + number)
    run.step(2.0)
    assert promised(run, "later0") is None
    run.see(*(node(f"n{i:02}").cpu(1).label("rack", "r0") for i in range(8)))
    for _ in range(10):
        run.step(1.1)
    assert promised(run, "wait") is not None and promised(run, "never") is None
    assert [n for n in range(40) if promised(run, f"later{n}") is None] == []
    run.engine.validate()


def test_a_gang_that_starts_after_it_lost_its_promise_does_not_say_that_a_node_is_gone() -> None:
    """Seen in a local cluster whose nodes were cordoned and uncordoned."""
    run = cluster(4, "backfill: Conservative")
    submit(run, "runs", 4, seconds=100)
    submit(run, "wait", 4, seconds=50)
    run.step(2.0)
    run.see(*(node(f"n{i:02}").cpu(1).label("rack", "r0").unschedulable() for i in range(4))).step(2.0)
    assert condition(run, "wait")[:2] == ("False", "NodeLost")
    end(run, "runs")
    run.see(*(node(f"n{i:02}").cpu(1).label("rack", "r0") for i in range(4))).step(2.0)
    assert runs(run, "wait")
    assert condition(run, "wait") == ("False", "Started", "it has its nodes")


def test_a_unit_that_never_fits_is_promised_nothing() -> None:
    run = cluster(4, "backfill: Conservative")
    submit(run, "runs", 4, seconds=100)
    submit(run, "never", 5, seconds=50)
    submit(run, "wait", 4, seconds=50)
    run.step(2.0)
    assert promised(run, "never") is None and condition(run, "never")[0] == ""
    assert promised(run, "wait") == 100.0
    (answer,) = why(run.engine.scheduler, "PodGroup", "default", "never").items
    assert "can never fit" in answer.headline


def test_many_units_that_never_fit_cost_one_search() -> None:
    run = cluster(4, "backfill: Conservative")
    submit(run, "runs", 4, seconds=100)
    for number in range(50):
        submit(run, f"never{number}", 5, seconds=50)
    submit(run, "wait", 4, seconds=50)
    run.step(2.0)
    assert promised(run, "wait") is not None
    planner = run.engine.starts.plan.planner
    assert planner is not None and planner.searches <= 3


def test_a_deleted_owner_leaves_no_room_behind() -> None:
    run = cluster(4, "backfill: Conservative")
    submit(run, "runs", 3, seconds=100)
    submit(run, "big", 4, seconds=50)
    submit(run, "next", 4, seconds=50)
    run.step(2.0)
    end(run, "next")
    end(run, "big")
    run.step(2.0)
    assert not run.engine.starts.held and not run.engine.nominations
    submit(run, "unknown", 1)
    assert runs(run, "unknown")


def test_a_clock_that_goes_back_breaks_nothing() -> None:
    run = cluster(4, "backfill: Conservative")
    submit(run, "runs", 4, seconds=100)
    submit(run, "wait", 4, seconds=50)
    run.step(2.0)
    run.step(-1000.0)
    run.step(1.0)
    run.step(5000.0)
    run.engine.validate()
    end(run, "runs")
    assert runs(run, "wait")


@pytest.mark.parametrize("seed", range(STREAMS))
@pytest.mark.parametrize("backfill", ["Conservative", "Easy"])
def test_later_arrivals_of_equal_or_lower_priority_never_move_a_promise(seed: int, backfill: str) -> None:
    """Random streams in which no pod runs longer than expected: every promise is kept, no node is over-committed."""
    draw = random.Random(seed)
    run = cluster(8, f"backfill: {backfill}, maxReservedFraction: 1.0, maxReservedFractionPerNamespace: 1.0", cpu=4)
    promise: dict[str, float] = {}
    ends: list[tuple[float, str]] = []
    waiting: list[str] = []
    number, now = 0, 0.0
    while number < 40 or ends or waiting:
        now += 1.0
        run.step(1.0)
        for _, name in sorted(each for each in ends if each[0] <= now):
            end(run, name)
        ends = [each for each in ends if each[0] > now]
        if number < 40 and draw.random() < 0.4:
            name, size = f"g{number}", draw.choice([1, 1, 2, 4, 8])
            seconds = draw.choice([20, 60, 150])
            topology = "rack" if size <= 4 and draw.random() < 0.4 else ""
            submit(
                run,
                name,
                size,
                seconds=seconds,
                topology=topology,
                cpu=draw.choice([1, 2, 4]),
                priority=-draw.randrange(2),
            )
            waiting.append(name)
            number += 1
        for name in list(waiting):
            held = run.engine.starts.held.get(f"podgroup/default/{name}")
            if f"{name}-0" not in run.objects["Pod"]:
                waiting.remove(name)  # started, and preempted by a unit of higher priority
            elif runs(run, name):
                waiting.remove(name)
                seconds = run.objects["Pod"][f"{name}-0"].spec.active_deadline_seconds
                ends.append((now + seconds * draw.choice([0.1, 0.6, 0.9]), name))
                assert run.now <= promise.get(name, run.now) + 12.0, f"{name} starts after its promise"
            elif held is not None and held.planned.start is not None:
                known = promise.setdefault(name, held.planned.start)
                reason = run.engine.starts._moved.get(f"podgroup/default/{name}")
                if held.planned.start > known + 12.0:
                    assert str(reason) == "HigherPriority", (name, reason)
                promise[name] = held.planned.start
        run.engine.validate()
        assert now < 2_500, f"{waiting} never start"
    assert promise, "no unit waited"


def test_the_time_of_a_promise_is_in_the_condition() -> None:
    run = cluster(4, "backfill: Conservative")
    submit(run, "runs", 4, seconds=100)
    submit(run, "wait", 4, seconds=50)
    run.step(2.0)
    message = condition(run, "wait")[2]
    time = next(word for word in re.split("[ ;,]", message) if word.endswith("Z"))
    assert parse_rfc3339(time) == run.now + 100.0


@pytest.mark.parametrize("seed", range(4))
def test_without_reservations_decisions_are_those_of_a_scheduler_that_knows_none(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    off = "backfill: None, starvationSeconds: 0, nodesToComeSeconds: 0"
    with_code = _placements(cluster(6, off, cpu=4), seed)
    for name in ("sweep", "placed", "node_changed", "next_time"):
        monkeypatch.setattr(StartReservations, name, lambda *_, **__: None)
    assert with_code == _placements(cluster(6, off, cpu=4), seed)


def _placements(run: Cluster, seed: int) -> list[dict[str, str]]:
    draw, seen = random.Random(seed), []
    for number in range(40):
        size, seconds = draw.choice([1, 2, 4]), draw.choice([0, 30, 200])
        submit(run, f"g{number}", size, seconds=seconds, cpu=draw.choice([1, 2, 4]))
        if draw.random() < 0.5:
            end(run, f"g{draw.randrange(number + 1)}")
        run.step(draw.choice([0.0, 1.0, 20.0]))
        seen.append(dict(run.placed))
    return seen


@pytest.mark.parametrize("seconds", [0, -5, 200 * 366 * 86_400])
def test_a_duration_that_makes_no_sense_is_no_end(seconds: int) -> None:
    run = cluster(2, "backfill: Conservative")
    submit(run, "runs", 2, seconds=seconds)
    submit(run, "wait", 2, seconds=50)
    run.step(2.0)
    assert promised(run, "wait") is None


def test_a_scheduler_in_which_nothing_happens_sleeps_until_the_first_start() -> None:
    run = cluster(4)
    submit(run, "runs", 4, seconds=100)
    for number in range(3):
        submit(run, f"wait{number}", 4, seconds=50)
    run.step(12.0)  # the last backoff is over
    begin, wakes = run.now, []
    while (wake := run.engine.next_wake()) is not None and wake < begin + 80 and len(wakes) < 100:
        run.engine.step(max(wake, run.now))
        wakes.append(wake - begin)
    assert len(wakes) <= 3, wakes
    assert promised(run, "wait0") is not None


def test_a_starving_gang_beyond_the_limits_gets_room_that_delays_no_promised_start() -> None:
    run = cluster(9, "starvationSeconds: 20, maxReservedFraction: 0.1, maxReservedFractionPerNamespace: 0.1")
    submit(run, "ends", 4, seconds=100)
    submit(run, "stays", 4, seconds=1000)
    begin, day = run.now, 100_000
    submit(run, "first", 4, seconds=day)
    submit(run, "second", 4, seconds=day)
    run.step(2.0)
    assert promised(run, "first") is not None and promised(run, "second") is None, "beyond the limits"
    for number in range(6):
        submit(run, f"small{number}", 1, seconds=5)
        run.step(5.0)
        end(run, f"small{number}")
    run.step(2.0)
    first, second = promised(run, "first"), promised(run, "second")
    assert first is not None and run.now + first == pytest.approx(begin + 100, abs=2.0)
    assert second is not None and run.now + second >= begin + 999
