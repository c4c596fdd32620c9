"""What a reservation is: which room a unit may use, from when until when, and for what reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.intp]  # (chosen node,) rows of the capacity profile
PodDemand = tuple[tuple[int, ...], int, int]  # request, level, eligible nodes
FOREVER = float("inf")  # an end that is not known


class Reason(StrEnum):
    """Why room is reserved, or why a promised start moved."""

    RUNNING = "Running"  # bound pods use it
    PROMISED = "StartPromised"  # a waiting unit starts here
    STARVING = "Starving"  # a waiting unit was overtaken too long or too often
    NODES_TO_COME = "NodesToCome"  # nodes came for a gang that lacks more of them
    NOMINATED = "Nominated"  # victims end here for a preemptor
    EXPECTED = "ExpectedPods"  # members that their controller has not created yet
    OVERRAN = "JobOverran"  # a running unit exceeded its expected duration
    NODE_LOST = "NodeLost"  # a node left, or was cordoned
    HIGHER_PRIORITY = "HigherPriority"  # a unit of higher priority arrived


@dataclass(frozen=True, slots=True)
class Demand:
    """What a unit needs at the same time: `pods` equal pods, each on one node, all in one domain of `level`."""

    pods: int
    request: tuple[int, ...]  # (resource,) of one pod
    level: int = -1  # index of the topology level that must hold all pods; -1: no rule
    eligible: npt.NDArray[np.bool_] | None = field(default=None, compare=False, hash=False)  # (node,); None: every node
    eligible_id: int = 0  # equal for demands with the same eligible nodes

    @property
    def pod(self) -> PodDemand:
        """Return what one pod of it needs and where: if fewer pods of these do not fit, more of them do not either."""
        return (self.request, self.level, self.eligible_id)


@dataclass(frozen=True, slots=True)
class Assignment:
    """Nodes for a demand: `counts[i]` pods on the node in row `rows[i]`."""

    rows: Rows
    counts: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Reservation:
    """Room that `owner` holds from `start` until `until` (seconds; `FOREVER`: no known end)."""

    owner: str
    demand: Demand
    assignment: Assignment
    start: float
    until: float
    reason: Reason = Reason.PROMISED
    domain: str = ""  # the topology domain that holds all pods, if the demand has a level

    def as_dict(self, node_names: list[str]) -> dict[str, Any]:
        """Return the reservation as plain values for status, `why` and reports."""
        return {
            "owner": self.owner,
            "nodes": [node_names[row] for row in self.assignment.rows.tolist()],
            "domain": self.domain,
            "from": self.start,
            "until": None if self.until == FOREVER else self.until,
            "reason": str(self.reason),
        }
