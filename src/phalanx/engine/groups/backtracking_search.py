"""Place members with mutual constraints by backtracking over member orders and nodes, within a budget.

A pod is filtered against the pods placed before it, so the order matters as well as the node. Filter results depend
only on which pod is on which node: a state that was left is never entered again. Nodes that are symmetric for all rules
count as one. Members without rules about other members, which no rule of other members matches, are placed last: for
them only the final state matters.

The search calls the filters and rolls everything back, so every assignment it finds is valid. Its steps are
deterministic and counted against the budget of the group search.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, islice, product

import msgspec
import numpy as np
from numpy.typing import NDArray

from phalanx.engine.framework import Bools
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.framework.evaluation import Evaluation
from phalanx.engine.groups.build import Built
from phalanx.engine.groups.symmetry import detached, excluding_reservations, open_masks, symmetry
from phalanx.engine.placement.problem import Leaf, Subtree, done
from phalanx.engine.placement.state import Budget, Exhausted
from phalanx.engine.slices import worked
from phalanx.engine.state.records import PodRecord
from phalanx.engine.state.shapes import Shape

TARGETS = 64  # sets of leaves that are tried when not all groups of a tree can be placed
# Cost of one backtracking step, in expansions: the filters are slower than counting, and slower with more nodes.
# The first descent is free, so that a large gang does not exhaust the budget before it is placed once.
STEP = 4
# Orders to try. A bad first choice can cost the whole budget, so each order gets a share and the last one gets half.
WAYS = ("best", "tightest", "largest", "company", "pickiest")
ROWS_PER_EXPANSION = 128


class _Unit(msgspec.Struct, eq=False):
    """Hold members of one leaf that are interchangeable."""

    number: int
    leaf: int  # index into the leaves of the target
    records: list[PodRecord]
    late: bool  # all of them must be placed, and their order does not matter
    used: int = 0


class _Assignment(msgspec.Struct, eq=False):
    """Hold a leaf of the target: how many members it still needs and where they may go."""

    need: int
    areas: list[tuple[int, NDArray[np.integer]]]  # (id of a group with a topology key, domain by row), root first
    units: list[_Unit] = msgspec.field(default_factory=list)
    taken: int = 0


class BacktrackingSearch:
    """Search for an assignment, in an order in which the filters accept every pod.

    `run` returns None if none was found; if `exhausted` is True, that is no proof that none exists.
    """

    def __init__(self, state: ClusterState, built: Built) -> None:
        self._cluster = state
        self._columns = state.columns
        self._built = built
        self.satisfied: set[int] = set()
        self.exhausted = False
        self.expansions = 0
        for evaluation in built.evaluations:
            evaluation.refresh()  # other trials may have changed the columns
        n = self._columns.n
        self._price = STEP + n // ROWS_PER_EXPANSION
        self._weight = 14 + n // 64
        self._late = detached(built)
        self._alike = symmetry(built)  # (n,) number of the class of each row
        masks = open_masks(built, self._columns)
        self._open = {  # by shape: rows that may ever be feasible
            shape.id: np.flatnonzero(row.mask if masks is None else masks[number])
            for number, (shape, row) in enumerate(zip(built.shapes, built.problem.shapes, strict=True))
        }
        self._must: list[_Unit] = []
        self._leaves: list[_Assignment] = []
        self._units: list[_Unit] = []
        self._domain: dict[int, list[int]] = {}  # id of a group -> domains of its members so far, one per member
        self._content: list[tuple[int, ...]] = [()] * n  # units of the members on a row, sorted
        self._mark: NDArray[np.int64] = self._alike.copy()  # class and content of a row as one number
        self._marks: dict[tuple[int, tuple[int, ...]], int] = {}
        self._state = 0
        self._seen: set[int] = set()
        self._tightest = False
        self._made: list[tuple[_Unit, int, int]] = []  # unit, row, journal mark

    def run(self) -> list[tuple[PodRecord, int]] | None:
        """Return nodes for the pods of the first set of leaves that can be placed; None if the search found none."""
        root = self._built.problem.root
        left = self._built.problem.budget
        targets = list(islice(_targets(root), TARGETS + 1))
        self.exhausted = len(targets) > TARGETS
        for number, target in enumerate(targets[:TARGETS]):
            # Each target gets half of the remaining budget, so that an infeasible one leaves budget for the others.
            share = left if number == len(targets) - 1 else (left + 1) // 2
            ways = WAYS if len(self._built.shapes) > 1 else WAYS[:2]  # with one shape there is no order of units
            part = share // (2 * (len(ways) - 1))
            for way in ways:
                budget = Budget(share if way == ways[-1] else part)
                found = self._try(target, budget, way)
                spent = min(budget.used, budget.limit)
                self.expansions, left, share = self.expansions + spent, left - spent, share - spent
                if found is not None:
                    self.satisfied = {id(leaf) for leaf in target}
                    _satisfy(root, self.satisfied)
                    self.exhausted = False
                    return found
                if not budget.truncated:
                    break  # the search was complete
            else:
                self.exhausted = True
        return None

    # ---- one set of leaves

    def _try(self, target: Sequence[Leaf], budget: Budget, way: str) -> list[tuple[PodRecord, int]] | None:
        self._prepare(target)
        self._sort(way)
        journal = self._columns.journal
        mark = journal.mark()
        try:
            if not self._search(budget):
                return None
            self._extras()
            return [(unit.records[number], row) for unit, number, row in self._numbered()]
        except Exhausted:
            budget.truncated = True
            return None
        finally:
            journal.rewind(mark)

    def _prepare(self, target: Sequence[Leaf]) -> None:
        paths = dict(_paths(self._built.problem.root))
        self._leaves, self._units, self._domain = [], [], {}
        for leaf in target:
            areas: list[tuple[int, NDArray[np.integer]]] = []
            for group in paths[id(leaf)]:
                if group.key is not None:
                    areas.append((id(group), self._built.problem.domains[group.key]))
                    self._domain[id(group)] = [group.pinned] if group.pinned >= 0 else []
            assignment = _Assignment(leaf.need, areas)
            by_shape: dict[int, list[PodRecord]] = {}
            for record in self._built.pending[id(leaf)]:
                by_shape.setdefault(record.shape.id, []).append(record)
            for shape, records in by_shape.items():
                late = leaf.need == leaf.total and shape in self._late
                unit = _Unit(len(self._units), len(self._leaves), records, late)
                assignment.units.append(unit)
                self._units.append(unit)
            self._leaves.append(assignment)
        self._must = [
            unit
            for assignment, leaf in zip(self._leaves, target, strict=True)
            for unit in assignment.units
            if leaf.need == leaf.total and len(self._units) > 1
        ]
        self._content = [()] * len(self._content)
        self._mark = self._alike.copy()
        self._marks = {}
        self._state, self._seen, self._made = 0, set(), []

    def _sort(self, way: str) -> None:
        """Set the order in which units and nodes are tried.

        Units: as queued, largest first, pods with required affinity first, or fewest feasible nodes first. Nodes:
        highest score first, or least free room first.
        """
        self._tightest = way in ("tightest", "largest", "company")
        if way == "largest":
            self._units.sort(key=lambda unit: -float(unit.records[0].shape.amounts.sum()))
        elif way == "company":
            self._units.sort(key=lambda unit: _ties(unit.records[0].shape))
        elif way == "pickiest":
            rows = {unit.number: len(self._rows(unit)) for unit in self._units}
            self._units.sort(key=lambda unit: rows[unit.number])

    def _numbered(self) -> Iterator[tuple[_Unit, int, int]]:
        """Yield the placements in order, each with the index of the pod in its unit."""
        count = [0] * len(self._units)
        for unit, row, _ in self._made:
            yield unit, count[unit.number], row
            count[unit.number] += 1

    def _search(self, budget: Budget) -> bool:
        """Search depth first with an explicit stack: a gang may have more members than Python has frames."""
        if self._complete():
            return True
        open_ = [self._moves()]
        self._seen.add(0)
        while open_:
            worked(self._weight)
            move = next(open_[-1], None)
            if move is None:
                open_.pop()
                if self._made:
                    budget.spend(self._price)
                    self._undo()
                continue
            self._do(*move)
            if self._state in self._seen or self._hopeless():
                budget.spend(self._price)
                self._undo()
                continue
            self._seen.add(self._state)
            if self._complete():
                return True
            open_.append(self._moves())
        return False

    def _complete(self) -> bool:
        return all(assignment.taken >= assignment.need for assignment in self._leaves)

    # ---- moves

    def _moves(self) -> Iterator[tuple[_Unit, int]]:
        waiting = [unit for unit in self._units if unit.used < len(unit.records)]
        early = [unit for unit in waiting if not unit.late]
        if any(self._short(unit) for unit in early):
            # Members beyond a minimum may satisfy the affinity of others: try them last, but do try them.
            units = [unit for unit in early if self._short(unit)] + [unit for unit in early if not self._short(unit)]
        else:
            units = [unit for unit in waiting if unit.late][:1]
        for unit in units:
            for row in self._rows(unit):
                yield unit, row

    def _short(self, unit: _Unit) -> bool:
        assignment = self._leaves[unit.leaf]
        return assignment.taken < assignment.need

    def _rows(self, unit: _Unit) -> list[int]:
        """Return the rows where a member may go now, best first; one row per class of symmetric rows."""
        n = self._columns.n
        evaluation = self._cluster.evaluation(unit.records[unit.used])
        if evaluation.pre_filter() is not None:
            return []
        inside = evaluation.feasible[:n] & self._area(unit)
        excluding_reservations(self._built, self._columns, evaluation.shape, inside)
        rows = np.flatnonzero(inside)
        if len(rows) > 1:
            rows = rows[np.argsort(self._row_costs(evaluation, rows), kind="stable")]
            rows = rows[np.sort(np.unique(self._mark[rows], return_index=True)[1])]
        return [int(row) for row in rows]

    def _row_costs(self, evaluation: Evaluation, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        if not self._tightest:
            return -evaluation.total[rows]
        return self._room(evaluation.shape, rows)

    def _room(self, shape: Shape, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return how many pods of a shape fit on each row by resources, as a fraction."""
        columns = self._columns
        room: NDArray[np.float64] = np.full(len(rows), np.inf)
        for rid, amount in shape.requests:
            np.minimum(room, (columns.alloc[rid, rows] - columns.used[rid, rows]) / amount, out=room)
        return room

    def _hopeless(self) -> bool:
        """Return True if members that must be placed have too little room, regardless of their other rules."""
        for unit in self._must:
            left = len(unit.records) - unit.used
            shape = unit.records[0].shape
            if left and np.floor(self._room(shape, self._open[shape.id])).sum() < left:
                return True
        return False

    def _area(self, unit: _Unit) -> Bools:
        inside: Bools = np.ones(self._columns.n, dtype=np.bool_)
        for group, column in self._leaves[unit.leaf].areas:
            chosen = self._domain[group]
            inside &= column == chosen[0] if chosen else column >= 0
        return inside

    def _do(self, unit: _Unit, row: int) -> None:
        mark = self._columns.journal.mark()
        self._columns.place(unit.records[unit.used], row)
        self._made.append((unit, row, mark))
        self._count(unit, row, 1)

    def _undo(self) -> None:
        unit, row, mark = self._made.pop()
        self._columns.journal.rewind(mark)
        self._count(unit, row, -1)

    def _count(self, unit: _Unit, row: int, sign: int) -> None:
        """Add a pod of the unit to the counts of a row, or remove it (`sign` -1)."""
        assignment = self._leaves[unit.leaf]
        assignment.taken += sign
        unit.used += sign
        for group, column in assignment.areas:
            if sign > 0:
                self._domain[group].append(int(column[row]))
            else:
                self._domain[group].pop()
        before = self._content[row]
        if sign > 0:
            after = tuple(sorted((*before, unit.number)))
        else:
            at = before.index(unit.number)
            after = before[:at] + before[at + 1 :]
        kind = int(self._alike[row])
        if before:
            self._state -= hash((kind, before))
        if after:
            self._state += hash((kind, after))
        self._content[row] = after
        # The mark of an empty row is its class; marks of other rows are numbered after all classes.
        fresh = len(self._content) + len(self._marks)
        self._mark[row] = self._marks.setdefault((kind, after), fresh) if after else kind

    def _extras(self) -> None:
        """Place further members that fit next to the required ones."""
        for unit in self._units:
            while unit.used < len(unit.records) and (rows := self._rows(unit)):
                worked(self._weight)
                self._do(unit, rows[0])


