"""Cron schedules: five fields, names, steps, ranges, @daily and friends, in a time zone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

_MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_LIMITS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
_HORIZON = 366 * 5 * 86_400  # seconds; a schedule that never comes (30 February) is given up here


class BadSchedule(ValueError):
    """Says what is wrong with the text."""


@dataclass(frozen=True, slots=True)
class Schedule:
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day: bool  # day-of-month and day-of-week are both restricted: either is enough
    zone: ZoneInfo | None

    def next_after(self, seconds: float) -> float | None:
        """The first time after `seconds` (epoch); None when there is none within five years.

        Hours and minutes are walked in real time: an hour that daylight saving skips does not come, one that it
        repeats comes twice.
        """
        at = (int(seconds) // 60 + 1) * 60
        end = at + _HORIZON
        while at < end:
            time = datetime.fromtimestamp(at, self.zone or UTC)
            if time.month not in self.months:
                start = time.replace(day=1, hour=0, minute=0, fold=0)
                at = max(at + 60, int((start + timedelta(days=32)).replace(day=1).timestamp()))
            elif not self._day(time):
                midnight = time.replace(hour=0, minute=0, fold=0) + timedelta(days=1)
                at = max(at + 60, int(midnight.timestamp()))
            elif time.hour not in self.hours:
                at += (60 - time.minute) * 60
            elif time.minute not in self.minutes:
                at += 60
            else:
                return float(at)
        return None

    def latest_between(self, start: float, end: float) -> float | None:
        """The last time after `start` and not after `end`, without walking through all that were missed."""
        span = 120.0
        while True:
            since = max(start, end - span)
            found = self.next_after(since)
            if found is not None and found <= end:
                break
            if since <= start:
                return None
            span *= 2
        while True:
            later = self.next_after(found)
            if later is None or later > end:
                return found
            found = later

    def _day(self, time: datetime) -> bool:
        by_month = time.day in self.days
        by_week = time.isoweekday() % 7 in self.weekdays
        return (by_month or by_week) if self.any_day else (by_month and by_week)


def parse(text: str, zone: str = "") -> Schedule:
    where: ZoneInfo | None = None
    if zone:
        try:
            where = ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError) as error:
            raise BadSchedule(f"unknown time zone {zone!r}") from error
    fields = _MACROS.get(text.strip().lower(), text).split()
    if len(fields) != 5:
        raise BadSchedule(f"expected exactly 5 fields, found {len(fields)}: {text!r}")
    sets = [_field(field, low, high, names) for field, (low, high), names in zip(fields, _LIMITS, _NAMES, strict=True)]
    restricted = not fields[2].startswith("*") and not fields[4].startswith("*")
    return Schedule(sets[0], sets[1], sets[2], sets[3], sets[4], restricted, where)


_NAMES: tuple[tuple[str, ...], ...] = ((), (), (), ("", *_MONTHS), _DAYS)


def _field(text: str, low: int, high: int, names: tuple[str, ...]) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        span, _, step_text = part.partition("/")
        step = int(step_text) if step_text.isdecimal() else 0 if step_text else 1
        if step < 1:
            raise BadSchedule(f"bad step in {part!r}")
        if span in ("*", "?"):
            first, last = low, high
        else:
            a, dash, b = span.partition("-")
            first = _number(a, names)
            last = _number(b, names) if dash else (high if step_text else first)
        if names is _DAYS:
            last = 6 if last == 7 and first != 7 else last
            first, last = (0, 0) if first == 7 else (first, last)
        if not low <= first <= last <= high:
            raise BadSchedule(f"{part!r} is outside {low}-{high}")
        found.update(range(first, last + 1, step))
    return frozenset(found)


def _number(text: str, names: tuple[str, ...]) -> int:
    if text.isdecimal():
        return int(text)
    if text.lower() in names and text:
        return names.index(text.lower())
    raise BadSchedule(f"{text!r} is not a number")
