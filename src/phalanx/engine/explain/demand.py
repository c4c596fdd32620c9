"""Compute which units lack nodes and which nodes are sufficient: the demand for an autoscaler.

Units are tried in queue order. A unit that fits, also by preemption, keeps its place in the trial, so that room is
counted once. For a unit that does not fit, nodes of known shapes are added until the whole unit fits; they stay for
later units. A unit that no number of known nodes helps makes no demand.

The trials change the order in which rows are reused, so use this in a process that answers one query and ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from math import ceil
from typing import TYPE_CHECKING

from phalanx.engine.explain.device_table import asked_devices
from phalanx.engine.explain.new_devices import NewDevices
from phalanx.engine.explain.node_pools import DeclaredPool, NodePool, pools_of
from phalanx.engine.explain.pending import PendingReasons
from phalanx.engine.explain.relax import type_words
from phalanx.engine.explain.trial import TrialAttempt
from phalanx.engine.explain.values import GroupDemand, NodeDemand, NodesNeeded, PodDemand, Relaxation, ShapeDemand
from phalanx.engine.placement.outcome import domain_phrase, plural
from phalanx.engine.scheduling.attempt.answers import Answer, Cause, NominatedAfterPreemption, Placed, Refused
from phalanx.engine.scheduling.attempt.attempt import LACKS_ROOM
from phalanx.engine.scheduling.queue.units import (
    AttemptUnit,
    GroupTree,
    QueueName,
    SchedulingUnit,
    SinglePod,
    UnitState,
)
from phalanx.engine.state.records import PodRecord
from phalanx.engine.state.requests import CPU, amount, is_device
from phalanx.model.objects import Node, ResourceSlice

if TYPE_CHECKING:
    from phalanx.engine.scheduling.scheduler import Scheduler

MOST_UNITS = 500  # units tried per answer
MOST_NODES = 2048  # nodes added for one unit
MOST_DOMAINS = 64  # domains tried per unit and shape
MOST_DROPS = 64  # up to this number, each node is checked for necessity
_WAITS = (QueueName.ACTIVE, QueueName.BACKOFF, QueueName.WAITING, QueueName.SEARCH)


Amounts = dict[str, float]  # in the unit of the engine's columns: millicores, bytes, devices
Candidates = Sequence[tuple[NodePool, Node]]  # nodes that do not exist, each with its pool


def demand(scheduler: Scheduler, declared: Sequence[DeclaredPool] = ()) -> NodeDemand:
    """Return what every waiting unit lacks. `declared`: nodes that may be created; without any, the existing types."""
    devices = NewDevices(scheduler.indexes.devices.inventory, scheduler.objects.all(ResourceSlice))
    for pool in declared:
        devices.declare(pool.slices)
    try:
        with TrialAttempt(scheduler) as kept:
            return _Demand(scheduler, declared, kept, devices).answer()
    finally:
        devices.withdraw()


def enough_nodes(scheduler: Scheduler, target: AttemptUnit) -> list[Relaxation]:
    """Return the smallest number of nodes like existing ones, with the same devices, with which a unit with claims
    fits."""
    if not any(record.shape.claims for record in target.records):
        return []
    devices = NewDevices(scheduler.indexes.devices.inventory, scheduler.objects.all(ResourceSlice))
    try:
        with TrialAttempt(scheduler) as kept:
            return _Demand(scheduler, (), kept, devices).relaxation(target)
    finally:
        devices.withdraw()


def unused(
    scheduler: Scheduler, declared: Sequence[DeclaredPool], but: Collection[str] = ()
) -> tuple[list[str], list[str]]:
    """Return the declared nodes without pods and nominations, and which of them are cordoned. `but`: needed nodes."""
    columns = scheduler.columns
    needed = {name for name, _ in scheduler.nominations.all()}.union(but)
    names = (node.metadata.name for pool in declared for node in pool.nodes)
    rows = {name: columns.row_of[name] for name in names if name in columns.row_of and name not in needed}
    idle = [name for name, row in rows.items() if not columns.pods[row]]
    return idle, [name for name in idle if columns.unschedulable[rows[name]]]


class _Demand:
    def __init__(
        self, scheduler: Scheduler, declared: Sequence[DeclaredPool], kept: TrialAttempt, devices: NewDevices
    ) -> None:
        self._scheduler = scheduler
        self._devices = devices
        self._columns = scheduler.columns
        self._kept = kept
        self._declared = declared
        self._pools: list[NodePool] = []
        self._number = 0  # number of the next node without a declared name
        self._used: set[str] = set()  # nodes used by waiting units
        self._reasons: dict[str, str] = {}  # by unit, with the nodes that exist

    def answer(self) -> NodeDemand:
        units = self._scheduler.queue.units.values()
        waiting = [unit for unit in units if unit.queue_name in _WAITS and unit.state is UnitState.QUEUED]
        waiting.sort(key=lambda unit: (-unit.priority, unit.queued_at, unit.order))
        looked, left = waiting[:MOST_UNITS], len(waiting) - MOST_UNITS
        targets = [(unit, target) for unit in looked if (target := self._target(unit)) is not None]
        pending = PendingReasons(self._scheduler)
        self._reasons = {unit.key: pending.of(unit).headline for unit, _ in targets}
        self._pools = pools_of(self._columns, self._declared, filter(None, (_key_of(target) for _, target in targets)))
        found = [made for unit, target in targets if (made := self._of(unit, target)) is not None]
        notes = [f"{left} more units wait and were not checked"] if left > 0 else []
        idle, cordoned = unused(self._scheduler, self._declared, self._used)
        return NodeDemand(found, _by_shape(found), idle, cordoned, notes)

    def relaxation(self, target: AttemptUnit) -> list[Relaxation]:
        """Return the change "more nodes" if nodes of one shape alone would make the unit fit; [] otherwise."""
        key = _key_of(target)
        self._pools = pools_of(self._columns, (), filter(None, [key]))
        nodes = self._cheapest(target, 1)
        if not nodes or len({pool.name for pool, _ in nodes}) > 1:
            return []
        pool, domain = nodes[0][0], nodes[0][1].metadata.labels.get(key, "")
        like = pool.like(key, domain) or pool.example
        where = f" {domain_phrase(key)} {domain}" if domain else ""
        text = f"{plural(len(nodes), 'more free node')} {type_words(like)}{where} would do"
        return [Relaxation("nodes", text, True, True, to=f"{len(nodes)} {like.metadata.name}")]

    def _target(self, unit: SchedulingUnit) -> AttemptUnit | None:
        if not unit.records:
            return None
        if unit.kind == "Pod":
            return SinglePod(unit.record)
        members = self._scheduler.groups.members
        group = members.group_of(unit)
        return members.tree(unit, group) if group is not None else None

    def _of(self, unit: SchedulingUnit, target: AttemptUnit) -> GroupDemand | None:
        held = self._scheduler.starts.held.get(unit.key)
        if held is not None and held.start is not None:
            return None  # running pods will end, no node is missing
        with TrialAttempt(self._scheduler) as trial:
            answer = trial.attempt(target, evict=True, gates=False)
            missing = _missing(target, answer)
        if not missing:
            self._keep(target)
            return None
        wanted = len(target.records)
        nodes = self._cheapest(target, wanted)
        if not nodes and isinstance(answer, Refused):
            nodes = self._cheapest(target, 1) if wanted > 1 else ()
            if not nodes:
                return self._described(target, (), self._never(self._reasons[unit.key]))
        self._add(nodes)
        self._number += len(nodes)
        self._keep(target)
        return self._described(target, nodes, "") if nodes else None

    def _never(self, reason: str) -> str:
        what = "of the nodes that may be added" if self._declared else "of nodes of a known type"
        return f"never fits: no number {what} is enough. {reason}"

    def _keep(self, target: AttemptUnit) -> None:
        """Keep a unit placed while later units are tried."""
        answer = self._kept.attempt(target, evict=True, gates=False)
        if not isinstance(answer, Refused):
            self._used.update(self._columns.names[row] for _, row in answer.assignment)

    # ---- trials

    def _add(self, nodes: Candidates) -> None:
        for _, node in nodes:
            self._devices.publish(node.metadata.name)
            self._columns.set_node(node)

    def _fits(self, target: AttemptUnit, nodes: Candidates, wanted: int) -> set[str] | None:
        """Return the names of the nodes that a unit uses if these are added; None: fewer than `wanted` pods fit."""
        columns = self._columns
        mark = columns.journal.mark()
        try:
            self._add(nodes)
            with TrialAttempt(self._scheduler) as trial_attempt:
                answer = trial_attempt.attempt(target, gates=False)
                if not isinstance(answer, Placed) or len(answer.assignment) < wanted:
                    return None
                return {columns.names[row] for _, row in answer.assignment}
        finally:
            columns.journal.rewind(mark)

    def _cheapest(self, target: AttemptUnit, wanted: int) -> Candidates:
        """Return sufficient nodes for `wanted` pods: fewest unrequested devices, then fewest nodes, then smallest
        nodes.

        Shapes are combined only if no single shape is sufficient.
        """
        asked = self._requests(target.records)
        best: Candidates = ()
        for pools in [[pool] for pool in self._pools] + ([self._pools] if len(self._pools) > 1 else []):
            if len(pools) > 1 and best:
                break
            found = self._in_best_domain(target, pools, asked, wanted)
            if found and (not best or self._cost(found, target, asked) < self._cost(best, target, asked)):
                best = found
        return best

    def _in_best_domain(self, target: AttemptUnit, pools: list[NodePool], asked: Amounts, wanted: int) -> Candidates:
        """Try the domains of the unit's topology key, those with the lowest bound on new nodes first."""
        key = _key_of(target)
        domains = list(dict.fromkeys(d for pool in pools for d in pool.domains(key))) if key else [""]
        free = self._free(key, asked)
        most = min(len(target.records), MOST_NODES)
        ranked = []
        for number, domain in enumerate(domains):
            nodes = [(p, n) for p in pools for n in self._candidates(p, key, domain, most)]
            if nodes:
                ranked.append((_at_least(asked, free.get(domain, {}), nodes), number, domain, nodes))
        best: Candidates = ()
        empty: set[int] = set()  # sizes of tried empty domains: equal sizes give equal results
        for least, _, domain, nodes in sorted(ranked, key=lambda each: each[:2])[:MOST_DOMAINS]:
            if best and least >= len(best):
                break
            if domain not in free:
                if len(nodes) in empty:
                    continue
                empty.add(len(nodes))
            found = self._fewest(target, pools, nodes, wanted)
            if found and (not best or len(found) < len(best)):
                best = found
        return best

    def _request(self, record: PodRecord) -> Amounts:
        names = self._columns.resource_names
        return {names[rid]: value for rid, value in record.shape.requests if value and names[rid] != "pods"}

    def _requests(self, records: Sequence[PodRecord]) -> Amounts:
        """Return what the pods request together."""
        total: Amounts = {}
        for record in records:
            for name, value in self._request(record).items():
                total[name] = total.get(name, 0.0) + value
        return total

    def _candidates(self, pool: NodePool, key: str, domain: str, most: int) -> list[Node]:
        """Return nodes of a pool that may be created in a domain, and expect their devices."""
        found = pool.candidates(key, domain, most, self._number)
        new = [node for node in found if node.metadata.name not in self._columns.row_of]
        if (like := pool.like(key, domain)) is not None:
            for node in new:
                self._devices.expect(node.metadata.name, like.metadata.name)
        return new

    def _free(self, key: str, asked: Amounts) -> dict[str, Amounts]:
        """Return the free amounts of the requested resources in every domain of a key."""
        columns = self._columns
        rids = {name: columns.resources[name] for name in asked if name in columns.resources}
        found: dict[str, Amounts] = {}
        for row in columns.row_of.values():
            node = columns.nodes[row]
            domain = node.metadata.labels.get(key) if key and node is not None else ""
            if domain is None or columns.unschedulable[row]:
                continue
            at = found.setdefault(domain, dict.fromkeys(asked, 0.0))
            for name, rid in rids.items():
                at[name] += max(0.0, float(columns.alloc_cell[rid][row] - columns.used_cell[rid][row]))
        return found

    def _fewest(self, target: AttemptUnit, pools: list[NodePool], nodes: Candidates, wanted: int) -> Candidates:
        """Return the fewest of these nodes that are sufficient: a prefix of every pool, without unused nodes."""
        used = self._fits(target, nodes, wanted)
        if used is None:
            return ()
        parts = {pool.name: [each for each in nodes if each[0] is pool] for pool in pools}
        for name, part in parts.items():
            others = [each for other, rest in parts.items() if other != name for each in rest]
            low, high = -1, len(part)  # `high` nodes are sufficient, `low` are not
            while high - low > 1:
                middle = (low + high) // 2
                found = self._fits(target, [*others, *part[:middle]], wanted)
                if found is None:
                    low = middle
                else:
                    used, high = found, middle
            parts[name] = part[:high]
        chosen = [each for part in parts.values() for each in part if each[1].metadata.name in used]
        if len(chosen) <= MOST_DROPS:
            for each in reversed(chosen):
                without = [other for other in chosen if other is not each]
                if self._fits(target, without, wanted) is not None:
                    chosen = without
        return chosen

    def _cost(self, nodes: Candidates, target: AttemptUnit, asked: Amounts) -> tuple[float, int, float]:
        """Return what an autoscaler would rather not create: devices that no pod asks for, nodes, CPUs."""
        unasked = sum(
            _offered(n, name)
            for _, n in nodes
            for name in n.status.allocatable
            if is_device(name) and name not in asked
        )
        if not any(record.shape.claims for record in target.records):
            unasked += sum(self._devices.count(node.metadata.name) for _, node in nodes)
        return unasked, len(nodes), sum(_offered(node, CPU) for _, node in nodes)

    # ---- values

    def _described(self, target: AttemptUnit, nodes: Candidates, message: str) -> GroupDemand:
        key = _key_of(target)
        kind, namespace, name = target.key.split("/", 2)
        state = self._scheduler.indexes.devices
        alike = Counter(
            (
                tuple(sorted(self._request(record).items())),
                tuple(sorted(_selector(record).items())),
                tuple(sorted(asked_devices(state, record.shape).items())),
            )
            for record in target.records
        )
        requests = [
            PodDemand(count, {name: _text(name, value) for name, value in amounts}, dict(selector), dict(devices))
            for (amounts, selector, devices), count in alike.items()
        ]
        by_place: dict[tuple[str, str], list[tuple[NodePool, Node]]] = {}
        for pool, node in nodes:
            by_place.setdefault((pool.name, node.metadata.labels.get(key, "") if key else ""), []).append((pool, node))
        needed = [
            NodesNeeded(
                shape=shape,
                count=len(some),
                resources={name: str(value) for name, value in some[0][1].status.allocatable.items()},
                domain=domain,
                nodes=[node.metadata.name for pool, node in some if pool.nodes],
            )
            for (shape, domain), some in by_place.items()
        ]
        return GroupDemand(kind, namespace, name, target.priority, len(target.records), requests, key, needed, message)


