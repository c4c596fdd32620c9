"""For how many pods there is room from now on: a quick test before nodes are chosen for a unit that may start."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from phalanx.engine.reservations.capacity import CapacityProfile, Ints
from phalanx.engine.reservations.reservation import Assignment, Demand, PodDemand, Rows
from phalanx.engine.reservations.units import WaitingUnit

MOST_NODES = 256  # nodes with room now; if there are more of them, the test costs more than it saves


@dataclass(slots=True)
class RoomTable:
    demand: Demand
    nodes: Rows  # with room now when the table was made
    times: npt.NDArray[np.float64]  # (piece,)
    pods: Ints  # (piece, node) from now until the end of each piece

    def own(self, where: Assignment) -> int:
        """Return how many pods of an assignment are on nodes with room now."""
        if not len(self.nodes):
            return 0
        at = np.minimum(self.nodes.searchsorted(where.rows), len(self.nodes) - 1)
        return int(where.counts[(self.nodes[at] == where.rows) & (self.pods[0, at] > 0)].sum())


class RoomNow:
    def __init__(self, profile: CapacityProfile) -> None:
        self._profile = profile
        self._slots: dict[PodDemand, int] = {}
        self._tables: dict[PodDemand, RoomTable | None] = {}  # None: more nodes than MOST_NODES

    def slots(self, demand: Demand) -> int:
        """Return for how many pods like those of a demand there is room now."""
        if demand.pod not in self._slots:
            table = self._tables.get(demand.pod)
            self._slots[demand.pod] = (
                self._profile.most_together(demand, table.pods[0], table.nodes)
                if table is not None
                else self._profile.slots_now(demand)
            )
        return self._slots[demand.pod]

    def taken(self, *places: Assignment | None) -> None:
        """Read these places again: a unit started, and what it had reserved from a later time on is free."""
        self._slots.clear()
        rows = np.concatenate([place.rows for place in places if place is not None])
        for pod, table in list(self._tables.items()):
            if table is None:
                del self._tables[pod]
                continue
            pieces = table.times.searchsorted(self._profile.times, side="right") - 1
            table.times, table.pods = self._profile.times.copy(), table.pods[pieces]
            columns = np.flatnonzero(np.isin(table.nodes, rows))
            table.pods[:, columns] = self._profile.pods_from_now(table.demand, table.nodes[columns])

    def forget(self) -> None:
        self._slots.clear()
        self._tables.clear()

    def excludes(self, entry: WaitingUnit, until: float) -> bool:
        """Return True if a unit cannot run from now until then, even if its own reservation ends."""
        demand, where = entry.unit.demand, entry.where
        if demand.pod not in self._tables:
            self._tables[demand.pod] = self._table(demand)
        table = self._tables[demand.pod]
        if table is None or entry.start <= self._profile.start:
            return False
        own = table.own(where) if where is not None else 0
        slots = table.pods[max(0, int(table.times.searchsorted(until)) - 1)]
        return self._profile.most_together(demand, slots, table.nodes) + own < demand.pods

    def _table(self, demand: Demand) -> RoomTable | None:
        nodes = self._profile.nodes_with_room_now(demand)
        if len(nodes) > MOST_NODES:
            return None
        return RoomTable(demand, nodes, self._profile.times.copy(), self._profile.pods_from_now(demand, nodes))
