"""Decide from the type of a failure whether a call is repeated."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Literal, TypeVar

from phalanx.base.errors import (
    ApiProblem,
    Forbidden,
    InternalError,
    ServiceUnavailable,
    Timeout,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)

T = TypeVar("T")

Verdict = Literal["repeat", "uncertain", "final"]
FIRST_DELAY, LONGEST_DELAY = 0.05, 5.0


def verdict(problem: ApiProblem) -> Verdict:
    """Return whether to repeat a failed call.

    repeat: not done, retry. uncertain: may be done, read before retrying. final: do not retry.
    """
    if isinstance(problem, TooManyRequests | Unauthorized):
        return "repeat"
    if isinstance(problem, Unreachable | Timeout | InternalError | ServiceUnavailable):
        return "uncertain"
    return "uncertain" if problem.http_code >= 500 else "final"


def delay(attempt: int, problem: ApiProblem, rng: random.Random) -> float:
    """Return the seconds to wait: exponential with jitter, but never less than the server asked for."""
    backoff = min(LONGEST_DELAY, FIRST_DELAY * 2.0**attempt)
    return max(float(problem.retry_after), backoff * (0.5 + rng.random() / 2))


def log_level(failures: int, problem: ApiProblem) -> int:
    """Return the log level of a repeated failure: a warning for the first, the fourth and every 30th one.

    Missing rights often come together and one log line names them all, so Forbidden is a warning every 300th time only.
    """
    if isinstance(problem, Forbidden):
        return logging.INFO if failures == 0 else logging.WARNING if failures % 300 == 0 else logging.DEBUG
    return logging.WARNING if failures in (0, 3) or failures % 30 == 0 else logging.DEBUG


async def retrying(
    call: Callable[[], Awaitable[T]], rng: random.Random, *, attempts: int = 6, idempotent: bool = True
) -> T:
    """Repeat `call` while its failure allows it. With idempotent=False an uncertain failure is not repeated."""
    for attempt in range(attempts):
        try:
            return await call()
        except ApiProblem as problem:
            kind = verdict(problem)
            if kind == "final" or (kind == "uncertain" and not idempotent) or attempt == attempts - 1:
                raise
            await asyncio.sleep(delay(attempt, problem, rng))
    raise AssertionError("unreachable: the loop returns or raises")
