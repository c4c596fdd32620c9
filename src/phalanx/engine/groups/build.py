"""Build a placement problem from a group tree and the columns. Arrays that are not changed are not copied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.framework.evaluation import Evaluation
from phalanx.engine.groups.expected_pods import ExpectedPods, is_reserved_for
from phalanx.engine.groups.rank_order import NO_RANKS, Ranks, in_rank_order
from phalanx.engine.placement.outcome import plural
from phalanx.engine.placement.problem import Composite, Floats, Ints, Leaf, PlacementProblem, ShapeRow, Subtree
from phalanx.engine.slices import in_slices, worked
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.pod_rules import ANTI, terms_of_shape
from phalanx.engine.state.records import PodRecord
from phalanx.engine.state.shapes import Shape
from phalanx.model.gates import COUNTS_OF_BASIC
from phalanx.model.groups import Group, GroupKey
from phalanx.model.groups.group import ON_NODE, MemberState
from phalanx.model.groups.keys import HOSTNAME, TOPOLOGY_KEYS
from phalanx.model.groups.policy import DEFAULT, PACK

UNLIMITED = 1 << 30


def limit(state: ClusterState, group: Group, priority: int) -> int:
    """Return how many more members of a pod group may get nodes now.

    Up to `desired`, as many as fit. Between `desired` and `max`, only while no pending unit of equal or higher priority
    could use the free room. Beyond `max`, none.
    """
    policy, spec = group.policy, group.spec
    if spec is None or not policy.has_counts or not _counts_apply(state, group):
        return UNLIMITED
    most = policy.max_count if policy.max_count is not None else UNLIMITED
    desired = policy.desired_count
    if desired is not None and desired < most:
        if group.placed < max(desired, spec.minimum):
            most = max(desired, spec.minimum)
        elif state.contested(group.key, priority):
            most = group.placed
    return max(0, most - group.placed)


def _counts_apply(state: ClusterState, group: Group) -> bool:
    """Return whether counts apply. KEP-4671: counts of groups with the Basic policy have their own feature gate."""
    assert group.spec is not None
    return group.spec.gang or state.gates(COUNTS_OF_BASIC)


def surplus(state: ClusterState, group: Group, priority: int) -> str:
    """Return the message why no further member is placed; empty if counts are not the reason."""
    policy = group.policy
    if group.composite or limit(state, group, priority) > 0:
        return ""
    placed = f"{group.key} has {plural(group.placed, 'pod')} placed"
    if policy.max_count is not None and group.placed >= policy.max_count:
        return f"{placed}, and its policy allows {policy.max_count} (counts.max)"
    return (
        f"{placed}, and its policy asks for {policy.desired_count}"
        " (counts.desired): more are placed when no waiting workload of equal or higher priority could use the room"
    )


FEW_SHAPES = 16  # shapes evaluated without yielding to other work


class Unplaceable(Exception):
    """Report that the cluster state contradicts the group's rules; becomes a SchedulerError with this text."""


@dataclass(slots=True)
class Built:
    problem: PlacementProblem
    shapes: list[Shape]
    evaluations: list[Evaluation]
    pending: dict[int, list[PodRecord]]  # id(Leaf) -> its pending pods, in queue order
    part_of: dict[GroupKey, Subtree]
    coupled: bool  # some shape has cross-node rules: the filters must confirm what counting finds
    group_of: dict[int, Group] = field(default_factory=dict)  # id(part) -> group
    reserved: dict[int, dict[int, float]] = field(default_factory=dict)  # row -> resource -> held for others
    has_policies: bool = True  # some group has a policy that is not the default
    ranks: dict[GroupKey, Ranks] = field(default_factory=dict)  # of the pending pods of leaves that have ranks


def build(
    state: ClusterState,
    root: Group,
    pending: Mapping[GroupKey, dict[str, PodRecord]],
    budget: int,
    priority: int,
    outstanding_pods: ExpectedPods | None = None,
    evaluated: Mapping[Shape, Evaluation] | None = None,
    *,
    counted: bool = False,
) -> Built:
    """Build the placement problem of a group tree.

    `outstanding_pods`: expected pods that need room as well. `evaluated`: evaluations made before. `counted`: count
    devices of one shape like a plain resource; only for callers that want a placement without preemption and have
    another search if there is none. Raises PluginFailure and Unplaceable.
    """
    builder = _Builder(state, pending, priority, outstanding_pods or ExpectedPods(), evaluated or {})
    return builder.build(root, budget, counted=counted)


