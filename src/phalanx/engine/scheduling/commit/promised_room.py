"""Check per node whether a placement would delay a planned start."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.scheduling.attempt.run_times import RunTimes
from phalanx.engine.scheduling.attempt.unit_requests import PlannedUnit
from phalanx.engine.state.records import PodRecord

Amounts = dict[int, float]  # by resource


class PromisedRoom:
    def __init__(self, state: ClusterState, run_times: RunTimes, on: Mapping[str, Sequence[PlannedUnit]]) -> None:
        """`on`: planned units by node."""
        self._cluster = state
        self._run_times = run_times
        self._on = on

    def __bool__(self) -> bool:
        return bool(self._on)

    def outrank(self, nodes: Iterable[str], priority: int) -> None:
        """Record that a unit of this priority was placed on these nodes."""
        for node in nodes:
            for planned in self._on.get(node, ()):
                planned.outranked = planned.outranked or planned.unit.priority < priority

    def delayed(
        self, assignment: Iterable[tuple[PodRecord, int]], own: Container[str], priority: int, until: float
    ) -> list[PlannedUnit]:
        """Return the units of at least this priority that these pods would delay if they run until `until`.

        `own`: keys of units to ignore.
        """
        names, wanted = self._cluster.columns.names, dict[str, Amounts]()
        for record, row in assignment:
            node = names[row]
            if node in self._on:
                amounts = wanted.setdefault(node, {})
                for rid, amount in record.shape.requests:
                    amounts[rid] = amounts.get(rid, 0.0) + amount
        delayed: dict[str, PlannedUnit] = {}
        for node, amounts in wanted.items():
            others = [p for p in self._on[node] if p.unit.key not in own and p.unit.priority >= priority]
            running = self._running(node)
            for planned in others:
                at = self._begin(planned)
                if at < until and not self._fits(node, running, others, amounts, at):
                    delayed[planned.unit.key] = planned
        return list(delayed.values())

    def _begin(self, planned: PlannedUnit) -> float:
        return max(planned.start, self._cluster.now)

    def _running(self, node: str) -> list[tuple[float, PodRecord]]:
        """Return the pods on a node with their expected ends."""
        columns = self._cluster.columns
        row = columns.row_of.get(node, -1)
        return [(self._run_times.end_of(pod), pod) for pod in columns.pods[row].values()] if row >= 0 else []

    def _fits(
        self,
        node: str,
        running: list[tuple[float, PodRecord]],
        planned: Iterable[PlannedUnit],
        amounts: Mapping[int, float],
        at: float,
    ) -> bool:
        """Return True if a node has room at a time for these amounts next to pods still running and planned for
        then."""
        columns = self._cluster.columns
        row = columns.row_of.get(node, -1)
        if row < 0:
            return False
        used: Amounts = dict(amounts)
        for end, record in running:
            for rid, amount in record.shape.requests if end > at else ():
                used[rid] = used.get(rid, 0.0) + amount
        for each in planned:
            begin = self._begin(each)
            for rid, amount in each.requests if begin <= at < begin + each.span else ():
                used[rid] = used.get(rid, 0.0) + amount * each.nodes[node]
        return all(amount <= columns.alloc[rid, row] for rid, amount in used.items())
