"""The order of waiting units, `strictFIFO` (no unit overtakes an older one), and counts of overtaking."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

import msgspec

from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.framework.settings import ReservationSettings
from phalanx.engine.scheduling.queue.units import QueueName, SchedulingUnit, UnitQueue, UnitState
from phalanx.engine.state.records import PodRecord

REFUSED = (QueueName.BACKOFF, QueueName.WAITING)


def queue_order(unit: SchedulingUnit) -> tuple[int, float, int]:
    """Return the place of a unit in the order: priority, then the time of its first request."""
    return (-unit.priority, unit.queued_at, unit.order)


def settings_of(state: ClusterState, unit: SchedulingUnit) -> ReservationSettings:
    """Return the settings of the profile that schedules the unit."""
    for record in unit.records.values():
        return state.profiles[record.scheduler_name].reservations
    return ReservationSettings()


def namespace_of(unit: SchedulingUnit) -> str:
    return unit.key.split("/", 2)[1]  # kind/namespace/name


def completes_gang(state: ClusterState, records: Iterable[PodRecord]) -> bool:
    """Return True if these pods belong to a gang below its minimum that has other members on nodes.

    Such a gang precedes units that have not started: it holds room without working, and a unit with a reservation for
    the room of the missing member may wait for the other members to end.
    """
    record = next(iter(records), None)
    if record is None or not record.group or not state.grouping:
        return False
    leaf = state.forest.leaf_of_pod(record.namespace, record.name)
    root = state.forest.root_of(leaf) if leaf is not None else None
    group = state.forest.group(root) if root is not None else None
    if root is None or group is None or group.satisfied:
        return False
    return any(below.on_nodes for below in state.forest.leaves(root))


class StrictOrder:
    def __init__(self, state: ClusterState, queue: UnitQueue) -> None:
        self._cluster, self._queue = state, queue
        self._heads: dict[str, SchedulingUnit] = {}  # scheduler name -> its first waiting unit, as of `_heads_of`
        self._heads_of = 0.0
        self._strict = any(profile.reservations.strict_fifo for profile in state.profiles.values())
        self._behind: dict[str, SchedulingUnit] = {}  # by key: units not tried because of an older one

    def message(self, unit: SchedulingUnit) -> str:
        """Return for which older unit `strictFIFO` lets this one wait, as text; "" if for none."""
        older = self._older(unit)
        if older is None:
            return ""
        spaces = {record.namespace for each in (unit, older) for record in each.records.values()}
        name = older.key if len(spaces) == 1 else "an older unit of another namespace"  # its name is not for everyone
        return f"strictFIFO: waits until {name} has started"

    def _older(self, unit: SchedulingUnit) -> SchedulingUnit | None:
        """With `strictFIFO`, return the first waiting unit of the profile if it precedes this one."""
        if not self._strict or not settings_of(self._cluster, unit).strict_fifo:
            return None
        if completes_gang(self._cluster, unit.records.values()):
            return None
        name = _scheduler_of(unit)
        head = self._heads.get(name)
        if head is None or head.queue_name not in REFUSED or self._heads_of != self._cluster.now:
            self._heads_of = self._cluster.now
            waiting = (u for u in self._queue.units.values() if u.queue_name in REFUSED and u.state is UnitState.QUEUED)
            head = min((u for u in waiting if _scheduler_of(u) == name), key=queue_order, default=None)
            self._heads = {name: head} if head is not None else {}
        if head is None or head is unit or queue_order(head) > queue_order(unit):
            return None
        self._behind[unit.key] = unit
        return head

    def first_held_for_older(self) -> list[SchedulingUnit]:
        """Return the first unit that waits only for older ones, if any; called when a unit was placed."""
        if not self._behind:
            return []
        present = self._queue.units
        waiting = {k: u for k, u in self._behind.items() if present.get(k) is u and u.queue_name is QueueName.BACKOFF}
        self._behind = waiting
        return sorted(waiting.values(), key=queue_order)[:1]


def _scheduler_of(unit: SchedulingUnit) -> str:
    return next((record.scheduler_name for record in unit.records.values()), "")


class Overtaken(msgspec.Struct):
    """The number of younger units placed while a unit waited, and since when."""

    count: int
    since: float


class Overtaking:
    """Count how often younger units of equal or lower priority were placed while an older one waited."""

    def __init__(self) -> None:
        self.of: dict[str, Overtaken] = {}  # by key of the unit
        self.placed: list[tuple[int, float, int]] = []  # priority, age and order of units placed since the last count

    def place(self, unit: SchedulingUnit) -> None:
        """Count older waiting units as overtaken by a unit that was placed."""
        self.placed.append((unit.priority, unit.queued_at, unit.order))

    def count(self, waiting: Sequence[SchedulingUnit], now: float) -> None:
        """Update every waiting unit with the younger ones placed since the last count; forget other units."""
        placed, self.placed = self.placed, []
        present = {unit.key for unit in waiting}
        self.of = {key: known for key, known in self.of.items() if key in present}
        if not placed or not waiting:
            return
        levels = {
            level: sorted((queued_at, order) for each, queued_at, order in placed if each == level)
            for level in {each for each, _, _ in placed}
        }
        for unit in waiting:
            count = 0
            for level, times in levels.items():
                if level <= unit.priority:
                    count += len(times) - bisect_right(times, (unit.queued_at, unit.order))
            if count:
                self.of.setdefault(unit.key, Overtaken(0, now)).count += count

    def is_starving(self, unit: SchedulingUnit, settings: ReservationSettings, now: float) -> bool:
        """Return True if a unit was overtaken for too long or by too many units."""
        known = self.of.get(unit.key)
        if known is None or not settings.starvation_seconds:
            return False
        many = bool(settings.max_overtaken) and known.count > settings.max_overtaken
        return many or now - known.since >= settings.starvation_seconds
