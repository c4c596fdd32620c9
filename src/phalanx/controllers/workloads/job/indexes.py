"""Sets of completion indexes as Jobs write them: "0-2,5"."""

from __future__ import annotations

from collections.abc import Iterable

MAX_DIGITS = 12
MOST_IN_RANGE = 1_000_000  # indexes of one range: any user with permission may have written the status


def parse_indexes(text: str) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (not last or last.isdecimal()):
            start, end = int(first[:MAX_DIGITS]), int((last or first)[:MAX_DIGITS])
            found.update(range(start, min(end, start + MOST_IN_RANGE) + 1))
    return found


def format_indexes(indexes: Iterable[int]) -> str:
    ranges: list[list[int]] = []
    for index in sorted(indexes):
        if ranges and index == ranges[-1][1] + 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    # Two neighbours are written as a list, three or more as a range, as upstream does.
    return ",".join(str(a) if a == b else f"{a},{b}" if b == a + 1 else f"{a}-{b}" for a, b in ranges)
