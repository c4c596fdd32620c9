"""Waiting of refused units: which changes may help each unit.

Pods that no attempt can tell apart share an equivalence class of the queue. Preemption is not retried for a unit while
every placed pod has its priority or a higher one (`placed` keeps the lowest priority).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from phalanx.engine.framework import ClusterChange, Wake
from phalanx.engine.framework.adapters import allows
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.framework.diagnosis import Diagnosis
from phalanx.engine.framework.profile import Profile
from phalanx.engine.framework.traits import traits_of
from phalanx.engine.preemption.victim_index import VictimIndex
from phalanx.engine.scheduling.queue.queue import ROW_WAKES, Queue
from phalanx.engine.scheduling.queue.units import EquivalenceClass, SchedulingUnit
from phalanx.engine.state.records import PodRecord
from phalanx.engine.state.shapes import Shape
from phalanx.model.groups import Group

# Preemption may help after these: a pod of lower priority arrived, a nomination was cleared, or a pod of higher
# priority left a node that has victims on it.
HELPS_AFTER = Wake.POD_PLACED | Wake.POD_GONE | Wake.NODE | Wake.NOMINATION
FEW_CLASSES = 4096  # the table is not cleaned below this size


class QueueingHints(msgspec.Struct, frozen=True):
    """What decides whether a change may help pods of one shape: plugins that rejected it, and preemption."""

    shape: Shape
    profile: Profile
    priority: int
    cross: tuple[Any, ...]  # rejecting plugins whose verdicts depend on other rows
    helpers: tuple[Any, ...]  # PostFilter plugins that may help after some changes
    evicts: Wake  # changes after which preemption may help


class Waiting:
    def __init__(self, state: ClusterState, queue: Queue, victims: VictimIndex) -> None:
        self.cluster = state
        self._columns = state.columns
        self.queue = queue
        self._victims = victims
        self._lowest_priority = 1 << 40  # lowest priority ever placed: a unit at or below it has no victims
        # Classes with their priority: no pod of lower priority is placed, so preemption cannot help them yet.
        self._without_victims: dict[int, tuple[EquivalenceClass, int]] = {}
        self._clean_above = FEW_CLASSES

    def wait(
        self,
        unit: SchedulingUnit,
        record: PodRecord,
        profile: Profile,
        diagnosis: Diagnosis,
        message: str,
        now: float,
        *,
        shared: bool,
        helpful_changes: Wake | None = None,
    ) -> None:
        """Let a unit wait for a change that can make its shape fit.

        `shared`: other pods of the same equivalence class wait with it; `helpful_changes`: see PostFilterResult.
        """
        wakes = Wake.NOTHING
        cross = []
        for name in sorted(diagnosis.plugins):
            plugin = profile.plugins.get(name)
            if plugin is None or plugin in profile.row_filters:
                continue
            cross.append(plugin)
            wakes |= traits_of(plugin).wakes_on
        key = equivalence_key(record) if shared else ("root", unit.key)
        hints, more = self.hints_of(profile, record.shape, record.priority, cross, helpful_changes)
        needs = record.shape.requests if profile.fit_is_strict else ()
        equivalence_class = self.queue.wait(
            unit,
            key,
            wakes | more,
            self._may_help,
            now,
            message=message,
            counts=diagnosis.counts(),
            waits_for=hints,
            needs=needs,
        )
        equivalence_class.plugins = diagnosis.plugins
        self.await_lower_priority(equivalence_class, record.priority)

    def wait_for_victims(self, unit: SchedulingUnit, diagnosis: Diagnosis, message: str) -> None:
        """Let a single pod wait until its victims are gone, or a node has room that is nominated to no other pod.

        Pods of one shape share an equivalence class, so each change is checked once.
        """
        record = unit.record
        shape = record.shape
        self.queue.wait(
            unit,
            ("ongoing", shape.id, record.priority),
            Wake.NODE,
            lambda _, change: self._has_room(shape, record.priority, change),
            self.cluster.now,
            message=message,
            counts=diagnosis.counts(),
            needs=shape.requests,
        )

    def _has_room(self, shape: Shape, priority: int, change: ClusterChange) -> bool:
        """Return True if the changed row has room besides nominations of other pods."""
        columns = self._columns
        if change.row < 0:
            return True  # a node is gone, perhaps the nominated one
        row = change.row
        left = {rid: columns.alloc_cell[rid][row] - columns.used_cell[rid][row] for rid, _ in shape.requests}
        for other in self.cluster.nominations.on(columns.names[change.row]):
            if other.row < 0 and other.priority >= priority:
                for rid, amount in other.shape.requests:
                    if rid in left:
                        left[rid] -= amount
        return all(left[rid] >= amount for rid, amount in shape.requests)

    def hints_of(
        self, profile: Profile, shape: Shape, priority: int, cross: Iterable[Any], helpful_changes: Wake | None = None
    ) -> tuple[QueueingHints, Wake]:
        """Return what a unit waits for, and the changes after which a PostFilter plugin or preemption may help it.

        `helpful_changes`: limits the changes after which preemption is tried.
        """
        helpers = []
        wakes = Wake.NOTHING
        for plugin in profile.post_filters:
            after = traits_of(plugin).helps_after
            if after:
                helpers.append(plugin)
                wakes |= after
        evicts = Wake.NOTHING
        if profile.preempts and priority > self._lowest_priority:
            evicts = HELPS_AFTER if helpful_changes is None else HELPS_AFTER & helpful_changes
        return QueueingHints(shape, profile, priority, tuple(cross), tuple(helpers), evicts), wakes | evicts

    def await_lower_priority(self, equivalence_class: EquivalenceClass, priority: int) -> None:
        """Delay the wakes of a class until the first pod of lower priority is placed, if there is none now."""
        if priority <= self._lowest_priority:
            self._without_victims[id(equivalence_class)] = (equivalence_class, priority)
            if len(self._without_victims) > self._clean_above:
                self._without_victims = {
                    key: entry for key, entry in self._without_victims.items() if entry[0].is_waiting
                }
                self._clean_above = max(FEW_CLASSES, 2 * len(self._without_victims))

    def placed(self, priority: int) -> None:
        """Record the priority of a placed pod: a new lowest priority wakes the classes that could evict it."""
        if priority < self._lowest_priority:
            self._lower_lowest_priority(priority)

    def _lower_lowest_priority(self, priority: int) -> None:
        """Lower the floor to a new lowest priority."""
        self._lowest_priority = priority
        waiting_classes, self._without_victims = self._without_victims, {}
        for key, (equivalence_class, rank) in waiting_classes.items():
            if not equivalence_class.is_waiting:
                continue
            if rank > priority:
                self.queue.wake_class(equivalence_class)
            else:
                self._without_victims[key] = (equivalence_class, rank)

    def _may_help(self, equivalence_class: EquivalenceClass, change: ClusterChange) -> bool:
        return self.helps(equivalence_class.waits_for, change)

    def helps(self, hints: QueueingHints, change: ClusterChange) -> bool:
        """Return True if a change may make a shape feasible. Must never be wrongly False."""
        for plugin in hints.cross:
            if change.kind & traits_of(plugin).wakes_on:
                hint = hints.profile.options[plugin.name].queueing_hint
                if hint is None or _hint_or_true(hint, hints.shape, change):
                    return True
        for plugin in hints.helpers:
            if change.kind & traits_of(plugin).helps_after and _hint_or_true(
                plugin.helps, hints.shape, hints.priority, change
            ):
                return True
        if change.kind & hints.evicts and self._eviction_may_help(hints.shape, hints.priority, change):
            return True
        if change.row >= 0 and change.kind & ROW_WAKES:
            return allows(hints.profile, hints.shape, self._columns, change.row)
        return False

    def _eviction_may_help(self, shape: Shape, priority: int, change: ClusterChange) -> bool:
        """Return False only if evicting pods of lower priority from the changed row cannot make room for the shape."""
        row = change.row
        if row < 0:
            return False
        columns = self._columns
        if any(columns.alloc_cell[rid][row] < amount for rid, amount in shape.requests):
            return False
        unit_of = self._victims.unit_of
        if change.kind & Wake.POD_PLACED and (change.record is None or unit_of(change.record)[1] >= priority):
            return False
        left = {rid: columns.alloc_cell[rid][row] - columns.used_cell[rid][row] for rid, _ in shape.requests}
        for record in columns.pods[row].values():
            if record.terminating or unit_of(record)[1] < priority:
                for rid, amount in record.shape.requests:
                    if rid in left:
                        left[rid] += amount
        return all(left[rid] >= amount for rid, amount in shape.requests)


def equivalence_key(record: PodRecord) -> tuple[Any, ...]:
    """Return the key of single pods that no attempt can tell apart."""
    return ("shape", record.shape.id, record.priority, record.preemption_policy)


def _hint_or_true(hint: Any, *args: Any) -> bool:
    """Return the result of a queueing hint; True if it raises: an error must not keep a pod waiting."""
    try:
        return bool(hint(*args))
    except BaseException:
        return True


def group_equivalence_key(unit: SchedulingUnit, group: Group) -> tuple[Any, ...]:
    """Return the key of gangs that no attempt can tell apart; the unit's own key if it differs from all others."""
    spec = group.spec
    if group.composite or spec is None or group.members_on_nodes or group.policy.has_counts:
        return ("root", unit.key)
    demand: dict[int, int] = {}
    policy = ""
    for record in unit.records.values():
        if record.nominated:
            return ("root", unit.key)
        demand[record.shape.id] = demand.get(record.shape.id, 0) + 1
        policy = record.preemption_policy
    rules = (spec.minimum - group.placed, spec.topology_key, spec.preferred_key, spec.disrupt_all, policy)
    return ("gang", "", unit.priority, rules, tuple(sorted(demand.items())))


def least_requests(shapes: list[Shape]) -> tuple[tuple[int, float], ...]:
    """Return the free capacity that a row needs to take any member."""
    if not shapes:
        return ()  # no member may be placed: more room does not help
    first, *others = (dict(shape.requests) for shape in shapes)
    for other in others:
        first = {rid: min(amount, other[rid]) for rid, amount in first.items() if rid in other}
    return tuple(sorted(first.items()))
