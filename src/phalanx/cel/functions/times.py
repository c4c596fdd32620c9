"""Durations and timestamps: parsing, formatting and calendar functions."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from phalanx.base.clock import NANOSECONDS

from ..declarations import function, member
from ..types import DURATION, INT, STRING, TIMESTAMP
from ..values import MAX_INT, MIN_INT, Duration, EvaluationError, Timestamp

_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?(ns|us|µs|μs|ms|s|m|h)")
_STAMP = re.compile(r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:[.,](\d+))?(Z|z|[+-]\d\d:\d\d)", re.ASCII)
MIN_STAMP = -62135596800 * 10**9  # 0001-01-01T00:00:00Z
MAX_STAMP = 253402300800 * 10**9 - 1  # the last nanosecond of 9999
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def checked_duration(nanos: int) -> Duration:
    """Return a duration of 64 bits, or raise EvaluationError."""
    if MIN_INT <= nanos <= MAX_INT:
        return Duration(nanos)
    raise EvaluationError("duration overflow")


def checked_timestamp(nanos: int, offset: int = 0) -> Timestamp:
    """Return a timestamp between the years 1 and 9999, or raise EvaluationError."""
    if MIN_STAMP <= nanos <= MAX_STAMP:
        return Timestamp(nanos, offset)
    raise EvaluationError("timestamp overflow")


def parse_duration(text: str) -> Duration:
    """Parse a duration such as `1h30m` or `-1.5s`."""
    body = text[1:] if text[:1] in "+-" else text
    if body == "0" and text:
        return Duration(0)
    total, at = 0, 0
    while at < len(body):
        part = _PART.match(body, at)
        if part is None or not (part[1] or part[2]) or len(part.group()) > 40:
            break
        unit = NANOSECONDS[part[3]]
        total += int(part[1] or 0) * unit
        if part[2]:
            total += int(part[2]) * unit // 10 ** len(part[2])
        at = part.end()
    if not body or at < len(body):
        raise EvaluationError(f"time: invalid duration {_quoted(text)}")
    return checked_duration(-total if text[0] == "-" else total)


def _quoted(text: str) -> str:
    return '"' + text[:64].replace("\\", "\\\\").replace('"', '\\"') + '"'


def parse_timestamp(text: str) -> Timestamp:
    """Parse an RFC 3339 timestamp."""
    found = _STAMP.fullmatch(text)
    if found is not None:
        try:
            numbers = [int(x) for x in found.groups()[:6]]
            moment = datetime(*numbers, tzinfo=UTC)  # type: ignore[misc,arg-type]
        except ValueError:
            moment = None
        if moment is not None:
            offset = _offset_seconds(found[8])
            seconds = int((moment - _EPOCH).total_seconds()) - offset
            fraction = (found[7] or "")[:9].ljust(9, "0")
            return checked_timestamp(seconds * 10**9 + int(fraction), offset)
    message = f'parsing time {_quoted(text)} as "2006-01-02T15:04:05Z07:00": cannot parse {_quoted(text)} as "2006"'
    raise EvaluationError(message)


def _offset_seconds(zone: str) -> int:
    if zone in "Zz":
        return 0
    seconds = int(zone[1:3]) * 3600 + int(zone[4:6]) * 60
    return -seconds if zone[0] == "-" else seconds


def format_value(value: Duration | Timestamp) -> str:
    """Return the text that `string()` gives."""
    if isinstance(value, Duration):
        whole, rest = divmod(abs(value.nanos), 10**9)
        sign = "-" if value.nanos < 0 else ""
        fraction = f".{rest:09d}".rstrip("0") if rest else ""
        return f"{sign}{whole}{fraction}s"
    seconds, rest = divmod(value.nanos, 10**9)
    moment, zone = _EPOCH + timedelta(seconds=seconds), "Z"
    if value.offset:
        hours, minutes = divmod(abs(value.offset) // 60, 60)
        moment, zone = (
            moment + timedelta(seconds=value.offset),
            f"{'-' if value.offset < 0 else '+'}{hours:02d}:{minutes:02d}",
        )
    fraction = f".{rest:09d}".rstrip("0") if rest else ""
    return f"{moment:%Y-%m-%dT%H:%M:%S}".rjust(19, "0") + f"{fraction}{zone}"


def _zone(name: str) -> tzinfo:
    found = re.fullmatch(r"([+-]?)(\d\d):(\d\d)", name)
    if found:
        offset = timedelta(hours=int(found[2]), minutes=int(found[3]))
        return timezone(-offset if found[1] == "-" else offset)
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        raise EvaluationError(f"unknown time zone {name}") from None


def _local(value: Timestamp, zone: str | None) -> datetime:
    moment = _EPOCH + timedelta(seconds=value.nanos // 10**9)
    try:
        return moment.astimezone(_zone(zone)) if zone else moment
    except OverflowError:
        raise EvaluationError("timestamp overflow") from None


_GETTERS: dict[str, Any] = {
    "getFullYear": lambda d: d.year,
    "getMonth": lambda d: d.month - 1,
    "getDayOfYear": lambda d: d.timetuple().tm_yday - 1,
    "getDate": lambda d: d.day,
    "getDayOfMonth": lambda d: d.day - 1,
    "getDayOfWeek": lambda d: d.isoweekday() % 7,
    "getHours": lambda d: d.hour,
    "getMinutes": lambda d: d.minute,
    "getSeconds": lambda d: d.second,
}
_SPANS = {"getHours": 3600 * 10**9, "getMinutes": 60 * 10**9, "getSeconds": 10**9, "getMilliseconds": 10**6}


def _toward_zero(value: int, unit: int) -> int:
    return value // unit if value >= 0 else -(-value // unit)


def _getter(name: str) -> Any:
    overloads = []
    get = _GETTERS.get(name)
    if name == "getMilliseconds":
        overloads = [
            member("timestamp_to_ms", (TIMESTAMP,), INT, lambda v: v.nanos % 10**9 // 10**6),
            member("timestamp_to_ms_tz", (TIMESTAMP, STRING), INT, lambda v, _: v.nanos % 10**9 // 10**6),
        ]
    elif get is not None:
        overloads = [
            member(f"timestamp_{name}", (TIMESTAMP,), INT, lambda v: get(_local(v, None))),
            member(f"timestamp_{name}_tz", (TIMESTAMP, STRING), INT, lambda v, zone: get(_local(v, zone))),
        ]
    if name in _SPANS:
        unit = _SPANS[name]
        overloads.append(member(f"duration_{name}", (DURATION,), INT, lambda v: _toward_zero(v.nanos, unit)))
    return function(name, *overloads)


TIMES = tuple(_getter(name) for name in (*_GETTERS, "getMilliseconds"))
