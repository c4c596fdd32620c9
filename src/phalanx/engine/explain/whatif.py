"""Answer what-if queries: would these objects fit now, where, and if not, why. Nothing of them remains afterwards.

The groups of the query are in a separate forest, its pods in separate records, its shapes in a separate table. What a
trial must change (rows, label columns, resources, label interest) is restored afterwards: a scheduler makes the same
decisions with and without the query.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from phalanx.base.clock import rfc3339
from phalanx.engine.events import PlaceRequested
from phalanx.engine.explain.ask import reasons_of
from phalanx.engine.explain.demand import enough_nodes
from phalanx.engine.explain.device_hints import devices_of, for_devices
from phalanx.engine.explain.plans import planned
from phalanx.engine.explain.relax import for_pod, relaxations
from phalanx.engine.explain.sentences import gates_sentence, missing_in_tree
from phalanx.engine.explain.trial import TrialAttempt, verdict_of
from phalanx.engine.explain.values import (
    GroupPlace,
    NodeReason,
    NodeShare,
    Relaxation,
    Verdict,
    WhatIfAnswer,
    WhatIfUnit,
)
from phalanx.engine.framework.cluster_state import FIRST_ASKED
from phalanx.engine.groups.admission import hold_of
from phalanx.engine.groups.rank_placement import ring_cost_of
from phalanx.engine.groups.trial import Assignment
from phalanx.engine.placement.blockers import blocker_texts, rules_sentence
from phalanx.engine.placement.plain import of_group, of_nodes, sentence_case
from phalanx.engine.placement.rule_words import rules_of
from phalanx.engine.reservations import FOREVER
from phalanx.engine.scheduling.attempt.answers import Answer, Cause, NominatedAfterPreemption, Placed, Refused
from phalanx.engine.scheduling.attempt.attempt import AttemptOptions
from phalanx.engine.scheduling.commit.admitted_places import Place
from phalanx.engine.scheduling.lifecycle.members import root_key
from phalanx.engine.scheduling.queue.units import AttemptUnit, GroupTree, SinglePod
from phalanx.engine.state.records import PodRecord
from phalanx.engine.state.shapes import ShapeTable
from phalanx.model.groups import WORKLOAD, Group, GroupKey, PodKey, group_of, pod_key
from phalanx.model.groups.group import OURS
from phalanx.model.objects import CompositePodGroup, Pod, PodGroup, Workload, WorkloadPolicy

if TYPE_CHECKING:
    from phalanx.engine.scheduling.scheduler import Scheduler

BEHIND_RESERVATIONS = "no start is known: it fits only after units that have a reservation"


class Question(msgspec.Struct):
    """The objects of a query, as the API server would have stored them: with defaults and resolved priorities."""

    pods: list[Pod] = msgspec.field(default_factory=list)
    pod_groups: list[PodGroup] = msgspec.field(default_factory=list)
    composites: list[CompositePodGroup] = msgspec.field(default_factory=list)
    workloads: list[Workload] = msgspec.field(default_factory=list)
    policies: list[WorkloadPolicy] = msgspec.field(default_factory=list)

    @property
    def namespaces(self) -> set[str]:
        metadata = [pod.metadata for pod in self.pods] + [group.metadata for group in self.pod_groups]
        metadata += [group.metadata for group in self.composites] + [policy.metadata for policy in self.policies]
        metadata += [workload.metadata for workload in self.workloads]
        return {each.namespace for each in metadata}


def whatif(scheduler: Scheduler, question: Question, *, relax: bool = True, when: bool = False) -> WhatIfAnswer:
    """Answer for scheduling units in queue order, each after the earlier ones are placed.

    `when`: for a unit that does not fit now, estimate the earliest start from the expected end of running pods.
    """
    with TrialState(scheduler) as trial, TrialAttempt(scheduler) as trial_attempt:
        asked = AskedUnits(scheduler, trial, trial_attempt, relax, when)
        asked.put(question)
        items = [asked.answer_for(root) for root in asked.roots()]
        return WhatIfAnswer(
            bool(items) and all(item.fits and item.pods == item.wanted for item in items), items, asked.notes
        )


class TrialState:
    """Save and restore what a query may change apart from rows."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._columns = scheduler.columns
        self._index = scheduler.indexes.pods

    def __enter__(self) -> TrialState:
        columns, interest = self._columns, self._scheduler.interest
        self._index.sync()  # values that it reported as OTHER must be part of the saved state
        self._interest = interest.state()
        self._labels = {key: column.asked for key, column in columns.labels.items()}
        self._resources = set(columns.resources)
        self.shapes = ShapeTable(columns, interest)
        self.shapes.signers = list(self._scheduler.shapes.signers)
        self.shapes.uses_of, self.shapes.extended = self._scheduler.shapes.uses_of, self._scheduler.shapes.extended
        self._mark = columns.journal.mark()
        return self

    def __exit__(self, *_: object) -> None:
        columns, scheduler = self._columns, self._scheduler
        columns.journal.rewind(self._mark)
        for shape in self.shapes.every():
            scheduler.evaluations.forget(shape)
        for key, column in list(columns.labels.items()):
            if key in self._labels:
                column.asked = self._labels[key]
            else:
                del columns.labels[key]
        columns.forget_resources([name for name in columns.resources if name not in self._resources])
        # The index must see the pods of the query removed as it saw them added, and must not confuse a later growth of
        # the label interest with the growth during the query.
        self._index.sync()
        scheduler.interest.restore(self._interest)
        self._index.sync()

    def record(self, pod: Pod, order: int, created: float) -> PodRecord:
        shape = self.shapes.of(pod)
        if shape.id < FIRST_ASKED:
            shape.id = next(self._scheduler.cluster.asked_ids)
        record = PodRecord(pod, shape, order, created)
        # Rows index pods by key: an existing pod of this name must keep its own entry.
        record.key = f"?{record.key}"
        record.nominated = ""
        return record


