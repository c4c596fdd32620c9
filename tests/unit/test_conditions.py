"""`phalanx why` without a scheduler that answers, for a caller who may not read the object either."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from phalanx.base.client import Call, Client, WatchEvent
from phalanx.base.errors import Forbidden, NotFound
from phalanx.base.well_known import PHALANX_API, SCHEDULING_API
from phalanx.cli.conditions import from_conditions


class Closed(Client):
    """Has scheduling kinds in some API groups; the caller may not read them."""

    def __init__(self, *groups: str) -> None:
        self.groups = groups

    async def call(self, call: Call) -> bytes:
        if call.resource.group not in self.groups:
            raise NotFound("the server could not find the requested resource")
        raise Forbidden(f'podgroups.{call.resource.group} "{call.name}" is forbidden')

    async def events(self, call: Call) -> AsyncIterator[WatchEvent]:
        yield WatchEvent("ADDED", b"{}")


@pytest.mark.parametrize(
    ("groups", "named"),
    [
        ((SCHEDULING_API, PHALANX_API), SCHEDULING_API),
        ((SCHEDULING_API,), SCHEDULING_API),
        ((PHALANX_API,), PHALANX_API),
    ],
)
def test_forbidden_says_that_no_scheduler_answers_and_names_the_served_group(
    groups: tuple[str, ...], named: str
) -> None:
    with pytest.raises(Forbidden) as refused:
        asyncio.run(from_conditions(Closed(*groups), "PodGroup", "team-a", "train", "no scheduler answers"))
    assert str(refused.value) == f'no scheduler answers; its conditions: podgroups.{named} "train" is forbidden'
