"""Place pods in the columns for a trial: filters check what counting cannot (spreading, affinity, volumes).

Everything is rolled back. `holds` checks a placement found by counting. `SequentialTrial` searches another one if the
filters reject that: first greedily (minimums of all children, then extras, several orders of pods, domains by
capacity), then by backtracking within the budget (`BacktrackingSearch`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from phalanx.engine.framework import Bools
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.framework.evaluation import Evaluation
from phalanx.engine.groups.backtracking_search import BacktrackingSearch
from phalanx.engine.groups.build import Built
from phalanx.engine.groups.expected_pods import is_reserved_for
from phalanx.engine.groups.symmetry import excluding_reservations, open_masks
from phalanx.engine.placement import SearchVerdict, place
from phalanx.engine.placement.problem import Composite, Leaf, Subtree, done
from phalanx.engine.slices import worked
from phalanx.engine.state.records import PodRecord
from phalanx.engine.state.shapes import Shape
from phalanx.model.groups import POD_GROUP, GroupKey

Assignment = list[tuple[PodRecord, int]]

MOST = 1 << 20  # slots of a shape without requests
STEPS_PER_POD = 4  # work to place one pod by filters
DOMAINS_TRIED = 64  # per group; a rule that fails in so many domains usually fails in all


def holds(state: ClusterState, assignment: Assignment) -> bool:
    """Return whether every filter passes when the pods are placed one after the other."""
    journal = state.columns.journal
    mark = journal.mark()
    try:
        for record, row in assignment:
            if not state.evaluation(record).feasible[row]:
                return False
            state.columns.place(record, row)
    finally:
        journal.rewind(mark)
    return True


def fits_still(state: ClusterState, assignment: Assignment, known: Mapping[Shape, Evaluation]) -> bool:
    """Return whether pods still fit on the rows of an earlier search, given later reservations.

    `known`: earlier evaluations of these pods.
    """
    rows: dict[Shape, list[int]] = {}
    record_of: dict[Shape, PodRecord] = {}
    for record, row in assignment:
        if row >= state.columns.n:
            return False
        rows.setdefault(record.shape, []).append(row)
        record_of[record.shape] = record
    alone = True  # except for resources, feasibility does not depend on other members
    for shape, where in rows.items():
        evaluation = known.get(shape) or state.evaluation(record_of[shape])
        if evaluation.reaches_beyond or evaluation.cap() is not None or shape.host_ports or shape.anti_affinity:
            alone = False
        elif not evaluation.passes(where, state.evaluations.quiet):
            return False
    return _room_for(state, rows, assignment) and (alone or holds(state, assignment))


def _room_for(state: ClusterState, rows: Mapping[Shape, list[int]], assignment: Assignment) -> bool:
    columns = state.columns
    rids = sorted({rid for shape in rows for rid, _ in shape.requests})
    index = {rid: number for number, rid in enumerate(rids)}
    at, inverse = np.unique([row for _, row in assignment], return_inverse=True)
    left = columns.alloc[rids][:, at] - columns.used[rids][:, at]  # (R, rows)
    for (record, _), number in zip(assignment, inverse.tolist(), strict=True):
        for rid, amount in record.shape.requests:
            left[index[rid], number] -= amount
    if state.nominations:
        ours, first = {record.key for record, _ in assignment}, assignment[0][0]
        groups = {GroupKey(POD_GROUP, record.namespace, record.group) for record, _ in assignment if record.group}
        for number, row in enumerate(at.tolist()):
            for rival in state.nominations.rivals(columns.names[row], first):
                if rival.key in ours or rival.row >= 0 or is_reserved_for(rival, groups):
                    continue
                for rid, amount in rival.shape.requests:
                    if rid in index:
                        left[index[rid], number] -= amount
    return not (left < 0).any()


def open_to_members(state: ClusterState, built: Built) -> bool:
    """Return whether a placement may exist if only the filters check affinity and spreading between members.

    Called if counting finds no placement: it evaluates these rules before any member is placed.
    """
    masks = open_masks(built, state.columns) if built.coupled else None
    if masks is None:
        return False
    shapes = [replace(row, mask=mask, slots=None) for row, mask in zip(built.problem.shapes, masks, strict=True)]
    return place(replace(built.problem, shapes=shapes), explained=False).verdict is not SearchVerdict.IMPOSSIBLE


class SequentialTrial:
    """Search for an assignment that meets the root's minimum.

    `run` returns None if none was found; if `exhausted` is True, that is no proof that none exists.
    """

    def __init__(self, state: ClusterState, built: Built) -> None:
        self._cluster = state
        self._columns = state.columns
        self._built = built
        self._order: dict[int, list[PodRecord]] = {}
        self._made: Assignment = []
        self._left: dict[int, list[PodRecord]] = {}
        self._where: dict[int, Bools] = {}
        self.satisfied: set[int] = set()
        self.exhausted = False
        self.expansions = 0  # of the backtracking search only

    def run(self) -> Assignment | None:
        """Return an assignment by the filters: greedily if possible, else by the backtracking search."""
        found = self._greedy()
        if found is None:
            assignment_search = BacktrackingSearch(self._cluster, self._built)
            found = assignment_search.run()
            self.satisfied, self.exhausted, self.expansions = (
                assignment_search.satisfied,
                assignment_search.exhausted,
                assignment_search.expansions,
            )
        return found

    def _greedy(self) -> Assignment | None:
        """Try greedily: one pass per area and order; backtrack only over domains."""
        root = self._built.problem.root
        for allowed in self._areas():
            for order in self._orders():
                self._order = order
                self._made, self._left, self._where, self.satisfied = [], {}, {}, set()
                mark = self._columns.journal.mark()
                try:
                    if self._group(root, allowed):
                        self._extras(root)
                        return list(self._made)
                finally:
                    self._columns.journal.rewind(mark)
        return None

    def _areas(self) -> Iterator[Bools]:
        """Yield all nodes; then, for required affinity between members, one domain of its key at a time.

        The first member decides the domain for all others, and a greedy pass may choose one where they do not fit.
        """
        alive = self._columns.alive
        yield alive.copy()
        n = self._columns.n
        keys = {
            term.topology_key: None
            for shape in self._built.shapes
            if shape.affinity is not None
            for term in shape.affinity.required or ()
        }
        for key in sorted(keys):
            column = self._columns.label(key)
            for domain in self._domains_by_room(column.ids[:n], alive[:n] & (column.ids[:n] > 0)):
                area = np.zeros_like(alive)
                area[:n] = alive[:n] & (column.ids[:n] == domain)
                yield area

    def _domains_by_room(self, ids: NDArray[np.integer], inside: Bools) -> list[int]:
        """Return domains with room, most room first."""
        room = np.zeros(len(ids))
        for evaluation in self._built.evaluations:
            evaluation.refresh()  # this trial may have placed and removed pods
            room += np.minimum(evaluation.slots(), MOST)
        sums = np.bincount(np.where(inside, ids, 0), weights=np.where(inside, room, 0))
        return [int(domain) for domain in np.argsort(-sums, kind="stable") if sums[domain] > 0][:DOMAINS_TRIED]

    def _orders(self) -> Iterator[dict[int, list[PodRecord]]]:
        """Yield orders of pods: as queued, fewest feasible nodes first, largest first."""
        pending = self._built.pending
        yield pending
        choices = {
            shape: int(evaluation.feasible.sum())
            for shape, evaluation in zip(self._built.shapes, self._built.evaluations, strict=True)
        }
        if len(choices) > 1:
            yield {leaf: sorted(records, key=lambda r: choices[r.shape]) for leaf, records in pending.items()}
            yield {
                leaf: sorted(records, key=lambda r: -float(r.shape.amounts.sum())) for leaf, records in pending.items()
            }

    def _group(self, group: Subtree, allowed: Bools) -> bool:
        for mask in self._domains(group, allowed):
            mark, made = self._columns.journal.mark(), len(self._made)
            left, where, satisfied = dict(self._left), dict(self._where), set(self.satisfied)
            if self._inside(group, mask):
                self.satisfied.add(id(group))
                return True
            self._columns.journal.rewind(mark)
            del self._made[made:]
            self._left, self._where, self.satisfied = left, where, satisfied
        return False

    def _inside(self, group: Subtree, mask: Bools) -> bool:
        if isinstance(group, Leaf):
            return self._leaf(group, mask)
        good = 0
        for child in group.children:
            if done(child):
                self._adopt(child, mask)
                good += 1
            elif self._group(child, mask):
                good += 1
        return good >= group.minimum

    def _adopt(self, group: Subtree, allowed: Bools) -> None:
        """Record the area of a group whose minimum is met: its further pods use the same domain."""
        mask = next(self._domains(group, allowed), None)
        self.satisfied.add(id(group))
        if isinstance(group, Leaf):
            self._left[id(group)] = list(self._order.get(id(group), ())) if mask is not None else []
            self._where[id(group)] = allowed if mask is None else mask
        elif mask is not None:
            self._inside(group, mask)

    def _leaf(self, leaf: Leaf, mask: Bools) -> bool:
        """Place the minimum of a leaf; the remaining pods are kept for `_extras`."""
        rest: list[PodRecord] = []
        need = leaf.need
        for record in self._order[id(leaf)]:
            if need > 0 and self._place(record, mask):
                need -= 1
            else:
                rest.append(record)
        self._left[id(leaf)] = rest
        self._where[id(leaf)] = mask
        return need <= 0

    def _extras(self, group: Subtree) -> None:
        if id(group) not in self.satisfied:
            return
        if isinstance(group, Composite):
            for child in group.children:
                self._extras(child)
            return
        for record in self._left.get(id(group), ()):
            self._place(record, self._where[id(group)])

    def _place(self, record: PodRecord, mask: Bools) -> bool:
        """Place one member on its best node within the mask; False: there is none."""
        worked(STEPS_PER_POD)
        evaluation = self._cluster.evaluation(record)
        if self._built.reserved:
            mask = mask.copy()
            excluding_reservations(self._built, self._columns, record.shape, mask)
        row = evaluation.best(mask)
        if row < 0:
            return False
        self._columns.place(record, row)
        self._made.append((record, row))
        return True

    def _domains(self, group: Subtree, allowed: Bools) -> Iterator[Bools]:
        """Yield the areas to try, most room first."""
        if group.key is None:
            yield allowed
            return
        n = self._columns.n
        column = self._built.problem.domains[group.key]
        inside = allowed[:n] & (column >= 0)
        if group.pinned >= 0:
            candidates = [group.pinned] if bool((inside & (column == group.pinned)).any()) else []
        else:
            candidates = self._domains_by_room(column, inside)
        for domain in candidates:
            mask = allowed.copy()
            mask[:n] &= column == domain
            mask[n:] = False
            yield mask
