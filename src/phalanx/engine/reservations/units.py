"""What the start planner knows about units: those that wait, those that run, and what was promised to them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from phalanx.engine.framework.settings import ReservationSettings
from phalanx.engine.reservations.reservation import FOREVER, Assignment, Demand, Reason

FINISHED_KEPT = 400  # finished units from which the stretch of expected durations is learned
FINISHED_NEEDED = 10  # before the stretch is anything but 1
OVERRUNS_IGNORED = 0.01  # share of finished units that may overrun before expected durations are stretched
LONGEST_SECONDS = 100 * 366 * 86400.0  # a longer expected duration is treated as unknown


class Backfill(StrEnum):
    """Which waiting units hold a reservation that others must not delay."""

    CONSERVATIVE = "Conservative"  # every waiting unit
    EASY = "Easy"  # the first of each priority; the others are protected by their promise only
    STRICT = "Strict"  # no unit overtakes an older one of equal or higher priority
    NONE = "None"  # every unit that fits starts; nothing is promised


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """How waiting units are ordered and protected."""

    backfill: Backfill = Backfill.CONSERVATIVE
    size_exponent: float = 0.5  # how much a large gang is preferred in the order within a priority
    duration_exponent: float = 0.3  # how much a short unit is preferred
    easy_depth: int = 1  # reservations per priority with EASY, at least
    easy_fraction: float = 0.1  # further ones for units in one topology domain, up to this share of the cluster
    work_per_event: int = 300  # searches (of CELLS_PER_SEARCH each) that one event pays for
    early_events: int = 20_000  # after so many, an event pays for less: a long trace has to end in time
    work_per_later_event: int = 30
    depth: int = 400  # units in order that are planned again; those behind keep their reservation
    drift: float = 0.0  # seconds that a start may be later than promised before the promise moves
    promise_slack: float = 0.0  # share of the planned wait that is added to the promise of a small unit
    overrun_quantile: float = 0.9  # expected durations are stretched to this quantile if units overrun them

    @staticmethod
    def of(profile: ReservationSettings) -> PlanSettings:
        """Return the settings of a profile as the planner needs them."""
        backfill = Backfill(profile.backfill)
        if profile.strict_fifo:
            backfill = Backfill.STRICT
        return PlanSettings(
            backfill, profile.size_exponent, profile.duration_exponent, promise_slack=profile.promise_slack
        )


@dataclass(frozen=True, slots=True)
class Unit:
    """A scheduling unit as the planner sees it."""

    name: str
    demand: Demand
    priority: int = 0
    created: float = 0.0  # seconds; the order within a priority begins with it
    index: int = 0  # breaks ties of `created`
    expected: float = FOREVER  # seconds it is expected to run; `FOREVER`: not known
    size: float = 1.0  # how large it is in the order: its GPUs, or pods where it has none

    @property
    def order(self) -> tuple[int, float, int]:
        return (-self.priority, self.created, self.index)


def expected_seconds(value: float | None) -> float:
    """Return a usable expected duration: zero, negative, absurd and missing values mean that no end is known."""
    if value is None or not 0 < value <= LONGEST_SECONDS:
        return FOREVER
    return float(value)


@dataclass(slots=True, eq=False)
class WaitingUnit:
    """A unit in the queue. `start` and `where` are its reservation, `promise` the latest start that was promised."""

    unit: Unit
    span: float  # seconds for which room is reserved
    start: float = FOREVER
    until: float = FOREVER  # when its reservation ends
    where: Assignment | None = None
    promise: float | None = None
    passed_before: int = 0  # units behind it in the order that had started before it came
    why_moved: Reason | None = None
    moves: int = 0


@dataclass(slots=True)
class Running:
    unit: Unit
    where: Assignment
    started: float
    until: float  # when its room is expected to be free


class Stretch:
    """By how much expected durations are stretched, because finished units show that they are too short."""

    def __init__(self, quantile: float) -> None:
        """`quantile`: share of the finished units that a stretched duration shall suffice for."""
        self.factor = 1.0
        self._quantile = quantile
        self._ratios: deque[float] = deque(maxlen=FINISHED_KEPT)  # real over expected duration of finished units
        self._endings = 0

    def learn(self, ratio: float) -> None:
        self._ratios.append(ratio)
        self._endings += 1
        if self._endings % FINISHED_NEEDED:
            return
        ratios = np.fromiter(self._ratios, dtype=np.float64)
        overrun = float((ratios > 1.0 + 1e-9).mean()) > OVERRUNS_IGNORED
        self.factor = max(1.0, float(np.quantile(ratios, self._quantile))) if overrun else 1.0


@dataclass(frozen=True, slots=True)
class StartPromise:
    """A start time that was given to a unit, or moved. `FOREVER` without nodes: it was withdrawn."""

    name: str
    start_by: float
    where: Assignment | None
    reason: Reason = Reason.PROMISED
    moved_from: float | None = None


@dataclass(frozen=True, slots=True)
class Start:
    name: str
    where: Assignment
    overtaken: int = 0  # younger units of equal or lower priority that started before it


@dataclass(slots=True)
class Decisions:
    """What the planner decided at one time."""

    starts: list[Start] = field(default_factory=list)
    promises: list[StartPromise] = field(default_factory=list)
