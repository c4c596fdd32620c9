"""Build a preemption problem for one group tree from the columns. Nothing is changed or evicted."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import merge
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from phalanx.engine.framework import Bools
from phalanx.engine.framework.adapters import RowFilter, guarded
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.framework.evaluation import Evaluation
from phalanx.engine.framework.traits import traits_of
from phalanx.engine.groups.build import Built
from phalanx.engine.groups.expected_pods import is_reserved_for
from phalanx.engine.placement.problem import Composite, Floats, Ints, Leaf, ShapeRow, Subtree, done, groups, leaves
from phalanx.engine.preemption.problem import PreemptionProblem, Units
from phalanx.engine.preemption.row_filters import Filters, RowFilters
from phalanx.engine.preemption.victim_index import EvictionUnit, VictimIndex
from phalanx.engine.slices import TrialInvalidated, worked
from phalanx.engine.state.records import PodRecord
from phalanx.model.groups import GroupKey, PodKey

EVERY = 512  # units processed without a pause
LOOK = 3  # work per unit on a row to find the blocking units
LOOK_BEYOND = 15  # the same for a filter that also reads other rows
FOLLOWED = 32  # rows after which the victim index reads the log of trial changes
MOST_BLOCKER_CHECKS = 20_000  # checks for blocking units
Blockers = dict[tuple[int, int], tuple[int, ...]]  # see PreemptionProblem


@dataclass(slots=True, eq=False)
class Stage:
    """A preemption problem with the objects behind its indexes."""

    problem: PreemptionProblem
    units: list[EvictionUnit]
    built: Built
    origin: dict[int, int]  # id(leaf of the problem) -> id(leaf of `built`)
    restricted: bool = False  # a plugin limits where preemption may free room; filters do not know this
    exact: bool = True  # the problem covers all filters: a pod that fits passes them

    def tree(self, budget: int) -> Built:
        """Return the groups that this stage must place, for a search by filters."""
        root = self.problem.placement.root
        pending = {id(leaf): self.built.pending[self.origin[id(leaf)]] for leaf in leaves(root)}
        return replace(self.built, problem=replace(self.built.problem, root=root, budget=budget), pending=pending)


class Openings(msgspec.Struct, eq=False):
    """Nodes where members may be placed after evictions."""

    shapes: list[ShapeRow]
    blockers: Blockers
    exact: bool  # no estimate, and no rule beyond single nodes


class PreemptionProblemBuilder:
    """Builds the stages of one built group; arrays shared by all stages are built once."""

    def __init__(
        self,
        state: ClusterState,
        victim_index: VictimIndex,
        built: Built,
        priority: int,
        allowed: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        """Build the shared arrays. `allowed`: (capacity,) nodes on which preemption may free room; None: all."""
        self.cluster = state
        self.columns = state.columns
        self.victim_index = victim_index
        self.built = built
        self.priority = priority
        self._restricted = allowed is not None
        self._allowed = state.columns.alive if allowed is None else allowed & state.columns.alive
        self.rids = [self.columns.resources[name] for name in built.problem.resources]
        self._seen = self._state_versions()
        self.units: list[EvictionUnit] = []
        self._list([unit for unit in victim_index.units.values() if victim_index.evictable(unit, priority)])
        self.arrays = self._units()
        self._pause()
        self.free = self._free()
        self._pause()
        self._numbers = {unit.key: number for number, unit in enumerate(self.units)}
        self._pause()
        self._blocker_checks = 0
        self.openings = self._openings()

    def stage(self, root: Subtree, origin: dict[int, int], budget: int) -> Stage:
        placement = replace(self.built.problem, free=self.free, shapes=self.openings.shapes, root=root)
        problem = PreemptionProblem(
            placement, self.arrays, self.openings.blockers, node_names=self.columns.names, budget=budget
        )
        return Stage(problem, self.units, self.built, origin, self._restricted, self.openings.exact)

    def with_tree(self, built: Built) -> PreemptionProblemBuilder:
        """Return a builder for a variant of the tree with the same pods and shared arrays."""
        other = copy.copy(self)
        other.built = built
        return other

    def after_eviction(self, priority: int) -> Built:
        """Return the built group with its capacity if every unit up to this priority is evicted."""
        arrays = self.arrays
        chosen = arrays.priority[arrays.part_unit] <= priority
        free = self.free.copy()
        np.add.at(free.T, arrays.part_node[chosen], arrays.part_request[:, chosen].T)
        problem = replace(self.built.problem, free=free, shapes=self.openings.shapes)
        return replace(self.built, problem=problem)

    def overtaken(self, assignment: Sequence[tuple[PodRecord, int]]) -> bool:
        """Return whether these rows now have less free than counted; if so, the next stage counts again."""
        rows, free = sorted({row for _, row in assignment}), self._free()
        if (free[:, rows] >= self.free[:, rows]).all():
            return False
        self.free = free
        return True

    # ---- candidate victims

    def _state_versions(self) -> tuple[int, ...]:
        """Return the versions that the numbers of units and budgets depend on."""
        budgets = self.victim_index.budgets
        return (self.victim_index.epoch, budgets.version, budgets.spending)

    def _list(self, units: list[EvictionUnit]) -> None:
        """List units in ascending cost of a single eviction; many units are sorted in chunks."""
        unit_cost, pieces = self.victim_index.unit_cost, []
        for first in range(0, len(units), EVERY):
            pieces.append(sorted(units[first : first + EVERY], key=unit_cost))
            self._stop(len(pieces[-1]) // 2)
        for number, unit in enumerate(merge(*pieces, key=unit_cost) if len(pieces) > 1 else chain(*pieces)):
            self.units.append(unit)
            self._pause(number)

    def _pause(self, number: int | None = None) -> None:
        """Pause after every EVERY units (None: after all units), so that other units are served.

        Resources freed by a unit may change meanwhile; they are checked at the end. If the set of units or the
        disruption budgets change, `TrialInvalidated` is raised.
        """
        if number is None or number % EVERY == EVERY - 1:
            self._stop(EVERY // 2 if number is not None else len(self.units) // 50)

    def _stop(self, work: int) -> None:
        worked(work)
        if self._state_versions() != self._seen:
            raise TrialInvalidated

    def _units(self) -> Units:
        budgets, forest = self.victim_index.budgets, self.victim_index.forest
        kinds: dict[int, int] = {}  # id of a shape -> its number
        vectors: list[Floats] = []
        index = {rid: i for i, rid in enumerate(self.rids)}
        parts: dict[tuple[int, int], list[PodRecord]] = {}
        gangs: dict[GroupKey, int] = {}
        running: list[int] = []
        minimum: list[int] = []
        membership: list[list[tuple[int, int]]] = []
        names: list[str] = []
        lost: list[float] = []
        priority: list[int] = []
        hit: dict[GroupKey, int] = {}
        workloads: list[int] = []
        kinds_of_victims: list[int] = []
        for number, unit in enumerate(self.units):
            mine: dict[int, int] = {}
            if not unit.pods or any(record.row < 0 for record in unit.pods.values()):
                raise TrialInvalidated  # one of its pods ended during a pause
            for record in unit.pods.values():
                parts.setdefault((record.row, number), []).append(record)
                leaf = forest.leaf_of(PodKey(record.namespace, record.name)) if forest is not None else None
                if forest is None or leaf is None:
                    continue
                if leaf not in gangs:
                    gangs[leaf] = len(running)
                    running.append(self.victim_index.running(leaf))
                    minimum.append(self.victim_index.minimum(leaf))
                mine[gangs[leaf]] = mine.get(gangs[leaf], 0) + 1
            membership.append([(gang, count) for gang, count in mine.items() if minimum[gang] > 0])
            names.append(unit.name)
            lost.append(self.victim_index.lost(unit))
            priority.append(unit.priority)
            workload = self.victim_index.workload(unit)
            workloads.append(-1 if workload is None else hit.setdefault(workload, len(hit)))
            kinds_of_victims.append(self.victim_index.kind(unit))
            self._pause(number)
        self._pause()
        order = sorted(parts)
        self._pause()
        where: list[int] = []  # part of each pod
        what: list[int] = []  # and its kind
        hits = np.zeros((len(budgets.allowed), len(order)), dtype=np.int64)
        for at, key in enumerate(order):
            for record in parts[key]:
                kind = kinds.get(id(record.shape))
                if kind is None:
                    kind = kinds[id(record.shape)] = len(vectors)
                    vectors.append(np.zeros(len(self.rids)))
                    for rid, amount in record.shape.requests:
                        if rid in index:
                            vectors[kind][index[rid]] = amount
                where.append(at)
                what.append(kind)
                for budget in budgets.of(record) if budgets.allowed else ():
                    hits[budget, at] += 1
            self._pause(at)
        self._pause()
        of = np.array(where, dtype=np.int64)
        self._pause()
        table = np.array(vectors).reshape(len(vectors), len(self.rids))[np.array(what, dtype=np.int64)]  # (P, R)
        requests = np.array([np.bincount(of, weights=row, minlength=len(order)) for row in table.T])
        pods = np.bincount(of, minlength=len(order))
        self._pause()
        places = np.array(order, dtype=np.int64).reshape(len(order), 2)  # of parts: row, unit
        self._pause()
        return Units(
            names,
            np.array(priority, dtype=np.int64),
            np.array(lost),
            np.ascontiguousarray(places[:, 1]),
            np.ascontiguousarray(places[:, 0]),
            requests,
            pods,
            hits,
            np.array(budgets.allowed, dtype=np.int64),
            membership,
            running,
            minimum,
            workloads,
            kinds_of_victims,
        )

    def _free(self) -> Floats:
        """Return (R, N) free or terminating resources, less reservations of nominated pods of at least our priority."""
        columns, n = self.columns, self.columns.n
        free: Floats = columns.alloc[self.rids, :n] - columns.used[self.rids, :n]
        index = {rid: i for i, rid in enumerate(self.rids)}

        def add(record: PodRecord, row: int, sign: float) -> None:
            for rid, amount in record.shape.requests:
                if rid in index:
                    free[index[rid], row] += sign * amount

        for row, leaving in self.victim_index.leaving.items():
            for record in leaving.values():
                add(record, row, 1.0)
        ours = {record.key for records in self.built.pending.values() for record in records}
        for node, record in self.cluster.nominations.all():
            row = columns.row_of.get(node, -1)
            if row < 0 or record.row >= 0 or record.key in ours or record.priority < self.priority:
                continue
            if not is_reserved_for(record, self.built.part_of):
                add(record, row, -1.0)
        return free

    # ---- feasible nodes after preemption

    def _openings(self) -> Openings:
        """Return the rows that are feasible now, or once victims on the row are evicted."""
        openings = Openings([], {}, not self.built.coupled)
        for number, (row, evaluation) in enumerate(zip(self.built.problem.shapes, self.built.evaluations, strict=True)):
            filters = [each for each in evaluation.filters if not traits_of(each[0]).room]
            mask = self._open(evaluation, filters)
            resolvable = evaluation.diagnose().resolvable[: len(mask)]
            rejected_rows = np.flatnonzero(self._allowed[: len(mask)] & ~mask & resolvable)
            openings.exact &= self._rows_feasible_after_eviction(
                RowFilters(evaluation, filters), number, mask, rejected_rows, openings.blockers
            )
            openings.shapes.append(_with_mask(row, mask))
        return openings

    def relaxed(self, stage: Stage) -> Stage:
        """Return the stage without cross-node rules; its optimum is a lower bound on every valid plan."""
        openings = Openings([], {}, True)
        for number, (row, evaluation) in enumerate(zip(self.built.problem.shapes, self.built.evaluations, strict=True)):
            evaluation.refresh()
            filters = [each for each in evaluation.filters if not traits_of(each[0]).room]
            local = [each for each in filters if isinstance(each[1], RowFilter) and not traits_of(each[0]).ties]
            mask = self._open(evaluation, local)
            rejected_rows = np.flatnonzero(self._allowed[: len(mask)] & ~mask)
            if not self._rows_feasible_after_eviction(
                RowFilters(evaluation, local), number, mask, rejected_rows, openings.blockers
            ):
                for at in [at for at in openings.blockers if at[0] == number]:
                    openings.blockers[at] = ()  # not exact: ignoring blockers keeps the lower bound
            for plugin, tracker in filters:
                if not isinstance(tracker, RowFilter) and not traits_of(plugin).ties:
                    mask &= ~_unresolvable_rows(plugin, tracker, mask)
            openings.shapes.append(_with_mask(row, mask))
        same = all(
            a.mask.tobytes() == b.mask.tobytes() for a, b in zip(openings.shapes, self.openings.shapes, strict=True)
        )
        if same and openings.blockers == self.openings.blockers:
            return stage
        placement = replace(stage.problem.placement, shapes=openings.shapes)
        return replace(stage, problem=replace(stage.problem, placement=placement, blockers=openings.blockers))

    def _open(self, evaluation: Evaluation, filters: Filters) -> Bools:
        """Return (n,) rows that these filters pass now."""
        n = self.columns.n
        mask = self._allowed[:n].copy()
        for _, tracker in filters:
            mask &= tracker.mask[:n]
        if evaluation.pre_filter() is not None:
            mask[:] = False
        return mask

    def _rows_feasible_after_eviction(
        self, gate: RowFilters, shape: int, mask: Bools, rejected_rows: Ints, blockers: Blockers
    ) -> bool:
        """Find rejected rows that become feasible after evictions on the row, and the blocking victims.

        Rows are checked one by one with pauses. Return False if evictions on other nodes may also make a row feasible,
        or if the blocking victims are not exact.
        """
        exact = True
        for number, row in enumerate(rejected_rows.tolist()):
            here: dict[int, list[PodRecord]] = {}
            for key in self.victim_index.on_row.get(row, {}):
                if (unit := self._numbers.get(key)) is not None:
                    here[unit] = [pod for pod in self.units[unit].pods.values() if pod.row == row]
            self._stop((LOOK_BEYOND if gate.approach(row) else LOOK) * (1 + len(here)))
            if number % FOLLOWED == 0:
                self.victim_index.refresh()  # trials fill the log: the index must not fall behind
            gate.approach(row)  # a pause may have passed
            responsible, sure = self._blockers_of_row(gate, row, here)
            exact &= sure
            if responsible is not None:
                mask[row] = True
                blockers[shape, row] = tuple(responsible)
        gate.evaluation.refresh()
        return exact

    def _blockers_of_row(
        self, gate: RowFilters, row: int, here: dict[int, list[PodRecord]]
    ) -> tuple[list[int] | None, bool]:
        """Return the units that block a row (None: it stays infeasible without them), and whether that is exact."""
        mark = self.columns.journal.mark()
        try:
            for pods in here.values():
                for pod in pods:
                    self.columns.unplace(pod)
            if gate.passes(row):
                return self._bisect_blockers(gate, row, list(here), here)
            return None, gate.rejects(row)
        finally:
            self.columns.journal.rewind(mark)

    def _bisect_blockers(
        self, gate: RowFilters, row: int, units: list[int], here: dict[int, list[PodRecord]]
    ) -> tuple[list[int], bool]:
        """Find the blocking units by bisection. Return all units if only several together block, or at the check
        limit."""
        if self._blocker_checks >= MOST_BLOCKER_CHECKS:
            return units, False
        self._blocker_checks += 1
        inner = self.columns.journal.mark()
        for unit in units:
            for pod in here[unit]:
                self.columns.place(pod, row)
        rejects = not gate.passes(row)
        self.columns.journal.rewind(inner)
        if not rejects:
            return [], True
        if len(units) == 1:
            return units, True
        half = len(units) // 2
        first, sure = self._bisect_blockers(gate, row, units[:half], here)
        second, also = self._bisect_blockers(gate, row, units[half:], here)
        return (first + second, sure and also) if first or second else (units, False)


def _with_mask(row: ShapeRow, mask: Bools) -> ShapeRow:
    score = None if row.score is None else row.score.copy()  # copied: the search may be interrupted
    return replace(row, mask=mask, slots=None, score=score)


def _unresolvable_rows(plugin: Any, tracker: Any, open_: Bools) -> Bools:
    """Return (n,) rows that a filter rejects as unresolvable, regardless of victims."""
    n = len(open_)
    closed: Bools = np.zeros(n, dtype=np.bool_)
    rows = np.flatnonzero(open_ & ~tracker.mask[:n])
    for finding in guarded(plugin, tracker.explain, rows) if len(rows) else ():
        if finding.unresolvable:
            closed[finding.rows] = True
    return closed


def with_priority(built: Built, priority: int) -> Built:
    """Return the built tree without its pod groups of a lower priority, which only Basic groups may have."""

    def kept(group: Subtree) -> Subtree | None:
        if isinstance(group, Leaf):
            spec = built.group_of[id(group)].spec
            return group if spec is None or (spec.priority or 0) >= priority else None
        children = tuple(child for child in map(kept, group.children) if child is not None)
        if children == group.children:
            return group
        return replace(group, children=children) if children else None

    root = kept(built.problem.root)
    return built if root is None else replace(built, problem=replace(built.problem, root=root))


def raised(root: Subtree, more: dict[int, int]) -> tuple[Subtree, dict[int, int]]:
    """Copy the tree with higher minimums for some groups (by id), and map each new leaf to its origin.

    A leaf needs that many more pods; composites, and leaves that do not run yet, need their own minimum.
    """
    origin: dict[int, int] = {}

    def copied(group: Subtree) -> Subtree:
        if isinstance(group, Leaf):
            extra = more.get(id(group), 0)
            fresh: Subtree = replace(group, minimum=group.satisfied + extra) if extra else replace(group)
            origin[id(fresh)] = id(group)
            return fresh
        children = tuple(copied(child) for child in group.children)
        minimum = group.minimum
        if any(id(below) in more for below in groups(group)[1:]):
            touched = sum(any(id(below) in more for below in groups(old)) or done(old) for old in group.children)
            minimum = max(minimum, touched)
        return replace(group, children=children, minimum=minimum)

    return copied(root), origin


def leftovers(root: Subtree) -> list[Leaf]:
    """Return leaves whose minimum is met and that still have pending pods."""
    if isinstance(root, Composite) and not done(root):
        return []
    return [leaf for leaf in leaves(root) if leaf.need == 0 and leaf.total > 0]


def optional_pending_groups(root: Subtree) -> list[Subtree]:
    """Return pending groups that do not run yet and that their satisfied parent does not need."""
    if isinstance(root, Leaf) or not done(root):
        return []
    found: list[Subtree] = []
    for child in root.children:
        if done(child):
            found += optional_pending_groups(child)
        elif any(leaf.total for leaf in leaves(child)):
            found.append(child)
    return found
