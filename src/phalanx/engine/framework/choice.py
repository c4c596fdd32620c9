"""Leave room for nominated pods: choose the row of a single pod, count their devices in groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.framework.evaluation import Evaluation
from phalanx.engine.framework.interface import Finding
from phalanx.engine.state.claims import EXTENDED
from phalanx.engine.state.records import PodRecord


def choose(state: ClusterState, record: PodRecord, evaluation: Evaluation, blocked: list[tuple[str, Finding]]) -> int:
    """Return the best row for a pod, or -1 if there is none. Findings for rows taken by nominated pods go into
    `blocked`."""
    columns = state.columns
    if record.nominated:
        row = columns.row_of.get(record.nominated, -1)
        if row >= 0 and evaluation.feasible[row] and _room_besides_nominated(state, record, evaluation, row, []):
            return row
    row = evaluation.best()
    if row < 0 or not state.nominations:
        return row
    allowed = None
    while row >= 0:
        if _room_besides_nominated(state, record, evaluation, row, blocked):
            return row
        if allowed is None:
            allowed = columns.alive.copy()
        allowed[row] = False
        row = evaluation.best(allowed)
    return -1


def _room_besides_nominated(
    state: ClusterState, record: PodRecord, evaluation: Evaluation, row: int, blocked: list[tuple[str, Finding]]
) -> bool:
    """Return True if the pod also fits with the nominated pods of equal or higher priority on the node. This is the
    second pass of kube-scheduler's two-pass rule."""
    rivals = [r for r in state.nominations.rivals(state.columns.names[row], record) if r.row < 0]
    if not rivals:
        return True
    mark = state.columns.journal.mark()
    for rival in rivals:
        state.columns.place(rival, row)
    try:
        evaluation.refresh()
        fits = bool(evaluation.feasible[row])
        if not fits:
            rows = np.array([row])
            for plugin, tracker in evaluation.filters:
                if not tracker.mask[row]:
                    blocked += [(plugin.name, finding) for finding in tracker.explain(rows)]
                    break
    finally:
        state.columns.journal.rewind(mark)
    evaluation.refresh()
    return fits


@contextmanager
def devices_left(state: ClusterState, ours: Sequence[PodRecord]) -> Iterator[None]:
    """Leave devices to nominated pods while a group is placed: count those with claims on their nodes.

    `ours`: the pods of the group. Nominated pods of lower priority are ignored. What else nominated pods take is
    subtracted where the problem of a group is built.
    """
    journal, mark = state.columns.journal, 0
    if state.nominations and any(record.shape.claims for record in ours):
        keys, priority = {record.key for record in ours}, min(record.priority for record in ours)
        for node, record in list(state.nominations.all()):
            row = state.columns.row_of.get(node, -1)
            if row < 0 or record.row >= 0 or record.priority < priority or record.key in keys:
                continue
            if record.claims or any(use.kind == EXTENDED for use in record.shape.claims):
                mark = mark or journal.mark()
                state.columns.place(record, row)
    try:
        yield
    finally:
        if mark:
            journal.rewind(mark)
