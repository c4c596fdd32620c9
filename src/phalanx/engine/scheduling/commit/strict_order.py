"""The order in which units wait, and `strictFIFO`: no unit overtakes an older one of equal or higher priority."""

from __future__ import annotations

from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.framework.settings import ReservationSettings
from phalanx.engine.scheduling.queue.queue import Queue
from phalanx.engine.scheduling.queue.units import QueueName, SchedulingUnit, UnitState

REFUSED = (QueueName.BACKOFF, QueueName.WAITING)


def in_line(unit: SchedulingUnit) -> tuple[int, float, int]:
    """Return the place of a unit in the order: priority, then the time it first asked."""
    return (-unit.priority, unit.asked, unit.order)


def settings_of(state: ClusterState, unit: SchedulingUnit) -> ReservationSettings:
    """Return the settings of the profile that schedules the unit."""
    for record in unit.records.values():
        return state.profiles[record.scheduler_name].reservations
    return ReservationSettings()


def namespace_of(unit: SchedulingUnit) -> str:
    return unit.key.split("/", 2)[1]  # kind/namespace/name


class StrictOrder:
    def __init__(self, state: ClusterState, queue: Queue) -> None:
        self._cluster, self._queue = state, queue
        self._heads: dict[str, SchedulingUnit] = {}  # scheduler name -> the first unit that waits, as of `_heads_of`
        self._heads_of = 0.0
        self._strict = any(profile.reservations.strict_fifo for profile in state.profiles.values())

    def older(self, unit: SchedulingUnit) -> SchedulingUnit | None:
        """Return, with `strictFIFO`, the first unit of the profile that waits for room, if it comes before this one."""
        if not self._strict or not settings_of(self._cluster, unit).strict_fifo:
            return None
        name = _scheduler_of(unit)
        head = self._heads.get(name)
        if head is None or head.place not in REFUSED or self._heads_of != self._cluster.now:
            self._heads_of = self._cluster.now
            waiting = (u for u in self._queue.units.values() if u.place in REFUSED and u.state is UnitState.QUEUED)
            head = min((u for u in waiting if _scheduler_of(u) == name), key=in_line, default=None)
            self._heads = {name: head} if head is not None else {}
        return head if head is not None and head is not unit and in_line(head) < in_line(unit) else None


def _scheduler_of(unit: SchedulingUnit) -> str:
    return next((record.scheduler_name for record in unit.records.values()), "")
