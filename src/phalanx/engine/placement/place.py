"""Entry point of the placement search: turn a Problem into a SearchOutcome."""

from __future__ import annotations

import numpy as np

from phalanx.engine.placement.bounds import Bounds
from phalanx.engine.placement.explain import explain
from phalanx.engine.placement.local_search import gather, improve
from phalanx.engine.placement.outcome import SearchOutcome, SearchVerdict
from phalanx.engine.placement.problem import Composite, Leaf, PlacementProblem, Subtree, groups, leaves
from phalanx.engine.placement.search import Extras, Search
from phalanx.engine.placement.state import Budget, Exhausted, SearchState
from phalanx.engine.placement.uniform import place_uniform
from phalanx.engine.slices import worked

FULL_TRIES = 8  # expansions per group for the attempt to place all pods


def place(problem: PlacementProblem, *, explained: bool = True) -> SearchOutcome:
    """Place the complete tree if possible, else the minimums and then extra pods; otherwise explain why not."""
    worked(12 + problem.node_count // 64)
    quick = place_uniform(problem)
    if quick is None:
        quick = _search(problem)
    if explained and not quick.placed:
        quick.certificate = explain(problem)
    return quick


def hopeless(problem: PlacementProblem) -> bool:
    """Return whether counting alone proves that the tree cannot fit.

    For the capacity that the largest possible preemption would free, True means UnschedulableAndUnresolvable.
    """
    return not Bounds(SearchState(problem, Budget(0)), False).possible(problem.root, 0)


def _search(problem: PlacementProblem) -> SearchOutcome:
    slack = any(leaf.total > leaf.need for leaf in leaves(problem.root)) or any(
        isinstance(g, Composite) and g.minimum < len(g.children) for g in groups(problem.root)
    )
    used = 0
    every = groups(problem.root)
    # Not all pods can be placed if a group has fewer members than its minimum: no pod below it may be placed.
    if slack and not any(_short_of_members(group) for group in every):
        budget = Budget(min(problem.budget, FULL_TRIES * len(every)))
        state = SearchState(problem, budget)
        search = Search(state, True, budget)
        try:
            if search.run(problem.root, 0):
                return gather(state, search.decisions, budget.used)
        except Exhausted:
            pass
        used = budget.used
    budget = Budget(problem.budget)
    budget.used = used
    state = SearchState(problem, budget)
    search = Search(state, False, budget)
    try:
        found = search.run(problem.root, 0)
    except Exhausted:
        return SearchOutcome(SearchVerdict.EXHAUSTED, budget.used)
    if not found:
        return SearchOutcome(SearchVerdict.EXHAUSTED if budget.truncated else SearchVerdict.IMPOSSIBLE, budget.used)
    if not slack:
        return gather(state, search.decisions, budget.used)
    Extras(state, search.decisions, budget).run(problem.root)
    first = gather(state, search.decisions, budget.used)
    return improve(problem, first) if isinstance(problem.root, Composite) else first


def _short_of_members(group: Subtree) -> bool:
    if isinstance(group, Leaf):
        return group.total < group.need
    return len(group.children) < group.minimum


def placed_pods(outcome: SearchOutcome, leaf: Leaf) -> int:
    return int(sum(np.sum(share.counts) for share in outcome.shares if share.leaf is leaf))
