"""DefaultPreemption: room for a pod by evicting pods of lower priority, as few and as unimportant as will do.

The words are kube-scheduler's; the choice looks at every node and at the cost in the order of `preemption.cost.ORDER`.
Nothing is evicted unless the pod then fits, and nothing more while victims of an earlier choice are still leaving.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from phalanx.engine import decisions as d
from phalanx.engine import events as e
from phalanx.engine.cycle import Cycle
from phalanx.engine.diagnosis import Diagnosis, histogram
from phalanx.engine.framework import ClusterChange, Code, Emit, Handle, PostFilterResult, Status, Wake
from phalanx.engine.preemption.catalogue import Catalogue, Unit
from phalanx.engine.preemption.ongoing import Ongoing
from phalanx.engine.preemption.single import Candidate, Chooser
from phalanx.engine.records import PodRecord
from phalanx.engine.roots import Root
from phalanx.engine.shapes import Shape
from phalanx.model.groups import WORKLOAD, GroupKey

NEVER = "not eligible due to preemptionPolicy=Never."
WAITING = "not eligible due to a terminating pod on the nominated node."
NOT_HELPFUL = "Preemption is not helpful for scheduling"
NO_VICTIMS = "No preemption victims found for incoming pod"
_GROUPS = ("PodGroup", "CompositePodGroup", "Workload")


class DefaultPreemption:
    name = "DefaultPreemption"
    # A pod of lower priority arrived, a promise was dropped, a pod of higher priority left a node with victims on it.
    evicts_lower = True
    helps_after = Wake.POD_PLACED | Wake.POD_GONE | Wake.NODE | Wake.NOMINATION

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        # minCandidateNodesPercentage and minCandidateNodesAbsolute are accepted and have no effect: all nodes count.
        self._handle = handle
        self._chooser: Chooser | None = None
        self._futile: dict[tuple[int, int], tuple[tuple[int, ...], str]] = {}

    @property
    def chooser(self) -> Chooser:
        if self._chooser is None:
            cycle = self._handle.cycle
            assert cycle is not None
            self._chooser = Chooser(cycle, Catalogue.shared(cycle, self._handle.objects))
        return self._chooser

    # ---- news

    def observe(self, kind: str, old: Any | None, new: Any | None) -> None:
        if kind == "PodDisruptionBudget":
            self.chooser.catalogue.budgets.changed(old, new)
        elif kind in _GROUPS and (old is None or new is None or old.spec != new.spec):
            forest = self.chooser.catalogue.forest
            meta = (new if new is not None else old).metadata  # type: ignore[union-attr]
            key = GroupKey(kind, meta.namespace, meta.name)
            if old is None and kind != WORKLOAD and forest is not None and forest.named(key) is None:
                return  # nobody belongs to it yet
            self.chooser.catalogue.regroup()

    def outcome(self, decision: d.Decision, event: e.Outcome) -> None:
        if isinstance(decision, d.Evict) and self._handle.cycle is not None:
            Ongoing.shared(self._handle.cycle).answered(decision.id, event.problem)

    def helps(self, shape: Shape, priority: int, change: ClusterChange) -> bool:
        row = change.row
        if row < 0:
            return False
        columns = self._handle.columns
        if any(columns.alloc_cell[rid][row] < amount for rid, amount in shape.requests):
            return False
        unit_of = self.chooser.catalogue.unit_of
        if change.kind & Wake.POD_PLACED and (change.record is None or unit_of(change.record)[1] >= priority):
            return False
        left = {rid: columns.alloc_cell[rid][row] - columns.used_cell[rid][row] for rid, _ in shape.requests}
        for record in columns.pods[row].values():
            if record.terminating or unit_of(record)[1] < priority:
                for rid, amount in record.shape.requests:
                    if rid in left:
                        left[rid] += amount
        return all(left[rid] >= amount for rid, amount in shape.requests)

    # ---- PostFilter

    def post_filter(self, record: PodRecord, diagnosis: Diagnosis, emit: Emit) -> PostFilterResult:
        cycle = self._handle.cycle
        assert cycle is not None
        if record.preemption_policy == "Never":
            return replace(_no(NEVER, hopeless=True), asks=Wake.NOTHING)
        ongoing = Ongoing.shared(cycle)
        chooser = self.chooser
        root = f"pod/{record.key}"
        if ongoing.of(root) is not None or self._victims_leaving(record, diagnosis):
            status = Status(Code.UNSCHEDULABLE, (WAITING,))
            return PostFilterResult(
                status, None, f"preemption: {WAITING}", sleep=self._sleep(record, diagnosis, ongoing)
            )
        if diagnosis.pre_filter is not None or not diagnosis.resolvable.any():
            text = _sentence(diagnosis.nodes, {NOT_HELPFUL: diagnosis.nodes})
            return replace(_no(text, clear=record, hopeless=True), asks=Wake.NODE)
        chooser.catalogue.refresh()
        key = (record.shape.id, record.priority)
        known = self._futile.get(key)
        if known is not None and known[0] == chooser.catalogue.circumstances:
            return _no(known[1], clear=record, hopeless=True)
        found = chooser.choose(record, cycle.evaluation(record), diagnosis.resolvable)
        if found is None:
            message = self._why_not(record, diagnosis)
            if len(self._futile) > 4096:
                self._futile.clear()
            self._futile[key] = (chooser.catalogue.circumstances, message)
            return _no(message, clear=record, hopeless=True)
        return self._carry_out(record, found, diagnosis, ongoing)

    def _victims_leaving(self, record: PodRecord, diagnosis: Diagnosis) -> bool:
        """Nominated by an earlier process, or by us before a plan ended: wait while lower priorities are leaving."""
        row = self._handle.columns.row_of.get(record.nominated, -1) if record.nominated else -1
        if row < 0 or not len(diagnosis.resolvable) or not diagnosis.resolvable[row]:
            return False
        chooser = self.chooser
        chooser.catalogue.refresh()
        leaving = chooser.catalogue.leaving.get(row)
        if not leaving or not any(pod.priority < record.priority for pod in leaving.values()):
            return False
        cycle = chooser.cycle
        Ongoing.shared(cycle).begin(
            f"pod/{record.key}",
            [record],
            [record.nominated],
            (),
            list(leaving.values()),
            text="waiting for pods to leave",
        )
        return True

    def _sleep(self, record: PodRecord, diagnosis: Diagnosis, ongoing: Ongoing) -> Callable[[Root, str], None] | None:
        """The quick way to wait, where only the row itself decides about a row."""
        profile = self.chooser.cycle.profiles[record.scheduler_name]
        local = all(profile.plugins.get(name) in profile.row_filters for name in diagnosis.plugins)
        return ongoing.sleep if local else None

    def _carry_out(
        self, record: PodRecord, found: Candidate, diagnosis: Diagnosis, ongoing: Ongoing
    ) -> PostFilterResult:
        chooser = self.chooser
        cycle = chooser.cycle
        node = self._handle.columns.names[found.row]
        victims = [pod for unit in found.units for pod in unit.pods.values()]
        for other in list(cycle.nominations.on(node)):
            if other.priority < record.priority and other.key != record.key:
                cycle.nominate(other, "")  # its promise no longer holds
        message = f"found a potential placement for pod on node {node}, preempting {len(victims)} victims"
        leaving = list(chooser.catalogue.leaving.get(found.row, {}).values())
        root = f"pod/{record.key}"
        ongoing.begin(root, [record], [node], victims, leaving, text=message, kind="pod", uid=record.uid, node=node)
        announce(cycle, found.units, "pod")
        return PostFilterResult(
            Status(Code.SUCCESS), node, f"preemption: {message}", sleep=self._sleep(record, diagnosis, ongoing)
        )

    def _why_not(self, record: PodRecord, diagnosis: Diagnosis) -> str:
        columns, catalogue = self._handle.columns, self.chooser.catalogue
        counts: dict[str, int] = {}
        resolvable = diagnosis.resolvable
        hopeless = int((columns.alive & ~resolvable).sum())
        if hopeless:
            counts[NOT_HELPFUL] = hopeless
        lonely = np.zeros(columns.capacity, dtype=np.bool_)
        for row in np.flatnonzero(columns.alive & resolvable).tolist():
            here = catalogue.on_row.get(row, {})
            lonely[row] = not any(catalogue.units[key].priority < record.priority for key in here)
        if lonely.any():
            counts[NO_VICTIMS] = int(lonely.sum())
        for _, finding in diagnosis.findings:
            rows = finding.rows[resolvable[finding.rows] & ~lonely[finding.rows]]
            if len(rows):
                counts[finding.reason] = counts.get(finding.reason, 0) + len(rows)
        return _sentence(diagnosis.nodes, counts)


def announce(cycle: Cycle, units: Iterable[Unit], kind: str) -> None:
    """DisruptionTarget on groups that go as a whole."""
    forest = getattr(cycle.groups, "forest", None)
    for unit in units:
        if isinstance(unit.key, str) or forest is None:
            continue
        group = forest.group(unit.key)
        if group is None or group.spec is None or unit.key.kind not in ("PodGroup", "CompositePodGroup"):
            continue
        cycle.emit(
            d.SetGroupCondition,
            namespace=unit.key.namespace,
            name=unit.key.name,
            uid=group.spec.uid,
            kind=unit.key.kind,
            type="DisruptionTarget",
            status="True",
            reason="PreemptionByScheduler",
            message=f"preempting to accommodate a higher priority {kind}",
            observed_generation=group.spec.generation,
        )


def _sentence(nodes: int, counts: dict[str, int]) -> str:
    return f"0/{nodes} nodes are available: {', '.join(histogram(counts))}."


def _no(text: str, *, clear: PodRecord | None = None, hopeless: bool = False) -> PostFilterResult:
    nominate = "" if clear is not None and clear.nominated else None
    return PostFilterResult(Status(Code.UNSCHEDULABLE, (text,)), nominate, f"preemption: {text}", hopeless)
