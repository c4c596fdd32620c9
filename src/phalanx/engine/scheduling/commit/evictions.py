"""Carry out a preemption: evict the victims, nominate the nodes, and wait until the victims are gone.

A unit gets no second plan while its plan is valid. It is tried as soon as the last victim is gone. A pod that is a
victim of several plans is evicted once; if that eviction is refused, none of the plans can be carried out.

Victims with different grace periods are evicted so that all are gone at the same time (`deferEvictions`): those with a
shorter period keep running for the difference, and are reprieved if the plan is dropped before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from phalanx.base.well_known import DISRUPTION_TARGET
from phalanx.engine import decisions as d
from phalanx.engine.framework import Emit
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.groups.losses import Losses
from phalanx.engine.groups.messages import group_in_words
from phalanx.engine.preemption.result import Plan
from phalanx.engine.preemption.single_pod import Candidate
from phalanx.engine.preemption.victim_index import EvictionUnit, VictimIndex
from phalanx.engine.scheduling.attempt.answers import NominatedAfterPreemption, group_placement_text, placement_text
from phalanx.engine.scheduling.lifecycle.pod_lifecycle import PodLifecycle
from phalanx.engine.scheduling.lifecycle.unit_lifecycle import UnitLifecycle
from phalanx.engine.scheduling.queue.units import AttemptUnit, PreemptionInProgress, SchedulingUnit, SinglePod
from phalanx.engine.state.records import PodRecord
from phalanx.model.groups import PodKey

LEAST_DEFERRED_SECONDS = 5  # a smaller difference of grace periods is ignored
MOST_DEFERRED_SECONDS = 300  # a longer grace period defers other evictions no further
NO_DELAYS: Mapping[str, float] = {}


class Preemptor(msgspec.Struct, frozen=True):
    """The description of a preemptor for events and conditions."""

    kind: str  # "pod", "podgroup" or "compositepodgroup"
    words: str  # kind, name, owner and priority
    priority: int

    @property
    def in_event(self) -> str:
        """Return the words with a lower-case kind, as kube-scheduler writes them in its events."""
        return f"{self.kind} {self.words.partition(' ')[2]}"


class DeferredEviction(msgspec.Struct, frozen=True):
    at: float  # seconds
    record: PodRecord
    unit: SchedulingUnit  # the preemptor
    preemptor: Preemptor


class Evictions:
    def __init__(
        self,
        state: ClusterState,
        victims: VictimIndex,
        units: UnitLifecycle,
        pods: PodLifecycle,
        losses: Losses,
        emit: Emit,
    ) -> None:
        self._cluster = state
        self._victims = victims
        self._units = units
        self._pods = pods
        self._losses = losses
        self.emit = emit
        self._deferred: dict[str, DeferredEviction] = {}  # by key of the victim
        self.beyond_budgets: Counter[str] = Counter()  # kind of the preemptor -> pods evicted against budgets

    # ---- deferred evictions

    def step(self) -> None:
        """Evict the victims that are due; forget those of dropped plans."""
        for key, each in list(self._deferred.items()):
            plan, record = each.unit.plan, self._cluster.records.get(key)
            if plan is None or record is None or plan.victims.get(key) != each.record.uid or record.terminating:
                del self._deferred[key]
            elif each.at <= self._cluster.now:
                del self._deferred[key]
                if not self._units.is_evicted(record):
                    self._evict(record, each.unit, each.preemptor)

    def next_time(self) -> float | None:
        """Return when `step` has something to do."""
        return min((each.at for each in self._deferred.values()), default=None)

    def _delays(self, units: Iterable[EvictionUnit]) -> dict[str, float]:
        """Return the delay of each eviction in seconds, by key of the victim. Pods evicted as one unit have one
        delay."""
        graces = [(unit, max(pod.grace for pod in unit.pods.values())) for unit in units if unit.pods]
        longest = min(max((grace for _, grace in graces), default=0), MOST_DEFERRED_SECONDS)
        delays = ((unit, longest - grace) for unit, grace in graces)
        return {pod: float(delay) for unit, delay in delays if delay >= LEAST_DEFERRED_SECONDS for pod in unit.pods}

    # ---- plans

    def carry_out(self, unit: SchedulingUnit, target: AttemptUnit, answer: NominatedAfterPreemption) -> None:
        """Evict the victims of a unit's plan and nominate the nodes for its pods."""
        leaving = self._leaving(answer)
        if not answer.victims and not leaving:
            return
        preemptor, text = self._preemptor(target, answer)
        names, nominations = self._cluster.columns.names, self._cluster.nominations
        nodes = [names[row] for row in sorted({row for _, row in answer.assignment})]
        members = {record.key for record, _ in answer.assignment}
        for node in nodes:
            for other in list(nominations.on(node)):
                if other.priority < preemptor.priority and other.key not in members:
                    self._pods.nominate(other, "")
        defers = self._cluster.profiles[answer.assignment[0][0].scheduler_name].reservations.defer_evictions
        delays = self._delays(answer.units) if defers and not leaving else NO_DELAYS
        evicted = self._begin(unit, preemptor, nodes, answer.victims, leaving, text, delays)
        if evicted:
            planned = answer.plan
            if isinstance(planned, Plan | Candidate):
                beyond = planned.cost.budgets if isinstance(planned, Plan) else planned.budgets
                self.beyond_budgets[unit.kind.lower()] += beyond
        self._announce(answer.units, preemptor, evicted)
        for record in list(unit.records.values()):
            if record.nominated and record.key not in members:
                self._pods.nominate(record, "")  # from an earlier plan
        for record, row in answer.assignment:
            self._pods.nominate(record, names[row])

    def _preemptor(self, target: AttemptUnit, answer: NominatedAfterPreemption) -> tuple[Preemptor, str]:
        """Return the preemptor, and the plan as text."""
        if isinstance(target, SinglePod):
            record, node = target.record, self._cluster.columns.names[answer.assignment[0][1]]
            words = f"Pod {record.name} (priority {record.priority}) on node {node}"
            return Preemptor("pod", words, record.priority), placement_text(node, answer.units)
        forest, first = self._cluster.forest, answer.assignment[0][0]
        group, priority, leaf = target.group, target.priority, forest.leaf_of_pod(first.namespace, first.name)
        if first.priority != priority and leaf is not None and (own := forest.group(leaf)) is not None:
            group, priority = own, first.priority  # it preempts with its own priority, see `GroupTree.priorities`
        words = group_in_words(forest, group, priority)
        planned = answer.plan
        text = str(planned) if isinstance(planned, Plan) else group_placement_text(target.kind, answer.victims)
        return Preemptor(group.key.kind.lower() if group.composite else "podgroup", words, priority), text

    def wait_for_terminating(self, unit: SchedulingUnit, leaving: Sequence[PodRecord]) -> None:
        """Wait for pods that are terminating already; evict none."""
        preemptor = Preemptor("pod", "", unit.priority)
        self._begin(unit, preemptor, [unit.record.nominated], (), leaving, "waiting for pods to leave")

    def _leaving(self, answer: NominatedAfterPreemption) -> list[PodRecord]:
        rows = sorted({row for _, row in answer.assignment})
        return [pod for row in rows for pod in self._victims.leaving.get(row, {}).values()]

    def _begin(
        self,
        unit: SchedulingUnit,
        preemptor: Preemptor,
        nodes: Iterable[str],
        victims: Sequence[PodRecord],
        leaving: Iterable[PodRecord],
        text: str,
        delays: Mapping[str, float] = NO_DELAYS,
    ) -> set[str]:
        """Evict the victims for a unit; return the keys of those not evicted before.

        `leaving`: pods that are terminating already, which the unit only waits for. `delays`: by key of the victim, in
        seconds.
        """
        all_victims = {record.key: record.uid for record in (*victims, *leaving)}
        if not all_victims:
            self._units.give_up(unit)
            return set()
        now = self._cluster.now
        self._units.evict(unit, PreemptionInProgress(frozenset(nodes), all_victims, now, len(victims), text))
        evicted = [record for record in victims if not self._units.is_evicted(record)]
        for record in evicted:
            if delay := delays.get(record.key):
                self._deferred[record.key] = DeferredEviction(now + delay, record, unit, preemptor)
            else:
                self._evict(record, unit, preemptor)
        return {record.key for record in evicted}

    def _evict(self, record: PodRecord, unit: SchedulingUnit, preemptor: Preemptor) -> None:
        if self._cluster.forest.leaf_of(PodKey(record.namespace, record.name)) is not None:
            self._losses.preempted_by(record.uid, preemptor.words)
        number = self.emit(
            d.Evict,
            namespace=record.namespace,
            name=record.name,
            uid=record.uid,
            message=f"{record.scheduler_name}: preempting to accommodate a higher priority {preemptor.kind}",
            event_message=f"Preempted by {preemptor.in_event}"[: d.MAX_EVENT_MESSAGE],
            preemptor=unit.key,
        )
        self._units.evicted(record, number)

    def _announce(self, units: Iterable[EvictionUnit], preemptor: Preemptor, evicted: Collection[str]) -> None:
        """Set DisruptionTarget on groups that are evicted as a whole, and on those below them.

        `evicted`: keys of the pods evicted now.
        """
        whole = [u.key for u in units if not isinstance(u.key, str) and any(pod in evicted for pod in u.pods)]
        for group in dict.fromkeys(group for key in whole for group in self._cluster.forest.tree(key)):
            if group.spec is None or group.key.kind not in ("PodGroup", "CompositePodGroup"):
                continue
            self.emit(
                d.SetGroupCondition,
                namespace=group.key.namespace,
                name=group.key.name,
                uid=group.spec.uid,
                kind=group.key.kind,
                type=DISRUPTION_TARGET,
                status="True",
                reason="PreemptionByScheduler",
                message=f"preempting to accommodate a higher priority {preemptor.kind}",
                observed_generation=group.spec.generation,
            )