class _Root(msgspec.Struct):
    key: GroupKey | None  # None: a single pod
    priority: int
    order: int
    records: list[PodRecord]


class AskedUnits:
    def __init__(
        self, scheduler: Scheduler, trial: TrialState, trial_attempt: TrialAttempt, relax: bool, when: bool
    ) -> None:
        self._scheduler = scheduler
        self._cluster = scheduler.cluster
        self._trial = trial
        self._trial_attempt = trial_attempt
        self._relax = relax
        self._when = when
        self._groups = scheduler.groups if scheduler.cluster.grouping else None
        self.forest = scheduler.cluster.new_forest()
        self.notes: list[str] = []
        self._records: list[PodRecord] = []
        self._pending: dict[GroupKey, dict[str, PodRecord]] = {}
        self._copied: set[GroupKey] = set()

    # ---- objects of the query

    def put(self, question: Question) -> None:
        """Add the objects of a question to the copied forest, and make records of its pods."""
        for policy in (*self._scheduler.objects.all(WorkloadPolicy), *question.policies):
            self.forest.put_policy(policy)
        for workload in question.workloads:
            self.forest.put_workload(workload)
        for composite in question.composites:
            self.forest.put_composite(composite)
        for group in question.pod_groups:
            self.forest.put_pod_group(group)
        for group in question.pod_groups:
            self._existing_above(group.spec.parent_composite_pod_group_name, group.metadata.namespace)
        for number, pod in enumerate(question.pods):
            if pod.spec.scheduler_name not in self._scheduler.profiles:
                name = pod.spec.scheduler_name
                self.notes.append(f"pod {pod_key(pod)} names scheduler {name}, which is not this one; left out")
                continue
            record = self._trial.record(pod, number, self._scheduler.cluster.now)
            leaf = group_of(pod) if self._groups is not None else None
            if leaf is None:
                self._records.append(record)
                continue
            self._existing(leaf)
            self.forest.put_pod(pod)
            self._pending.setdefault(leaf, {})[record.key] = record

    def _existing(self, leaf: GroupKey) -> None:
        """Copy an existing group that pods of the query join: its objects and members count too."""
        assert self._groups is not None
        if leaf in self._copied:
            return
        self._copied.add(leaf)
        if leaf.kind == WORKLOAD:
            name = leaf.name.partition("/")[0]
            source = self._scheduler.objects.get(Workload, leaf.namespace, name)
            if source is not None and self.forest.workload(leaf.namespace, name) is None:
                self.forest.put_workload(source)
        real = self._groups.forest.named(leaf)
        if real is None or self.forest.group(leaf) is not None:
            return
        if isinstance(real.source, PodGroup):
            self.forest.put_pod_group(real.source)
            self._existing_above(real.source.spec.parent_composite_pod_group_name, leaf.namespace)
        for key, member in real.members.items():
            self.forest.put_pod(member.pod)
            if member.state in OURS:
                self.forest.assume(key, member.node)
        self._pending.setdefault(leaf, {}).update(self._groups.waiting_pods.get(leaf, {}))

    def _existing_above(self, name: str | None, namespace: str) -> None:
        """Copy existing ancestors as they are, without their other children."""
        seen: set[str] = set()
        while name and name not in seen:  # parents may be in a cycle
            seen.add(name)
            key = GroupKey("CompositePodGroup", namespace, name)
            known = self.forest.group(key)
            if known is None:
                source = self._scheduler.objects.get(CompositePodGroup, namespace, name)
                if source is None:
                    return
                self.forest.put_composite(source)
                known = self.forest.group(key)
            parent = known.spec.parent if known is not None and known.spec is not None else None
            name = parent.name if parent is not None else None

    def roots(self) -> list[_Root]:
        found: dict[GroupKey, _Root] = {}
        for leaf, records in self._pending.items():
            key = self.forest.resolve(leaf).root or leaf
            root = found.get(key)
            if root is None:
                known = self.forest.group(key) is not None
                first = next(iter(records.values()))
                priority = self.forest.priority(key) if known else first.priority
                root = found[key] = _Root(key, priority, first.order, [])
            root.records += records.values()
        roots = [*found.values(), *(_Root(None, r.priority, r.order, [r]) for r in self._records)]
        empty = [key for key in self.forest.roots() if key not in found]
        for key in empty:
            if not any(leaf.members for leaf in self.forest.leaves(key)):
                self.notes.append(f"{key} has no pods here: nothing to place")
        return sorted(roots, key=lambda root: (-root.priority, root.order))

    # ---- answers

    def answer_for(self, root: _Root) -> WhatIfUnit:
        return self._pod(root) if root.key is None else self._group(root, root.key)

    def _no(
        self,
        root: _Root,
        answer: Refused | NominatedAfterPreemption,
        reasons: Sequence[NodeReason] = (),
        changes: Sequence[Relaxation] = (),
        unit: AttemptUnit | None = None,
        hints: Sequence[str] = (),
    ) -> WhatIfUnit:
        name = f"pod/{_name(root.records[0])}" if root.key is None else root_key(root.key)
        refused = answer.refused if isinstance(answer, NominatedAfterPreemption) else answer
        when, starts = self._first_start(unit, root) if self._when and unit is not None else ("", "")
        blockers = self._blockers(root)
        return WhatIfUnit(
            when=when,
            starts=starts,
            root=name,
            fits=False,
            summary=refused.text,
            headline=self._headline(root, verdict_of(answer), reasons, blockers),
            blockers=blockers,
            priority=root.priority,
            wanted=len(root.records),
            verdict=verdict_of(answer),
            node_reasons=list(reasons),
            nodes=self._scheduler.columns.count,
            relaxations=list(changes),
            evicts=sorted(pod.key for pod in answer.victims) if isinstance(answer, NominatedAfterPreemption) else [],
            plan=planned(self._scheduler, self.forest, name, answer)
            if isinstance(answer, NominatedAfterPreemption)
            else None,
            hints=list(hints),
        )

    def _attempt(self, root: _Root, unit: AttemptUnit) -> tuple[Answer, list[str]]:
        """Return the answer, and hints about devices, which are read before the victims of a plan leave."""
        hints: list[str] = []

        def read() -> None:
            hints.extend(for_devices(self._scheduler.indexes.devices, root.records))

        answer = self._trial_attempt.attempt(unit, evict=True, before_evictions=read)
        if isinstance(answer, Refused):
            read()
        return answer, hints

    def _blockers(self, root: _Root) -> list[str]:
        return blocker_texts(self._cluster, self.forest, root.records)

    def _headline(self, root: _Root, verdict: Verdict, reasons: Sequence[NodeReason], blockers: Sequence[str]) -> str:
        columns, shapes = self._scheduler.columns, dict.fromkeys(record.shape for record in root.records)
        if blockers:
            return sentence_case(blockers[0])
        if verdict.proof is not None:
            return of_group(verdict.proof, rules_of(self._cluster, shapes), verdict.reserved)
        if verdict.result == "rules":
            return rules_sentence(self.forest, root.records)
        if verdict.result == "untried":  # members, a gate or an object are missing
            missing = missing_in_tree(self.forest, root.key)[1] if root.key is not None else ""
            return missing or gates_sentence(record.pod for record in root.records) or sentence_case(verdict.message)
        return of_nodes(reasons, columns.count, rules_of(self._cluster, shapes)) if reasons else ""

    def _first_start(self, unit: AttemptUnit, root: _Root) -> tuple[str, str]:
        """Return when a unit would start at the earliest: as text, and as a time if it is known."""

        def attempt() -> Assignment | None:
            answer = self._scheduler.attempts.attempt(unit, AttemptOptions(gates=True, evict=False))
            return list(answer.assignment) if isinstance(answer, Placed) else None

        group = self.forest.group(root.key) if root.key is not None else None
        key = group.spec.topology_key if group is not None and group.spec is not None else ""
        starts = self._scheduler.starts
        own = {r.key for r in root.records}
        known = starts.plan.first_start(root.records, group)
        if known is not None and known[0] == FOREVER:
            return BEHIND_RESERVATIONS, ""
        if known is not None:
            time, rows = rfc3339(known[0]), sorted(known[1].rows.tolist())
            return f"would start by {time} on {starts.times.where(rows, key or '')}", time
        planned_start = starts.times.first(attempt, own, key or "")
        if planned_start is None and starts.held and starts.without(lambda: starts.times.first(attempt, own)):
            return BEHIND_RESERVATIONS, ""
        if planned_start is None:
            return "fits at no time: not even when everything that runs has ended", ""
        where = f"on {planned_start.where}, when {planned_start.waits_for} pods there have ended"
        if planned_start.start is None:
            return f"would start {where}; some of them have no known end", ""
        time = rfc3339(planned_start.start)
        return f"would start by {time} {where}", time

    def target(self, root: _Root) -> AttemptUnit | Refused:
        """Return what is attempted for a root, or why it cannot be."""
        if root.key is None:
            return SinglePod(root.records[0])
        key, group = root.key, self.forest.group(root.key)
        if group is None or self.forest.resolve(key).root is None:
            hold = hold_of(self.forest, key)
            return Refused(Cause.HELD, hold.message if hold is not None else f"{key} is not known")
        return GroupTree(root_key(key), group, self.forest, self._pending, root.priority, root.records)

    def _pod(self, root: _Root) -> WhatIfUnit:
        (record,) = root.records
        state = self._cluster
        answer, hints = self._attempt(root, SinglePod(record))
        if not isinstance(answer, Placed):
            refused = answer.refused if isinstance(answer, NominatedAfterPreemption) else answer
            if refused.diagnosis is None or refused.diagnosis.pre_filter is not None:
                return self._no(root, answer, unit=SinglePod(record), hints=hints)
            changes = []
            if self._relax and answer is refused:
                changes = for_pod(state, state.evaluation(record))
            return self._no(root, answer, reasons_of(refused.diagnosis), changes, SinglePod(record), hints)
        node = state.columns.names[answer.assignment[0][1]]
        place = GroupPlace(f"pod {_name(record)}", 1, nodes=[NodeShare(node, 1)])
        return WhatIfUnit(
            root=f"pod/{_name(record)}",
            fits=True,
            summary=f"would go to node {node}",
            priority=root.priority,
            pods=1,
            wanted=1,
            places=[place],
            nodes=state.columns.count,
            devices=devices_of(self._scheduler.indexes.devices, root.records),
        )

    def _group(self, root: _Root, key: GroupKey) -> WhatIfUnit:
        tree = self.target(root)
        if not isinstance(tree, GroupTree):
            assert isinstance(tree, Refused)
            return self._no(root, tree, hints=for_devices(self._scheduler.indexes.devices, root.records))
        group, state = tree.group, self._cluster
        answer, hints = self._attempt(root, tree)
        if not isinstance(answer, Placed):
            changes: list[Relaxation] = []
            if self._relax and isinstance(answer, Refused):
                changes = relaxations(state, group, answer, self._scheduler.attempts.group_plugins(tree))
                changes += enough_nodes(self._scheduler, tree)
            return self._no(root, answer, changes=changes, unit=tree, hints=hints)
        for record, row in answer.assignment:
            self.forest.assume(PodKey(record.namespace, record.name), state.columns.names[row])
        total, placed = len(root.records), len(answer.assignment)
        summary = f"fits{'' if placed == total else ' in part'}: {placed} of {total} pods would get a node"
        return WhatIfUnit(
            root=root_key(key),
            fits=True,
            summary=summary,
            priority=root.priority,
            pods=placed,
            wanted=total,
            places=self._places(group, answer.assignment),
            nodes=state.columns.count,
            devices=devices_of(self._scheduler.indexes.devices, root.records),
        )

    def _places(self, root: Group, assignment: Assignment) -> list[GroupPlace]:
        rows_of: dict[GroupKey, dict[int, int]] = {}
        members: dict[GroupKey, Assignment] = {}
        for record, row in assignment:
            leaf = self.forest.leaf_of(PodKey(record.namespace, record.name))
            if leaf is not None:
                counts = rows_of.setdefault(leaf, {})
                counts[row] = counts.get(row, 0) + 1
                members.setdefault(leaf, []).append((record, row))
        found = []
        for group in self.forest.tree(root.key):
            leaves = [leaf.key for leaf in self.forest.leaves(group.key)]
            rows = [row for leaf in leaves for row in rows_of.get(leaf, ())]
            if not rows or group.spec is None:
                continue
            mine = rows_of.get(group.key, {})
            names = self._scheduler.columns.names
            shares = [NodeShare(name, n) for name, n in sorted((names[row], n) for row, n in mine.items())]
            key = group.spec.topology_key or ""
            node = self._scheduler.columns.nodes[rows[0]]
            domain = node.metadata.labels.get(key, "") if node is not None and key else ""
            pods = sum(n for leaf in leaves for n in rows_of.get(leaf, {}).values())
            ring = ring_cost_of(self._scheduler.columns, members.get(group.key, ()), group.policy)
            found.append(GroupPlace(str(group.key), pods, key, domain, shares, ring))
        return found


def _name(record: PodRecord) -> str:
    return f"{record.namespace}/{record.name}"


def find_place(scheduler: Scheduler, request: PlaceRequested) -> tuple[Place, str]:
    """Return a node for every pod of the request; no place and the reason if not all of them fit now."""
    question = Question(pods=request.pods, pod_groups=request.pod_groups, composites=request.composites)
    pods = {f"?{pod.metadata.namespace}/{pod.metadata.name}": pod for pod in request.pods}
    with TrialState(scheduler) as trial, TrialAttempt(scheduler) as trial_attempt:
        asked = AskedUnits(scheduler, trial, trial_attempt, relax=False, when=False)
        asked.put(question)
        place = []
        for root in asked.roots():
            target = asked.target(root)
            answer = target if isinstance(target, Refused) else trial_attempt.attempt(target)
            if not isinstance(answer, Placed):
                return (), answer.text if isinstance(answer, Refused) else answer.refused.text
            if len(answer.assignment) < len(root.records):
                return (), f"only {len(answer.assignment)} of {len(root.records)} pods would get a node"
            place += [(pods[record.key], scheduler.columns.names[row]) for record, row in answer.assignment]
        return place, "" if place else "; ".join(asked.notes) or "it has no pods"
