"""For how many pods there is room from now on: a quick test before nodes are chosen for a unit that may start."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from phalanx.engine.reservations.capacity import CapacityProfile, Ints
from phalanx.engine.reservations.reservation import Demand, PodDemand
from phalanx.engine.reservations.units import WaitingUnit

MOST_NODES = 256  # nodes with room now; if there are more of them, the test costs more than it saves

Table = tuple[npt.NDArray[np.bool_], npt.NDArray[np.float64], Ints]  # (node,) has room now; (piece,) times, and pods


class RoomNow:
    def __init__(self, profile: CapacityProfile) -> None:
        self._profile = profile
        self._slots: dict[PodDemand, int] = {}
        self._tables: dict[PodDemand, Table | None] = {}

    def slots(self, demand: Demand) -> int:
        """Return for how many pods like those of a demand there is room now."""
        if demand.pod not in self._slots:
            self._slots[demand.pod] = self._profile.slots_now(demand)
        return self._slots[demand.pod]

    def taken(self) -> None:
        """Forget everything: a unit started."""
        self._slots.clear()
        self._tables.clear()

    def excludes(self, entry: WaitingUnit, until: float) -> bool:
        """Return True if a unit cannot run from now until then, even if its own reservation ends."""
        demand, where = entry.unit.demand, entry.where
        if demand.pod not in self._tables:
            self._tables[demand.pod] = self._profile.pods_from_now(demand, MOST_NODES)
        table = self._tables[demand.pod]
        if table is None or entry.start <= self._profile.start:
            return False
        nodes, times, pods = table
        own = int(where.counts[nodes[where.rows]].sum()) if where is not None else 0
        return int(pods[max(0, int(times.searchsorted(until)) - 1)]) + own < demand.pods