def _ties(shape: Shape) -> tuple[bool, ...]:
    """Sort pods with required affinity first, then pods with required anti-affinity."""
    parts = (shape.affinity, shape.anti_affinity)
    return tuple(part is None or not part.required for part in parts)


# ---- the tree


def _paths(group: Subtree, above: tuple[Subtree, ...] = ()) -> Iterator[tuple[int, tuple[Subtree, ...]]]:
    """Yield the id of every leaf and the groups on the path to it, the leaf included."""
    here = (*above, group)
    if isinstance(group, Leaf):
        yield id(group), here
    else:
        for child in group.children:
            yield from _paths(child, here)


def _targets(group: Subtree) -> Iterator[list[Leaf]]:
    """Yield sets of leaves which, given their minimums, satisfy the group.

    All satisfiable children come first, then as few as are needed, then the sizes between. Children whose minimum is
    met already need nothing.
    """
    if done(group):
        yield []
    elif isinstance(group, Leaf):
        if group.total >= group.need:
            yield [group]
    else:
        waiting = [child for child in group.children if not done(child)]
        able = [child for child in waiting if next(_targets(child), None) is not None]
        least = group.minimum - (len(group.children) - len(waiting))
        for size in dict.fromkeys((len(able), *range(least, len(able)))):
            for chosen in combinations(able, size) if size >= least else ():
                for parts in product(*(list(islice(_targets(child), TARGETS)) for child in chosen)):
                    yield [leaf for part in parts for leaf in part]


def _satisfy(group: Subtree, satisfied: set[int]) -> bool:
    """Add the groups whose minimum is met once the leaves in `satisfied` are placed."""
    if isinstance(group, Leaf):
        good = id(group) in satisfied or done(group)
    else:
        good = sum(_satisfy(child, satisfied) for child in group.children) >= group.minimum
    if good:
        satisfied.add(id(group))
    return good
