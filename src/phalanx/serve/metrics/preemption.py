"""Metrics of preemptions and of Permit waits, with the names and labels of kube-scheduler 1.37."""

from __future__ import annotations

from typing import NamedTuple

from prometheus_client import CollectorRegistry

from phalanx.engine import decisions as d
from phalanx.engine.events import Outcome
from phalanx.model.groups import GroupKey, PodKey
from phalanx.serve.metrics.histograms import Histograms, exponential
from phalanx.serve.scheduler import SchedulerService

PREEMPTED = "PreemptionByScheduler"  # reason of preemptions; other evictions requeue incomplete gangs


class _Executing(NamedTuple):
    """Evictions for one unit, decided in one step."""

    preemptor: str  # its kind
    since: float  # monotonic seconds
    left: set[int]  # decisions without an outcome


class PreemptionMetrics:
    def __init__(self, service: SchedulerService, registry: CollectorRegistry) -> None:
        self._service = service
        self._executing: dict[int, _Executing] = {}  # by decision
        self._victims = Histograms(
            "scheduler_preemption_victims", "Pods evicted for one pod.", [], exponential(1, 2, 7), registry
        )
        self._workload_victims = Histograms(
            "scheduler_workload_preemption_victims", "Pods evicted for one group.", [], exponential(1, 2, 11), registry
        )
        self._disruptions = Histograms(
            "scheduler_preemption_workload_disruptions",
            "Groups that are evicted as a whole, and single pods, evicted for one unit.",
            ["preemptor"],
            exponential(1, 2, 11),
            registry,
        )
        self._execution = Histograms(
            "scheduler_preemption_execution_duration_seconds",
            "From the decision to evict the victims of one unit to the last answer of the API server.",
            ["preemptor", "result"],
            exponential(0.001, 2, 16),
            registry,
        )
        self._permit = Histograms(
            "scheduler_permit_wait_duration_seconds",
            "How long pods waited for Permit plugins.",
            ["result"],
            exponential(0.001, 2, 15),
            registry,
        )
        self._permit.begin(("Success",))
        service.on_step.append(self._stepped)
        service.on_decisions.append(self._decided)
        service.on_outcome.append(self._answered)

    def _stepped(self, _: float) -> None:
        waits = self._service.engine.scheduler.binding.permit_waits
        while waits:
            seconds, result = waits.popleft()
            self._permit.observe(seconds, (result,))

    def _decided(self, made: list[d.Decision]) -> None:
        evicted: dict[str, list[d.Evict]] = {}
        for decision in made:
            if isinstance(decision, d.Evict) and decision.reason == PREEMPTED:
                evicted.setdefault(decision.preemptor, []).append(decision)
        for preemptor, decisions in evicted.items():
            kind = preemptor.partition("/")[0]
            (self._victims if kind == "pod" else self._workload_victims).observe(len(decisions))
            self._disruptions.observe(len({self._disrupted(each) for each in decisions}), (kind,))
            executing = _Executing(kind, self._service.monotonic(), {each.id for each in decisions})
            self._executing.update(dict.fromkeys(executing.left, executing))

    def _disrupted(self, evicted: d.Evict) -> GroupKey | PodKey:
        """Return the highest group that is evicted as a whole with the pod, else the pod."""
        forest, found = self._service.engine.cluster.forest, PodKey(evicted.namespace, evicted.name)
        leaf = forest.leaf_of(found)
        group = forest.group(leaf) if leaf is not None else None
        lineage = [group, *forest.above(group.key)] if group is not None else []
        whole = [each.key for each in lineage if each.spec is not None and each.spec.disrupt_all]
        return whole[-1] if whole else found

    def _answered(self, outcome: Outcome) -> None:
        executing = self._executing.pop(outcome.decision, None)
        if executing is None:
            return
        executing.left.discard(outcome.decision)
        if outcome.problem:
            for other in executing.left:
                self._executing.pop(other, None)
        if outcome.problem or not executing.left:
            result = "error" if outcome.problem else "success"
            self._execution.observe(self._service.monotonic() - executing.since, (executing.preemptor, result))
