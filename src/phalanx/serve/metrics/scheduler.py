"""Metrics of the scheduler: kube-scheduler's names for equal meanings, `phalanx_` for others.

Counters are updated from decisions. Counts of the engine are read at a scrape.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from phalanx.engine import decisions as d
from phalanx.engine.engine import Engine
from phalanx.engine.scheduling.commit.admission import GANG
from phalanx.engine.scheduling.queue.units import QueueName
from phalanx.serve.metrics.attempts import AttemptMetrics
from phalanx.serve.metrics.devices import DeviceMetrics
from phalanx.serve.metrics.groups import GroupMetrics
from phalanx.serve.metrics.histograms import Histograms, exponential
from phalanx.serve.metrics.plugin_times import PluginSamples
from phalanx.serve.metrics.preemption import PreemptionMetrics
from phalanx.serve.scheduler import SchedulerService


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


_PLACES = {
    QueueName.ACTIVE: "active",
    QueueName.SEARCH: "active",
    QueueName.BACKOFF: "backoff",
    QueueName.WAITING: "unschedulable",
    QueueName.GATED: "gated",
}
INCOMPLETE = "incomplete"  # held until members or objects of their group exist
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
        self._illegal = Counter(
            "phalanx_illegal_transitions_total",
            "Transitions of pods and units that the table of states does not have.",
            registry=registry,
        )
        self._illegal_seen = 0
        self._pending = Gauge(
            "scheduler_pending_pods", "Pending pods by the queue their root is in.", ["queue"], registry=registry
        )
        self._entities = Gauge(
            "scheduler_queued_entities", "Queued pods and groups.", ["queue", "type"], registry=registry
        )
        self._cached = Gauge("scheduler_cache_size", "Nodes and placed pods known.", ["type"], registry=registry)
        self.step_seconds = Histogram(
            "phalanx_step_duration_seconds", "One slice of deciding.", buckets=_STEP_BUCKETS, registry=registry
        )
        self._exceptions = Counter(
            "phalanx_handling_errors_total",
            "Exceptions while an object's event was handled or a unit was attempted, by kind.",
            ["kind"],
            registry=registry,
        )
        self._exceptions_seen: Tally[str] = Tally()
        self._aside = Gauge("phalanx_objects_set_aside", "Objects left out: handling them raised.", registry=registry)
        self._in_flight = Gauge("phalanx_binds_in_flight", "Binds sent and not yet answered.", registry=registry)
        self._writes = Counter(
            "phalanx_api_writes_total",
            "Writes that the API server acknowledged. Per bound pod: divide by those to pods/binding.",
            ["verb", "resource"],
            registry=registry,
        )
        self._writes_seen: Tally[tuple[str, str]] = Tally()
        self._dropped = Gauge("phalanx_events_dropped", "Events given up because of load.", registry=registry)
        self._relists = Gauge(
            "phalanx_informer_relists", "Lists read again after the server forgot.", registry=registry
        )
        slow = Counter(
            "phalanx_slow_plugin_steps_total",
            "Steps in which a plugin took longer than the limit.",
            ["plugin", "extension_point"],
            registry=registry,
        )
        if service.times is not None:
            service.times.on_slow.append(lambda found: slow.labels(found.plugin, found.point).inc())
        self.on_scrape: list[Callable[[], None]] = []  # callbacks of other metrics before a scrape
        service.on_decisions.append(self.decisions)
        service.on_step.append(self.step_seconds.observe)
        self._attempt_metrics = AttemptMetrics(service, registry)
        self._preemption_metrics = PreemptionMetrics(service, registry)
        self._groups = GroupMetrics(service, registry)
        DeviceMetrics(service, registry)
        EngineCounts(service.engine, registry)
        service.samples = PluginSamples(service.engine, service.clock, profile, registry)
        handling = Histograms(
            "scheduler_event_handling_duration_seconds",
            "Time to bring one change of an object into the scheduler's state.",
            ["event"],
            exponential(0.0001, 2, 12),
            registry,
        )
        service.on_event = lambda event, seconds: handling.observe(seconds, (event,))
        self._calls = Gauge(
            "scheduler_pending_async_api_calls", "API calls under way.", ["call_type"], registry=registry
        )

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
        self.refresh()
        return generate_latest(self.registry)

    def refresh(self) -> None:
        """Update gauges of pending units before a scrape."""
        pods: Tally[str] = Tally()
        entities: Tally[tuple[str, str]] = Tally()
        for root, place in self._service.engine.queue.places():
            queue = _PLACES.get(place, "active")
            if place is QueueName.GATED and root.gate[0] == GANG:
                queue = INCOMPLETE
            pods[queue] += len(root.records)
            entities[queue, root.key.partition("/")[0]] += 1
        for queue in (*_PLACES.values(), INCOMPLETE):
            self._pending.labels(queue).set(pods[queue])
            for kind in ("pod", "podgroup", "compositepodgroup"):
                self._entities.labels(queue, kind).set(entities[queue, kind])
        for what, count in self._service.observed.writes.items():
            self._writes.labels(*what).inc(count - self._writes_seen[what])
            self._writes_seen[what] = count
        engine = self._service.engine
        self._cached.labels("nodes").set(engine.columns.count)
        placed = [record for record in engine.pods.records.values() if record.node_name]
        self._cached.labels("pods").set(len(placed))
        self._cached.labels("assumed_pods").set(sum(record.assumed for record in placed))
        self._calls.labels("pod_binding").set(self._attempt_metrics.pending_binds)
        self._groups.refresh()
        self._aside.set(len(engine.isolation.objects))
        for kind, total in engine.isolation.total.items():
            self._exceptions.labels(kind).inc(total - self._exceptions_seen[kind])
            self._exceptions_seen[kind] = total
        illegal = engine.illegal_transitions.count
        self._illegal.inc(illegal - self._illegal_seen)
        self._illegal_seen = illegal
        self._in_flight.set(self._service.executor.in_flight)
        self._dropped.set(self._service.recorder.dropped)
        self._relists.set(self._service.relists)
        for listener in self.on_scrape:
            listener()


def restarts_text(restarts: Mapping[str, int]) -> bytes:
    return _counter(
        "phalanx_part_restarts", "Times a part of this process died and was started again.", "part", restarts
    )


def failures_text(failures: Mapping[str, int]) -> bytes:
    text = "Reconciles that raised an error and are tried again."
    return _counter("phalanx_controller_failures", text, "controller", failures)


def _counter(name: str, text: str, label: str, values: Mapping[str, int]) -> bytes:
    """Return an externally kept counter in the format of /metrics."""
    family = CounterMetricFamily(name, text, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], value)

    class Once(Collector):
        def collect(self) -> Iterable[CounterMetricFamily]:
            return (family,)

    registry = CollectorRegistry()
    registry.register(Once())
    return generate_latest(registry)
