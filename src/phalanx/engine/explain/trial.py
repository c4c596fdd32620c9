"""Build variants of a placement problem, and convert an answer to a verdict for reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from phalanx.engine.explain.values import Verdict, proof_of
from phalanx.engine.framework import Status
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.groups.build import Built
from phalanx.engine.groups.find_placement import Found, find
from phalanx.engine.groups.group_plugins import GroupPlugins
from phalanx.engine.placement import Composite, Leaf, PlacementProblem, Subtree
from phalanx.engine.scheduling.attempt.answers import Answer, Cause, NominatedAfterPreemption, Placed
from phalanx.engine.state.records import PodRecord
from phalanx.model.groups import Group

_RESULTS = {
    Cause.ROOM: "impossible",
    Cause.RULES: "rules",
    Cause.EXTRAS: "impossible",
    Cause.WHOLE: "refused",
    Cause.PLUGIN: "refused",
    Cause.PERMIT: "refused",
    Cause.HELD: "untried",
    Cause.PARTIAL: "error",
    Cause.ERROR: "error",
}


def verdict_of(answer: Answer) -> Verdict:
    if isinstance(answer, Placed):
        return Verdict("placed")
    if isinstance(answer, NominatedAfterPreemption):
        answer = answer.refused
    outcome = answer.outcome
    if outcome is None:
        return Verdict(_RESULTS[answer.cause], answer.message)
    return Verdict(outcome.verdict.value, answer.message, proof_of(outcome.certificate), outcome.expansions)


def fits(state: ClusterState, group: Group, built: Built, points: GroupPlugins | None = None) -> bool | None:
    """Return whether a variant fits; None if it is unknown."""
    # What ranks prefer is never a reason why a group does not fit.
    found = find(state, group, built, points, ranks=False)
    if isinstance(found, Found):
        return True
    return False if isinstance(found, Status) or found.proved else None


def changed(problem: PlacementProblem, **changes: Any) -> PlacementProblem:
    """Return a separate problem with some fields changed, even if the original shares its arrays with the columns."""
    kept = {each.name: getattr(problem, each.name) for each in fields(PlacementProblem)}
    return PlacementProblem(**{**kept, **changes})


Edit = Callable[[Subtree], Subtree]


def edited(built: Built, edit: Edit, change: Callable[[PlacementProblem], PlacementProblem] | None = None) -> Built:
    """Return the same pods as another problem. `edit` is called for every group of the tree, children first."""
    pending: dict[int, list[PodRecord]] = {}
    group_of: dict[int, Group] = {}

    def walk(part: Subtree) -> Subtree:
        made = part
        if isinstance(part, Composite):
            made = replace(part, children=tuple(walk(child) for child in part.children))
        made = edit(made)
        if made is part:
            made = replace(part)  # a separate copy: problems do not share groups
        if isinstance(made, Leaf):
            pending[id(made)] = built.pending[id(part)]
        group_of[id(made)] = built.group_of[id(part)]
        keep.append(made)
        return made

    keep: list[Subtree] = []  # ids stay unique only while these objects exist
    problem = changed(built.problem, root=walk(built.problem.root))
    if change is not None:
        problem = change(problem)
    part_of = {group_of[id(part)].key: part for part in keep if id(part) in group_of}
    return replace(built, problem=problem, pending=pending, group_of=group_of, part_of=part_of)
