"""Build variants of a tree with extra placement rules: nominated nodes, Stripe and Balance.

A leaf becomes a composite of pieces, each pinned to a node or domain; a child group is wrapped in a composite that is
pinned to a domain. If no variant can be placed, the original tree is placed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from phalanx.engine.groups.build import Built
from phalanx.engine.groups.rank_order import LAST, ranks_of
from phalanx.engine.groups.rank_placement import members_on_nodes
from phalanx.engine.groups.trial import Assignment
from phalanx.engine.placement.problem import Composite, Ints, Leaf, Subtree, base_slots
from phalanx.engine.placement.ranks import balance, stripe
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.records import PodRecord
from phalanx.model.groups import Group
from phalanx.model.groups.keys import HOSTNAME
from phalanx.model.groups.policy import BALANCE, STRIPE, Policy

NODE = "(node)"  # topology key whose domains are single nodes
TRIES = 6  # numbers of domains tried
MOST_PIECES = 64  # nominated nodes of one leaf
Pieces = list[tuple[str | None, int, list[PodRecord]]]  # (key, domain, members); key None: anywhere
Pins = list[tuple[str, int] | None]  # (key, domain) of each child; None: not pinned
_PATTERNS: dict[str, Callable[[int, int], list[int]]] = {STRIPE: stripe, BALANCE: balance}


class RankVariant:
    """Hold a variant of a tree, and map its parts to those of the original."""

    def __init__(self, built: Built, columns: Columns) -> None:
        self._built = built
        self._columns = columns
        self._pending: dict[int, list[PodRecord]] = {}
        self._group_of: dict[int, Group] = {}
        self._origin: dict[int, int] = {}
        self._keys: set[str] = set()

    def made(self, pieces: Mapping[int, Pieces], pins: Mapping[int, Pins]) -> Built:
        """Build the variant. `pieces`: of leaves, by id; `pins`: of the children of composites, by id."""
        root = self._copy(self._built.problem.root, pieces, pins)
        domains, names = dict(self._built.problem.domains), dict(self._built.problem.domain_names)
        n = self._columns.n
        for key in sorted(self._keys - domains.keys()):
            if key == NODE:
                domains[key], names[key] = np.arange(n, dtype=np.int32), self._columns.names
            else:
                column = self._columns.label(key)
                domains[key], names[key] = column.ids[:n] - 1, column.values[1:]
        problem = replace(self._built.problem, root=root, domains=domains, domain_names=names)
        return replace(self._built, problem=problem, pending=self._pending, group_of=self._group_of)

    def satisfied(self, found: set[int]) -> set[int]:
        return {self._origin[part] for part in found if part in self._origin}

    def _copy(self, part: Subtree, pieces: Mapping[int, Pieces], pins: Mapping[int, Pins]) -> Subtree:
        fresh: Subtree
        if isinstance(part, Leaf):
            fresh = self._leaf(part, pieces.get(id(part)))
        else:
            children = [self._copy(child, pieces, pins) for child in part.children]
            for number, pin in enumerate(pins.get(id(part), ())):
                if pin is not None:
                    key, domain = pin
                    self._keys.add(key)
                    children[number] = Composite(part.children[number].name, 1, (children[number],), key, None, domain)
            fresh = replace(part, children=tuple(children))
        self._origin[id(fresh)] = id(part)
        return fresh

    def _leaf(self, leaf: Leaf, pieces: Pieces | None) -> Subtree:
        group, records = self._built.group_of.get(id(leaf)), self._built.pending[id(leaf)]
        if not pieces:
            return self._known(replace(leaf), records, group)
        number = {shape: i for i, shape in enumerate(self._built.shapes)}
        needed = {record.key for record in records[: leaf.need]}
        children = []
        for key, domain, members in pieces:
            if key is not None:
                self._keys.add(key)
            demand: dict[int, int] = {}
            for record in members:
                demand[number[record.shape]] = demand.get(number[record.shape], 0) + 1
            need = sum(record.key in needed for record in members)
            piece = Leaf(leaf.name, need, tuple(demand.items()), 0, key, None, domain if key is not None else -1)
            children.append(self._known(piece, members, group))
        return Composite(leaf.name, len(children), tuple(children), leaf.key, leaf.preferred, leaf.pinned)

    def _known(self, leaf: Leaf, records: list[PodRecord], group: Group | None) -> Leaf:
        self._pending[id(leaf)] = records
        if group is not None:
            self._group_of[id(leaf)] = group
        return leaf


def spread(columns: Columns, built: Built) -> Iterator[tuple[RankVariant, Built]]:
    """Yield trees that follow Stripe and Balance, over all domains first, then over fewer.

    Replacements and additional members follow the placed members.
    """
    chosen = {part: group for part, group in built.group_of.items() if group.policy.rank_placement in _PATTERNS}
    if not chosen:
        return
    parts = [(part, _slots_of(columns, built, part)) for part in _topmost(built.problem.root, chosen)]
    domains = {id(part): _domains(columns, built, chosen[id(part)]) for part, _ in parts}
    most = max((len(found) for _, found in domains.values()), default=0)
    for fewer in range(min(TRIES, max(0, most - 1))):
        pieces: dict[int, Pieces] = {}
        pins: dict[int, Pins] = {}
        for part, slots in parts:
            key, found = domains[id(part)]
            policy = chosen[id(part)].policy
            if any(rows for rows in slots):
                where = _with_others(columns, policy, slots, found, new_domains=fewer > 0)
            else:
                where = list(_pattern(policy, len(slots), found, fewer))
            if isinstance(part, Composite):
                pins[id(part)] = [None if domain is None else (key, domain) for domain in where]
            elif where:
                pieces[id(part)] = _pieces(key, _of_pending(slots, where), built.pending.get(id(part), []))
        made = RankVariant(built, columns)
        yield made, made.made(pieces, pins)


def _slots_of(columns: Columns, built: Built, part: Subtree) -> list[list[int]]:
    """Return, for each rank or child in order, the rows of its placed pods; empty if it is pending."""
    if isinstance(part, Composite):
        children = [built.group_of.get(id(child)) for child in part.children]
        return [
            [each.row for leaf in _leaves(child) for each in members_on_nodes(columns, leaf)]
            for child in children
            if child
        ]
    group = built.group_of[id(part)]
    sitting, waiting = members_on_nodes(columns, group), built.pending.get(id(part), [])
    if not sitting:
        return [[] for _ in waiting]
    order = {record.key: at for at, record in enumerate(waiting)}
    ranks = ranks_of([*sitting, *waiting], group.policy).of
    everyone = sorted([*sitting, *waiting], key=lambda each: (ranks.get(each.key, LAST), order.get(each.key, -1)))
    return [[] if each.key in order else [each.row] for each in everyone]


def _of_pending(slots: Sequence[Sequence[int]], where: Sequence[int | None]) -> list[int]:
    return [domain for rows, domain in zip(slots, where, strict=True) if not rows and domain is not None]


def _with_others(
    columns: Columns, policy: Policy, slots: Sequence[Sequence[int]], found: Sequence[int], *, new_domains: bool
) -> list[int | None]:
    """Return the domain of every pending rank or child next to placed ones; empty if none has room.

    Domains without members are used if every domain with members has its share. `new_domains`: use them in any case.
    """
    ids = _ids(columns, policy)
    taken: list[int | None] = [int(ids[rows[0]]) if rows else None for rows in slots]
    count = Counter(domain for domain in taken if domain is not None)
    share = len(slots) // max(1, len(count))
    short = any(count[domain] < share for domain in found if count[domain])
    options = [domain for domain in found if new_domains or count[domain] or not short]
    if not options:
        return []
    where: list[int | None] = []
    for at, rows in enumerate(slots):
        if rows:
            where.append(None)
            continue
        near = [taken[i] for i in (at - 1, at + 1) if 0 <= i < len(taken)]
        same = {domain: near.count(domain) for domain in options}
        if policy.rank_placement == STRIPE:
            best = min(options, key=lambda domain: (same[domain], count[domain], domain))
        else:
            best = min(options, key=lambda domain: (count[domain], -same[domain], domain))
        taken[at] = best
        count[best] += 1
        where.append(best)
    return where


def _topmost(part: Subtree, chosen: Mapping[int, Group]) -> Iterator[Subtree]:
    """Yield the parts to spread: groups inherit the policy of their parent, so only the topmost one is spread."""
    if id(part) in chosen:
        yield part
    elif isinstance(part, Composite):
        for child in part.children:
            yield from _topmost(child, chosen)


def _pattern(policy: Policy, count: int, domains: Sequence[int], fewer: int) -> list[int]:
    """Return the domain of every member or child; empty if there are too few domains."""
    chosen = sorted(domains[: min(count, len(domains) - fewer)])
    if len(chosen) < 2:
        return []
    return [chosen[at] for at in _PATTERNS[policy.rank_placement](count, len(chosen))]


def at_home(columns: Columns, built: Built, assignment: Assignment) -> tuple[RankVariant, Built] | None:
    """Return the tree with members pinned to their feasible nominated nodes.

    None: the assignment uses these nodes already, or there are too many.
    """
    number = {shape: i for i, shape in enumerate(built.shapes)}
    where = {record.key: row for record, row in assignment if record.nominated}
    pieces: dict[int, Pieces] = {}
    away = False
    for leaf, records in built.pending.items():
        at: dict[int, list[PodRecord]] = {}
        rest = []
        for record in records:
            row = columns.row_of.get(record.nominated, -1) if record.nominated else -1
            if 0 <= row < columns.n and built.problem.shapes[number[record.shape]].mask[row]:
                at.setdefault(row, []).append(record)
                away |= where.get(record.key) != row
            else:
                rest.append(record)
        if at and leaf in built.group_of:
            pieces[leaf] = [(NODE, row, members) for row, members in sorted(at.items())]
            pieces[leaf] += [(None, -1, rest)] if rest else []
    if not away or sum(map(len, pieces.values())) > MOST_PIECES:
        return None
    made = RankVariant(built, columns)
    return made, made.made(pieces, {})


def _domains(columns: Columns, built: Built, group: Group) -> tuple[str, list[int]]:
    """Return the topology key of a group's spreading, and its domains with room, most room first."""
    key = group.policy.rank_topology_key or NODE
    ids = _ids(columns, group.policy)
    slots = np.zeros(columns.n)
    for row in built.problem.shapes:
        slots += np.minimum(base_slots(built.problem, row), 1 << 20)
    inside = ids >= 0
    room = np.bincount(ids[inside], weights=slots[inside], minlength=1)
    order = sorted(np.flatnonzero(room > 0).tolist(), key=lambda domain: (-room[domain], domain))
    return (NODE if key == HOSTNAME else key), order


def _ids(columns: Columns, policy: Policy) -> Ints:
    """Return (N,) the spreading domain of each node; -1: none."""
    key, n = policy.rank_topology_key or NODE, columns.n
    return np.arange(n, dtype=np.int64) if key in (NODE, HOSTNAME) else columns.label(key).ids[:n].astype(np.int64) - 1


def _leaves(group: Group) -> Iterator[Group]:
    if not group.composite:
        yield group
    for child in group.children.values():
        yield from _leaves(child)


def _pieces(key: str, where: Sequence[int], records: Sequence[PodRecord]) -> Pieces:
    members: dict[int, list[PodRecord]] = {}
    for domain, record in zip(where, records, strict=True):
        members.setdefault(domain, []).append(record)
    return [(key, domain, some) for domain, some in sorted(members.items())]
