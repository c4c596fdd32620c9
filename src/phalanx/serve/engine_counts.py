"""Counts that the engine keeps itself, in the form of /metrics: read at a scrape, so that they cost nothing before."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from phalanx.engine.engine import Engine
from phalanx.engine.scheduling.queue.units import QueueName


class EngineCounts(Collector):
    def __init__(self, engine: Engine, registry: CollectorRegistry) -> None:
        self._engine = engine
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        yield from self._queue()
        yield from self._preemption()
        yield self._unschedulable()
        starts = self._engine.starts
        promises = CounterMetricFamily(
            "phalanx_promises", "Promised starts: given, kept, late, or withdrawn before the start.", labels=["result"]
        )
        for result, count in (
            ("given", starts.given),
            ("kept", starts.kept),
            ("late", starts.late),
            ("withdrawn", starts.withdrawn),
        ):
            promises.add_metric([result], count)
        yield promises

    def _queue(self) -> Iterable[Metric]:
        pods: Tally[tuple[str, str]] = Tally()
        entities = CounterMetricFamily(
            "scheduler_queue_incoming_entities",
            "Pods and groups added to a queue, by the event that added them.",
            labels=["queue", "event", "type"],
        )
        for (queue, event, kind), (units, members) in sorted(self._engine.queue.incoming.counts.items()):
            pods[queue, event] += members
            entities.add_metric([queue, event, kind.lower()], units)
        family = CounterMetricFamily(
            "scheduler_queue_incoming_pods",
            "Pods added to a queue, members of groups included, by the event that added them.",
            labels=["queue", "event"],
        )
        for labels, count in pods.items():
            family.add_metric(list(labels), count)
        yield family
        yield entities

    def _preemption(self) -> Iterable[Metric]:
        preemption = self._engine.preemption
        yield CounterMetricFamily(
            "scheduler_preemption_attempts", "Searches for victims of a single pod.", value=preemption.pod_attempts
        )
        family = CounterMetricFamily(
            "scheduler_workload_preemption_attempts",
            "Searches for victims of a group, by whether a plan was found.",
            labels=["result"],
        )
        for found, count in preemption.group_attempts.items():
            family.add_metric(["Success" if found else "Unschedulable"], count)
        yield family
        family = CounterMetricFamily(
            "scheduler_preemption_pdb_violations",
            "Pods evicted beyond what disruption budgets allow, by the kind of what they were evicted for.",
            labels=["preemptor"],
        )
        for kind, count in sorted(self._engine.scheduler.evictions.beyond_budgets.items()):
            family.add_metric([kind], count)
        yield family

    def _unschedulable(self) -> Metric:
        found: Tally[tuple[str, str]] = Tally()
        for unit, place in self._engine.queue.places():
            if place is QueueName.WAITING and unit.equivalence_class is not None and unit.records:
                profile = unit.record.scheduler_name
                for plugin in unit.equivalence_class.plugins:
                    found[plugin, profile] += len(unit.records)
        family = GaugeMetricFamily(
            "scheduler_unschedulable_pods",
            "Unschedulable pods of no group by the plugins that rejected them; a pod counts once for each.",
            labels=["plugin", "profile"],
        )
        for labels, count in sorted(found.items()):
            family.add_metric(list(labels), count)
        return family
