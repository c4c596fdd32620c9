"""Find when and where a waiting unit can start first, by attempts on the cluster without pods that will have ended.

Pods are removed in the order of their expected ends; those without a known end come last, longest running first. The
smallest number of ends after which the unit fits is found by bisection; every trial is rewound.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence

import msgspec

from phalanx.engine.framework.adapters import PluginFailure
from phalanx.engine.framework.choice import choose
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.groups.build import Unplaceable, build
from phalanx.engine.groups.find_placement import Found, find
from phalanx.engine.placement.outcome import plural
from phalanx.engine.reservations import FOREVER
from phalanx.engine.scheduling.attempt.run_times import RunTimes
from phalanx.engine.scheduling.queue.units import SchedulingUnit
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.records import PodRecord
from phalanx.model.groups import Group, GroupKey

Rows = list[tuple[PodRecord, int]]
LEVELS = 16  # times tried: at most this many known ends, and as many unknown ones
SHOWN_NODES = 3


class Planned(msgspec.Struct, frozen=True):
    """Where a unit can start first. `start` None: pods in its way have no known end."""

    assignment: Rows
    start: float | None
    where: str  # the domain, or some of the nodes, for messages
    waits_for: int = 0  # number of pods on these nodes that have to end


class StartTimes:
    def __init__(
        self,
        state: ClusterState,
        group_of: Callable[[SchedulingUnit], Group | None],
        pending: Mapping[GroupKey, dict[str, PodRecord]],
    ) -> None:
        """Read the queue. `pending`: leaf -> its pending pods."""
        self._cluster = state
        self._group_of = group_of
        self._pending = pending
        self.run_times = RunTimes(state)

    def any_known_end(self) -> bool:
        """Return True if a running pod is expected to end at a known time."""
        return any(
            self.run_times.end_of(record) != FOREVER for pods in self._cluster.columns.pods for record in pods.values()
        )

    # ---- planning

    def plan(self, unit: SchedulingUnit) -> Planned | None:
        """Return when and where the unit can start first; None if it never fits."""
        group = self._group_of(unit)
        if unit.kind != "Pod" and group is None:
            return None
        key = group.spec.topology_key if group is not None and group.spec is not None else ""
        return self.first(lambda: self._attempt(unit, group), unit.records, key or "")

    def first(self, attempt: Callable[[], Rows | None], own: Container[str], topology_key: str = "") -> Planned | None:
        """Return the first start of the pods that `attempt` places; `own`: their keys."""
        running = [r for pods in self._cluster.columns.pods for r in pods.values() if r.key not in own]
        self.run_times.forget_all_but(running)
        ends = {record.key: self.run_times.end_of(record) for record in running}
        running.sort(key=lambda r: (ends[r.key], self.run_times.began(r), r.order))
        steps = _levels([ends[record.key] for record in running])
        low, high = 0, len(steps) - 1
        best = self._without(running[: steps[high]], attempt)
        if best is None:
            return None
        while low < high:
            middle = (low + high) // 2
            found = self._without(running[: steps[middle]], attempt)
            if found is None:
                low = middle + 1
            else:
                best, high = found, middle
        return self._planned(topology_key, best, {r.key for r in running[: steps[high]]}, ends)

    def _without(self, ended: list[PodRecord], attempt: Callable[[], Rows | None]) -> Rows | None:
        """Make the attempt without these pods, then restore them."""
        columns = self._cluster.columns
        mark = columns.journal.mark()
        try:
            columns.unplace_all(ended)
            return attempt()
        finally:
            columns.journal.rewind(mark)

    def _attempt(self, unit: SchedulingUnit, group: Group | None) -> Rows | None:
        state = self._cluster
        try:
            if group is None:
                row = choose(state, unit.record, state.evaluation(unit.record), [])
                return [(unit.record, row)] if row >= 0 else None
            built = build(state, group, self._pending, state.settings.search_budget, unit.priority)
            found = find(state, group, built)
            return list(found.assignment) if isinstance(found, Found) and found.assignment else None
        except (PluginFailure, Unplaceable):
            return None

    def _planned(self, key: str, rows: Rows, ended: Container[str], ends: dict[str, float]) -> Planned:
        columns = self._cluster.columns
        chosen = sorted({row for _, row in rows})
        gone = [pod for row in chosen for pod in columns.pods[row] if pod in ended]
        start = max((ends[pod] for pod in gone), default=self._cluster.now)
        return Planned(rows, None if start == FOREVER else start, self.where(chosen, key), len(gone))

    def where(self, rows: Sequence[int], key: str) -> str:
        """Return the domain of the topology key that these nodes are in; without a key some node names."""
        return place_name(self._cluster.columns, rows, key)


def place_name(columns: Columns, rows: Sequence[int], key: str) -> str:
    """Return the domain of the topology key that these nodes are in; without a key some node names."""
    names = [columns.names[row] for row in rows]
    node = columns.nodes[rows[0]] if key and rows else None
    if node is not None and (domain := node.metadata.labels.get(key)):
        return domain
    more = f" and {plural(len(names) - SHOWN_NODES, 'node')}" if len(names) > SHOWN_NODES else ""
    return ", ".join(names[:SHOWN_NODES]) + more


def _levels(ends: list[float]) -> list[int]:
    """Return how many of the sorted ends are removed in each trial: from none to all."""
    known = sum(end != FOREVER for end in ends)
    group_plugins = {0, known, len(ends)}
    for first, count in ((0, known), (known, len(ends) - known)):
        group_plugins.update(first + count * i // LEVELS for i in range(1, LEVELS))
    return sorted(group_plugins)