def _missing(target: AttemptUnit, answer: Answer) -> bool:
    """Return True if only nodes are missing: not members, gates or a plugin's consent, and preemption does not help."""
    if isinstance(answer, NominatedAfterPreemption):
        return False
    if isinstance(answer, Placed):
        return len(answer.assignment) < len(target.records)
    return answer.cause in LACKS_ROOM and not (answer.cause is Cause.EXTRAS and answer.hopeless)


def _key_of(target: AttemptUnit) -> str:
    """Return the topology key that requires one domain for the whole unit; "": none."""
    spec = target.group.spec if isinstance(target, GroupTree) else None
    return (spec.topology_key or "") if spec is not None else ""


def _offered(node: Node, resource: str) -> float:
    try:
        return amount(resource, node.status.allocatable.get(resource, 0))
    except ValueError:
        return 0.0


def _at_least(asked: Amounts, free: Amounts, nodes: Candidates) -> int:
    """Return a lower bound on the number of additional nodes."""
    largest = {name: max(_offered(node, name) for _, node in nodes) for name in asked}
    short = ((asked[name] - free.get(name, 0.0), size) for name, size in largest.items() if size > 0)
    return max([1, *(ceil(lack / size) for lack, size in short if lack > 0)])


def _selector(record: PodRecord) -> dict[str, str]:
    return dict(record.pod.spec.node_selector or {}) if record.pod is not None else {}


def _text(resource: str, value: float) -> str:
    return (
        f"{round(value)}m"
        if resource == CPU and value % 1000
        else str(round(value / 1000 if resource == CPU else value))
    )


def _by_shape(groups: Sequence[GroupDemand]) -> list[ShapeDemand]:
    """Return the sum of all groups by shape and domain."""
    totals: dict[tuple[str, str, str], list[int]] = {}
    resources: dict[str, dict[str, str]] = {}
    for group in groups:
        for nodes in group.nodes:
            total = totals.setdefault((nodes.shape, group.topology_key, nodes.domain), [0, 0])
            total[0] += nodes.count
            total[1] += 1
            resources[nodes.shape] = nodes.resources
    return [ShapeDemand(shape, count, many, resources[shape], key, domain)
            for (shape, key, domain), (count, many) in sorted(totals.items())]  # fmt: skip
