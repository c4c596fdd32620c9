"""Find the cheapest victims on a row that is blocked by more than resources (a port, an affinity rule, a volume).

Only the filters can tell if a victim set is sufficient. First, evict all candidates and reprieve them in descending
cost. Then test every cheaper set in ascending cost (`cost.ORDER`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from phalanx.engine.preemption.cost import GROWING, PROVABLE, Key
from phalanx.engine.preemption.victim_index import EvictionUnit
from phalanx.engine.slices import worked
from phalanx.engine.state.columns import Columns

Chosen = tuple[int, ...]
PRICED = 2  # units of work to price one set


class BestFirstSets:
    """Iterate over victim sets. `floor`: lower bound of the sets still to come. `cut`: the limit ended the search."""

    def __init__(self, count: int, price: Callable[[Chosen], Key], below: Key, limit: int) -> None:
        """Search `count` units. price: cost of a set. below: only cheaper sets, in the provable parts, are returned.

        limit: number of sets to price.
        """
        self._count = count
        self._price = price
        self.below = below[:PROVABLE]
        self._left = limit  # sets that may still be priced
        self.floor: Key = ()
        self.cut = False

    def __iter__(self) -> Iterator[tuple[Key, Chosen]]:
        heap: list[tuple[Key, Chosen]] = [(self._price(()), ())]
        while heap:
            first = heap[0][0][:GROWING]
            self.floor = first
            if first > self.below[:GROWING]:
                return
            level: list[tuple[Key, Chosen]] = []
            while heap and heap[0][0][:GROWING] == first:
                level.append(heapq.heappop(heap))
            for each in sorted(level):
                if each[0][:PROVABLE] >= self.below:
                    break
                self.floor = each[0][:PROVABLE]
                yield each
            if first == self.below[:GROWING]:
                return  # every superset of these sets costs more
            for _, chosen in level:
                if not self._extend(chosen, heap):
                    self.cut = True
                    self.floor = first
                    return

    def _extend(self, chosen: Chosen, heap: list[tuple[Key, Chosen]]) -> bool:
        start = chosen[-1] + 1 if chosen else 0
        self._left -= self._count - start
        if self._left < 0:
            return False
        for unit in range(start, self._count):
            worked(PRICED)
            more = (*chosen, unit)
            key = self._price(more)
            if key[:GROWING] <= self.below[:GROWING]:
                heapq.heappush(heap, (key, more))
        return True


SETS = 1_000  # victim sets priced per row


class RowTrial(NamedTuple):
    clear: Callable[[Sequence[EvictionUnit]], dict[str, int]]  # remove units; return the former row of each pod
    passes: Callable[[], bool]  # run the filters
    monotone: bool  # if evicting all units is not sufficient, no subset is


class FilteredRow:
    """Search one row. `found`: victims cheaper than `below`. `key`: their cost. `floor`: lower bound of the cost."""

    def __init__(
        self,
        columns: Columns,
        units: Sequence[EvictionUnit],
        cost: Callable[[Sequence[EvictionUnit]], Key],
        trial: RowTrial,
        below: Key,
        asks: int,
    ) -> None:
        """Run the search.

        units: candidates, the first to reprieve first. asks: maximum number of filter runs after the reprieve pass.
        """
        self._columns = columns
        self._units = units
        self._cost = cost
        self._clear = trial.clear
        self._passes = trial.passes
        self.found: tuple[EvictionUnit, ...] | None = None
        self.key = below
        self.floor: Key = ()
        self.asked = 0
        if self._put_back() or not trial.monotone:
            self._search(asks)
        else:
            self.floor = (float("inf"),) * PROVABLE

    def _put_back(self) -> bool:
        """Evict all units and reprieve what is unnecessary; return False if evicting all is not sufficient."""
        journal = self._columns.journal
        mark = journal.mark()
        try:
            home = self._clear(self._units)
            if not self._passes():
                return False
            victims: list[EvictionUnit] = []
            for unit in self._units:
                inner = journal.mark()
                for pod in unit.pods.values():
                    self._columns.place(pod, home[pod.key])
                if self._passes():
                    journal.release(inner)
                else:
                    journal.rewind(inner)
                    victims.append(unit)
            self._offer(tuple(victims), self._cost(victims))
            return True
        finally:
            journal.rewind(mark)

    def _offer(self, victims: tuple[EvictionUnit, ...], key: Key) -> None:
        if key < self.key:
            self.found, self.key = victims, key

    def _search(self, asks: int) -> None:
        def price(chosen: Chosen) -> Key:
            return self._cost([self._units[number] for number in chosen])

        sets = BestFirstSets(len(self._units), price, self.key, SETS)
        for key, chosen in sets:
            if self.asked >= asks:
                self.floor = key[:PROVABLE]
                return
            victims = tuple(self._units[number] for number in chosen)
            if self._suffice(victims):
                self._offer(victims, key)
                break
        self.floor = sets.floor if sets.cut else self.key[:PROVABLE]

    def _suffice(self, units: Sequence[EvictionUnit]) -> bool:
        self.asked += 1
        mark = self._columns.journal.mark()
        try:
            self._clear(units)
            return self._passes()
        finally:
            self._columns.journal.rewind(mark)
