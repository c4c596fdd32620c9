"""Improve a partial placement by local search, for trees that cannot be placed completely.

The first placement chooses children, root domain and extra pods by the minimums alone. Hill climbing then applies one
change at a time and keeps each change that places more pods.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from phalanx.engine.placement.outcome import SearchOutcome, SearchVerdict, Share
from phalanx.engine.placement.problem import Composite, Leaf, PlacementProblem, Subtree, done, groups, leaves
from phalanx.engine.placement.search import Extras, Search
from phalanx.engine.placement.state import Budget, Exhausted, SearchState

TRIES = 16  # expansions per group for other domains and more children at once, and as many again for single changes
DOMAINS = 4  # root domains tried
CHANGES = 16  # single changes tried


def improve(problem: PlacementProblem, first: SearchOutcome) -> SearchOutcome:
    start = _other_domains(problem, first)
    climb = Climb(problem, start)
    best = climb.run()
    best.expansions = start.expansions + climb.budget.used
    return best


def _other_domains(problem: PlacementProblem, first: SearchOutcome) -> SearchOutcome:
    """Try other root domains and more children at once."""
    root = problem.root
    assert isinstance(root, Composite)
    total = sum(leaf.total for leaf in leaves(root))
    best, most = first, _pods(first)
    allowance = Budget(min(problem.budget, TRIES * len(groups(root))))
    pending = sum(not done(child) for child in root.children)
    beyond = max(0, pending - max(0, root.minimum - (len(root.children) - pending)))
    probe = Search(SearchState(problem, Budget(0)), False, Budget(0))
    for area in islice(probe.areas(root, 0), DOMAINS):
        for more in range(beyond, -1, -1):
            if most >= total or not allowance.left:
                break
            budget = Budget(min(allowance.left, 4 * len(groups(root))))
            state = SearchState(problem, budget)
            state.areas, state.area_ids = list(probe.state.areas), dict(probe.state.area_ids)
            outcome = _assign(Search(state, False, budget, more, largest_first=True), root, area, inside=True)
            allowance.used += max(1, budget.used)
            if outcome is not None and _pods(outcome) > most:
                best, most = outcome, _pods(outcome)
            if outcome is not None and more:
                break
    best.expansions = first.expansions + allowance.used
    return best


class Choice(NamedTuple):
    children: frozenset[int]  # positions of the root's children to place
    whole: frozenset[int]  # id() of leaves that must be placed completely


class Climb:
    def __init__(self, problem: PlacementProblem, start: SearchOutcome) -> None:
        assert isinstance(problem.root, Composite)
        self.problem = problem
        self.root: Composite = problem.root
        self.best = start
        self.budget = Budget(min(problem.budget, TRIES * len(groups(self.root))))
        self._tried: set[Choice] = set()

    def run(self) -> SearchOutcome:
        total = sum(leaf.total for leaf in leaves(self.root))
        choice = Choice(self._taking_part(), frozenset())
        while _pods(self.best) < total:
            better = self._better_neighbour(choice)
            if better is None:
                break
            choice = Choice(self._taking_part(), better.whole)
        return self.best

    def _taking_part(self) -> frozenset[int]:
        return frozenset(i for i, child in enumerate(self.root.children) if id(child) in self.best.satisfied)

    def _better_neighbour(self, choice: Choice) -> Choice | None:
        for other in self._neighbours(choice):
            if other in self._tried:
                continue
            if len(self._tried) >= CHANGES or not self.budget.left:
                return None
            self._tried.add(other)
            found = self._place_variant(other)
            if found is not None and _pods(found) > _pods(self.best):
                self.best = found
                return other
        return None

    def _neighbours(self, choice: Choice) -> Iterator[Choice]:
        """Yield choices that differ by one change.

        One more leaf complete, in addition to the other complete leaves or instead of them; one child added, removed or
        replaced.
        """
        children = self.root.children
        placed_pods = {id(leaf): 0 for leaf in leaves(self.root)}
        for share in self.best.shares:
            placed_pods[id(share.leaf)] += int(share.counts.sum())
        inside = [leaf for i in sorted(choice.children) for leaf in leaves(children[i])]
        short = [leaf for leaf in inside if placed_pods[id(leaf)] < leaf.total and id(leaf) not in choice.whole]
        short.sort(key=lambda leaf: placed_pods[id(leaf)] - leaf.total)
        for leaf in short:
            yield Choice(choice.children, choice.whole | {id(leaf)})
        for leaf in short:
            yield Choice(choice.children, frozenset({id(leaf)}))
        size = [sum(leaf.total for leaf in leaves(child)) for child in children]
        others = sorted((i for i in range(len(children)) if i not in choice.children), key=lambda i: -size[i])
        for i in others:
            yield Choice(choice.children | {i}, choice.whole)
        leaving = [i for i in choice.children if not done(children[i])]
        leaving.sort(key=lambda i: sum(placed_pods[id(leaf)] for leaf in leaves(children[i])))
        for gone in leaving:
            rest = choice.whole - {id(leaf) for leaf in leaves(children[gone])}
            if len(choice.children) > self.root.minimum:
                yield Choice(choice.children - {gone}, rest)
            for i in others:
                yield Choice(choice.children - {gone} | {i}, rest)

    def _place_variant(self, choice: Choice) -> SearchOutcome | None:
        originals: dict[int, Subtree] = {}

        def copy(group: Subtree) -> Subtree:
            double: Subtree
            if isinstance(group, Composite):
                double = replace(group, children=tuple(copy(child) for child in group.children))
            else:
                minimum = group.satisfied + group.total if id(group) in choice.whole else group.minimum
                double = replace(group, minimum=minimum)
            originals[id(double)] = group
            return double

        kept = tuple(copy(self.root.children[i]) for i in sorted(choice.children))
        root = replace(self.root, children=kept, minimum=len(kept))
        originals[id(root)] = self.root
        budget = Budget(min(self.budget.left, 4 * len(groups(root))))
        state = SearchState(replace(self.problem, root=root), budget)
        outcome = _assign(Search(state, False, budget), root, 0)
        self.budget.used += max(1, budget.used)
        if outcome is None:
            return None
        leaf_of = {double: group for double, group in originals.items() if isinstance(group, Leaf)}
        outcome.shares = [replace(share, leaf=leaf_of[id(share.leaf)]) for share in outcome.shares]
        outcome.satisfied = {id(originals[double]) for double in outcome.satisfied}
        outcome.domains = {id(originals[double]): domain for double, domain in outcome.domains.items()}
        return outcome


def _assign(search: Search, root: Subtree, area: int, *, inside: bool = False) -> SearchOutcome | None:
    """Place minimums and then extra pods; None: not found within the budget."""
    try:
        if not search.run(root, area, inside=inside):
            return None
    except Exhausted:
        return None
    Extras(search.state, search.decisions, search.budget).run(root)
    return gather(search.state, search.decisions, 0)


def _pods(outcome: SearchOutcome) -> int:
    return int(sum(share.counts.sum() for share in outcome.shares))


def gather(state: SearchState, decisions: list[tuple[Subtree, int]], used: int) -> SearchOutcome:
    outcome = SearchOutcome(SearchVerdict.PLACED, used)
    handles = {area: (key, domain) for (_, key, domain), area in state.area_ids.items()}
    for assign in state.assignment.values():
        for shape, (nodes, counts) in assign.placed.items():
            if len(nodes):
                outcome.shares.append(Share(assign.leaf, shape, nodes, counts))
    order = {id(leaf): i for i, leaf in enumerate(leaves(state.problem.root))}
    outcome.shares.sort(key=lambda share: (order[id(share.leaf)], share.shape))
    for group, area in decisions:
        outcome.satisfied.add(id(group))
        if group.key is not None and area in handles:
            outcome.domains[id(group)] = handles[area]
    for group in groups(state.problem.root):
        if done(group):
            outcome.satisfied.add(id(group))
    return outcome
