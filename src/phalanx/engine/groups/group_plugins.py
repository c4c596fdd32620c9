"""Run the extension points of groups: candidate placements, their feasibility and score, and post-filter.

Without such plugins only the search runs. With plugins, a root is searched once per candidate placement: those of a
PlacementGenerate plugin, or, for PlacementScore, the domains of the root's topology key. The search applies every rule
of the tree inside each candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from phalanx.engine.decisions import Decision
from phalanx.engine.framework import MAX_SCORE, Code, Placement, PostFilterResult, Status
from phalanx.engine.framework.adapters import PluginFailure, guarded
from phalanx.engine.framework.profile import Profile
from phalanx.engine.groups.build import Built
from phalanx.engine.groups.outcomes import assignment_of
from phalanx.engine.placement import SearchOutcome, SearchVerdict, place
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.records import PodRecord
from phalanx.model.groups import Group


class View(msgspec.Struct, frozen=True):
    """framework.GroupView."""

    kind: str
    namespace: str
    name: str
    topology_key: str


def view_of(group: Group) -> View:
    key = group.spec.topology_key if group.spec is not None else None
    return View(group.key.kind, group.key.namespace, group.key.name, key or "")


class GroupPlugins:
    """Run the group plugins of one profile. Falsy if the profile has none."""

    def __init__(self, profile: Profile, columns: Columns) -> None:
        self._columns = columns
        self._generators = profile.groups["placementGenerate"]
        self._gates = profile.groups["placementFeasible"]
        self._scores = profile.groups["placementScore"]
        self._helpers = profile.groups["podGroupPostFilter"]
        self._weights = {plugin.name: profile.weight_of(plugin.name) for plugin in self._scores}

    def __bool__(self) -> bool:
        return bool(self._generators or self._gates or self._scores or self._helpers)

    @property
    def generates(self) -> bool:
        return bool(self._generators)

    # ---- PlacementFeasible

    def hopeless(self, group: Group, pending: int) -> Status | None:
        """Call PlacementFeasible plugins before any search, so that a rejected group costs nothing."""
        return self._feasible(group, group.placed if not group.composite else 0, pending)

    def refused(self, groups: Iterable[Group], members_on_nodes: Callable[[Group], tuple[int, int]]) -> Status | None:
        """Call PlacementFeasible plugins for every group of a placement; `members_on_nodes`: see `counter`."""
        for group in groups:
            status = self._feasible(group, *members_on_nodes(group), waiting_is_refusal=True)
            if status is not None:
                return status
        return None

    def _feasible(
        self, group: Group, scheduled: int, remaining: int, *, waiting_is_refusal: bool = False
    ) -> Status | None:
        for plugin in self._gates:
            status = guarded(plugin, plugin.feasible, view_of(group), scheduled, remaining)
            if not isinstance(status, Status) or status.code in (Code.SKIP, Code.ERROR):
                raise PluginFailure(plugin.name, f"feasible() answered {getattr(status, 'message', '') or status!r}")
            if status.rejected or (waiting_is_refusal and status.code is Code.WAIT):
                return Status(status.code, status.reasons, plugin.name)
        return None

    # ---- PlacementGenerate and PlacementScore

    def search(self, group: Group, built: Built) -> SearchOutcome | Status:
        """Return the outcome of the best candidate placement, or a Status if a plugin allows none."""
        placements = self.candidates(group, built)
        if isinstance(placements, Status):
            return placements
        found: list[tuple[Placement, SearchOutcome]] = []
        first: SearchOutcome | None = None
        for placement in placements:
            outcome = place(_inside(built, placement.mask[: self._columns.n]), explained=False)
            if outcome.placed:
                found.append((placement, outcome))
                if not self._scores:
                    break
            elif first is None or outcome.verdict is SearchVerdict.EXHAUSTED:
                first = outcome
        if not found:
            return first if first is not None else Status(Code.UNSCHEDULABLE, ("no feasible placements found",))
        return found[self._highest_score(group, built, found)][1]

    def candidates(self, group: Group, built: Built) -> Sequence[Placement] | Status:
        everywhere = Placement("", self._columns.alive)
        for plugin in self._generators:  # as in kube-scheduler, the first plugin decides
            answer = guarded(plugin, plugin.generate, view_of(group), everywhere)
            if isinstance(answer, Status):
                return Status(answer.code, answer.reasons, plugin.name)
            if not all(isinstance(each, Placement) for each in answer):
                raise PluginFailure(plugin.name, "generate() must answer Placements or a Status")
            return list(answer)
        part = built.part_of[group.key]
        if not self._scores or part.key is None or part.pinned >= 0:
            return [everywhere]
        column, names = built.problem.domains[part.key], built.problem.domain_names[part.key]
        found = []
        for domain in np.unique(column[column >= 0]):
            mask = np.zeros(self._columns.capacity, dtype=np.bool_)
            mask[: self._columns.n] = column == domain
            found.append(Placement(names[int(domain)], mask))
        return found

    def _highest_score(self, group: Group, built: Built, found: list[tuple[Placement, SearchOutcome]]) -> int:
        """Return the index of the candidate placement with the highest weighted score."""
        if len(found) == 1:
            return 0
        totals = np.zeros(len(found))
        for plugin in self._scores:
            raw = np.array(
                [
                    float(
                        guarded(
                            plugin, plugin.score_placement, view_of(group), placement, assignment_of(built, outcome)
                        )
                    )
                    for placement, outcome in found
                ]
            )
            high = raw.max()
            if high > 0:
                totals += self._weights[plugin.name] * np.floor(raw * MAX_SCORE / high)
        return int(totals.argmax())  # ties: the first candidate

    # ---- PodGroupPostFilter

    def after_failure(
        self, group: Group, pods: list[PodRecord], diagnosis: Any
    ) -> tuple[bool, list[str], tuple[Decision, ...]]:
        """Run PodGroupPostFilter plugins; return (a plugin helped, messages, decisions)."""
        notes: list[str] = []
        decisions: tuple[Decision, ...] = ()
        for plugin in self._helpers:
            result = guarded(plugin, plugin.pod_group_post_filter, view_of(group), pods, diagnosis)
            if not isinstance(result, PostFilterResult):
                raise PluginFailure(plugin.name, "pod_group_post_filter() must answer a PostFilterResult")
            decisions += result.decisions
            if result.message:
                notes.append(result.message)
            if result.status.code is Code.ERROR:
                raise PluginFailure(plugin.name, result.status.message)
            if result.status.code in (Code.SUCCESS, Code.UNRESOLVABLE):
                return result.status.code is Code.SUCCESS, notes, decisions
        return False, notes, decisions


def _inside(built: Built, allowed: np.ndarray) -> Any:
    """Return the same problem restricted to the allowed nodes."""
    shapes = []
    for row in built.problem.shapes:
        slots = None if row.slots is None else np.where(allowed, row.slots, 0)
        shapes.append(replace(row, mask=row.mask & allowed, slots=slots))
    return replace(built.problem, shapes=shapes)
