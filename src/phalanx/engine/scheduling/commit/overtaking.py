"""Count how often younger units of equal or lower priority were placed while an older one waited."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import msgspec

from phalanx.engine.framework.settings import ReservationSettings
from phalanx.engine.scheduling.queue.units import SchedulingUnit


class Overtaken(msgspec.Struct):
    """How many younger units were placed while a unit waited, and since when."""

    count: int
    since: float


class Overtaking:
    def __init__(self) -> None:
        self.of: dict[str, Overtaken] = {}  # by key of the unit
        self.placed: list[tuple[int, float, int]] = []  # priority, age and order of units placed since the last count

    def place(self, unit: SchedulingUnit) -> None:
        """Count older pending units as overtaken by a unit that got its nodes."""
        self.placed.append((unit.priority, unit.asked, unit.order))

    def count(self, waiting: Sequence[SchedulingUnit], now: float) -> None:
        """Note for every waiting unit how many younger ones were placed since the last count; forget the others."""
        placed, self.placed = self.placed, []
        present = {unit.key for unit in waiting}
        self.of = {key: known for key, known in self.of.items() if key in present}
        if not placed or not waiting:
            return
        levels = {
            level: sorted((asked, order) for each, asked, order in placed if each == level)
            for level in {each for each, _, _ in placed}
        }
        for unit in waiting:
            count = 0
            for level, times in levels.items():
                if level <= unit.priority:
                    count += len(times) - bisect_right(times, (unit.asked, unit.order))
            if count:
                self.of.setdefault(unit.key, Overtaken(0, now)).count += count

    def starves(self, unit: SchedulingUnit, settings: ReservationSettings, now: float) -> bool:
        """Return True if a unit was overtaken for too long or by too many units."""
        known = self.of.get(unit.key)
        if known is None or not settings.starvation_seconds:
            return False
        many = bool(settings.max_overtaken) and known.count > settings.max_overtaken
        return many or now - known.since >= settings.starvation_seconds
