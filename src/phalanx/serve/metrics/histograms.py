"""Histograms with fast updates (one bisection), converted to Prometheus' form at a scrape.

Those of prometheus_client take a lock and visit all buckets per value: several values per bound pod would take as long
as placing the pod.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

Labels = tuple[str, ...]


def exponential(start: float, factor: float, count: int) -> tuple[float, ...]:
    """Return bucket bounds like kube-scheduler's ExponentialBuckets."""
    return tuple(start * factor**n for n in range(count))


class Histograms(Collector):
    """One metric: a histogram per combination of label values. Not thread-safe."""

    def __init__(
        self, name: str, text: str, labels: Sequence[str], bounds: Sequence[float], registry: CollectorRegistry
    ) -> None:
        self.name, self._text, self._labels = name, text, tuple(labels)
        self._bounds = tuple(bounds)
        self._counts: dict[Labels, list[int]] = {}  # label values -> count per bucket, the last one unbounded
        self._sums: dict[Labels, float] = {}
        if not labels:
            self.begin(())
        registry.register(self)

    def begin(self, labels: Labels) -> None:
        """Export a combination with zero values: rates need the counter from the start."""
        if labels not in self._counts:
            self._counts[labels] = [0] * (len(self._bounds) + 1)
            self._sums[labels] = 0.0

    def observe(self, value: float, labels: Labels = (), times: int = 1) -> None:
        """Count a value `times` times."""
        counts = self._counts.get(labels)
        if counts is None:
            self.begin(labels)
            counts = self._counts[labels]
        counts[bisect_left(self._bounds, value)] += times
        self._sums[labels] += value * times

    def totals(self) -> dict[Labels, int]:
        """Return the number of values by label values."""
        return {labels: sum(counts) for labels, counts in self._counts.items()}

    def collect(self) -> Iterable[HistogramMetricFamily]:
        family = HistogramMetricFamily(self.name, self._text, labels=self._labels)
        names = [*(repr(float(bound)) for bound in self._bounds), "+Inf"]
        for labels, counts in sorted(self._counts.items()):
            total, buckets = 0, []
            for name, count in zip(names, counts, strict=True):
                total += count
                buckets.append((name, total))
            family.add_metric(labels, buckets, self._sums[labels])
        yield family
