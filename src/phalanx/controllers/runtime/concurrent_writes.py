"""Run several writes concurrently: all of them end before the first failure is raised."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TypeVar

T = TypeVar("T")


async def together(writes: Iterable[Awaitable[T]]) -> list[T]:
    """Return results in order. A write still in progress while its owner is reconciled would be made twice."""
    found = await asyncio.gather(*writes, return_exceptions=True)
    done: list[T] = []
    for result in found:
        if isinstance(result, BaseException):
            raise result
        done.append(result)
    return done