class Capacity:
    """Copy free and used amounts of some resources from the columns on first access.

    A gang of equal pods is placed by counts alone and never needs the copy.
    """

    def __init__(self, columns: Columns, rids: list[int]) -> None:
        self._columns = columns
        self._rids = rids
        self.nodes = columns.n

    @cached_property
    def used(self) -> Floats:
        return self._columns.used[self._rids, : self._columns.n]

    @cached_property
    def free(self) -> Floats:
        free: Floats = self._columns.alloc[self._rids, : self._columns.n] - self.used
        return np.maximum(free, 0.0, out=free)

    def copied(self) -> None:
        """Copy the amounts now instead of on first access."""
        assert self.free.shape == self.used.shape


class Given(msgspec.Struct, frozen=True, eq=False):
    """Hold free and used amounts that were replaced (`dataclasses.replace`)."""

    free: Floats
    used: Floats | None

    @property
    def nodes(self) -> int:
        return int(self.free.shape[1])


_ELSEWHERE: Floats = np.zeros((0, 0))


class BorrowedProblem(PlacementProblem):
    """A placement problem over the columns as they are now."""

    def __init__(self, capacity: Capacity | None = None, **parts: Any) -> None:
        self._capacity = capacity or Given(parts.pop("free", None), parts.pop("used", None))
        super().__init__(free=_ELSEWHERE, **parts)

    @property
    def free(self) -> Floats:
        return self._capacity.free

    @free.setter
    def free(self, value: Floats) -> None:
        """Ignore the value: the constructor sets the capacity."""

    @property
    def used(self) -> Floats | None:
        return self._capacity.used if self.domains else None

    @used.setter
    def used(self, value: Floats | None) -> None:
        """Ignore the value: the constructor sets the capacity."""

    @property
    def total(self) -> Floats:
        used = self._capacity.used
        return self._capacity.free if used is None else self._capacity.free + used

    @property
    def node_count(self) -> int:
        return self._capacity.nodes


