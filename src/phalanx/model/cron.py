"""Cron schedules: five fields, names, steps, ranges, @daily and friends, @every, in a time zone."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

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
_HORIZON = 366 * 5 * 86_400  # seconds; the search for the next time of a schedule such as 30 February ends here


class BadSchedule(ValueError):
    """Says what is wrong with the text."""


class Schedule(msgspec.Struct, frozen=True):
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day: bool  # day-of-month and day-of-week are both restricted: either is enough
    zone: ZoneInfo | None
    every: int = 0  # seconds, of @every: the time after the last run

    def next_after(self, seconds: float) -> float | None:
        """Return the first time after `seconds` (epoch); None if there is none within five years.

        Hours and minutes are counted in real time: an hour that daylight saving skips does not match, one that it
        repeats matches twice.
        """
        if self.every:
            return float(int(seconds) + self.every)
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
        """Return the last time after `start` and not after `end`, without visiting all missed times."""
        if start >= end:
            return None
        if self.every:
            rounds = int(end - int(start)) // self.every
            return float(int(start) + rounds * self.every) if rounds > 0 else None
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
    if text.startswith("@"):
        if text.startswith("@every "):
            return _every(text, where)
        if text not in _MACROS:
            raise BadSchedule(f"unrecognized descriptor: {text}")
    fields = _MACROS.get(text, text).split()
    if len(fields) != 5:
        raise BadSchedule(f"expected exactly 5 fields, found {len(fields)}: [{' '.join(fields)}]")
    sets = [_field(field, low, high, names) for field, (low, high), names in zip(fields, _LIMITS, _NAMES, strict=True)]
    either = not _unrestricted(fields[2]) and not _unrestricted(fields[4])
    return Schedule(sets[0], sets[1], sets[2], sets[3], sets[4], either, where)


_NAMES: tuple[tuple[str, ...], ...] = ((), (), (), ("", *_MONTHS), _DAYS)
_NEVER: frozenset[int] = frozenset()
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def _every(text: str, zone: ZoneInfo | None) -> Schedule:
    announced = text.removeprefix("@every ")
    parts = _DURATION.findall(announced)
    if not parts or _DURATION.sub("", announced):
        raise BadSchedule(f'failed to parse duration {text}: time: invalid duration "{announced}"')
    seconds = sum(float(amount) * _UNITS[unit] for amount, unit in parts)
    return Schedule(_NEVER, _NEVER, _NEVER, _NEVER, _NEVER, False, zone, max(1, int(seconds)))


def _unrestricted(text: str) -> bool:
    """Return True if the field contains a star that allows every value (without a step, or with step 1)."""
    return any(part in ("*", "?", "*/1", "?/1") for part in text.split(","))


def _field(text: str, low: int, high: int, names: tuple[str, ...]) -> frozenset[int]:
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        span, *steps = part.split("/")
        ends = span.split("-")
        if ends[0] in ("*", "?"):
            first, last = low, high
        else:
            first = last = _number(ends[0], names)
            if len(ends) == 2:
                last = _number(ends[1], names)
            elif len(ends) > 2:
                raise BadSchedule(f"too many hyphens: {part}")
        if len(steps) > 1:
            raise BadSchedule(f"too many slashes: {part}")
        step = _number(steps[0], ()) if steps else 1
        if steps and len(ends) == 1:
            last = high  # N/step begins at N
        if first < low:
            raise BadSchedule(f"beginning of range ({first}) below minimum ({low}): {part}")
        if last > high:
            raise BadSchedule(f"end of range ({last}) above maximum ({high}): {part}")
        if first > last:
            raise BadSchedule(f"beginning of range ({first}) beyond end of range ({last}): {part}")
        if step == 0:
            raise BadSchedule(f"step of range should be a positive number: {part}")
        found.update(range(first, last + 1, step))
    return frozenset(found)


def _number(text: str, names: tuple[str, ...]) -> int:
    if text and text.lower() in names:
        return names.index(text.lower())
    if text.isascii() and text.isdecimal():
        return int(text)
    raise BadSchedule(f'failed to parse int from {text}: strconv.Atoi: parsing "{text}": invalid syntax')
