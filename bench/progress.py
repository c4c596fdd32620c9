"""Report the progress of a benchmark to `phalanx bench`, which names a file descriptor for it."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")
DESCRIPTOR = "PHALANX_BENCH_PROGRESS"  # phalanx.cli.bench sets it


def announced(done: int, total: int) -> None:
    descriptor = os.environ.get(DESCRIPTOR)
    if descriptor:
        os.write(int(descriptor), f"{done} {total}\n".encode())


async def passing(seconds: float) -> None:
    """Tells every second how much of a stretch of time is over; to be cancelled at its end."""
    for second in itertools.count():
        announced(min(second, int(seconds)), int(seconds))
        await asyncio.sleep(1)


def counted(items: Iterable[Item]) -> Iterator[Item]:
    """Return the same items; before each one, report how many are done of how many."""
    every = list(items)
    for number, item in enumerate(every):
        announced(number, len(every))
        yield item
