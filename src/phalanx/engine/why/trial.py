"""Placing for a trial: the same steps as an attempt, up to the moment where an attempt would commit.

Nothing is left behind: whatever is placed in the columns is taken back by whoever opened the mark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from phalanx.engine.cycle import Cycle
from phalanx.engine.groups import words
from phalanx.engine.groups.build import Built
from phalanx.engine.groups.trial import Assignment, Greedy, holds
from phalanx.engine.placement import Composite, Leaf, Outcome, Problem, place
from phalanx.engine.placement import Group as Part
from phalanx.engine.placement import Verdict as Searched
from phalanx.engine.placement.explain import explain
from phalanx.engine.records import PodRecord
from phalanx.engine.why.values import Verdict, proof_of
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


def solve(cycle: Cycle, built: Built) -> Solved:
    outcome = place(built.problem, explained=False)
    if not outcome.placed:
        return Solved(outcome, [])
    seats = seats_of(built, outcome)
    if not seats or not built.coupled:
        return Solved(outcome, seats)
    try:
        if holds(cycle, seats):
            return Solved(outcome, seats)
        found = Greedy(cycle, built).run()
    finally:
        for evaluation in built.evaluations:
            evaluation.refresh()  # they followed the trial
    return Solved(outcome, found or [], rules_in_the_way=found is None)


def seats_of(built: Built, outcome: Outcome) -> Assignment:
    """From counts to pods, in queue order."""
    number = {shape: i for i, shape in enumerate(built.shapes)}
    waiting: dict[tuple[int, int], list[PodRecord]] = {}
    for part, records in built.pending.items():
        for record in records:
            waiting.setdefault((part, number[record.shape]), []).append(record)
    seats: Assignment = []
    for share in outcome.shares:
        records = waiting[id(share.leaf), share.shape]
        for row, count in zip(share.nodes, share.counts, strict=True):
            seats += [(record, int(row)) for record in records[: int(count)]]
            del records[: int(count)]
    return seats


def verdict_of(cycle: Cycle, group: Group, built: Built, solved: Solved) -> Verdict:
    outcome = solved.outcome
    if solved.rules_in_the_way:
        return Verdict("rules", words.coupled(group), expansions=outcome.expansions)
    if outcome.placed:
        return Verdict("placed", expansions=outcome.expansions)
    name_reasons(cycle, built)
    certificate = outcome.certificate = explain(built.problem)
    if outcome.verdict is Searched.EXHAUSTED:
        text = words.exhausted(group, outcome.expansions, certificate)
    else:
        text = words.refused(group, certificate)
    return Verdict(outcome.verdict.value, text, proof_of(certificate), outcome.expansions)


def name_reasons(cycle: Cycle, built: Built) -> None:
    """Which filter rules each node out, per shape."""
    names: dict[str, int] = {}
    for row, evaluation in zip(built.problem.shapes, built.evaluations, strict=True):
        codes = np.full(cycle.columns.n, -1, dtype=np.int16)
        for _, finding in evaluation.diagnose().findings:
            fresh = finding.rows[codes[finding.rows] < 0]
            codes[fresh] = names.setdefault(finding.reason, len(names))
        row.reasons = codes
    built.problem.reason_names = list(names)


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
