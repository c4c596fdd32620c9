"""Samples of the dashboard: bounded, joined for longer spans, evictions counted by namespace and priority."""

from __future__ import annotations

from typing import Any

from phalanx.engine import decisions as d
from phalanx.web.history import EVERY, KEPT, SPANS, UsageHistory


class _Reader:
    """What a history asks of a reader."""

    def waiting(self) -> dict[str, Any]:
        return {"total": 2, "pods": 16, "oldest": 9.0}

    def layout(self) -> None:
        return None

    def sums(self, _: None) -> dict[str, Any]:
        return {"use": {"cpu": 0.5}, "fragmentation": {"cpu": 0.0}}

    def waited(self, pod: str) -> float:
        return 3.0

    def priority_of(self, pod: str) -> int:
        return 7


def _evict(namespace: str) -> d.Evict:
    return d.Evict(id=1, namespace=namespace, name="p", uid="u", reason="Preempted", message="")


def test_longer_spans_join_samples_and_stay_bounded() -> None:
    now = [0.0]
    history = UsageHistory(_Reader(), lambda: now[0])  # type: ignore[arg-type]
    for turn in range(int(8 * 86400 / EVERY)):
        now[0] = turn * EVERY
        if turn % 12 == 0:
            history.decided([_evict("team-a")])
        history.sample()
    assert len(history.samples) == KEPT
    day, week = history.span("day"), history.span("week")
    assert len(day) <= SPANS["day"][1] + 1 and len(week) <= SPANS["week"][1] + 1
    assert day[-1]["t"] - day[0]["t"] >= 86000 and week[-1]["t"] - week[0]["t"] >= 6.9 * 86400
    assert day[-2]["evicted"] == 1 and week[-2]["evicted"] == 10  # what happened is summed, not sampled
    ((namespace, priority, pods),) = history.evicted()
    assert (namespace, priority) == ("team-a", 7) and 1440 <= pods <= 1500  # of the last day, in whole hours
