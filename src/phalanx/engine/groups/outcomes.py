"""Convert the outcome of a search into an assignment of pods to nodes, or into a message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from phalanx.engine.framework.traits import traits_of
from phalanx.engine.groups import messages
from phalanx.engine.groups.build import Built
from phalanx.engine.groups.expected_pods import ExpectedPlacement
from phalanx.engine.groups.rank_placement import by_rank
from phalanx.engine.groups.trial import Assignment
from phalanx.engine.placement import SearchOutcome, SearchVerdict
from phalanx.engine.placement.explain import explain, explain_rest
from phalanx.engine.state.records import PodRecord
from phalanx.model.groups import Group


def assignment_of(
    built: Built,
    outcome: SearchOutcome,
    *,
    origin: Mapping[int, int] | None = None,
    row_of: Mapping[str, int] | None = None,
) -> Assignment:
    """Convert counts per node to pods, by rank.

    `origin`: maps ids of the outcome's leaves to those of `built`, if different. `row_of`: pods whose nominated node
    was chosen; they get it before other pods are assigned.
    """
    number = {shape: i for i, shape in enumerate(built.shapes)}
    waiting: dict[tuple[int, int], list[PodRecord]] = {}
    reserved = False
    for part, records in built.pending.items():
        for record in records:
            reserved = reserved or bool(record.nominated)
            waiting.setdefault((part, number[record.shape]), []).append(record)
    assignment: Assignment = []
    for share in outcome.shares:
        leaf = id(share.leaf)
        at = (leaf if origin is None else origin[leaf], share.shape)
        counts = {int(row): int(count) for row, count in zip(share.nodes, share.counts, strict=True)}
        left = waiting[at]
        if reserved and row_of is not None:
            left = _assign_reserved(left, counts, row_of, assignment)
        taken = 0
        for row, count in counts.items():
            assignment += [(record, row) for record in left[taken : taken + count]]
            taken += count
        waiting[at] = left[taken:]
    return by_rank(built.evaluations[0].columns, built, assignment) if assignment else assignment


def _assign_reserved(
    records: list[PodRecord], counts: dict[int, int], row_of: Mapping[str, int], assignment: Assignment
) -> list[PodRecord]:
    """Assign pods to their nominated nodes, reduce the counts, and return the remaining pods."""
    rest = []
    for record in records:
        row = row_of.get(record.nominated, -1) if record.nominated else -1
        if counts.get(row, 0) > 0:
            counts[row] -= 1
            assignment.append((record, row))
        else:
            rest.append(record)
    return rest


def explained(group: Group, built: Built, outcome: SearchOutcome) -> str:
    """Return why the search placed nothing; the certificate stays with the outcome."""
    _name_reasons(built)
    certificate = outcome.certificate = explain(built.problem)
    if outcome.verdict is SearchVerdict.EXHAUSTED:
        return messages.exhausted(group, outcome.expansions, certificate)
    return messages.refused(group, certificate)


def _name_reasons(built: Built) -> None:
    """Set which filter rejects each node, per shape; only messages need this."""
    names: dict[str, int] = {}
    room: set[int] = set()
    for row, evaluation in zip(built.problem.shapes, built.evaluations, strict=True):
        codes = np.full(evaluation.columns.n, -1, dtype=np.int16)
        if (status := evaluation.pre_filter()) is not None:
            codes[:] = names.setdefault(status.message, len(names))
        about_room = {plugin.name for plugin, _ in evaluation.filters if traits_of(plugin).room}
        for plugin, finding in evaluation.diagnose().findings:
            fresh = finding.rows[codes[finding.rows] < 0]
            codes[fresh] = code = names.setdefault(finding.reason, len(names))
            if plugin in about_room:
                room.add(code)
        row.reasons = codes
    built.problem.reason_names, built.problem.room_reasons = list(names), frozenset(room)


def leftovers(group: Group, built: Built) -> tuple[str, SearchOutcome | None]:
    """Return why pods remain although the minimum of their tree is met, as a message and with its certificate."""
    _name_reasons(built)
    rest = explain_rest(built.problem, built.part_of[group.key])
    outcome = SearchOutcome(SearchVerdict.IMPOSSIBLE, 0, certificate=rest) if rest is not None else None
    return messages.leftovers(group, built, rest), outcome


def counter(built: Built, assignment: Assignment) -> Callable[[Group], tuple[int, int]]:
    """Return a function for (scheduled, remaining) of a group: pods of a leaf, child groups of a composite."""
    members_on_nodes = {record.key for record, _ in assignment}

    def count(group: Group) -> tuple[int, int]:
        if group.composite:
            good = sum(count(child)[0] >= _minimum(child) for child in group.sorted_children())
            return good, len(group.children) - good
        pods = built.pending.get(id(built.part_of[group.key]), [])
        placed = sum(record.key in members_on_nodes for record in pods)
        return group.placed + placed, len(pods) - placed

    return count


def satisfied_by(built: Built, assignment: Assignment) -> list[Group]:
    """Return the groups whose minimum is met under a placement."""
    count = counter(built, assignment)
    return [group for group in built.group_of.values() if count(group)[0] >= _minimum(group)]


def _minimum(group: Group) -> int:
    return group.spec.minimum if group.spec is not None else 1


def expected_placements(built: Built, assignment: Assignment, mine: Iterable[str]) -> list[ExpectedPlacement]:
    """Return the placements of pods other than `mine` (pod keys).

    These are expected pods of this tree, and expected pods of other started groups.
    """
    own = set(mine)
    groups = {record.key: built.group_of[leaf].key for leaf, records in built.pending.items() for record in records}
    return [(groups[record.key], record, row) for record, row in assignment if record.key not in own]
