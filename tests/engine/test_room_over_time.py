"""The table of free room over time is kept up to date node by node, and nothing is planned beyond it."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from phalanx.engine.reservations.live_start_planner import MOST_ENDS
from phalanx.engine.scheduling.attempt import room_over_time
from phalanx.engine.scheduling.attempt.queue_plan import QueuePlan
from phalanx.engine.scheduling.attempt.room_over_time import RoomOverTime
from phalanx.testing import Cluster
from phalanx.testing.builders import node
from support.submitted_gangs import end, submit


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Check every plan that is made. Return the number of rows that each one read again, -1: all."""
    rows: list[int] = []
    make, changed = QueuePlan.make, RoomOverTime.changed

    def checked_changed(room: RoomOverTime, held: Any, pieces: int) -> set[int] | None:
        found = changed(room, held, pieces)
        rows.append(-1 if found is None else len(found))
        return found

    def checked_make(plan: QueuePlan, *args: Any) -> None:
        make(plan, *args)
        check(plan)

    monkeypatch.setattr(room_over_time, "ROWS_IN_TURN", 0)  # what was forgotten is not mended later
    monkeypatch.setattr(RoomOverTime, "changed", checked_changed)
    monkeypatch.setattr(QueuePlan, "make", checked_make)
    return rows


def check(plan: QueuePlan) -> None:
    """Compare the table with what runs and what is reserved, node by node and time by time."""
    planner, room = plan.planner, plan._room
    if planner is None:
        assert not plan.units
        return
    names = room._cluster.columns.names
    exact = planner.base.n < MOST_ENDS
    for row in range(room._cluster.columns.n):
        free, changes = room.on(row)
        runs = [np.floor(free + sum(more for at, more in changes if at <= time)) for time in planner.base.times]
        assert (planner.base.rows[:, :, row] <= np.array(runs)).all(), names[row]
        assert not exact or (planner.base.rows[:, :, row] == np.array(runs)).all(), names[row]
    expected = planner.base.copy()
    for entry in planner.waiting.values():
        if entry.where is not None:
            expected.change(entry.start, entry.until, entry.unit.demand, entry.where, -1)
            late = planner.now + 10.0 >= entry.start
            assert late or not planner.plan.over_committed(entry.where, entry.start + 10.0, entry.until), (
                "promised twice"
            )
    for time in planner.plan.times.tolist():
        assert (expected.least(time, time) == planner.plan.least(time, time)).all(), f"the plan differs at {time}"
    for profile in (planner.base, planner.plan):
        assert np.array_equal(profile.rows.sum(axis=2), profile._sum)
    assert {key for units in plan.on.values() for key in (each.unit.key for each in units)} == set(plan.units)
    assert set(plan.units) == {name for name, entry in planner.waiting.items() if entry.where is not None}


def machine(number: int, cpu: int = 2) -> Any:
    return node(f"n{number:02}").cpu(cpu).label("rack", f"r{number // 4}")


def cluster(nodes: int) -> Cluster:
    return Cluster().see(*(machine(number) for number in range(nodes)))


@pytest.mark.parametrize("seed", range(12))
def test_the_table_is_right_after_every_event(seed: int, checked: list[int]) -> None:
    draw, run, names = random.Random(seed), cluster(8), list[str]()
    for number in range(40):
        what = draw.random()
        if what < 0.6 or not names:
            names.append(f"g{number}")
            pods, seconds = draw.choice([2, 4, 8, 16]), draw.choice([0, 60, 300, 900])
            rules = {"priority": draw.choice([0, 0, 0, 5])} if draw.random() < 0.3 else {}
            submit(run, names[-1], pods, seconds=seconds, **rules)
        elif what < 0.75:
            end(run, names.pop(draw.randrange(len(names))))
        elif what < 0.8:
            run.see(machine(draw.randrange(8), draw.choice([1, 2, 3])))
        elif what < 0.83:
            run.gone("Node", f"n{draw.randrange(8):02}")
        else:
            run.see(machine(draw.randrange(10)))
        run.step(draw.choice([2.0, 2.0, 15.0]))
    assert any(rows >= 0 for rows in checked)


def test_the_end_of_a_gang_computes_only_its_nodes_again(checked: list[int]) -> None:
    run = cluster(200)
    for number in range(100):
        submit(run, f"runs{number}", 4, seconds=100 + number)
    for number in range(20):
        submit(run, f"wait{number}", 40, seconds=50)
    run.step(2.0)
    assert len(run.engine.starts.plan.units) == 20
    checked.clear()
    end(run, "runs7")
    run.step(2.0)
    assert checked and all(0 <= rows < 30 for rows in checked)
    submit(run, "later", 40, seconds=50)
    run.step(2.0)
    assert "podgroup/default/later" in run.engine.starts.plan.units
    assert all(0 <= rows < 30 for rows in checked)


def test_a_changed_node_is_not_used_for_a_start_that_it_has_no_room_for(checked: list[int]) -> None:
    run = cluster(4)
    submit(run, "runs", 8, seconds=100)
    submit(run, "wait", 8, seconds=50)
    run.step(2.0)
    planned = run.engine.starts.plan.units["podgroup/default/wait"]
    assert set(planned.nodes) == {"n00", "n01", "n02", "n03"}
    run.see(machine(0, 1), machine(4, 1))
    run.step(2.0)
    planned = run.engine.starts.plan.units["podgroup/default/wait"]
    assert planned.nodes == {"n00": 1, "n01": 2, "n02": 2, "n03": 2, "n04": 1}
