"""What a controller that lists its objects periodically says about a server that lacks something."""

from __future__ import annotations

import asyncio

import pytest

from phalanx.base.errors import Forbidden, NotFound
from phalanx.serve.scheduler_parts import PeriodicController


def test_missing_rights_and_kinds_are_one_line_each_until_they_are_there(caplog: pytest.LogCaptureFixture) -> None:
    denied, absent = Forbidden("requests is forbidden"), NotFound("no such kind")
    runs = iter([denied, denied, absent, absent, denied, None, denied])

    async def reconcile() -> None:
        problem = next(runs, asyncio.CancelledError())
        if problem is not None:
            raise problem

    controller = PeriodicController("requests", reconcile, 0.0, "install them", "provisioning-requests")
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(controller.run())
    right = "no requests: requests is forbidden; apply deploy/components/provisioning-requests/role.yaml"
    kind = "no requests: the server does not know their kinds; install them"
    assert [record.getMessage() for record in caplog.records] == [right, kind, right, right]
