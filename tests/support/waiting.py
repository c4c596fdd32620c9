"""Waiting for what another thread, task or process does: the poll is the synchronisation, the timeout the failure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 60.0  # seconds: only what fails takes this long


def eventually(
    check: Callable[[], T], what: str, seconds: float = PATIENCE, *, meanwhile: Callable[[], object] | None = None
) -> T:
    """Return what `check` finds as soon as it finds something; `meanwhile` is done between two looks."""
    end = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < end, f"not within {seconds:.0f} s: {what}"
        if meanwhile is not None:
            meanwhile()
        time.sleep(0.02)
    return found


async def eventually_async(check: Callable[[], T], what: str, seconds: float = PATIENCE) -> T:
    """The same for what other tasks of this loop do."""
    end = asyncio.get_running_loop().time() + seconds
    while not (found := check()):
        assert asyncio.get_running_loop().time() < end, f"not within {seconds:.0f} s: {what}"
        await asyncio.sleep(0.01)
    return found
