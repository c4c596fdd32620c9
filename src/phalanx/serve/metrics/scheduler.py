"""Metrics of the scheduler: kube-scheduler's names for equal meanings, `phalanx_` for others.

Counters are updated from decisions; what the engine counts is read at a scrape.
"""

from __future__ import annotations

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from phalanx.engine import decisions as d
from phalanx.serve.metrics.at_scrape import AtScrape
from phalanx.serve.metrics.attempts import AttemptMetrics
from phalanx.serve.metrics.counts import counts
from phalanx.serve.metrics.devices import DeviceMetrics
from phalanx.serve.metrics.groups import GroupMetrics
from phalanx.serve.metrics.histograms import Histograms, exponential
from phalanx.serve.metrics.plugin_times import PluginSamples
from phalanx.serve.metrics.preemption import PreemptionMetrics
from phalanx.serve.scheduler import SchedulerService

_STEP_BUCKETS = tuple(0.0001 * 2**n for n in range(16))


class SchedulerMetrics:
    def __init__(self, service: SchedulerService) -> None:
        self.registry = registry = CollectorRegistry()
        self._service = service
        profile = service.name
        attempts = Counter(
            "scheduler_schedule_attempts_total",
            "Attempts to schedule pods, by result.",
            ["result", "profile"],
            registry=registry,
        )
        self._attempts = {
            (name, result): attempts.labels(result, name)  # looking up labels is slower than counting
            for name in (profile, *service.engine.profiles)
            for result in ("scheduled", "unschedulable", "error")
        }
        groups = Counter(
            "scheduler_podgroup_schedule_attempts_total",
            "Attempts to schedule groups, by result.",
            ["result", "profile"],
            registry=registry,
        )
        self._group_results = {
            "Scheduled": groups.labels("scheduled", profile),
            "Unschedulable": groups.labels("unschedulable", profile),
            "SchedulerError": groups.labels("error", profile),
            "Invalid": groups.labels("error", profile),
        }
        steps = Histogram(
            "phalanx_step_duration_seconds", "One slice of deciding.", buckets=_STEP_BUCKETS, registry=registry
        )
        slow = Counter(
            "phalanx_slow_plugin_steps_total",
            "Steps in which a plugin took longer than the limit.",
            ["plugin", "extension_point"],
            registry=registry,
        )
        if service.times is not None:
            service.times.on_slow.append(lambda found: slow.labels(found.plugin, found.point).inc())
        service.on_decisions.append(self.decisions)
        service.on_step.append(steps.observe)
        AttemptMetrics(service, registry)
        PreemptionMetrics(service, registry)
        GroupMetrics(service, registry)
        DeviceMetrics(service, registry)
        AtScrape(registry, partial(counts, service))
        service.samples = PluginSamples(service.engine, service.clock, profile, registry)
        handling = Histograms(
            "scheduler_event_handling_duration_seconds",
            "Time to bring one change of an object into the scheduler's state.",
            ["event"],
            exponential(0.0001, 2, 12),
            registry,
        )
        service.on_event = lambda event, seconds: handling.observe(seconds, (event,))

    def decisions(self, made: list[d.Decision]) -> None:
        for decision in made:
            match decision:
                case d.Bind():
                    self._attempted(decision, "scheduled")
                case d.SetPodCondition(type="PodScheduled", reason="Unschedulable"):
                    self._attempted(decision, "unschedulable")
                case d.SetPodCondition(type="PodScheduled", reason="SchedulerError"):
                    self._attempted(decision, "error")
                case d.SetGroupCondition():
                    counter = self._group_results.get(decision.reason)
                    if counter is not None:
                        counter.inc()

    def _attempted(self, decision: d.Bind | d.SetPodCondition, result: str) -> None:
        record = self._service.engine.pods.records.get(f"{decision.namespace}/{decision.name}")
        counter = self._attempts.get((record.scheduler_name, result)) if record is not None else None
        (counter or self._attempts[self._service.name, result]).inc()

    def text(self) -> bytes:
        """Return the present metrics in the format of Prometheus."""
        return generate_latest(self.registry)
