"""The order of the waiting units, and which are left out because another one cannot start."""

from __future__ import annotations

import random

import pytest

from phalanx.engine.reservations import FOREVER, Demand, PlanSettings, Unit
from phalanx.engine.reservations.units import WaitingUnit
from phalanx.engine.reservations.waiting_units import WaitingUnits

SETTINGS = PlanSettings()
NOW = 5_000.0


def some_unit(draw: random.Random, number: int) -> WaitingUnit:
    demand = Demand(draw.choice([1, 2, 4, 8]), (draw.choice([1, 8]),), draw.choice([-1, 0]))
    created, span = float(draw.randrange(0, 6_000, 500)), draw.choice([60.0, 600.0, 7200.0, FOREVER])
    return WaitingUnit(Unit(f"u{number}", demand, draw.choice([0, 0, 5]), created, number, span, demand.pods), span)


def place_in_order(entry: WaitingUnit) -> tuple[float, ...]:
    unit, seconds = entry.unit, entry.span if entry.span != FOREVER else 86_400.0
    preference = unit.size**SETTINGS.size_exponent / seconds**SETTINGS.duration_exponent
    return (-unit.priority, -(max(0.0, NOW - unit.created) + 60.0) * preference, unit.created, unit.index)


@pytest.mark.parametrize("seed", range(5))
def test_units_that_come_and_leave_are_in_order(seed: int) -> None:
    draw, table, waiting = random.Random(seed), WaitingUnits(SETTINGS), dict[str, WaitingUnit]()
    for number in range(400):
        if waiting and draw.random() < 0.4:
            table.remove(waiting.pop(draw.choice(sorted(waiting))))
        else:
            entry = some_unit(draw, number)
            waiting[entry.unit.name] = entry
            table.add(entry)
        assert table.lowest_priority == min((each.unit.priority for each in waiting.values()), default=0)
    assert list(table.by_rank(NOW)) == sorted(waiting.values(), key=place_in_order)
    assert table.by_rank(NOW).first(3) == sorted(waiting.values(), key=place_in_order)[:3]
    assert list(table.by_creation()) == sorted(waiting.values(), key=lambda entry: entry.unit.order)
    fits = [each for each in sorted(waiting.values(), key=place_in_order) if each.unit.demand.pods <= 4]
    assert list(table.by_rank(NOW, lambda demand: 4)) == fits


@pytest.mark.parametrize("span", [0.0, 600.0])
def test_an_excluded_unit_excludes_all_that_need_as_much(span: float) -> None:
    draw, table = random.Random(1), WaitingUnits(SETTINGS)
    for number in range(200):
        table.add(some_unit(draw, number))
    candidates = table.by_rank(NOW)
    first = next(candidates)
    candidates.exclude(span)
    more = [
        each
        for each in list(table.by_rank(NOW))[1:]
        if each.unit.demand.pod != first.unit.demand.pod
        or each.unit.demand.pods < first.unit.demand.pods
        or each.span < span
    ]
    assert list(candidates) == more
