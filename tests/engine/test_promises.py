"""A waiting gang is promised a start, and what comes later never moves it."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import pytest

from phalanx.engine.reservations import (
    FOREVER,
    Backfill,
    Demand,
    PlanSettings,
    Reason,
    StartPlanner,
    TopologyLevels,
    Unit,
    expected_seconds,
)
from phalanx.engine.reservations.capacity import CapacityProfile
from phalanx.engine.reservations.live_start_planner import LiveStartPlanner
from phalanx.engine.reservations.room_now import RoomNow

GPUS = 8
STREAMS = int(os.environ.get("STREAMS", "75"))  # `make streams` plays 10,000


def planner(nodes: int = 4, rack: int = 2, coarse: bool = False, **settings: Any) -> StartPlanner:
    topology = TopologyLevels([[f"rack-{i // rack}" for i in range(nodes)]], nodes)
    free = np.full((1, nodes), GPUS, dtype=np.int16)
    return StartPlanner(0.0, free, topology, PlanSettings(**settings), coarse=coarse)


def waiting_gang(name: str, pods: int, seconds: float, *, gpus: int = GPUS, level: int = -1, priority: int = 0) -> Unit:
    index = int("".join(c for c in name if c.isdigit()) or 0)
    return Unit(name, Demand(pods, (gpus,), level), priority, 0.0, index, expected_seconds(seconds), float(pods * gpus))


def started(plan: StartPlanner, now: float, *units: Unit) -> list[str]:
    for unit in units:
        plan.submit(unit)
    out = plan.decide(now)
    plan.validate()
    return sorted(start.name for start in out.starts)


def promised(plan: StartPlanner, name: str) -> float | None:
    return plan.waiting[name].promise


def test_a_gang_that_waits_is_promised_the_end_of_what_runs() -> None:
    plan = planner()
    assert started(plan, 0.0, waiting_gang("run1", 3, 100)) == ["run1"]
    assert started(plan, 1.0, waiting_gang("big2", 4, 50)) == []
    assert promised(plan, "big2") == 100.0
    assert [r.owner for r in plan.reservations()] == ["big2"]


def test_a_small_gang_is_promised_its_planned_wait_and_slack_and_the_largest_exactly_its_start() -> None:
    plan = planner(backfill=Backfill.EASY, promise_slack=2.0)
    assert started(plan, 0.0, waiting_gang("run1", 4, 100)) == ["run1"]
    assert started(plan, 0.0, waiting_gang("big2", 4, 50), waiting_gang("one3", 1, 50, gpus=1)) == []
    assert promised(plan, "big2") == 100.0
    small = plan.waiting["one3"]
    assert promised(plan, "one3") == small.start + 2.0 * small.start * (1 - 4 / 32)


def test_work_that_ends_before_the_promise_is_backfilled_and_other_work_is_not() -> None:
    plan = planner()
    started(plan, 0.0, waiting_gang("run1", 3, 100))
    started(plan, 1.0, waiting_gang("big2", 4, 50))
    assert started(plan, 2.0, waiting_gang("short3", 1, 60), waiting_gang("long4", 1, 500)) == ["short3"]
    assert promised(plan, "big2") == 100.0
    assert promised(plan, "long4") == 150.0


def test_work_of_unknown_length_is_not_backfilled_before_a_promise() -> None:
    plan = planner()
    started(plan, 0.0, waiting_gang("run1", 3, 100))
    started(plan, 1.0, waiting_gang("big2", 4, 50))
    assert started(plan, 2.0, waiting_gang("unknown3", 1, FOREVER)) == []
    assert started(plan, 3.0, waiting_gang("small4", 1, 20, gpus=1)) == ["small4"]


def test_behind_work_without_a_known_end_nothing_is_promised() -> None:
    plan = planner()
    started(plan, 0.0, waiting_gang("run1", 4, FOREVER))
    started(plan, 1.0, waiting_gang("wait2", 1, 10))
    assert promised(plan, "wait2") is None
    plan.end("run1", 5.0)
    assert [s.name for s in plan.decide(5.0).starts] == ["wait2"]


def test_a_gang_that_can_never_fit_is_promised_nothing_and_blocks_nothing() -> None:
    plan = planner()
    assert started(plan, 0.0, waiting_gang("never1", 5, 10), waiting_gang("ok2", 4, 10)) == ["ok2"]
    assert promised(plan, "never1") is None


def test_a_promise_names_one_domain() -> None:
    plan = planner()
    started(plan, 0.0, waiting_gang("run1", 1, 100), waiting_gang("run2", 1, 200), waiting_gang("run3", 2, 300))
    started(plan, 1.0, waiting_gang("rack4", 2, 50, level=0))
    assert promised(plan, "rack4") == 200.0
    assert [r.domain for r in plan.reservations()] == ["rack-0"]


def test_higher_priority_moves_a_promise_and_says_so() -> None:
    plan = planner()
    started(plan, 0.0, waiting_gang("run1", 4, 100))
    started(plan, 1.0, waiting_gang("low2", 4, 50))
    started(plan, 2.0, waiting_gang("high3", 4, 70, priority=5))
    assert promised(plan, "high3") == 100.0
    plan.end("run1", 100.0)
    out = plan.decide(100.0)
    assert [s.name for s in out.starts] == ["high3"]
    moved = next(p for p in out.promises if p.name == "low2")
    assert moved.moved_from == 100.0 and moved.start_by >= 170.0 and moved.reason is Reason.HIGHER_PRIORITY


def test_a_job_over_its_expected_duration_keeps_running_and_the_promise_moves() -> None:
    plan = planner()
    started(plan, 0.0, waiting_gang("run1", 4, 100))
    started(plan, 1.0, waiting_gang("wait2", 4, 50))
    out = plan.decide(100.0)
    assert not out.starts and "run1" in plan.running
    assert [(p.name, p.reason) for p in out.promises] == [("wait2", Reason.OVERRAN)]
    assert out.promises[0].start_by > 100.0


def test_a_lost_node_moves_the_reservation() -> None:
    plan = planner()
    started(plan, 0.0, waiting_gang("run1", 4, 100))
    started(plan, 1.0, waiting_gang("wait2", 3, 50))
    plan.end("run1", 50.0, completed=False)
    plan.change_capacity(0, np.zeros(1, dtype=np.int64), 50.0)
    assert [s.name for s in plan.decide(50.0).starts] == ["wait2"]
    assert 0 not in plan.running["wait2"].where.rows.tolist()
    plan.validate()


def test_a_withdrawn_unit_leaves_no_reservation() -> None:
    plan = planner()
    started(plan, 0.0, waiting_gang("run1", 4, 100))
    started(plan, 1.0, waiting_gang("wait2", 4, 50), waiting_gang("wait3", 4, 50))
    plan.withdraw("wait2")
    plan.decide(2.0)
    plan.validate()
    assert [r.owner for r in plan.reservations()] == ["wait3"]
    plan.end("run1", 100.0)
    assert [s.name for s in plan.decide(100.0).starts] == ["wait3"]


def test_strict_order_lets_no_unit_pass() -> None:
    plan = planner(backfill=Backfill.STRICT)
    started(plan, 0.0, waiting_gang("run1", 3, 100))
    assert started(plan, 1.0, waiting_gang("big2", 4, 50)) == []
    assert started(plan, 2.0, waiting_gang("short3", 1, 10)) == []


def test_without_reservations_every_unit_that_fits_passes() -> None:
    plan = planner(backfill=Backfill.NONE)
    started(plan, 0.0, waiting_gang("run1", 3, 100))
    assert started(plan, 1.0, waiting_gang("big2", 4, 50), waiting_gang("long3", 1, 10_000)) == ["long3"]


def test_a_node_that_is_read_again_moves_no_promise() -> None:
    """The table of a large cluster rounds ends up; another rounding of the same ends must not make them later."""
    times = np.concatenate(([0.0], np.linspace(900.0, 90_000.0, 120)))
    free = np.full((len(times), 1, 2), 8)
    free[:60] = 0  # both nodes are free from the 60th end on
    plan = LiveStartPlanner(CapacityProfile.over(times, free, TopologyLevels([], 2)), PlanSettings())
    plan.submit(waiting_gang("big1", 2, 50_000))
    begin = plan.decide(0.0).promises[0].start_by
    exact = begin - 5.0  # the end that was rounded up to this time
    for now in (0.0, 5_000.0, 20_000.0):
        plan.advance(now)
        plan.set_rows({0: (np.zeros(1), [(exact, np.array([8.0]))])}, lambda row: Reason.OVERRAN)
        assert plan.decide(now).promises == []
    assert plan.waiting["big1"].promise == begin


def test_the_quick_test_of_room_excludes_only_units_that_cannot_start() -> None:
    draw = random.Random(3)
    excluded = 0
    for _ in range(60):
        plan = planner(nodes=6, rack=3)
        for i in range(25):
            plan.submit(_random_unit(draw, i))
        plan.decide(200.0)
        for name in sorted(plan.running)[:2]:
            plan.end(name, 201.0)
        plan.advance(201.0)
        room = RoomNow(plan.plan)
        for entry in plan.waiting.values():
            if not room.excludes(entry, 201.0 + entry.span):
                continue
            excluded += 1
            alone = plan.plan.copy()
            if entry.where is not None:
                alone.change(entry.start, entry.until, entry.unit.demand, entry.where, +1)
            assert alone.fits(entry.unit.demand, 201.0, 201.0 + entry.span) is None
    assert excluded > 50


@pytest.mark.parametrize("seconds", [0, -5, 1e12, float("nan"), None])
def test_durations_that_make_no_sense_are_unknown(seconds: float | None) -> None:
    assert expected_seconds(seconds) == FOREVER


@pytest.mark.parametrize("seed", range(STREAMS))
def test_later_arrivals_of_equal_priority_never_move_a_promise(seed: int) -> None:
    """Random streams: ends never come later than expected, so every promise holds and no node is over-committed."""
    draw = random.Random(seed)
    backfill, slack = draw.choice([(Backfill.CONSERVATIVE, 0.0), (Backfill.EASY, 0.0), (Backfill.EASY, 2.0)])
    plan = planner(
        nodes=6, rack=3, coarse=draw.random() < 0.3, backfill=backfill, promise_slack=slack, depth=draw.choice([5, 400])
    )
    arrivals = [_random_unit(draw, i) for i in range(60)]
    ends: list[tuple[float, str]] = []
    first: dict[str, float] = {}
    while arrivals or ends or plan.waiting:
        now = min([u.created for u in arrivals[:1]] + [at for at, _ in ends] + [plan.next_wake()])
        for _, name in sorted(e for e in ends if e[0] == now):
            plan.end(name, now)
        ends = [e for e in ends if e[0] != now]
        while arrivals and arrivals[0].created == now:
            plan.submit(arrivals.pop(0))
        out = plan.decide(now)
        plan.validate()
        for promise in out.promises:
            assert promise.moved_from is None, promise
            first[promise.name] = promise.start_by
        for start in out.starts:
            assert now <= first.get(start.name, now), "a promise was broken"
            share = draw.choice([0.1, 0.5, 1.0])
            ends.append((now + (plan.running[start.name].until - now) * share, start.name))
    assert first and not plan.waiting


@pytest.mark.parametrize("seed", range(STREAMS // 5))
def test_units_over_their_duration_and_lost_nodes_never_over_commit_a_node(seed: int) -> None:
    draw = random.Random(seed)
    backfill, coarse = draw.choice([Backfill.CONSERVATIVE, Backfill.EASY]), draw.random() < 0.3
    plan = planner(nodes=6, rack=3, coarse=coarse, backfill=backfill)
    arrivals = [_random_unit(draw, i) for i in range(60)]
    ends: list[tuple[float, str]] = []
    lost: list[tuple[float, int]] = []
    moved: set[Reason] = set()
    while arrivals or ends or lost or plan.waiting:
        now = min([u.created for u in arrivals[:1]] + [at for at, _ in ends + lost] + [plan.next_wake()])
        for at, name in sorted(ends):
            if at == now and name in plan.running:
                plan.end(name, now)
        for at, row in lost:
            if at == now:
                plan.change_capacity(row, np.array([GPUS]), now)
        ends, lost = [e for e in ends if e[0] != now], [e for e in lost if e[0] != now]
        while arrivals and arrivals[0].created == now:
            plan.submit(arrivals.pop(0))
        if arrivals and draw.random() < 0.1 and not lost:
            row = draw.randrange(6)
            for name in [name for name, run in plan.running.items() if row in run.where.rows]:
                ends = [e for e in ends if e[1] != name]
                unit = plan.running[name].unit
                plan.end(name, now, completed=False)
                plan.submit(unit)
            plan.change_capacity(row, np.zeros(1, dtype=np.int64), now)
            lost.append((now + 40.0, row))
        out = plan.decide(now)
        plan.validate()
        moved.update(promise.reason for promise in out.promises if promise.moved_from is not None)
        for start in out.starts:
            ends.append((now + (plan.running[start.name].until - now) * draw.choice([0.5, 1.0, 3.0]), start.name))
    assert moved <= {Reason.OVERRAN, Reason.NODE_LOST}


def _random_unit(draw: random.Random, i: int) -> Unit:
    pods = draw.choice([1, 1, 1, 2, 3, 6])
    level = 0 if 1 < pods <= 3 and draw.random() < 0.5 else -1
    demand = Demand(pods, (draw.choice([1, 2, 4, 8]),), level)
    return Unit(f"u{i}", demand, 0, i * 7.0, i, draw.choice([10.0, 50.0, 200.0]), float(pods))
