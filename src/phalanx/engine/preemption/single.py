"""The cheapest node for one pod: per shape and priority a table over rows, kept current row by row.

A row's entry is the least that has to go there by resources alone. Rows where something else than resources is in the
way (a port, an affinity rule, a volume) are judged by the filters themselves in a trial.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from phalanx.engine.framework import Bools
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.framework.evaluation import Evaluation
from phalanx.engine.framework.interface import way_of
from phalanx.engine.framework.traits import traits_of
from phalanx.engine.preemption.catalogue import Catalogue, Unit
from phalanx.engine.preemption.cost import ORDER
from phalanx.engine.state.records import PodRecord
from phalanx.engine.state.shapes import Shape

TRIALS = 100  # rows judged by the filters themselves, per attempt
MAX_TABLES = 64
IMPOSSIBLE = np.inf
PAIRS = 12  # units on a row up to which every pair is tried in place of a longer list
Freed = tuple[Unit, dict[int, float]]  # what a unit frees on a row, by resource


@dataclass(frozen=True, slots=True)
class Candidate:
    row: int
    units: tuple[Unit, ...]
    key: tuple[float, ...]  # cost in the configured order


class RowTable:
    """For one shape and priority: cost arrays over rows and who would have to go."""

    def __init__(self, chooser: Chooser, shape: Shape, priority: int) -> None:
        self.chooser = chooser
        self.shape = shape
        self.priority = priority
        self.cost: npt.NDArray[np.float64] = np.zeros((0, 0))  # (len(ORDER), capacity), inf where impossible
        self.units: dict[int, tuple[Unit, ...]] = {}
        self._epoch = -1
        self._rows_seen = 0
        self._promises_seen = 0
        self._versions: tuple[int, ...] = ()
        self._spending = -1
        self._protected: dict[int, None] = {}  # rows with pods under a disruption budget

    def refresh(self) -> None:
        catalogue, columns = self.chooser.catalogue, self.chooser.catalogue.columns
        nominations = self.chooser.cluster.nominations
        budgets = catalogue.budgets
        versions = (budgets.version, columns.generation)
        touched = catalogue.changed_rows.since(self._rows_seen)
        promised = nominations.changes.since(self._promises_seen)
        if self._epoch != catalogue.epoch or versions != self._versions or touched is None or promised is None:
            self.cost = np.full((len(ORDER), columns.capacity), IMPOSSIBLE)
            self.units, self._protected = {}, {}
            rows: Iterable[int] = np.flatnonzero(columns.alive[: columns.n]).tolist()
        else:
            rows = dict.fromkeys(touched)
            rows.update(dict.fromkeys(columns.row_of[name] for name in promised if name in columns.row_of))
            if self._spending != budgets.spending:
                rows.update(self._protected)
        self._epoch, self._versions, self._spending = catalogue.epoch, versions, budgets.spending
        self._rows_seen, self._promises_seen = catalogue.changed_rows.position, nominations.changes.position
        for row in rows:
            self.look(row)

    def look(self, row: int, besides: str = "") -> None:
        """Judge one row again; the promise to the pod `besides` does not count."""
        found = self.chooser.cheapest(self.shape, self.priority, row, besides) if self.chooser.alive(row) else None
        if found is None:
            self.cost[:, row] = IMPOSSIBLE
            self.units.pop(row, None)
            return
        self.cost[:, row] = found[0]
        self.units[row] = found[1]
        budgets = self.chooser.catalogue.budgets
        if budgets.allowed and row not in self._protected:
            here = self.chooser.catalogue.on_row.get(row, {})
            if any(budgets.of(pod) for pods in here.values() for pod in pods.values()):
                self._protected[row] = None

    def best(self, allowed: Bools) -> int:
        """The cheapest allowed row, the lowest among equals; -1 if there is none."""
        left = allowed & (self.cost[0] < IMPOSSIBLE)
        for part in self.cost:
            left &= part == part.min(where=left, initial=IMPOSSIBLE)
        row = int(left.argmax())
        return row if left[row] else -1


class Chooser:
    def __init__(self, state: ClusterState, catalogue: Catalogue, order: Sequence[str] = ORDER) -> None:
        self.cluster = state
        self.catalogue = catalogue
        self.order = tuple(order)
        self._tables: dict[tuple[int, int], RowTable] = {}

    def alive(self, row: int) -> bool:
        return bool(self.catalogue.columns.alive[row])

    def table(self, shape: Shape, priority: int) -> RowTable:
        key = (shape.id, priority)
        table = self._tables.pop(key, None)
        if table is None or table.shape is not shape:
            while len(self._tables) >= MAX_TABLES:
                self._tables.pop(next(iter(self._tables)))
            table = RowTable(self, shape, priority)
        self._tables[key] = table
        table.refresh()
        return table

    # ---- one row by resources -----------------------------------------------------------------------------

    def free(self, shape: Shape, priority: int, row: int, besides: str = "") -> dict[int, float]:
        """Per resource the shape asks for: free now or soon, less what is promised to others of at least its rank."""
        columns = self.catalogue.columns
        left = {rid: columns.alloc_cell[rid][row] - columns.used_cell[rid][row] for rid, _ in shape.requests}
        for record in self.catalogue.leaving.get(row, {}).values():
            for rid, amount in record.shape.requests:
                if rid in left:
                    left[rid] += amount
        for record in self.cluster.nominations.on(columns.names[row]):
            if record.row < 0 and record.priority >= priority and record.key != besides:
                for rid, amount in record.shape.requests:
                    if rid in left:
                        left[rid] -= amount
        return left

    def candidates(self, priority: int, row: int) -> list[tuple[Unit, dict[str, PodRecord]]]:
        """Units of lower priority with their pods on the row."""
        units = self.catalogue.units
        return [
            (unit, pods)
            for key, pods in self.catalogue.on_row.get(row, {}).items()
            if (unit := units[key]).priority < priority
        ]

    def cheapest(
        self, shape: Shape, priority: int, row: int, besides: str = ""
    ) -> tuple[tuple[float, ...], tuple[Unit, ...]] | None:
        """Least cost of making the pod fit by resources; None: impossible. No victims: what is leaving suffices."""
        left = self.free(shape, priority, row, besides)
        lacking = {rid: amount - left[rid] for rid, amount in shape.requests if amount > left[rid]}
        if not lacking:
            return self.cost(()), ()
        freed: list[Freed] = []
        total = dict.fromkeys(lacking, 0.0)
        for unit, pods in self.candidates(priority, row):
            gives = dict.fromkeys(lacking, 0.0)
            for record in pods.values():
                for rid, amount in record.shape.requests:
                    if rid in gives:
                        gives[rid] += amount
                        total[rid] += amount
            freed.append((unit, gives))
        if any(total[rid] < need for rid, need in lacking.items()):
            return None
        hurt = self.catalogue.hurt
        freed.sort(key=lambda entry: hurt(entry[0]), reverse=True)  # whom to spare first in front
        chosen: list[Unit] = []
        for unit, gives in freed:
            if all(total[rid] - gives[rid] >= need for rid, need in lacking.items()):
                for rid in lacking:
                    total[rid] -= gives[rid]
            else:
                chosen.append(unit)
        best, units = self.cost(chosen), tuple(chosen)
        for some in _fewer(freed, lacking, len(chosen)):
            cost = self.cost(some)
            if cost < best:
                best, units = cost, some
        return best, units

    def cost(self, units: Sequence[Unit]) -> tuple[float, ...]:
        return self.catalogue.cost(units).key(self.order)

    # ---- all rows ------------------------------------------------------------------------------------------

    def choose(self, record: PodRecord, evaluation: Evaluation, resolvable: Bools) -> Candidate | None:
        """The cheapest row where evictions make the pod fit, whatever its filters look at."""
        table = self.table(record.shape, record.priority)
        own = self.catalogue.columns.row_of.get(record.nominated, -1) if record.nominated else -1
        if own >= 0:
            table.look(own, besides=record.key)
        try:
            return self._choose(table, record, evaluation, resolvable)
        finally:
            if own >= 0:
                table.look(own)

    def _choose(
        self, table: RowTable, record: PodRecord, evaluation: Evaluation, resolvable: Bools
    ) -> Candidate | None:
        others = resolvable & evaluation.columns.alive
        alone = others.copy()
        for plugin, tracker in evaluation.filters:
            if not traits_of(plugin).room:
                alone &= tracker.mask
        best: Candidate | None = None
        tries = alone.copy()
        check = _looks_at_others(evaluation)
        for _ in range(TRIALS):
            row = table.best(tries)
            if row < 0:
                break
            units = table.units[row]
            if not check or self.holds(record, evaluation, row, units):
                best = Candidate(row, units, tuple(table.cost[:, row]))
                break
            tries[row] = False
        hindered = np.flatnonzero(others & ~alone & (table.cost[0] < IMPOSSIBLE))
        for row in hindered[:TRIALS].tolist():
            found = self.trial(record, evaluation, row)
            if found is not None and (best is None or (found.key, found.row) < (best.key, best.row)):
                best = found
        return best

    def holds(self, record: PodRecord, evaluation: Evaluation, row: int, units: Iterable[Unit]) -> bool:
        """Whether every filter agrees once these units are gone."""
        columns = self.catalogue.columns
        mark = columns.journal.mark()
        try:
            self._clear(record, row, units)
            evaluation.refresh()
            return bool(evaluation.feasible[row])
        finally:
            columns.journal.rewind(mark)
            evaluation.refresh()

    def trial(self, record: PodRecord, evaluation: Evaluation, row: int) -> Candidate | None:
        """Everything of lower priority off the row, then back again one by one while the pod still fits."""
        columns = self.catalogue.columns
        units = [unit for unit, _ in self.candidates(record.priority, row)]
        if not units:
            return None
        units.sort(key=self.catalogue.hurt, reverse=True)  # whom to spare first in front
        mark = columns.journal.mark()
        try:
            self._clear(record, row, units)
            evaluation.refresh()
            if not evaluation.feasible[row]:
                return None
            victims: list[Unit] = []
            for unit in units:
                inner = columns.journal.mark()
                for pod in unit.pods.values():
                    columns.place(pod, self._home[pod.key])
                evaluation.refresh()
                if evaluation.feasible[row]:
                    columns.journal.release(inner)
                else:
                    columns.journal.rewind(inner)
                    victims.append(unit)
            return Candidate(row, tuple(victims), self.cost(victims))
        finally:
            columns.journal.rewind(mark)
            evaluation.refresh()

    def _clear(self, record: PodRecord, row: int, units: Iterable[Unit]) -> None:
        """Take units and terminating pods away, and count whoever was promised the row."""
        columns = self.catalogue.columns
        self._home: dict[str, int] = {}
        for unit in units:
            for pod in unit.pods.values():
                self._home[pod.key] = pod.row
                columns.unplace(pod)
        for pod in list(self.catalogue.leaving.get(row, {}).values()):
            columns.unplace(pod)
        for rival in self.cluster.nominations.rivals(columns.names[row], record):
            if rival.row < 0:
                columns.place(rival, row)


def _fewer(freed: Sequence[Freed], lacking: Mapping[int, float], than: int) -> Iterator[tuple[Unit, ...]]:
    """Single units, and pairs where there are not too many, that free enough; only fewer than so many."""
    for size in (1, 2):
        if than <= size or (size > 1 and len(freed) > PAIRS):
            return
        if any(sum(sorted(gives[rid] for _, gives in freed)[-size:]) < need for rid, need in lacking.items()):
            continue  # not even those that free most
        for some in combinations(freed, size):
            if all(sum(gives[rid] for _, gives in some) >= need for rid, need in lacking.items()):
                yield tuple(unit for unit, _ in some)


def _looks_at_others(evaluation: Evaluation) -> bool:
    """Whether taking pods away could make some filter say no that says yes now (required affinity, spreading)."""
    shape = evaluation.shape
    return (
        shape.affinity is not None
        or bool(shape.spread)
        or any(
            way_of(plugin, "filter") == "track" and not traits_of(plugin).relieved for plugin, _ in evaluation.filters
        )
    )
