"""Samples of the last hour, day and week: use, fragmentation, queue length and waiting times of pods.

Bounded: a sample every five seconds for an hour, one for every minute of a day, one for every ten minutes of a week.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

from phalanx.engine import decisions as d
from phalanx.model.kinds import Json
from phalanx.serve.queries.engine_view import EngineReader

EVERY = 5.0  # seconds between two samples
KEPT = 720  # an hour of them
# Longer spans: name -> (seconds per sample, samples kept).
SPANS = {"day": (60.0, 1440), "week": (600.0, 1008)}
EVICTED_SECONDS = 24 * 3600  # evictions by namespace and priority are counted for so long, in whole hours


class UsageHistory:
    def __init__(self, reader: EngineReader, now: Callable[[], float]) -> None:
        self._reader, self._now = reader, now
        self.samples: deque[Json] = deque(maxlen=KEPT)
        self._longer: dict[str, deque[Json]] = {name: deque(maxlen=kept) for name, (_, kept) in SPANS.items()}
        self._open: dict[str, list[Json]] = {name: [] for name in SPANS}  # samples of the interval that is under way
        self._waits: list[float] = []
        self._evicted = 0
        self._hours: dict[int, Counter[tuple[str, int]]] = {}  # hour -> (namespace, priority) -> evicted pods

    def decided(self, made: list[d.Decision]) -> None:
        """Record how long each bound pod waited, and evictions by namespace and priority.

        It is called with all decisions.
        """
        for decision in made:
            if isinstance(decision, d.Bind):
                waited = self._reader.waited(f"{decision.namespace}/{decision.name}")
                if waited is not None:
                    self._waits.append(waited)
            elif isinstance(decision, d.Evict):
                self._evicted += 1
                hour = self._hours.setdefault(int(self._now() // 3600), Counter())
                hour[decision.namespace, self._reader.priority_of(f"{decision.namespace}/{decision.name}")] += 1

    def sample(self) -> Json:
        """Take a sample, keep it, and drop the oldest."""
        queue = self._reader.waiting()
        waits, self._waits = sorted(self._waits), []
        evicted, self._evicted = self._evicted, 0
        taken = {
            "t": round(self._now(), 1),
            **self._reader.sums(self._reader.layout()),
            "roots": queue["total"],
            "pods": queue["pods"],
            "oldest": queue["oldest"],
            "bound": len(waits),
            "wait": round(waits[len(waits) // 2], 2) if waits else None,
            "longest": round(waits[-1], 2) if waits else None,
            "evicted": evicted,
        }
        self.samples.append(taken)
        for name, (seconds, _) in SPANS.items():
            part = self._open[name]
            if part and part[0]["t"] // seconds != taken["t"] // seconds:
                self._longer[name].append(_joined(part))
                part.clear()
            part.append(taken)
        return taken

    def span(self, name: str) -> list[Json]:
        """Return the samples of a longer span, including the current interval.

        Raises KeyError if there is no such span.
        """
        part = self._open[name]
        return [*self._longer[name], *([_joined(part)] if part else [])]

    def evicted(self) -> list[list[Any]]:
        """Return a list of [namespace, priority, pods evicted in the last day]."""
        oldest = int((self._now() - EVICTED_SECONDS) // 3600)
        for hour in [hour for hour in self._hours if hour < oldest]:
            del self._hours[hour]
        total: Counter[tuple[str, int]] = Counter()
        for counts in self._hours.values():
            total.update(counts)
        return [[namespace, priority, pods] for (namespace, priority), pods in sorted(total.items())]


def _joined(samples: Sequence[Json]) -> Json:
    """Join several samples to one.

    It has the last state, the sums of binds and evictions, the longest wait and the median of the median waits.
    """
    last = samples[-1]
    waits = sorted(sample["wait"] for sample in samples if sample["wait"] is not None)
    longest = [sample["longest"] for sample in samples if sample["longest"] is not None]
    return {
        **last,
        "bound": sum(sample["bound"] for sample in samples),
        "evicted": sum(sample["evicted"] for sample in samples),
        "wait": waits[len(waits) // 2] if waits else None,
        "longest": max(longest) if longest else None,
    }
