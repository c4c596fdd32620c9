"""Find a placement of a group tree without preemption.

The steps: search by counting, check cross-node rules with the filters, then backtrack. Attempts, queries and variants
of either all call `find`. The cluster state is unchanged afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import msgspec

from phalanx.engine.framework import Status
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.groups import messages
from phalanx.engine.groups.build import Built
from phalanx.engine.groups.co_placement import together
from phalanx.engine.groups.group_plugins import GroupPlugins
from phalanx.engine.groups.outcomes import assignment_of, explained
from phalanx.engine.groups.rank_placement import by_rank
from phalanx.engine.groups.rank_variants import RankVariant, at_home, spread
from phalanx.engine.groups.trial import Assignment, SequentialTrial, holds, open_to_members
from phalanx.engine.placement import SearchOutcome, SearchVerdict, place
from phalanx.model.groups import Group


@dataclass(frozen=True, slots=True)
class Found:
    assignment: Assignment  # empty: the minimum is met and no other pod fits
    satisfied: set[int]  # ids of the groups whose minimum is met by it
    outcome: SearchOutcome


class NoPlacement(msgspec.Struct, frozen=True):
    outcome: SearchOutcome
    rules: bool = False  # enough resources, but affinity, spreading or volume rules are violated
    used: int = 0  # expansions of a search that ended at its budget; 0: it was complete or not needed

    @property
    def proved(self) -> bool:
        """Return whether counting alone proves that there is no room."""
        return not self.rules and self.outcome.verdict is not SearchVerdict.EXHAUSTED

    def text(self, group: Group, built: Built) -> str:
        """Return the reason as a message; the certificate stays with the outcome."""
        if self.rules:
            return messages.coupled(group, used=self.used)
        text = explained(group, built, self.outcome)
        if self.used and self.outcome.verdict is not SearchVerdict.EXHAUSTED:
            text += messages.used_up(self.used)
        return text


def find(
    state: ClusterState, group: Group, built: Built, group_plugins: GroupPlugins | None = None, *, ranks: bool = True
) -> Found | NoPlacement | Status:
    """Find a placement; return a Status if a plugin allows none. Raises PluginFailure.

    `ranks`: prefer placements that follow the ranks of members and their nominated nodes.
    """
    if group_plugins is not None or not ranks:
        return _search(state, group, built, group_plugins)  # plugins choose the candidate placements
    for variant in chain(together(state, built), spread(state.columns, built)) if built.has_policies else ():
        following = _instead(state, group, variant)
        if following is not None:
            return following
    found = _search(state, group, built, None)
    if state.nominations and isinstance(found, Found) and any(record.nominated for record, _ in found.assignment):
        nominated = at_home(state.columns, built, found.assignment)
        return (nominated and _instead(state, group, nominated)) or found
    return found


def _instead(state: ClusterState, group: Group, variant: tuple[RankVariant, Built]) -> Found | None:
    made, built = variant
    found = _search(state, group, built, None)
    if not isinstance(found, Found) or not found.assignment:
        return None
    return Found(found.assignment, made.satisfied(found.satisfied), found.outcome)


def _search(
    state: ClusterState, group: Group, built: Built, group_plugins: GroupPlugins | None
) -> Found | NoPlacement | Status:
    """Place by counting, then check the assignment by the filters if members affect each other."""
    outcome = place(built.problem, explained=False) if group_plugins is None else group_plugins.search(group, built)
    if isinstance(outcome, Status):
        return outcome
    assignment = assignment_of(built, outcome, row_of=state.columns.row_of) if outcome.placed else []
    if not built.coupled or (outcome.placed and not assignment):
        return Found(assignment, outcome.satisfied, outcome) if outcome.placed else NoPlacement(outcome)
    try:
        return _by_filters(state, built, outcome, assignment, group_plugins)
    finally:
        for evaluation in built.evaluations:
            evaluation.refresh()  # the trial has changed them


def _by_filters(
    state: ClusterState,
    built: Built,
    outcome: SearchOutcome,
    assignment: Assignment,
    group_plugins: GroupPlugins | None,
) -> Found | NoPlacement:
    if outcome.placed and holds(state, assignment):
        return Found(assignment, outcome.satisfied, outcome)
    # The backtracking search does not know the placements that a plugin generates.
    free = group_plugins is None or not group_plugins.generates
    sequential = SequentialTrial(state, built)
    found = sequential.run() if free and (outcome.placed or open_to_members(state, built)) else None
    if found:
        return Found(by_rank(state.columns, built, found), sequential.satisfied, outcome)
    return NoPlacement(outcome, rules=outcome.placed, used=sequential.expansions if sequential.exhausted else 0)
