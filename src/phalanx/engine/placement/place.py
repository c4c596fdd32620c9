"""The way in: a Problem becomes an Outcome."""

from __future__ import annotations

from itertools import islice

import numpy as np

from phalanx.engine.placement.bounds import Bounds
from phalanx.engine.placement.explain import explain
from phalanx.engine.placement.outcome import Outcome, Share, Verdict
from phalanx.engine.placement.problem import Composite, Group, Leaf, Problem, done, groups, leaves
from phalanx.engine.placement.search import Extras, Search
from phalanx.engine.placement.state import Budget, Exhausted, State
from phalanx.engine.placement.uniform import place_uniform

FULL_TRIES = 8  # expansions per group that the attempt to seat everybody may take
IMPROVE_TRIES = 16  # expansions per group for a placement of more pods
IMPROVE_DOMAINS = 4  # root domains looked at for that


def place(problem: Problem, *, explained: bool = True) -> Outcome:
    """Places the tree: whole if that works, otherwise minimums and then what else fits, or says why not."""
    quick = place_uniform(problem)
    if quick is None:
        quick = _search(problem)
    if explained and not quick.placed:
        quick.certificate = explain(problem)
    return quick


def hopeless(problem: Problem) -> bool:
    """Counting alone shows that the tree cannot fit. Asked with the capacity that the greatest preemption could free,
    a yes means UnschedulableAndUnresolvable."""
    return not Bounds(State(problem, Budget(0)), False).possible(problem.root, 0)


def _search(problem: Problem) -> Outcome:
    slack = any(leaf.total > leaf.need for leaf in leaves(problem.root)) or any(
        isinstance(g, Composite) and g.minimum < len(g.children) for g in groups(problem.root)
    )
    used = 0
    every = groups(problem.root)
    # Everybody cannot be seated while a group lacks the members to be whole: nothing below such a group may sit.
    if slack and not any(_short_of_members(group) for group in every):
        budget = Budget(min(problem.budget, FULL_TRIES * len(every)))
        state = State(problem, budget)
        search = Search(state, True, budget)
        try:
            if search.run(problem.root, 0):
                return _outcome(state, search.decisions, budget.used)
        except Exhausted:
            pass
        used = budget.used
    budget = Budget(problem.budget)
    budget.used = used
    state = State(problem, budget)
    search = Search(state, False, budget)
    try:
        found = search.run(problem.root, 0)
    except Exhausted:
        return Outcome(Verdict.EXHAUSTED, budget.used)
    if not found:
        return Outcome(Verdict.EXHAUSTED if budget.truncated else Verdict.IMPOSSIBLE, budget.used)
    if not slack:
        return _outcome(state, search.decisions, budget.used)
    Extras(state, search.decisions, budget).run(problem.root)
    first = _outcome(state, search.decisions, budget.used)
    return _improve(problem, first) if isinstance(problem.root, Composite) else first


def _short_of_members(group: Group) -> bool:
    if isinstance(group, Leaf):
        return group.total < group.need
    return len(group.children) < group.minimum


def _improve(problem: Problem, first: Outcome) -> Outcome:
    """More pods than the cheapest minimum and its extras give: other root domains, more children at once."""
    root = problem.root
    assert isinstance(root, Composite)
    total = sum(leaf.total for leaf in leaves(root))
    best, most = first, _pods(first)
    allowance = Budget(min(problem.budget, IMPROVE_TRIES * len(groups(root))))
    pending = sum(not done(child) for child in root.children)
    beyond = max(0, pending - max(0, root.minimum - (len(root.children) - pending)))
    probe = Search(State(problem, Budget(0)), False, Budget(0))
    for area in islice(probe.areas(root, 0), IMPROVE_DOMAINS):
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
            outcome = _outcome(state, search.decisions, 0)
            if found and _pods(outcome) > most:
                best, most = outcome, _pods(outcome)
            if found and more:
                break
    best.expansions = first.expansions + allowance.used
    return best


def _pods(outcome: Outcome) -> int:
    return int(sum(share.counts.sum() for share in outcome.shares))


def _outcome(state: State, decisions: list[tuple[Group, int]], used: int) -> Outcome:
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


def placed_pods(outcome: Outcome, leaf: Leaf) -> int:
    return int(sum(np.sum(share.counts) for share in outcome.shares if share.leaf is leaf))
