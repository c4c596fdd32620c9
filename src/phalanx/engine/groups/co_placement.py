"""Place pods of equal rank of several groups of a tree in one domain (`spec.ranks.coPlaceWith` of a WorkloadPolicy).

Groups that are placed together form a bundle. The ranks of a bundle are divided among domains that have room for all
pods of these ranks; domains in which members already have nodes are kept. If no division can be placed, the bundle is
ignored.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.groups.build import Built
from phalanx.engine.groups.rank_order import Rank, ranks_of
from phalanx.engine.groups.rank_placement import members_on_nodes, paths_of
from phalanx.engine.groups.rank_variants import NODE, Pieces, RankVariant
from phalanx.engine.placement.problem import Floats, Ints, Leaf, ShapeRow, Subtree, base_slots, count_slots
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.records import PodRecord
from phalanx.model.groups import Group, GroupForest, GroupKey
from phalanx.model.groups.keys import HOSTNAME

MOST_AREAS = 8  # tried domains of a required topology key
MOST_PIECES = 1024  # parts of a variant; a larger bundle is not divided
Division = dict[Rank, int]  # rank -> domain


def partner(forest: GroupForest, leaf: Group) -> Group | None:
    """Return the pod group of the same tree that `leaf` is placed with, named by its own name or its template's.

    Of several groups of one template, the one below the same parent is chosen.
    """
    name = leaf.policy.co_place_with
    root = forest.root_of(leaf.key) if name and not _is_named(leaf, name) else None
    named = [other for other in forest.leaves(root) if _is_named(other, name)] if root is not None else []
    return min(named, key=lambda other: _parent(other) != _parent(leaf), default=None)


def _is_named(group: Group, name: str) -> bool:
    return group.spec is not None and name in (group.key.name, group.spec.template)


def _parent(group: Group) -> GroupKey | None:
    return group.spec.parent if group.spec is not None else None


def cycle(forest: GroupForest, leaf: Group) -> list[Group]:
    """Return the groups of a coPlaceWith cycle that starts at `leaf`; empty if there is none. A cycle is ignored."""
    path, at = [leaf], partner(forest, leaf)
    while at is not None and at.key not in {group.key for group in path}:
        path.append(at)
        at = partner(forest, at)
    return path if at is not None and at.key == leaf.key else []


@dataclass(slots=True)
class _Bundle:
    """Describe groups whose pods of equal rank share a domain."""

    key: str  # topology key, or NODE
    ids: Ints  # (N,) domain of each row, -1: none
    pending: dict[int, dict[Rank, PodRecord]] = field(default_factory=dict)  # id of a leaf -> rank -> pod
    sitting: Division = field(default_factory=dict)  # rank -> domain of a member with a node

    @property
    def ranks(self) -> list[Rank]:
        return sorted({rank for members in self.pending.values() for rank in members})


def together(state: ClusterState, built: Built) -> Iterator[tuple[RankVariant, Built]]:
    """Yield trees in which equal ranks of groups that are placed together have one domain."""
    if not any(group.policy.co_place_with for group in built.group_of.values()):
        return
    bundles = [bundle for bundle in _bundles(state, built) if bundle.ranks]
    if not bundles or sum(len(bundle.ranks) * len(bundle.pending) for bundle in bundles) > MOST_PIECES:
        return
    for area in _areas(built, bundles):
        divisions = [_divide(state.columns, built, bundle, area) for bundle in bundles]
        if any(division is None for division in divisions):
            continue
        pieces: dict[int, Pieces] = {}
        for bundle, division in zip(bundles, divisions, strict=True):
            assert division is not None
            for leaf, members in bundle.pending.items():
                pieces[leaf] = _pieces(bundle.key, division, members, built.pending[leaf])
        made = RankVariant(built, state.columns)
        yield made, made.made(pieces, {})


def _bundles(state: ClusterState, built: Built) -> list[_Bundle]:
    forest = state.forest
    member_of: dict[GroupKey, list[Group]] = {}
    for group in list(built.group_of.values()):
        other = None if group.composite or cycle(forest, group) else partner(forest, group)
        if other is None:
            continue
        joined = list({each.key: each for at in (group, other) for each in member_of.get(at.key, [at])}.values())
        for each in joined:
            member_of[each.key] = joined
    distinct = {id(groups): groups for groups in member_of.values()}
    return [_bundle(state.columns, built, groups) for groups in distinct.values()]


def _bundle(columns: Columns, built: Built, groups: Sequence[Group]) -> _Bundle:
    key = next((each.policy.rank_topology_key for each in groups if each.policy.co_place_with), "") or NODE
    n = columns.n
    if key in (NODE, HOSTNAME):
        bundle = _Bundle(NODE, np.arange(n, dtype=np.int64))
    else:
        bundle = _Bundle(key, columns.label(key).ids[:n].astype(np.int64) - 1)
    for group in groups:
        part = built.part_of.get(group.key)
        waiting = built.pending.get(id(part), []) if part is not None else []
        sitting = members_on_nodes(columns, group)
        ranks = _within_group(ranks_of([*sitting, *waiting], group.policy).of)
        for record in sitting:
            if record.key in ranks and bundle.ids[record.row] >= 0:
                bundle.sitting.setdefault(ranks[record.key], int(bundle.ids[record.row]))
        if waiting:
            found = {ranks[record.key]: record for record in waiting if record.key in ranks}
            bundle.pending[id(part)] = found
    return bundle


def _within_group(ranks: Mapping[str, Rank]) -> dict[str, Rank]:
    """Return ranks by pod, counted from the first Job of the group: Jobs of a JobSet are numbered over all groups."""
    first = min((job for job, _ in ranks.values()), default=0)
    return {key: (job - first, index) for key, (job, index) in ranks.items()}


def _areas(built: Built, bundles: Iterable[_Bundle]) -> Iterator[Ints]:
    """Yield areas for the bundles: domains of the required topology key of their groups, else all nodes."""
    problem = built.problem
    leaves = {leaf for bundle in bundles for leaf in bundle.pending}
    everywhere = np.arange(problem.node_count)
    found = _required(problem.root, leaves, None)
    if found is None:
        yield everywhere
        return
    key, pinned = found
    ids = problem.domains[key]
    if pinned >= 0:
        yield np.flatnonzero(ids == pinned)
        return
    slots = sum((np.minimum(base_slots(problem, shape), 1 << 20) for shape in problem.shapes), np.zeros(len(ids)))
    room = np.bincount(ids[ids >= 0], weights=slots[ids >= 0], minlength=1)
    for domain in sorted(np.flatnonzero(room).tolist(), key=lambda each: (-room[each], each))[:MOST_AREAS]:
        yield np.flatnonzero(ids == domain)


def _required(part: Subtree, leaves: set[int], above: tuple[str, int] | None) -> tuple[str, int] | None:
    """Return the lowest required topology key, with its pinned domain, over the first of these leaves."""
    above = (part.key, part.pinned) if part.key is not None else above
    if isinstance(part, Leaf):
        return above if id(part) in leaves else None
    below = (_required(child, leaves, above) for child in part.children)
    return next((found for found in below if found is not None), None)


def _divide(columns: Columns, built: Built, bundle: _Bundle, area: Ints) -> Division | None:
    """Return the domain of every rank, domain by domain; None if the area has too little room."""
    division = dict(bundle.sitting)
    left = [rank for rank in bundle.ranks if rank not in division]
    room = _room(built, bundle, area, len(left))
    chosen: list[int] = []
    for domain in sorted(room, key=lambda each: (-room[each], each)):
        if sum(room[each] for each in chosen) >= len(left):
            break
        chosen.append(domain)
    if sum(room[each] for each in chosen) < len(left):
        return None
    ids = bundle.ids[area]
    first_row = {int(domain): int(row) for domain, row in zip(ids[::-1], area[::-1], strict=True)}
    paths = paths_of(columns, [first_row[domain] for domain in chosen]) if chosen else {}
    places = iter(
        domain for domain in sorted(chosen, key=lambda each: paths[first_row[each]]) for _ in range(room[domain])
    )
    return division | dict(zip(left, places, strict=False))


def _room(built: Built, bundle: _Bundle, area: Ints, most: int) -> dict[int, int]:
    """Return how many ranks fit in each domain of the area, up to `most`: one pod of every pending group each."""
    rows = [row for members in bundle.pending.values() if (row := _largest(built, members.values())) is not None]
    if bundle.key == NODE:  # on a node requests add up
        rows = [_together(rows, np.sum)] if rows else []
    rows.sort(key=lambda row: int(base_slots(built.problem, row)[area].sum()))  # the hardest to place first
    ids = bundle.ids[area]
    upper = np.full(int(ids.max(initial=-1)) + 1, most)
    for row in rows:
        slots = np.minimum(base_slots(built.problem, row)[area], most)
        upper = np.minimum(upper, np.bincount(ids[ids >= 0], weights=slots[ids >= 0], minlength=len(upper)))
    if bundle.key == NODE:
        return {int(domain): int(upper[domain]) for domain in np.flatnonzero(upper)}
    room: dict[int, int] = {}
    for domain in sorted(np.flatnonzero(upper).tolist(), key=lambda each: (-upper[each], each)):
        if sum(room.values()) >= most and upper[domain] <= max(room.values()):
            break
        nodes = area[ids == domain]
        fits = bisect_left(range(1, int(upper[domain]) + 1), True, key=lambda k: not _fits(built, rows, nodes, k))
        if fits:
            room[domain] = fits
    return room


def _fits(built: Built, rows: Iterable[ShapeRow], nodes: Ints, count: int) -> bool:
    """Return whether `count` pods of each shape fit on these nodes; the nodes with least room are filled first."""
    free = built.problem.free[:, nodes].copy()
    for row in rows:
        slots = np.where(row.mask[nodes], count_slots(row.request, free), 0)
        if row.cap is not None:
            slots = np.minimum(slots, row.cap[nodes])
        order = np.argsort(slots, kind="stable")
        before = np.cumsum(slots[order]) - slots[order]
        taken = np.zeros(len(nodes))
        taken[order] = np.clip(count - before, 0, slots[order])
        if taken.sum() < count:
            return False
        free -= row.request[:, None] * taken
    return True


def _largest(built: Built, records: Iterable[PodRecord]) -> ShapeRow | None:
    """Return a shape that is as large as each of these pods; None if there is no pod."""
    number = {shape: i for i, shape in enumerate(built.shapes)}
    rows = [built.problem.shapes[number[shape]] for shape in {record.shape for record in records}]
    return _together(rows, np.max) if rows else None


def _together(rows: Sequence[ShapeRow], requests: Callable[..., Floats]) -> ShapeRow:
    """Return one shape for nodes that allow all of these, with the sum or the largest of the requests."""
    caps = [row.cap for row in rows if row.cap is not None]
    return ShapeRow(
        requests([row.request for row in rows], axis=0),
        np.logical_and.reduce([row.mask for row in rows]),
        np.minimum.reduce(caps) if caps else None,
    )


def _pieces(key: str, division: Division, members: Mapping[Rank, PodRecord], records: Iterable[PodRecord]) -> Pieces:
    where = {record.key: division[rank] for rank, record in members.items()}
    parts: dict[int, list[PodRecord]] = {}
    rest: list[PodRecord] = []
    for record in records:
        if record.key in where:
            parts.setdefault(where[record.key], []).append(record)
        else:
            rest.append(record)
    pieces: Pieces = [(key, domain, some) for domain, some in sorted(parts.items())]
    return [*pieces, (None, -1, rest)] if rest else pieces
