"""Preemption for group roots: plans the minimum first, extras in a step of their own, and carries plans out.

`plan` only looks. `__call__` is what a failed attempt of a root ends with: it answers a note for the group's message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.engine.framework import ClusterChange
from phalanx.engine.groups.build import Built, build
from phalanx.engine.groups.outcomes import seats_of
from phalanx.engine.groups.staging import Stage, Stager, latecomers, leftovers, raised
from phalanx.engine.groups.trial import Assignment, Careful, holds
from phalanx.engine.placement.problem import Leaf, done
from phalanx.engine.preemption.catalogue import Catalogue, Unit
from phalanx.engine.preemption.cost import ORDER
from phalanx.engine.preemption.plan import NOBODY_LOWER, plan
from phalanx.engine.preemption.problem import DEFAULT_BUDGET
from phalanx.engine.preemption.result import Answer, GaveUp, Hopeless, Plan
from phalanx.engine.scheduling.cycle import Cycle
from phalanx.engine.scheduling.evictions import Evictions
from phalanx.engine.scheduling.pod_preemption import NEVER, announce
from phalanx.engine.scheduling.roots import Root
from phalanx.engine.state.records import PodRecord
from phalanx.model.groups import COMPOSITE, Group, GroupKey

ONGOING = "ongoing preemption on nominated nodes"
GAVE_UP = "the search for victims gave up after {} expansions; nobody is evicted without a plan"
RULES = "no set of victims was found that also keeps the pods' affinity, spreading and volume rules"


@dataclass(frozen=True, slots=True, eq=False)
class GroupPlan:
    """A plan with what is needed to carry it out."""

    answer: Answer
    units: tuple[Unit, ...] = ()
    seats: tuple[tuple[PodRecord, int], ...] = ()

    @property
    def victims(self) -> list[PodRecord]:
        return [pod for unit in self.units for pod in unit.pods.values()]


class GroupPreemption:
    def __init__(self, cycle: Cycle, evictions: Evictions, pending: dict[GroupKey, dict[str, PodRecord]]) -> None:
        self.cycle = cycle
        self.cluster = cycle.cluster
        self.catalogue: Catalogue = cycle.preemption.catalogue
        self.evictions = evictions
        self._pending = pending  # leaf -> its pending pods
        self.order = ORDER
        self.budget = DEFAULT_BUDGET
        self._futile: dict[str, tuple[tuple[Any, ...], str]] = {}

    # ---- called by an attempt that failed

    def __call__(self, root: Root, group: Group, built: Built) -> str:
        if self.cluster.forest.preemption_policy(group.key) == "Never":
            return NEVER
        if self.evictions.of(root.key) is not None:
            return ONGOING
        state = self._state(root)
        known = self._futile.get(root.key)
        if known is not None and known[0] == state:
            return known[1]
        found = self.plan(root, group, built)
        if found.units or found.seats:
            return self.carry_out(root, group, found)
        note = self._note(found.answer)
        for record in root.records.values():
            if record.nominated:
                self.cycle.nominate(record, "")  # no plan, no promises: others may have the room
        if len(self._futile) > 1024:
            self._futile.clear()
        self._futile[root.key] = (self._state(root), note)
        return note

    def expected(self, root: str, change: ClusterChange) -> bool:
        return self.evictions.expected(root, change)

    def _state(self, root: Root) -> tuple[Any, ...]:
        """An unchanged cluster is not searched twice for the same pods (their groups are objects of the cluster)."""
        pods = tuple(sorted((key, record.shape.id) for key, record in root.records.items()))
        return (*self.catalogue.circumstances, root.priority, pods)

    @staticmethod
    def _note(answer: Answer) -> str:
        if isinstance(answer, GaveUp):
            return GAVE_UP.format(answer.expansions)
        return answer.reason if isinstance(answer, Hopeless) else RULES

    # ---- looking

    def plan(self, root: Root, group: Group, built: Built | None = None) -> GroupPlan:
        """The cheapest plan for the root's minimum; when that runs already, for as many of the rest as possible."""
        self.catalogue.refresh()
        if built is None:
            built = build(self.cluster, group, self._pending, self.cluster.settings.search_budget, root.priority)
        stager = Stager(self.cluster, self.catalogue, built, root.priority)
        whole = built.problem.root
        if not stager.units and not self.catalogue.leaving:
            return GroupPlan(Hopeless(NOBODY_LOWER))
        if not done(whole):
            tree, origin = raised(whole, {})
            return self._try(stager.stage(tree, origin, self.order, self.budget))
        return self._extras(stager)

    def _extras(self, stager: Stager) -> GroupPlan:
        """All that waits beyond the minimum, else the first group below it that can be served, else pods of one."""
        whole = stager.built.problem.root
        waiting, late = leftovers(whole), latecomers(whole)
        more = {id(leaf): leaf.total for leaf in waiting} | {id(group): 0 for group in late}
        if not more:
            return GroupPlan(Hopeless("nothing waits beyond the minimum"))
        found = self._with(stager, more)
        if found.units or found.seats:
            return found
        for group in late if len(more) > 1 else ():
            one = self._with(stager, {id(group): 0})
            if one.units or one.seats:
                return one
        for leaf in waiting:
            best = self._most(stager, leaf) if len(more) > 1 or leaf.total > 1 else None
            if best is not None:
                return best
        return found

    def _most(self, stager: Stager, leaf: Leaf) -> GroupPlan | None:
        """As many of one leaf's pods as can be served at all."""
        low, high = 0, leaf.total
        best: GroupPlan | None = None
        while low < high:
            middle = (low + high + 1) // 2
            found = self._with(stager, {id(leaf): middle})
            if found.units or found.seats:
                low, best = middle, found
            else:
                high = middle - 1
        return best

    def _with(self, stager: Stager, more: dict[int, int]) -> GroupPlan:
        tree, origin = raised(stager.built.problem.root, more)
        return self._try(stager.stage(tree, origin, self.order, self.budget))

    def _try(self, stage: Stage) -> GroupPlan:
        answer = plan(stage.problem)
        if not isinstance(answer, Plan):
            # Counting takes members that want each other's company as they stand, before any of them sits.
            tied = stage.built.coupled and isinstance(answer, Hopeless)
            return self._careful(stage) if tied else GroupPlan(answer)
        units = tuple(stage.units[victim.unit] for victim in answer.victims)
        seats = seats_of(stage.built, answer.placement, origin=stage.origin)
        if not stage.built.coupled or self._holds(units, seats):
            return GroupPlan(answer, units, tuple(seats))
        return self._careful(stage)

    # ---- rules that counting does not see

    def _holds(self, units: Sequence[Unit], seats: Assignment) -> bool:
        journal = self.cycle.columns.journal
        mark = journal.mark()
        try:
            self._clear(units)
            return holds(self.cluster, seats)
        finally:
            journal.rewind(mark)

    def _clear(self, units: Sequence[Unit]) -> dict[str, int]:
        columns = self.cycle.columns
        home: dict[str, int] = {}
        for unit in units:
            for pod in unit.pods.values():
                home[pod.key] = pod.row
                columns.unplace(pod)
        for leaving in self.catalogue.leaving.values():
            for pod in list(leaving.values()):
                columns.unplace(pod)
        return home

    def _careful(self, stage: Stage) -> GroupPlan:
        """The members in by the filters' own word, on as little as it takes: what hurts more stays if the rest will
        do. Then back, dearest first, whoever the members leave room for."""
        hurt = {unit.key: self.catalogue.hurt(unit) for unit in stage.units}
        ladder = sorted({self._rung(key) for key in hurt.values()})
        below, enough = -1, len(ladder) - 1
        found = self._seated(stage, stage.units)
        if found is None:
            return GroupPlan(Hopeless(RULES))
        while enough - below > 1:
            middle = (below + enough) // 2
            some = [unit for unit in stage.units if self._rung(hurt[unit.key]) <= ladder[middle]]
            better = self._seated(stage, some)
            if better is not None:
                enough, found = middle, better
            else:
                below = middle
        seats, units = found
        columns = self.cycle.columns
        mark = columns.journal.mark()
        try:
            home = self._clear(units)
            rows = {row for _, row in seats}
            near = [u for u in units if any(home[pod.key] in rows for pod in u.pods.values())]
            far = [u for u in units if u not in set(near)]
            if not self._back(far, home, seats):
                near = [*near, *far]
            dearest_first = sorted(near, key=lambda u: hurt[u.key], reverse=True)
            victims = self._unsparable(dearest_first, home, seats)
        finally:
            columns.journal.rewind(mark)
        tried = GaveUp(0)
        return GroupPlan(tried, tuple(victims), tuple(seats))

    @staticmethod
    def _rung(hurt: tuple[Any, ...]) -> tuple[int, int]:
        """(violations of budgets, priority): what matters more than how many go."""
        return (hurt[0], hurt[2])

    def _seated(self, stage: Stage, units: Sequence[Unit]) -> tuple[Assignment, Sequence[Unit]] | None:
        """Seats for the members once these units are gone."""
        journal = self.cycle.columns.journal
        mark = journal.mark()
        try:
            self._clear(units)
            seats = Careful(self.cluster, stage.built).run()
            return (seats, units) if seats else None
        finally:
            journal.rewind(mark)

    def _unsparable(self, units: Sequence[Unit], home: dict[str, int], seats: Assignment) -> list[Unit]:
        """Those that cannot come back beside the ones before them; found by halves, since most of many can."""
        if not units or self._back(units, home, seats):
            return []
        if len(units) == 1:
            return list(units)
        half = len(units) // 2
        return [part for two in (units[:half], units[half:]) for part in self._unsparable(two, home, seats)]

    def _back(self, units: Sequence[Unit], home: dict[str, int], seats: Assignment) -> bool:
        columns = self.cycle.columns
        inner = columns.journal.mark()
        for unit in units:
            for pod in unit.pods.values():
                columns.place(pod, home[pod.key])
        if holds(self.cluster, seats):
            columns.journal.release(inner)
            return True
        columns.journal.rewind(inner)
        return False

    # ---- doing

    def carry_out(self, root: Root, group: Group, found: GroupPlan) -> str:
        """Evict, promise the nodes, and wait."""
        columns, cycle = self.cycle.columns, self.cycle
        rows = {row for _, row in found.seats}
        nodes = [columns.names[row] for row in sorted(rows)]
        victims = found.victims
        leaving = [pod for row in sorted(rows) for pod in self.catalogue.leaving.get(row, {}).values()]
        if not victims and not leaving:
            return ""
        members = {record.key for record, _ in found.seats}
        for node in nodes:
            for other in list(cycle.nominations.on(node)):
                if other.priority < root.priority and other.key not in members:
                    cycle.nominate(other, "")
        kind = "compositepodgroup" if group.key.kind == COMPOSITE else "podgroup"
        uid = group.spec.uid if group.spec is not None else ""
        text = f"found a placement for {kind}, preempting {len(victims)} victims"
        self.evictions.begin(
            root.key,
            [record for record, _ in found.seats],
            nodes,
            victims,
            leaving,
            text=str(found.answer) if isinstance(found.answer, Plan) else text,
            kind=kind,
            uid=uid,
            node="cluster",
        )
        announce(self.cluster, cycle.emit, found.units, kind)
        for record in root.records.values():
            if record.nominated and record.key not in members:
                cycle.nominate(record, "")  # of an earlier plan
        for record, row in found.seats:
            cycle.nominate(record, columns.names[row])
        return text
