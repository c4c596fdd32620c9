"""Enumerate victim sets in ascending cost (`cost.ORDER`), where only the filters can tell if a set is sufficient.

The growing parts of a cost never decrease when a unit is added, so a set costs at least as much in them as each of its
subsets. All sets with equal growing parts are therefore known when the first of them is reached; the other parts of the
cost then order them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from phalanx.engine.preemption.cost import GROWING, PROVABLE, Key
from phalanx.engine.slices import worked

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
