"""Answer which pods would be preempted for a pod or a group, without preempting them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from phalanx.engine.explain.ask import Unknown
from phalanx.engine.explain.device_hints import devices_of, freed_by
from phalanx.engine.explain.hints import protected
from phalanx.engine.explain.trial import TrialAttempt
from phalanx.engine.explain.values import NodeShare, PlanAnswer, Price, VictimLine
from phalanx.engine.groups.admission import HeldBy, hold_of
from phalanx.engine.groups.rank_placement import ring_cost_of
from phalanx.engine.placement.outcome import plural
from phalanx.engine.preemption import NO_VICTIMS, Cost, Hopeless, Plan, Planned
from phalanx.engine.preemption.cost import cost_from, provable
from phalanx.engine.preemption.plan import NO_LOWER_PRIORITY
from phalanx.engine.preemption.result import summary
from phalanx.engine.preemption.single_pod import Candidate, Chooser
from phalanx.engine.preemption.victim_index import EvictionUnit, VictimIndex
from phalanx.engine.scheduling.attempt.answers import Cause, NominatedAfterPreemption, Placed, Refused
from phalanx.engine.scheduling.commit.group_units import GroupUnits
from phalanx.engine.scheduling.lifecycle.members import root_key
from phalanx.engine.scheduling.queue.units import SinglePod
from phalanx.engine.state.records import PodRecord
from phalanx.model.groups import WORKLOAD, GroupForest, GroupKey, PodKey

if TYPE_CHECKING:
    from phalanx.engine.scheduling.scheduler import Scheduler

NEVER = "its preemptionPolicy is Never: it waits for room and evicts no pod"
FITS = "fits without an eviction"
NO_ROOM = "evicting pods of lower priority would not make room"


def plan(scheduler: Scheduler, kind: str, namespace: str, name: str) -> PlanAnswer:
    """Return the preemption plan for an object. Raises Unknown."""
    answer = _plan(scheduler, kind, namespace, name)
    unit = scheduler.queue.units.get(answer.root)
    if unit is None or not answer.victims or answer.result != "plan":
        return answer
    return msgspec.structs.replace(answer, waits=scheduler.starts.starts_within_patience(unit))


def _plan(scheduler: Scheduler, kind: str, namespace: str, name: str) -> PlanAnswer:
    groups = scheduler.groups if scheduler.cluster.grouping else None
    if kind == "Pod":
        leaf = groups.forest.leaf_of(PodKey(namespace, name)) if groups is not None else None
        if leaf is None:
            return _pod(scheduler, namespace, name)
    else:
        leaf = GroupKey(kind, namespace, "/".join([*name.split("/"), "", ""][:3]) if kind == WORKLOAD else name)
    if groups is None or groups.forest.named(leaf) is None:
        raise Unknown(f"the scheduler knows no {kind} {namespace}/{name}")
    return _group(scheduler, groups, leaf)


def _under_way(scheduler: Scheduler, root: str) -> PlanAnswer | None:
    found = scheduler.unit_lifecycle.plan_of(root)
    if found is None:
        return None
    victims = [
        VictimLine(f"pod {key}", 1, record.priority if record is not None else 0, "is being evicted")
        for key, record in ((key, scheduler.pods.records.get(key)) for key in sorted(found.victims))
    ]
    text = found.text.partition("\n")[0] or "victims are on their way out"
    return PlanAnswer(root, "underWay", f"{text} ({len(victims)} of {found.size} still there)", victims)


def planned(scheduler: Scheduler, forest: GroupForest, root: str, answer: NominatedAfterPreemption) -> PlanAnswer:
    """Describe the plan that an attempt found: the victims, the reason for each, and the cost."""
    if isinstance(answer.plan, Candidate):
        return _candidate(scheduler, scheduler.preemption.chooser, root, answer.plan)
    ring = _ring_cost(scheduler, forest, answer.assignment)
    return msgspec.structs.replace(_of(scheduler, root, answer.plan, answer), ring_cost=ring)


# ---- pods


def _pod(scheduler: Scheduler, namespace: str, name: str) -> PlanAnswer:
    record = scheduler.pods.records.get(f"{namespace}/{name}")
    if record is None:
        raise Unknown(f"the scheduler knows no pod {namespace}/{name}")
    root = f"pod/{record.key}"
    if record.node_name:
        return PlanAnswer(root, "fits", f"is on node {record.node_name}")
    under_way = _under_way(scheduler, root)
    if under_way is not None:
        return under_way
    with TrialAttempt(scheduler) as trial_attempt:
        answer = trial_attempt.attempt(SinglePod(record), evict=True)
        devices = devices_of(scheduler.indexes.devices, [record])
    if isinstance(answer, Placed):
        return PlanAnswer(root, "fits", FITS, places=_shares(scheduler, answer.assignment), devices=devices)
    if isinstance(answer, NominatedAfterPreemption):
        return planned(scheduler, scheduler.groups.forest, root, answer)
    if answer.diagnosis is None:
        return PlanAnswer(root, "none", answer.message)
    if record.preemption_policy == "Never":
        return PlanAnswer(root, "none", NEVER)
    if not scheduler.profiles[record.scheduler_name].preempts:
        return PlanAnswer(root, "none", "its scheduler profile has no DefaultPreemption plugin")
    if answer.diagnosis.pre_filter is not None:
        return PlanAnswer(root, "hopeless", f"evictions do not help: {answer.diagnosis.pre_filter.message}")
    return _with_protected(scheduler, PlanAnswer(root, "hopeless", NO_ROOM), record.priority)


def _candidate(scheduler: Scheduler, chooser: Chooser, root: str, found: Candidate) -> PlanAnswer:
    node = scheduler.columns.names[found.row]
    why = f"while it stays the pod does not fit on {node}"
    victims = _victims(scheduler, found.units, why)
    pods = sum(line.pods for line in victims)
    price = _price_of(chooser.victim_index, found.units)
    if not victims:
        text = f"room on node {node} is about to be free: pods that are leaving suffice"
        return PlanAnswer(root, "plan", text, places=[NodeShare(node, 1)], cost=price)
    text = f"evict {pods} pod{'s' if pods != 1 else ''} on node {node}"
    bound = _price(cost_from([int(part) for part in found.least]))
    proved = found.proved
    return PlanAnswer(
        root, "plan", text, victims, [NodeShare(node, 1)], price, bound, proved == provable(), proved=list(proved)
    )


# ---- groups


def _group(scheduler: Scheduler, groups: GroupUnits, leaf: GroupKey) -> PlanAnswer:
    head = groups.forest.resolve(leaf).root
    if head is None:
        return PlanAnswer(root_key(leaf), "none", groups.forest.resolve(leaf).message)
    name = root_key(head)
    under_way = _under_way(scheduler, name)
    if under_way is not None:
        return under_way
    group, root = groups.forest.group(head), groups.root_of(head)
    if group is None or root is None or not root.records:
        if any(each.key in groups.waiting_pods for each in groups.forest.leaves(head)):
            return PlanAnswer(name, "none", "waiting for its first attempt")
        return PlanAnswer(name, "fits", "none of its pods is pending")
    hold = hold_of(groups.forest, head)
    if hold is not None and hold.by is not HeldBy.GATES:
        return PlanAnswer(name, "none", hold.message)
    tree = groups.tree(root, group)
    with TrialAttempt(scheduler) as trial_attempt:
        # Also for a group with gated pods, so that the plan can be read before it is carried out.
        answer = trial_attempt.attempt(tree, evict=True, gates=hold is None)
        devices = devices_of(scheduler.indexes.devices, tree.records)
    if isinstance(answer, Placed):
        ring, shares = _ring_cost(scheduler, groups.forest, answer.assignment), _shares(scheduler, answer.assignment)
        return PlanAnswer(name, "fits", FITS, places=shares, ring_cost=ring, devices=devices)
    if isinstance(answer, NominatedAfterPreemption):
        return planned(scheduler, groups.forest, name, answer)
    if answer.hopeless or answer.cause not in (Cause.ROOM, Cause.RULES, Cause.EXTRAS):
        return PlanAnswer(name, "none", answer.message)
    if groups.forest.preemption_policy(head) == "Never":
        return PlanAnswer(name, "none", NEVER)
    if not scheduler.profiles[tree.scheduler_name].preempts:
        return PlanAnswer(name, "none", "no preemption plan: this scheduler evicts no pods for groups")
    return _with_protected(scheduler, _of(scheduler, name, _no_plan(answer)), root.priority)


def _with_protected(scheduler: Scheduler, answer: PlanAnswer, priority: int) -> PlanAnswer:
    """Name groups that cannot be preempted yet, if no plan exists."""
    found = (
        protected(scheduler.preemption.victim_index.minimum_runtime, priority) if answer.result == "hopeless" else []
    )
    return msgspec.structs.replace(answer, summary="; ".join([answer.summary, *found]))


def _no_plan(refused: Refused) -> Planned:
    plan = refused.preemption.plan if refused.preemption is not None else None
    return Hopeless(refused.text) if plan is None or isinstance(plan, Candidate) else plan


def _of(scheduler: Scheduler, name: str, answer: Planned, found: NominatedAfterPreemption | None = None) -> PlanAnswer:
    places = _shares(scheduler, found.assignment) if found is not None else []
    if isinstance(answer, Plan):
        frees = _freed(scheduler, found.units) if found is not None else {}
        victims = [VictimLine(v.name, v.pods, v.priority, v.why, frees.get(v.name, [])) for v in answer.victims]
        text = summary(answer.cost, len(victims)) if victims else FITS
        if not victims and places:
            text = "evicts no further pods: those that are terminating suffice"
        cost, bound = _price(answer.cost), _price(answer.lower_bound)
        proved = list(answer.proved)
        return PlanAnswer(name, "plan", text, victims, places, cost, bound, answer.optimal, answer.expansions, proved)
    if found is not None and found.units:
        # Found by running the filters: no lower bound is known.
        why = "while it stays the pods' rules about each other are not kept"
        victims = _victims(scheduler, found.units, why)
        cost = _price_of(scheduler.preemption.victim_index, found.units)
        pods = cost.pods
        return PlanAnswer(name, "plan", f"evict {plural(pods, 'pod')}", victims, places, cost)
    if isinstance(answer, Hopeless):
        reason = NO_ROOM if answer.reason == NO_LOWER_PRIORITY else answer.reason
        return PlanAnswer(name, "hopeless", reason, expansions=answer.expansions)
    steps = answer.expansions
    return PlanAnswer(name, "gaveUp", f"the search for victims gave up after {steps} expansions", expansions=steps)


def _victims(scheduler: Scheduler, units: Sequence[EvictionUnit], why: str) -> list[VictimLine]:
    frees = _freed(scheduler, units)
    return [VictimLine(unit.name, len(unit.pods), unit.priority, why, frees[unit.name]) for unit in units]


def _freed(scheduler: Scheduler, units: Sequence[EvictionUnit]) -> dict[str, list[str]]:
    """Return the devices that each eviction unit frees, by its name."""
    leaving = [record for unit in units for record in unit.pods.values()]
    return {unit.name: freed_by(scheduler.indexes.devices, unit.pods.values(), leaving) for unit in units}


def _shares(scheduler: Scheduler, assignment: Iterable[tuple[PodRecord, int]]) -> list[NodeShare]:
    counts: dict[str, int] = {}
    for _, row in assignment:
        node = scheduler.columns.names[row]
        counts[node] = counts.get(node, 0) + 1
    return [NodeShare(node, count) for node, count in sorted(counts.items())]


def _ring_cost(scheduler: Scheduler, forest: GroupForest, assignment: Iterable[tuple[PodRecord, int]]) -> int | None:
    """Return the sum of ring costs over the groups of an assignment."""
    members: dict[GroupKey, list[tuple[PodRecord, int]]] = {}
    for record, row in assignment:
        leaf = forest.leaf_of(PodKey(record.namespace, record.name))
        if leaf is not None:
            members.setdefault(leaf, []).append((record, row))
    costs = []
    for leaf, some in members.items():
        group = forest.group(leaf)
        cost = ring_cost_of(scheduler.columns, some, group.policy) if group is not None else None
        if cost is not None:
            costs.append(cost)
    return sum(costs) if costs else None


def _price_of(victim_index: VictimIndex, units: Sequence[EvictionUnit]) -> Price:
    return _price(replace(victim_index.cost(units), work=sum(victim_index.lost(unit) for unit in units)))


def _price(cost: Cost) -> Price:
    return Price(
        budget_violations=cost.budgets,
        highest_priority=None if cost.priority == NO_VICTIMS else cost.priority,
        stopped_pods=cost.stopped,
        pods=cost.pods,
        broken_gangs=cost.gangs,
        workloads=cost.workloads,
        lost_seconds=round(cost.work, 3),
    )
