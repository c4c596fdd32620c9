"""Explain by counting why a tree does not fit: the level, the closest domain and the limiting resource."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from phalanx.engine.placement.bounds import Bounds
from phalanx.engine.placement.outcome import Certificate, RuledOut
from phalanx.engine.placement.problem import (
    Composite,
    Ints,
    Leaf,
    PlacementProblem,
    Subtree,
    done,
    leaves,
    limiting_resource,
)
from phalanx.engine.placement.state import Budget, SearchState


def explain(problem: PlacementProblem) -> Certificate:
    """Build the certificate of an unplaced problem, by counting only."""
    state = SearchState(problem, Budget(0))
    return _Explainer(state).group(problem.root, 0)


def explain_rest(problem: PlacementProblem, group: Subtree) -> Certificate | None:
    """Explain why pending pods below a group whose minimum is met do not fit; None: no pod is pending."""
    explainer = _Explainer(SearchState(problem, Budget(0)))
    late = _late(group)
    if late:
        group = explainer.group_to_explain(late, 0)
        return msgspec.structs.replace(explainer.group(group, 0), extra=True, whole=True)
    extras = [leaf for leaf in leaves(group) if leaf.total]
    if not extras:
        return None
    leaf = extras[0]
    return msgspec.structs.replace(explainer.group(leaf, 0), needed=leaf.total, together=False, extra=True)


def _late(group: Subtree) -> list[Subtree]:
    """Return pending groups that their satisfied parent does not need."""
    if isinstance(group, Leaf):
        return []
    return [
        late
        for child in group.children
        for late in (_late(child) if done(child) else [child] if any(leaf.total for leaf in leaves(child)) else [])
    ]


class _Explainer:
    def __init__(self, state: SearchState) -> None:
        self.state = state
        self.problem = state.problem
        self.bounds = Bounds(state, False)

    def group(self, group: Subtree, area: int) -> Certificate:
        if isinstance(group, Leaf):
            return self._leaf(group, area)
        return self._composite(group, area, self._areas(group, area))

    def group_to_explain(self, failing: list[Subtree], area: int) -> Subtree:
        """Return the failing group to explain: one that does not fit on empty nodes, else the smallest, because
        preemption can help the others."""
        return min(failing, key=lambda c: (not self._never_fits(c, area), sum(x.need for x in leaves(c))))

    def _never_fits(self, group: Subtree, area: int) -> bool:
        """Return whether a group fits in none of its domains even if all are empty."""
        return all(self._too_large(group, inside) for _, inside in self._areas(group, area))

    def _too_large(self, group: Subtree, area: int) -> bool:
        if isinstance(group, Composite):
            fit = sum(done(c) or not self._never_fits(c, area) for c in group.children)
            return fit < group.minimum
        nodes = self.state.areas[area]
        room = sum(min(count, self._empty_slots(shape, nodes)) for shape, count in group.demand)
        return room < group.need

    def _empty_slots(self, number: int, nodes: Ints) -> int:
        """Return how many pods of a shape fit on these nodes if they are empty."""
        problem, shape = self.problem, self.problem.shapes[number]
        allowed = shape.mask[nodes].copy()
        if shape.reasons is not None and problem.room_reasons:
            allowed |= np.isin(shape.reasons[nodes], list(problem.room_reasons))
        nodes = nodes[allowed]
        asks = np.flatnonzero(shape.request)
        slots = np.floor(problem.total[np.ix_(asks, nodes)] / shape.request[asks, None]).min(axis=0, initial=2**31)
        if shape.cap is not None:
            slots = np.minimum(slots, shape.cap[nodes])
        return int(slots.sum())

    def _areas(self, group: Subtree, area: int) -> list[tuple[int, int]]:
        """Return (domain id, area) of every domain of the group's key; (-1, area) without a key."""
        if group.key is None:
            return [(-1, area)]
        column = self.problem.domains.get(group.key)
        if column is None:
            return []
        ids = np.unique(column[self.state.areas[area]])
        if group.pinned >= 0:
            ids = ids[ids == group.pinned]
        return [(int(d), self.state.area(area, group.key, int(d))) for d in ids if d >= 0]

    def _name(self, group: Subtree, domain: int) -> str | None:
        return None if group.key is None or domain < 0 else self.problem.domain_name(group.key, domain)

    def _leaf(self, leaf: Leaf, area: int) -> Certificate:
        """Explain a leaf for all domains at once: a domain is a number per node; without a key each node is a
        domain."""
        if leaf.key is None:
            nodes, ids = self.state.areas[area], np.zeros(len(self.state.areas[area]), dtype=np.int32)
        else:
            nodes, ids = self.state.split(area, leaf.key)
            if leaf.pinned >= 0:
                nodes, ids = nodes[ids == leaf.pinned], ids[ids == leaf.pinned]
        present = np.unique(ids)
        fits, domain, inside = 0, -1, nodes
        if len(present):
            sums = np.zeros(int(present[-1]) + 1)
            for shape, count in leaf.demand:
                sums += np.minimum(np.bincount(ids, weights=self.state.base(shape)[nodes]), count)
            domain = int(present[int(sums[present].argmax())])
            fits, inside = int(sums[domain]), nodes[ids == domain]
        return Certificate(
            group=leaf.name,
            composite=False,
            key=leaf.key,
            needed=leaf.need,
            fits=fits,
            domains=len(present) if leaf.key is not None else 1,
            best=self._name(leaf, domain),
            limiting=self._limiting(leaf, inside),
            ruled_out=self._ruled_out(leaf, nodes, ids if leaf.key is not None else np.arange(len(nodes))),
            together=fits >= leaf.need,
            pinned=self._name(leaf, leaf.pinned),
            members=leaf.total,
        )

    def _limiting(self, leaf: Leaf, nodes: Ints) -> str | None:
        """Return the limiting resource of the shape with the lowest ratio of slots to pods.

        If each shape fits alone, return the resource with the least free amount per requested amount.
        """
        shortest: tuple[float, int, int] | None = None  # slots per pod, shape, pods
        for shape, count in leaf.demand:
            ratio = int(self.state.base(shape)[nodes].sum()) / count
            if shortest is None or ratio < shortest[0]:
                shortest = (ratio, shape, count)
        if shortest is None:
            return None
        if shortest[0] < 1 or len(leaf.demand) == 1:
            return limiting_resource(self.problem, self.problem.shapes[shortest[1]], nodes, shortest[2])
        demand = self.bounds.demand(leaf)
        asks = np.flatnonzero(demand)
        if not len(asks):
            return None  # its minimum is 0
        share = self.problem.free[np.ix_(asks, nodes)].sum(axis=1) / demand[asks]
        return str(self.problem.resources[int(asks[int(share.argmin())])])

    def _ruled_out(self, leaf: Leaf, nodes: Ints, ids: NDArray[np.integer]) -> tuple[RuledOut, ...]:
        """Return domains without any allowed node, grouped by the most frequent reason."""
        if not leaf.demand or not len(ids):
            return ()
        allowed = np.zeros(len(nodes), dtype=bool)
        for shape, _ in leaf.demand:
            allowed |= self.problem.shapes[shape].mask[nodes]
        size = int(ids.max()) + 1
        barred = (np.bincount(ids, minlength=size) > 0) & (np.bincount(ids, weights=allowed, minlength=size) == 0)
        if not barred.any():
            return ()
        inside = barred[ids]
        reasons = self.problem.shapes[leaf.demand[0][0]].reasons
        codes = np.full(int(inside.sum()), -1) if reasons is None else reasons[nodes[inside]].astype(np.int64)
        kinds = len(self.problem.reason_names) + 1  # 0 = no reason given
        table = np.bincount(ids[inside] * kinds + codes + 1, minlength=size * kinds).reshape(size, kinds)
        rows = table[barred]
        dominant = rows.argmax(axis=1)
        domains = np.bincount(dominant, minlength=kinds)
        ruled = np.bincount(dominant, weights=rows.sum(axis=1), minlength=kinds)
        found = []
        for code in np.flatnonzero(domains):
            name = str(self.problem.reason_names[int(code) - 1]) if code else "filters"
            found.append(RuledOut(name, int(domains[code]), int(ruled[code])))
        return tuple(sorted(found, key=lambda r: (-r.domains, r.reason)))

    def _composite(self, group: Composite, area: int, areas: list[tuple[int, int]]) -> Certificate:
        satisfied = sum(done(c) for c in group.children)
        pending = [c for c in group.children if not done(c)]
        best: tuple[int, float, int, int] | None = None
        for domain, inside in areas:
            fits = satisfied + sum(self.bounds.possible(c, inside) for c in pending)
            room = float(self.problem.free[:, self.state.areas[inside]].sum())
            if best is None or (fits, room) > best[:2]:
                best = (fits, room, domain, inside)
        fits, _, domain, inside = best if best is not None else (satisfied, 0.0, -1, area)
        together = fits >= group.minimum
        inner = None
        limiting = None
        if together:
            demand = self.bounds.demand(group)
            asks = np.flatnonzero(demand)
            if len(asks):
                share = self.problem.free[np.ix_(asks, self.state.areas[inside])].sum(axis=1) / demand[asks]
                limiting = str(self.problem.resources[int(asks[int(share.argmin())])])
        elif best is not None:
            failing = [c for c in pending if not self.bounds.possible(c, inside)]
            inner = self.group(self.group_to_explain(failing, inside), inside) if failing else None
        return Certificate(
            group=group.name,
            composite=True,
            key=group.key,
            needed=group.minimum,
            fits=fits,
            domains=len(areas),
            best=self._name(group, domain),
            limiting=limiting,
            together=together,
            pinned=self._name(group, group.pinned),
            inner=inner,
            members=len(group.children),
        )
