"""Sets of units in the one order, the cheapest first: where only the filters know whether a set suffices.

The growing parts of a cost never shrink when a unit is added: a set costs no less in them than every part of it, so
all sets of one price are known when the first of them is reached. The other parts then order these.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from phalanx.engine.preemption.cost import GROWING, PROVABLE, Key
from phalanx.engine.slices import worked

Chosen = tuple[int, ...]
PRICED = 2  # of work, to price a set


class BestFirstSets:
    """`floor`: no set that was not answered yet costs less. `cut`: there are more, but the limit was reached."""

    def __init__(self, count: int, price: Callable[[Chosen], Key], below: Key, limit: int) -> None:
        """`price`: the cost of a set; only sets that cost less than `below` in the provable parts are wanted."""
        self._count = count
        self._price = price
        self.below = below[:PROVABLE]
        self._left = limit  # sets to be priced
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
                return  # whoever holds one of these costs more
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
