"""Metrics of attempts, with the names and labels of kube-scheduler 1.37.

The engine has no clock and decides many pods in one step, so the duration of an attempt is its share of that step. The
time until the bind is confirmed is measured per pod.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import Metric

from phalanx.base.well_known import POD_SCHEDULED
from phalanx.engine import decisions as d
from phalanx.engine.events import Outcome
from phalanx.serve.metrics.at_scrape import AtScrape, counter, gauge
from phalanx.serve.metrics.histograms import Histograms, exponential
from phalanx.serve.scheduler import SchedulerService

_MANY_ATTEMPTS = 15  # from this number on the label is 15+, as in kube-scheduler
_RESULTS = {"Unschedulable": "unschedulable", "SchedulerError": "error"}
_GROUP_RESULTS = {
    "Scheduled": "scheduled",
    "Unschedulable": "unschedulable",
    "SchedulerError": "error",
    "Invalid": "error",
}


class _Sent(NamedTuple):
    """A Bind without an outcome."""

    profile: str
    created: float  # creation of the pod, seconds since the epoch
    at: float  # monotonic seconds
    share: float  # seconds of the deciding step
    attempts: int
    flushed: bool  # the attempt was caused by no event


class AttemptMetrics:
    def __init__(self, service: SchedulerService, registry: CollectorRegistry) -> None:
        self._service = service
        self._sent: dict[int, _Sent] = {}  # by decision
        self._step = 0.0  # duration of the last step in seconds
        self._flushed = Counter(
            "scheduler_pod_scheduled_after_flush_total",
            "Pods bound by an attempt that no event had caused, only the time they had waited.",
            registry=registry,
        )
        attempt = exponential(0.001, 2, 15)

        by = ["result", "profile"]
        self._attempt = Histograms(
            "scheduler_scheduling_attempt_duration_seconds",
            "One attempt of a pod: its share of the deciding step, and until the bind was confirmed.",
            by,
            attempt,
            registry,
        )
        self._algorithm = Histograms(
            "scheduler_scheduling_algorithm_duration_seconds",
            "The share of a pod of the step that decided it.",
            [],
            attempt,
            registry,
        )
        self._group_attempt = Histograms(
            "scheduler_podgroup_scheduling_attempt_duration_seconds",
            "One attempt of a group: the share of its pods of the step that decided it.",
            by,
            attempt,
            registry,
        )
        self._group_algorithm = Histograms(
            "scheduler_podgroup_scheduling_algorithm_duration_seconds",
            "The same without labels.",
            [],
            attempt,
            registry,
        )
        self._sli = Histograms(
            "scheduler_pod_scheduling_sli_duration_seconds",
            "From the creation of a pod to its confirmed bind, waiting included, by number of attempts.",
            ["attempts"],
            exponential(0.01, 2, 20),
            registry,
        )
        self._attempts = Histograms(
            "scheduler_pod_scheduling_attempts", "Attempts until a pod was bound.", [], exponential(1, 2, 5), registry
        )
        self._calls = Histograms(
            "scheduler_async_api_call_execution_duration_seconds",
            "Duration of API calls that do not hold up scheduling, by result.",
            ["call_type", "result"],
            attempt,
            registry,
        )
        for profile in service.engine.profiles:
            self._attempt.begin(("scheduled", profile))
        self._calls.begin(("pod_binding", "success"))
        AtScrape(registry, self._counts)
        service.on_step.append(self._stepped)
        service.on_decisions.append(self._decided)
        service.on_outcome.append(self._answered)

    def _stepped(self, seconds: float) -> None:
        self._step = seconds

    def _decided(self, made: list[d.Decision]) -> None:
        pods = [each for each in made if isinstance(each, d.Bind) or _result(each)]
        share = self._step / max(1, len(pods))
        if pods:
            self._algorithm.observe(share, times=len(pods))
        failed: Tally[tuple[str, str]] = Tally()
        for decision in made:
            match decision:
                case d.Bind():
                    self._bind(decision, share)
                case d.SetPodCondition():
                    if result := _result(decision):
                        failed[result, self._profile(decision)] += 1
                case d.SetGroupCondition():
                    self._group(decision, share)
        for labels, count in failed.items():
            self._attempt.observe(share, labels, count)

    def _bind(self, decision: d.Bind, share: float) -> None:
        engine = self._service.engine
        key = f"{decision.namespace}/{decision.name}"
        record = engine.pods.records.get(key)
        if record is None:
            return
        unit = engine.pod_lifecycle.unit_of.get(key)
        attempts = max(1, unit.attempts) if unit is not None else 1
        at = self._service.monotonic()
        flushed = unit is not None and unit.flushed
        self._sent[decision.id] = _Sent(record.scheduler_name, record.created, at, share, attempts, flushed)

    def _answered(self, outcome: Outcome) -> None:
        sent = self._sent.pop(outcome.decision, None)
        if sent is None:
            return
        took = self._service.monotonic() - sent.at
        self._calls.observe(took, ("pod_binding", "error" if outcome.problem else "success"))
        if outcome.problem:
            self._attempt.observe(sent.share + took, ("error", sent.profile))
            return
        self._attempt.observe(sent.share + took, ("scheduled", sent.profile))
        self._attempts.observe(sent.attempts)
        if sent.flushed:
            self._flushed.inc()
        label = str(sent.attempts) if sent.attempts < _MANY_ATTEMPTS else f"{_MANY_ATTEMPTS}+"
        self._sli.observe(max(0.0, self._service.now() - sent.created), (label,))

    def _group(self, decision: d.SetGroupCondition, share: float) -> None:
        result = _GROUP_RESULTS.get(decision.reason)
        if result is None or not decision.type.endswith("Scheduled"):
            return
        unit = self._service.engine.queue.units.get(f"{decision.kind.lower()}/{decision.namespace}/{decision.name}")
        seconds = share * max(1, len(unit.records) if unit is not None else 1)
        self._group_attempt.observe(seconds, (result, self._service.name))
        self._group_algorithm.observe(seconds)

    def _profile(self, decision: d.SetPodCondition) -> str:
        record = self._service.engine.pods.records.get(f"{decision.namespace}/{decision.name}")
        return record.scheduler_name if record is not None else self._service.name

    def _counts(self) -> Iterable[Metric]:
        text = "API calls that do not hold up scheduling, by result."
        yield counter("scheduler_async_api_call_execution", text, ["call_type", "result"], self._calls.totals())
        under_way = {"pod_binding": len(self._sent)}
        yield gauge("scheduler_pending_async_api_calls", "API calls under way.", ["call_type"], under_way)


def _result(decision: d.Decision) -> str:
    if isinstance(decision, d.SetPodCondition) and decision.type == POD_SCHEDULED:
        return _RESULTS.get(decision.reason, "")
    return ""
