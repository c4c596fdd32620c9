"""More pods than the minimums and their extras give, for trees that cannot be placed whole.

Which children, which root domain, and whose extras are worth a larger domain: the first placement decides that by
the minimums alone. From there on we climb: one change at a time, and each that seats more pods is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from phalanx.engine.placement.outcome import Outcome, Share, Verdict
from phalanx.engine.placement.problem import Composite, Group, Leaf, Problem, done, groups, leaves
from phalanx.engine.placement.search import Extras, Search
from phalanx.engine.placement.state import Budget, Exhausted, State

TRIES = 16  # expansions per group for other domains and more children at once, and as many again for single changes
DOMAINS = 4  # root domains looked at
CHANGES = 16  # single changes looked at


def improve(problem: Problem, first: Outcome) -> Outcome:
    start = _other_domains(problem, first)
    climb = Climb(problem, start)
    best = climb.run()
    best.expansions = start.expansions + climb.budget.used
    return best


def _other_domains(problem: Problem, first: Outcome) -> Outcome:
    """Other root domains, more children at once."""
    root = problem.root
    assert isinstance(root, Composite)
    total = sum(leaf.total for leaf in leaves(root))
    best, most = first, _pods(first)
    allowance = Budget(min(problem.budget, TRIES * len(groups(root))))
    pending = sum(not done(child) for child in root.children)
    beyond = max(0, pending - max(0, root.minimum - (len(root.children) - pending)))
    probe = Search(State(problem, Budget(0)), False, Budget(0))
    for area in islice(probe.areas(root, 0), DOMAINS):
        for more in range(beyond, -1, -1):
            if most >= total or not allowance.left:
                break
            budget = Budget(min(allowance.left, 4 * len(groups(root))))
            state = State(problem, budget)
            state.areas, state.area_ids = list(probe.state.areas), dict(probe.state.area_ids)
            search = Search(state, False, budget, more, generous=True)
            try:
                found = search.run(root, area, inside=True)
            except Exhausted:
                found = False
            if found:
                Extras(state, search.decisions, budget).run(root)
            allowance.used += max(1, budget.used)
            outcome = gather(state, search.decisions, 0)
            if found and _pods(outcome) > most:
                best, most = outcome, _pods(outcome)
            if found and more:
                break
    best.expansions = first.expansions + allowance.used
    return best


class Choice:
    """The children of the root that take part, and the leaves that must be whole."""

    __slots__ = ("children", "whole")

    def __init__(self, children: frozenset[int], whole: frozenset[int]) -> None:
        self.children = children  # positions below the root
        self.whole = whole  # id() of leaves

    def key(self) -> tuple[frozenset[int], frozenset[int]]:
        return self.children, self.whole


class Climb:
    def __init__(self, problem: Problem, start: Outcome) -> None:
        assert isinstance(problem.root, Composite)
        self.problem = problem
        self.root: Composite = problem.root
        self.best = start
        self.budget = Budget(min(problem.budget, TRIES * len(groups(self.root))))
        self._tried: set[tuple[frozenset[int], frozenset[int]]] = set()
        self._looked = 0

    def run(self) -> Outcome:
        total = sum(leaf.total for leaf in leaves(self.root))
        choice = Choice(self._taking_part(), frozenset())
        while _pods(self.best) < total:
            better = self._step(choice)
            if better is None:
                break
            choice = Choice(self._taking_part(), better.whole)
        return self.best

    def _taking_part(self) -> frozenset[int]:
        return frozenset(i for i, child in enumerate(self.root.children) if id(child) in self.best.satisfied)

    def _step(self, choice: Choice) -> Choice | None:
        for other in self._neighbours(choice):
            if other.key() in self._tried:
                continue
            if self._looked >= CHANGES or not self.budget.left:
                return None
            self._tried.add(other.key())
            self._looked += 1
            found = self._place(other)
            if found is not None and _pods(found) > _pods(self.best):
                self.best = found
                return other
        return None

    def _neighbours(self, choice: Choice) -> Iterator[Choice]:
        """One leaf whole, beside the others that must be or instead of them; one child more, less, or for another."""
        children = self.root.children
        seated = {id(leaf): 0 for leaf in leaves(self.root)}
        for share in self.best.shares:
            seated[id(share.leaf)] += int(share.counts.sum())
        inside = [leaf for i in sorted(choice.children) for leaf in leaves(children[i])]
        short = [leaf for leaf in inside if seated[id(leaf)] < leaf.total and id(leaf) not in choice.whole]
        short.sort(key=lambda leaf: seated[id(leaf)] - leaf.total)
        for leaf in short:
            yield Choice(choice.children, choice.whole | {id(leaf)})
        for leaf in short:
            yield Choice(choice.children, frozenset({id(leaf)}))
        size = [sum(leaf.total for leaf in leaves(child)) for child in children]
        others = sorted((i for i in range(len(children)) if i not in choice.children), key=lambda i: -size[i])
        for i in others:
            yield Choice(choice.children | {i}, choice.whole)
        leaving = [i for i in choice.children if not done(children[i])]
        leaving.sort(key=lambda i: sum(seated[id(leaf)] for leaf in leaves(children[i])))
        for gone in leaving:
            rest = choice.whole - {id(leaf) for leaf in leaves(children[gone])}
            if len(choice.children) > self.root.minimum:
                yield Choice(choice.children - {gone}, rest)
            for i in others:
                yield Choice(choice.children - {gone} | {i}, rest)

    def _place(self, choice: Choice) -> Outcome | None:
        originals: dict[int, Group] = {}
        made: list[Group] = []  # keeps the copies alive: they are told apart by id()

        def copy(group: Group) -> Group:
            twin: Group
            if isinstance(group, Composite):
                twin = replace(group, children=tuple(copy(child) for child in group.children))
            else:
                minimum = group.satisfied + group.total if id(group) in choice.whole else group.minimum
                twin = replace(group, minimum=minimum)
            originals[id(twin)] = group
            made.append(twin)
            return twin

        kept = tuple(copy(self.root.children[i]) for i in sorted(choice.children))
        root = replace(self.root, children=kept, minimum=len(kept))
        originals[id(root)] = self.root
        budget = Budget(min(self.budget.left, 4 * len(groups(root))))
        state = State(replace(self.problem, root=root), budget)
        search = Search(state, False, budget)
        try:
            found = search.run(root, 0)
            if found:
                Extras(state, search.decisions, budget).run(root)
        except Exhausted:
            found = False
        self.budget.used += max(1, budget.used)
        if not found:
            return None
        outcome = gather(state, search.decisions, 0)
        leaf_of = {twin: group for twin, group in originals.items() if isinstance(group, Leaf)}
        outcome.shares = [replace(share, leaf=leaf_of[id(share.leaf)]) for share in outcome.shares]
        outcome.satisfied = {id(originals[twin]) for twin in outcome.satisfied}
        outcome.domains = {id(originals[twin]): domain for twin, domain in outcome.domains.items()}
        return outcome


def _pods(outcome: Outcome) -> int:
    return int(sum(share.counts.sum() for share in outcome.shares))


def gather(state: State, decisions: list[tuple[Group, int]], used: int) -> Outcome:
    outcome = Outcome(Verdict.PLACED, used)
    handles = {area: (key, domain) for (_, key, domain), area in state.area_ids.items()}
    for seat in state.seats.values():
        for shape, (nodes, counts) in seat.placed.items():
            if len(nodes):
                outcome.shares.append(Share(seat.leaf, shape, nodes, counts))
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
