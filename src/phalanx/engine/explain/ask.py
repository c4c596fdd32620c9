"""Answer why a pod, a group or a Workload is pending: what the engine knows, and the result of a trial now.

A query makes no decision and changes nothing: no event, no position in the queue. Trials are rewound.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from phalanx.base.clock import rfc3339
from phalanx.engine.explain import hints
from phalanx.engine.explain.demand import enough_nodes
from phalanx.engine.explain.device_hints import for_devices, with_devices
from phalanx.engine.explain.hints import Needs
from phalanx.engine.explain.levels import levels_of, placed_enough, pods_of
from phalanx.engine.explain.pending import held
from phalanx.engine.explain.relax import for_pod, relaxations
from phalanx.engine.explain.remedies import applied_object, owner_of_pod, translated_from, with_how
from phalanx.engine.explain.sentences import missing_in_tree, missing_members
from phalanx.engine.explain.trial import TrialAttempt, verdict_of
from phalanx.engine.explain.values import (
    HistoryEntry,
    NodeReason,
    PodLine,
    Preempting,
    Proof,
    QueuePlace,
    Relaxation,
    Report,
    Verdict,
    Why,
    proof_of,
)
from phalanx.engine.framework import Wake
from phalanx.engine.framework.diagnosis import Diagnosis
from phalanx.engine.groups.group_state import HEALTHY
from phalanx.engine.groups.messages import owner_of, scheduled
from phalanx.engine.placement.blockers import blocker_texts, rules_sentence
from phalanx.engine.placement.outcome import amount_word, domain_word
from phalanx.engine.placement.plain import INSUFFICIENT, of_group, of_nodes, sentence_case
from phalanx.engine.placement.problem import DEVICES
from phalanx.engine.placement.rule_words import rules_of
from phalanx.engine.scheduling.attempt.answers import Placed, Refused
from phalanx.engine.scheduling.lifecycle.history import Note
from phalanx.engine.scheduling.lifecycle.members import root_key
from phalanx.engine.scheduling.lifecycle.pod_lifecycle import LATER
from phalanx.engine.scheduling.queue.units import GroupTree, QueueName, SchedulingUnit, SinglePod
from phalanx.engine.state.records import PodRecord
from phalanx.model.groups import COMPOSITE, POD_GROUP, WORKLOAD, Group, GroupKey, MemberState, PodKey
from phalanx.model.objects import Workload

if TYPE_CHECKING:
    from phalanx.engine.scheduling.scheduler import Scheduler

_EVENTS = {
    Wake.DEVICES: "a claim, a device or a device class changes",
    Wake.STORAGE: "a volume, claim or storage class changes",
    Wake.NODE_ADDED: "a node is added",
    Wake.NODE_CHANGED: "a node changes",
    Wake.POD_GONE: "a pod leaves a node",
    Wake.POD_PLACED: "a pod is placed",
    Wake.POD_LABELS: "labels of a placed pod change",
    Wake.NOMINATION: "a promised place is given up",
    Wake.NAMESPACE: "labels of a namespace change",
    Wake.SERVICE: "a Service or its like changes",
    Wake.GROUP: "a group or Workload changes",
}
_ANY_NODE = "a node is added or changes"
_OBJECTS = Wake.DEVICES | Wake.STORAGE


class Unknown(Exception):
    """Raised if the scheduler knows no such object."""


def why(scheduler: Scheduler, kind: str, namespace: str, name: str, *, relax: bool = True) -> Report:
    """Explain why an object is pending. Raises Unknown. `relax`: also search for changes that would help, which costs
    several trials."""
    query = _Query(scheduler, relax)
    if kind == "Pod":
        items = [query.pod(namespace, name)]
    elif kind == WORKLOAD:
        items = query.workload(namespace, name)
    else:
        items = [query.group(GroupKey(kind, namespace, name))]
    items = [_with(item, story=query.history(item)) for item in items]
    return Report(kind, namespace, name, all(item.scheduled for item in items), items)


class _Query:
    def __init__(self, scheduler: Scheduler, relax: bool) -> None:
        self._scheduler = scheduler
        self._relax = relax
        self._groups = scheduler.groups if scheduler.cluster.grouping else None

    # ---- pods

    def pod(self, namespace: str, name: str) -> Why:
        record = self._scheduler.pods.records.get(f"{namespace}/{name}")
        leaf = self._groups.forest.leaf_of(PodKey(namespace, name)) if self._groups is not None else None
        if leaf is not None:
            return self._member(leaf, PodKey(namespace, name))
        if record is None:
            raise Unknown(f"the scheduler knows no pod {namespace}/{name}: it is another scheduler's, finished or gone")
        root = self._scheduler.queue.units.get(f"pod/{record.key}")
        if record.node_name:
            return self._placed(record)
        verdict, reasons, changes = self._attempt(record)
        message = record.last_message
        queue = self._queue(root, [reason.reason for reason in reasons])
        blockers = self._blockers([record]) if verdict.result != "placed" else []
        summary = queue.message if queue.place == "gated" else message or verdict.message
        if verdict.result == "placed":
            summary = f"fits now on {verdict.message}; it is tried when its turn comes"
        return Why(
            kind="Pod",
            namespace=namespace,
            name=name,
            root=f"pod/{record.key}",
            scheduled=False,
            summary=summary or "waiting for its first attempt",
            headline=self._held(root) or self._pod_headline(record, verdict, reasons, blockers),
            blockers=blockers,
            priority=record.priority,
            queue=queue,
            last=Verdict("impossible" if message else "untried", message),
            now=verdict,
            node_reasons=reasons,
            nodes=self._scheduler.columns.count,
            preemption=self._preempting(f"pod/{record.key}"),
            run_time=self._scheduler.starts.times.run_times.in_words([record]),
            relaxations=changes,
            pods=[PodLine(name, "pending", nominated=record.nominated, message=message)],
            hints=[
                *(hints.for_pod(self._groups.forest, record) if self._groups is not None else ()),
                *hints.of_others(self._scheduler, record.priority, [record.key]),
                *(for_devices(self._scheduler.indexes.devices, [record]) if verdict.result != "placed" else ()),
            ],
        )

    def _pod_headline(self, record: PodRecord, verdict: Verdict, reasons: list[NodeReason], blockers: list[str]) -> str:
        if verdict.result == "placed":
            return f"Fits now on node {verdict.message}; it is tried when its turn comes"
        if blockers:
            return sentence_case(blockers[0])
        state = self._scheduler.cluster
        return of_nodes(reasons, state.columns.count, rules_of(state, [record.shape])) if reasons else ""

    def _held(self, unit: SchedulingUnit | None) -> str:
        """Return the sentence for a unit that waits though it may fit; empty if it does not."""
        found = held(self._scheduler, unit) if unit is not None else None
        return found.headline if found is not None else ""

    def _placed(self, record: PodRecord) -> Why:
        word = "is being bound to" if record.assumed else "is on"
        held = self._scheduler.pod_lifecycle.holding.get(record.key)
        more = with_devices(self._scheduler.indexes.devices, record)
        more += f", {held.words}" if held is not None and held.stage != LATER else ""
        return Why(
            kind="Pod",
            namespace=record.namespace,
            name=record.name,
            root=f"pod/{record.key}",
            scheduled=not record.assumed,
            summary=f"{word} node {record.node_name}{more}",
            priority=record.priority,
            nodes=self._scheduler.columns.count,
            pods=[PodLine(record.name, "assumed" if record.assumed else "running", record.node_name)],
        )

    def _attempt(self, record: PodRecord) -> tuple[Verdict, list[NodeReason], list[Relaxation]]:
        """Evaluate one pod against all nodes now: the attempt that would be made, without committing it."""
        state = self._scheduler.cluster
        with TrialAttempt(self._scheduler) as trial_attempt:
            answer = trial_attempt.attempt(SinglePod(record))
            if isinstance(answer, Placed):
                return Verdict("placed", state.columns.names[answer.assignment[0][1]]), [], []
            verdict = verdict_of(answer)
            if not isinstance(answer, Refused) or answer.diagnosis is None or answer.diagnosis.pre_filter is not None:
                return verdict, [], []
            changes = for_pod(state, state.evaluation(record)) if self._relax else []
            kind, _, name = (owner_of_pod(record.pod.metadata) if record.pod is not None else "").partition(" ")
            what = f"{kind.lower()}/{name}" if kind else f"pod/{record.name}"
            return verdict, reasons_of(answer.diagnosis), with_how(changes, what, record.namespace, owned=bool(kind))

    def _member(self, leaf: GroupKey, pod: PodKey) -> Why:
        """Explain a member of a group: the state of the group and the pod's own message."""
        assert self._groups is not None
        record = self._scheduler.pods.records.get(str(pod))
        group = self._groups.forest.named(leaf)
        assert group is not None
        member = group.members[pod]
        state = member.state.name.lower()
        if record is not None and record.node_name and not record.assumed:
            whole = self._placed(record)
            return _with(whole, root=root_key(leaf), levels=levels_of(self._groups, leaf))
        if state in ("running", "succeeded", "failed"):
            where = f"is on node {member.node}" if state == "running" else f"has {state}"
            line = PodLine(pod.name, state, member.node)
            return Why("Pod", pod.namespace, pod.name, root_key(leaf), True, where, pods=[line])
        whole = self._of_group(leaf)
        message = record.last_message if record is not None else ""
        if member.state is MemberState.FOREIGN:
            name = member.pod.spec.scheduler_name
            message = f"is for the scheduler {name} (spec.schedulerName), not for this one; {leaf} does not count it"
        reasons: list[NodeReason] = []
        if record is not None and not record.node_name:
            verdict, reasons, _ = self._attempt(record)
            if verdict.result != "placed" and verdict.message and not whole.scheduled:
                message = message or verdict.message
        line = PodLine(pod.name, state, member.node, record.nominated if record is not None else "", message)
        return _with(
            whole,
            kind="Pod",
            name=pod.name,
            scheduled=False,
            summary=whole.summary
            if whole.queue is not None and whole.queue.place == "search"
            else message or whole.summary,
            node_reasons=reasons,
            pods=[line],
        )

    # ---- groups

    def group(self, key: GroupKey) -> Why:
        if self._groups is None:
            raise Unknown("this scheduler runs without groups (feature gates GenericWorkload and GangScheduling)")
        forest = self._groups.forest
        if forest.named(key) is None:
            tree = forest.group(GroupKey(COMPOSITE, key.namespace, key.name))  # of a PodGroup that has parts
            if key.kind != POD_GROUP or tree is None or not translated_from(tree):
                raise Unknown(f"the scheduler knows no {key.kind} {key.namespace}/{key.name}")
            key = tree.key
        return self._of_group(key)

    def workload(self, namespace: str, name: str) -> list[Why]:
        """Return one item per scheduling unit of a Workload: its groups or implicit groups. NAME/GROUP/KEY selects one
        of the implicit groups."""
        if self._groups is None:
            raise Unknown("this scheduler runs without groups (feature gates GenericWorkload and GangScheduling)")
        forest = self._groups.forest
        if "/" in name:
            parts = [*name.split("/"), ""][:3]
            return [self.group(GroupKey(WORKLOAD, namespace, "/".join(parts)))]
        roots: dict[GroupKey, None] = {}
        for key in sorted(forest.of_workload(namespace, name)):
            roots[forest.resolve(key).root or key] = None
        if not roots and self._scheduler.objects.get(Workload, namespace, name) is None:
            raise Unknown(f"the scheduler knows no Workload {namespace}/{name}")
        return [self._of_group(key) for key in roots]

    def _of_group(self, key: GroupKey) -> Why:
        """Explain a group by its scheduling unit: the last attempt, and the one that would be made now."""
        groups = self._groups
        assert groups is not None
        resolution = groups.forest.resolve(key)
        head = resolution.root or key
        root = groups.root_of(key)
        group = groups.forest.group(key)
        queue = self._queue(root)
        levels = levels_of(groups, head)
        satisfied = group is not None and placed_enough(groups, group) and not groups.under_way(head)
        waiting = len(root.records) if root is not None else 0
        last = now = None
        changes: list[Relaxation] = []
        if resolution.root is not None:
            failure = groups.failure(root_key(head))
            if failure is not None:
                proof = proof_of(failure.outcome.certificate) if failure.outcome is not None else None
                result = failure.outcome.verdict.value if failure.outcome is not None else "refused"
                result = "rules" if failure.rules else result
                steps = failure.outcome.expansions if failure.outcome is not None else 0
                last = Verdict(result, failure.message, proof, steps, failure.at, failure.reserved)
            tree = groups.forest.group(head)
            if tree is not None and root is not None and waiting and queue.place not in ("gated", "search"):
                now, changes = self._try(groups.tree(root, tree))
                owner = owner_of(groups.forest, tree)
                changes = with_how(changes, applied_object(owner, tree), head.namespace, owned=bool(owner))
        if now is not None and now.result != "placed":
            queue = self._queue(root, proof=now.proof or (last.proof if last is not None else None))
        below = sum(leaf.counts[MemberState.PENDING] for leaf in groups.forest.leaves(key))
        summary = self._summary(key, group, resolution.message, queue, last, now, below, satisfied)
        waits = (not satisfied or below > 0) and (now is None or now.result != "placed")
        blockers = self._group_blockers(key) if waits else []
        return Why(
            kind=key.kind,
            namespace=key.namespace,
            name=key.name,
            root=root_key(head),
            scheduled=satisfied,
            summary=summary,
            headline=self._held(root) or (self._group_headline(key, root, now or last, blockers) if waits else ""),
            blockers=blockers,
            priority=groups.forest.priority(head) if groups.forest.group(head) is not None else 0,
            queue=queue,
            levels=levels,
            last=last,
            now=now,
            nodes=self._scheduler.columns.count,
            preemption=self._preempting(root_key(head)),
            run_time=self._run_time(key),
            relaxations=changes,
            pods=pods_of(groups, key, self._scheduler.pods.records),
            pod_count=sum(len(leaf.members) for leaf in groups.forest.leaves(key)),
            hints=[
                *filter(None, [groups.members.statuses.policies.refused(key)]),
                *hints.for_group(groups.forest, key, self._scheduler.pods.records.values()),
                *hints.unconfirmed_ends(groups.forest, key, self._scheduler.columns),
                *(hints.of_others(self._scheduler, root.priority, root.records) if root is not None and waits else ()),
                *(hints.of_incomplete(self._scheduler.nominations, groups.forest, key) if root is None else ()),
                *(for_devices(self._scheduler.indexes.devices, root.records.values()) if root and waits else ()),
            ],
        )

    def _run_time(self, key: GroupKey) -> str:
        """Say how long the pods of a group are expected to run, whether they wait or run."""
        assert self._groups is not None
        records = self._scheduler.pods.records
        pods = (str(pod) for leaf in self._groups.forest.leaves(key) for pod in leaf.members)
        return self._scheduler.starts.times.run_times.in_words([records[pod] for pod in pods if pod in records])

    def _group_blockers(self, key: GroupKey) -> list[str]:
        assert self._groups is not None
        records = self._scheduler.pods.records
        members = (records.get(str(pod)) for leaf in self._groups.forest.leaves(key) for pod in leaf.members)
        return self._blockers([record for record in members if record is not None and not record.node_name])

    def _blockers(self, records: Sequence[PodRecord]) -> list[str]:
        return blocker_texts(self._scheduler.cluster, self._scheduler.cluster.forest, records)

    def _group_headline(
        self, key: GroupKey, unit: SchedulingUnit | None, verdict: Verdict | None, blockers: list[str]
    ) -> str:
        assert self._groups is not None
        if blockers:
            return sentence_case(blockers[0])
        if unit is None or unit.queue_name is QueueName.NOWHERE:
            forest = self._groups.forest
            root = forest.resolve(key).root or key
            known = forest.named(key) if forest.group(root) is None else None
            if sentence := missing_members(known) if known is not None else missing_in_tree(forest, root)[1]:
                return sentence
            if message := forest.resolve(key).message:
                return sentence_case(message)
        if verdict is not None and verdict.result == "placed":
            return "Fits now; it is tried when its turn comes"
        shapes = [record.shape for record in unit.records.values()] if unit is not None else []
        if verdict is not None and verdict.proof is not None:
            return of_group(verdict.proof, rules_of(self._scheduler.cluster, shapes), verdict.reserved)
        if verdict is not None and verdict.result == "rules":
            return rules_sentence(self._groups.forest, unit.records.values() if unit is not None else ())
        return ""

    def _try(self, tree: GroupTree) -> tuple[Verdict, list[Relaxation]]:
        """Make the attempt that would be made now, without committing it."""
        scheduler = self._scheduler
        with TrialAttempt(scheduler) as trial_attempt:
            answer = trial_attempt.attempt(tree)
            if not self._relax or not isinstance(answer, Refused):
                return verdict_of(answer), []
            changes = relaxations(scheduler.cluster, tree.group, answer, scheduler.attempts.group_plugins(tree))
        return verdict_of(answer), changes + enough_nodes(scheduler, tree)

    def _summary(
        self,
        key: GroupKey,
        group: Group | None,
        missing: str,
        queue: QueuePlace,
        last: Verdict | None,
        now: Verdict | None,
        waiting: int,
        satisfied: bool,
    ) -> str:
        assert self._groups is not None
        if satisfied and group is not None and group.spec is not None:
            return self._scheduled(group, group.spec.minimum, waiting)
        if queue.place == "gated":
            return self._groups.conditions.failure(key) or queue.message
        if missing:
            return missing
        if queue.place == "search":
            slices = self._scheduler.searches.slices(root_key(self._groups.forest.resolve(key).root or key))
            return f"the search for a placement continues: {slices} slices so far; other units are served in between"
        if now is not None and now.result == "placed":
            return "fits now; it is tried when its turn comes"
        if group is not None and group.spec is not None and self._groups.conditions.is_true(key):
            health = self._groups.members.health
            state = health.state(group)
            return f"{state}: {health.message(group, state)}"
        if failure := self._groups.conditions.failure(key):
            return failure  # the same text as in the object's condition
        for verdict in (last, now):
            if verdict is not None and verdict.message:
                return verdict.message
        if self._groups.under_way(self._groups.forest.resolve(key).root or key):
            return "its pods are being bound"
        if group is not None and group.spec is not None and not group.ready:
            return self._groups.forest.quorum(key).message
        return "waiting for its first attempt"

    def _scheduled(self, group: Group, minimum: int, waiting: int) -> str:
        assert self._groups is not None
        health = self._groups.members.health
        state = health.state(group)
        if state.phase not in HEALTHY:
            return f"{state}: {health.message(group, state)}"
        text = f"{scheduled(group.key, minimum)} ({state})"
        more = "1 more pod waits" if waiting == 1 else f"{waiting} more pods wait"
        return f"{text}; {more}" if waiting else text

    # ---- parts of an answer

    def history(self, item: Why) -> list[HistoryEntry]:
        """Return the history of the scheduling unit, and that of the pod if the query is about a pod."""
        keys = {item.root: item.root if item.kind == "Pod" else ""}
        if item.kind == "Pod":
            keys[f"{item.namespace}/{item.name}"] = ""
        notes = [(note, of) for key, of in keys.items() for note in self._scheduler.history.of(key)]
        record = self._scheduler.pods.records.get(f"{item.namespace}/{item.name}") if item.kind == "Pod" else None
        if record is not None:
            notes.append((Note(record.created, "asked for a node", ""), ""))
        notes.sort(key=lambda entry: entry[0].time)
        return [HistoryEntry(rfc3339(note.time), note.what, note.detail, note.times, of) for note, of in notes]

    def _queue(
        self, root: SchedulingUnit | None, reasons: Sequence[str] = (), proof: Proof | None = None
    ) -> QueuePlace:
        """Describe where a unit waits. `reasons` (of nodes) or `proof`: why it does not fit, if known, most frequent
        first."""
        if root is None or root.queue_name is QueueName.NOWHERE:
            return QueuePlace("none")
        equivalence_class = root.equivalence_class
        position, until = 0, ""
        waits: list[str] = []
        gate, message = root.gate if root.queue_name is QueueName.GATED else ("", "")
        if root.queue_name is QueueName.ACTIVE:
            ahead = [other for other, place in self._scheduler.queue.places() if place is QueueName.ACTIVE]
            position = 1 + sum(other.entry[:2] < root.entry[:2] for other in ahead)
        elif root.queue_name is QueueName.BACKOFF:
            until = rfc3339(root.expiry)
        elif root.queue_name is QueueName.WAITING and equivalence_class is not None:
            until = rfc3339(equivalence_class.deadline)
            needs = equivalence_class.needs
            named = reasons or proof is not None or not equivalence_class.wakes & _OBJECTS
            waits = [self._change(root, needs, reasons, proof)] if needs is not None and named else []
            known = (Wake.NODE_ADDED, Wake.NODE_CHANGED) if _ANY_NODE in waits else ()
            waits += [text for bit, text in _EVENTS.items() if bit & equivalence_class.wakes and bit not in known]
        overtaken = self._scheduler.starts.text(root)
        return QueuePlace(root.queue_name.value, position, root.attempts, until, waits, gate, message, overtaken)

    def _change(self, root: SchedulingUnit, needs: Needs, reasons: Sequence[str], proof: Proof | None) -> str:
        """Describe the node change that is waited for. Names only the requested resources that are missing."""
        short: set[str] = set()
        if proof is not None:
            while proof.inner is not None:
                proof = proof.inner
            if proof.key:
                return f"a {domain_word(proof.key)} has room for it"
            reasons = [out.reason for out in proof.ruled_out]
            short = {proof.limiting} - {""}
        short |= {reason.removeprefix(INSUFFICIENT) for reason in reasons if reason.startswith(INSUFFICIENT)}
        if DEVICES in short:
            return "devices that its claims ask for are free"
        names = self._scheduler.columns.resource_names
        forest = self._groups.forest if self._groups is not None else None
        needs = hints.lacking(self._scheduler.columns, forest, root.records.values(), needs)
        missing = tuple((rid, value) for rid, value in needs if names[rid] in short)
        amounts = self._amounts(missing or (() if reasons else needs))
        return f"a node has {amounts} free" if amounts else _ANY_NODE

    def _amounts(self, needs: Needs) -> str:
        names = self._scheduler.columns.resource_names
        parts = [f"{amount_word(names[rid], value)} {names[rid]}" for rid, value in needs if names[rid] != "pods"]
        return " and ".join(parts)

    def _preempting(self, root: str) -> Preempting | None:
        plan = self._scheduler.unit_lifecycle.plan_of(root)
        if plan is None:
            return None
        return Preempting(sorted(plan.victims), plan.size, sorted(plan.nodes), plan.text)


def reasons_of(diagnosis: Diagnosis) -> list[NodeReason]:
    """Return the filter reasons with the number of nodes, most nodes first."""
    counts: dict[tuple[str, str, bool], int] = {}
    for plugin, finding in diagnosis.findings:
        key = (plugin, finding.reason, not finding.unresolvable)
        counts[key] = counts.get(key, 0) + len(finding.rows)
    found = [NodeReason(reason, nodes, plugin, helps) for (plugin, reason, helps), nodes in counts.items()]
    return sorted(found, key=lambda reason: (-reason.nodes, reason.reason))


def _with(value: Why, **changes: object) -> Why:
    return msgspec.structs.replace(value, **changes)
