"""bench/maintenance.py: a simulated month with failures, of which a day is played here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
from maintenance import POLICIES, Month, plot, table  # type: ignore[import-not-found]


@pytest.fixture(scope="module")
def played() -> dict[str, Month]:
    months = {name: Month(name, seed=1, days=1.0) for name in POLICIES}
    for month in months.values():
        month.run()
    return months


def test_every_policy_is_played_to_the_end_with_the_same_gangs(played: dict[str, Month]) -> None:
    for month in played.values():
        assert month.cluster.now == month.end and month.totals.finished > 0
        month.cluster.engine.validate()


def test_terminate_all_holds_the_fewest_gpu_hours_below_the_minimum(played: dict[str, Month]) -> None:
    below = {name: month.totals.below for name, month in played.items()}
    assert below["TerminateAll"] <= below["Keep"]


def test_the_table_and_the_plot_name_every_policy(played: dict[str, Month]) -> None:
    results = {name: month.totals for name, month in played.items()}
    for text in (table(results), plot(results)):
        assert all(name in text for name in POLICIES)
