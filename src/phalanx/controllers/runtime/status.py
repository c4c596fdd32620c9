"""Write status only when it changed; a condition's transition time moves only with its status."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Iterable
from typing import Any, TypeVar

from phalanx.base.clock import Clock, rfc3339
from phalanx.controllers.grouping.core import GroupingRefused
from phalanx.controllers.runtime.controller import Cache
from phalanx.model.kinds import Json

# Fields for which 0 differs from a missing value.
MEANT_ZEROS = ("currentInPlaceRestartAttempt", "previousInPlaceRestartAttempt")


def set_condition(
    conditions: list[Json], type_: str, status: str, reason: str, message: str, clock: Clock, **extra: Any
) -> None:
    """Edit `conditions` in place."""
    now = rfc3339(clock.now())
    for entry in conditions:
        if entry["type"] == type_:
            if entry.get("status") != status:
                entry["lastTransitionTime"] = now
            entry.update(status=status, reason=reason, message=message, **extra)
            return
    conditions.append(
        {"type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": now, **extra}
    )


def follow_refusal(conditions: list[Json], type_: str, refusal: GroupingRefused | None, clock: Clock) -> None:
    """Set the condition that reports why a workload's request is refused; None: remove it."""
    if refusal is not None:
        set_condition(conditions, type_, "True", refusal.reason, refusal.message, clock)
    else:
        conditions[:] = [each for each in conditions if each["type"] != type_]


def conditions_of(obj: Json) -> list[Json]:
    """Return a copy that may be edited."""
    return copy.deepcopy((obj.get("status") or {}).get("conditions") or [])


async def write_status(cache: Cache, obj: Json, status: Json) -> Json:
    """PUT the status subresource if it differs; return the present object."""
    status = {key: value for key, value in status.items() if value is not None and value != []}
    if _without_zeros(status) == _without_zeros(obj.get("status") or {}):
        return obj
    return await cache.update({**obj, "status": status}, "status")


def _without_zeros(status: Json) -> Json:
    """Return the status without zeros, which the server adds for required fields."""
    return {name: value for name, value in status.items() if value not in (None, 0, "", [], {}) or name in MEANT_ZEROS}


T = TypeVar("T")


async def gather_results(writes: Iterable[Awaitable[T]]) -> list[T]:
    """Await all writes and return their results in order: a reconcile must not start while one is in progress."""
    found = await asyncio.gather(*writes, return_exceptions=True)
    done: list[T] = []
    for result in found:
        if isinstance(result, BaseException):
            raise result
        done.append(result)
    return done