class _Builder:
    def __init__(
        self,
        state: ClusterState,
        pending: Mapping[GroupKey, dict[str, PodRecord]],
        priority: int,
        outstanding_pods: ExpectedPods,
        evaluated: Mapping[Shape, Evaluation],
    ) -> None:
        self._cluster = state
        self._outstanding_pods = outstanding_pods
        self._evaluated = evaluated
        self._own = False  # arrays are copied
        self._packed = False  # ranks of some group are placed with Pack
        self._columns: Columns = state.columns
        self._waiting = pending
        self._priority = priority
        self._numbers: dict[Shape, int] = {}
        self._records: dict[Shape, PodRecord] = {}
        self._keys: dict[str, None] = {}
        self._pending: dict[int, list[PodRecord]] = {}
        self._part_of: dict[GroupKey, Subtree] = {}
        self._group_of: dict[int, Group] = {}
        self._held: dict[int, dict[int, float]] = {}
        self._ranks: dict[GroupKey, Ranks] = {}
        self._has_policies = False

    def build(self, root: Group, budget: int, *, counted: bool) -> Built:
        part = self._with_others(self._subtree(root))
        columns, n = self._columns, self._columns.n
        shapes = list(self._numbers)
        evaluations = [self._evaluation(shape) for shape in shapes]
        # Devices that no member requests are counted too: pods without devices should avoid their nodes.
        asked = {rid for shape in shapes for rid, _ in shape.requests}
        rids = sorted(asked.union(rid for rid in columns.devices() if columns.alloc[rid, :n].any()))
        capacity = Capacity(columns, rids)
        reserved = bool(self._cluster.nominations) and self._reserved(capacity.free, rids)
        domains = {}
        names = {}
        for key in self._keys:
            column = columns.label(key)
            domains[key] = column.ids[:n] - 1  # the columns' 0 is the problem's -1: no label, no domain
            names[key] = column.values[1:]
        # Devices are counted only for one shape: members of two shapes may request the same devices.
        counted = counted and not reserved and sum(bool(shape.claims) for shape in shapes) <= 1
        coupled = any(each.reaches_beyond and not (counted and each.counted) for each in evaluations)
        # An interruptible search needs its own copy of the arrays; a gang of equal pods is placed without interruption.
        self._own = in_slices() and (coupled or len(shapes) > 1 or bool(self._keys))
        if self._own:
            capacity.copied()
        problem = BorrowedProblem(
            capacity,
            resources=[columns.resource_names[rid] for rid in rids],
            shapes=[self._row(s, e, rids, reserved, coupled) for s, e in zip(shapes, evaluations, strict=True)],
            root=part,
            domains=domains,
            domain_names=names,
            conflicts=self._conflicts(shapes),
            order=self._order(),
            budget=budget,
            rows=None if columns.count == columns.n else np.flatnonzero(columns.alive[: columns.n]),
        )
        return Built(
            problem,
            shapes,
            evaluations,
            self._pending,
            self._part_of,
            coupled,
            self._group_of,
            self._held,
            self._has_policies,
            self._ranks,
        )

    # ---- the tree

    def _with_others(self, part: Subtree) -> Subtree:
        """Add groups of other workloads that have started: their expected pods are placed too, but never bound."""
        others = []
        for group in self._outstanding_pods.others:
            try:
                others.append(self._subtree(group))
            except Unplaceable:  # its members contradict its rules: it cannot be completed
                continue
        return Composite("", 1 + len(others), (part, *others), None, None, -1) if others else part

    def _subtree(self, group: Group) -> Subtree:
        """Return the subtree of a group for the placement search, with the demand of each leaf by pod shape."""
        spec, policy = group.spec, group.policy
        assert spec is not None
        self._has_policies = self._has_policies or policy is not DEFAULT
        preferred = spec.preferred_key or (self._finest_key() if policy.rank_placement == PACK else None)
        for key in (spec.topology_key, preferred):
            if key is not None:
                self._keys[key] = None
        part: Subtree
        if group.composite:
            children = tuple(self._subtree(child) for child in group.sorted_children() if child.spec is not None)
            part = Composite(
                str(group.key), spec.minimum, children, spec.topology_key, spec.preferred_key, self._pinned(group)
            )
        else:
            records, ranks = in_rank_order(self._waiting.get(group.key, {}).values(), policy)
            if policy is not DEFAULT and policy.has_counts:
                records = records[: limit(self._cluster, group, self._priority)]
            whole = self._outstanding_pods.wholes.get(group.key)
            records += whole.records if whole is not None else []
            demand: dict[int, int] = {}
            for record in records:
                number = self._numbers.setdefault(record.shape, len(self._numbers))
                self._records.setdefault(record.shape, record)
                demand[number] = demand.get(number, 0) + 1
            part = Leaf(
                str(group.key),
                spec.minimum if whole is None else max(spec.minimum, group.placed + len(records)),
                tuple(demand.items()),
                group.placed,
                spec.topology_key,
                preferred if preferred != spec.topology_key else None,
                self._pinned(group),
            )
            self._pending[id(part)] = records
            if ranks is not NO_RANKS:
                self._ranks[group.key] = ranks
        self._part_of[group.key] = part
        self._group_of[id(part)] = group
        return part

    def _finest_key(self) -> str | None:
        """Return the finest topology key, for rank placement Pack.

        Of equally good placements, Pack prefers one domain of this key; otherwise it takes nodes in the order of
        domains.
        """
        self._packed = True
        return next((key for key in reversed(TOPOLOGY_KEYS) if len(self._columns.label(key).values) > 1), None)

    def _order(self) -> Ints | None:
        """Return (N,) the rank of each node among equals, domain by domain, if members are packed by rank."""
        if not self._packed:
            return None
        n = self._columns.n
        nodes = np.arange(n)
        inwards = np.array([nodes, *(self._columns.label(key).ids[:n] for key in reversed(TOPOLOGY_KEYS))])
        order = np.empty(n, dtype=np.int64)
        order[np.lexsort(inwards)] = nodes
        return order

    def _pinned(self, group: Group) -> int:
        """Return the domain that running members dictate, or -1."""
        assert group.spec is not None
        key = group.spec.topology_key
        if key is None:
            return -1
        column = self._columns.label(key)
        found: dict[int, str] = {}
        lost = ""
        for leaf in _leaves(group):
            if not leaf.members_on_nodes:
                continue
            for name, member in leaf.members.items():
                if member.state not in ON_NODE:
                    continue
                row = self._columns.row_of.get(member.node, -1)
                if row < 0:  # its node is gone: the pod is deleted later, unless the node returns
                    if member.state is not MemberState.ENDING:
                        lost = lost or f"pod {name}: node {member.node} is gone"
                    continue
                domain = int(column.ids[row]) - 1
                if domain < 0:
                    raise Unplaceable(f"no topology domain found for pod {name}: node {member.node} has no label {key}")
                found[domain] = column.values[domain + 1]
        if len(found) > 1:
            values = ", ".join(sorted(found.values()))
            raise Unplaceable(
                "cannot determine domain for already scheduled pods: more than 1 domain found for pod group: " + values
            )
        if lost and not found:  # no other member shows the domain, and the group must not be split over two
            raise Unplaceable(f"no topology domain found for {lost}")
        return next(iter(found), -1)

    # ---- shapes

    def _evaluation(self, shape: Shape) -> Evaluation:
        evaluation = self._evaluated.get(shape)
        if evaluation is None:
            return self._cluster.evaluation(self._records[shape])
        if len(self._numbers) <= FEW_SHAPES:  # more shapes are refreshed one by one, yielding in between (`_row`)
            evaluation.refresh()
        return evaluation

    def _row(self, shape: Shape, evaluation: Evaluation, rids: list[int], reserved: bool, coupled: bool) -> ShapeRow:
        n = self._columns.n
        if self._own and len(self._numbers) > FEW_SHAPES:
            worked(4 + n // 250)
            evaluation.refresh()
        asked = dict(shape.requests)
        cap = evaluation.cap()
        rejected = evaluation.pre_filter() is not None
        mask = np.zeros(n, dtype=np.bool_) if rejected else evaluation.feasible[:n]
        return ShapeRow(
            request=np.array([asked.get(rid, 0.0) for rid in rids]),
            # Trials that place members change the evaluations.
            mask=mask.copy() if coupled or self._own else mask,
            cap=None if cap is None else np.full(n, cap, dtype=np.int64),
            slots=None if reserved or rejected else evaluation.slots(),
            score=evaluation.preferences(),
            claims=bool(shape.claims),
        )

    def _reserved(self, free: Floats, rids: list[int]) -> bool:
        """Subtract room reserved for nominated pods of at least our priority. Return True if any was subtracted."""
        nominations = self._cluster.nominations
        ours = {record.key for records in self._pending.values() for record in records}
        taken = False
        index = {rid: number for number, rid in enumerate(rids)}
        for node, record in nominations.all():
            if record.row >= 0 or record.key in ours or record.priority < self._priority:
                continue
            if is_reserved_for(record, self._part_of):
                continue
            row = self._columns.row_of.get(node, -1)
            if row < 0:
                continue
            held = self._held.setdefault(row, {})
            for rid, amount in record.shape.requests:
                if rid in index:
                    free[index[rid], row] -= amount
                    held[rid] = held.get(rid, 0.0) + amount
                    taken = True
        np.maximum(free, 0.0, out=free)
        return taken

    def _conflicts(self, shapes: list[Shape]) -> frozenset[tuple[int, int]]:
        """Return pairs of shapes that cannot share a node: host ports, anti-affinity by host name."""
        if len(shapes) < 2:
            return frozenset()
        objects = self._cluster.objects
        apart = []
        for shape in shapes:
            apart.append([term for term in terms_of_shape(shape) if term.kind == ANTI and term.key == HOSTNAME])
        found: set[tuple[int, int]] = set()
        if not any(apart) and not any(shape.host_ports for shape in shapes):
            return frozenset()
        for a, first in enumerate(shapes):
            for b in range(a + 1, len(shapes)):
                second = shapes[b]
                ports = first.host_ports and second.host_ports and _clash(first, second)
                if (
                    ports
                    or any(t.selects(second.namespace, second.labels, objects) for t in apart[a])
                    or any(t.selects(first.namespace, first.labels, objects) for t in apart[b])
                ):
                    found.add((a, b))
        return frozenset(found)


def _clash(first: Shape, second: Shape) -> bool:
    for ip_a, protocol_a, port_a in first.host_ports:
        for ip_b, protocol_b, port_b in second.host_ports:
            same = (protocol_a, port_a) == (protocol_b, port_b)
            if same and (ip_a == ip_b or "0.0.0.0" in (ip_a, ip_b)):
                return True
    return False


def _leaves(group: Group) -> list[Group]:
    if not group.composite:
        return [group]
    return [leaf for child in group.sorted_children() for leaf in _leaves(child)]
