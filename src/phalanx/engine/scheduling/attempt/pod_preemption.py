"""Room for a pod by evicting pods of lower priority, as few and as unimportant as will do.

The words are kube-scheduler's; the choice looks at every node and at the cost in the order of `preemption.cost.ORDER`.
Nothing is evicted unless the pod then fits, and nothing more while victims of an earlier choice are still leaving.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from phalanx.engine.framework import Code, Status, Wake
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.framework.diagnosis import Diagnosis, histogram
from phalanx.engine.preemption.single_pod import Candidate, Chooser, MoreRows
from phalanx.engine.preemption.victim_index import VictimIndex
from phalanx.engine.scheduling.attempt.answers import placement_text
from phalanx.engine.scheduling.lifecycle.unit_lifecycle import UnitLifecycle
from phalanx.engine.state.records import PodRecord
from phalanx.model.groups import WORKLOAD, GroupKey

NEVER = "not eligible due to preemptionPolicy=Never."
WAITING = "not eligible due to a terminating pod on the nominated node."
NOT_HELPFUL = "Preemption is not helpful for scheduling"
NO_VICTIMS = "No preemption victims found for incoming pod"
_GROUPS = ("PodGroup", "CompositePodGroup", "Workload")


@dataclass(frozen=True, slots=True)
class Look:
    """What preemption would do for a pod."""

    message: str
    candidate: Candidate | None = None  # None: nobody is evicted
    alike: bool = False  # the same for its twins, until something changes
    nominate: str | None = None  # "" takes back what was promised
    asks: Wake | None = None  # of `HELPS_AFTER`, the changes that can make a difference; None: all of them
    waits: bool = False  # for victims that are on their way out
    leaving: Sequence[PodRecord] = ()  # that are, though not sent by a plan that is known

    @property
    def status(self) -> Status:
        return Status(Code.UNSCHEDULABLE if self.candidate is None else Code.SUCCESS)


class PodPreemption:
    def __init__(self, state: ClusterState, victim_index: VictimIndex, unit_lifecycle: UnitLifecycle) -> None:
        self._cluster = state
        self._unit_lifecycle = unit_lifecycle
        self.victim_index = victim_index
        self.chooser = Chooser(state, victim_index)
        self._futile: dict[tuple[int, int], tuple[tuple[int, ...], str]] = {}

    # ---- news

    def observe(self, kind: str, old: Any | None, new: Any | None) -> None:
        if kind == "PodDisruptionBudget":
            self.victim_index.budgets.changed(old, new)
        elif kind == "WorkloadPolicy":
            self.victim_index.regroup()  # how long a group is protected may be different now
        elif kind in _GROUPS and (old is None or new is None or old.spec != new.spec):
            forest = self._cluster.forest
            meta = (new if new is not None else old).metadata  # type: ignore[union-attr]
            key = GroupKey(kind, meta.namespace, meta.name)
            if old is None and kind != WORKLOAD and forest.named(key) is None:
                return  # nobody belongs to it yet
            self.victim_index.regroup()

    # ---- looking

    def look(self, record: PodRecord, diagnosis: Diagnosis, rows: int | None = None) -> Look:
        """`rows`: raises MoreRows where more than so many have to be looked at."""
        if record.preemption_policy == "Never":
            return Look(f"preemption: {NEVER}", alike=True, asks=Wake.NOTHING)
        if rows is not None and not self.chooser.ready(2 * rows):
            raise MoreRows
        leaving = self._leaving(record, diagnosis)
        if leaving or self._ongoing(record):
            return Look(f"preemption: {WAITING}", waits=True, leaving=leaving)
        if diagnosis.pre_filter is not None or not diagnosis.resolvable.any():
            return replace(_no(record, _sentence(diagnosis.nodes, {NOT_HELPFUL: diagnosis.nodes})), asks=Wake.NODE)
        self.victim_index.refresh()
        key = (record.shape.id, record.priority)
        known = self._futile.get(key)
        if known is not None and known[0] == self.victim_index.circumstances:
            return _no(record, known[1])
        found = self.chooser.choose(record, self._cluster.evaluation(record), diagnosis.resolvable, rows)
        if found is None:
            message = self._why_not(record, diagnosis)
            if len(self._futile) > 4096:
                self._futile.clear()
            self._futile[key] = (self.victim_index.circumstances, message)
            return _no(record, message)
        node = self._cluster.columns.names[found.row]
        return Look(f"preemption: {placement_text(node, found.units)}", found, nominate=node)

    def _leaving(self, record: PodRecord, diagnosis: Diagnosis) -> Sequence[PodRecord]:
        """Nominated by an earlier process, or by us before a plan ended: wait while lower priorities are leaving."""
        if self._ongoing(record):
            return ()
        row = self._cluster.columns.row_of.get(record.nominated, -1) if record.nominated else -1
        if row < 0 or not len(diagnosis.resolvable) or not diagnosis.resolvable[row]:
            return ()
        self.victim_index.refresh()
        leaving = self.victim_index.leaving.get(row, {})
        return list(leaving.values()) if any(pod.priority < record.priority for pod in leaving.values()) else ()

    def _ongoing(self, record: PodRecord) -> bool:
        return self._unit_lifecycle.stands(self._unit_lifecycle.plan_of(f"pod/{record.key}"))

    def _why_not(self, record: PodRecord, diagnosis: Diagnosis) -> str:
        columns, victim_index = self._cluster.columns, self.victim_index
        counts: dict[str, int] = {}
        resolvable = diagnosis.resolvable
        hopeless = int((columns.alive & ~resolvable).sum())
        if hopeless:
            counts[NOT_HELPFUL] = hopeless
        lonely = np.zeros(columns.capacity, dtype=np.bool_)
        for row in np.flatnonzero(columns.alive & resolvable).tolist():
            here = victim_index.on_row.get(row, {})
            lonely[row] = not any(victim_index.units[key].priority < record.priority for key in here)
        if lonely.any():
            counts[NO_VICTIMS] = int(lonely.sum())
        for _, finding in diagnosis.findings:
            rows = finding.rows[resolvable[finding.rows] & ~lonely[finding.rows]]
            if len(rows):
                counts[finding.reason] = counts.get(finding.reason, 0) + len(rows)
        return _sentence(diagnosis.nodes, counts)


def _sentence(nodes: int, counts: dict[str, int]) -> str:
    return f"0/{nodes} nodes are available: {', '.join(histogram(counts))}."


def _no(record: PodRecord, text: str) -> Look:
    return Look(f"preemption: {text}", alike=True, nominate="" if record.nominated else None)
