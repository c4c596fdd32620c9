"""Index the candidate victims by row (node) and keep the index current from the change log.

An eviction unit is a single pod, or all placed pods under the highest group that is only disrupted as a whole.
Terminating pods belong to no unit: their resources are about to be released, so they add no preemption cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from phalanx.base.clock import parse_rfc3339
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.preemption.budgets import Budgets, ReplicaBudgets
from phalanx.engine.preemption.cost import COMPOSITE, GROUP, NO_VICTIMS, POD, Cost, beyond, left_behind, unit_cost
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.journal import Change, ChangeLog
from phalanx.engine.state.records import PodRecord
from phalanx.model import groups
from phalanx.model.groups import GroupForest, GroupKey


class MinimumRuntime:
    def __init__(self, forest: GroupForest) -> None:
        self._forest = forest
        self._starts: dict[GroupKey, dict[str, float]] = {}  # leaf -> pod -> start, seconds; groups with the policy
        self._until: dict[GroupKey, float] = {}  # leaf -> end of its protection, seconds
        self._jumps: list[tuple[float, float]] = []  # when the clock was set forward, and by how many seconds

    def clear(self) -> None:
        self._starts, self._until = {}, {}

    def clock_jumped(self, now: float, seconds: float) -> None:
        """Handle a clock that was set forward: no protection ends because of it."""
        self._jumps.append((now - seconds, seconds))
        self._until = {leaf: until + seconds for leaf, until in self._until.items()}
        for starts in self._starts.values():
            starts.update({pod: start + seconds for pod, start in starts.items()})

    def put(self, leaf: GroupKey, pod: str, start: float) -> None:
        group = self._forest.group(leaf)
        if group is not None and group.policy.min_runtime_seconds:
            for before, seconds in self._jumps:
                start += seconds if start <= before else 0.0
            self._starts.setdefault(leaf, {})[pod] = start

    def drop(self, leaf: GroupKey, pod: str) -> None:
        starts = self._starts.get(leaf)
        if starts is not None:
            starts.pop(pod, None)
            if not starts:
                del self._starts[leaf]

    def refresh(self, now: float) -> list[GroupKey]:
        """Return the leaf groups whose protection began or ended since the last call."""
        if not self._starts and not self._until:
            return []
        before, self._until = self._until, {}
        for leaf, starts in self._starts.items():
            group = self._forest.group(leaf)
            seconds = group.policy.min_runtime_seconds if group is not None else 0
            until = min(starts.values()) + seconds
            if now < until:
                self._until[leaf] = until
        return [leaf for leaf in {**before, **self._until} if (leaf in before) != (leaf in self._until)]

    def protects(self, leaves: Iterable[GroupKey]) -> bool:
        return any(leaf in self._until for leaf in leaves)

    def next_time(self) -> float | None:
        return min(self._until.values(), default=None)

    def ends(self, priority: int) -> list[float]:
        """Return when the protection of groups below a priority ends, in seconds, earliest first."""
        return sorted(until for leaf, until in self._until.items() if self._forest.priority(leaf) < priority)


MOST_STARTS = 50_000  # parsed timestamps kept in the cache
NOT_YET = 2.0**40  # seconds: start time of a pod that has not started, later than every real start
UnitKey = str | GroupKey  # a pod's key, or the key of the group that is evicted as a whole


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
    """Hold the eviction units of the cluster. Each engine has one index."""

    def __init__(self, state: ClusterState) -> None:
        self.cluster = state
        self.forest: GroupForest = state.forest
        self.columns: Columns = state.columns
        self.budgets = Budgets(state.objects, ReplicaBudgets(state.forest))
        self.units: dict[UnitKey, EvictionUnit] = {}
        self.on_row: dict[int, dict[UnitKey, dict[str, PodRecord]]] = {}  # row -> unit -> its pods there
        self.leaving: dict[int, dict[str, PodRecord]] = {}  # row -> terminating pods
        self._unit_of: dict[str, tuple[UnitKey, GroupKey | None, float]] = {}  # pod key -> unit, leaf group, start
        self._running: dict[GroupKey, int] = {}  # leaf -> number of placed members that are not terminating
        self._members: dict[GroupKey, dict[str, None]] = {}  # leaf -> keys of these members
        self._position = -1
        self._priorities = state.forest.priority_version
        self._stale = True
        # The preemptor lost its place to another scheduler: it does not take it back by force.
        self.own_only = False
        self._next = 0  # during a rebuild: the first row that is not indexed yet
        self.changed_rows = ChangeLog[int]()
        self.epoch = 0  # +1 at every rebuild
        self._starts: dict[str, float] = {}
        self.minimum_runtime = MinimumRuntime(state.forest)
        self._protections = 0  # +1 when the minimum-runtime protection of a group begins or ends

    @property
    def state_versions(self) -> tuple[int, ...]:
        """Return the versions of all state that a search for victims depends on, except the preemptor itself.

        While this value is unchanged, a search that failed would fail again.
        """
        state = self.cluster
        return (
            state.columns.log.position,
            state.nominations.version,
            state.objects.version,
            self._protections,
            self.own_only,
        )

    def regroup(self) -> None:
        """Rebuild the index at the next refresh, because a changed group may change the eviction units."""
        self._stale = True

    def regroup_pod(self, record: PodRecord) -> None:
        """Rebuild the index if this placed pod is now in another group: its label changed before its bind was seen."""
        known = self._unit_of.get(record.key)
        if known is not None and known[1] != self.forest.leaf_of_pod(record.namespace, record.name):
            self._stale = True

    def refresh(self) -> None:
        """Bring the whole index up to date. Never call this inside a trial."""
        self.prepare(self.columns.n)

    def prepare(self, rows: int) -> int:
        """Bring the index up to date, but read at most `rows` rows of a rebuild.

        Return the number of rows read. If it equals `rows`, more rows may be left.
        """
        self.budgets.refresh()
        if self._priorities != self.forest.priority_version:
            self._priorities, self._stale = self.forest.priority_version, True
        log = self.columns.log
        changes = None if self._stale or self._position < 0 else log.since(self._position)
        self._position = log.position
        if changes is None:
            self._begin()
        elif changes:
            self._apply(changes)
        first, self._next = self._next, min(self._next + rows, self.columns.n)
        for row in range(first, self._next):
            self.changed_rows.append(row)
            for record in self.columns.pods[row].values():
                self._add(row, record)
        self._protect()
        return self._next - first

    def nothing_below(self, priority: int) -> bool:
        """Return True if no placed pod is terminating or could be evicted for a unit of that priority.

        Known without the index, which costs several times as much where it has to be built.
        """
        if not self._stale and self._position >= 0:
            return False  # the index is kept up to date: it says so itself
        forest, priorities = self.forest, dict[GroupKey, int]()
        for pods in self.columns.pods[: self.columns.n]:
            for record in pods.values():
                leaf = forest.leaf_of_pod(record.namespace, record.name)
                if leaf is None:
                    lowest = record.priority
                elif leaf in priorities:
                    lowest = priorities[leaf]
                else:
                    lowest = priorities[leaf] = self._unit_in(leaf, record)[1]
                if min(lowest, record.priority) < priority or record.terminating:
                    return False
        return True

    def _protect(self) -> list[PodRecord]:
        """Mark rows as changed where the protection of a group began or ended; return the pods of these groups."""
        found: list[PodRecord] = []
        for leaf in self.minimum_runtime.refresh(self.cluster.now):
            self._protections += 1
            for pod in self._members.get(leaf, ()):
                found.append(self.units[self._unit_of[pod][0]].pods[pod])
        for row in dict.fromkeys(record.row for record in found):
            self.changed_rows.append(row)
        return found

    def unprotected(self) -> list[PodRecord]:
        """Return the pods whose group lost its protection since the last call: they can be evicted now."""
        due = self.minimum_runtime.next_time()
        if due is None or due > self.cluster.now or self._position != self.columns.log.position or self._stale:
            return []
        return self._protect()

    def evictable(self, unit: EvictionUnit, priority: int) -> bool:
        """Return True if a preemptor of this priority may evict the unit."""
        if unit.priority >= priority:
            return False
        if self.own_only and any(pod.scheduler_name not in self.cluster.profiles for pod in unit.pods.values()):
            return False
        if self.minimum_runtime.next_time() is None:
            return True
        leaves = {leaf for pod in unit.pods if (leaf := self._unit_of[pod][1]) is not None}
        return not self.minimum_runtime.protects(leaves)

    def _apply(self, changes: Sequence[Change]) -> None:
        """Follow the changes of the log row by row instead of a rebuild."""
        touched: dict[int, None] = {}
        resized: dict[UnitKey, None] = {}
        regrouped: dict[GroupKey, None] = {}  # gangs that gained or lost a member
        if self._next < self.columns.n:  # rows from `_next` on are read later in the rebuild
            changes = [change for change in changes if change[0] < self._next]
        for row, record, sign in self._net(changes, touched):
            before = self._unit_of.get(record.key)
            key = self._add(row, record) if sign > 0 else self._remove(row, record)
            if key is not None and not isinstance(key, str):
                resized[key] = None
            known = self._unit_of[record.key] if sign > 0 and key is not None else before
            if known is not None and known[1] is not None:
                regrouped[known[1]] = None
        for key in resized:  # the cost of the unit changed on every row that it occupies
            if key in self.units:
                touched.update(dict.fromkeys(pod.row for pod in self.units[key].pods.values()))
        for leaf in regrouped:  # the number of members that remain after an eviction changed for all
            for pod in self._members.get(leaf, ()):
                unit = self.units[self._unit_of[pod][0]]
                unit.rank = None
                touched[unit.pods[pod].row] = None
        for row in touched:
            self.changed_rows.append(row)

    def _net(self, changes: Sequence[Change], touched: dict[int, None]) -> Iterator[tuple[int, PodRecord, int]]:
        """Yield the net changes, removals first, without changes that cancel each other.

        A trial must keep the same EvictionUnit objects, because an interrupted search still refers to them.
        """
        sums: dict[tuple[int, int], int] = {}
        record_at: dict[int, PodRecord] = {}
        for row, record, sign in changes:
            touched[row] = None
            if record is not None:
                at = (id(record), row)
                sums[at] = sums.get(at, 0) + sign
                record_at[at[0]] = record
        for sign in (-1, 1):
            for (number, row), total in sums.items():
                if total == sign:
                    yield row, record_at[number], sign

    @contextmanager
    def without(self, units: Sequence[EvictionUnit]) -> Iterator[dict[str, int]]:
        """Run a trial in which these units and all terminating pods are removed from their nodes.

        Yield the row of each removed pod of the units, by pod key. If the trial ran without interruption, the index
        is unchanged afterwards, so the changes in the log are skipped.
        """
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
        """Start a rebuild from the first row."""
        self._stale = False
        self._next = 0
        self.units, self.on_row, self.leaving, self._unit_of, self._running, self._members = {}, {}, {}, {}, {}, {}
        self.minimum_runtime.clear()
        self.epoch += 1

    def unit_of(self, record: PodRecord) -> tuple[UnitKey, int]:
        """Return the (unit key, priority) of a placed pod."""
        leaf = self.forest.leaf_of_pod(record.namespace, record.name)
        return (record.key, record.priority) if leaf is None else self._unit_in(leaf, record)

    def _unit_in(self, leaf: GroupKey, record: PodRecord) -> tuple[UnitKey, int]:
        unit = self.forest.disruption_unit(leaf)
        return unit or record.key, self.forest.priority(unit or leaf)

    def _add(self, row: int, record: PodRecord) -> UnitKey | None:
        """Add a placed pod to its eviction unit; None: it terminates and cannot be evicted."""
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
        """Record a new or changed start time of a placed pod."""
        known = self._unit_of.get(record.key)
        if known is None:
            return  # not indexed yet
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
        """Return the pod's start time in seconds. A pod that has not started loses no work: it gets NOT_YET."""
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
        """Return the seconds of work that are lost if the unit is evicted."""
        now = self.cluster.now
        return sum(max(0.0, now - self._unit_of[pod][2]) for pod in unit.pods)

    def cost(self, units: Iterable[EvictionUnit]) -> Cost:
        """Return the cost of evicting these units.

        The cost changes when a pod is added, removed or started, but not with time: `work` is the negative sum of
        start times. Of two sets with the same number of pods, the set that started later loses less work.
        """
        units = list(units)
        if not units:
            return Cost(work=-(2.0**60))
        gone: dict[GroupKey, int] = {}
        hit: set[GroupKey] = set()
        pods, kind, priority, started = 0, POD, NO_VICTIMS, 0.0
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
        """Return, per disruption budget, the number of pods of these units that count against it."""
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
        """Return the sort key of one unit: the cost of evicting it alone.

        The key is cached until the unit, a gang or a disruption budget changes.
        """
        state = (self.budgets.version, self.budgets.spending)
        if unit.rank is None or unit.rank[0] != state:
            protected = sum(self._hits((unit,)).values()) if self.budgets.allowed else 0
            unit.rank = (state, unit_cost(self.cost((unit,)), protected, str(unit.key)))
        return unit.rank[1]

    def kind(self, unit: EvictionUnit) -> int:
        """Return the kind of victim (`cost.POD` and following). A member of a group counts as the group."""
        if isinstance(unit.key, str):
            return POD if self._unit_of[unit.key][1] is None else GROUP
        return COMPOSITE if unit.key.kind == groups.COMPOSITE else GROUP

    def gangs(self, unit: EvictionUnit) -> Sequence[tuple[GroupKey, int]]:
        """Return the gangs that the unit's pods belong to, each with the number of these pods."""
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
        """Return the gang, or the group evicted as a whole, that loses pods if the unit is evicted."""
        if not isinstance(unit.key, str):
            return unit.key
        leaf = self._unit_of[unit.key][1]
        return leaf if leaf is not None and self.minimum(leaf) else None

    def minimum(self, leaf: GroupKey) -> int:
        """Return the minimum number of members of a gang; 0 if the group is not a gang."""
        group = self.forest.group(leaf)
        return group.spec.minimum if group is not None and group.spec is not None and group.spec.gang else 0

    def running(self, leaf: GroupKey) -> int:
        """Return the number of placed members that are not terminating."""
        return self._running.get(leaf, 0)
