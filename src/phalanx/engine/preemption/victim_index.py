"""Everything that could be evicted, by row, kept current from the change log.

A unit is a pod, or all placed pods under the highest group that is only disrupted as a whole. Terminating pods are in
no unit: their room is about to be free and nobody has to pay for it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from phalanx.base.clock import parse_rfc3339
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.preemption.budgets import Budgets
from phalanx.engine.preemption.cost import COMPOSITE, GROUP, NOBODY, POD, Cost, beyond, left_behind, unit_cost
from phalanx.engine.preemption.minimum_runtime import MinimumRuntime
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.journal import Change, ChangeLog
from phalanx.engine.state.records import PodRecord
from phalanx.model import groups
from phalanx.model.groups import GroupForest, GroupKey

MOST_STARTS = 50_000  # timestamps read
NOT_YET = 2.0**40  # seconds: later than every start
UnitKey = str | GroupKey  # a pod's key, or the group that goes as a whole


class EvictionUnit:
    __slots__ = ("key", "pods", "priority", "rank", "started")

    def __init__(self, key: UnitKey, priority: int) -> None:
        self.key = key
        self.priority = priority
        self.pods: dict[str, PodRecord] = {}
        self.started = 0.0  # sum of start times of its pods, seconds
        self.rank: tuple[Any, tuple[Any, ...]] | None = None  # see `VictimIndex.unit_cost`

    @property
    def name(self) -> str:
        if isinstance(self.key, str):
            return f"pod {self.key}"
        return f"{self.key.kind} {self.key.namespace}/{self.key.name}"

    def __repr__(self) -> str:
        return f"<unit {self.name} priority {self.priority}, {len(self.pods)} pods>"


class VictimIndex:
    """One per engine."""

    def __init__(self, state: ClusterState) -> None:
        self.cluster = state
        self.forest: GroupForest = state.forest
        self.columns: Columns = state.columns
        self.budgets = Budgets(state.objects)
        self.units: dict[UnitKey, EvictionUnit] = {}
        self.on_row: dict[int, dict[UnitKey, dict[str, PodRecord]]] = {}  # row -> unit -> its pods there
        self.leaving: dict[int, dict[str, PodRecord]] = {}  # row -> terminating pods
        self._unit_of: dict[str, tuple[UnitKey, GroupKey | None, float]] = {}  # pod key -> unit, leaf group, start
        self._running: dict[GroupKey, int] = {}  # leaf -> members on a node that are not on their way out
        self._members: dict[GroupKey, dict[str, None]] = {}  # leaf -> these members
        self._position = -1
        self._stale = True
        self._next = 0  # while it is being built anew: the first row that is not in it yet
        self.changed_rows = ChangeLog[int]()
        self.epoch = 0  # +1 when everything was built anew
        self._starts: dict[str, float] = {}
        self.minimum_runtime = MinimumRuntime(state.forest)
        self._protections = 0  # +1 when the protection of a group began or ended

    @property
    def circumstances(self) -> tuple[int, ...]:
        """Everything but the preemptor itself that the search for victims depends on, as one value: as long as it is
        the same, a search that failed fails again."""
        state = self.cluster
        return (
            state.columns.log.position,
            state.nominations.version,
            state.objects.version,
            self._protections,
        )

    def regroup(self) -> None:
        """A group changed: who goes with whom may be different now."""
        self._stale = True

    def refresh(self) -> None:
        """Bring everything up to date. Never call this inside a trial."""
        self.prepare(self.columns.n)

    def prepare(self, rows: int) -> int:
        """The same, but read at most so many rows where everything has to be read anew. Answers how many were read; as
        long as that is as many as asked for, there may be more."""
        self.budgets.refresh()
        log = self.columns.log
        changes = None if self._stale or self._position < 0 else log.since(self._position)
        self._position = log.position
        if changes is None:
            self._begin()
        elif changes:
            self._follow(changes)
        first, self._next = self._next, min(self._next + rows, self.columns.n)
        for row in range(first, self._next):
            self.changed_rows.append(row)
            for record in self.columns.pods[row].values():
                self._add(row, record)
        self._protect()
        return self._next - first

    def _protect(self) -> list[PodRecord]:
        """Judge the rows again where the protection of a group began or ended; answers the pods there."""
        found: list[PodRecord] = []
        for leaf in self.minimum_runtime.refresh(self.cluster.now):
            self._protections += 1
            for pod in self._members.get(leaf, ()):
                found.append(self.units[self._unit_of[pod][0]].pods[pod])
        for row in dict.fromkeys(record.row for record in found):
            self.changed_rows.append(row)
        return found

    def unprotected(self) -> list[PodRecord]:
        """Pods whose group is no longer protected since this was last asked: they can be evicted now."""
        due = self.minimum_runtime.next_time()
        if due is None or due > self.cluster.now or self._position != self.columns.log.position or self._stale:
            return []
        return self._protect()

    def evictable(self, unit: EvictionUnit, priority: int) -> bool:
        """Whether a preemptor of this priority may evict the unit."""
        if unit.priority >= priority:
            return False
        if self.minimum_runtime.next_time() is None:
            return True
        leaves = {leaf for pod in unit.pods if (leaf := self._unit_of[pod][1]) is not None}
        return not self.minimum_runtime.protects(leaves)

    def _follow(self, changes: Sequence[Change]) -> None:
        touched: dict[int, None] = {}
        resized: dict[UnitKey, None] = {}
        regrouped: dict[GroupKey, None] = {}  # gangs that gained or lost a member
        if self._next < self.columns.n:  # the others are read when their turn comes
            changes = [change for change in changes if change[0] < self._next]
        for row, record, sign in self._net(changes, touched):
            before = self._unit_of.get(record.key)
            key = self._add(row, record) if sign > 0 else self._remove(row, record)
            if key is not None and not isinstance(key, str):
                resized[key] = None
            known = self._unit_of[record.key] if sign > 0 and key is not None else before
            if known is not None and known[1] is not None:
                regrouped[known[1]] = None
        for key in resized:  # what the unit costs changed wherever it sits
            if key in self.units:
                touched.update(dict.fromkeys(pod.row for pod in self.units[key].pods.values()))
        for leaf in regrouped:  # how many members stay behind when one is evicted changed for all of them
            for pod in self._members.get(leaf, ()):
                unit = self.units[self._unit_of[pod][0]]
                unit.rank = None
                touched[unit.pods[pod].row] = None
        for row in touched:
            self.changed_rows.append(row)

    def _net(self, changes: Sequence[Change], touched: dict[int, None]) -> Iterator[tuple[int, PodRecord, int]]:
        """What is left of changes that undid each other: a trial must leave units as they are, the very objects, since
        a search that was interrupted holds on to them. Those who went first."""
        sums: dict[tuple[int, int], int] = {}
        who: dict[int, PodRecord] = {}
        for row, record, sign in changes:
            touched[row] = None
            if record is not None:
                at = (id(record), row)
                sums[at] = sums.get(at, 0) + sign
                who[at[0]] = record
        for sign in (-1, 1):
            for (number, row), total in sums.items():
                if total == sign:
                    yield row, who[number], sign

    @contextmanager
    def without(self, units: Sequence[EvictionUnit]) -> Iterator[dict[str, int]]:
        """A trial in which these, and pods that are leaving, are off their nodes. Yields where the former were, by pod
        key. If nobody else was served in it, nothing in here is another one afterwards: it need not be looked at."""
        columns, journal = self.columns, self.columns.journal
        pods = [pod for unit in units for pod in unit.pods.values()]
        home = {pod.key: pod.row for pod in pods}
        before = (journal.parks, self._position)
        current = self._position == columns.log.position and not self._stale
        mark = journal.mark()
        try:
            columns.unplace_all([*pods, *(pod for leaving in self.leaving.values() for pod in leaving.values())])
            yield home
        finally:
            journal.rewind(mark)
            if current and before == (journal.parks, self._position):
                self._position = columns.log.position

    def _begin(self) -> None:
        """Anew, from the first row on."""
        self._stale = False
        self._next = 0
        self.units, self.on_row, self.leaving, self._unit_of, self._running, self._members = {}, {}, {}, {}, {}, {}
        self.minimum_runtime.clear()
        self.epoch += 1

    def unit_of(self, record: PodRecord) -> tuple[UnitKey, int]:
        """(unit, priority) of a placed pod."""
        leaf = self.forest.leaf_of_pod(record.namespace, record.name)
        return (record.key, record.priority) if leaf is None else self._unit_in(leaf, record)

    def _unit_in(self, leaf: GroupKey, record: PodRecord) -> tuple[UnitKey, int]:
        root = self.forest.root_of(leaf)
        priority = self.forest.priority(root) if root is not None else record.priority
        return self.forest.disruption_unit(leaf) or record.key, priority

    def _add(self, row: int, record: PodRecord) -> UnitKey | None:
        if record.terminating:
            self.leaving.setdefault(row, {})[record.key] = record
            return None
        leaf = self.forest.leaf_of_pod(record.namespace, record.name)
        key, priority = (record.key, record.priority) if leaf is None else self._unit_in(leaf, record)
        unit = self.units.get(key)
        if unit is None:
            unit = self.units[key] = EvictionUnit(key, priority)
        unit.priority = priority
        unit.rank = None
        unit.pods[record.key] = record
        start = self.start(record)
        unit.started += start
        self.on_row.setdefault(row, {}).setdefault(key, {})[record.key] = record
        if leaf is not None:
            self._running[leaf] = self._running.get(leaf, 0) + 1
            self._members.setdefault(leaf, {})[record.key] = None
            self.minimum_runtime.put(leaf, record.key, start if start < NOT_YET else self.cluster.now)
        self._unit_of[record.key] = (key, leaf, start)
        return key

    def _remove(self, row: int, record: PodRecord) -> UnitKey | None:
        leaving = self.leaving.get(row)
        if leaving is not None and leaving.pop(record.key, None) is not None:
            if not leaving:
                del self.leaving[row]
            return None
        known = self._unit_of.pop(record.key, None)
        if known is None:
            return None
        key, leaf, start = known
        if leaf is not None:
            self._running[leaf] -= 1
            self._members[leaf].pop(record.key, None)
            self.minimum_runtime.drop(leaf, record.key)
        unit = self.units[key]
        unit.rank = None
        unit.pods.pop(record.key, None)
        unit.started -= start
        if not unit.pods:
            del self.units[key]
        here = self.on_row[row]
        here[key].pop(record.key, None)
        if not here[key]:
            del here[key]
            if not here:
                del self.on_row[row]
        return key

    def started(self, record: PodRecord) -> None:
        """A pod on a node says when it started, or something else than before."""
        known = self._unit_of.get(record.key)
        if known is None:
            return  # not looked at yet
        key, leaf, before = known
        unit, start = self.units[key], self.start(record)
        unit.started += start - before
        unit.rank = None
        self._unit_of[record.key] = (key, leaf, start)
        if leaf is not None:
            self.minimum_runtime.put(leaf, record.key, start if start < NOT_YET else self.cluster.now)
        for row in dict.fromkeys(pod.row for pod in unit.pods.values()):
            self.changed_rows.append(row)

    def start(self, record: PodRecord) -> float:
        """When the pod started, seconds; one that has not yet loses nothing."""
        text = record.start_time
        if not text:
            return NOT_YET
        found = self._starts.get(text)
        if found is None:
            if len(self._starts) > MOST_STARTS:
                self._starts.clear()
            try:
                found = parse_rfc3339(text)
            except ValueError:
                found = 0.0
            self._starts[text] = found
        return found

    def lost(self, unit: EvictionUnit) -> float:
        """Seconds of work thrown away."""
        now = self.cluster.now
        return sum(max(0.0, now - self._unit_of[pod][2]) for pod in unit.pods)

    def cost(self, units: Iterable[EvictionUnit]) -> Cost:
        """What evicting these units costs. It only changes when a pod comes, goes or starts, not with time: `work` is
        the negative sum of start times (of equally many pods those that started last lose least)."""
        units = list(units)
        if not units:
            return Cost(work=-(2.0**60))
        gone: dict[GroupKey, int] = {}
        hit: set[GroupKey] = set()
        pods, kind, priority, started = 0, POD, NOBODY, 0.0
        for unit in units:
            pods += len(unit.pods)
            priority = max(priority, unit.priority)
            started += unit.started
            kind = max(kind, self.kind(unit))
            if kind > POD:
                if not isinstance(unit.key, str):
                    hit.add(unit.key)
                for leaf, count in self.gangs(unit):
                    gone[leaf] = gone.get(leaf, 0) + count
                    if isinstance(unit.key, str):
                        hit.add(leaf)
        broken = members = 0
        if gone:
            broken, members = left_behind(gone, self._running, {leaf: self.minimum(leaf) for leaf in gone})
        over = self._violations(self._hits(units)) if self.budgets.allowed else 0
        return Cost(over, priority, pods + members, pods, broken, len(hit), kind, -started)

    def _hits(self, units: Iterable[EvictionUnit]) -> dict[int, int]:
        """Pods of these units that count against each budget."""
        hits: dict[int, int] = {}
        if self.budgets.allowed:
            for unit in units:
                for record in unit.pods.values():
                    for b in self.budgets.of(record):
                        hits[b] = hits.get(b, 0) + 1
        return hits

    def _violations(self, hits: Mapping[int, int]) -> int:
        return beyond((count, self.budgets.allowed[b]) for b, count in hits.items()) if hits else 0

    def unit_cost(self, unit: EvictionUnit) -> tuple[Any, ...]:
        """Sort key: which unit is evicted first, if it were alone. Remembered until the unit, a gang or a budget
        changes."""
        state = (self.budgets.version, self.budgets.spending)
        if unit.rank is None or unit.rank[0] != state:
            protected = sum(self._hits((unit,)).values()) if self.budgets.allowed else 0
            unit.rank = (state, unit_cost(self.cost((unit,)), protected, str(unit.key)))
        return unit.rank[1]

    def kind(self, unit: EvictionUnit) -> int:
        """How important the kind of victim is, see `cost.POD`: a member of a group counts as the group."""
        if isinstance(unit.key, str):
            return POD if self._unit_of[unit.key][1] is None else GROUP
        return COMPOSITE if unit.key.kind == groups.COMPOSITE else GROUP

    def gangs(self, unit: EvictionUnit) -> Sequence[tuple[GroupKey, int]]:
        """Gangs that the unit's pods belong to, with the number of these pods."""
        if isinstance(unit.key, str):
            leaf = self._unit_of[unit.key][1]
            return ((leaf, 1),) if leaf is not None and self.minimum(leaf) else ()
        found: dict[GroupKey, int] = {}
        for pod in unit.pods:
            leaf = self._unit_of[pod][1]
            if leaf is not None and self.minimum(leaf):
                found[leaf] = found.get(leaf, 0) + 1
        return tuple(found.items())

    def workload(self, unit: EvictionUnit) -> GroupKey | None:
        """The gang, or the group evicted as a whole, that is hit when the unit is evicted."""
        if not isinstance(unit.key, str):
            return unit.key
        leaf = self._unit_of[unit.key][1]
        return leaf if leaf is not None and self.minimum(leaf) else None

    def minimum(self, leaf: GroupKey) -> int:
        """Of a gang; 0 for a group that is none."""
        group = self.forest.group(leaf)
        return group.spec.minimum if group is not None and group.spec is not None and group.spec.gang else 0

    def running(self, leaf: GroupKey) -> int:
        """Members on a node that are not on their way out."""
        return self._running.get(leaf, 0)
