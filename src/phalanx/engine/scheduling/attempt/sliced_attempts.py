"""Run attempts of groups in slices, so that a long search does not block other units.

An unfinished attempt is resumed while its own pods and groups are unchanged. The cluster may have changed since it
began, so its answer is checked before it is committed; an answer that no longer holds is searched again. During the
last search no unit of equal or lower priority is served first, so that a busy cluster cannot delay it for ever. If that
answer fails as well, one search with a small budget and without preemption is made. Nothing here changes the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import msgspec
from msgspec import field

from phalanx.engine.framework import ClusterChange
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.scheduling.attempt.answers import Answer, Placed, Refused
from phalanx.engine.scheduling.attempt.attempt import AttemptOptions, Attempts
from phalanx.engine.scheduling.attempt.preemption import HURRY, Preemption
from phalanx.engine.scheduling.queue.units import GroupTree, QueueName, SchedulingUnit
from phalanx.engine.slices import Sliced, TrialInvalidated
from phalanx.engine.state.journal import Operation
from phalanx.engine.state.records import PodRecord
from phalanx.model.groups import Group
from phalanx.model.objects import Node

MAX_UNFINISHED = 32  # unfinished attempts: each keeps a copy of its part of the state
MAX_SEARCHES = 3  # searches of one answer after changes of the cluster; the last one blocks other units
MOVED_ON = ", the cluster changed faster than victims could be found: tried again soon"
AT_ONCE, ROWS_AT_ONCE = 12, 64  # work of an attempt by counting alone, one more per ROWS_AT_ONCE rows
MOST_CHANGES = 512  # changes remembered per attempt; after more the unit is tried again without a check


class Unfinished(msgspec.Struct, eq=False):
    unit: SchedulingUnit
    sliced: Sliced[Answer]
    frame: tuple[int, int]  # versions of rows and ids
    equivalence_key: Hashable  # None: no other root is equal
    restarts: int
    stamp: tuple[Any, ...] = ()  # of the root's own pods and groups
    nodes: list[Node | None] = field(default_factory=list)  # by row, when it was first stopped
    seen: tuple[int, ...] = ()  # versions of the cluster state when it was last stopped
    disturbed: bool = False  # the cluster changed since it began
    changes: list[ClusterChange] = field(default_factory=list)  # changes that could wake the unit if it is refused


class SlicedAttempts:
    def __init__(self, state: ClusterState, attempts: Attempts, preemption: Preemption) -> None:
        self.cluster = state
        self.attempts = attempts
        self._preemption = preemption
        self.unfinished: dict[str, Unfinished] = {}  # by root key
        self._dropped: set[str] = set()  # roots whose attempts were dropped because there were too many
        self._touched: set[int] | None = None  # rows that changed while the present attempt was stopped
        self.spent = 0  # work of the present step
        self.missed: list[ClusterChange] | None = []  # changes during the last attempt; None: too many

    @property
    def full(self) -> bool:
        return len(self.unfinished) >= MAX_UNFINISHED

    @property
    def over(self) -> bool:
        """Return True if this step has used its work budget."""
        limit = self.cluster.settings.search_slice
        return bool(limit) and self.spent >= limit

    @property
    def exclusive_unit(self) -> SchedulingUnit | None:
        """Return a unit that was disturbed too often: no unit of its priority or below is served before it."""
        for search in self.unfinished.values():
            if search.restarts >= MAX_SEARCHES and search.unit.queue_name is QueueName.SEARCH:
                return search.unit
        return None

    def slices(self, unit: str) -> int:
        """Return the number of slices of an unfinished attempt; 0 if there is none."""
        search = self.unfinished.get(unit)
        return search.sliced.slices if search is not None else 0

    # ---- answers

    def answer(
        self, unit: SchedulingUnit, tree: GroupTree, equivalence_key: Callable[[], Hashable] = lambda: None
    ) -> Answer | None:
        """Run one slice of an attempt; return None if it continues later.

        `equivalence_key`: called when a search begins.
        """
        self.missed = []
        limit = self.cluster.settings.search_slice
        if not limit:
            return self.attempts.search(tree)
        search = self._found(unit, tree)
        if search is None:
            placed = self.attempts.place_by_counting(tree)  # most gangs: short attempts need no coroutine
            if placed is not None:
                self.spent += AT_ONCE + self.cluster.columns.n // ROWS_AT_ONCE
                return placed
            if unit.key in self._dropped and self.full:
                return None
            search = self._begin(unit, tree, equivalence_key(), 0)
        elif search.seen != self._versions():
            search.disturbed = True
        self._touched = self._rows_since(search.seen[0]) if search.seen else None
        before = search.sliced.work
        try:
            finished = search.sliced.go_on(limit)
        except TrialInvalidated:
            return self._search_again(search, tree)
        finally:
            self.spent += search.sliced.work - before
        if not finished:
            self._suspend(search, tree)
            return None
        answer = self._revalidate(search, tree, search.sliced.value) if search.disturbed else search.sliced.value
        if answer is None:
            return self._search_again(search, tree)
        self.missed = search.changes if len(search.changes) < MOST_CHANGES else None
        return answer

    def _found(self, unit: SchedulingUnit, tree: GroupTree) -> Unfinished | None:
        """Return the suspended attempt if it belongs to this tree."""
        search = self.unfinished.pop(unit.key, None)
        if search is not None and (search.frame != self._frame() or search.stamp != _stamp(tree)):
            search.sliced.drop()
            return None
        return search

    def _begin(self, unit: SchedulingUnit, tree: GroupTree, equivalence_key: Hashable, again: int) -> Unfinished:
        sliced = Sliced(lambda: self.attempts.search(tree), self.cluster.columns.journal, self._is_possible)
        return Unfinished(unit, sliced, self._frame(), equivalence_key, again)

    def _frame(self) -> tuple[int, int]:
        columns = self.cluster.columns
        return (columns.n, columns.generation)

    def _suspend(self, search: Unfinished, tree: GroupTree) -> None:
        """Keep an unfinished attempt for the next step, or drop it if there are too many."""
        if not search.nodes:
            search.nodes = self.cluster.columns.nodes.copy()
            search.stamp = _stamp(tree)
        search.seen = self._versions()
        if self.full:
            search.sliced.drop()  # too many: restarted later
            self._dropped.add(search.unit.key)
        else:
            self._dropped.discard(search.unit.key)
            self.unfinished[search.unit.key] = search

    def _search_again(self, search: Unfinished, tree: GroupTree) -> Answer | None:
        if search.restarts < MAX_SEARCHES:
            self._suspend(self._begin(search.unit, tree, search.equivalence_key, search.restarts + 1), tree)
            return None
        answer = self.attempts.search(tree, AttemptOptions(evict=False, budget_divisor=HURRY))
        if isinstance(answer, Refused):
            answer.again, answer.notes = True, answer.notes + MOVED_ON
        return answer

    def _versions(self) -> tuple[int, ...]:
        return self._preemption.victim_index.state_versions

    def _is_possible(self, operation: Operation) -> bool:
        """Return True if an operation of a trial, adding or removing a pod, is still possible."""
        columns, (call, args) = self.cluster.columns, operation
        if call == columns.unplace:
            return self._is_still_placed(*args)
        if call == columns.unplace_all:
            return all(map(self._is_still_placed, args[0]))
        if call == columns.place_all:
            return all(self._placeable(record, row) for record, row in args[0])
        return self._placeable(*args) if call == columns.place else True

    def _is_still_placed(self, record: PodRecord) -> bool:
        return record.row >= 0 and self.cluster.columns.pods[record.row].get(record.key) is record

    def _placeable(self, record: PodRecord, row: int) -> bool:
        if record.row >= 0 or not self.cluster.columns.alive[row]:
            return False
        if record.node_name or (self._touched is not None and row not in self._touched):
            return True  # rules beyond the row are checked at the end
        if record.nominated == self.cluster.columns.names[row]:
            return True  # room is kept for it, and its victims may still be there
        return bool(self.cluster.evaluation(record).feasible[row])

    def _rows_since(self, position: int) -> set[int] | None:
        """Return the rows that changed since a position of the log; None: unknown."""
        changes = self.cluster.columns.log.since(position)
        return None if changes is None else {row for row, _, _ in changes}

    def _revalidate(self, search: Unfinished, tree: GroupTree, answer: Answer) -> Answer | None:
        """Return the answer if it can be carried out now; None if it cannot."""
        if isinstance(answer, Refused):
            return answer  # changes that could help are in `missed`
        nodes = self.cluster.columns.nodes
        assignment = [*answer.assignment, *((record, row) for _, record, row in answer.expected_placements)]
        if not all(_same(search.nodes[row], nodes[row]) for _, row in assignment):
            return None
        if isinstance(answer, Placed):
            return answer if self.attempts.fits(assignment, answer.built) else None
        instead = self.attempts.search(tree, AttemptOptions(evict=False, budget_divisor=HURRY))
        if isinstance(instead, Placed):
            return instead  # room came meanwhile: nothing has to be evicted
        return self._preemption.revalidate(tree, answer, lambda: self.attempts.fits(assignment, answer.refused.built))

    # ---- changes during an attempt

    def note_change(self, change: ClusterChange) -> None:
        for search in self.unfinished.values():
            if len(search.changes) < MOST_CHANGES:
                search.changes.append(change)

    def representative(self, equivalence_key: Hashable) -> SchedulingUnit | None:
        """Return the unit of the same equivalence class whose attempt is unfinished."""
        return next(
            (search.unit for search in self.unfinished.values() if search.equivalence_key == equivalence_key), None
        )

    def sweep(self) -> None:
        """Drop attempts of units that are gone, held or waiting."""
        self.spent = 0
        gone = [
            key
            for key, search in self.unfinished.items()
            if search.unit.queue_name not in (QueueName.SEARCH, QueueName.ACTIVE)
        ]
        for key in gone:
            self.unfinished.pop(key).sliced.drop()
        if not self.full:
            self._dropped.clear()

    def validate(self) -> None:
        assert len(self.unfinished) <= MAX_UNFINISHED
        for key, search in self.unfinished.items():
            assert search.unit.key == key


def _same(before: Node | None, now: Node | None) -> bool:
    """Return True if two versions of a node are equal except for free capacity, which is checked separately."""
    if before is now:
        return now is not None
    if before is None or now is None:
        return False
    return before.metadata.labels == now.metadata.labels and before.spec == now.spec


def _stamp(tree: GroupTree) -> tuple[Any, ...]:
    """Return a value that changes with the attempt's own pods and groups."""
    pods = tuple((record, record.shape.id, record.nominated) for record in tree.records)  # compared by identity
    groups = tuple((group.key, group.spec, _counts(group)) for group in tree.forest.tree(tree.group.key))
    return (tree.priority, pods, groups)


def _counts(group: Group) -> tuple[int, ...]:
    """Return members by state; ASSUMED and CONFIRMED count as one."""
    pending, assumed, confirmed, *others = group.counts
    return (pending, assumed + confirmed, *others)
