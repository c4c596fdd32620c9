"""Reserve room for expected pods, such as the workers of a replica whose leader has started (LeaderReady).

The attempt that starts the first pod finds a place for every expected pod. These places are reserved like nominations,
against pods of equal and lower priority. A pod that arrives takes over a reservation. Reservations end with the first
pod, and after `RESERVED_FOR` seconds. They never decide where a pod is placed. A new scheduler process makes them again
before it tries any unit.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

import msgspec
from msgspec import field

from phalanx.base.clock import parse_rfc3339
from phalanx.engine.framework.adapters import PluginFailure
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.groups.build import Unplaceable, build
from phalanx.engine.groups.expected_pods import ExpectedPlacement, ExpectedPods, announced_by, outstanding_pods
from phalanx.engine.groups.find_placement import Found, find
from phalanx.engine.groups.outcomes import expected_placements
from phalanx.engine.scheduling.lifecycle.members import Members
from phalanx.engine.scheduling.lifecycle.pod_lifecycle import PodLifecycle
from phalanx.engine.scheduling.queue.units import UnitState
from phalanx.engine.state.records import PodRecord, PodState
from phalanx.model.groups import Group, GroupKey
from phalanx.model.groups.expected_pods import expected
from phalanx.model.groups.group import PLACED

RESERVED_FOR = 600.0  # seconds after the first pod started


class ReservedRoom(msgspec.Struct):
    until: float
    reservations: list[PodRecord] = field(
        default_factory=list
    )  # of expected pods; one without a nomination lost its node
    claimed_by: dict[str, None] = field(default_factory=dict)  # keys of arrived pods that took over a reservation


class GroupReservations:
    def __init__(self, state: ClusterState, pod_lifecycle: PodLifecycle, members: Members) -> None:
        self._cluster = state
        self._pod_lifecycle = pod_lifecycle
        self._members = members
        self.kept: dict[GroupKey, ReservedRoom] = {}  # in the order of expiry
        self._expired: dict[GroupKey, None] = {}  # groups whose reservations have expired
        self._fresh = True  # groups that started before this process are not examined yet
        self._pods_on_unknown_nodes: dict[GroupKey, None] = {}  # groups with a reservation on a missing node
        self._by_reservation: dict[GroupKey, None] = {}  # groups whose first pod is only nominated yet
        self._nominations_seen = 0  # version of all nominations when these groups were checked

    # ---- reserving

    def beginning(self, group: Group) -> frozenset[GroupKey]:
        """Return the leaves of a tree without a running pod; called before an answer is carried out."""
        return frozenset(leaf.key for leaf in self._members.forest.leaves(group.key) if not leaf.placed)

    def keep(
        self, assignment: Iterable[ExpectedPlacement], beginning: frozenset[GroupKey], *, inherit: bool = False
    ) -> None:
        """Replace the reservations for expected pods of these groups when an answer is carried out.

        `inherit`: also for pods created while no scheduler process could reserve room for them.
        """
        groups: dict[GroupKey, dict[str, tuple[PodRecord, str]]] = {}
        for key, record, row in assignment:
            groups.setdefault(key, {})[record.key] = (record, self._cluster.columns.names[row])
        for key, places in groups.items():
            group = self._members.forest.group(key)
            if group is not None and key not in self._expired and self._has_started(group):
                self._reserve_for(key, places, key in beginning, inherit)

    def _reserve_for(
        self, key: GroupKey, places: dict[str, tuple[PodRecord, str]], begins: bool, inherit: bool
    ) -> None:
        records = self._cluster.records
        until = self._cluster.now + RESERVED_FOR
        if inherit and key not in self.kept:  # started before this process: keep its start time
            until = min(until, self._start_time(key) + RESERVED_FOR)
            if until <= self._cluster.now:
                self._expired[key] = None
                return
        kept = self.kept.get(key)
        if kept is None:
            kept = self.kept[key] = ReservedRoom(until)
            self.kept = dict(sorted(self.kept.items(), key=lambda each: each[1].until))
        self._by_reservation[key] = None
        if begins:  # first start, or after a preemption
            self.kept[key] = self.kept.pop(key)
            kept.until = until
        before = {record.key: record for record in kept.reservations}
        kept.reservations = []
        for name, (record, node) in places.items():
            if name in records:
                if inherit and not records[name].nominated:
                    kept.claimed_by[name] = None
                if name in kept.claimed_by and records[name].state is PodState.PENDING:
                    moves = records[name].nominated != node  # so that every pod has a place
                    self._pod_lifecycle.nominate(records[name], node, write=False, wake=moves)
                continue
            reservation = before.pop(name, None)
            if reservation is None:
                reservation = record
                self._cluster.shapes.keep(record.shape)
            if reservation.nominated != node:
                self._pod_lifecycle.nominate(reservation, node, write=False)
            kept.reservations.append(reservation)
        for record in before.values():
            self._pod_lifecycle.drop_placeholder(record)

    def _start_time(self, key: GroupKey) -> float:
        """Return when the first running pod of a group started, or was created if that is not known."""
        group = self._members.forest.group(key)
        times = []
        for member in group.members.values() if group is not None else ():
            stamp = member.pod.status.start_time or member.pod.metadata.creation_timestamp
            if member.state in PLACED and stamp is not None:
                try:
                    times.append(parse_rfc3339(stamp))
                except ValueError:
                    continue
        return min(times, default=self._cluster.now)

    def _has_started(self, group: Group) -> bool:
        """Return True if the first pod has a node, or waits for victims on its nominated node."""
        waiting = self._members.waiting_pods.get(group.key, {})
        return group.placed > 0 or any(record.nominated for record in waiting.values())

    # ---- changes of groups

    def follow(self, leaves: Iterable[GroupKey]) -> None:
        """Update reservations after pods were created or deleted or groups changed, before units are tried."""
        if self._fresh:
            self._fresh = False
            forest = self._members.forest
            # Lowest priority first: it is placed next to the others, which leave as much room as they can.
            for group in sorted(forest.begun(), key=lambda each: ((each.spec and each.spec.priority) or 0, each.key)):
                if group.key not in self.kept:
                    self._find(group)
        if self.kept or self._expired:
            for key in leaves:
                self._update(key)

    def _update(self, key: GroupKey) -> None:
        """Keep, resize or release the room reserved for the pods that a group still expects."""
        kept, group = self.kept.get(key), self._members.forest.group(key)
        whole = announced_by(group) if group is not None else None
        if group is None or whole is None or not self._has_started(group):
            self._expired.pop(key, None)
            self.release(key)
            return
        if kept is None:
            return
        if not group.placed:
            self._by_reservation[key] = None
        waiting = self._members.waiting_pods.get(key, {})
        for record in sorted(waiting.values(), key=lambda each: each.key):
            if kept.reservations and not record.nominated and record.key not in kept.claimed_by:
                self._give_reservation(kept, record)
        while kept.reservations and len(kept.reservations) > whole[0] - group.present:
            self._pod_lifecycle.drop_placeholder(kept.reservations.pop())
        if not kept.reservations and not any(key in waiting for key in kept.claimed_by):
            del self.kept[key]  # every expected pod exists

    def _give_reservation(self, kept: ReservedRoom, record: PodRecord) -> None:
        """Give an arrived pod the last reservation: all expected pods are equal. If it is smaller, others may use what
        it leaves."""
        reservation = kept.reservations.pop()
        node, wake = reservation.nominated, record.shape.requests != reservation.shape.requests
        self._pod_lifecycle.drop_placeholder(reservation, wake=wake)
        kept.claimed_by[record.key] = None
        if node:
            self._pod_lifecycle.nominate(record, node, write=False, wake=False)

    def _find(self, group: Group) -> None:
        """Find room for a group that started before this process, or that lost a node."""
        forest, state = self._members.forest, self._cluster
        top = forest.root_of(group.key)
        head = forest.group(top) if top is not None else None
        if top is None or head is None:
            return
        leaves = forest.leaves(top)
        others = [other for other in forest.begun() if other not in leaves]
        # Next to the needs of all others, so that no group takes another one's only place; alone if that fails.
        if not self._find_places(head, outstanding_pods(state, leaves, others, forest.priority(top))):
            self._find_places(head, outstanding_pods(state, leaves, (), forest.priority(top)))

    def _find_places(self, head: Group, whole: ExpectedPods | None) -> bool:
        state, priority = self._cluster, self._members.forest.priority(head.key)
        if whole is None:
            return True
        try:
            built = build(state, head, self._members.waiting_pods, state.settings.search_budget, priority, whole)
            found = find(state, head, built)
        except (PluginFailure, Unplaceable):
            return False  # reported when the workers arrive
        if isinstance(found, Found):
            self.keep(expected_placements(built, found.assignment, ()), frozenset(), inherit=True)
        return isinstance(found, Found)

    def node_gone(self, name: str) -> None:
        """Find other places for reservations on a missing node, before any unit is tried."""
        for key, kept in self.kept.items():
            if any(reservation.nominated == name for reservation in kept.reservations):
                self._pods_on_unknown_nodes[key] = None

    def settle(self) -> None:
        """Replace reservations on missing nodes and end expired ones, before units are tried."""
        pods_on_unknown_nodes, self._pods_on_unknown_nodes = self._pods_on_unknown_nodes, {}
        for key in pods_on_unknown_nodes:
            group = self._members.forest.group(key)
            if group is not None and key in self.kept:
                self._find(group)
        if self.recheck:
            self._nominations_seen = self._cluster.nominations.version
            for key in list(self._by_reservation):
                self._recheck(key)
        self._expire()

    @property
    def recheck(self) -> bool:
        """Return True if a nomination changed, so that the first pod of a group may have lost its node.

        A unit of higher priority took the node, the group is held, or another component cleared the nomination.
        """
        return bool(self._by_reservation) and self._cluster.nominations.version != self._nominations_seen

    def _recheck(self, key: GroupKey) -> None:
        group = self._members.forest.group(key)
        if key in self.kept and group is not None and not group.placed:
            if self._has_started(group):
                return
            self.release(key)
        del self._by_reservation[key]

    # ---- releasing

    def _expire(self) -> None:
        """End expired reservations."""
        for key in [key for key, kept in self.kept.items() if kept.until <= self._cluster.now]:
            self._expired[key] = None
            self.release(key)

    def next_time(self) -> float | None:
        """Return when the next reservation expires."""
        return next((kept.until for kept in self.kept.values()), None)

    def release(self, key: GroupKey) -> None:
        """End the reservations for a group."""
        kept = self.kept.pop(key, None)
        if kept is None:
            return
        for record in kept.reservations:
            self._pod_lifecycle.drop_placeholder(record)
        unit = self._members.root_of(key)
        if unit is not None and unit.state is UnitState.EVICTING:
            return  # the nominations of its pods belong to a preemption now
        for name in kept.claimed_by:
            successor = self._cluster.records.get(name)
            if successor is not None and successor.state is PodState.PENDING and successor.nominated:
                self._free(successor)

    def end(self, beyond: Container[str]) -> None:
        """End the reservations with these keys, of pods that a quota does not allow."""
        for kept in self.kept.values() if beyond else ():
            for reservation in [each for each in kept.reservations if each.key in beyond]:
                kept.reservations.remove(reservation)
                self._pod_lifecycle.drop_placeholder(reservation)

    def _free(self, record: PodRecord) -> None:
        self._pod_lifecycle.nominate(record, "", write=False)

    def validate(self) -> None:
        forest = self._members.forest
        listed = {group.key for group in forest.begun()}
        for leaf in (leaf for unit in forest.roots() for leaf in forest.leaves(unit)):
            assert (leaf.key in listed) == (0 < leaf.placed < expected(leaf.source)), (
                f"{leaf.key} is wrongly listed as started"
            )
        times = [kept.until for kept in self.kept.values()]
        assert times == sorted(times), "reservations are not in the order of expiry"
        for key, kept in self.kept.items():
            group = self._members.forest.group(key)
            if self.recheck or key in self._members.notes.changed_leaves or group is None:
                continue  # checked before the next attempt
            assert self._has_started(group), f"room is reserved for {key}, which has not started"
            whole = announced_by(group)
            assert whole is not None and group.present + len(kept.reservations) <= whole[0], (
                f"{key} has too many reservations"
            )

    @property
    def reservations(self) -> list[PodRecord]:
        return [record for kept in self.kept.values() for record in kept.reservations]
