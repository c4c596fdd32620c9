"""Assign pods to the nodes that a search has found, by rank.

The search counts pods by shape and node; pods of one group and shape are interchangeable for every rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from phalanx.engine.groups.build import Built
from phalanx.engine.groups.rank_order import LAST, by_name, ranks_of
from phalanx.engine.placement.ranks import Path, RankedMembers, pack, ring_cost
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.records import PodRecord
from phalanx.model.groups import Group
from phalanx.model.groups.group import ON_NODE
from phalanx.model.groups.keys import TOPOLOGY_KEYS
from phalanx.model.groups.policy import PACK, Policy

FEW_ROWS = 16
Assignment = list[tuple[PodRecord, int]]


def by_rank(columns: Columns, built: Built, assignment: Assignment) -> Assignment:
    """Assign the same nodes and shapes to members by rank.

    Only pods of one group and shape are exchanged, so every rule still holds. A pod on its nominated node keeps it.
    """
    if not built.ranks:
        return assignment
    if len({row for _, row in assignment}) == 1:
        return assignment  # all members are on one node
    leaf_of = {record.key: leaf for leaf, records in built.pending.items() for record in records}
    parts: dict[int, list[int]] = {}  # leaf -> positions in the assignment
    for at, (record, _) in enumerate(assignment):
        parts.setdefault(leaf_of[record.key], []).append(at)
    changed = list(assignment)
    for leaf, positions in parts.items():
        group = built.group_of.get(leaf)
        if group is not None and len(positions) > 1:
            _assign(columns, built, group, changed, positions)
    return changed


def _assign(columns: Columns, built: Built, group: Group, changed: Assignment, positions: Sequence[int]) -> None:
    records = [changed[at][0] for at in positions]
    sitting = members_on_nodes(columns, group) if group.placed else []
    known = built.ranks.get(group.key) if not sitting else None
    ranks = (known or ranks_of([*sitting, *records], group.policy)).of
    if not any(record.key in ranks for record in records):
        return
    at_home = {
        at
        for at in positions
        if changed[at][0].nominated and columns.row_of.get(changed[at][0].nominated) == changed[at][1]
    }
    all_pods = sorted([*sitting, *records], key=lambda each: (ranks.get(each.key, LAST), by_name(each)))
    if not sitting and not at_home and len(built.shapes) == 1:
        _in_order(columns, built, changed, positions, all_pods)
        return
    number = {shape: i for i, shape in enumerate(built.shapes)}
    where = {changed[at][0].key: changed[at][1] for at in at_home} | {each.key: each.row for each in sitting}
    slots: dict[int, dict[int, int]] = {}
    for at in positions:
        record, row = changed[at]
        if at not in at_home:
            counts = slots.setdefault(number[record.shape], {})
            counts[row] = counts.get(row, 0) + 1
    rows = {row for counts in slots.values() for row in counts} | set(where.values())
    paths = paths_of(columns, rows, built.problem.domains)
    fixed = {m: where[each.key] for m, each in enumerate(all_pods) if each.key in where}
    shapes = [number.get(each.shape, -1) for each in all_pods]
    found = pack(RankedMembers(shapes, fixed, slots), paths, exact=group.policy.rank_placement == PACK)
    queues: dict[tuple[int, int], list[PodRecord]] = {}  # (shape, row) -> members to place there
    for m, each in reversed(list(enumerate(all_pods))):
        if m not in fixed:
            queues.setdefault((shapes[m], found[m]), []).append(each)
    for at in positions:
        record, row = changed[at]
        if at not in at_home:
            changed[at] = (queues[number[record.shape], row].pop(), row)


def _in_order(
    columns: Columns, built: Built, changed: Assignment, positions: Sequence[int], members: Sequence[PodRecord]
) -> None:
    """Assign equal members domain by domain, like `pack`: no other order uses fewer domains."""
    rows = [changed[at][1] for at in positions]
    paths = paths_of(columns, set(rows), built.problem.domains)
    there: dict[int, list[PodRecord]] = {}
    for record, row in zip(members, sorted(rows, key=lambda row: paths[row]), strict=True):
        there.setdefault(row, []).append(record)
    for at in reversed(positions):
        row = changed[at][1]
        changed[at] = (there[row].pop(), row)


def members_on_nodes(columns: Columns, group: Group) -> list[PodRecord]:
    """Return the members of a leaf that have a node."""
    found: list[PodRecord] = []
    for name, member in group.members.items():
        row = columns.row_of.get(member.node, -1) if member.state in ON_NODE else -1
        record = columns.pods[row].get(str(name)) if row >= 0 else None
        if record is not None and not record.terminating:
            found.append(record)
    return found


def paths_of(columns: Columns, rows: Iterable[int], more: Iterable[str] = ()) -> dict[int, Path]:
    """Return the domains of nodes, coarsest first and the node last; keys that no node has are omitted."""
    chosen = sorted(rows)
    keys = [key for key in dict.fromkeys((*TOPOLOGY_KEYS, *more)) if len(columns.label(key).values) > 1]
    keys.sort(key=lambda key: len(columns.label(key).values))
    if len(chosen) <= FEW_ROWS:  # few rows: an array is slower
        ids = [columns.label(key).ids for key in keys]
        return {row: (*(each.item(row) for each in ids), row) for row in chosen}
    table = np.stack([*(columns.label(key).ids[chosen] for key in keys), chosen], axis=1)
    return {path[-1]: tuple(path) for path in table.tolist()}


def ring_cost_of(columns: Columns, members: Iterable[tuple[PodRecord, int]], policy: Policy) -> int | None:
    """Return the hops between consecutive ranks of members on rows; None if they have no ranks."""
    members = list(members)
    ranks = ranks_of([record for record, _ in members], policy).of
    nodes = [row for _, row in sorted((ranks[record.key], row) for record, row in members if record.key in ranks)]
    return ring_cost(nodes, paths_of(columns, nodes)) if len(nodes) > 1 else None
