"""Metrics whose values are read at a scrape, because something else counts them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

# By label value; by tuple of label values where there are several labels; one number where there is none.
Values = Mapping[Any, float] | float


class AtScrape(Collector):
    def __init__(self, registry: CollectorRegistry, read: Callable[[], Iterable[Metric]]) -> None:
        """`read`: returns the metrics; called at every scrape."""
        self._read = read
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        return self._read()


def counter(name: str, text: str, labels: Sequence[str], values: Values) -> Metric:
    """Return a metric of counts that only grow. `name`: without `_total`."""
    return _with(CounterMetricFamily(name, text, labels=labels), values)


def gauge(name: str, text: str, labels: Sequence[str], values: Values) -> Metric:
    return _with(GaugeMetricFamily(name, text, labels=labels), values)


def _with(family: CounterMetricFamily | GaugeMetricFamily, values: Values) -> Metric:
    if not isinstance(values, Mapping):
        family.add_metric([], values)
        return family
    for labels, value in sorted(values.items()):
        family.add_metric([labels] if isinstance(labels, str) else list(labels), value)
    return family


def counter_text(name: str, text: str, label: str, values: Mapping[str, int]) -> bytes:
    """Return one counter in the format of /metrics."""
    registry = CollectorRegistry()
    AtScrape(registry, lambda: [counter(name, text, [label], values)])
    return generate_latest(registry)
