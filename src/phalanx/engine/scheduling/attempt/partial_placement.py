"""Place as many pods of a gang as possible on some nodes, to reserve nodes that arrive one by one.

Pods are placed one after the other in the columns, respecting other reservations; every trial is rewound.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from phalanx.engine.framework.adapters import PluginFailure
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.state.records import PodRecord
from phalanx.engine.state.shapes import Shape

Rows = list[tuple[PodRecord, int]]


def partial_placement(
    state: ClusterState, records: Sequence[PodRecord], rows: Collection[int], topology_key: str = ""
) -> Rows:
    """Return nodes among `rows` for as many of the pods as fit; with a topology key, all in one domain of it."""
    columns = state.columns
    if not topology_key:
        return _on(state, records, sorted(rows))
    domains: dict[str, list[int]] = {}
    for row in sorted(rows):
        node = columns.nodes[row]
        if node is not None and (domain := node.metadata.labels.get(topology_key)):
            domains.setdefault(domain, []).append(row)
    found = [_on(state, records, each) for _, each in sorted(domains.items())]
    return max(found, key=len, default=[])


def _on(state: ClusterState, records: Sequence[PodRecord], rows: Sequence[int]) -> Rows:
    columns = state.columns
    mark = columns.journal.mark()
    placed: Rows = []
    ours = {record.key for record in records}  # nominated themselves while their victims leave
    full: set[Shape] = set()  # shapes for which no row has room
    try:
        for row in rows:
            for rival in state.nominations.rivals(columns.names[row], records[0]):
                if rival.row < 0 and rival.key not in ours:
                    columns.place(rival, row)
        for record in records:
            if record.shape in full:
                continue
            feasible = state.evaluation(record).feasible
            row = next((each for each in rows if feasible[each]), -1)
            if row < 0:
                full.add(record.shape)
                continue
            columns.place(record, row)
            placed.append((record, row))
    except PluginFailure:
        return []
    finally:
        columns.journal.rewind(mark)
    return placed
