"""Metrics that every component of Kubernetes has: its process, its calls of the API server, its lease and its gates."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric

from phalanx.kube.client import HttpClient
from phalanx.model.gates import Gates
from phalanx.serve.leadership import Leadership
from phalanx.serve.metrics.at_scrape import AtScrape, counter, gauge
from phalanx.serve.metrics.histograms import Histograms

FAILURES = "Reconciles that raised an error and are tried again."
_SECONDS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)  # as client-go


class ProcessMetrics:
    def __init__(
        self,
        registry: CollectorRegistry,
        client: HttpClient,
        leadership: Leadership,
        gates: Gates | None = None,
    ) -> None:
        self._host = urlsplit(client.server).netloc
        self._leadership, self._gates = leadership, gates
        self._answers: Tally[tuple[str, str, str]] = Tally()  # by code, method and host
        self._durations = Histograms(
            "rest_client_request_duration_seconds",
            "Duration of calls of the API server, watches excluded.",
            ["verb", "host"],
            _SECONDS,
            registry,
        )
        client.on_answer = self._answered
        ProcessCollector(registry=registry)
        AtScrape(registry, self._read)

    def _answered(self, method: str, code: int, seconds: float) -> None:
        self._answers[str(code) if code else "<error>", method, self._host] += 1
        self._durations.observe(seconds, (method, self._host))

    def _read(self) -> Iterable[Metric]:
        """Yield the metrics of API calls, leadership and feature gates."""
        text = "Calls of the API server by status code, watches excluded."
        yield counter("rest_client_requests", text, ["code", "method", "host"], self._answers)
        if (lease := self._leadership.lease) is not None:
            text = "1 if this process leads, 0 if it is a standby."
            elected = {lease.name: float(self._leadership.elected)}
            yield gauge("leader_election_master_status", text, ["name"], elected)
        if self._gates is not None:
            on = {(name, ""): float(value) for name, value in self._gates.as_dict().items()}
            yield gauge("kubernetes_feature_enabled", "1 if a feature gate is on.", ["name", "stage"], on)
