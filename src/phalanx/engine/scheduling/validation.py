"""Checks of the engine's own state, for tests and simulations: everything is recomputed from the records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from phalanx.engine.scheduling.roots import Place
from phalanx.engine.state.requests import offered

if TYPE_CHECKING:
    from phalanx.engine.scheduling.scheduler import Scheduler


def validate(engine: Scheduler) -> None:
    _columns_equal_rebuild(engine)
    _each_pending_pod_in_one_place(engine)
    _no_overcommit(engine)


def _columns_equal_rebuild(engine: Scheduler) -> None:
    columns = engine.columns
    assert not columns.journal.recording, "a trial was left open"
    used = np.zeros_like(columns.used)
    nonzero = np.zeros_like(columns.nonzero)
    for record in engine.pods.records.values():
        if record.row < 0:
            continue
        assert columns.names[record.row] == record.node_name, f"{record} is counted on {columns.names[record.row]}"
        assert columns.pods[record.row].get(record.key) is record, f"{record} is not among the pods of its row"
        for rid, amount in record.shape.requests:
            used[rid, record.row] += amount
        nonzero[:, record.row] += record.shape.nonzero
    assert (used == columns.used).all(), "requested differs from the sum over pods"
    assert (nonzero == columns.nonzero).all(), "non-zero requested differs from the sum over pods"
    assert sum(len(pods) for pods in columns.pods) == sum(r.row >= 0 for r in engine.pods.records.values())
    for row, node in enumerate(columns.nodes):
        assert columns.alive[row] == (node is not None)
        if node is None:
            assert not columns.pods[row], "pods on a free row"
            continue
        assert columns.row_of[node.metadata.name] == row
        for name, rid in columns.resources.items():
            assert columns.alloc[rid, row] == offered(name, node.status.allocatable.get(name)), f"allocatable {name}"
        for key, column in columns.labels.items():
            value = node.metadata.labels.get(key)
            assert column.ids[row] == (0 if value is None else column.id_of(value)), f"label {key} of {node}"
        assert columns.taint_sets[columns.taint_set[row]] == tuple(node.spec.taints or ())
    assert columns.count == len(columns.row_of) == int(columns.alive.sum())


def _each_pending_pod_in_one_place(engine: Scheduler) -> None:
    found: dict[str, Place] = {}
    for root, place in engine.queue.places():
        assert root.place is place, f"{root} was found in {place}"
        assert engine.queue.roots.get(root.key) is root, f"{root} is not registered"
        for key in root.records:
            assert key not in found, f"{key} is in two places: {found[key]} and {place}"
            found[key] = place
    for key, record in engine.pods.records.items():
        if record.node_name:
            assert key not in found, f"{record} is queued although it has a node"
            homeless = key in engine.pods.homeless.get(record.node_name, {})
            assert (record.row >= 0) != homeless, f"{record} is neither on a row nor waiting for its node"
        elif engine.groups.claims(record):
            assert engine.groups.place_of(record) is not Place.NOWHERE, f"{record} is lost"
        else:
            assert key in found, f"{record} is lost"
    for key in found:
        assert key in engine.pods.records, f"{key} is queued but gone"


def _no_overcommit(engine: Scheduler) -> None:
    """A node may hold too much only if pods we did not place, or a node that shrank, made it so: a pod that is still
    assumed was checked by us, so without it the node must not be fuller than with room for it."""
    columns = engine.columns
    for record in engine.pods.records.values():
        if record.assumed and record.row >= 0 and record.row not in engine.pods.crowded:
            for rid, _ in record.shape.requests:
                over = columns.used[rid, record.row] > columns.alloc[rid, record.row]
                name = columns.resource_names[rid]
                assert not over, f"{record} over-commits {name} of {record.node_name}"
