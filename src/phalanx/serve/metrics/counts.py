"""Metrics that the engine and the service count themselves: queues, preemption, promises, caches, writes, errors."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable

from prometheus_client.core import Metric

from phalanx.engine.engine import Engine
from phalanx.engine.scheduling.commit.admission import GANG
from phalanx.engine.scheduling.queue.units import QueueName
from phalanx.serve.metrics.at_scrape import counter, gauge
from phalanx.serve.scheduler import SchedulerService

_QUEUES = {
    QueueName.ACTIVE: "active",
    QueueName.SEARCH: "active",
    QueueName.BACKOFF: "backoff",
    QueueName.WAITING: "unschedulable",
    QueueName.GATED: "gated",
}
INCOMPLETE = "incomplete"  # held until members or objects of their group exist
_KINDS = ("pod", "podgroup", "compositepodgroup")


def counts(service: SchedulerService) -> Iterable[Metric]:
    engine = service.engine
    yield from _queued(engine)
    yield from _incoming(engine)
    yield from _preemption(engine)
    yield _unschedulable(engine)
    yield from _errors(engine)
    starts = engine.starts
    results = {"given": starts.given, "kept": starts.kept, "late": starts.late, "withdrawn": starts.withdrawn}
    text = "Promised starts: given, kept, late, or withdrawn before the start."
    yield counter("phalanx_promises", text, ["result"], results)
    placed = [record for record in engine.pods.records.values() if record.node_name]
    known = {
        "nodes": engine.columns.count,
        "pods": len(placed),
        "assumed_pods": sum(record.assumed for record in placed),
    }
    text = "Nodes and placed pods known."
    yield gauge("scheduler_cache_size", text, ["type"], known)
    text = "Binds sent and not yet answered."
    yield gauge("phalanx_binds_in_flight", text, [], service.executor.in_flight)
    text = "Writes that the API server acknowledged. Per bound pod: divide by those to pods/binding."
    yield counter("phalanx_api_writes", text, ["verb", "resource"], service.observed.writes)
    yield gauge("phalanx_events_dropped", "Events given up because of load.", [], service.recorder.dropped)
    yield gauge("phalanx_informer_relists", "Lists read again after the server forgot.", [], service.relists)


def _queued(engine: Engine) -> Iterable[Metric]:
    queues = (*_QUEUES.values(), INCOMPLETE)
    pods = Tally(dict.fromkeys(queues, 0))
    units = Tally({(queue, kind): 0 for queue in queues for kind in _KINDS})
    for unit, place in engine.queue.places():
        queue = _QUEUES.get(place, "active")
        if place is QueueName.GATED and unit.gate[0] == GANG:
            queue = INCOMPLETE
        pods[queue] += len(unit.records)
        units[queue, unit.key.partition("/")[0]] += 1
    yield gauge("scheduler_pending_pods", "Pending pods by the queue their root is in.", ["queue"], pods)
    yield gauge("scheduler_queued_entities", "Queued pods and groups.", ["queue", "type"], units)


def _incoming(engine: Engine) -> Iterable[Metric]:
    pods: Tally[tuple[str, str]] = Tally()
    units: dict[tuple[str, str, str], int] = {}
    for (queue, event, kind), (count, members) in engine.queue.incoming.counts.items():
        pods[queue, event] += members
        units[queue, event, kind.lower()] = count
    text = "Pods added to a queue, members of groups included, by the event that added them."
    yield counter("scheduler_queue_incoming_pods", text, ["queue", "event"], pods)
    text = "Pods and groups added to a queue, by the event that added them."
    yield counter("scheduler_queue_incoming_entities", text, ["queue", "event", "type"], units)


def _preemption(engine: Engine) -> Iterable[Metric]:
    preemption = engine.preemption
    text = "Searches for victims of a single pod."
    yield counter("scheduler_preemption_attempts", text, [], preemption.pod_attempts)
    text = "Searches for victims of a group, by whether a plan was found."
    attempts = preemption.group_attempts
    results = {"Success": attempts[True], "Unschedulable": attempts[False]}
    yield counter("scheduler_workload_preemption_attempts", text, ["result"], results)
    text = "Pods evicted beyond what disruption budgets allow, by the kind of what they were evicted for."
    beyond = engine.scheduler.evictions.beyond_budgets
    yield counter("scheduler_preemption_pdb_violations", text, ["preemptor"], beyond)


def _unschedulable(engine: Engine) -> Metric:
    found: Tally[tuple[str, str]] = Tally()
    for unit, place in engine.queue.places():
        if place is QueueName.WAITING and unit.equivalence_class is not None and unit.records:
            for plugin in unit.equivalence_class.plugins:
                found[plugin, unit.record.scheduler_name] += len(unit.records)
    text = "Unschedulable pods of no group by the plugins that rejected them; a pod counts once for each."
    return gauge("scheduler_unschedulable_pods", text, ["plugin", "profile"], found)


def _errors(engine: Engine) -> Iterable[Metric]:
    text = "Transitions of pods and units that the table of states does not have."
    yield counter("phalanx_illegal_transitions", text, [], engine.illegal_transitions.count)
    text = "Exceptions while an object's event was handled or a unit was attempted, by kind."
    yield counter("phalanx_handling_errors", text, ["kind"], engine.isolation.total)
    text = "Objects left out: handling them raised."
    yield gauge("phalanx_objects_set_aside", text, [], len(engine.isolation.objects))
