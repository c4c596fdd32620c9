"""What has still to be written because a write failed: it is said again after a while, also where nothing else happens.

Keeps what was to be said and when; its author writes it again, and only if it is still true.
"""

from __future__ import annotations

from phalanx.engine import decisions as d
from phalanx.engine.framework.cluster_state import ClusterState

AFTER = 5.0  # seconds

Condition = d.SetPodCondition | d.SetGroupCondition


class PendingWrites:
    def __init__(self, state: ClusterState) -> None:
        self._cluster = state
        # (kind, namespace, name) -> (when, the last write that failed), the next one first
        self._unwritten: dict[tuple[str, str, str], tuple[float, Condition]] = {}

    def add(self, decision: Condition) -> None:
        kind = decision.kind if isinstance(decision, d.SetGroupCondition) else "Pod"
        key = (kind, decision.namespace, decision.name)
        self._unwritten.pop(key, None)
        self._unwritten[key] = (self._cluster.now + AFTER, decision)

    def take(self) -> list[Condition]:
        """Return the writes that are due, once."""
        due: list[Condition] = []
        for when, decision in self._unwritten.values():
            if when > self._cluster.now:
                break
            due.append(decision)
        for key in list(self._unwritten)[: len(due)]:
            del self._unwritten[key]
        return due

    def next_time(self) -> float | None:
        """Return the time in seconds at which `take` will return something."""
        return next((when for when, _ in self._unwritten.values()), None)
