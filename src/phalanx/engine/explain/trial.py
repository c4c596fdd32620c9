"""Placing for a trial: the same steps as an attempt, up to the moment where an attempt would commit.

Nothing is left behind: whatever is placed in the columns is taken back by whoever opened the mark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from phalanx.engine.explain.values import Verdict, proof_of
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.groups import words
from phalanx.engine.groups.build import Built
from phalanx.engine.groups.outcomes import explained, seats_of
from phalanx.engine.groups.trial import Assignment, Careful, holds, open_to_members
from phalanx.engine.placement import Composite, Leaf, Outcome, Problem, place
from phalanx.engine.placement import Group as Part
from phalanx.engine.placement import Verdict as Searched
from phalanx.engine.state.records import PodRecord
from phalanx.model.groups import Group


@dataclass(slots=True)
class Solved:
    outcome: Outcome
    seats: Assignment
    rules_in_the_way: bool = False  # there is room, but the pods' rules about each other found no placement

    @property
    def fits(self) -> bool | None:
        if self.outcome.verdict is Searched.EXHAUSTED or self.rules_in_the_way:
            return None
        return self.outcome.placed


def solve(state: ClusterState, built: Built) -> Solved:
    outcome = place(built.problem, explained=False)
    seats = seats_of(built, outcome) if outcome.placed else []
    if not built.coupled or (outcome.placed and not seats):
        return Solved(outcome, seats)
    try:
        if not outcome.placed:
            found = Careful(state, built).run() if open_to_members(state, built) else None
            return Solved(replace(outcome, verdict=Searched.PLACED), found) if found else Solved(outcome, [])
        if holds(state, seats):
            return Solved(outcome, seats)
        found = Careful(state, built).run()
    finally:
        for evaluation in built.evaluations:
            evaluation.refresh()  # they followed the trial
    return Solved(outcome, found or [], rules_in_the_way=found is None)


def verdict_of(group: Group, built: Built, solved: Solved) -> Verdict:
    outcome = solved.outcome
    if solved.rules_in_the_way:
        return Verdict("rules", words.coupled(group), expansions=outcome.expansions)
    if outcome.placed:
        return Verdict("placed", expansions=outcome.expansions)
    text = explained(group, built, outcome)
    return Verdict(outcome.verdict.value, text, proof_of(outcome.certificate), outcome.expansions)


def changed(problem: Problem, **changes: Any) -> Problem:
    """A problem of its own with some fields changed; also of one that borrows its arrays from the columns."""
    kept = {each.name: getattr(problem, each.name) for each in fields(Problem)}
    return Problem(**{**kept, **changes})


Edit = Callable[[Part], Part]


def edited(built: Built, edit: Edit, change: Callable[[Problem], Problem] | None = None) -> Built:
    """The same pods as another problem: `edit` is asked about every group of the tree, children first."""
    pending: dict[int, list[PodRecord]] = {}
    group_of: dict[int, Group] = {}

    def walk(part: Part) -> Part:
        made = part
        if isinstance(part, Composite):
            made = replace(part, children=tuple(walk(child) for child in part.children))
        made = edit(made)
        if made is part:
            made = replace(part)  # a twin of its own: problems do not share groups
        if isinstance(made, Leaf):
            pending[id(made)] = built.pending[id(part)]
        group_of[id(made)] = built.group_of[id(part)]
        keep.append(made)
        return made

    keep: list[Part] = []  # ids stay unique only while their groups live
    problem = changed(built.problem, root=walk(built.problem.root))
    if change is not None:
        problem = change(problem)
    part_of = {group_of[id(part)].key: part for part in keep if id(part) in group_of}
    return replace(built, problem=problem, pending=pending, group_of=group_of, part_of=part_of)
