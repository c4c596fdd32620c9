"""Find the node where preemption for one pod is cheapest: a table over rows per shape and priority, updated by row.

The entry of a row is a set of victims by resources alone. A quick search finds it together with a lower bound. Where
the lower bound is below the best entry of the other rows, `search_exactly` follows. Rows that are blocked by something
other than resources (a port, an affinity rule, a volume) are tested by the filters in a trial.

A table with many rows is filled in slices. No candidate node is chosen before the table is complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations

import msgspec
import numpy as np

from phalanx.engine.framework import Bools
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.framework.evaluation import Evaluation
from phalanx.engine.framework.interface import way_of
from phalanx.engine.framework.traits import traits_of
from phalanx.engine.preemption.cost import ORDER, PROVABLE, Key, proved_parts
from phalanx.engine.preemption.filtered_row import FilteredRow, RowTrial
from phalanx.engine.preemption.ranking import RankedRows
from phalanx.engine.preemption.row_filters import RowFilters
from phalanx.engine.preemption.row_search import Freed, RowSearch, least_possible
from phalanx.engine.preemption.victim_index import EvictionUnit, VictimIndex
from phalanx.engine.state.records import PodRecord
from phalanx.engine.state.shapes import Shape

TRIALS = 100  # rows tested by the filters in a trial, per scheduling attempt
MAX_TABLES = 64  # tables kept; the least recently used is dropped
PAIRS = 12  # pairs of units are tried on rows with at most this many units
EXACT = 2_000  # branches of exact searches, per scheduling attempt
EXACT_ROW = 500  # branches of the exact search on one row
ASKED = 200  # victim sets tested by filters per attempt, on rows that are blocked by more than resources
MOST_OF_ALL = (float("inf"),) * len(ORDER)
FEW_OPEN = 8  # incomplete tables at a time; a pod that needs another table waits


class Candidate(msgspec.Struct, frozen=True):
    row: int
    units: tuple[EvictionUnit, ...]
    key: Key  # cost of evicting the units
    least: Key = ()  # lower bound over all rows, in the provable parts

    @property
    def budgets(self) -> int:
        """Return how many evicted pods are beyond what disruption budgets allow."""
        return int(self.key[ORDER.index("budgets")])

    @property
    def proved(self) -> tuple[str, ...]:
        """Return the leading parts of the cost that are proved minimal, most important first."""
        return proved_parts(self.key, self.least)


class MoreRows(Exception):
    """The table still has rows to evaluate: continue in a later slice."""


class RowTable:
    """Hold the preemption cost and the victims per row, for one shape and priority."""

    def __init__(self, chooser: Chooser, shape: Shape, priority: int) -> None:
        self.chooser = chooser
        self.shape = shape
        self.priority = priority
        self.cost = RankedRows(len(ORDER), 0)
        self.bound = RankedRows(PROVABLE, 0)
        self._left: dict[int, None] = {}  # rows to evaluate
        self.units: dict[int, tuple[EvictionUnit, ...]] = {}
        self._epoch = -1
        self._rows_seen = 0
        self._nominations_seen = 0
        self._versions: tuple[int, ...] = ()
        self._spending = -1
        self._protected: dict[int, None] = {}  # rows with pods under a disruption budget
        self.besides = ""  # key of the preemptor, whose own nomination does not count in `choose`

    def refresh(self, most: int | None = None) -> int:
        """Evaluate changed rows, at most `most` of them. Return the number evaluated; see `complete`."""
        self._catch_up()
        rows = list(self._left)
        for row in rows[:most]:
            self.evaluate_row(row)
            del self._left[row]
        return len(rows) - len(self._left)

    @property
    def complete(self) -> bool:
        return not self._left

    def _catch_up(self) -> None:
        """Collect the rows that have to be evaluated again."""
        victim_index, columns = self.chooser.victim_index, self.chooser.victim_index.columns
        nominations = self.chooser.cluster.nominations
        budgets = victim_index.budgets
        versions = (budgets.version, columns.generation)
        touched = victim_index.changed_rows.since(self._rows_seen)
        reserved = nominations.changes.since(self._nominations_seen)
        if self._epoch != victim_index.epoch or versions != self._versions or touched is None or reserved is None:
            self.cost = RankedRows(len(ORDER), columns.capacity)
            self.bound = RankedRows(PROVABLE, columns.capacity)
            self.units, self._protected = {}, {}
            self._left = dict.fromkeys(np.flatnonzero(columns.alive[: columns.n]).tolist())
        else:
            rows = dict.fromkeys(touched)
            rows.update(dict.fromkeys(columns.row_of[name] for name in reserved if name in columns.row_of))
            if self._spending != budgets.spending:
                rows.update(self._protected)
            self._left.update(rows)
        self._epoch, self._versions, self._spending = victim_index.epoch, versions, budgets.spending
        self._rows_seen, self._nominations_seen = victim_index.changed_rows.position, nominations.changes.position

    def evaluate_row(self, row: int, besides: str = "") -> None:
        """Evaluate one row again; the nomination of the pod `besides` does not count."""
        found = self.chooser.cheapest(self.shape, self.priority, row, besides) if self.chooser.alive(row) else None
        if found is None:
            self.cost.forget(row)
            self.bound.forget(row)
            self.units.pop(row, None)
            return
        self.cost.put(row, found[0])
        self.units[row] = found[1]
        self.bound.put(row, found[2])
        budgets = self.chooser.victim_index.budgets
        if budgets.allowed and row not in self._protected:
            here = self.chooser.victim_index.on_row.get(row, {})
            if any(budgets.of(pod) for pods in here.values() for pod in pods.values()):
                self._protected[row] = None

    def search_exactly(self, allowed: Bools, branches: int) -> int:
        """Search rows exactly whose lower bound is below the best cost, in ascending order of the bound.

        branches: search budget. Return what is left of it.
        """
        row = self.cost.lowest(allowed)
        if row < 0:
            return branches
        best = self.cost.key(row)[:PROVABLE]
        if self.least(allowed) >= best:
            return branches
        for other in self.bound.below(allowed, best):
            if branches <= 0:
                break
            if self.bound.key(other) >= best:
                break  # rows are sorted: the bounds of the following rows are no lower
            search = self.chooser.search(self, other, min(branches, EXACT_ROW))
            branches -= search.spent
            self.cost.put(other, search.key)
            self.units[other] = search.units
            if search.proved:
                self.bound.put(other, search.key[:PROVABLE])
            best = min(best, search.key[:PROVABLE])
        return branches

    def least(self, allowed: Bools) -> Key:
        """Return a lower bound on the cost of these rows, in the provable parts."""
        return self.bound.key(max(0, self.bound.lowest(allowed)))


class Chooser:
    def __init__(self, state: ClusterState, victim_index: VictimIndex) -> None:
        self.cluster = state
        self.victim_index = victim_index
        self._tables: dict[tuple[int, int], RowTable] = {}
        self.looked = 0  # rows evaluated so far

    def alive(self, row: int) -> bool:
        return bool(self.victim_index.columns.alive[row])

    def table(self, shape: Shape, priority: int, most: int | None = None) -> RowTable:
        """Return the table after a refresh of at most `most` rows; it may be incomplete."""
        key = (shape.id, priority)
        table = self._tables.pop(key, None)
        if table is None or table.shape is not shape:
            if most is not None and sum(not each.complete for each in self._tables.values()) >= FEW_OPEN:
                raise MoreRows
            while len(self._tables) >= MAX_TABLES:
                self._tables.pop(next(iter(self._tables)))
            table = RowTable(self, shape, priority)
        self._tables[key] = table
        self.looked += table.refresh(most)
        return table

    # ---- one row by resources -----------------------------------------------------------------------------

    def free(self, shape: Shape, priority: int, row: int, besides: str = "") -> dict[int, float]:
        """Return the free amount per requested resource of the shape.

        Resources of terminating pods count as free. Resources of nominated pods of equal or higher priority do not.
        """
        columns = self.victim_index.columns
        left = {rid: columns.alloc_cell[rid][row] - columns.used_cell[rid][row] for rid, _ in shape.requests}
        for record in self.victim_index.leaving.get(row, {}).values():
            for rid, amount in record.shape.requests:
                if rid in left:
                    left[rid] += amount
        for record in self.cluster.nominations.on(columns.names[row]):
            if record.row < 0 and record.priority >= priority and record.key != besides:
                for rid, amount in record.shape.requests:
                    if rid in left:
                        left[rid] -= amount
        return left

    def candidates(self, priority: int, row: int) -> list[tuple[EvictionUnit, dict[str, PodRecord]]]:
        """Return the evictable units of lower priority, each with its pods on the row."""
        units = self.victim_index.units
        return [
            (unit, pods)
            for key, pods in self.victim_index.on_row.get(row, {}).items()
            if self.victim_index.evictable(unit := units[key], priority)
        ]

    def cheapest(
        self, shape: Shape, priority: int, row: int, besides: str = ""
    ) -> tuple[Key, tuple[EvictionUnit, ...], Key] | None:
        """Return the cost, the victims and a lower bound of the cost that make the pod fit by resources.

        None: no victim set is sufficient. No victims: the resources of terminating pods are sufficient.
        """
        lacking, freed = self._freed(shape, priority, row, besides)
        if not lacking:
            nothing = self.cost(())
            return nothing, (), nothing[:PROVABLE]
        total = {rid: sum(gives[rid] for _, gives in freed) for rid in lacking}
        if any(total[rid] < need for rid, need in lacking.items()):
            return None
        unit_cost = self.victim_index.unit_cost
        freed.sort(key=lambda entry: unit_cost(entry[0]), reverse=True)  # most costly first: reprieved first
        chosen: list[EvictionUnit] = []
        for unit, gives in freed:
            if all(total[rid] - gives[rid] >= need for rid, need in lacking.items()):
                for rid in lacking:
                    total[rid] -= gives[rid]
            else:
                chosen.append(unit)
        best, units = self.cost(chosen), tuple(chosen)
        if self._alike(freed):
            return best, units, best[:PROVABLE]
        for some in _fewer(freed, lacking, len(chosen)):
            cost = self.cost(some)
            if cost < best:
                best, units = cost, some
        return best, units, least_possible(self.victim_index, freed, lacking).key()[:PROVABLE]

    def _freed(self, shape: Shape, priority: int, row: int, besides: str = "") -> tuple[dict[int, float], list[Freed]]:
        """Return the missing amount per resource on a row, and how much of it each evictable unit frees."""
        left = self.free(shape, priority, row, besides)
        lacking = {rid: amount - left[rid] for rid, amount in shape.requests if amount > left[rid]}
        freed: list[Freed] = []
        for unit, pods in self.candidates(priority, row) if lacking else ():
            gives = dict.fromkeys(lacking, 0.0)
            for record in pods.values():
                for rid, amount in record.shape.requests:
                    if rid in gives:
                        gives[rid] += amount
            freed.append((unit, gives))
        return lacking, freed

    def _alike(self, freed: Sequence[Freed]) -> bool:
        """Return True if these units differ in lost work alone: single pods without a disruption budget or a gang.

        The smallest sufficient number of such units is then the cheapest set.
        """
        victim_index = self.victim_index
        if victim_index.budgets.allowed:
            return False
        like, amounts = freed[0]
        return all(
            gives == amounts
            and unit.priority == like.priority
            and len(unit.pods) == 1
            and victim_index.workload(unit) is None
            for unit, gives in freed
        )

    def search(self, table: RowTable, row: int, branches: int) -> RowSearch:
        """Search exactly for the cheapest victims on a row."""
        lacking, freed = self._freed(table.shape, table.priority, row, table.besides)
        known = (table.cost.key(row), table.units[row])
        return RowSearch(self.victim_index, freed, lacking, known, branches)

    def cost(self, units: Sequence[EvictionUnit]) -> Key:
        return self.victim_index.cost(units).key()

    def ready(self, rows: int) -> bool:
        """Continue a rebuild of the victim index by at most `rows` rows; return True if it is complete."""
        read = self.victim_index.prepare(rows)
        self.looked += read // 2
        return read < rows

    # ---- all rows ------------------------------------------------------------------------------------------

    def choose(
        self, record: PodRecord, evaluation: Evaluation, resolvable: Bools, most: int | None = None
    ) -> Candidate | None:
        """Return the cheapest row where evictions make the pod pass all filters.

        Raise MoreRows if more than `most` rows have to be evaluated first.
        """
        table = self.table(record.shape, record.priority, most)
        if not table.complete:
            raise MoreRows
        own = self.victim_index.columns.row_of.get(record.nominated, -1) if record.nominated else -1
        table.besides = record.key if own >= 0 else ""
        if own >= 0:
            table.evaluate_row(own, besides=record.key)
        try:
            return self._choose(table, record, evaluation, resolvable)
        finally:
            table.besides = ""
            if own >= 0:
                table.evaluate_row(own)

    def _choose(
        self, table: RowTable, record: PodRecord, evaluation: Evaluation, resolvable: Bools
    ) -> Candidate | None:
        """Return the cheapest node with victims; the filters are asked only until one passes."""
        others = resolvable & evaluation.columns.alive
        alone = others.copy()
        for plugin, tracker in evaluation.filters:
            if not traits_of(plugin).room:
                alone &= tracker.mask
        best: Candidate | None = None
        refused: list[int] = []
        tries = alone.copy()
        check = _looks_at_others(evaluation)
        branches = EXACT
        for _ in range(TRIALS):
            branches = table.search_exactly(tries, branches)
            row = table.cost.lowest(tries)
            if row < 0:
                break
            units = table.units[row]
            if not check or self.holds(record, evaluation, row, units):
                best = Candidate(row, units, table.cost.key(row))
                break
            tries[row] = False
            refused.append(row)
        shut = others & ~alone & table.cost.possible
        shut[list(refused)] = True
        best, least = self._rejected_by_filters(table, record, evaluation, shut, refused, best)
        if best is None:
            return None
        return Candidate(best.row, best.units, best.key, min(least, table.least(others & ~shut)))

    def _rejected_by_filters(
        self,
        table: RowTable,
        record: PodRecord,
        evaluation: Evaluation,
        shut: Bools,
        refused: Sequence[int],
        best: Candidate | None,
    ) -> tuple[Candidate | None, Key]:
        """Search rows that are blocked by something other than resources, in ascending order of their lower bound.

        Return the better of `best` and the best of these rows, and a lower bound on the cost of these rows.
        refused: rows that pass the filters now, but fail them once their cheapest victims are evicted.
        """
        gate = RowFilters(evaluation, evaluation.filters)
        asked, least = ASKED, MOST_OF_ALL
        rows = sorted((table.bound.key(row), row) for row in np.flatnonzero(shut).tolist())
        for number, (bound, row) in enumerate(rows):
            if best is not None and (bound > best.key[:PROVABLE] or (bound == best.key[:PROVABLE] and row > best.row)):
                break  # rows are sorted: the bounds of the following rows are no lower
            if number >= TRIALS:
                least = min(least, bound)
                break
            gate.approach(row)
            beyond = row in refused or gate.fails_because_of_other_rows(row)
            search = self._gated(gate, record, row, best.key if best is not None else MOST_OF_ALL, asked)
            asked -= search.asked
            # If pods on other nodes affect the verdict, the cost of units on this row is not a lower bound.
            least = min(least, bound if beyond else max(bound, search.floor))
            if search.found is not None and (best is None or (search.key, row) < (best.key, best.row)):
                best = Candidate(row, search.found, search.key)
        return best, least

    def _gated(self, gate: RowFilters, record: PodRecord, row: int, below: Key, asks: int) -> FilteredRow:
        units = [unit for unit, _ in self.candidates(record.priority, row)]
        units.sort(key=self.victim_index.unit_cost, reverse=True)  # most costly first: reprieved first
        try:
            trial = RowTrial(lambda some: self.clear(record, row, some), lambda: gate.passes(row), gate.monotone)
            return FilteredRow(self.victim_index.columns, units, self.cost, trial, below, asks)
        finally:
            gate.evaluation.refresh()

    def holds(self, record: PodRecord, evaluation: Evaluation, row: int, units: Iterable[EvictionUnit]) -> bool:
        """Return True if the pod passes every filter on the row once these units are evicted."""
        columns = self.victim_index.columns
        mark = columns.journal.mark()
        try:
            self.clear(record, row, units)
            evaluation.refresh()
            return bool(evaluation.feasible[row])
        finally:
            columns.journal.rewind(mark)
            evaluation.refresh()

    def clear(self, record: PodRecord, row: int, units: Iterable[EvictionUnit]) -> dict[str, int]:
        """Remove the units and the row's terminating pods, and place the pods nominated to the row.

        Return the row of each removed pod of the units, by pod key.
        """
        columns = self.victim_index.columns
        home: dict[str, int] = {}
        for unit in units:
            for pod in unit.pods.values():
                home[pod.key] = pod.row
                columns.unplace(pod)
        for pod in list(self.victim_index.leaving.get(row, {}).values()):
            columns.unplace(pod)
        for rival in self.cluster.nominations.rivals(columns.names[row], record):
            if rival.row < 0:
                columns.place(rival, row)
        return home


def _fewer(freed: Sequence[Freed], lacking: Mapping[int, float], than: int) -> Iterator[tuple[EvictionUnit, ...]]:
    """Yield single units, then pairs, that free enough; only sets of fewer than `than` units."""
    for size in (1, 2):
        if than <= size or (size > 1 and len(freed) > PAIRS):
            return
        if any(sum(sorted(gives[rid] for _, gives in freed)[-size:]) < need for rid, need in lacking.items()):
            continue  # even the units that free most are not sufficient
        for some in combinations(freed, size):
            if all(sum(gives[rid] for _, gives in some) >= need for rid, need in lacking.items()):
                yield tuple(unit for unit, _ in some)


def _looks_at_others(evaluation: Evaluation) -> bool:
    """Return True if removing pods can make a passing filter fail (required affinity, topology spread)."""
    shape = evaluation.shape
    return (
        shape.affinity is not None
        or bool(shape.spread)
        or any(
            way_of(plugin, "filter") == "track" and not traits_of(plugin).relieved for plugin, _ in evaluation.filters
        )
    )
