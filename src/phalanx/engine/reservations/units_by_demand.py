"""Waiting units by what they need: if the first of units that are alike cannot start, none of them can."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from phalanx.engine.reservations.reservation import Demand, PodDemand
from phalanx.engine.reservations.units import WaitingUnit

Kind = tuple[PodDemand, int, float, float, int]  # of one pod, pods, size, expected seconds, priority


def kind_of(entry: WaitingUnit) -> Kind:
    demand = entry.unit.demand
    return (demand.pod, demand.pods, entry.unit.size, entry.span, entry.unit.priority)


FEW_PER_GROUP = 2  # units per group, on average


class UnitsByDemand:
    """Waiting units in groups; each group is in the order of creation, which is every order within a group."""

    def __init__(self) -> None:
        self._groups: dict[Kind, list[WaitingUnit]] = {}
        self._priorities: dict[int, int] = {}  # priority -> number of units

    def add(self, entry: WaitingUnit) -> None:
        bisect.insort(self._groups.setdefault(kind_of(entry), []), entry, key=_order)
        priority = entry.unit.priority
        self._priorities[priority] = self._priorities.get(priority, 0) + 1

    def remove(self, entry: WaitingUnit) -> None:
        kind, priority = kind_of(entry), entry.unit.priority
        group = self._groups[kind]
        del group[bisect.bisect_left(group, _order(entry), key=_order)]
        if not group:
            del self._groups[kind]
        self._priorities[priority] -= 1
        if not self._priorities[priority]:
            del self._priorities[priority]

    @property
    def lowest_priority(self) -> int:
        return min(self._priorities, default=0)

    def in_order(
        self,
        key: Callable[[WaitingUnit], Any],
        slots: Callable[[Demand], int] | None = None,
        closed: Iterable[Kind] = (),
    ) -> Iterator[WaitingUnit]:
        """Yield units by `key`, which orders the units of a group by creation. A unit may be removed once it is here.

        `slots`: returns for how many pods like those of a demand there is room; units with more pods are left out.
        `closed`: groups from which no more is wanted; it may grow meanwhile.
        """
        groups = list(self._groups.items())
        if slots is not None:
            most: dict[PodDemand, int] = {}
            for kind, group in groups:
                if kind[0] not in most:
                    most[kind[0]] = slots(group[0].unit.demand)
            groups = [(kind, group) for kind, group in groups if kind[1] <= most[kind[0]]]
        if len(groups) == 1:
            return _members(*groups[0], closed)
        if sum(len(group) for _, group in groups) <= FEW_PER_GROUP * len(groups):  # faster than to merge
            every = [(key(entry), entry.unit.name, kind, entry) for kind, group in groups for entry in group]
            return _popped(every, closed)
        return heapq.merge(*(_members(kind, group, closed) for kind, group in groups), key=key)


def _order(entry: WaitingUnit) -> tuple[int, float, int]:
    return entry.unit.order


def _popped(every: list[tuple[Any, str, Kind, WaitingUnit]], closed: Iterable[Kind]) -> Iterator[WaitingUnit]:
    """Yield the units of a list by key. Most callers want a few of them, so the list is not sorted."""
    heapq.heapify(every)
    while every:
        _, _, kind, entry = heapq.heappop(every)
        if kind not in closed:
            yield entry


def _members(kind: Kind, group: list[WaitingUnit], closed: Iterable[Kind]) -> Iterator[WaitingUnit]:
    i = 0
    while i < len(group) and kind not in closed:
        entry = group[i]
        yield entry
        if i < len(group) and group[i] is entry:
            i += 1
