"""Why a tree does not fit, from counts alone: which level, which domain comes closest, what runs out there."""

from __future__ import annotations

from collections import Counter

import numpy as np

from phalanx.engine.placement.bounds import Bounds
from phalanx.engine.placement.outcome import Certificate, RuledOut
from phalanx.engine.placement.problem import Composite, Group, Ints, Leaf, Problem, done, leaves
from phalanx.engine.placement.slots import limiting_resource
from phalanx.engine.placement.state import Budget, State


def explain(problem: Problem) -> Certificate:
    """Meant for a problem that was not placed. Costs counting, no search."""
    state = State(problem, Budget(0))
    return _Explainer(state).group(problem.root, 0)


class _Explainer:
    def __init__(self, state: State) -> None:
        self.state = state
        self.problem = state.problem
        self.bounds = Bounds(state, False)

    def group(self, group: Group, area: int) -> Certificate:
        areas = self._areas(group, area)
        if isinstance(group, Leaf):
            return self._leaf(group, area, areas)
        return self._composite(group, area, areas)

    def _areas(self, group: Group, area: int) -> list[tuple[int, int]]:
        """(domain id, area) of every domain of the group's key; (-1, area) without a key."""
        if group.key is None:
            return [(-1, area)]
        column = self.problem.domains.get(group.key)
        if column is None:
            return []
        ids = np.unique(column[self.state.areas[area]])
        if group.pinned >= 0:
            ids = ids[ids == group.pinned]
        return [(int(d), self.state.area(area, group.key, int(d))) for d in ids if d >= 0]

    def _name(self, group: Group, domain: int) -> str | None:
        return None if group.key is None or domain < 0 else self.problem.domain_name(group.key, domain)

    def _leaf(self, leaf: Leaf, area: int, areas: list[tuple[int, int]]) -> Certificate:
        best: tuple[int, int, int] | None = None  # pods that fit, domain, area
        excluded: list[Ints] = []
        for domain, inside in areas:
            nodes = self.state.areas[inside]
            fits = sum(min(c, int(self.state.base(s)[nodes].sum())) for s, c in leaf.demand)
            if best is None or fits > best[0]:
                best = (fits, domain, inside)
            if not any(self.problem.shapes[s].mask[nodes].any() for s, _ in leaf.demand):
                excluded.append(nodes)
        fits, domain, inside = best if best is not None else (0, -1, area)
        return Certificate(
            group=leaf.name,
            composite=False,
            key=leaf.key,
            needed=leaf.need,
            fits=fits,
            domains=len(areas),
            best=self._name(leaf, domain),
            limiting=self._limiting(leaf, self.state.areas[inside], fits),
            ruled_out=self._ruled_out(leaf, excluded if leaf.key is not None else self._barred_nodes(leaf, area)),
            pinned=self._name(leaf, leaf.pinned),
            members=leaf.total,
        )

    def _limiting(self, leaf: Leaf, nodes: Ints, fits: int) -> str | None:
        """For the shape that comes shortest of what it asks; where each shape fits alone, the fullest resource."""
        shortest: tuple[float, int] | None = None
        for shape, count in leaf.demand:
            ratio = int(self.state.base(shape)[nodes].sum()) / count
            if shortest is None or ratio < shortest[0]:
                shortest = (ratio, shape)
        if shortest is None:
            return None
        if shortest[0] < 1 or len(leaf.demand) == 1:
            return limiting_resource(self.problem, self.problem.shapes[shortest[1]], nodes)
        demand = self.bounds.demand(leaf)
        asks = np.flatnonzero(demand)
        share = self.problem.free[np.ix_(asks, nodes)].sum(axis=1) / demand[asks]
        return str(self.problem.resources[int(asks[int(share.argmin())])])

    def _barred_nodes(self, leaf: Leaf, area: int) -> list[Ints]:
        nodes = self.state.areas[area]
        allowed = np.zeros(len(nodes), dtype=bool)
        for shape, _ in leaf.demand:
            allowed |= self.problem.shapes[shape].mask[nodes]
        return [nodes[i : i + 1] for i in np.flatnonzero(~allowed)]

    def _ruled_out(self, leaf: Leaf, excluded: list[Ints]) -> tuple[RuledOut, ...]:
        """Domains without a single allowed node, by the reason most of their nodes give."""
        if not leaf.demand:
            return ()
        reasons = self.problem.shapes[leaf.demand[0][0]].reasons
        domains: Counter[str] = Counter()
        nodes: Counter[str] = Counter()
        for where in excluded:
            name = "filters"
            if reasons is not None:
                codes = reasons[where]
                codes = codes[codes >= 0]
                if len(codes):
                    name = str(self.problem.reason_names[int(np.bincount(codes).argmax())])
            domains[name] += 1
            nodes[name] += len(where)
        ordered = sorted(domains, key=lambda name: (-domains[name], name))
        return tuple(RuledOut(name, domains[name], nodes[name]) for name in ordered)

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
            # The child that asks for least is the one whose failure says most.
            inner = self.group(min(failing, key=lambda c: sum(x.need for x in leaves(c))), inside) if failing else None
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
