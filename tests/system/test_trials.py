"""The trials of bench/faults.py with real processes over TLS, for some seconds each."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(autouse=True)
def bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    sys.modules.pop("stage", None)  # other tests may have a module of that name


@pytest.mark.slow
def test_parts_outlive_a_server_that_is_away_for_longer_than_the_lease_lasts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Forty callers meanwhile; pods are bound and Jobs done afterwards, and SIGTERM ends every part."""
    import faults

    asyncio.run(faults.outage(4.0, seed=2, longest=4.0, duration=3.0))
    assert "a Job is done after the last return" in capsys.readouterr().out


@pytest.mark.slow
def test_conflicting_writes_of_the_lease_depose_no_leader_and_fill_no_node_twice(
    capsys: pytest.CaptureFixture[str],
) -> None:
    import faults

    asyncio.run(faults.lease(5.0, seed=2, thefts=False))
    assert "changed no leader" in capsys.readouterr().out
